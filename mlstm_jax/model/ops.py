"""Operations of all models: products, byte tables, weight normalisation, attention.

**Products in mixed precision** have operands of the compute type and float32 sums, also backward.
Every product of the model outside the recurrence is `matmul`. JAX's own derivative of a product
with ``preferred_element_type=float32`` multiplies a float32 cotangent by a half-precision matrix,
which no tensor core does at full rate. Here the cotangent is first cast to the compute type, and
the weight gradient is one sum in float32 over all rows and steps (Puri et al. 2018, section V).

**Weight normalisation** (Salimans and Kingma 2016) has one gain per output column:
W = g ∘ V · rsqrt(max(Σ_rows V², ε)), once per training step, outside the scan over time: inside, it
would double the time of the gradient. The gradient is finite at a zero column; ``V / ‖V‖``'s not.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from mlstm_jax.model.fp8 import Quantised, emulated

try:
    # The only file that needs it. Without it `transposed` is xᵀ: the same numbers, more slowly.
    from jax.experimental.layout import Layout, with_layout_constraint
except ImportError:
    with_layout_constraint = None  # type: ignore[assignment]

Array = jax.Array

EPSILON = 1e-12
_LARGE = 2**20  # elements of a matrix
AMPERE = (8, 0)  # the first compute capability with fast bf16, and with cuDNN's attention
_QUERY_BLOCK = 64  # queries of a causal head


def as_bits(x: Array) -> Array:
    """An array as it is stored in a time buffer: half types as their bits, uint16."""
    return jax.lax.bitcast_convert_type(x, jnp.uint16) if x.dtype.itemsize == 2 else x


def of_bits(x: Array, dtype: jnp.dtype) -> Array:
    """The array of type `dtype` that was passed to `as_bits`."""
    return jax.lax.bitcast_convert_type(x, dtype) if x.dtype == jnp.uint16 else x


def transposed(x_RC: Array) -> Array:
    """xᵀ; half types on CPUs are written to memory instead of being a view of x.

    XLA for CPUs folds a transposition into the product that reads it, and would then convert both
    operands of half types to float32, and multiply at its rate.
    """
    if x_RC.dtype.itemsize != 2 or with_layout_constraint is None:
        return x_RC.T

    def written(x_RC: Array) -> Array:
        return with_layout_constraint(x_RC.T, Layout((0, 1)))

    return jax.lax.platform_dependent(x_RC, cpu=written, default=jnp.transpose)


def dot(x: Array, w_IO: Array) -> Array:
    """``x [..., I]`` times ``w [I, O]`` in w's type; float32 [..., O]."""
    return jnp.dot(x.astype(w_IO.dtype), w_IO, preferred_element_type=jnp.float32)


class Transposed(NamedTuple):
    """A matrix that many windows multiply by, and its transpose in memory."""

    w_IO: Array
    w_OI: Array

    def astype(self, dtype: jnp.dtype) -> "Transposed":
        """Both in a type."""
        return Transposed(self.w_IO.astype(dtype), self.w_OI.astype(dtype))


def with_transpose(w_IO: Array) -> Array | Transposed:
    """A matrix that `times` multiplies by in many windows; on a CPU, with its transpose."""
    if w_IO.size < _LARGE // 16 or jax.default_backend() != "cpu":
        return w_IO
    return Transposed(w_IO, w_IO.T)


def times(
    w_IO: Array | Transposed | Quantised, rows: int, *, transposed: bool = False
) -> Callable[[Array], Array]:
    """The product x → x W for x [rows, I], or x Wᵀ for x [rows, O]; float32, in W's type.

    It is for a loop in which W does not change; fp8 is emulated. XLA for CPUs copies the right
    operand of every product into another order, which takes up to half of the time if that operand
    is large and the rows are few. There this product is (Wᵀ xᵀ)ᵀ (docs/performance.md has the
    gain). A window that transposes W itself needs more rows to gain.
    """
    if isinstance(w_IO, Quantised):
        exact = times(w_IO.w_IO.astype(jnp.bfloat16), rows, transposed=transposed)
        return emulated(exact, w_IO, transposed=transposed)
    if isinstance(w_IO, Transposed):
        assert not transposed
        right, left = w_IO
        is_left = 2 <= rows <= 192
    elif transposed:
        right = w_IO.T
        left = w_IO
        is_left = w_IO.size >= _LARGE // 4 and 16 <= rows <= 256
    else:
        right = w_IO
        left = w_IO.T
        is_left = w_IO.size >= _LARGE and 16 <= rows <= 96

    if not is_left:
        return lambda x: dot(x, right)

    def with_left(x: Array, left: Array, _: Array) -> Array:
        x = x.astype(left.dtype)
        sides = ((1,), (1,)), ((), ())
        y = jax.lax.dot_general(left, x, sides, preferred_element_type=jnp.float32)
        # Otherwise XLA would move the transposition into the product.
        return jax.lax.optimization_barrier(y).T

    def with_right(x: Array, _: Array, right: Array) -> Array:
        return dot(x, right)

    return lambda x: jax.lax.platform_dependent(x, left, right, cpu=with_left, default=with_right)


