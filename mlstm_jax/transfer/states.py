"""Names of the states of a text, and of the features that are made of them."""

import reprlib
from collections.abc import Sequence
from typing import Literal, TypeVar, cast

from mlstm_jax.errors import UserError, require
from mlstm_jax.model.architecture import Architecture

# c and h after the last byte, or the mean of h over all bytes (Alley et al. 2019).
State = Literal["c", "h", "mean_h"]
# The features of a text: one state, or two side by side.
FeatureState = Literal["c", "h", "mean_h", "c+mean_h"]
STATE_NAMES: dict[FeatureState, str] = {
    "c": "cell state c after the last byte",
    "h": "h after the last byte",
    "mean_h": "mean of h over the text",
    "c+mean_h": "cell state c after the last byte, and mean of h over the text",
}
S = TypeVar("S", bound=FeatureState)


def single_states(state: FeatureState) -> tuple[State, ...]:
    """The states that stand side by side: ("c", "mean_h") for "c+mean_h"."""
    return cast(tuple[State, ...], tuple(state.split("+")))


def layers_of(
    model: Architecture, state: FeatureState, *, all_layers: bool
) -> list[tuple[State, int]]:
    """Each single state and layer whose units are features: by state, then by layer."""
    layers = range(0 if all_layers else model.layers - 1, model.layers)
    return [(single, layer) for single in single_states(state) for layer in layers]


def require_index(name: str, index: int, count: int) -> None:
    """Raise UserError unless `index` is that of one of `count` units or layers."""
    if not 0 <= index < count:
        shown = reprlib.repr(index)
        raise UserError(f"{name} {shown} does not exist: the model has {name}s 0 to {count - 1}.")


def states_of(model: Architecture, states: Sequence[S] | None = None) -> tuple[S, ...]:
    """Return these states, or else the first that the model has: c, or h without a c.

    Raises UserError if the model does not have such a state, or none is named, or one twice.
    """
    if states is None:
        return cast(tuple[S, ...], model.states[:1])
    single = {*model.states, "mean_h"}
    known = [state for state in STATE_NAMES if single.issuperset(single_states(state))]
    for state in states:
        rule = f"one of {', '.join(known)} of {model.cli_name}"
        require(state in known, "state", state, rule)
    is_once = len(set(states)) == len(states) > 0
    require(is_once, "state", " ".join(states), "one state or more, each only once")
    return tuple(states)


def features_of(
    model: Architecture, states: Sequence[FeatureState] | None = None
) -> tuple[FeatureState, ...]:
    """Return these features, or else c+mean_h, or mean_h of a model without a c; see `states_of`.

    On validation texts these were the best (results/reviews_1024/README.md).
    """
    if states is None:
        states = ("c+mean_h",) if "c" in model.states else ("mean_h",)
    return states_of(model, states)
