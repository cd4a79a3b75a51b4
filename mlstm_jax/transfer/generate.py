"""Generate text from a trained model, one byte at a time.

The prompt is cleaned as the corpus was, but without the padding at its end, and read from a zero
state. Each byte is then drawn from softmax(logits / temperature), optionally restricted to the most
likely bytes, and read in turn. Units of the top layer's c can be held at a value (Radford et al.
2017, section 4.3, control the sentiment of the text this way). Each call runs a block of steps, so
one compiled program serves prompts and texts of any length. A sample depends only on the seed and
its own number.
"""

import codecs
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlstm_jax import environment
from mlstm_jax.config import MOST_SEED
from mlstm_jax.corpora.documents import prompt_bytes
from mlstm_jax.errors import require
from mlstm_jax.model.language_model import VOCABULARY, Carry, LanguageModel
from mlstm_jax.terminal import told_if_slow
from mlstm_jax.transfer.trace import Reader

_BLOCK = 64
_MOST_DRAWN = 2**31 - 1  # bytes; the place of each is an int32 of the device
_MOST_SAMPLES = 1000  # all are in memory at once
_LARGEST = float(np.finfo(np.float32).max)


class Sampling(NamedTuple):
    """How a byte is drawn; scalars, float32 unless said."""

    temperature: Any
    top_k: Any  # int32: only from this many most likely bytes
    top_p: Any  # only from the fewest bytes whose total probability is at least this


def _least_kept(logits_V: jax.Array, how: Sampling) -> jax.Array:
    falling_V = -jnp.sort(-logits_V)
    before_V = jnp.cumsum(jax.nn.softmax(falling_V)) - jax.nn.softmax(falling_V)
    kept = jnp.minimum(how.top_k, jnp.sum(before_V < how.top_p))
    return falling_V[jnp.maximum(kept, 1) - 1]


def _sample(key: jax.Array, logits_V: jax.Array, how: Sampling) -> jax.Array:
    logits_V = logits_V / jnp.maximum(how.temperature, 1e-6)
    # A CPU sorts for longer than it takes to do all the rest.
    is_cut = (how.top_k < VOCABULARY) | (how.top_p <= 1)
    least = jax.lax.cond(is_cut, _least_kept, lambda *_: jnp.float32(-jnp.inf), logits_V, how)
    drawn = jax.random.categorical(key, jnp.where(logits_V >= least, logits_V, -jnp.inf))
    return jnp.where(how.temperature > 0, drawn, jnp.argmax(logits_V)).astype(jnp.uint8)


@partial(jax.jit, static_argnums=0)
def _generate_block(
    model: LanguageModel,
    weights: Any,
    carry: Carry,
    logits_BV: jax.Array,
    seed: Any,
    first: Any,
    how: Sampling,
    held_H: Any,
) -> tuple[Carry, jax.Array, jax.Array]:
    params, reading_weights = jax.tree.map(lambda x: x[0], weights)
    key = jax.random.key(seed, impl="threefry2x32")
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(logits_BV.shape[0]))

    def step(
        state: tuple[Carry, jax.Array], at: jax.Array
    ) -> tuple[tuple[Carry, jax.Array], jax.Array]:
        carry, logits_BV = state
        keys = jax.vmap(jax.random.fold_in, (0, None))(keys_B, at)
        byte_B = jax.vmap(_sample, (0, 0, None))(keys, logits_BV, how)
        if "c" in model.architecture.states:
            # NaN: a unit of the top layer that is not held.
            top_BH = jnp.where(jnp.isnan(held_H), carry.c[:, -1], held_H)
            carry = carry._replace(c=carry.c.at[:, -1].set(top_BH.astype(carry.c.dtype)))
        carry, logits_BTV, *_ = model.apply(
            {"params": params}, byte_B[:, None], carry, reading_weights=reading_weights
        )
        return (carry, logits_BTV[:, 0]), byte_B

    steps = first + jnp.arange(_BLOCK)
    (carry, logits_BV), drawn_TB = jax.lax.scan(step, (carry, logits_BV), steps)
    return carry, logits_BV, drawn_TB


def generate(
    reader: Reader,
    prompt: str,
    *,
    bytes: int,
    seed: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    samples: int = 1,
    held: Mapping[int, float] | None = None,
    stop: bytes = b"",
) -> Iterator[list[bytes]]:
    """Yield continuations of a prompt in pieces: each time, the next piece of every sample.

    For the arguments see `TrainedModel.generate`. There are up to 1,000 samples, of less than 2
    GiB; sample i does not depend on their number. The units `held` are set before every byte.
    """
    environment.require_own_jax()
    run = reader.run
    architecture = run.config.model
    architecture.require_next_byte("generating text")
    require(1 <= samples <= _MOST_SAMPLES, "samples", samples, f"1 to {_MOST_SAMPLES:,}")
    longest = _MOST_DRAWN // samples
    require(0 <= bytes <= longest, "bytes", bytes, f"0 to {longest:,} in each sample")
    require(0 <= seed <= MOST_SEED, "seed", seed, f"0 to {MOST_SEED:,}")
    is_finite = 0 <= temperature <= _LARGEST
    require(is_finite, "temperature", temperature, "0 or more, and finite")
    require(top_k is None or top_k >= 1, "top_k", top_k, "1 or more")
    require(top_p is None or 0 < top_p <= 1, "top_p", top_p, "above 0 and at most 1")
    require(len(stop) <= 1, "stop", stop, "a single byte")
    held = held or {}
    has_c = not held or "c" in architecture.states
    rule = f"unset: {architecture.cli_name} has no cell state c"
    require(has_c, "set_unit", dict(held), rule)
    for unit, value in held.items():
        last = architecture.hidden - 1
        require(0 <= unit <= last, "set_unit", unit, f"a unit, 0 to {last}")
        require(abs(value) <= _LARGEST, f"set_unit {unit}", value, "finite in float32")
    read = prompt_bytes(prompt, run.cleaning)
    # All outside the program is NumPy's: an operation of jnp would compile a program of its own.
    how = Sampling(
        np.float32(temperature),
        np.int32(min(top_k or VOCABULARY, VOCABULARY)),
        np.float32(2 if top_p is None else top_p),
    )
    held_H = np.full(architecture.hidden, np.nan, np.float32)
    held_H[list(held)] = list(held.values())

    model, weights = reader.writer
    # In bf16 one row has a product of its own, which adds in another order. That changes the last
    # bits of some states after rounding, and so in the end the text.
    rows = samples if model is run.model else max(samples, 2)
    reached = reader(read)  # one row: all samples share the prompt
    once = (reached.carry, reached.logits_V[None])
    carry, logits_BV = reader.put(jax.tree.map(lambda x: np.repeat(x, rows, axis=0), once))
    ended = [False] * samples
    for first in range(0, bytes, _BLOCK):
        with told_if_slow("compiling the program that generates text", unless=first > 0):
            carry, logits_BV, drawn_TB = _generate_block(
                model, weights, carry, logits_BV, np.uint32(seed), np.int32(first), how, held_H
            )
        pieces = []
        for sample, row in enumerate(np.asarray(drawn_TB)[: bytes - first, :samples].T):
            piece = b"" if ended[sample] else row.tobytes()
            if stop and stop in piece:
                piece = piece.partition(stop)[0]
                ended[sample] = True
            pieces.append(piece)
        yield pieces
        if all(ended):
            return


def as_text(pieces: Iterator[bytes]) -> Iterator[str]:
    """Decode pieces of UTF-8; a character may span two pieces, and an invalid byte becomes �."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)
