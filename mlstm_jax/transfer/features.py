"""Features of texts: the state of a frozen model after reading each.

Puri et al. 2018, section VI, after Radford et al. 2017: a text is cleaned as the corpus was and
read from a zero state; its features are the cell state c of the top layer. Texts are split over all
devices, and read one window at a time (windows.py), so memory use does not depend on their length.
One pass computes any number of states: c, h, the mean and the maximum of h. A classifier reads one
of them, or several side by side.

On disk they are an .npz of `features` and, for each column, `state`, `layer` and `unit`. A file
that a later call may reuse also has a `key`, a sha256 of all that determines the features, so
that a file of other texts or of another model is never reused by mistake.
"""

import contextlib
import hashlib
import weakref
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import output
from mlstm_jax.corpora.documents import Recipe, clean, is_broken, note_broken
from mlstm_jax.corpora.readers import read_documents
from mlstm_jax.corpora.sources import Source, check_source
from mlstm_jax.errors import UserError, note, require
from mlstm_jax.loaded import Loaded
from mlstm_jax.model.architecture import Sizes, StateOutput
from mlstm_jax.options import CSV, Cleaning, CsvOptions, FeatureState, State
from mlstm_jax.terminal import ProgressLine
from mlstm_jax.transfer.engines import summaries

Features = NDArray[np.float32]
STATE_NAMES: dict[FeatureState, str] = {
    "c": "cell state c after the last byte",
    "h": "h after the last byte",
    "mean_h": "mean of h over the text",
    "max_h": "maximum of h over the text",
    "c+mean_h": "cell state c after the last byte, and mean of h over the text",
    "h+mean_h+max_h": "h after the last byte, and mean and maximum of h over the text",
}

# In memory; fewer would fill rows less.
_MOST_CHARACTERS = 1 << 25
_MOST_TEXTS = 1 << 13
_LONG = 200_000  # bytes of a text; on a CPU, minutes with 1,024 units


def single_states(state: FeatureState) -> tuple[State, ...]:
    """The states that stand side by side: ("c", "mean_h") for "c+mean_h"."""
    return cast(tuple[State, ...], tuple(state.split("+")))


def layers_of(
    architecture: Sizes, state: FeatureState, *, all_layers: bool
) -> list[tuple[State, int]]:
    """Each single state and layer whose units are features: by state, then by layer."""
    lowest = 0 if all_layers else architecture.layers - 1
    layers = range(lowest, architecture.layers)
    return [(single, layer) for single in single_states(state) for layer in layers]


def features_of(
    architecture: Sizes, states: Sequence[FeatureState] | None
) -> tuple[FeatureState, ...]:
    """Check features, each given once; unset: c+mean_h, or mean_h of a model without a c.

    Cross-validation on reviews that the pretrained model has not read chose c+mean_h (91.8 %,
    mean_h 89.7). On SST's validation part mean_h was better, by less than one deviation; and it is
    on reviews read with their ratings (results/reviews_1024/README.md).
    """
    usual: FeatureState = "c+mean_h" if "c" in architecture.states else "mean_h"
    states = (usual,) if states is None else tuple(states)
    single = {*architecture.states, "mean_h", "max_h"}
    known = [state for state in STATE_NAMES if single.issuperset(single_states(state))]
    for state in states:
        rule = f"one of {', '.join(known)} of {architecture.cli_name}"
        require(state in known, "state", state, rule)
    is_once = len(set(states)) == len(states) > 0
    require(is_once, "state", " ".join(states), "one state or more, each only once")
    return states


def state_of(architecture: Sizes, state: State | None = None) -> State:
    """Check a state that a model must have; unset: its first, c or h."""
    if state is None:
        return cast(State, architecture.states[0])
    features_of(architecture, (state,))
    return state


