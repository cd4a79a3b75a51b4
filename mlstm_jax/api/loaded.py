"""A loaded model: what it is, and knows after each byte of a text; and plots of runs."""

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.api.arguments import as_texts, public
from mlstm_jax.config import Config, Devices
from mlstm_jax.corpora.documents import clean, cleaned_spans
from mlstm_jax.errors import UserError, extra
from mlstm_jax.fields import InvalidField
from mlstm_jax.interop import weights
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.run import ReadingCompute, Run
from mlstm_jax.training import metrics, parallel
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.transfer.reader import State, TextReader, states_of
from mlstm_jax.transfer.trace import Reader, Stream, states_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kept = TypeVar("Kept")

_PIECE = 4096  # bytes
# More are hardly faster on a CPU (reader.py), and the states of a window take their memory.
_SPAN_ROWS = 8

PANELS = ("bpc", "learning_rate", "grad_norm", "loss_scale", "kilobytes_per_second")


class LoadedModel:
    """What a model is, and knows after each byte; `ReadingModel` adds what it does with texts."""

    def __init__(
        self, run: Run, checkpoint: str = "best", compute: ReadingCompute = "auto"
    ) -> None:
        """Wrap a run in memory. Use `load` instead."""
        self._run, self.checkpoint, self.compute = run, checkpoint, compute
        self._readers: dict[object, Any] = {}

    @property
    def path(self) -> Path:
        """The run folder, or the file of weights."""
        return self._run.folder

    @property
    def step(self) -> int:
        """The step of the checkpoint, in updates."""
        return self._run.step

    @property
    def config(self) -> Config:
        """The config of the run."""
        return self._run.config

    @property
    def hidden(self) -> int:
        """Number of units H in a layer."""
        return self.config.model.hidden

    @property
    def parameters(self) -> Mapping[str, NDArray[np.float32]]:
        """The float32 arrays by name, which cannot be written; docs/weights.md lists them."""
        arrays = {name: array.view() for name, array in weights.flatten(self._run.params).items()}
        for array in arrays.values():
            array.flags.writeable = False
        return arrays

    @property
    def flax(self) -> tuple[LanguageModel, Parameters]:
        """The Flax module and its tree of parameters, for programs such as those in examples/.

        `module.apply({"params": params}, bytes_BT, module.reading_carry(B))` reads a window.
        """
        return self._run.model, self._run.params

    @property
    def metrics(self) -> Any:
        """The lines of metrics.jsonl as a pandas DataFrame, or without pandas a list of dicts.

        Raises:
            ValueError: the model was not trained here.
        """
        lines = self._lines()
        try:
            import pandas as pd
        except ImportError:
            return lines
        return pd.DataFrame(lines)

    def _lines(self) -> list[dict[str, Any]]:
        lines = metrics.read_metrics(self.path / "metrics.jsonl")
        if not lines:
            raise UserError(f"{self.path} has no metrics: it was not trained here.")
        return lines

    @public
    def plot(self, x: Literal["step", "megabytes", "epoch", "minutes"] = "megabytes") -> "Figure":
        """Plot bits per character, learning rate, gradient and speed of the run.

        Needs matplotlib and pandas, the extra `notebooks`.
        """
        self._lines()
        return plot_metrics([self.path], x=x)

    def __repr__(self) -> str:
        model = self.config.model
        count = sum(array.size for array in self.parameters.values())
        return (
            f"{type(self).__name__}({str(self.path)!r}, checkpoint={self.checkpoint!r})\n"
            f"  {model.title}, {model.layers} x {model.hidden} units, {count:,} parameters, "
            f"{self._run.model.precision.compute}"
            f"{', several texts in bf16' if self._run.batch_model else ''}\n"
            f"  {self._run.origin}, "
            f"texts cleaned as {self._run.cleaning}"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _kept(self, key: object, make: Callable[[], Kept]) -> Kept:
        """Return what reads or scores as a key says, with its compiled program; create it once."""
        if key not in self._readers:
            self._readers[key] = make()
        kept: Kept = self._readers[key]
        return kept

    @cached_property
    def _devices(self) -> Parallel:
        return parallel.local(Devices())

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self._run)

    @cached_property
    def _spans_reader(self) -> TextReader:
        devices = self._devices
        return TextReader(self._run, devices, _SPAN_ROWS * devices.count, trail=True)

    @public
    def states(self, text: str, state: State | None = None) -> NDArray[np.float32]:
        """Return a state of the top layer after each byte of a text.

        The bytes are those of the cleaned text, see `cleaned`; the last row is what `encode` gives.

        Args:
            text: to read, from a zero state.
            state: "c" or "h" after each byte, or "mean_h", the mean of h up to it; unset: c, or h
                of a model that has no c.

        Returns:
            float32 [bytes, H]; a row of 768 units takes 3 kB.

        Raises:
            ValueError: the state does not exist.
        """
        return self._reader.stream(state).feed(self.cleaned(text)).states

    @public
    def log_probabilities(self, text: str) -> NDArray[np.float32]:
        """Return the natural logarithm of the probability of each byte of a text, in nats.

        The model predicts each byte of the cleaned text (see `cleaned`) from all before it. Nothing
        predicts the first, so there is one value for each byte after it. Divided by -log(2) they
        are bits, whose mean over all bytes of texts is `bits_per_character`.

        Args:
            text: to read, from a zero state.

        Returns:
            float32 [bytes - 1]; of a blank text, none.

        Raises:
            ValueError: the model does not predict the next byte.
        """
        reader, cleaned = self.reader(), self.cleaned(text)
        # In pieces, because the states of a piece are kept.
        pieces = [cleaned[at : at + _PIECE] for at in range(0, len(cleaned), _PIECE)]
        return np.concatenate([reader.scores, *(reader.feed(piece).scores for piece in pieces)])

    @public
    def spans(
        self,
        texts: Iterable[str],
        spans: Sequence[Sequence[tuple[int, int]]],
        state: Literal["c", "h"] | None = None,
    ) -> list[NDArray[np.float32]]:
        """Return a state of the top layer after the last byte of each span, such as of each word.

        Args:
            texts: each is read from a zero state.
            spans: of each text, the (start, end) offsets of characters, as tokenizers and spaCy
                give them: the span is text[start:end]. They are offsets in the text before
                cleaning, which may change its characters: in "a &amp; b" the word b is (8, 9).
            state: "c" or "h"; unset: c, or h of a model that has no c.

        Returns:
            Of each text float32 [spans, H].

        Raises:
            ValueError: an offset is not in the text; nothing is left of a span after cleaning, such
                as of a space at the text's end; or a span cuts characters that cleaning makes one,
                such as "&amp;".
        """
        strings, places = as_texts(texts), []
        if len(strings) != len(spans):
            raise UserError(f"spans has {len(spans):,} lists, but texts has {len(strings):,}.")
        for number, (text, one) in enumerate(zip(strings, spans, strict=True)):
            try:
                pairs = [(index(start), index(end)) for start, end in one]
                last = cleaned_spans(text, pairs, self._run.cleaning)
            except InvalidField as error:
                raise UserError(f"spans[{number}]: {error}.") from None
            except (TypeError, ValueError):
                rule = "a list of pairs of integers, (start, end)"
                shown = reprlib.repr(one)
                raise UserError(f"spans[{number}] is {shown}, but it must be {rule}.") from None
            places.append(np.array(last, np.int64))
        (name,) = states_of(self.config.model, state and (state,))
        cleaned = self._run.cleaned(strings)
        return states_at(self._run, self._spans_reader, cleaned, places, name)

    @public
    def reader(self, state: State | None = None) -> Stream:
        """Return a reader of one text that comes in pieces: `reader.feed(b"...").scores`.

        Args:
            state: what `reader.states` has; see `states`.

        Raises:
            ValueError: the state does not exist, or the model does not predict the next byte.
        """
        self.config.model.require_next_byte("reading byte by byte")
        return self._reader.stream(state)

    @public
    def cleaned(self, text: str) -> bytes:
        """Return the bytes that the model reads of a text; b"" of a blank one."""
        return clean(text, self._run.cleaning)


