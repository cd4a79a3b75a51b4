"""Text from a trained model, a byte at a time.

The prompt is cleaned as the corpus was, without its end, and read from a zero state; then each
byte is drawn from softmax(logits / temperature) and read in turn. The steps are compiled once, a
block of them a call, whatever the length.
"""

import codecs
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from mlstm_jax.data.documents import Cleaning, clean
from mlstm_jax.errors import UserError
from mlstm_jax.model.language_model import Carry, LanguageModel, Parameters
from mlstm_jax.run import Run

_BLOCK = 64


def _sample(key: jax.Array, logits_V: jax.Array, temperature: jax.Array) -> jax.Array:
    drawn = jax.random.categorical(key, logits_V / jnp.maximum(temperature, 1e-6))
    return jnp.where(temperature > 0, drawn, jnp.argmax(logits_V)).astype(jnp.uint8)


@partial(jax.jit, static_argnums=0)
def _generate_block(
    model: LanguageModel,
    params: Parameters,
    carry: Carry,
    logits_V: jax.Array,
    key: jax.Array,
    temperature: jax.Array,
) -> tuple[Carry, jax.Array, jax.Array]:
    def step(
        state: tuple[Carry, jax.Array], key: jax.Array
    ) -> tuple[tuple[Carry, jax.Array], jax.Array]:
        carry, logits_V = state
        byte = _sample(key, logits_V, temperature)
        carry, logits_BTV, *_ = model.apply({"params": params}, byte[None, None], carry)
        return (carry, logits_BTV[0, 0]), byte

    (carry, logits_V), drawn = jax.lax.scan(step, (carry, logits_V), jax.random.split(key, _BLOCK))
    return carry, logits_V, drawn


@partial(jax.jit, static_argnums=0)
def _read(model: LanguageModel, params: Parameters, bytes_BT: jax.Array) -> tuple[Carry, jax.Array]:
    carry, logits_BTV, *_ = model.apply({"params": params}, bytes_BT, model.init_carry(1))
    return carry, logits_BTV[0, -1]


def prompt_bytes(prompt: str, cleaning: Cleaning) -> bytes:
    """Return the bytes a model reads before it goes on with `prompt`.

    Radford's cleaning pads a document with a newline and a space in front, so an empty prompt is
    a document's beginning. The pad at a document's end is left off: the text goes on.
    """
    if cleaning == "radford":
        text = clean(prompt, "radford").removeprefix(b"\n ").removesuffix(b" ")
        return b"\n " + text + (b" " if prompt[-1:].isspace() else b"")
    if cleaning == "protein":
        return clean(prompt, cleaning) or b"\x02"
    return prompt.encode("utf-8", "replace") or b"\n"


def generate(
    run: Run, prompt: str, *, length: int, temperature: float, seed: int
) -> Iterator[bytes]:
    """Yield the continuation of a prompt, in pieces, `length` bytes in all.

    Args:
        run: a trained model.
        prompt: the text to go on with; may be empty.
        length: bytes to draw.
        temperature: 1 samples the model's own distribution, lower is safer, 0 takes the likeliest.
        seed: the same seed gives the same text.
    """
    if length < 0:
        raise UserError(f"--length is {length}, but it must be 0 or more.")
    if not 0 <= temperature < float("inf"):
        raise UserError(f"--temperature is {temperature}, but it must be 0 or more.")
    params = jax.device_put(run.params)
    context_BT = np.frombuffer(prompt_bytes(prompt, run.cleaning), np.uint8)[None]
    carry, logits_V = _read(run.model, params, context_BT)
    key = jax.random.key(seed, impl="threefry2x32")
    for start in range(0, length, _BLOCK):
        key, block_key = jax.random.split(key)
        carry, logits_V, drawn = _generate_block(
            run.model, params, carry, logits_V, block_key, jnp.float32(temperature)
        )
        yield np.asarray(drawn)[: length - start].tobytes()


def as_text(pieces: Iterator[bytes]) -> Iterator[str]:
    """Decode pieces of UTF-8; a character cut by a piece's end waits, a wrong byte becomes �."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)
