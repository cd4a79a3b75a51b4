"""Make a corpus: read, clean, deduplicate, order, split, write.

Documents are sorted by the md5 of seed and text, which any engine can compute: the order of files
and lines and the number of processes do not change a byte. The folder is complete or absent,
whenever the program stops. Given splits, such as enwik8's, keep the order of their files.
"""

import dataclasses
import os
import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

from mlstm_jax import output
from mlstm_jax.corpora import beam, local, parts, writer
from mlstm_jax.corpora.documents import Recipe
from mlstm_jax.corpora.engine import Job, SortedDocuments, SourceCounts
from mlstm_jax.corpora.options import DEFAULTS, PrepareOptions, SplitWeights
from mlstm_jax.corpora.parts import Piece
from mlstm_jax.corpora.rejects import Rejects, check_rejects_file
from mlstm_jax.corpora.sources import Source, find_sources, manifest_names
from mlstm_jax.data import corpus
from mlstm_jax.data.corpus import Corpus, Manifest, SourceManifest
from mlstm_jax.errors import UserError, note, require
from mlstm_jax.fields import public, require_kind
from mlstm_jax.options import SPLITS, SplitName
from mlstm_jax.output import atomic_directory, remove_leftovers, temporary_folder
from mlstm_jax.terminal import ProgressLine

Sources = str | Path | Sequence[str | Path]

_LARGE: SplitWeights = (1000, 1, 1)  # Paper: of 40 GB
_SMALL: SplitWeights = (20, 1, 1)
_LEAST_LARGE = 100_000  # documents, of which the large split gives 100 to valid and to test
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
    splits: dict[SplitName, list[str]] = {}  # if they are given
    if isinstance(sources, Mapping):
        splits = {split: _names_of(of_split) for split, of_split in sources.items()}
        names = list(chain(*splits.values()))
    else:
        names = _names_of(sources)
    if not names:
        raise UserError("no source given; name text files, or pydoc:")
    # So that the temporary folder goes next to it, even for "." or a link; and the corpus replaces
    # the folder, so "." would still be the old one.
    out = Path(os.path.realpath(out))
    temporary_of = _temporary_of(out, options.temp_dir)
    if splits:
        _require_given(splits, options)
    remove_leftovers(out)  # may restore an old corpus
    writer.check_out(out, overwrite)
    rejects_file = out.with_name(f"{out.name}.rejects.jsonl")
    written = (out, rejects_file)
    given = _given_splits(splits, without=written)
    every = list(chain(*given.values())) if given else find_sources(names, without=written)
    check_rejects_file(rejects_file)
    remove_leftovers(temporary_of)
    writer.check_disk(every, out, temporary_of)
    recipe = Recipe(
        text_column=options.text_column,
        rating_column=options.rating_column,
        document=options.document,
        cleaning=options.clean,
        dedupe=options.dedupe or ("none" if given else "normalized"),
        seed=options.seed,
        quoting=options.quoting,
        delimiter=options.delimiter,
    )
    with atomic_directory(out, lambda: writer.check_out(out, overwrite)) as folder:
        with temporary_folder(temporary_of) as scratch:
            job = Job(options, recipe, Rejects(rejects_file), scratch, show_progress)
            with _gathered(every, given, job) as gathered:
                manifest = _write(gathered, folder, job)
        with writer.durable(folder / corpus.MANIFEST) as file:
            file.write(manifest.to_json().encode())
    job.rejects.write()
    for text in job.rejects.notes():
        note(text)
    return Corpus(out, manifest)


def _names_of(sources: Sources) -> list[str]:
    """The names of one or several sources; UserError if they are no names."""
    is_table = hasattr(sources, "columns") or hasattr(sources, "dtype")
    require(not is_table, "sources", type(sources).__name__, "files; write the texts to one")
    names = [sources] if isinstance(sources, (str, Path)) else list(sources)
    for name in names:
        require_kind("sources", name, str | Path)
    return list(map(str, names))


def _temporary_of(out: Path, temp_dir: Path | None) -> Path:
    """The path whose `temporary_folder` has the temporary files; UserError if not writable."""
    if not temp_dir:
        return out
    folder = Path(os.path.realpath(temp_dir))
    is_writable = os.path.isdir(folder) and os.access(folder, os.W_OK)
    require(is_writable, "temp_dir", str(temp_dir), "a writable folder")
    return folder / out.name


