"""The corpus on disk: a manifest, and for each split its bytes, document offsets and ratings.

A folder contains::

    manifest.json          the sources, the contents of each split, and checksums, also of itself
    SPLIT.bin              the documents of train, valid or test, one after the other
    SPLIT.offsets.npy      uint64 [documents + 1]: where each starts, and the end
    SPLIT.ratings.npy      float32 [documents], NaN for none; absent if no record had a rating

The same text gives the same folder, byte for byte. Each block of a file is compared with its
checksum when it is first read.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mlstm_jax import digest, fields
from mlstm_jax.data.checked_bytes import CheckedBytes
from mlstm_jax.errors import UserError
from mlstm_jax.fields import Between, InvalidField
from mlstm_jax.options import SPLITS, Cleaning, Dedupe, SplitName
from mlstm_jax.output import read_errors
from mlstm_jax.terminal import one_line

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
_AT_ONCE = 1 << 26  # bytes


class SplitFiles(NamedTuple):
    """The names of a split's files."""

    bytes: str
    offsets: str
    ratings: str


def files_of(split: str) -> SplitFiles:
    return SplitFiles(f"{split}.bin", f"{split}.offsets.npy", f"{split}.ratings.npy")


FILES = frozenset([MANIFEST, *(name for split in SPLITS for name in files_of(split))])


@dataclass(frozen=True, order=True)
class SourceManifest:
    """Counts of one source."""

    name: str  # of a file, not its path, which would reveal whose machine it was
    documents: int  # with text, before duplicates are removed
    without_text: int  # its text field is missing, null or not a string
    blank: int  # its text is empty or white space


