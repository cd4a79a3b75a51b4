"""Attention (Vaswani et al. 2017, section 3.2): by cuDNN where it fits, by XLA, or for a CPU."""

import jax
import jax.numpy as jnp

from mlstm_jax.model.ops import gpu_capability

Array = jax.Array
_AMPERE = (8, 0)  # the first compute capability for which cuDNN has its attention
_QUERY_BLOCK = 64  # queries of a causal head


def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    causal: bool,
    keys_BS: Array | None = None,
    lengths_B: Array | None = None,
) -> Array:
    """The values that each query attends to (Vaswani et al. 2017, section 3.2).

    Queries, keys, values and the result are [B, T, N, D], of N heads of D units, of the compute
    type. If `causal`, a query sees only the keys at its place and before. `keys_BS` is true where a
    key can be seen (unset: everywhere), or `lengths_B` says how many keys of each row can be.
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
    fits = fits and (gpu_capability(jax.local_devices()[0]) or _AMPERE) >= _AMPERE
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        mask=mask,
        is_causal=causal,
        key_value_seq_lengths=lengths_B,
        implementation="cudnn" if fits and jax.default_backend() == "gpu" else None,
    )


def _one_head_at_a_time(
    query: Array, key: Array, value: Array, causal: bool, keys_BS: Array | None
) -> Array:
    """Compute attention on a CPU.

    XLA multiplies batches of small matrices one element at a time, and writes all probabilities to
    memory. Here one head of one row is read at a time, so its probabilities stay in the cache; they
    are computed again for the gradient. A causal head is read in blocks of queries, each with the
    keys that it can see.
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
