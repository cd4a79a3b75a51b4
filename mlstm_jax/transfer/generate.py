"""Generate text from a trained model, one byte at a time.

The prompt is cleaned as the corpus was, but without the padding at its end, and read from a zero
state. Each byte is then drawn from softmax(logits / temperature), optionally restricted to the most
likely bytes, and read in turn. Units of the top layer's c can be held at a value (Radford et al.
2017, section 4.3, control the sentiment of the text this way). A sample depends only on the seed
and its own number.
"""

import codecs
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mlstm_jax.corpora.documents import prompt_bytes
from mlstm_jax.errors import UserError, require
from mlstm_jax.fields import Between, Checked, Count
from mlstm_jax.model.numpy_sampling import VOCABULARY, Request, Sampling
from mlstm_jax.transfer.trace import Reader

_MOST_DRAWN = 2**31 - 1  # bytes; the place of each is an int32 of the device
_LARGEST = float(np.finfo(np.float32).max)

HeldUnits = Mapping[int, float] | None


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(Checked):
    """How to generate text.

    Attributes:
        bytes: maximum number of bytes to draw for each text.
        samples: number of texts; all are in memory at once, of less than 2 GiB together.
        temperature: 1 samples the model's own distribution; lower values favour likely bytes; 0
            takes the most likely byte.
        top_k: draw only from the k most likely bytes.
        top_p: draw only from the fewest bytes whose total probability is at least this.
        seed: the same seed gives the same text.
        set_unit: units of the top layer's cell state, and the value each is held at (Radford et
            al. 2017, section 4.3).
        stop: a byte that ends a text and is no part of it, as a character or as \\n, \\x02; a
            review ends at \\n.
    """

    bytes: Annotated[int, Between(0, _MOST_DRAWN)] = 400
    samples: Annotated[int, Between(1, 1000)] = 1
    temperature: Annotated[float, Between(0, ends="[)")] = 0.7
    top_k: Count | None = None
    top_p: Annotated[float, Between(0, 1, "(]")] | None = None
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0
    set_unit: HeldUnits = None
    stop: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        longest = _MOST_DRAWN // self.samples
        require(self.bytes <= longest, "bytes", self.bytes, f"0 to {longest:,} in each sample")
        warmest = self.temperature <= _LARGEST
        require(warmest, "temperature", self.temperature, "finite in float32")
        for unit, value in (self.set_unit or {}).items():
            require(abs(value) <= _LARGEST, f"set_unit {unit}", value, "finite in float32")
        _byte_of(self.stop)


def _byte_of(stop: str) -> bytes:
    """The byte of a character or an escape sequence; b"" for an empty text."""
    try:
        code = stop.encode("ascii")
        if len(code) > 1:
            code = code.decode("unicode_escape").encode("latin-1")
    except UnicodeError:
        code = b"??"
    if len(code) > 1:
        rule = "a single byte: a character of ASCII, or an escape like \\n or \\x02"
        raise UserError(f"stop is {stop!r}, but it must be {rule}.")
    return code


SAMPLING = SamplingOptions()


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
    stop = _byte_of(options.stop)

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
