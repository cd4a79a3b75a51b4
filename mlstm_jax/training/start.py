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
    """Return what `train.start_from` gives, if it is set, and notes for a person.

    Args:
        cluster: all processes call this, and get the same.
        config: of the run.
        initial: reads those parameters.
        required: whether the run cannot do without. One that has checkpoints can.

    Raises:
        UserError: it is no run, or gives another process other parameters.
        Damaged: its checkpoint cannot be read.
    """
    start, notes = None, []
    if config.train.start_from is not None:
        if initial is None:
            raise UserError(
                f"train.start_from names {config.train.start_from}, but nothing was given to read "
                "its parameters with; pass `initial` (see run.initial_parameters)."
            )
        try:
            params = initial()
            start = Start(flatten(params), fingerprint(params))
        except KnownError as error:  # not there, or damaged
            if required:
                raise
            notes.append(f"what train.start_from gives cannot be compared: {error}")
    cluster.require_equal(
        {"the fingerprint of what train.start_from gives": start and start.fingerprint},
        "Give every process the same parameters to start from.",
    )
    return start, notes


def state_shapes(
    config: Config, model: LanguageModel, optimizer: optax.GradientTransformation
) -> TrainState:
    """Return the state as shapes and types alone."""
    return jax.eval_shape(lambda: init_state(config, model, optimizer, 0))


def fresh_state(
    config: Config,
    model: LanguageModel,
    optimizer: optax.GradientTransformation,
    start: Start | None,
) -> TrainState:
    """Return the state before the first step, NumPy: nothing of it stays on a device.

    The label head stays that of the seed: what it tells is of the run that it was trained in.

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
    """Raise UserError where what a run starts from is not shaped as the run's own parameters."""
    ours = expected_shapes(config.model)
    for name, shape in ours.items():
        found = theirs.get(name)
        if not name.startswith("label_") and (found is None or found.shape != shape):
            has = "none" if found is None else f"the shape {found.shape}"
            raise UserError(
                f"train.start_from: {config.train.start_from} has {has} for {name}, but this run "
                f"{shape}; give it the same model.hidden, embedding and layers."
            )
    extra = [name for name in theirs if name not in ours and not name.startswith("label_")]
    if extra:
        raise UserError(
            f"train.start_from: {config.train.start_from} has {extra[0]}, which this run lacks; "
            "give it the same model.layers."
        )