class Reading(NamedTuple):
    """What a model's pass over some texts gives."""

    features: Features  # [texts, columns]
    nats_N: NDArray[np.float64]  # of all bytes of a text but the first; 0 unless they are scored
    scored_N: NDArray[np.int64]  # how many bytes these are


@dataclass(frozen=True)
class Column:
    """A unit's state, named as in `heatmap --state S --layer L --unit U`."""

    state: State
    layer: int
    unit: int

    def __str__(self) -> str:
        return f"{self.state} of unit {self.unit} of layer {self.layer}"


def places_of(state: FeatureState, columns: Sequence[Column]) -> list[int]:
    """Where the features of a state are; of several side by side, in their order."""
    places: list[int] = []
    for part in single_states(state):
        places += [n for n, column in enumerate(columns) if column.state == part]
    return places


class TextFile:
    """The texts of a source, in order, with "" for a record without text; yields lists of them.

    The source is read once before: its errors and notes come before the work of the model, which
    takes a hundred times as long. It has `count` texts, of `size` bytes after cleaning.
    """

    def __init__(
        self, path: Path | str, text_column: str | None, cleaning: Cleaning, csv: CsvOptions = CSV
    ) -> None:
        """Read any source of `prepare`, or `-`, standard input; UserError if it holds no text."""
        check_source(Source(str(path)), or_stdin=True)
        self._source = Source(str(path)).repeatable()
        self._recipe = Recipe(text_column, **asdict(csv))
        if self._source.copy:
            weakref.finalize(self, self._source.copy.close)
        self.count = 0
        self.size = 0
        broken = []
        for document in read_documents(self._source, self._recipe):
            self.count += 1
            if document:
                self.size += len(clean(document.text, cleaning))
                if is_broken(document.text):
                    broken.append(self.count)
        note_broken(broken, self.count, str(self._source))

    def __iter__(self) -> Iterator[list[str]]:
        texts = list[str]()
        size = 0
        count = 0
        for document in read_documents(self._source, self._recipe, again=True):
            texts.append(document.text if document else "")
            size += len(texts[-1])
            count += 1
            if size >= _MOST_CHARACTERS or len(texts) == _MOST_TEXTS or count == self.count:
                yield texts
                texts = []
                size = 0
        if count != self.count:
            raise UserError(
                f"{self._source} has changed since its texts were counted; read it again."
            )


