"""Who reads texts: NumPy a small model, JAX any other. Both give the same summaries and states."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from mlstm_jax.loaded import SmallModel
from mlstm_jax.model import numpy_products
from mlstm_jax.model.architecture import StateOutput
from mlstm_jax.model.numpy_model import Each, NumpyCarry, NumpyModel, Summary
from mlstm_jax.model.numpy_sampling import Drawn, Request, write

_PIECE = 16  # bytes; after each the reading may be stopped


# Reads many texts: yields what is known after each; the second is told how many bytes are read.
Summaries: TypeAlias = Callable[[Sequence[bytes], Callable[[int], None]], Iterator[Summary]]


class BytesReader(Protocol):
    """Reads one text byte by byte, and writes on."""

    def each(self, piece: bytes, reached: Any) -> Iterator[tuple[Any, Each]]:
        """Read a piece, after what `reached` has read (None: nothing); yield the same after it."""
        ...

    def write(self, reached: Any, logits_V: Any, request: Request) -> Iterator[Drawn]:
        """Yield the bytes that continue a text, a block of each sample at a time."""
        ...


def summaries_of(
    loaded: Any, devices: Any, rows: int | None, keep_states: StateOutput, *, score: bool
) -> Summaries:
    """Return the reader of many texts of a `Loaded`; `devices`, of JAX, are unset: all."""
    if isinstance(loaded, SmallModel):
        model = loaded.whole_texts

        def summaries(texts: Sequence[bytes], advance: Callable[[int], None]) -> Iterator[Summary]:
            return _with_one_thread(model.read(texts, score=score, rows=rows, advance=advance))

        return summaries
    from mlstm_jax.transfer import reader  # imports JAX

    how = reader.TextReader(loaded, devices, rows, keep_states=keep_states, score=score)
    return how.summaries


def bytes_reader_of(loaded: Any) -> BytesReader:
    if isinstance(loaded, SmallModel):
        return _NumpyBytes(loaded.model)
    from mlstm_jax.transfer import writer  # imports JAX

    return writer.DeviceBytes(loaded)


T = TypeVar("T")


def _with_one_thread(parts: Iterator[T]) -> Iterator[T]:
    """Yield parts that are computed by one thread of BLAS.

    Several wait busily for each other at each byte: beside other programs a byte would take a
    hundred times as long.
    """
    done = object()
    while True:
        with numpy_products.controller().limit(limits=1, user_api="blas"):
            part: Any = next(parts, done)
        if part is done:
            return
        yield part


class _NumpyBytes:
    def __init__(self, model: NumpyModel) -> None:
        self._model = model

    def each(self, piece: bytes, reached: Any) -> Iterator[tuple[Any, Each]]:
        return _with_one_thread(self._each(piece, reached))

    def _each(self, piece: bytes, reached: Any) -> Iterator[tuple[Any, Each]]:
        before = reached or self._model.start(1)
        carry = NumpyCarry(before.h.copy(), before.c.copy())
        for first in range(0, len(piece), _PIECE):
            each = self._model.read_each(piece[first : first + _PIECE], carry)
            yield NumpyCarry(carry.h.copy(), carry.c.copy()), each

    def write(self, reached: Any, logits_V: Any, request: Request) -> Iterator[Drawn]:
        return _with_one_thread(write(self._model, reached, logits_V, request))
