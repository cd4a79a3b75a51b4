"""Features of texts: the state of a frozen model after reading each.

Puri et al. 2018, section VI, after Radford et al. 2017: a text is cleaned as the corpus was and
read from a zero state; its features are the cell state c of the top layer. Texts are
split over all devices, and read one window at a time (reader.py), so memory use does not depend on
their length, and features depend on the text alone, up to rounding. One pass computes any number of
states: c, h and the mean of h. A classifier reads one of them, or c and the mean of h side by side.

On disk they are an .npz of `features` and, for each column, `state`, `layer` and `unit`. A file
that a later call may reuse also has a `key`, a sha256 of all that determines the features, so
that a file of other texts or of another model is never reused by mistake; and their `crc32`.
"""

import hashlib
import itertools
import weakref
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from mlstm_jax import digest, output
from mlstm_jax.config import Devices
from mlstm_jax.corpora.documents import Recipe, clean
from mlstm_jax.corpora.readers import read_documents
from mlstm_jax.corpora.sources import Source, check_source
from mlstm_jax.data.corpus import Cleaning
from mlstm_jax.errors import UserError, note
from mlstm_jax.run import Run
from mlstm_jax.terminal import ProgressLine
from mlstm_jax.training import parallel
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.transfer.reader import (
    FeatureState,
    State,
    TextReader,
    features_of,
    layers_of,
    require_index,
    single_states,
)

Features = NDArray[np.float32]

_MOST_CHARACTERS, _MOST_TEXTS = 1 << 25, 1 << 13  # in memory; fewer would fill rows less
_LONG = 200_000  # bytes of a text; on a CPU, minutes with 1,024 units


class Reading(NamedTuple):
    """What a model's pass over some texts gives."""

    features: Features  # [texts, columns]
    nats_N: NDArray[np.float64]  # of all bytes of a text but the first; 0 unless they are scored
    scored_N: NDArray[np.int64]  # how many bytes these are


@dataclass(frozen=True)
class Unit:
    """A single feature, named as in `heatmap --state S --layer L --unit U`."""

    state: State
    layer: int
    unit: int

    def __str__(self) -> str:
        return f"{self.state} of unit {self.unit} of layer {self.layer}"


class TextFile:
    """The texts of a source, in order, with "" for a record without text; yields lists of them.

    Only one list is in memory. The whole source is read once before, since reading it takes a
    hundredth of the time that a model takes, so its errors and notes come before the work.

    Attributes:
        count: of the texts.
        size: of the cleaned texts, in bytes.
    """

    def __init__(self, path: Path | str, text_column: str | None, cleaning: Cleaning) -> None:
        """Read the source.

        Args:
            path: a file of any kind that `prepare` reads, `tfds:...`, or `-` for standard input:
                JSON lines, or lines of text, which are copied to a temporary file.
            text_column: of the text; None: the first of those that `prepare` reads.
            cleaning: of the texts before they count for `size`.

        Raises UserError if the source cannot be read or holds no text; see `read_documents`.
        """
        check_source(Source(str(path)))
        self._source, self._recipe = Source(str(path)).repeatable(), Recipe(text_column)
        if self._source.copy:
            weakref.finalize(self, self._source.copy.close)
        self.count = self.size = 0
        for document in read_documents(self._source, self._recipe):
            self.count += 1
            self.size += len(clean(document.text, cleaning)) if document else 0

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
                f"{self._source}: has changed since its texts were counted; read it again."
            )


