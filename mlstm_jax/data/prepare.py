"""Make a corpus: read, clean, deduplicate, order, split, write.

The order hangs on content and seed alone: documents are sorted by md5 of seed and text, a key that
any engine can compute. Neither the order of the files nor that of their lines, nor the number of
threads, changes a byte of the result. The folder appears whole or not at all, whenever the program
is stopped.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

from rich.console import Console
from rich.progress import Progress, TaskID, TimeElapsedColumn

from mlstm_jax.data import corpus
from mlstm_jax.data.corpus import Manifest, SplitManifest
from mlstm_jax.data.corpus_writer import (
    appearing,
    check_out,
    durable,
    partial_folder,
    remove_leftovers,
    write_split,
)
from mlstm_jax.data.documents import Cleaning, Dedupe, Recipe, Unit, Written
from mlstm_jax.data.gathered import Gathered
from mlstm_jax.data.rejects import Rejects, check_rejects_file
from mlstm_jax.data.sources import PARQUET, PYDOC, find_sources, is_builtin, is_gzip_name
from mlstm_jax.errors import UserError

Engine = Literal["duckdb", "beam"]

MEMORY_LIMIT = "4GB"
MAX_REJECT_FRACTION = 0.001

# What a compressed byte of reviews becomes, at most.
_COMPRESSION = 4
# DuckDB would start any number.
_MOST_THREADS = 256
# Of a file system, less what the names of temporary files have besides.
_LONGEST_NAME = 255 - len(".partial-4194304.old") - len(".")
# The table of documents and what its sort spills, in bytes of text.
_SCRATCH = 2


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
    dedupe: Dedupe = "normalized",
    overwrite: bool = False,
    progress: bool = False,
    engine: Engine = "duckdb",
    beam_options: Sequence[str] = (),
    memory_limit: str = MEMORY_LIMIT,
    threads: int | None = None,
    temp_dir: Path | None = None,
    max_reject_fraction: float = MAX_REJECT_FRACTION,
) -> Manifest:
    """Write the corpus folder `out` from `sources`, and return its manifest.

    Args:
        sources: see `find_sources`; for the next three `readers.read`.
        split: weights, in documents, of train, valid and test. Valid and test get at least one
            document each unless their weight is 0.
        seed: of the order.
        dedupe: which documents count as the same: of the same cleaned bytes, "exact"; of the same
            but for case and white space, "normalized"; or none. One of them is kept, see `kept`.
        overwrite: replace `out` if it is a corpus.
        progress: show a bar on stderr if that is a terminal.
        engine: what reads and orders; the corpus is the same, byte for byte.
        beam_options: options of Beam's own, such as ``--runner=FlinkRunner``.
        memory_limit: of DuckDB, such as "4GB"; the program needs some hundred MB beside it.
        threads: of DuckDB; by default all cores.
        temp_dir: folder for temporary files; by default they are beside `out`.
        max_reject_fraction: of all records, how many may be unreadable; `OUT.rejects.jsonl` has
            them.

    Raises:
        UserError: a source, `out` or an argument cannot be used, or there is too little disk or
            memory. Nothing is left behind, save the file of rejects.
    """
    out = _resolved("--out", out)  # to put the temporary folder beside, even for "." or a link
    if temp_dir is not None:
        temp_dir = _resolved("--temp-dir", temp_dir)
    recipe = Recipe(text_field, rating_field, document, cleaning, dedupe, seed)
    _check_arguments(sources, split, recipe, max_reject_fraction, threads, memory_limit)
    if engine != "beam" and beam_options:
        raise UserError("--beam-options are of --engine beam; name it, too.")
    if temp_dir is not None and not (temp_dir.is_dir() and os.access(temp_dir, os.W_OK)):
        raise UserError(f"--temp-dir {temp_dir}: is no folder that you may write in.")
    remove_leftovers(out)  # which may bring an old corpus back
    check_out(out, overwrite)
    rejects = Rejects()
    rejects_file = out.with_name(f"{out.name}.rejects.jsonl")
    found = find_sources(sources, without=(out, rejects_file))
    check_rejects_file(rejects_file)
    scratch_beside = out if temp_dir is None else temp_dir / out.name
    remove_leftovers(scratch_beside)
    _check_disk(found, out, scratch_beside)

    # Within the folder that appears, unless it is to be elsewhere.
    scratch = partial_folder(scratch_beside) / "scratch"
    with (
        _tidied(out, scratch_beside, rejects_file, rejects),
        appearing(out, overwrite) as folder,
        _bar(progress) as bar,
    ):
        try:
            if engine == "beam":
                from mlstm_jax.data import beam_engine

                gathering = beam_engine.gather(
                    found, recipe, rejects, scratch, options=beam_options, report=bar.report
                )
            else:
                from mlstm_jax.data import duckdb_engine

                gathering = duckdb_engine.gather(
                    found,
                    recipe,
                    rejects,
                    scratch,
                    memory_limit=memory_limit,
                    threads=threads,
                    report=bar.report,
                )
            manifest = _write(
                gathering, folder, recipe, split, rejects, rejects_file, max_reject_fraction, bar
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            if scratch.parent != folder:
                shutil.rmtree(scratch.parent, ignore_errors=True)
        with durable(folder / corpus.MANIFEST) as file:
            file.write(manifest.to_json().encode())
    return manifest


@contextmanager
def _tidied(out: Path, scratch: Path, rejects_file: Path, rejects: Rejects) -> Iterator[None]:
    """Remove what is left where the block was interrupted, perhaps while it was tidying up."""
    try:
        yield
    except BaseException as error:
        remove_leftovers(out)
        remove_leftovers(scratch)
        if rejects.written and not isinstance(error, UserError):
            rejects_file.unlink(missing_ok=True)
        raise


def _write(
    gathering: AbstractContextManager[Gathered],
    folder: Path,
    recipe: Recipe,
    split: tuple[int, int, int],
    rejects: Rejects,
    rejects_file: Path,
    max_reject_fraction: float,
    bar: "_Bar",
) -> Manifest:
    with gathering as gathered:
        counts = gathered.counts
        records = sum(c.documents + c.without_text + c.blank for c in counts)
        rejects.write(rejects_file)
        rejects.check(records + len(rejects), max_reject_fraction, rejects_file)
        if recipe.rating_field and not gathered.rated:
            raise UserError(
                f"no record has a number in --rating-column {recipe.rating_field!r}; check it."
            )
        sizes = _sizes(gathered.documents, split)
        documents = bar.counted(gathered.in_order, gathered.documents)
        splits: dict[str, SplitManifest] = {}
        for name in ("test", "valid", "train"):  # as they are in the order
            some = islice(documents, sizes[name])
            splits[name] = write_split(folder, name, some, sizes[name], gathered.rated)
    return Manifest(
        format_version=corpus.FORMAT_VERSION,
        seed=recipe.seed,
        cleaning=recipe.cleaning,
        split=split,
        sources=tuple(counts),
        records=records,
        without_text=sum(source.without_text for source in counts),
        blank=sum(source.blank for source in counts),
        duplicates=sum(source.documents for source in counts) - gathered.documents,
        splits={name: splits[name] for name in corpus.SPLITS},
        dedupe=recipe.dedupe,
        rejected=rejects.counts,
    )


def _check_arguments(
    sources: Sequence[str],
    split: tuple[int, int, int],
    recipe: Recipe,
    max_reject_fraction: float,
    threads: int | None,
    memory_limit: str,
) -> None:
    if not sources:
        raise UserError(f"no source given; name files of text, or {PYDOC}")
    for option, field in (
        ("--text-column", recipe.text_field),
        ("--rating-column", recipe.rating_field),
    ):
        if field == "":
            raise UserError(f"{option} '': names no column; name one, or leave the option out.")
    if len(split) != 3 or sum(split) <= 0 or min(split) < 0:
        raise UserError(
            f"--split {','.join(map(str, split))}: must be three weights, train, valid and test, "
            "none negative, and one above 0; such as 1000,1,1, or 0,0,1 for a test set alone"
        )
    for option, value, known in (
        ("--document", recipe.document, (None, *get_args(Unit))),
        ("--clean", recipe.cleaning, get_args(Cleaning)),
        ("--dedupe", recipe.dedupe, get_args(Dedupe)),
    ):
        if value not in known:
            raise UserError(f"{option} {value!r}: must be one of {', '.join(filter(None, known))}")
    if not 0 <= max_reject_fraction <= 1:
        raise UserError(
            f"--max-reject-fraction {max_reject_fraction:g}: must be from 0, none, to 1, all."
        )
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise UserError(f"--threads {threads}: must be from 1 to {_MOST_THREADS}.")
    if not -(2**63) <= recipe.seed < 2**63:
        raise UserError(f"--seed {recipe.seed}: must be a number of at most 64 bits.")
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)? ?[KMGT]i?B", memory_limit, re.IGNORECASE):
        raise UserError(f"--memory-limit {memory_limit!r}: must be a size such as 4GB or 500MB.")


def _resolved(option: str, path: Path) -> Path:
    """Return a path without links; raise UserError if it cannot be one of a corpus."""
    try:
        resolved = path.resolve()
        resolved.exists()
        if len(os.fsencode(resolved.name)) > _LONGEST_NAME:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        str(resolved).encode()
    except UnicodeEncodeError as error:
        why = "its name is not UTF-8, by which DuckDB cannot open files there"
        raise UserError(f"{option} {path}: {why}; name another folder.") from error
    except (OSError, RuntimeError) as error:  # of Python 3.13 and before it
        why = getattr(error, "strerror", None) or "a link that leads back to itself"
        raise UserError(f"{option} {path}: {why}; name another folder.") from error
    return resolved


def _check_disk(sources: Sequence[str], out: Path, scratch: Path) -> None:
    """Raise UserError unless there is room for the corpus and the temporary files."""
    text = 0
    for source in sources:
        if not is_builtin(source):
            path = Path(source)
            compressed = is_gzip_name(path) or path.suffix.lower() == PARQUET
            text += path.stat().st_size * (_COMPRESSION if compressed else 1)
    needed: dict[int, tuple[Path, int]] = {}
    for place, size in ((out.parent, text), (scratch.parent, _SCRATCH * text)):
        folder = next(folder for folder in (place, *place.parents) if folder.exists())
        device = folder.stat().st_dev
        needed[device] = (folder, needed.get(device, (folder, 0))[1] + size)
    for folder, size in needed.values():
        free = shutil.disk_usage(folder).free
        if size > free:
            raise UserError(
                f"{folder}: about {_gigabytes(size)} may be needed there, and {_gigabytes(free)} "
                "is free; free some, write the corpus to another disk with --out, or put the "
                f"temporary files, about {_gigabytes(_SCRATCH * text)}, on one with --temp-dir."
            )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _sizes(documents: int, split: tuple[int, int, int]) -> dict[str, int]:
    """Return how many documents each split gets."""
    _, valid, test = (
        max(1, round(documents * weight / sum(split))) if weight else 0 for weight in split
    )
    if not split[0]:  # nothing is to be trained on
        valid = documents - test if split[1] else 0
        if valid + test > documents or (split[1] and valid < 1):
            raise UserError(
                f"only {documents:,} distinct documents, too few for --split "
                f"{','.join(map(str, split))}; give more text, or another --split."
            )
        return {"test": test, "valid": valid, "train": 0}
    if valid + test >= documents:
        raise UserError(
            f"only {documents:,} distinct documents, of which --split {','.join(map(str, split))} "
            f"leaves none to train on; give more text, a smaller unit such as --document line, or "
            "another --split."
        )
    return {"test": test, "valid": valid, "train": documents - valid - test}


class _Bar:
    """A bar for each stage: read, sort, write."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def report(self, stage: str, fraction: float) -> None:
        """Show that `fraction` of a stage is done; of a sort it is not known how much."""
        if stage not in self._tasks:
            for earlier in self._tasks.values():
                self._progress.update(earlier, completed=1, total=1)
            total = None if stage == "sort" else 1
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], completed=fraction)

    def counted(self, documents: Iterator[Written], count: int) -> Iterator[Written]:
        """Yield the documents, and show how many of them have been."""
        for n, document in enumerate(documents):
            if n % 10_000 == 0:
                self.report("write", n / count)
            yield document


@contextmanager
def _bar(wanted: bool) -> Iterator[_Bar]:
    console = Console(stderr=True)
    with Progress(
        *Progress.get_default_columns(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (wanted and console.is_terminal),
    ) as progress:
        yield _Bar(progress)
