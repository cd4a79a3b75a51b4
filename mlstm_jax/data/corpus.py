"""The corpus on disk: a folder that is whole, or is not there.

::

    manifest.json           what it was made from and how, counts and checksums
    {split}.bin             cleaned documents, one after another
    {split}.offsets.npy     where each begins, and the end; uint64 [documents + 1]
    {split}.ratings.npy     its rating, NaN where it has none; float32 [documents]; only when some
                            document of the corpus has one

Everything is memory-mapped, so opening takes no time whatever the size.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.errors import UserError

FORMAT_VERSION = 1
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class SplitManifest:
    """Counts of one split, and the sha256 of each of its files by name."""

    documents: int
    bytes: int
    sha256: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file that documents came from.

    Its `records` include those `without_text`, which lack the field, and those where it is `blank`.
    """

    name: str
    records: int
    without_text: int
    blank: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a corpus was made from, how, and what it holds."""

    format_version: int = FORMAT_VERSION
    cleaning: str
    split: tuple[int, int, int]
    seed: int
    sources: tuple[Source, ...]
    records: int
    without_text: int
    blank: int
    duplicates: int
    splits: dict[str, SplitManifest]

    def to_json(self) -> str:
        """Return JSON text, the same for the same corpus."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def _manifest_from_json(path: Path) -> Manifest:
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        version = values["format_version"]
        if version != FORMAT_VERSION:
            raise UserError(
                f"{path} has format_version {version!r}; this program reads {FORMAT_VERSION}. "
                "Prepare the corpus again."
            )
        values["split"] = tuple(values["split"])
        values["sources"] = tuple(Source(**source) for source in values["sources"])
        values["splits"] = {name: SplitManifest(**values["splits"][name]) for name in SPLITS}
        return Manifest(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} is not a manifest ({type(error).__name__}: {error}); prepare the corpus again."
        ) from error


@dataclass(frozen=True)
class Split:
    """One part of a corpus, memory-mapped, read-only."""

    name: str
    bytes: NDArray[np.uint8]
    offsets: NDArray[np.uint64]
    ratings: NDArray[np.float32] | None


@dataclass(frozen=True)
class Corpus:
    """An open corpus folder."""

    path: Path
    manifest: Manifest

    @property
    def identity(self) -> str:
        """A sha256 over cleaning and contents: the same text gives the same identity anywhere."""
        digest = hashlib.sha256(self.manifest.cleaning.encode())
        for name in SPLITS:
            for file, checksum in sorted(self.manifest.splits[name].sha256.items()):
                digest.update(f"{file} {checksum}\n".encode())
        return digest.hexdigest()

    def split(self, name: str) -> Split:
        """Open one split.

        Raises UserError where a file is missing or has not the size that the manifest says.
        """
        entry = self.manifest.splits[name]
        path = self.path / f"{name}.bin"
        try:
            size = path.stat().st_size
            offsets = _load(self.path / f"{name}.offsets.npy")
            with_ratings = f"{name}.ratings.npy" in entry.sha256
            ratings = _load(self.path / f"{name}.ratings.npy") if with_ratings else None
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path}: {error}; prepare the corpus again.") from error
        if size != entry.bytes or offsets.shape != (entry.documents + 1,) or offsets[-1] != size:
            raise UserError(
                f"{path} has {size:,} bytes, but the manifest says {entry.bytes:,} in "
                f"{entry.documents:,} documents; prepare the corpus again."
            )
        # An empty file cannot be mapped.
        data = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
        return Split(name, data, offsets, ratings)


def _load(path: Path) -> Any:
    return np.load(path, mmap_mode="r", allow_pickle=False)


def open_corpus(path: Path) -> Corpus:
    """Open a corpus folder; UserError where it is none."""
    manifest = path / "manifest.json"
    if not manifest.is_file():
        what = "is not a corpus: it has no manifest.json" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}; make one with: mlstm-jax prepare SOURCE --out {path}")
    return Corpus(path, _manifest_from_json(manifest))


def checksum(path: Path) -> str:
    """Return a file's sha256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(corpus: Corpus) -> list[str]:
    """Return the names of files that are missing or differ from their checksums."""
    return [
        name
        for split in corpus.manifest.splits.values()
        for name, expected in split.sha256.items()
        if not (corpus.path / name).is_file() or checksum(corpus.path / name) != expected
    ]


def describe(corpus: Corpus) -> str:
    """Return what a person wants to know of a corpus, as plain text."""
    manifest = corpus.manifest
    total = sum(split.documents for split in manifest.splits.values())
    lines = [
        f"{corpus.path}: {total:,} documents from {manifest.records:,} records "
        f"({manifest.duplicates:,} duplicates, {manifest.without_text:,} without text and "
        f"{manifest.blank:,} blank ones left out)",
        f"cleaning {manifest.cleaning}, split {','.join(map(str, manifest.split))}, "
        f"seed {manifest.seed}, identity {corpus.identity[:12]}",
        f"{'':<8}{'documents':>14}{'bytes':>18}   sha256",
    ]
    for name, split in manifest.splits.items():
        sha256 = split.sha256[f"{name}.bin"][:12]
        lines.append(f"{name:<8}{split.documents:>14,}{split.bytes:>18,}   {sha256}")
    lines += [
        f"from {source.name}: {source.records:,} records, {source.without_text:,} without text, "
        f"{source.blank:,} blank"
        for source in manifest.sources
    ]
    return "\n".join(lines)