@public
def plot_metrics(
    runs: Sequence[str | Path],
    *,
    x: Literal["step", "megabytes", "epoch", "minutes"] = "megabytes",
) -> "Figure":
    """Plot bits per character, rate, gradient, loss scale and speed of runs.

    Needs matplotlib and pandas, the extra `notebooks`.

    Args:
        runs: run folders, or folders of run folders.
        x: the quantity on the horizontal axis.

    Raises:
        ValueError: a folder holds no run.
    """
    folders = [str(run) for run in runs]
    if not folders:
        raise UserError("runs is empty; give at least one run folder.")
    with extra("notebooks", "plots need matplotlib and pandas"):
        import matplotlib.pyplot as plt

        from mlstm_jax import analysis  # needs pandas

    figure, axes = plt.subplots(len(PANELS), 1, figsize=(8, 2.4 * len(PANELS)), sharex=True)
    plt.close(figure)  # otherwise a notebook would show it twice
    histories = analysis.load_histories(*folders)
    for panel, name in zip(axes, PANELS, strict=True):
        analysis.plot(panel, histories, x, name)
        if name == "bpc":
            analysis.plot(
                panel,
                histories,
                x,
                name,
                kind="evaluations",
                label=lambda one: "_",
                style=lambda one: {"ls": "", "marker": "o", "ms": 3},
            )
            panel.set_ylim(analysis.limits(histories, name))
            panel.plot([], [], "o", ms=3, color="0.5", label="validation")
            panel.legend(fontsize=8)
    return figure
