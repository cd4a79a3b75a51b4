"""The matrix product of mixed precision: compute-type operands, float32 sums, both ways.

It stands alone because every product of the model outside the recurrence goes through it. JAX's
own derivative of a product with ``preferred_element_type=float32`` multiplies a float32 cotangent
by a half-precision matrix, which no tensor core does at full rate; here the cotangent is cast to
the compute type first, and the weight gradient is one sum in float32 over all rows and steps
(Puri et al. 2018, section V).
"""

from functools import partial

import jax
import jax.numpy as jnp

Array = jax.Array


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: Array, w_IO: Array, compute: jnp.dtype) -> Array:
    """Multiply ``x [..., I]`` by ``w [I, O]`` in type `compute`.

    Returns:
        float32 [..., O]. The gradients of x and w are float32 too.
    """
    return jnp.dot(x.astype(compute), w_IO.astype(compute), preferred_element_type=jnp.float32)


def _forward(x: Array, w_IO: Array, compute: jnp.dtype) -> tuple[Array, tuple[Array, Array]]:
    x, w_IO = x.astype(compute), w_IO.astype(compute)
    return jnp.dot(x, w_IO, preferred_element_type=jnp.float32), (x, w_IO)


def _backward(compute: jnp.dtype, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, w_IO = saved
    dy = dy.astype(compute)
    dx = jnp.einsum("...o,io->...i", dy, w_IO, preferred_element_type=jnp.float32)
    dw_IO = jnp.einsum("...i,...o->io", x, dy, preferred_element_type=jnp.float32)
    return dx, dw_IO


product.defvjp(_forward, _backward)
