"""What reads with a model: NumPy with a `SmallModel`, or JAX, then imported, with a `Run`.

This is the only file of transfer/ that asks which of both a model is.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from mlstm_jax.loaded import Loaded, SmallModel
from mlstm_jax.model.architecture import StateOutput
from mlstm_jax.model.numpy_model import Each, NumpyCarry, NumpyModel, Summary
from mlstm_jax.model.numpy_products import with_one_thread
from mlstm_jax.model.numpy_sampling import Drawn, Request, write

if TYPE_CHECKING:
    from mlstm_jax.parallel import Parallel
    from mlstm_jax.run import Run

_PIECE = 16  # bytes; after each the reading may be stopped


class ByteEngine(Protocol):
    """Reads one text byte by byte, and writes on."""

    def each(self, piece: bytes, reached: Any) -> Iterator[tuple[Any, Each]]:
        """Read a piece from state `reached` on (None: zero); yield the state every few bytes."""

    def write(self, reached: Any, logits_V: Any, request: Request) -> Iterator[Drawn]:
        """Yield the bytes that continue a text, a block of each sample at a time."""


# Reads texts, and calls the second argument with the number of bytes read since the last call.
Summaries = Callable[[Sequence[bytes], Callable[[int], None]], Iterator[Summary]]


def byte_engine(loaded: Loaded) -> ByteEngine:
    """What reads one text byte by byte."""
    if isinstance(loaded, SmallModel):
        return _NumpyBytes(loaded.byte_by_byte)
    from mlstm_jax.transfer.device_bytes import DeviceBytes  # imports JAX

    return DeviceBytes(cast("Run", loaded))


def summaries(
    loaded: Loaded, devices: "Parallel | None", rows: int | None, keep: StateOutput, *, score: bool
) -> Summaries:
    """What reads whole texts, many at a time."""
    if isinstance(loaded, SmallModel):
        model = loaded.whole_texts

        def read(texts: Sequence[bytes], advance: Callable[[int], None]) -> Iterator[Summary]:
            return with_one_thread(model.read(texts, score=score, rows=rows, on_bytes=advance))

        return read
    from mlstm_jax.transfer.windows import WindowReader  # imports JAX

    run = cast("Run", loaded)
    return WindowReader(run, devices, rows, keep_states=keep, score=score).summaries


class _NumpyBytes:
    def __init__(self, model: NumpyModel) -> None:
        self._model = model

    def each(self, piece: bytes, reached: Any) -> Iterator[tuple[Any, Each]]:
        return with_one_thread(self._each(piece, reached))

    def _each(self, piece: bytes, reached: Any) -> Iterator[tuple[Any, Each]]:
        before = reached or self._model.init_carry(1)
        carry = NumpyCarry(before.h.copy(), before.c.copy())
        for first in range(0, len(piece), _PIECE):
            each = self._model.read_each(piece[first : first + _PIECE], carry)
            yield NumpyCarry(carry.h.copy(), carry.c.copy()), each

    def write(self, reached: Any, logits_V: Any, request: Request) -> Iterator[Drawn]:
        return with_one_thread(write(self._model, reached, logits_V, request))
