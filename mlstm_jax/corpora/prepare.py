"""Make a corpus: read, clean, deduplicate, order, split, write.

Without given splits the order depends only on content and seed: documents are sorted by the md5 of
seed and text, a key that any engine can compute. The order of files and lines and the number of
threads do not change a byte of the result. The folder is complete or absent, whenever the program
stops.

Given splits have every document of each, in the order of its files: benchmarks such as enwik8, Penn
Treebank and WikiText are published this way. Nothing is sorted, so no engine is needed: the files
are read twice, to count their documents and to write them.
"""

import dataclasses
import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from itertools import chain
from math import nan
from pathlib import Path
from typing import Any

from mlstm_jax.corpora import engines, writer
from mlstm_jax.corpora.compression import READ_ERRORS
from mlstm_jax.corpora.documents import CleanDocument, Recipe, Reject
from mlstm_jax.corpora.folders import find_sources
from mlstm_jax.corpora.options import (
    DEFAULTS,
    PrepareOptions,
    SplitWeights,
    check_given,
    usual_split,
)
from mlstm_jax.corpora.readers import OnRead, limited_lines, read_cleaned
from mlstm_jax.corpora.records import Rejects, check_rejects_file
from mlstm_jax.corpora.sources import Source
from mlstm_jax.corpora.writer import Block, Job, SortedDocuments, SourceCounts
from mlstm_jax.data import corpus
from mlstm_jax.data.corpus import Corpus, Manifest
from mlstm_jax.errors import UserError, note
from mlstm_jax.fields import public, require_kind
from mlstm_jax.options import SPLITS, SplitName, Unit
from mlstm_jax.output import atomic_directory, partial_folder, remove_leftovers
from mlstm_jax.terminal import ProgressLine

Sources = str | Path | Sequence[str | Path]

# The order of writing: the first documents become the test split.
_ORDER: tuple[SplitName, ...] = ("test", "valid", "train")


@public
def prepare(
    sources: Sources | Mapping[SplitName, Sources],
    out: str | Path,
    options: PrepareOptions = DEFAULTS,
    *,
    overwrite: bool = False,
    show_progress: bool = False,
    **changes: Any,
) -> Corpus:
    """Create a corpus from text files: read, clean, deduplicate, shuffle and split them.

    Args:
        sources: one or several files, folders or patterns; or a dict of them by split, to use
            existing splits.
        out: the corpus folder; it is complete or absent.
        options: how to make the corpus.
        overwrite: replace an existing corpus.
        show_progress: on standard error.
        changes: fields of `options` to replace.

    Returns:
        The corpus; printing it shows its counts.

    Raises:
        ValueError: a source, `out` or an option cannot be used. Nothing is left behind except the
            file of rejects.
        OSError: the corpus cannot be written, or there is too little disk.

    Examples:
        >>> corpus = mlstm.prepare("reviews.csv", "corpora/new", split=(8, 1, 1))
        >>> list(corpus.manifest.splits)
        ['train', 'valid', 'test']
    """
    options = dataclasses.replace(options, **changes)
    is_given = isinstance(sources, Mapping)
    splits: Mapping[Any, Sources] = sources if isinstance(sources, Mapping) else {"": sources}
    names_of = {split: _names(names) for split, names in splits.items()}
    if not any(names_of.values()):
        raise UserError("no source given; name text files, or pydoc:")
    # So that the temporary folder goes next to it, even for "." or a link; and the corpus replaces
    # the folder, so "." would still be the old one.
    out = writer.resolved("out", Path(out))
    scratch_beside = _scratch_beside(out, options)
    if is_given:
        check_given(names_of, options)
    remove_leftovers(out)  # may restore an old corpus
    writer.check_out(out, overwrite)
    rejects_file = out.with_name(f"{out.name}.rejects.jsonl")
    split_sources = _sources_of(names_of, without=(out, rejects_file))
    check_rejects_file(rejects_file)
    remove_leftovers(scratch_beside)
    every = list(chain(*split_sources.values()))
    writer.check_disk(every, out, scratch_beside, sorts=not is_given)
    try:
        with (
            atomic_directory(out, lambda: writer.check_out(out, overwrite)) as folder,
            _progress(quiet=not show_progress) as report,
        ):
            # Inside the folder that becomes the corpus, unless `temp_dir` is set.
            scratch = partial_folder(scratch_beside) / "scratch"
            job = Job(options, _recipe(options, is_given), Rejects(rejects_file), scratch, report)
            manifest = _make(split_sources, folder, job)
    finally:  # Its own cleanup may have been interrupted.
        remove_leftovers(out)
        remove_leftovers(scratch_beside)
    job.rejects.write()
    for text in job.rejects.notes():
        note(text)
    return Corpus(out, manifest)


