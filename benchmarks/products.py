"""Time each product of a training step, relative to one large product.

    python benchmarks/products.py --point 4096 256 256 bf16

A step cannot be faster than its products. The products of a time step run in a scan of T steps, as
in training, each with a new left operand; the others run once.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import measure
from measure import DTYPES, Case, Point

from mlstm_jax.model.ops import dot, sum_rows

PRODUCTS = ["h Wmh", "m Wh", "dz Wh'", "h' dmh", "m' dz", "h kernel"]


def cases(arguments: Any, point: Point) -> Iterator[Case]:
    """Yield each product of the step; dmh Wmh' has the shape of h Wmh."""
    hidden, gates, rows = point.hidden, 4 * point.hidden, (point.window, point.batch)
    keys = iter(jax.random.split(jax.random.key(0), 16))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, DTYPES[point.dtype])

    def each_step(x_TBI: jax.Array, w_IO: jax.Array) -> jax.Array:
        def step(_: jax.Array, x_BI: jax.Array) -> tuple[jax.Array, None]:
            return dot(x_BI, w_IO), None

        first = jnp.zeros((point.batch, w_IO.shape[1]), jnp.float32)
        return jax.lax.scan(step, first, x_TBI)[0]

    shapes: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
        "h Wmh": (each_step, (*rows, hidden), (hidden, hidden)),
        "m Wh": (each_step, (*rows, hidden), (hidden, gates)),
        "dz Wh'": (each_step, (*rows, gates), (gates, hidden)),
        "h' dmh": (sum_rows, (*rows, hidden), (*rows, hidden)),
        "m' dz": (sum_rows, (*rows, hidden), (*rows, gates)),
        "h kernel": (dot, (*rows, hidden), (hidden, 256)),
    }
    for name in arguments.implementations:
        function, left, right = shapes[name]
        operands = normal(*left), normal(*right)
        compiled = jax.jit(function).lower(*operands).compile()
        flops = 2 * point.batch * point.window * left[-1] * right[-1]
        call = partial(lambda f, a: jax.block_until_ready(f(*a)), compiled, operands)
        yield Case(name, "product", flops, call, compiled.memory_analysis().temp_size_in_bytes)


if __name__ == "__main__":
    arguments = measure.parse_arguments(__doc__.splitlines()[0], PRODUCTS)
    measure.run("products", arguments, partial(cases, arguments))
