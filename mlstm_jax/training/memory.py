"""The memory that a run needs on a device."""

import jax

from mlstm_jax import host
from mlstm_jax.config import Config
from mlstm_jax.errors import UserError
from mlstm_jax.model.language_model import VOCABULARY, parameter_shapes
from mlstm_jax.parallel import Parallel

# `memory_bytes` is what XLA counts, within a third (tests/planning/test_plan.py).
_ESTIMATE = 1.5


def parameter_count(config: Config) -> int:
    """The number of parameters, including a label head."""
    return sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(config.model)))


def compute_bytes(config: Config) -> int:
    """The bytes of one number of the compute type."""
    return 4 if config.precision.compute in (None, "fp32", "tf32") else 2


def memory_bytes(config: Config, rows: int) -> float:
    """The bytes that a step of `rows` rows needs on a device: the sum of what it keeps."""
    architecture = config.model
    window = config.data.window
    width = compute_bytes(config)
    rows = rows // config.train.micro_batches
    cell = width if config.precision.cell == "compute" else 4
    parameters = parameter_count(config)
    # Master weights and moments; the gradient; normalised weights, some of them transposed.
    state = parameters * (4 + 4 * config.optimizer.kind.moments + 4 + 2 + width)
    every = config.train.recompute_every
    layer = architecture.activation_bytes(rows * architecture.hidden, window, every, width, cell)
    # Logits and their gradient.
    logits = rows * window * VOCABULARY * 4 * 2
    return state + architecture.layers * layer + logits


def require_memory(config: Config, devices: Parallel) -> None:
    """Raise UserError if a run on CPUs needs far more memory than this process may have.

    The system would swap or end the process without a word; a GPU's allocator says what it lacks.
    """
    if devices.local_devices[0].platform != "cpu":
        return
    limit, name = min((size, name) for name, size in host.memory_limits().items())
    rows = config.data.batch // devices.count
    needed = memory_bytes(config, rows) * len(devices.local_devices)
    if needed / _ESTIMATE > limit:
        raise UserError(
            f"the run needs about {needed / 1e9:,.1f} GB, but {name} is {limit / 1e9:,.1f} GB; "
            "take a smaller model, `data.batch` or `data.window`, or raise `train.micro_batches`."
        )
