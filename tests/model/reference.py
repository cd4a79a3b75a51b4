"""A multiplicative LSTM language model in NumPy, float64, straight from the equations.

Every operation is analytic, so a derivative is exact to rounding by the complex step
Im f(x + ih) / h with h = 1e-30. Nothing here is shared with the package.
"""

from typing import Any

import numpy as np

Tree = dict[str, Any]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def normalise(v: np.ndarray, g: np.ndarray) -> np.ndarray:
    return v * g / np.sqrt((v * v).sum(axis=0))


def forward(
    params: Tree, inputs: np.ndarray, h: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """bytes [B, T], h and c [B, L, H] -> logits [B, T, 256], h and c after."""
    layers = [params[f"layer_{n}"] for n in range(h.shape[1])]
    matrices = [
        {m: normalise(p[f"{m}_v"], p[f"{m}_g"]) for m in ("wmx", "wmh", "wx", "wh")} for p in layers
    ]
    h, c = list(np.moveaxis(h, 1, 0)), list(np.moveaxis(c, 1, 0))
    logits = []
    for t in range(inputs.shape[1]):
        x = params["embedding"][inputs[:, t]]
        for n, (p, w) in enumerate(zip(layers, matrices, strict=True)):
            m = (x @ w["wmx"]) * (h[n] @ w["wmh"])
            i, f, o, u = np.split(x @ w["wx"] + m @ w["wh"] + p["b"], 4, axis=1)
            c[n] = sigmoid(f) * c[n] + sigmoid(i) * np.tanh(u)
            h[n] = x = sigmoid(o) * np.tanh(c[n])
        logits.append(x @ params["decoder_kernel"] + params["decoder_bias"])
    return np.stack(logits, axis=1), np.stack(h, axis=1), np.stack(c, axis=1)


def loss(
    params: Tree, inputs: np.ndarray, targets: np.ndarray, h: np.ndarray, c: np.ndarray
) -> Any:
    logits, _, _ = forward(params, inputs, h, c)
    rows, steps = np.indices(targets.shape)
    partition = np.log(np.exp(logits).sum(axis=-1))
    return (partition - logits[rows, steps, targets]).mean()


def gradient(
    params: Tree, inputs: np.ndarray, targets: np.ndarray, h: np.ndarray, c: np.ndarray
) -> Tree:
    """The derivative of the loss by every number of `params`, by the complex step."""
    from copy import deepcopy

    params = deepcopy(params)

    def walk(tree: Tree) -> Tree:
        result: Tree = {}
        for name, leaf in tree.items():
            if isinstance(leaf, dict):
                result[name] = walk(leaf)
                continue
            work = tree[name] = leaf.astype(np.complex128)
            result[name] = np.empty(leaf.shape)
            for index in np.ndindex(leaf.shape):
                work[index] += 1e-30j
                result[name][index] = loss(params, inputs, targets, h, c).imag / 1e-30
                work[index] = leaf[index]
            tree[name] = leaf
        return result

    return walk(params)