def _scratch_beside(out: Path, options: PrepareOptions) -> Path:
    """The path next to which temporary files are written."""
    if not options.temp_dir:
        return out
    temp_dir = writer.resolved("temp_dir", options.temp_dir)
    if not (temp_dir.is_dir() and os.access(temp_dir, os.W_OK)):
        raise UserError(f"`temp_dir` {temp_dir} is not a writable folder; name another.")
    return temp_dir / out.name


def _sources_of(
    names_of: Mapping[Any, Sequence[str]], without: Sequence[Path]
) -> dict[str, list[Source]]:
    """The sources of each split, or of ""; UserError if two splits have a file in common."""
    split_of: dict[tuple[str, ...], str] = {}
    found = {}
    for split in ("", *_ORDER):
        if split not in names_of:
            continue
        found[split] = find_sources(names_of[split], without)
        for source in found[split]:
            other = split_of.setdefault(source.place, split)
            if other != split:
                raise UserError(
                    f"{source} is in both `{other}` and `{split}`, so the score would say nothing "
                    "about new text; use it in one split only."
                )
    return found


def _recipe(options: PrepareOptions, is_given: bool) -> Recipe:
    return Recipe(
        options.text_column,
        options.rating_column,
        options.document,
        options.clean,
        options.dedupe or ("none" if is_given else "normalized"),
        options.seed,
        options.quoting,
        options.delimiter,
    )


@contextmanager
def _progress(*, quiet: bool) -> Iterator[writer.Report]:
    """Show the progress of each stage in a line of its own, unless `quiet`."""
    line: ProgressLine | None = None
    current = ""

    def report(stage: str, fraction: float) -> None:
        nonlocal line, current
        if stage != current:
            if line:
                line.update(100, "percent")
            lines.close()
            current = stage
            line = lines.enter_context(ProgressLine(stage, 100, status="", quiet=quiet))
        if line and fraction:
            line.update(int(100 * fraction), "percent")

    with ExitStack() as lines:
        yield report
        if line:
            line.update(100, "percent")


def _names(sources: Sources) -> list[str]:
    if hasattr(sources, "columns") or hasattr(sources, "dtype"):
        raise UserError(
            f"sources is a {type(sources).__name__}, but `prepare` reads files: write it to one, "
            'such as with df.to_json("texts.jsonl", orient="records", lines=True)'
        )
    names = [sources] if isinstance(sources, (str, Path)) else list(sources)
    for name in names:
        require_kind("sources", name, str | Path)
    return list(map(str, names))


def _make(split_sources: Mapping[str, list[Source]], folder: Path, job: Job) -> Manifest:
    """Fill the folder with the corpus of given splits, or of "", in the order of its documents."""
    if "" not in split_sources:
        gathering = _read_given_splits(split_sources, job)
    elif job.options.engine == "beam":
        gathering = engines.sort_with_beam(split_sources[""], job)
    else:
        gathering = engines.sort_here(split_sources[""], job)
    with gathering as gathered:
        manifest = _write(gathered, folder, job)
    shutil.rmtree(job.scratch, ignore_errors=True)
    with writer.durable(folder / corpus.MANIFEST) as file:
        file.write(manifest.to_json().encode())
    return manifest


@contextmanager
def _read_given_splits(
    sources: Mapping[str, Sequence[Source]], job: Job
) -> Iterator[SortedDocuments]:
    """Count the documents of every split, and yield what to write, in the order of the splits."""
    on_read = writer.bytes_read(chain(*sources.values()), job.report)
    counts = []
    sizes = dict.fromkeys(sources, 0)
    for split, split_sources in sources.items():
        for source in split_sources:
            one = SourceCounts(source)
            records = _read_given(source, job.recipe, on_read)
            deque(one.texts(records, job.rejects.add), maxlen=0)
            counts.append(one)
            sizes[split] += one.documents
    documents = chain.from_iterable(_read_given_again(job.recipe, one) for one in counts)
    yield SortedDocuments(counts, sum(sizes.values()), writer.packed(documents), sizes)