class Featurizer:
    """Reads texts with one compiled step; each feature of a text is one of `columns`."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        states: Sequence[FeatureState] | None = None,
        all_layers: bool = False,
        devices: Any = None,
        rows: int | None = None,
        score: bool = False,
        at_most: int | None = None,
    ) -> None:
        """Choose what to keep of a text, as `TrainedModel.encode` does; see also `WindowReader`."""
        architecture = loaded.architecture
        if score:
            architecture.require_next_byte("scoring a text")
        self.loaded = loaded
        self._at_most = at_most
        self.states = features_of(architecture, states)
        layers = dict[tuple[State, int], None]()  # each once, in order
        for state in self.states:
            layers |= dict.fromkeys(layers_of(architecture, state, all_layers=all_layers))
        self._layers = list(layers)
        self.columns = []
        for state, layer in self._layers:
            self.columns += [Column(state, layer, unit) for unit in range(architecture.hidden)]
        needs_totals = any(state in ("mean_h", "max_h") for state, _ in self._layers)
        keep: StateOutput = "totals" if needs_totals else "none"
        self._summaries = summaries(loaded, devices, rows, keep, score=score)

    @property
    def fields(self) -> list[list[Any]]:
        """The states of all columns, their layers, and their units."""
        return [
            [column.state for column in self.columns],
            [column.layer for column in self.columns],
            [column.unit for column in self.columns],
        ]

    def __call__(
        self, texts: Sequence[str] | TextFile, name: str = "", *, show_progress: bool = False
    ) -> Features:
        """Return the features of any number of texts, float32 [texts, columns]; see `read_each`."""
        return np.concatenate(
            [read.features for _, read in self.read_each(texts, name, show_progress=show_progress)]
        )

    def read_each(
        self, texts: Sequence[str] | TextFile, name: str, *, show_progress: bool
    ) -> Iterator[tuple[Sequence[str], Reading]]:
        """Read texts, a file's in parts, and yield each part with what reading it gives."""
        size = 0
        if isinstance(texts, TextFile):
            size = texts.size
        elif show_progress:
            size = sum(map(len, self.loaded.cleaned(texts)))
        with ProgressLine(name, size, of_bytes=True, shown=show_progress) as line:
            parts = texts if isinstance(texts, TextFile) else [texts]
            for part in parts:
                yield part, self._read(part, line)

    def _read(self, texts: Sequence[str], line: ProgressLine) -> Reading:
        cleaned = self.loaded.cleaned(texts)
        if self._at_most is not None:
            tail = self._at_most // 2
            for n, text in enumerate(cleaned):
                if len(text) > self._at_most:
                    cleaned[n] = text[: self._at_most - tail] + text[len(text) - tail :]
                    line.advance(len(text) - self._at_most)
        length_N = np.array([len(text) for text in cleaned])
        longest = int(length_N.max(initial=0))
        if longest > max(_LONG, length_N.sum() / 2):
            note(
                f"one text has {longest:,} bytes and takes most of the time, because a single text "
                "is read byte by byte; split it if its parts make sense on their own."
            )
        features_NC = np.zeros((len(texts), len(self.columns)), np.float32)
        nats_N = np.zeros(len(texts))
        for read in self._summaries(cleaned, line.advance):
            values = [read.states[state][:, layer] for state, layer in self._layers]
            features_NC[read.text_N] = np.concatenate(values, axis=1)
            nats_N[read.text_N] = read.nats_N
        return Reading(features_NC, nats_N, np.maximum(length_N - 1, 0))


def write_features(
    path: Path, count: int, parts: Iterable[Features], featurizer: Featurizer, **named: Any
) -> None:
    """Write the features of `count` texts as they come, as `np.savez` does, but atomically."""
    state, layer, unit = featurizer.fields
    named |= {"state": state, "layer": np.array(layer, np.int32), "unit": np.array(unit, np.int32)}
    shape = {"descr": "<f4", "fortran_order": False, "shape": (count, len(featurizer.columns))}
    with output.atomic_file(path) as partial, zipfile.ZipFile(partial, "w") as file:
        with file.open("features.npy", "w", force_zip64=True) as array:
            np.lib.format.write_array_header_1_0(array, shape)
            for part in parts:
                array.write(part.astype("<f4", copy=False).tobytes())
        for name, values in named.items():
            with file.open(f"{name}.npy", "w") as array:
                np.lib.format.write_array(array, np.asarray(values), allow_pickle=False)


def features_key(featurizer: Featurizer, texts: Sequence[str]) -> str:
    """Return a hex digest of the model, how it reads, the columns, and the texts."""
    loaded = featurizer.loaded
    key = hashlib.sha256(loaded.fingerprint.encode())
    # Side-by-side states share columns with single ones, but belong to another call.
    states = featurizer.states if "+" in "".join(featurizer.states) else ()
    for part in (loaded.cleaning, *filter(None, loaded.precision), *featurizer.fields, *states):
        key.update(f"{part!r}\0".encode())
    for text in texts:
        coded = text.encode("utf-8", "surrogatepass")
        key.update(len(coded).to_bytes(8, "little") + coded)
    return key.hexdigest()


def read_features(path: Path, key: str) -> Features | None:
    """Return the features that were saved with this key; None without them, or if damaged."""
    # NumPy, zipfile and zlib raise many types; NumPy would not close a bad file.
    with contextlib.suppress(Exception), path.open("rb") as file, np.load(file) as saved:
        features: Features = saved["features"]
        if saved["key"] == key:
            return features
    return None
