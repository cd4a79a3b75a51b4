"""Recurrent language models in NumPy, float64, straight from the equations.

Every operation is analytic, so a derivative is exact to rounding by the complex step
Im f(x + ih) / h with h = 1e-30. Nothing here is shared with the package.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Tree = dict[str, Any]
# What a layer has after a step, and then its output: of its parameters, its input and its state.
Step = Callable[[Tree, np.ndarray, Tree], Tree]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def normalise(v: np.ndarray, g: np.ndarray) -> np.ndarray:
    return v * g / np.sqrt((v * v).sum(axis=0))


def mlstm(p: Tree, x: np.ndarray, state: Tree) -> Tree:
    w = {m: normalise(p[f"{m}_v"], p[f"{m}_g"]) for m in ("wmx", "wmh", "wx", "wh")}
    m = (x @ w["wmx"]) * (state["h"] @ w["wmh"])
    i, f, o, u = np.split(x @ w["wx"] + m @ w["wh"] + p["b"], 4, axis=1)
    c = sigmoid(f) * state["c"] + sigmoid(i) * np.tanh(u)
    return {"c": c, "h": sigmoid(o) * np.tanh(c)}


def dense(gate: Tree, x: np.ndarray) -> np.ndarray:
    """A product of a gate as flax names it, with a bias if it has one."""
    if "kernel_v" in gate:
        gate = {**gate, "kernel": normalise(gate["kernel_v"], gate["kernel_g"])}
    return x @ gate["kernel"] + gate.get("bias", 0)


def lstm(p: Tree, x: np.ndarray, state: Tree) -> Tree:
    cell = p["cell"]
    i, f, g, o = (dense(cell[f"i{n}"], x) + dense(cell[f"h{n}"], state["h"]) for n in "ifgo")
    c = sigmoid(f) * state["c"] + sigmoid(i) * np.tanh(g)
    return {"c": c, "h": sigmoid(o) * np.tanh(c)}


def gru(p: Tree, x: np.ndarray, state: Tree) -> Tree:
    cell, h = p["cell"], state["h"]
    r, z = (sigmoid(dense(cell[f"i{n}"], x) + dense(cell[f"h{n}"], h)) for n in "rz")
    n = np.tanh(dense(cell["in"], x) + r * dense(cell["hn"], h))
    return {"h": (1 - z) * n + z * h}


STEPS: dict[str, Step] = {"mlstm": mlstm, "lstm": lstm, "gru": gru}


def forward(kind: str, params: Tree, inputs: np.ndarray, carry: Tree) -> tuple[np.ndarray, Tree]:
    """bytes [B, T], each state [B, L, H] by its name -> logits [B, T, 256], states after."""
    count = carry["h"].shape[1]
    states = [{name: x[:, n] for name, x in carry.items()} for n in range(count)]
    logits = []
    for t in range(inputs.shape[1]):
        x = params["embedding"][inputs[:, t]]
        for n in range(count):
            states[n] = STEPS[kind](params[f"layer_{n}"], x, states[n])
            x = states[n]["h"]
        logits.append(x @ params["decoder_kernel"] + params["decoder_bias"])
    after = {name: np.stack([state[name] for state in states], axis=1) for name in carry}
    return np.stack(logits, axis=1), after


def loss(kind: str, params: Tree, inputs: np.ndarray, targets: np.ndarray, carry: Tree) -> Any:
    logits, _ = forward(kind, params, inputs, carry)
    rows, steps = np.indices(targets.shape)
    partition = np.log(np.exp(logits).sum(axis=-1))
    return (partition - logits[rows, steps, targets]).mean()


def gradient(
    kind: str,
    params: Tree,
    inputs: np.ndarray,
    targets: np.ndarray,
    carry: Tree,
    left_out: Sequence[str] = (),
) -> Tree:
    """The derivative of the loss by every number of `params`, by the complex step."""
    from copy import deepcopy

    params = deepcopy(params)

    def walk(tree: Tree) -> Tree:
        result: Tree = {}
        for name, leaf in tree.items():
            if name in left_out:
                continue
            if isinstance(leaf, dict):
                result[name] = walk(leaf)
                continue
            work = tree[name] = leaf.astype(np.complex128)
            result[name] = np.zeros(leaf.shape)
            for index in np.ndindex(leaf.shape):
                if name == "embedding" and index[0] not in inputs:
                    continue  # a byte that is not read
                work[index] += 1e-30j
                result[name][index] = loss(kind, params, inputs, targets, carry).imag / 1e-30
                work[index] = leaf[index]
            tree[name] = leaf
        return result

    return walk(params)