def _read_given_again(recipe: Recipe, expected: SourceCounts) -> Iterator[CleanDocument]:
    counts = SourceCounts(expected.source)
    records = _read_given(expected.source, recipe)
    yield from counts.texts(records, lambda reject: None)
    if counts != expected:
        raise UserError(f"{counts.source} changed while it was being read; run prepare again.")


def _read_given(
    source: Source, recipe: Recipe, on_read: OnRead | None = None
) -> Iterator[CleanDocument | Reject | None]:
    if recipe.cleaning == "none" and source.format.reader == "text":
        texts = _raw_documents(source, recipe.document or "line", on_read)
        return ((text, nan) for text in texts)
    return read_cleaned(source, recipe, on_read)


def _raw_documents(source: Source, document: Unit, on_read: OnRead | None) -> Iterator[bytes]:
    """Yield all bytes of a file as documents, including line ends and blank lines.

    The bytes are not decoded: a split of enwik8 may begin inside a character.
    """
    parts: list[bytes] = []
    has_text = False
    was_blank = False
    try:
        for line in limited_lines(source, on_read):
            is_blank = not line.strip()
            ends = document == "line" or (document == "paragraph" and was_blank)
            if has_text and ends and not is_blank:
                yield b"".join(parts)
                parts = []
                has_text = False
            parts.append(line)
            has_text = has_text or not is_blank
            was_blank = is_blank
    except READ_ERRORS as error:
        raise UserError(f"{source} cannot be read: {error}; fetch or create it again.") from error
    if parts:
        yield b"".join(parts)


def _write(gathered: SortedDocuments, folder: Path, job: Job) -> Manifest:
    recipe = job.recipe
    manifests = writer.source_manifests(gathered.counts)
    with_text = sum(source.documents for source in manifests)
    without_text = sum(source.without_text for source in manifests)
    blank = sum(source.blank for source in manifests)
    records = with_text + without_text + blank
    is_rated = any(source.is_rated for source in gathered.counts)
    job.rejects.check(records + len(job.rejects), job.options.max_reject_fraction)
    if recipe.rating_column and not is_rated:
        raise UserError(
            f"no record has a number in `rating_column` {recipe.rating_column!r}; name the field "
            "or column of the ratings, or leave the option out."
        )
    split: SplitWeights | None = None
    sizes = gathered.sizes
    if not sizes:
        manifests.sort()
        split = job.options.split or usual_split(gathered.documents)
        sizes = _sizes(gathered.documents, split)
    blocks = writer.Blocks(_counted(gathered, job.report))
    splits = {}
    for name in _ORDER:
        size = sizes.get(name, 0)
        splits[name] = writer.write_split(folder, name, blocks.take(size), size, is_rated)
    blocks.require_end()
    return Manifest(
        format_version=corpus.FORMAT_VERSION,
        seed=recipe.seed,
        cleaning=recipe.cleaning,
        split=split,
        sources=tuple(manifests),
        records=records,
        without_text=without_text,
        blank=blank,
        duplicates=with_text - gathered.documents,
        splits={name: splits[name] for name in SPLITS},
        dedupe=recipe.dedupe,
        rejected=job.rejects.counts,
    )


def _counted(gathered: SortedDocuments, report: writer.Report) -> Iterator[Block]:
    done = 0
    for block in gathered.in_order:
        report("write", done / gathered.documents)
        yield block
        done += len(block.sizes)


def _sizes(documents: int, split: SplitWeights) -> dict[str, int]:
    """The number of documents of each split; the first with a weight takes the rest."""
    weights: dict[str, Fraction] = {}
    for name, weight in zip(SPLITS, split, strict=True):
        if weight:
            weights[name] = Fraction(str(weight))  # exactly, so that 0.8,0.1,0.1 gives 8,1,1
    first, *others = weights
    total = sum(weights.values())
    sizes = {name: max(1, round(documents * weights[name] / total)) for name in others}
    rest = documents - sum(sizes.values())
    if rest < 1:
        raise UserError(
            f"only {documents:,} distinct documents, so `split` {','.join(map(str, split))} leaves "
            f"none for {first}; add more text, use a smaller unit such as `document` line, or "
            "change `split`."
        )
    return sizes | {first: rest}
