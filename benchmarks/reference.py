"""Right answers: the language models in NumPy, and how far a device's answers may be from them.

The recurrent models are the package's own twins in NumPy (model/numpy_model.py), here in float64;
the Transformer is written from its equations. Every operation is analytic, so a derivative is
exact to rounding by the complex step Im f(x + ih) / h with h = 1e-30. The tests and gpu_check.py
compare with them. It is here because a machine with a GPU has the benchmarks, but not what the
tests need.

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

from mlstm_jax.model.numpy_model import NumpyModel

Tree = dict[str, Any]


def dense(p: Tree, x: np.ndarray) -> np.ndarray:
    """A product, with a bias if it has one."""
    return x @ p["kernel"] + p.get("bias", 0)


def flattened(tree: Tree, before: str = "") -> Tree:
    """The leaves of a tree by their paths."""
    flat: Tree = {}
    for name, leaf in tree.items():
        if isinstance(leaf, dict):
            flat |= flattened(leaf, f"{before}{name}/")
        else:
            flat[before + name] = leaf
    return flat


def forward(kind: str, params: Tree, inputs: np.ndarray, carry: Tree) -> tuple[np.ndarray, Tree]:
    """bytes [B, T], each state [B, L, H] by its name -> logits [B, T, 256], states after."""
    flat = flattened(params)
    model = NumpyModel(kind, flat, dtype=np.result_type(*flat.values()))
    state = model.init_carry(len(inputs))
    for name, before in carry.items():
        getattr(state, name)[:] = before.swapaxes(0, 1)
    logits = [model.logits(model.step(bytes_B, state)) for bytes_B in inputs.T]
    after = {name: getattr(state, name).swapaxes(0, 1) for name in carry}
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
