"""Make a corpus: deduplicate, order, split, write.

The order of documents hangs on a seed and their content alone: they are sorted by the md5 of the
seed and the cleaned bytes, which any engine can compute. The first in that order are the test
split, the next the validation split, the rest train. So the same input gives the same bytes,
whatever the order of its files. (Puri et al. 2018, section VI: deduplicated, shuffled, 1000:1:1.)
"""

import hashlib
import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import DownloadColumn, Progress

from mlstm_jax.data.corpus import SPLITS, Corpus, Manifest, Source, SplitManifest, checksum
from mlstm_jax.data.documents import (
    TEXT_FIELDS,
    Cleaning,
    Document,
    DocumentUnit,
    Fields,
    clean,
    read_documents,
    source_format,
)
from mlstm_jax.errors import UserError


class _Entry(NamedTuple):
    """A cleaned document; tuples compare as the corpus orders: by key, then text, then rating.

    A missing rating is infinite here, since NaN has no place in an order.
    """

    key: bytes
    text: bytes
    rating: float


def prepare(
    sources: Sequence[str],
    out: Path,
    *,
    fields: Fields = Fields(),
    unit: DocumentUnit | None = None,
    split: tuple[int, int, int] = (1000, 1, 1),
    seed: int = 0,
    cleaning: Cleaning = "radford",
    keep_duplicates: bool = False,
    overwrite: bool = False,
) -> Corpus:
    """Read all sources and write the corpus folder `out`, whole or not at all.

    The cleaned text is held in memory.

    Args:
        sources: names of files, or documents.PYDOC.
        out: the folder to make.
        fields: where text and rating are in a record.
        unit: what one document of plain text is.
        split: weights of train, valid and test, by number of documents.
        seed: of the order.
        cleaning: as in documents.clean.
        keep_duplicates: keep documents with the same cleaned text.
        overwrite: replace a corpus that is there.

    Raises:
        UserError: a source is wrong or empty, the folder exists, or there is too little text.
    """
    if split[0] <= 0 or min(split) < 0:
        raise UserError(f"--split {split}: train must be above 0, valid and test not below.")
    for source in sources:
        source_format(source)
    _check_free(out, overwrite)

    entries: list[_Entry] = []
    counts = []
    with Progress(
        *Progress.get_default_columns(),
        DownloadColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        for source in sources:
            documents = read_documents(
                source, fields, unit, lambda path: progress.open(path, "rb", description=path)
            )
            counts.append(_gather(source, documents, cleaning, seed, entries))
    entries.sort()
    kept = entries if keep_duplicates else _distinct(entries)
    parts = _split(kept, split)
    with_ratings = any(math.isfinite(entry.rating) for entry in kept)
    with _atomic_folder(out) as folder:
        manifest = Manifest(
            cleaning=cleaning,
            split=split,
            seed=seed,
            sources=tuple(sorted(counts, key=lambda source: (source.name, source.records))),
            records=sum(source.records for source in counts),
            without_text=sum(source.without_text for source in counts),
            blank=sum(source.blank for source in counts),
            duplicates=len(entries) - len(kept),
            splits={name: _write_split(folder, name, parts[name], with_ratings) for name in SPLITS},
        )
        (folder / "manifest.json").write_text(manifest.to_json())
    return Corpus(out, manifest)


def _gather(
    source: str,
    documents: Iterable[Document | None],
    cleaning: Cleaning,
    seed: int,
    entries: list[_Entry],
) -> Source:
    """Append the cleaned documents of one source to `entries`, and return its counts."""
    salt = hashlib.md5(f"{seed}:".encode(), usedforsecurity=False)
    records = without_text = blank = 0
    for document in documents:
        records += 1
        if document is None:
            without_text += 1
            continue
        text = clean(document.text, cleaning)
        if not text:
            blank += 1
            continue
        key = salt.copy()
        key.update(text)
        rating = math.inf if math.isnan(document.rating) else document.rating
        entries.append(_Entry(key.digest(), text, rating))
    if records == without_text + blank:
        raise UserError(
            f"{source} holds no text: {records:,} records, none with any of "
            f"{', '.join(TEXT_FIELDS)}; name the field with the text by --text-field."
            if records
            else f"{source} is empty."
        )
    return Source(name=Path(source).name, records=records, without_text=without_text, blank=blank)


def _distinct(entries: list[_Entry]) -> list[_Entry]:
    """Keep the first of each run of equal texts; `entries` are sorted."""
    before = [None, *(entry.text for entry in entries[:-1])]
    return [entry for entry, last in zip(entries, before, strict=True) if entry.text != last]


def _split(entries: list[_Entry], split: tuple[int, int, int]) -> dict[str, list[_Entry]]:
    """Give test and valid their shares, at least one document each, and train the rest."""
    count, total = len(entries), sum(split)
    valid, test = (max(1, round(count * share / total)) if share else 0 for share in split[1:])
    if count - valid - test < 1:
        raise UserError(
            f"there are {count:,} distinct documents, too few to split "
            f"{','.join(map(str, split))}. For text files, --document line or paragraph makes more "
            "of them; --split 1,0,0 keeps all for training."
        )
    return {
        "test": entries[:test],
        "valid": entries[test : test + valid],
        "train": entries[test + valid :],
    }


def _write_split(
    folder: Path, name: str, entries: list[_Entry], with_ratings: bool
) -> SplitManifest:
    lengths = np.array([len(entry.text) for entry in entries], np.uint64)
    offsets = np.concatenate([np.zeros(1, np.uint64), np.cumsum(lengths, dtype=np.uint64)])
    with (folder / f"{name}.bin").open("wb") as file:
        file.writelines(entry.text for entry in entries)
        os.fsync(file.fileno())
    arrays = {"offsets": offsets}
    if with_ratings:
        ratings = np.array([entry.rating for entry in entries], np.float32)
        arrays["ratings"] = np.where(np.isfinite(ratings), ratings, np.float32(np.nan))
    for kind, array in arrays.items():
        with (folder / f"{name}.{kind}.npy").open("wb") as file:
            np.save(file, array, allow_pickle=False)
            os.fsync(file.fileno())
    files = [f"{name}.bin", *(f"{name}.{kind}.npy" for kind in arrays)]
    return SplitManifest(
        documents=len(entries),
        bytes=int(offsets[-1]),
        sha256={file: checksum(folder / file) for file in files},
    )


def _check_free(out: Path, overwrite: bool) -> None:
    """Raise unless `out` can be made, or is a corpus that may be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / "manifest.json").is_file():
        raise UserError(f"{out} exists and is not a corpus; choose another --out.")
    if not overwrite:
        raise UserError(f"{out} is a corpus already; choose another --out, or add --overwrite.")


@contextmanager
def _atomic_folder(out: Path) -> Iterator[Path]:
    """Give a temporary sibling of `out` to write in, and put it in its place at the end.

    A killed process leaves the sibling; the next one that makes `out` removes it.
    """
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{out.name}.partial-"
    for left in out.absolute().parent.glob(f"{prefix}*"):
        if not _is_running(left.name.removeprefix(prefix)):
            shutil.rmtree(left, ignore_errors=True)
    folder = out.absolute().parent / f"{prefix}{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
        if out.exists():
            old = folder.with_name(f"{folder.name}-old")
            out.rename(old)
            folder.rename(out)
            shutil.rmtree(old)
        else:
            folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_running(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
