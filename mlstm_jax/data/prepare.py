"""Make a corpus: read, clean, deduplicate, order, split, write.

The order hangs on content and seed alone: documents are sorted by md5 of seed and cleaned bytes, a
key that any engine can compute. Neither the order of the files nor that of their lines changes a
byte of the result. The folder appears whole or not at all, whenever the program is stopped.
"""

import hashlib
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from mlstm_jax.data import corpus
from mlstm_jax.data.corpus import Manifest, SourceManifest, SplitManifest
from mlstm_jax.data.documents import PYDOC, Cleaning, Unit, check_source, clean, read_documents
from mlstm_jax.errors import UserError

_DOCUMENTS_A_REPORT = 500

# Every distinct cleaned text, once, and the ratings it came with: NaN for none.
Texts = dict[bytes, list[float]]
Written = tuple[bytes, float]


def prepare(
    sources: Sequence[str],
    out: Path,
    *,
    text_field: str | None = None,
    rating_field: str | None = None,
    document: Unit | None = None,
    split: tuple[int, int, int] = (1000, 1, 1),
    seed: int = 0,
    cleaning: Cleaning = "radford",
    keep_duplicates: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> Manifest:
    """Write the corpus folder `out` from `sources`, and return its manifest.

    Args:
        sources: files, or `pydoc:`; see `read_documents`, also for the next three.
        split: weights, in documents, of train, valid and test. Valid and test get at least one
            document each unless their weight is 0.
        seed: of the order.
        keep_duplicates: keep documents of the same cleaned bytes. Otherwise one is kept, with the
            lowest of their ratings.
        overwrite: replace `out` if it is a corpus.
        progress: show a bar on stderr if that is a terminal.

    Raises:
        UserError: a source, `out` or an argument cannot be used. Nothing is left behind.
    """
    out = out.resolve()  # a name to put the temporary folder beside, even for "." or a link
    _check_arguments(sources, split, document, cleaning)
    _check_out(out, overwrite)
    for source in sources:
        check_source(Path(source))
    _remove_leftovers(out)

    texts, counts = _read(sources, text_field, rating_field, document, cleaning, progress)
    rated = any(not math.isnan(rating) for ratings in texts.values() for rating in ratings)
    if rating_field and not rated:
        raise UserError(f"no record has a number in --rating-column {rating_field!r}; check it.")
    without_text = sum(source.without_text for source in counts)
    blank = sum(source.blank for source in counts)
    with_text = sum(source.documents for source in counts)

    documents = ordered(texts, seed, keep_duplicates)
    bounds = _bounds(len(documents), split)
    with appearing(out, overwrite) as folder:
        manifest = Manifest(
            format_version=corpus.FORMAT_VERSION,
            seed=seed,
            cleaning=cleaning,
            split=split,
            sources=tuple(counts),
            records=with_text + without_text + blank,
            without_text=without_text,
            blank=blank,
            duplicates=with_text - len(documents),
            splits={
                name: write_split(folder, name, documents[bounds[name]], rated)
                for name in corpus.SPLITS
            },
        )
        with durable(folder / corpus.MANIFEST) as file:
            file.write(manifest.to_json().encode())
    return manifest


def _check_arguments(
    sources: Sequence[str], split: tuple[int, int, int], document: str | None, cleaning: str
) -> None:
    if not sources:
        raise UserError(f"no source given; name files of text, or {PYDOC}")
    if len(split) != 3 or split[0] <= 0 or min(split) < 0:
        raise UserError(
            f"--split {','.join(map(str, split))}: must be three weights, train, valid and test, "
            "none negative, and train above 0; such as 1000,1,1"
        )
    if document not in (None, *get_args(Unit)):
        raise UserError(f"--document {document!r}: must be one of {', '.join(get_args(Unit))}")
    if cleaning not in get_args(Cleaning):
        raise UserError(f"--clean {cleaning!r}: must be one of {', '.join(get_args(Cleaning))}")


def _check_out(out: Path, overwrite: bool) -> None:
    parent = next(folder for folder in out.parents if folder.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise UserError(f"{out}: cannot be written: {parent} is no folder that you may write in.")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out.is_dir() and corpus.is_corpus(out)):
        raise UserError(
            f"{out}: exists and is not a corpus, or has other files in it, so it is left alone; "
            "name another folder with --out."
        )
    if not overwrite:
        raise UserError(
            f"{out}: exists; name another folder with --out, or replace it with --overwrite."
        )


def _read(
    sources: Sequence[str],
    text_field: str | None,
    rating_field: str | None,
    document: Unit | None,
    cleaning: Cleaning,
    progress: bool,
) -> tuple[Texts, list[SourceManifest]]:
    """Return all texts and, sorted by name, what each source gave."""
    texts: Texts = {}
    counts = []
    console = Console(stderr=True)
    files = [Path(source) for source in sources if source != PYDOC]
    with Progress(
        *Progress.get_default_columns(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[documents]:,} documents"),
        console=console,
        transient=True,
        disable=not (progress and console.is_terminal),
    ) as bar:
        size = sum(file.stat().st_size for file in files)
        task = bar.add_task("read", total=size, documents=0)
        read = 0
        for source in map(Path, sources):
            seen: Counter[str] = Counter()
            for found in read_documents(
                source,
                text_field=text_field,
                rating_field=rating_field,
                document=document,
                on_read=lambda count: bar.advance(task, count),
            ):
                text = clean(found.text, cleaning) if found else b""
                seen["text" if text else "blank" if found else "none"] += 1
                if found and text:
                    # Plus 0 makes -0 a 0, which is equal to it but not the same bytes.
                    rating = math.nan if found.rating is None else found.rating + 0.0
                    texts.setdefault(text, []).append(rating)
                read += 1
                if read % _DOCUMENTS_A_REPORT == 0:
                    bar.update(task, documents=read)
            if not seen["text"]:
                raise UserError(f"{source}: no text is left of it after cleaning; leave it out.")
            counts.append(
                SourceManifest(
                    name=source.name,
                    documents=seen["text"],
                    without_text=seen["none"],
                    blank=seen["blank"],
                )
            )
    return texts, sorted(counts, key=lambda c: (c.name, c.documents, c.without_text, c.blank))


def ordered(texts: Texts, seed: int, keep_duplicates: bool) -> list[Written]:
    """Return the documents to write, sorted by (md5 of seed and text, text, rating, none last)."""
    salt = hashlib.md5(f"{seed}:".encode(), usedforsecurity=False)

    def key(text: bytes) -> tuple[bytes, bytes]:
        digest = salt.copy()
        digest.update(text)
        return digest.digest(), text

    return [
        (text, rating)
        for text in sorted(texts, key=key)
        for rating in sorted(texts[text], key=lambda r: (math.isnan(r), r))[
            : None if keep_duplicates else 1
        ]
    ]


def _bounds(documents: int, split: tuple[int, int, int]) -> dict[str, slice]:
    """Return which documents, in their order, are in each split: test first, train last."""
    _, valid, test = (
        max(1, round(documents * weight / sum(split))) if weight else 0 for weight in split
    )
    if valid + test >= documents:
        raise UserError(
            f"only {documents:,} distinct documents, of which --split {','.join(map(str, split))} "
            f"leaves none to train on; give more text, a smaller unit such as --document line, or "
            "another --split."
        )
    return {
        "test": slice(0, test),
        "valid": slice(test, test + valid),
        "train": slice(test + valid, documents),
    }


def write_split(
    folder: Path, name: str, documents: Sequence[Written], rated: bool
) -> SplitManifest:
    offsets = np.fromiter(
        accumulate((len(text) for text, _ in documents), initial=0), np.uint64, len(documents) + 1
    )
    with durable(folder / corpus.bytes_file(name)) as file:
        file.writelines(text for text, _ in documents)
    arrays: dict[str, NDArray[np.generic]] = {corpus.offsets_file(name): offsets}
    if rated:
        ratings = np.array([rating for _, rating in documents], np.float32)
        arrays[corpus.ratings_file(name)] = ratings
    for file_name, array in arrays.items():
        with durable(folder / file_name) as file:
            np.save(file, array, allow_pickle=False)
    return SplitManifest(
        documents=len(documents),
        bytes=int(offsets[-1]),
        sha256={n: corpus.checksum(folder / n) for n in (corpus.bytes_file(name), *arrays)},
    )


@contextmanager
def durable(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that is on the disk, not in a cache, when the block ends."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def appearing(out: Path, overwrite: bool) -> Iterator[Path]:
    """Give a temporary folder to fill, which becomes `out` if the block ends without an error."""
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    aside = partial.with_name(f"{partial.name}.old")
    try:
        partial.mkdir(parents=True)
        yield partial
        _check_out(out, overwrite)  # again: someone else may have made it meanwhile
        try:
            if out.exists():
                os.rename(out, aside)
            os.rename(partial, out)
        finally:
            if aside.exists() and not out.exists():
                os.rename(aside, out)
        shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_leftovers(out: Path) -> None:
    """Remove the temporary folders for `out` of processes that were killed."""
    if not out.parent.is_dir():
        return
    pattern = re.compile(re.escape(f".{out.name}.partial-") + r"(\d+)(\.old)?")
    for folder in out.parent.iterdir():
        match = pattern.fullmatch(folder.name)
        # This process has made none yet: one of its number is of an earlier process.
        if match and (int(match[1]) == os.getpid() or not _is_alive(int(match[1]))):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # no signal, only whether one could be sent
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # someone else's
    return True
