"""The matrix product in mixed precision: compute-type operands, float32 sums, also backward.

Every product of the model outside the recurrence uses it. JAX's own derivative of a product with
``preferred_element_type=float32`` multiplies a float32 cotangent by a half-precision matrix, which
no tensor core does at full rate. Here the cotangent is first cast to the compute type, and the
weight gradient is one sum in float32 over all rows and steps (Puri et al. 2018, section V).
"""

from functools import partial

import jax
import jax.numpy as jnp

try:
    # The only file that needs it. Without it `transposed` is xᵀ: the same numbers, more slowly.
    from jax.experimental.layout import Layout, with_layout_constraint
except ImportError:
    with_layout_constraint = None  # type: ignore[assignment]

Array = jax.Array


def transposed(x_RC: Array) -> Array:
    """Return xᵀ; half types on CPUs are written to memory instead of being a view of x.

    XLA for CPUs folds a transposition into the product that reads it. Its half-type products do not
    support this: both operands would be converted to float32 and multiplied at float32's rate. In
    float32, writing xᵀ costs more than the product gains.
    """
    if x_RC.dtype.itemsize != 2 or with_layout_constraint is None:
        return x_RC.T

    def written(x_RC: Array) -> Array:
        return with_layout_constraint(x_RC.T, Layout((0, 1)))

    return jax.lax.platform_dependent(x_RC, cpu=written, default=jnp.transpose)


def dot(x: Array, w_IO: Array) -> Array:
    """Return ``x [..., I]`` times ``w [I, O]`` in w's type; float32 [..., O]."""
    return jnp.dot(x.astype(w_IO.dtype), w_IO, preferred_element_type=jnp.float32)


def sum_rows(x: Array, dy: Array) -> Array:
    """Return Σ x ⊗ dy over all axes but the last, float32 [I, O]: the gradient of W in y = x W."""
    # Merge the row axes: a product that contracts two axes is a third slower on a CPU. Merging a
    # sharded axis would gather activations, but each device runs this on its own rows.
    x_RI, dy_RO = (a.reshape(-1, a.shape[-1]) for a in (x, dy))
    return jnp.dot(transposed(x_RI), dy_RO, preferred_element_type=jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: Array, w_IO: Array, compute: jnp.dtype) -> Array:
    """Multiply ``x [..., I]`` by ``w [I, O]`` in type `compute`.

    Returns:
        float32 [..., O]. The gradient of x has x's type; the gradient of w is float32.
    """
    return dot(x, w_IO.astype(compute))


def _forward(x: Array, w_IO: Array, compute: jnp.dtype) -> tuple[Array, tuple[Array, Array]]:
    w_IO = w_IO.astype(compute)
    return dot(x, w_IO), (x, w_IO)


def _backward(compute: jnp.dtype, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, w_IO = saved
    dy = dy.astype(compute)
    return dot(dy, transposed(w_IO)).astype(x.dtype), sum_rows(x.astype(compute), dy)


matmul.defvjp(_forward, _backward)
