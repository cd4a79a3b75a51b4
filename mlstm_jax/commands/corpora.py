"""Commands for corpora: prepare, inspect."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from mlstm_jax.errors import UserError
from mlstm_jax.interruption import interruptible
from mlstm_jax.terminal import show

if TYPE_CHECKING:
    from mlstm_jax.data.corpus import SplitName

_OfSplit = arg(metavar="SOURCE [SOURCE ...]", help_behavior_hint="")


def prepare(
    sources: Annotated[list[str], Positional, arg(metavar="[SOURCE ...]", help_behavior_hint="")],
    out: Path,
    train: Annotated[tuple[str, ...], _OfSplit] = (),
    valid: Annotated[tuple[str, ...], _OfSplit] = (),
    test: Annotated[tuple[str, ...], _OfSplit] = (),
    text_column: str | None = None,
    rating_column: str | None = None,
    document: Literal["line", "paragraph", "file"] | None = None,
    split: str | None = None,
    seed: int = 0,
    clean: Literal["radford", "none", "protein"] = "radford",
    dedupe: Literal["exact", "normalized", "none"] | None = None,
    overwrite: bool = False,
    memory_limit: str = "4GB",
    threads: int | None = None,
    temp_dir: Path | None = None,
    max_reject_fraction: float = 0.001,
    engine: Literal["duckdb", "beam"] = "duckdb",
    beam_options: str = "",
) -> None:
    """Make a corpus folder from text files.

    Args:
        sources: .json, .jsonl, .csv, .tsv, .txt and .fasta files, each also .gz, and .parquet;
            folders and patterns of them; tfds:NAME[/CONFIG]:SPLIT; `pydoc:` for Python's docs.
        out: output folder; it is complete or absent.
        train: sources of the train split, if a corpus comes with its splits. All documents are
            kept in their order; with --clean none, byte for byte.
        valid: sources of the validation split.
        test: sources of the test split.
        text_column: column or field of the text; unset: the first non-null of text, reviewText,
            review_body, sentence and content.
        rating_column: column or field of a rating to keep; unset: the first non-null of rating,
            overall, star_rating and stars.
        document: what one document of a text file is; unset: a line.
        split: weights of train, valid and test, in documents; 0,0,1 makes only a test set; unset:
            1000,1,1, as in the paper.
        seed: seed of the document order, which depends only on the seed and the documents.
        clean: radford: unescape HTML, newlines to spaces, strip, pad; none: keep the text;
            protein: read amino acid sequences as UniRep does.
        dedupe: keep one of several equal documents. normalized: ignore differences in case
            and white space; exact: compare bytes; none: keep all. Paper: duplicates removed.
            Unset: normalized, or none with --train, --valid or --test.
        overwrite: replace an existing corpus.
        memory_limit: limit for DuckDB, which reads and sorts; add a few hundred MB for the rest.
        threads: threads of DuckDB; unset: all cores.
        temp_dir: folder for temporary files, about twice the text; unset: next to the corpus.
        max_reject_fraction: largest fraction of unreadable records, which are listed in
            OUT.rejects.jsonl; above it, no corpus is written.
        engine: beam: run as an Apache Beam pipeline, for clusters; the corpus is the same.
        beam_options: options for Beam and its runner, such as "--runner=FlinkRunner".
    """
    import shlex

    splits: dict[SplitName, tuple[str, ...]] = {"train": train, "valid": valid, "test": test}
    given = {name: some for name, some in splits.items() if some}
    if given and sources:
        raise UserError(
            f"{sources[0]}: belongs to no split; name it after --train, --valid or --test, or use "
            "none of these options."
        )
    sources = sources or [name for some in given.values() for name in some]

    try:
        options = shlex.split(beam_options)
    except ValueError as error:
        raise UserError(f"--beam-options {beam_options!r}: {error}.") from error
    with interruptible():
        from mlstm_jax.data import corpus
        from mlstm_jax.data.advice import advice
        from mlstm_jax.data.prepare import prepare as run_prepare

        run_prepare(
            given or sources,
            out,
            text_column=text_column,
            rating_column=rating_column,
            document=document,
            split=None if split is None else _split(split),
            seed=seed,
            cleaning=clean,
            dedupe=dedupe,
            overwrite=overwrite,
            progress=True,
            engine=engine,
            beam_options=options,
            memory_limit=memory_limit,
            threads=threads,
            temp_dir=temp_dir,
            max_reject_fraction=max_reject_fraction,
        )
    made = corpus.open_corpus(out)
    show(corpus.format_corpus(made))
    for note in advice(made, sources, document):
        show(f"note: {note}")


def _split(text: str) -> tuple[int, int, int]:
    try:
        train, valid, test = (int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--split {text!r} is not three whole numbers for train, valid and test: 1000,1,1"
        ) from None
    return train, valid, test


def inspect(
    corpus: Annotated[Path, Positional, arg(metavar="DIR")],
    verify: bool = False,
    batch: int = 128,
    window: int = 256,
    samples: int = 3,
    json_: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Show what is in a corpus folder: counts, lengths, bytes, ratings, samples, steps per epoch.

    Args:
        corpus: corpus folder, created by `prepare`.
        verify: recompute the checksums, and fail if one differs.
        batch: rows per training step, to count the steps of an epoch.
        window: bytes per row and step, for the same count.
        samples: documents to show.
        json_: write everything, and the count of every byte value, as JSON instead.
    """
    from mlstm_jax.data import corpus as corpora
    from mlstm_jax.data import summary

    for name, value in (("batch", batch), ("window", window)):
        if value < 1:
            raise UserError(f"--{name} is {value}, but it must be at least 1.")
    opened = corpora.open_corpus(corpus, verify=verify)
    made = summary.summarise(opened, batch=batch, window=window, samples=max(0, samples))
    if json_:
        print(json.dumps(made | ({"checksums": "all agree"} if verify else {}), indent=2))
        return
    show(f"{corpora.format_corpus(opened)}\n\n{summary.format_summary(made)}")
    if verify:
        show("checksums: all agree")