def usual_split(documents: int) -> SplitWeights:
    """The split of this number of distinct documents if none is given."""
    return _LARGE if documents >= _LEAST_LARGE else _SMALL


def _require_given(splits: Collection[str], options: PrepareOptions) -> None:
    """Raise UserError unless the options suit given splits."""
    for name in splits:
        require(name in SPLITS, "split", name, f"one of {', '.join(SPLITS)}")
    for option in ("split", "dedupe", "seed", "engine"):
        value = getattr(options, option)
        is_unset = value == getattr(DEFAULTS, option)
        if not is_unset and value != "none":  # With `dedupe` none, nothing changes either.
            raise UserError(f"`{option}` cannot be used with given splits: they stay as they are.")


def _given_splits(
    splits: Mapping[SplitName, Sequence[str]], without: Sequence[Path]
) -> dict[SplitName, list[Source]]:
    """The sources of each split that is given; UserError if two have a file in common."""
    split_of: dict[tuple[str, ...], str] = {}
    found = {}
    for split in _ORDER:
        if split not in splits:
            continue
        found[split] = find_sources(splits[split], without)
        for source in found[split]:
            other = split_of.setdefault(source.place, split)
            if other != split:
                raise UserError(
                    f"{source} is in both `{other}` and `{split}`, so the score would say nothing "
                    "about new text; use it in one split only."
                )
    return found


def _gathered(
    every: Sequence[Source], given: Mapping[SplitName, Sequence[Source]], job: Job
) -> AbstractContextManager[SortedDocuments]:
    if given:
        return _read_given_splits(given, job)
    if job.options.engine == "beam":
        return beam.sort_with_beam(every, job)
    return local.sort_here(every, job)


@contextmanager
def _read_given_splits(
    sources: Mapping[SplitName, Sequence[Source]], job: Job
) -> Iterator[SortedDocuments]:
    """Read every split into a file of pieces, and yield what to write, in the order of splits."""
    recipe = job.recipe
    total = sum(source.size for source in chain(*sources.values()))
    counts = []
    sizes: dict[str, int] = dict.fromkeys(sources, 0)
    pieces = 0
    with (job.scratch / "pieces").open("w+b") as file:
        with ProgressLine("read", total, of_bytes=True, shown=job.show_progress) as line:
            for split, split_sources in sources.items():
                for source in split_sources:
                    one = SourceCounts(source)
                    documents = one.read(recipe, job.rejects.add, line.advance)
                    if recipe.cleaning == "none" and source.format.parser == "text":
                        documents = one.read_raw(recipe.document or "line", line.advance)
                    for _, piece in parts.distributed(documents, recipe, 1):
                        with output.write_errors(job.scratch):
                            pickle.dump(piece, file)
                        pieces += 1
                    counts.append(one)
                    sizes[split] += one.documents
        file.seek(0)
        in_order = (pickle.load(file) for _ in range(pieces))
        yield SortedDocuments(counts, sum(sizes.values()), in_order, sizes)


def _write(gathered: SortedDocuments, folder: Path, job: Job) -> Manifest:
    recipe = job.recipe
    manifests = []
    names = manifest_names([one.source for one in gathered.counts])
    for name, one in zip(names, gathered.counts, strict=True):
        if not one.documents:
            raise UserError(f"{one.source}: no text is left after cleaning; leave it out.")
        manifests.append(SourceManifest(name, one.documents, one.without_text, one.blank))
    with_text = sum(source.documents for source in manifests)
    without_text = sum(source.without_text for source in manifests)
    blank = sum(source.blank for source in manifests)
    records = with_text + without_text + blank
    is_rated = any(source.is_rated for source in gathered.counts)
    job.rejects.check(records + len(job.rejects), job.options.max_reject_fraction)
    if recipe.rating_column is not None and not is_rated:
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
    pieces = writer.Pieces(_shown(gathered, job.show_progress))
    splits = {}
    for name in _ORDER:
        size = sizes.get(name, 0)
        splits[name] = writer.write_split(folder, name, pieces.take(size), size, is_rated)
    if next(pieces.take(1), None):
        raise RuntimeError("received more documents than were counted")
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
        rejected=dict(sorted(job.rejects.counts.items())),
    )


def _shown(gathered: SortedDocuments, show_progress: bool) -> Iterator[Piece]:
    with ProgressLine("write", gathered.documents, status="documents", shown=show_progress) as line:
        for piece in gathered.in_order:
            yield piece
            line.advance(len(piece.rows))


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
