"""Compile programs for GPUs that this machine does not have, and count their memory.

JAX's plugin for CUDA compiles for a described device. It needs only the compiler, the extra
`gpu-compile`; no driver and no GPU. Without a device it cannot autotune: it chooses the kernels of
products by rules. gpu_program.py counts the kernels and collectives of such a program.
"""

import importlib.metadata
import math
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

# Nothing else describes a device that is not there.
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mlstm_jax.config import Config
from mlstm_jax.data.stream import Batch
from mlstm_jax.errors import UserError, first_line
from mlstm_jax.model.kernels import PALLAS
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.model.mlstm import STACKED
from mlstm_jax.model.pallas import Grid, pl, require_gpu
from mlstm_jax.parallel import AXIS, map_by_shard_map
from mlstm_jax.planning import Machine
from mlstm_jax.training import schedule
from mlstm_jax.training.state import state_shapes
from mlstm_jax.training.step import make_train_step

# The same for all current GPUs; without a driver version XLA creates fewer command buffers.
_COMMON = """
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  driver_version: "12.9.0"
  kernel_mode_driver_version: "570.86.15"
  runtime_version: "12.9.0"
  compile_time_toolkit_version: "12.9.0"
  dnn_version: "9.10.0"
"""


class Compiled(NamedTuple):
    """The program of one device."""

    text: str  # HLO after all optimisations
    argument_bytes: int
    temporary_bytes: int  # in addition to the arguments, as XLA counts them


def compile_step(config: Config, machine: Machine, devices: int) -> Compiled:
    """Compile a training step, as `compile_program` does; the batch is that of all `devices`."""
    loops = STACKED
    if config.devices.kernels == "pallas":
        _require_pallas(config, machine)
        loops = PALLAS
    model = LanguageModel(config.model, config.precision.types, config.train.recompute_every, loops)
    rows = config.data.batch // devices
    arguments = (
        state_shapes(config),
        model.init_carry(rows),
        _batch(config, rows),
        np.float32(0),
        schedule.rates_of(config.optimizer, config.data.batch, 1_000_000),
    )
    step = make_train_step(config, model)
    return compile_program(machine, step, arguments, devices, donate=(0, 1))


def compile_program(
    machine: Machine,
    step: Callable[..., Any],
    arguments: tuple[Any, ...],
    devices: int = 1,
    donate: tuple[int, ...] = (),
) -> Compiled:
    """Compile a function of one device, as `Parallel.map` does for the devices of this machine.

    Args:
        machine: its `gpu` is the target; `devices_per_node` decides which devices share a node.
        step: the function; it may use the axis of devices, `AXIS`.
        arguments: of one device, arrays or their shapes and types.
        devices: how many devices run it together.
        donate: indices of arguments whose memory the results may reuse.

    Raises:
        UserError: the compiler is not installed or fails, or the machine has no `gpu`.
    """
    require()
    if machine.gpu is None:
        raise UserError(
            f"{machine.name}: the machine's file has no field gpu, which the compiler needs; "
            "`mlstm-jax configs h200` shows an example."
        )
    mesh = Mesh(np.array(_devices(machine, machine.gpu, devices)), (AXIS,))
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((devices, *x.shape), x.dtype, sharding=sharding), arguments
    )
    with mock.patch.object(Grid, "run_on_gpu", run_and_count):
        traced = map_by_shard_map(step, mesh, donate).trace(*shapes)
    # JAX's cache cannot load such a program without the device.
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, math.inf)
    try:
        compiled = traced.lower(lowering_platforms=("cuda",)).compile()
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"XLA cannot compile this for {machine.gpu['description']}: {first_line(error)}"
        ) from error
    finally:
        jax.config.update(name, before)
    memory = compiled.memory_analysis()
    return Compiled(compiled.as_text(), memory.argument_size_in_bytes, memory.temp_size_in_bytes)


