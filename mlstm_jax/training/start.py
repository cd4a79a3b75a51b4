"""A run that starts from the parameters of another, trained here or imported."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from mlstm_jax import run
from mlstm_jax.config import Config
from mlstm_jax.errors import UserError
from mlstm_jax.interop.weights import flatten, unflatten
from mlstm_jax.training.state import TrainState


def start_from(config: Config, fresh: TrainState) -> TrainState:
    """Return the state before the first step, with the parameters of `train.start_from` if set.

    Its label head stays as it is in `fresh`: what it tells is of the run that it was trained in.

    Raises:
        UserError: the other run has another number of units or layers.
    """
    if config.train.start_from is None:
        return fresh
    other = run.load(Path(config.train.start_from))
    theirs = flatten(other.params)
    ours: dict[str, Any] = {}
    for name, array in flatten(jax.device_get(fresh.params)).items():
        found = theirs.get(name)
        if name.startswith("label_"):
            ours[name] = array
        elif found is None or found.shape != array.shape:
            shape = "none" if found is None else f"the shape {found.shape}"
            raise UserError(
                f"train.start_from: {config.train.start_from} has {shape} for {name}, but this run "
                f"{array.shape}; give it the same model.hidden, embedding and layers."
            )
        else:
            ours[name] = np.asarray(found)
    if len(theirs) > len(ours):
        extra = [name for name in theirs if name not in ours and not name.startswith("label_")]
        if extra:
            raise UserError(
                f"train.start_from: {config.train.start_from} has {extra[0]}, which this run "
                "lacks; give it the same model.layers."
            )
    params = jax.tree.map(lambda x: jax.numpy.asarray(x), unflatten(ours))
    return fresh._replace(params=params)