class Featurizer:
    """Reads texts with one compiled step.

    Attributes:
        states: one or several, in the order of their columns.
        columns: what each feature of a text is, for each different state.
        reading: what besides parameters and texts determines the features: the cleaning of texts
            and the model's numeric types.
    """

    def __init__(
        self,
        run: Run,
        *,
        states: Sequence[FeatureState] | None = None,
        all_layers: bool = False,
        units: Sequence[int] | None = None,
        devices: Parallel | None = None,
        rows: int | None = None,
        score: bool = False,
    ) -> None:
        """Choose what to keep of a text.

        Args:
            run: a trained model.
            states: see `features_of`; columns are in the order of the states, each only once.
            all_layers: keep every layer, the lowest first; otherwise only the top layer.
            units: keep only these of each layer; unset: all.
            devices: unset: all of this process.
            rows: see `TextReader`.
            score: also sum the loss of each text, of a model that predicts the next byte.

        Raises:
            UserError: a state or unit does not exist, or a state is named twice; or the model does
                not predict the next byte.
        """
        if score:
            run.config.model.require_next_byte("scoring a text")
        states = features_of(run.config.model, states)
        hidden = run.config.model.hidden
        for unit in units or ():
            require_index("unit", unit, hidden)
        self._run = run
        self.states = states
        precision = run.model.precision
        several = ("bf16",) if run.batch_model else ()
        self.reading = str(run.cleaning), precision.compute, precision.cell, *several
        layers = [layers_of(run.config.model, state, all_layers=all_layers) for state in states]
        self._layers = list(dict.fromkeys(itertools.chain(*layers)))
        self._units = list(range(hidden) if units is None else units)
        self.columns = [Unit(*layer, unit) for layer in self._layers for unit in self._units]
        devices = devices or parallel.local(Devices())
        mean = any(state == "mean_h" for state, _ in self._layers)
        self._reader = TextReader(run, devices, rows, mean=mean, score=score)

    def columns_of(self, state: FeatureState) -> NDArray[np.int64]:
        """Return where the features of a state are; of two side by side, the first one's first."""
        states = np.array([column.state for column in self.columns])
        return np.concatenate([np.flatnonzero(states == part) for part in single_states(state)])

    def __call__(self, texts: Sequence[str] | TextFile, progress: str | None = None) -> Features:
        """Return the features of texts, float32 [texts, columns].

        Args:
            texts: any number, of any length.
            progress: name of a progress line on standard error; unset: none.
        """
        return np.concatenate([read.features for _, read in self.read_each(texts, progress)])

    def read_each(
        self, texts: Sequence[str] | TextFile, progress: str | None = None
    ) -> Iterator[tuple[Sequence[str], Reading]]:
        """Read texts, those of a file in parts, and yield each part with what reading it gives."""
        parts: Iterable[Sequence[str]] = texts if isinstance(texts, TextFile) else [texts]
        size = 0
        if isinstance(texts, TextFile):
            size = texts.size
        elif progress is not None:
            size = sum(map(len, self._run.cleaned(texts)))
        with ProgressLine(progress or "", size, of_bytes=True, quiet=progress is None) as line:
            for part in parts:
                yield part, self._read(part, line)

    def _read(self, texts: Sequence[str], line: ProgressLine) -> Reading:
        cleaned = self._run.cleaned(texts)
        model = self._run.config.model
        length_N = np.array([len(text) for text in cleaned])
        longest = int(length_N.max(initial=0))
        if longest > max(_LONG, length_N.sum() / 2):
            note(
                f"a text has {longest:,} bytes, and most of the time is spent on it alone, one "
                "byte at a time, several times as slow as many texts together. If its parts may "
                "be read without the text before them, give them as texts."
            )
        result = np.zeros((len(texts), len(self.columns)), np.float32)
        nats_N = np.zeros(len(texts))
        for turn, after, _ in self._reader.read(cleaned):
            line.advance(turn.bytes)
            if not turn.rows.size:
                continue
            carry, sum_BLH, nats_B = jax.tree.map(
                lambda x: x[turn.rows],  # noqa: B023
                self._reader.fetch(after),
            )
            mean_BLH = sum_BLH / length_N[turn.texts][:, None, None]
            reached = model.named_states(carry) | {"mean_h": mean_BLH}
            values = [reached[state][:, layer, self._units] for state, layer in self._layers]
            result[turn.texts] = np.concatenate(values, axis=1)
            nats_N[turn.texts] = nats_B
        return Reading(result, nats_N, np.maximum(length_N - 1, 0))


def write_features(path: Path, features: Features, featurizer: Featurizer, key: str) -> None:
    """Write features atomically; KnownError if they cannot be written."""
    named = {"key": np.array(key), digest.FIELD: digest.of_array(features)}
    write_parts(path, len(features), [features], featurizer, **named)


def write_parts(
    path: Path, count: int, parts: Iterable[Features], featurizer: Featurizer, **named: Any
) -> None:
    """Write the features of `count` texts as they come, as `np.savez` does, but atomically."""
    named = {
        "state": np.array([column.state for column in featurizer.columns]),
        "layer": np.array([column.layer for column in featurizer.columns], np.int32),
        "unit": np.array([column.unit for column in featurizer.columns], np.int32),
        **named,
    }
    width = len(featurizer.columns)
    shape = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
    with output.atomic_file(path) as partial, zipfile.ZipFile(partial, "w") as file:
        with file.open("features.npy", "w", force_zip64=True) as array:
            np.lib.format.write_array_header_1_0(array, shape)
            for part in parts:
                array.write(part.astype("<f4", copy=False).tobytes())
        for name, values in named.items():
            with file.open(f"{name}.npy", "w") as array:
                np.lib.format.write_array(array, np.asarray(values), allow_pickle=False)


def features_key(model: str, featurizer: Featurizer, texts: Sequence[str]) -> str:
    """Return a hex digest of model, reading, columns, states and texts."""
    key = hashlib.sha256(model.encode())
    columns = (map(attrgetter(name), featurizer.columns) for name in ("state", "layer", "unit"))
    # States side by side have the columns of those alone, but belong to another call.
    states = featurizer.states if any("+" in state for state in featurizer.states) else ()
    for part in (*featurizer.reading, *map(list, columns), *states):
        key.update(f"{part!r}\0".encode())
    for text in texts:
        coded = text.encode("utf-8", "surrogatepass")
        key.update(len(coded).to_bytes(8, "little") + coded)
    return key.hexdigest()


def read_features(path: Path, key: str) -> Features | None:
    """Return the features that were saved with this key, or None if there are none."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file) as saved:  # NumPy would not close a bad one
            if "key" not in saved or str(saved["key"]) != key:
                return None
            features: Features = saved["features"]
            return features if digest.of_array(features) == saved[digest.FIELD] else None
    except Exception:  # NumPy, zipfile and zlib raise many types
        return None  # damaged, so they are computed again