def require(package: str = "jax-cuda12-pjrt") -> None:
    """Raise UserError unless the compiler for CUDA is installed in the version of jax."""
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            "compiling without a GPU needs the compiler for CUDA, about 600 MB, but "
            f"{package} is not installed: pip install 'mlstm-jax[gpu-compile]'."
        ) from error
    if version != jax.__version__:
        raise UserError(
            f"{package} {version} does not match jax {jax.__version__}: "
            f"pip install {package}=={jax.__version__}"
        )


class _Counted:
    """Replaces a reference of a kernel, and counts the bytes of the pieces that it moves."""

    def __init__(self, array: Any, size: int) -> None:
        self.shape = array.shape
        self.dtype = array.dtype
        self.size = size
        self.bytes = 0

    def __getitem__(self, index: Any) -> Any:
        last = index[-1] if isinstance(index, tuple) else index
        if not isinstance(last, pl.Slice):
            return 0  # so that what is moved belongs to the first step
        self.bytes += self.size * self.dtype.itemsize
        return jnp.zeros(self.size, self.dtype)

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index]


_run_on_gpu = Grid.run_on_gpu


def run_and_count(
    grid: Grid, name: str, run_body: Any, inputs: Any, in_place: Any, outputs: Any
) -> Any:
    """Run one of our kernels with a name that says how many bytes it moves of each operand.

    XLA knows only the arrays of such a kernel, most of which cover all steps.
    """
    counted = [_Counted(x, grid.size) for x in (*inputs, *in_place, *outputs)]
    number = jax.ShapeDtypeStruct((), jnp.int32)
    jax.eval_shape(lambda row: run_body(row, row, *counted), number)
    pieces = grid.rows * pl.cdiv(grid.hidden, grid.size)
    moved = "_".join(str(pieces * array.bytes) for array in counted)
    with jax.named_scope(f"moves_{moved}_bytes"):
        return _run_on_gpu(grid, name, run_body, inputs, in_place, outputs)


def _require_pallas(config: Config, machine: Machine) -> None:
    capability = tuple(machine.gpu["compute_capability"]) if machine.gpu else None
    if capability and (8, 0) <= capability < (9, 0):
        raise UserError(
            f"{machine.name}: devices.kernels is 'pallas', but without a GPU Pallas compiles for "
            "compute capability 9.0, and this one has "
            f"{capability[0]}.{capability[1]}; use `devices.kernels` xla."
        )
    require_gpu(config.model.hidden, capability, fp8=config.precision.recurrent == "fp8")
    require("jax-cuda12-plugin")  # has the compiler of Pallas kernels


def _batch(config: Config, rows: int) -> Batch:
    shape = (rows, config.data.window)
    return Batch(
        inputs_BT=np.zeros(shape, np.uint8),
        targets_BT=np.zeros(shape, np.uint8),
        reset_B=np.zeros(rows, np.bool_),
        labels_BT=np.zeros(shape, np.float32) if config.model.labels else None,
        targets_B=np.zeros(rows, np.int32),
        weight_B=np.zeros(rows, np.float32),
        active_fraction_B=np.zeros(rows, np.float32),
    )


def _devices(machine: Machine, gpu: dict[str, Any], count: int) -> list[Any]:
    values = dict(gpu)
    description, (major, minor) = values.pop("description"), values.pop("compute_capability")
    described = "".join(f"  {name}: {value}\n" for name, value in values.items())
    target = (
        f"gpu_device_info {{{_COMMON}{described}"
        f"  cuda_compute_capability {{ major: {major} minor: {minor} }}\n}}\n"
        'platform_name: "CUDA"\n'
        "dnn_version_info { major: 9 minor: 10 }\n"
        "runtime_version { major: 12 minor: 8 patch: 0 }\n"
        f'device_description_str: "{description}"\n'
    )
    each = machine.devices_per_node
    nodes = -(-count // each)
    topology = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        target_config=target,
        topology=f"1x{nodes}x{count if nodes == 1 else each}",
    )
    return list(topology.devices[:count])
