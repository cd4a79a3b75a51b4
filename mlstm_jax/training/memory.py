"""The memory that a run needs, by formula, and whether the machine has it."""

import dataclasses

import jax

from mlstm_jax import environment
from mlstm_jax.config import Config
from mlstm_jax.errors import UserError
from mlstm_jax.model.language_model import VOCABULARY, parameter_shapes
from mlstm_jax.training.parallel import Parallel

# `memory_bytes` is what XLA counts, within a third (tests/planning/test_plan.py).
_ESTIMATE = 1.5


def parameter_count(config: Config) -> int:
    """Return the number of parameters, including a label head."""
    return sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(config.model)))


def compute_bytes(config: Config) -> int:
    """Return the bytes of one number of the compute type."""
    return 4 if config.precision.compute in ("fp32", "tf32") else 2


def memory_bytes(config: Config, rows: int) -> float:
    """Return the bytes that a step of `rows` rows needs on a device: the sum of what it keeps."""
    model, window, width = config.model, config.data.window, compute_bytes(config)
    rows = rows // config.train.micro_batches
    cell = width if config.precision.cell == "compute" else 4
    parameters = parameter_count(config)
    # Master weights and moments (Muon has one); the gradient; normalised weights, some of them
    # transposed.
    moments = 1 if config.optimizer.name == "muon" else 2
    state = parameters * (4 + 4 * moments + 4 + 2 + width)
    every = config.train.recompute_every
    layer = model.kept_bytes(rows * model.hidden, window, every, width, cell)
    # Logits and their gradient.
    logits = rows * window * VOCABULARY * 4 * 2
    return state + model.layers * layer + logits


def require_memory(config: Config, devices: Parallel) -> None:
    """Raise UserError if a run on CPUs needs far more memory than this process may have.

    Without this check the system would swap, or end the process, without a word. A GPU's own
    allocator says what it lacks.
    """
    if devices.local[0].platform != "cpu":
        return
    sizes = [(phase.batch, phase.window) for phase in config.phases]
    needed = 0.0
    for batch, window in sizes or [(config.data.batch, config.data.window)]:
        data = dataclasses.replace(config.data, batch=batch, window=window)
        here = dataclasses.replace(config, data=data)
        needed = max(needed, memory_bytes(here, batch // devices.count))
    needed *= len(devices.local)
    limits = environment.memory_limits()
    least = min(limits, key=lambda name: limits[name])
    if needed / _ESTIMATE > limits[least]:
        parameters = 4 * parameter_count(config) * len(devices.local)
        raise UserError(
            f"model.hidden {config.model.hidden:,}, model.layers {config.model.layers}: the run "
            f"needs about {needed / 1e9:,.1f} GB, of which {parameters / 1e9:,.1f} GB are "
            f"parameters, but {least} is {limits[least] / 1e9:,.1f} GB; take a smaller model, "
            "data.batch or data.window, or set train.recompute_every."
        )
