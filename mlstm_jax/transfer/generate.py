"""Generate text from a trained model, one byte at a time.

The prompt is cleaned as the corpus was, but without the padding at its end, and read from a zero
state. Each byte is then drawn from softmax(logits / temperature), optionally restricted to the most
likely bytes, and read in turn. Units of the top layer's c can be held at a value (Radford et al.
2017, section 4.3, control the sentiment of the text this way). A sample depends only on the seed
and its own number.
"""

import codecs
from collections.abc import Iterator

import numpy as np

from mlstm_jax.corpora.documents import prompt_bytes
from mlstm_jax.errors import require
from mlstm_jax.model.numpy_sampling import VOCABULARY, Request, Sampling
from mlstm_jax.options import SamplingOptions, byte_of
from mlstm_jax.transfer.trace import Reader


def generate(reader: Reader, prompt: str, options: SamplingOptions) -> Iterator[list[bytes]]:
    """Yield continuations of a prompt in pieces: each time, the next piece of every sample.

    Sample i does not depend on their number. The units of `set_unit` are set before every byte.
    """
    run = reader.run
    architecture = run.architecture
    architecture.require_next_byte("generating text")
    held = options.set_unit or {}
    has_c = not held or "c" in architecture.states
    rule = f"unset: {architecture.cli_name} has no cell state c"
    require(has_c, "set_unit", dict(held), rule)
    last = architecture.hidden - 1
    for unit in held:
        require(0 <= unit <= last, "set_unit", unit, f"a unit, 0 to {last}")
    how = Sampling(
        np.float32(options.temperature),
        np.int32(min(options.top_k or VOCABULARY, VOCABULARY)),
        np.float32(2 if options.top_p is None else options.top_p),
    )
    held_H = np.full(architecture.hidden, np.nan, np.float32)
    held_H[list(held)] = list(held.values())
    stop = byte_of(options.stop)

    # One row: all samples share the prompt.
    reached = reader(prompt_bytes(prompt, run.cleaning))
    request = Request(options.samples, options.bytes, options.seed, how, held_H)
    ended = [False] * options.samples
    for drawn_TB in reader.write(reached, request):
        pieces = []
        for sample, row in enumerate(drawn_TB.T):
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
