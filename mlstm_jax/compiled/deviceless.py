"""Compile the step of a config for GPUs that are not there.

JAX's plugin for CUDA compiles for a device that is described to it. Only the compiler is needed,
the extra `gpu-compile`; no driver, no GPU. What it cannot know is what is tried out on a device:
it chooses products by rules.
"""

import dataclasses
import importlib.metadata
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mlstm_jax.config import Config
from mlstm_jax.data.stream import Batch
from mlstm_jax.errors import UserError
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.model.launch import require_gpu
from mlstm_jax.model.recurrence import Loops
from mlstm_jax.planning.machine import Gpu, Machine
from mlstm_jax.training import optimizer, schedule
from mlstm_jax.training.parallel import AXIS
from mlstm_jax.training.state import init_state
from mlstm_jax.training.step import make_train_step

# The same for every GPU of today; without the version of the driver XLA makes fewer graphs.
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
_PLUGIN = "jax-cuda12-pjrt"
_KERNEL_PLUGIN = "jax-cuda12-plugin"  # XLA finds the compiler of Pallas's kernels in it


class Compiled(NamedTuple):
    """A program for one device of several."""

    text: str  # HLO after all optimisations
    argument_bytes: int
    temporary_bytes: int  # beside the arguments, as XLA counts them


def require() -> None:
    """Raise UserError unless the compiler for CUDA is installed, of the version of jax."""
    _require_of_jax_s_version(_PLUGIN)


def _require_of_jax_s_version(package: str) -> None:
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            "to compile for a GPU that is not there, the compiler for CUDA is needed, about 550 "
            f"MB, and {package} is not installed: pip install 'mlstm-jax[gpu-compile]'."
        ) from error
    if found != jax.__version__:
        raise UserError(
            f"{package} {found} does not compile for jax {jax.__version__}: "
            f"pip install {package}=={jax.__version__}"
        )


def _require_pallas(config: Config, machine: Machine) -> None:
    """Raise UserError unless our own kernels can be compiled for a machine that is not here."""
    capability = machine.gpu.compute_capability if machine.gpu else None
    if capability and (8, 0) <= capability < (9, 0):
        raise UserError(
            f"{machine.name}: devices.kernels is 'pallas', and Pallas takes a GPU that is not there"
            " for one of compute capability 9.0, but this one has "
            f"{capability[0]}.{capability[1]}; use --devices.kernels xla."
        )
    require_gpu(config.model.hidden, capability)
    _require_of_jax_s_version(_KERNEL_PLUGIN)


def compile_step(config: Config, machine: Machine, devices: int) -> Compiled:
    """Compile a training step.

    Args:
        config: its batch is the global one, resolved for `devices`; phases are not looked at.
        machine: its `gpu` is compiled for; its nodes decide which devices are on one.
        devices: how many GPUs share the batch.

    Raises:
        UserError: see `compile_program`.
    """
    loops: Loops = "packed"
    if config.devices.kernels == "pallas":
        _require_pallas(config, machine)
        loops = "pallas"
    model = LanguageModel(config.model, config.precision, config.train.recompute_every, loops)
    lr_schedule = schedule.learning_rate(config.optimizer, config.data.batch, _STEPS)
    tx = optimizer.build(
        config.optimizer,
        lr_schedule,
        update_bytes=config.data.batch * config.data.window,
        axis_name=AXIS,
        compute=config.precision.compute,
    )
    rows = config.data.batch // devices
    arguments = (
        jax.eval_shape(lambda: init_state(config, model, tx, 0)),
        model.init_carry(rows),
        _batch(config, rows),
        np.float32(0),
    )
    step = make_train_step(config, model, tx, lr_schedule, AXIS)
    return compile_program(machine, step, arguments, devices, donate=(0, 1))


def compile_program(
    machine: Machine,
    step: Callable[..., Any],
    arguments: tuple[Any, ...],
    devices: int = 1,
    donate: tuple[int, ...] = (),
) -> Compiled:
    """Compile a function of one device, as `Parallel.map` does with devices that are there.

    Args:
        machine: what it is compiled for.
        step: it may know of the axis of devices, `AXIS`.
        arguments: of one device, arrays or their shapes and types.
        devices: how many run it together.
        donate: which arguments give their memory to results.

    Raises:
        UserError: the compiler is not installed or refuses, or the machine has no `gpu`.
    """
    require()
    if machine.gpu is None:
        raise UserError(
            f"{machine.name}: the machine's file does not describe its GPU, the field gpu, which "
            "--compile needs; `mlstm-jax configs h200` shows one."
        )
    mesh = Mesh(np.array(_devices(machine, machine.gpu, devices)), (AXIS,))
    spec = PartitionSpec(AXIS)
    sharding = NamedSharding(mesh, spec)
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((devices, *x.shape), x.dtype, sharding=sharding), arguments
    )

    def one_device(*arguments: Any) -> Any:
        results = step(*jax.tree.map(lambda x: x[0], arguments))
        return jax.tree.map(lambda x: jnp.asarray(x)[None], results)

    # What pmap makes of it: one program, the devices' axis in front.
    mapped = jax.shard_map(one_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    traced = jax.jit(mapped, donate_argnums=donate).trace(*shapes)
    try:
        with _uncached():
            compiled = traced.lower(lowering_platforms=("cuda",)).compile()
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"XLA does not compile this for {machine.gpu.description}: "
            f"{str(error).strip().splitlines()[0]}"
        ) from error
    memory = compiled.memory_analysis()
    return Compiled(compiled.as_text(), memory.argument_size_in_bytes, memory.temp_size_in_bytes)


@contextmanager
def _uncached() -> Iterator[None]:
    """Keep what is compiled out of JAX's cache, which cannot load it without the device."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, before)


# Of the schedule: it is in the program as a number, and changes nothing else.
_STEPS = 1_000_000


def _batch(config: Config, rows: int) -> Batch:
    """Return a batch as shapes and types alone."""
    shape = (rows, config.data.window)
    has_labels = config.model.rating_head or config.model.classes
    return jax.eval_shape(
        lambda: Batch(
            inputs_BT=np.zeros(shape, np.uint8),
            targets_BT=np.zeros(shape, np.uint8),
            reset_B=np.zeros(rows, np.bool_),
            labels_BT=np.zeros(shape, np.float32) if has_labels else None,
            targets_B=np.zeros(rows, np.int32),
            weight_B=np.zeros(rows, np.float32),
        )
    )


def _devices(machine: Machine, gpu: Gpu, count: int) -> list[Any]:
    each = machine.devices_per_node
    nodes = -(-count // each)
    topology = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        target_config=_target(gpu),
        topology=f"1x{nodes}x{count if nodes == 1 else each}",
    )
    return list(topology.devices[:count])


def _target(gpu: Gpu) -> str:
    """Return a description of the GPU as XLA's text format has it."""
    values = dataclasses.asdict(gpu)
    description = values.pop("description")
    major, minor = values.pop("compute_capability")
    own = "".join(f"  {name}: {value}\n" for name, value in values.items())
    return (
        f"gpu_device_info {{{_COMMON}{own}"
        f"  cuda_compute_capability {{ major: {major} minor: {minor} }}\n}}\n"
        'platform_name: "CUDA"\n'
        "dnn_version_info { major: 9 minor: 10 }\n"
        "runtime_version { major: 12 minor: 8 patch: 0 }\n"
        f'device_description_str: "{description}"\n'
    )
