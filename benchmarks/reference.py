"""Right answers: the language models in NumPy, and how far a device's answers may be from them.

The models are in float64, straight from the equations, and share nothing with the package. Every
operation is analytic, so a derivative is exact to rounding by the complex step Im f(x + ih) / h
with h = 1e-30. The tests and gpu_check.py compare with them. It is here because a machine with a
GPU has the benchmarks, but not what the tests need.

A sum of n terms may be taken in any order, and is in another on another processor. Each order is
off by at most n/2 units in the last place of the largest partial sum, so two of them differ by at
most n units. The terms that count are those of the sums that a value passes through in one step of
time, and for the gradient of a weight the rows and steps that it is summed over; what is older the
gates let go of, as they let go of the state. Updates of a run add up. Errors are taken of a whole
array, in proportion to its scale: an element near zero, where large ones cancel, has no digits of
its own.

In a half type the operands of products are rounded to it, while sums stay float32: there the
roundings of one step of time count as well.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
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


def dense(p: Tree, x: np.ndarray) -> np.ndarray:
    """A product, with a bias if it has one."""
    return x @ p["kernel"] + p.get("bias", 0)


def matrix(p: Tree, name: str) -> np.ndarray:
    """A matrix of a layer, normalised if it has a gain."""
    return normalise(p[f"{name}_v"], p[f"{name}_g"]) if f"{name}_v" in p else p[name]


def lstm(p: Tree, x: np.ndarray, state: Tree) -> Tree:
    z = x @ matrix(p, "wx") + state["h"] @ matrix(p, "wh") + p["b"]
    i, f, g, o = np.split(z, 4, axis=1)
    c = sigmoid(f) * state["c"] + sigmoid(i) * np.tanh(g)
    return {"c": c, "h": sigmoid(o) * np.tanh(c)}


def gru(p: Tree, x: np.ndarray, state: Tree) -> Tree:
    h, (b_nh, b_r, b_z, b_nx) = state["h"], np.split(p["b"], 4)
    xr, xz, xn = np.split(x @ matrix(p, "wx"), 3, axis=1)
    hn, hr, hz = np.split(h @ matrix(p, "wh"), 3, axis=1)
    r, z = sigmoid(xr + hr + b_r), sigmoid(xz + hz + b_z)
    n = np.tanh(xn + b_nx + r * (hn + b_nh))
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


def layer_norm(p: Tree, x: np.ndarray) -> np.ndarray:
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def transformer(
    params: Tree, inputs: np.ndarray, heads: int, sees_ahead: bool
) -> tuple[np.ndarray, np.ndarray]:
    """bytes [B, T] -> logits [B, T, 256], the output of each layer [B, T, L, H]."""
    rows, size = inputs.shape
    first = params["input"]
    x = (params["embedding"] @ first["kernel"])[inputs] + first["positions"][:size]
    seen = np.ones((size, size)) if sees_ahead else np.tril(np.ones((size, size)))
    states = []
    for n in range(sum(name.startswith("layer_") for name in params)):
        p = params[f"layer_{n}"]
        norm = layer_norm(p["attention_norm"], x)
        q, k, v = (
            dense(p[name], norm).reshape(rows, size, heads, -1)
            for name in ("query", "key", "value")
        )
        score = np.exp(np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])) * seen
        share = score / score.sum(axis=-1, keepdims=True)
        found = np.einsum("bhqk,bkhd->bqhd", share, v).reshape(x.shape)
        x = x + dense(p["out"], found)
        x = x + dense(p["down"], gelu(dense(p["up"], layer_norm(p["dense_norm"], x))))
        states.append(x)
    states[-1] = layer_norm(params["norm"], x)
    logits = states[-1] @ params["decoder_kernel"] + params["decoder_bias"]
    return logits, np.stack(states, axis=2)


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> Any:
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
    """The derivative of the loss by every number of `params` that is read."""
    read = np.unique(inputs)

    def loss(params: Tree) -> Any:
        return cross_entropy(forward(kind, params, inputs, carry)[0], targets)

    return derivative(loss, params, left_out, read)


def derivative(
    loss: Callable[[Tree], Any],
    params: Tree,
    left_out: Sequence[str] = (),
    read: np.ndarray | None = None,
) -> Tree:
    """The derivative of a loss by every number of `params`, by the complex step.

    Of the embedding only the rows `read`; the others have none.
    """
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
                if name == "embedding" and read is not None and index[0] not in read:
                    continue
                work[index] += 1e-30j
                result[name][index] = loss(params).imag / 1e-30
                work[index] = leaf[index]
            tree[name] = leaf
        return result

    return walk(params)


# One unit in the last place of 1.
UNIT = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

# Of a value in a step of time: the layer's input, h, mh, m and a gate forward; dh, dz, dmh back.
ROUNDINGS = 8


def bound(terms: int, compute: str = "float32") -> float:
    """Return how far arrays of scale 1 may differ.

    Args:
        terms: of the longest chain of sums.
        compute: type of the operands of products, by JAX's name or the config's. In float64 both
            sides are; in every other type one has float32 sums.
    """
    compute = _SHORT.get(compute, compute)
    if compute in ("float64", "float32"):
        return terms * UNIT[compute]
    return terms * UNIT["float32"] + ROUNDINGS * UNIT[compute]


def error(found: Any, expected: Any) -> float:
    """Return the largest difference in an array, in proportion to the array's scale."""
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    assert found.shape == expected.shape
    if not expected.size:
        return 0.0
    scale = np.abs(expected).max()
    return float(np.abs(found - expected).max() / (scale or 1.0))
