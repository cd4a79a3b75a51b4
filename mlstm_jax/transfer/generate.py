"""Generate text from a trained model, one byte at a time.

The prompt is cleaned as the corpus was, but without the padding at its end, and read from a zero
state. Each byte is then drawn from softmax(logits / temperature), optionally restricted to the most
likely bytes, and read in turn. Units of the top layer's c can be held at a value (Radford et al.
2017, section 4.3, control the sentiment of the text this way). A sample depends only on the seed
and its own number.
"""

import codecs
from collections.abc import Iterator, Mapping

import numpy as np

from mlstm_jax.corpora.documents import prompt_bytes
from mlstm_jax.errors import require
from mlstm_jax.model.numpy_sampling import VOCABULARY, Request, Sampling
from mlstm_jax.transfer.trace import Reader

_MOST_SEED = 2**32 - 1
_MOST_DRAWN = 2**31 - 1  # bytes; the place of each is an int32 of the device
_MOST_SAMPLES = 1000  # all are in memory at once
_LARGEST = float(np.finfo(np.float32).max)


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
    run = reader.run
    architecture = run.architecture
    architecture.require_next_byte("generating text")
    require(1 <= samples <= _MOST_SAMPLES, "samples", samples, f"1 to {_MOST_SAMPLES:,}")
    longest = _MOST_DRAWN // samples
    require(0 <= bytes <= longest, "bytes", bytes, f"0 to {longest:,} in each sample")
    require(0 <= seed <= _MOST_SEED, "seed", seed, f"0 to {_MOST_SEED:,}")
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
    how = Sampling(
        np.float32(temperature),
        np.int32(min(top_k or VOCABULARY, VOCABULARY)),
        np.float32(2 if top_p is None else top_p),
    )
    held_H = np.full(architecture.hidden, np.nan, np.float32)
    held_H[list(held)] = list(held.values())

    reached = reader(read)  # one row: all samples share the prompt
    request = Request(samples, bytes, seed, how, held_H)
    ended = [False] * samples
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
