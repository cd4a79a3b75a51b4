"""The same mLSTM in eager PyTorch, as a careful user would write it; needs torch.

Weights are normalised once per step, and the input projections are one product outside the loop, so
that the comparison is of the loop and its gradient, not of avoidable inefficiencies.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from measure import Case, Point

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

Tensor = torch.Tensor
Tree = dict[str, Tensor]


def to_torch(array: Any) -> Tensor:
    """Copy a JAX array to torch's device; half-precision types become float32."""
    array = np.asarray(array)
    if array.dtype not in (np.float32, np.int32):
        array = array.astype(np.float32)
    return torch.from_numpy(array.copy()).to(DEVICE)


def one_step(
    mx_t: Tensor, zx_t: Tensor, h: Tensor, c: Tensor, wmh: Tensor, wh: Tensor
) -> tuple[Tensor, Tensor]:
    """Return h and c after a byte; products in the type of the weights, the rest in float32."""
    m = mx_t * (h.to(wmh.dtype) @ wmh).float()
    z = zx_t + (m.to(wh.dtype) @ wh).float()
    i, f, o, u = z.chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(u)
    return torch.sigmoid(o) * torch.tanh(c), c


def layer(
    params: Tree,
    bytes_TB: Tensor,
    h: Tensor,
    c: Tensor,
    dtype: torch.dtype,
    step: Callable[..., tuple[Tensor, Tensor]] = one_step,
) -> Any:
    """Return h [T, B, H] and the last h and c; products in `dtype`, the rest in float32."""
    x = params["embedding"][bytes_TB].to(dtype)
    mx = (x @ params["wmx"].to(dtype)).float()
    zx = (x @ params["wx"].to(dtype)).float() + params["b"]
    wmh, wh = params["wmh"].to(dtype), params["wh"].to(dtype)
    states = []
    # unbind: the gradient of each mx[t] would be a tensor of zeros as large as mx.
    for mx_t, zx_t in zip(mx.unbind(), zx.unbind(), strict=True):
        h, c = step(mx_t, zx_t, h, c, wmh, wh)
        states.append(h)
    return torch.stack(states), h, c


def finished(function: Callable[[], Any]) -> Callable[[], Any]:
    """Return the function with a wait for the device after each call."""

    def call() -> None:
        function()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()

    return call


def recurrence_cases(point: Point, params: Any, data: Any) -> Iterator[Case]:
    """Yield the layer's forward pass, and its forward and backward pass."""
    tree = {name: to_torch(value).requires_grad_() for name, value in params.items()}
    bytes_TB, direction = to_torch(data[0]).long(), to_torch(data[1])
    zero = torch.zeros(point.batch, point.hidden, device=DEVICE)
    dtype = DTYPES[point.dtype]
    torch.backends.cuda.matmul.allow_tf32 = point.dtype == "tf32"

    @torch.no_grad()
    def forward() -> None:
        layer(tree, bytes_TB, zero, zero, dtype)

    def forward_backward() -> None:
        h, _, _ = layer(tree, bytes_TB, zero, zero, dtype)
        torch.autograd.grad((h * direction).sum(), list(tree.values()))

    flops = point.layer_flops
    yield Case("torch", "forward", flops, finished(forward), None)
    yield Case("torch", "forward_backward", 3 * flops, finished(forward_backward), None)


def weight_norm(v: Tensor, g: Tensor) -> Tensor:
    """Return v with columns of length g."""
    return v * (g * torch.rsqrt((v * v).sum(0).clamp_min(1e-12)))


def train_step_cases(point: Point, params: Any, data: Any) -> Iterator[Case]:
    """Yield a training step: weight norm, layer, decoder, loss, gradient, clipping, Adam.

    "torch" is the mLSTM in eager PyTorch; "torch_compile" the same with its step by
    `torch.compile`, since of the whole loop it would compile every step anew; "torch_lstm" is
    `nn.LSTM` with as many parameters, of √(5/4) H units and without weight normalisation: what a
    user would pick instead.
    `params` is the tree of a LanguageModel with one layer; `data` are bytes and targets, [B, T].
    """
    flat = {**params, **params["layer_0"]}
    flat.pop("layer_0")
    tree = {name: to_torch(value).requires_grad_() for name, value in flat.items()}
    dtype = DTYPES[point.dtype]
    torch.backends.cuda.matmul.allow_tf32 = point.dtype == "tf32"

    def mlstm(step: Any, bytes_TB: Tensor, h: Tensor, c: Tensor) -> Any:
        matrices = {
            name: weight_norm(tree[f"{name}_v"], tree[f"{name}_g"])
            for name in ("wmx", "wmh", "wx", "wh")
        }
        weights = {**matrices, "embedding": tree["embedding"], "b": tree["b"]}
        return layer(weights, bytes_TB, h, c, dtype, step)

    zero = torch.zeros(point.batch, point.hidden, device=DEVICE)
    decoder = tree["decoder_kernel"], tree["decoder_bias"]
    for name, step in (("torch", one_step), ("torch_compile", torch.compile(one_step))):
        read = partial(mlstm, step)
        yield _train_step(name, point, data, read, zero, decoder, list(tree.values()))

    units = round((5 / 4) ** 0.5 * point.hidden)
    embedding = torch.nn.Embedding(*tree["embedding"].shape, device=DEVICE)
    cell = torch.nn.LSTM(embedding.embedding_dim, units, device=DEVICE)
    output = torch.nn.Linear(units, 256, device=DEVICE)

    def lstm(bytes_TB: Tensor, h: Tensor, c: Tensor) -> Any:
        with torch.autocast(DEVICE.type, dtype, enabled=dtype != torch.float32):
            h_TBH, (h, c) = cell(embedding(bytes_TB), (h[None], c[None]))
        return h_TBH, h[0].float(), c[0].float()

    leaves = [p for module in (embedding, cell, output) for p in module.parameters()]
    zero = torch.zeros(point.batch, units, device=DEVICE)
    decoder = output.weight.T, output.bias
    yield _train_step("torch_lstm", point, data, lstm, zero, decoder, leaves)


def _train_step(
    name: str,
    point: Point,
    data: Any,
    read: Callable[..., Any],
    zero: Tensor,
    decoder: tuple[Tensor, Tensor],
    leaves: list[Tensor],
) -> Case:
    """Return the step of a layer, `read`: (bytes, h, c) → h of all steps, and the last h and c."""
    from torch.nn import functional

    adam = torch.optim.Adam(leaves, lr=5e-4)
    bytes_TB, targets_TB = (to_torch(np.asarray(x, np.int32).T).long() for x in data)
    kernel_HV, bias_V = decoder
    state, dtype = [zero, zero], DTYPES[point.dtype]

    def step() -> None:
        h_TBH, h, c = read(bytes_TB, *state)
        logits = (h_TBH.to(dtype) @ kernel_HV.to(dtype)).float() + bias_V
        loss = functional.cross_entropy(logits.flatten(0, 1), targets_TB.flatten())
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(leaves, 1.0)
        adam.step()
        state[:] = [h.detach(), c.detach()]

    return Case(name, "train_step", point.step_flops, finished(step), None)
