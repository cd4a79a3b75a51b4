"""A layer's input x W and its gradient: a lookup for bytes, a product for the layer below."""

import jax
import jax.numpy as jnp

from mlstm_jax.model import stacks
from mlstm_jax.model.matmul import dot, sum_rows

Array = jax.Array


def is_bytes(x: Array) -> bool:
    """Return whether x contains bytes, not states of the layer below."""
    return jnp.issubdtype(x.dtype, jnp.integer)


def project(x: Array, w_IO: Array) -> Array:
    """Return x W, float32: a lookup for bytes [...], a product for vectors [..., I]."""
    if is_bytes(x):
        return jnp.take(w_IO, x, axis=0, mode="clip")
    return dot(x, w_IO)


@jax.custom_vjp
def lookup(bytes_TB: Array, table_VE: Array) -> Array:
    """Return the row of each byte, float32 [T, B, E]; its gradient is the same at every run."""
    return project(bytes_TB, table_VE)


def _sum_rows_by_byte(bytes_TB: Array, dy_TBO: Array, rows: int) -> Array:
    """Return the gradient of a table: dy summed over the positions of each byte, [rows, O]."""

    def scatter(bytes_TB: Array, dy_TBO: Array) -> Array:
        # One step at a time: a scatter of the whole stack would first copy it to float32.
        window_bits = stacks.as_bits(dy_TBO)

        def step(t: Array, sums: Array) -> Array:
            bytes_B, bits_BO = stacks.at((bytes_TB, window_bits), t)
            dy_BO = stacks.of_bits(bits_BO, dy_TBO.dtype).astype(jnp.float32)
            return sums.at[bytes_B].add(dy_BO, mode="promise_in_bounds")

        zeros = jnp.zeros((rows, dy_TBO.shape[-1]), jnp.float32)
        return jax.lax.fori_loop(0, bytes_TB.shape[0], step, zeros)

    def product(bytes_TB: Array, dy_TBO: Array) -> Array:
        return sum_rows(jax.nn.one_hot(bytes_TB, rows, dtype=dy_TBO.dtype), dy_TBO)

    # On a CPU the scatter is faster and always adds in one order. On GPUs its order varies, so runs
    # would not be reproducible, and the product costs little.
    return jax.lax.platform_dependent(bytes_TB, dy_TBO, cpu=scatter, default=product)


def read_gradients(
    x: Array, wmx_IH: Array, wx_IG: Array, dmx_TBH: Array, dz_TBG: Array
) -> tuple[Array | None, Array, Array]:
    """Return the gradients of x (None for bytes), Wmx and Wx."""
    if is_bytes(x):
        rows = wmx_IH.shape[0]
        return None, _sum_rows_by_byte(x, dmx_TBH, rows), _sum_rows_by_byte(x, dz_TBG, rows)
    dx_TBI = dot(dmx_TBH, wmx_IH.T) + dot(dz_TBG, wx_IG.T)
    x_TBI = x.astype(wmx_IH.dtype)
    return dx_TBI.astype(x.dtype), sum_rows(x_TBI, dmx_TBH), sum_rows(x_TBI, dz_TBG)


lookup.defvjp(
    lambda bytes_TB, table_VE: (lookup(bytes_TB, table_VE), (bytes_TB, table_VE.shape[0])),
    lambda saved, dy_TBE: (None, _sum_rows_by_byte(saved[0], dy_TBE, saved[1])),
)
