"""Time the recurrence, forward and forward with backward, against three others.

    python benchmarks/recurrence.py --grid small --json benchmarks/results/recurrence_cpu.json

It goes from the bytes of a window to h at every step: embedding, input projections, one layer. The
gradient is with respect to all weights. "ours" is mlstm_jax/model/mlstm.py; "autodiff" is the
plain scan with JAX's gradient; "flax_lstm" is Flax's LSTM of the same width, a familiar reference
with a fifth fewer flops; "torch" is the same mLSTM in eager PyTorch. It needs jax, flax and numpy,
and torch to measure it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import baselines
import jax
import jax.numpy as jnp
import measure
from measure import DTYPES, Case, Point

from mlstm_jax.model.architecture import LSTMCarry
from mlstm_jax.model.mlstm import MLSTM
from mlstm_jax.model.stack import Recurrence, run_layer

EMBEDDING = 64
IMPLEMENTATIONS = ["ours", "autodiff", "flax_lstm", "torch"]

Tree = dict[str, jax.Array]


def make_parameters(hidden: int) -> Tree:
    """Return weights as initialised for training, float32."""
    keys = iter(jax.random.split(jax.random.key(0), 5))
    limit = hidden**-0.5

    def uniform(*shape: int) -> jax.Array:
        return jax.random.uniform(next(keys), shape, jnp.float32, -limit, limit)

    return {
        "embedding": jax.random.normal(next(keys), (256, EMBEDDING), jnp.float32),
        "wmx": uniform(EMBEDDING, hidden),
        "wx": uniform(EMBEDDING, 4 * hidden),
        "wmh": uniform(hidden, hidden),
        "wh": uniform(hidden, 4 * hidden),
        "b": jnp.zeros(4 * hidden),
    }


def mlstm(
    run: Callable[..., Any],
    point: Point,
    params: Tree,
    bytes_TB: jax.Array,
    recompute_every: int | None = None,
) -> jax.Array:
    """Return h [T, B, H] of the layer, run by `run`, from a zero carry."""
    compute = DTYPES[point.dtype]
    zero = jnp.zeros((point.batch, point.hidden), jnp.float32)
    model = MLSTM(hidden=point.hidden)
    weights = {name: value for name, value in params.items() if name != "embedding"}
    weights = model.with_tables(weights, params["embedding"], compute)
    carry = LSTMCarry(zero, zero)
    recurrence = Recurrence(model, compute, recompute_every=recompute_every)
    return run(recurrence, carry, bytes_TB, weights)[1]


def jax_cases(
    name: str,
    point: Point,
    flops: int,
    forward: Callable[[Tree, jax.Array], jax.Array],
    params: Tree,
    data: tuple[jax.Array, jax.Array],
    recompute_every: int | None = None,
) -> Iterator[Case]:
    """Compile a JAX function, forward only and with its gradient."""
    bytes_TB, direction_TBH = data

    def scalar(params: Tree, bytes_TB: jax.Array, direction_TBH: jax.Array) -> jax.Array:
        h = forward(params, bytes_TB)
        return jnp.vdot(h.astype(jnp.float32), direction_TBH.astype(jnp.float32))

    functions = {
        "forward": (jax.jit(forward), (params, bytes_TB)),
        "forward_backward": (jax.jit(jax.grad(scalar)), (params, bytes_TB, direction_TBH)),
    }
    for what, (function, arguments) in functions.items():
        compiled = function.lower(*arguments).compile()
        yield Case(
            implementation=name,
            what=what,
            flops=flops if what == "forward" else 3 * flops,
            call=partial(lambda f, a: jax.block_until_ready(f(*a)), compiled, arguments),
            temp_bytes=compiled.memory_analysis().temp_size_in_bytes,
            recompute_every=recompute_every,
        )


def flax_cases(point: Point, data: tuple[jax.Array, jax.Array]) -> Iterator[Case]:
    """Compile Flax's LSTM over the same bytes."""
    rnn = baselines.flax_lstm(point.hidden, DTYPES[point.dtype])
    key = jax.random.key(0)
    table = jax.random.normal(key, (256, EMBEDDING), jnp.float32)
    params = {"embedding": table, "cell": rnn.init(key, table[data[0][:1]])}

    def forward(params: Any, bytes_TB: jax.Array) -> jax.Array:
        return rnn.apply(params["cell"], params["embedding"][bytes_TB])

    flops = point.layer_flops * 4 // 5
    yield from jax_cases("flax_lstm", point, flops, forward, params, data)


def cases(arguments: Any, point: Point) -> Iterator[Case]:
    """Yield all cases to time at a point."""
    key = jax.random.key(1)
    shape = (point.window, point.batch)
    bytes_TB = jax.random.randint(key, shape, 0, 256, jnp.int32)
    direction_TBH = jax.random.normal(key, (*shape, point.hidden), DTYPES[point.dtype])
    data, params = (bytes_TB, direction_TBH), make_parameters(point.hidden)
    chosen, flops = arguments.implementations, point.layer_flops
    if "ours" in chosen:
        for k in [None, *arguments.recompute_every]:
            forward = partial(mlstm, run_layer, point, recompute_every=k)
            yield from jax_cases("ours", point, flops, forward, params, data, k)
    if "autodiff" in chosen:
        forward = partial(mlstm, baselines.autodiff, point)
        yield from jax_cases("autodiff", point, flops, forward, params, data)
    if "flax_lstm" in chosen:
        yield from flax_cases(point, data)
    if "torch" in chosen:
        import torch_mlstm

        yield from torch_mlstm.recurrence_cases(point, params, data)


if __name__ == "__main__":
    arguments = measure.parse_arguments(__doc__.splitlines()[0], IMPLEMENTATIONS)
    measure.run("recurrence", arguments, partial(cases, arguments))
