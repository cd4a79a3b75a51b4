"""The state before the first step: from the seed, or from the parameters of another run."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import optax

from mlstm_jax.config import Config
from mlstm_jax.distributed.cluster import Cluster
from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.interop.weights import Arrays, expected_shapes, fingerprint, flatten, unflatten
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.training.state import TrainState, init_state


class Start(NamedTuple):
    """The parameters that a run starts from."""

    arrays: Arrays  # by name, NumPy float32
    fingerprint: str


def load_start(
    cluster: Cluster,
    config: Config,
    initial: Callable[[], Parameters] | None,
    *,
    required: bool,
) -> tuple[Start | None, list[str]]:
    """Return the parameters that `train.start_from` names, or None, and notes for the user.

    Args:
        cluster: all its processes must call this and get the same parameters.
        config: of the run.
        initial: reads the parameters.
        required: whether the run needs them; a run with checkpoints does not.

    Raises:
        UserError: the path is not a run, or the processes read different parameters.
        Damaged: the checkpoint cannot be read.
    """
    start, notes = None, []
    if config.train.start_from is not None:
        if initial is None:
            raise UserError(
                f"train.start_from is {config.train.start_from}, but no function was given that "
                "reads its parameters; pass `initial` (see run.initial_parameters)."
            )
        try:
            params = initial()
            start = Start(flatten(params), fingerprint(params))
        except KnownError as error:  # missing or damaged
            if required:
                raise
            notes.append(f"the parameters of train.start_from cannot be compared: {error}")
    cluster.require_equal(
        {"the fingerprint of train.start_from's parameters": start and start.fingerprint},
        "Give every process the same parameters to start from.",
    )
    return start, notes


def state_shapes(
    config: Config, model: LanguageModel, optimizer: optax.GradientTransformation
) -> TrainState:
    """Return only the shapes and types of the state."""
    return jax.eval_shape(lambda: init_state(config, model, optimizer, 0))


def fresh_state(
    config: Config,
    model: LanguageModel,
    optimizer: optax.GradientTransformation,
    start: Start | None,
) -> TrainState:
    """Return the state before the first step, NumPy; nothing of it stays on a device.

    The label head is initialised from the seed, because the other run's head is for its own labels.

    Raises:
        UserError: the other run has another number of units or layers.
    """
    if start is not None:
        _require_shapes(config, start.arrays)
    seeded = jax.jit(lambda seed: init_state(config, model, optimizer, seed))
    fresh = jax.device_get(seeded(np.uint32(config.train.seed)))
    if start is None:
        return fresh
    params = {
        name: array if name.startswith("label_") else np.asarray(start.arrays[name])
        for name, array in flatten(fresh.params).items()
    }
    return fresh._replace(params=unflatten(params))


def _require_shapes(config: Config, theirs: Arrays) -> None:
    """Raise UserError if the shapes of the initial parameters are not those of the run."""
    ours = expected_shapes(config.model)
    for name, shape in ours.items():
        found = theirs.get(name)
        if not name.startswith("label_") and (found is None or found.shape != shape):
            has = "no array" if found is None else f"the shape {found.shape}"
            cure = "set the same model, hidden, embedding and layers"
            if found is not None and found.shape[1:] == shape[1:] and name == "input/positions":
                places = found.shape[0]
                cure = f"set --model.positions {places}, with windows of at most {places} bytes"
            raise UserError(
                f"train.start_from: {config.train.start_from} has {has} for {name}, but this run "
                f"needs {shape}; {cure}."
            )
    extra = [name for name in theirs if name not in ours and not name.startswith("label_")]
    if extra:
        raise UserError(
            f"train.start_from: {config.train.start_from} has {extra[0]}, which this run lacks; "
            "set the same model.layers."
        )