@dataclass(frozen=True, kw_only=True)
class SplitManifest:
    documents: Annotated[int, Between(0)]
    bytes: Annotated[int, Between(0)]
    crc32: dict[str, str]  # of each block of each of its files, by file name; see digest.py


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The sources and options of a corpus, and its contents."""

    format_version: Annotated[int, Between(FORMAT_VERSION, FORMAT_VERSION)]
    seed: int
    cleaning: Cleaning
    split: tuple[float, float, float] | None  # weights of train, valid, test; None: given splits
    sources: tuple[SourceManifest, ...]
    records: int
    without_text: int
    blank: int
    duplicates: int
    splits: dict[str, SplitManifest]
    dedupe: Dedupe = "exact"
    rejected: dict[str, int] = field(default_factory=dict)  # unreadable records, by kind

    def to_json(self) -> str:
        """Return the text of the manifest file."""
        return digest.to_json(asdict(self))


@dataclass(frozen=True, eq=False)
class Split:
    """A split, read from disk on access.

    Attributes:
        bytes: uint8 [bytes], on disk.
        offsets: uint64 [documents + 1]; document i is ``bytes[offsets[i]:offsets[i + 1]]``.
        ratings: float32 [documents], NaN where absent; None if the corpus has none.
    """

    name: str
    bytes: CheckedBytes
    offsets: NDArray[np.uint64]
    ratings: NDArray[np.float32] | None


@dataclass(frozen=True)
class Corpus:
    """A corpus folder and its manifest; `prepare` returns one, and printing it shows its counts.

    Attributes:
        path: the folder.
        manifest: how the corpus was prepared, the sizes of its splits and the checksums.
    """

    path: Path
    manifest: Manifest

    def __repr__(self) -> str:
        """The counts as plain text, for people."""
        manifest = self.manifest
        rows = [("split", "documents", "bytes")]
        is_rated = False
        for name, split in manifest.splits.items():
            rows.append((name, f"{split.documents:,}", f"{split.bytes:,}"))
            is_rated = is_rated or files_of(name).ratings in split.crc32
        rows += [("", "", ""), ("source", "with text", "without")]
        for source in manifest.sources:
            without = source.without_text + source.blank
            rows.append((one_line(source.name), f"{source.documents:,}", f"{without:,}"))
        how = "splits and order as given"
        if manifest.split:
            how = f"seed {manifest.seed}, split {','.join(map(str, manifest.split))}"
        lines = [
            f"corpus {self.path}",
            f"{manifest.records:,} records: {manifest.without_text:,} without text, "
            f"{manifest.blank:,} blank, {manifest.duplicates:,} duplicates ({manifest.dedupe}), "
            f"{sum(manifest.rejected.values()):,} unreadable",
            f"cleaning {manifest.cleaning}, {how}, ratings {'yes' if is_rated else 'no'}",
            f"identity {self.identity}",
            "",
        ]
        width = max(len(row[0]) for row in rows)
        for first, second, third in rows:
            lines.append(f"{first:<{width}}  {second:>13}  {third:>15}".rstrip())
        return "\n".join(lines)

    @property
    def identity(self) -> str:
        """A sha256 of cleaning and contents, by which a checkpoint identifies its corpus."""
        splits = {name: asdict(split) for name, split in self.manifest.splits.items()}
        text = json.dumps([self.manifest.cleaning, splits], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def split(self, name: SplitName) -> Split:
        """Open a split: its bytes are read later, its offsets and ratings now.

        Raises UserError if its files do not have the sizes, types or checksums in the manifest, and
        FileError if they cannot be read.
        """
        expected = self.manifest.splits[name]
        files = files_of(name)
        what = f"{self.path}: the {name} split"
        advice = "; run prepare again"
        with fields.named(f"{what} is truncated or damaged", advice), read_errors(what):
            for file in expected.crc32:
                if not (self.path / file).exists():
                    raise InvalidField(f"{file} is missing")
            data = CheckedBytes(self.path / files.bytes, expected.crc32[files.bytes])
            if len(data) != expected.bytes:
                raise InvalidField(f"{files.bytes} has {len(data):,} bytes, not {expected.bytes:,}")
            offsets = self._array(expected, files.offsets, np.uint64, expected.documents + 1)
            ends = (int(offsets[0]), int(offsets[-1]))
            if ends != (0, expected.bytes) or (offsets[1:] < offsets[:-1]).any():
                raise InvalidField(f"{files.offsets} does not rise from 0 to {expected.bytes:,}")
            ratings = None
            if files.ratings in expected.crc32:
                ratings = self._array(expected, files.ratings, np.float32, expected.documents)
            return Split(name, data, offsets, ratings)

    def _array(
        self, expected: SplitManifest, name: str, dtype: DTypeLike, length: int
    ) -> NDArray[Any]:
        """The array of a .npy file; InvalidField if it is not what its manifest says."""
        path = self.path / name
        if digest.of_blocks(path.read_bytes()) != expected.crc32[name]:
            raise InvalidField(f"{name} does not match its checksum")
        try:
            # Mapped, because a header may claim any size, which would otherwise be allocated.
            array = np.array(np.lib.format.open_memmap(path, mode="r"))
        except (ValueError, OverflowError) as error:
            raise InvalidField(f"{name} is no array: {error}") from error
        if array.dtype != dtype or array.shape != (length,):
            expected_kind = f"{np.dtype(dtype)} ({length},)"
            raise InvalidField(f"{name} is {array.dtype} {array.shape}, not {expected_kind}")
        return array


def open_corpus(path: Path, *, verify: bool = False) -> Corpus:
    """Open a corpus folder; `verify`: also compare all of its files with the checksums."""
    manifest = path / MANIFEST
    try:
        with read_errors(manifest):
            text = manifest.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"{path} is not a corpus" if path.exists() else f"there is no corpus {path}"
        advice = "Check the name, or make one with `mlstm-jax prepare SOURCE --out FOLDER`."
        raise UserError(f"{what}. {advice}") from error
    with fields.named(f"{manifest} is not a valid manifest", "; run prepare again"):
        corpus = Corpus(path, fields.build(Manifest, digest.read_json(text)))
        splits = corpus.manifest.splits
        is_whole = splits.keys() == set(SPLITS)
        for name, split in splits.items():
            files = files_of(name)
            needed = {files.bytes, files.offsets}
            if not (split.crc32.keys() >= needed and split.crc32.keys() <= FILES):
                is_whole = False
        if not is_whole:
            raise InvalidField(f"splits must be {', '.join(SPLITS)}, and name their files")
    if verify:
        for name in SPLITS:
            data = corpus.split(name).bytes
            for start in range(0, len(data), _AT_ONCE):
                data[start : start + _AT_ONCE]  # is compared with its checksum
    return corpus


def is_corpus(path: Path) -> bool:
    """Return whether a folder contains only a corpus, so that it may be replaced."""
    # Other programs also write a manifest.json, next to files that must not be deleted.
    return (path / MANIFEST).is_file() and {entry.name for entry in path.iterdir()} <= FILES