def sum_rows(x: Array, dy: Array) -> Array:
    """Σ x ⊗ dy over all axes but the last, float32 [I, O]: the gradient of W in y = x W."""
    # Merge the row axes: a product that contracts two axes is a third slower on a CPU. Merging a
    # sharded axis would gather activations, but each device runs this on its own rows.
    x_RI, dy_RO = (a.reshape(-1, a.shape[-1]) for a in (x, dy))
    return jnp.dot(transposed(x_RI), dy_RO, preferred_element_type=jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: Array, w_IO: Array, compute: jnp.dtype) -> Array:
    """Multiply ``x [..., I]`` by ``w [I, O]`` in type `compute`: float32 [..., O].

    The gradient of x has x's type; the gradient of w is float32.
    """
    return dot(x, w_IO.astype(compute))


def _forward(x: Array, w_IO: Array, compute: jnp.dtype) -> tuple[Array, tuple[Array, Array]]:
    w_IO = w_IO.astype(compute)
    return dot(x, w_IO), (x, w_IO)


def _backward(compute: jnp.dtype, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, w_IO = saved
    dy = dy.astype(compute)
    dw_IO = sum_rows(x.astype(compute), dy)

    def rounded_after(dy: Array, w_IO: Array) -> Array:
        return dot(dy, transposed(w_IO)).astype(x.dtype)

    def rounded_within(dy: Array, w_IO: Array) -> Array:
        return jnp.dot(dy, w_IO.T, preferred_element_type=compute)

    if x.dtype != compute:
        return rounded_after(dy, w_IO), dw_IO
    # On a GPU the product itself rounds its float32 sums.
    dx = jax.lax.platform_dependent(dy, w_IO, cpu=rounded_after, default=rounded_within)
    return dx, dw_IO


matmul.defvjp(_forward, _backward)


def uniform(hidden: int) -> Any:
    """NVIDIA's initialiser of every matrix: uniform(±1/√H), independent of its fan-in."""
    limit = 1 / math.sqrt(hidden)

    def initialise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.uniform(key, shape, jnp.float32, -limit, limit)

    return initialise


def weight_norm(v_IO: Array, g_O: Array) -> Array:
    """The normalised matrix, float32 [I, O]; the sums are float32 for any input type."""
    v_IO = v_IO.astype(jnp.float32)
    scale_O = g_O * jax.lax.rsqrt(jnp.maximum(jnp.sum(v_IO * v_IO, axis=0), EPSILON))
    return v_IO * scale_O[None, :]


def is_bytes(x: Array) -> bool:
    """Whether x contains bytes, not states of the layer below."""
    return jnp.issubdtype(x.dtype, jnp.integer)


def project(x: Array, w_IO: Array) -> Array:
    """x W, float32: a lookup for bytes [...], a product for vectors [..., I]."""
    if is_bytes(x):
        return jnp.take(w_IO, x, axis=0, mode="clip")
    return dot(x, w_IO)


def _sum_rows_by_byte(bytes_TB: Array, rows: int, dy_TBO: Array) -> Array:
    """The gradient of a table: dy summed over the positions of each byte, [rows, O]."""

    def step(sums: Array, now: tuple[Array, Array]) -> tuple[Array, None]:
        bytes_B, bits_BO = now
        dy_BO = of_bits(bits_BO, dy_TBO.dtype).astype(jnp.float32)
        return sums.at[bytes_B].add(dy_BO, mode="promise_in_bounds"), None

    def scatter(bytes_TB: Array, dy_TBO: Array) -> Array:
        # One step at a time: a scatter of the whole buffer would first copy it to float32.
        zeros = jnp.zeros((rows, dy_TBO.shape[-1]), jnp.float32)
        sums, _ = jax.lax.scan(step, zeros, (bytes_TB, as_bits(dy_TBO)))
        return sums

    def product(bytes_TB: Array, dy_TBO: Array) -> Array:
        return sum_rows(jax.nn.one_hot(bytes_TB, rows, dtype=dy_TBO.dtype), dy_TBO)

    # On a CPU the scatter is faster and always adds in one order. On GPUs its order varies, so runs
    # would not be reproducible, and the product costs little.
    return jax.lax.platform_dependent(bytes_TB, dy_TBO, cpu=scatter, default=product)


def project_gradient(x: Array, w_IO: Array, dy_TBO: Array) -> tuple[Array | None, Array]:
    """The gradients of x (None for bytes) and of w in ``project(x, w)``, both float32."""
    if is_bytes(x):
        return None, _sum_rows_by_byte(x, w_IO.shape[0], dy_TBO)
    return dot(dy_TBO, w_IO.T), sum_rows(x.astype(w_IO.dtype), dy_TBO)


def bias_gradient(x: Array, dw_IO: Array, dy_TBO: Array) -> Array:
    """The gradient of a bias that is added to ``project(x, w)``, float32 [O]."""
    if is_bytes(x):
        # A byte adds one row of the table, whose gradient is the sum over the byte's places.
        return jnp.sum(dw_IO, axis=0)
    return jnp.sum(dy_TBO, (0, 1), dtype=jnp.float32)


@jax.custom_vjp
def lookup(bytes_TB: Array, table_VE: Array) -> Array:
    """The row of each byte, float32 [T, B, E]; its gradient is the same at every run."""
    return project(bytes_TB, table_VE)


def _lookup_forward(bytes_TB: Array, table_VE: Array) -> tuple[Array, tuple[Array, int]]:
    return project(bytes_TB, table_VE), (bytes_TB, table_VE.shape[0])


def _lookup_backward(saved: tuple[Array, int], dy_TBE: Array) -> tuple[None, Array]:
    return None, _sum_rows_by_byte(*saved, dy_TBE)


lookup.defvjp(_lookup_forward, _lookup_backward)


def gpu_capability(device: Any) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA GPU, such as (9, 0); None for any other device."""
    major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
    if major.isdecimal() and minor.isdecimal():
        return int(major), int(minor)
    return None  # AMD's are called gfx942.


def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    causal: bool,
    keys_BS: Array | None = None,
    lengths_B: Array | None = None,
) -> Array:
    """The values that each query attends to (Vaswani et al. 2017, section 3.2), [B, T, N, D].

    cuDNN computes them where it fits, else XLA, and on a CPU our own loop. Queries, keys and values
    are of N heads of D units, in the compute type. If `causal`, a query sees only the keys at its
    place and before. `keys_BS` is true where a key can be seen (unset: everywhere), or `lengths_B`
    says how many keys of each row can be.
    """
    if jax.default_backend() == "cpu":
        if lengths_B is not None:
            keys_BS = jnp.arange(key.shape[1])[None] < lengths_B[:, None]
        return _one_head_at_a_time(query, key, value, causal, keys_BS)
    mask = None if keys_BS is None else keys_BS[:, None, None]
    # cuDNN's attention keeps no probabilities. It takes half types, and heads of at most 128 units,
    # a multiple of 8.
    units = query.shape[-1]
    fits = mask is None and query.dtype != jnp.float32 and units <= 128 and units % 8 == 0
    # A device that only stands for an absent GPU (benchmarks/compile_without_gpu.py) has none.
    capability = gpu_capability(jax.local_devices()[0]) or AMPERE
    implementation: Literal["cudnn"] | None = None
    if fits and capability >= AMPERE and jax.default_backend() == "gpu":
        implementation = "cudnn"
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        mask=mask,
        is_causal=causal,
        key_value_seq_lengths=lengths_B,
        implementation=implementation,
    )


def _one_head_at_a_time(
    query: Array, key: Array, value: Array, causal: bool, keys_BS: Array | None
) -> Array:
    """Compute attention on a CPU, in blocks of queries if causal.

    XLA multiplies batches of small matrices one element at a time, and writes all probabilities to
    memory. Here the probabilities of a row and head stay in the cache; the gradient computes them
    again.
    """
    rows, size, heads, units = query.shape
    block = _QUERY_BLOCK if causal else size

    def by_head(x: Array) -> Array:
        # In float32: small products of half types are slower.
        return x.astype(jnp.float32).swapaxes(1, 2).reshape(rows * heads, size, units)

    @jax.checkpoint
    def read(head: tuple[Array, Array, Array, Array | None]) -> Array:
        query_TD, key_SD, value_SD, seen_S = head
        blocks = []
        for start in range(0, size, block):
            stop = min(start + block, size)
            score_TS = (query_TD[start:stop] * units**-0.5) @ key_SD[:stop].T
            # Not -inf: a query in the padding may see no key at all.
            if causal:
                past_TS = jnp.arange(start, stop)[:, None] >= jnp.arange(stop)[None]
                score_TS = jnp.where(past_TS, score_TS, -1e30)
            if seen_S is not None:
                score_TS = jnp.where(seen_S[None, :stop], score_TS, -1e30)
            blocks.append(jax.nn.softmax(score_TS) @ value_SD[:stop])
        return jnp.concatenate(blocks)

    seen_HS = None if keys_BS is None else jnp.repeat(keys_BS, heads, axis=0)
    heads_TD = jax.lax.map(read, (by_head(query), by_head(key), by_head(value), seen_HS))
    return heads_TD.reshape(rows, heads, size, units).swapaxes(1, 2)
