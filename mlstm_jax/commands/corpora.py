"""Commands on corpora: prepare, inspect."""

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
    """Make a corpus folder from files of text.

    Args:
        sources: .json, .jsonl, .csv, .tsv, .txt and .fasta files, each also .gz, and .parquet;
            folders and patterns of them; tfds:NAME[/CONFIG]:SPLIT; `pydoc:` is Python's docs.
        out: folder to write; it appears whole or not at all.
        train: sources of the train split, where a corpus comes with its splits; they are kept as
            they are, all documents in their order, and with --clean none byte for byte.
        valid: those of the validation split.
        test: those of the test split.
        text_column: column or field of the text; unset: text, reviewText, review_body, sentence or
            content.
        rating_column: that of a rating to keep; unset: rating, overall, star_rating or stars.
        document: what one document of a text file is; unset: a line.
        split: documents in train, valid and test, as weights; 0,0,1 is a test set alone; unset:
            1000,1,1, as in the paper.
        seed: of the order of the documents, which depends on it and on their content alone.
        clean: radford: unescape HTML, newlines to spaces, strip, pad; none: the text as it is;
            protein: sequences of amino acids, as UniRep reads them.
        dedupe: of documents of the same text one is kept. normalized: the same but for case and
            white space; exact: to the byte; none: all are kept. Paper: removed. Unset: normalized,
            but none where --train, --valid or --test is given.
        overwrite: replace the corpus that is there.
        memory_limit: of DuckDB, which reads and sorts; some hundred MB come on top.
        threads: of DuckDB; unset: all cores.
        temp_dir: folder for temporary files, about twice the text; unset: beside the corpus.
        max_reject_fraction: records that may be unreadable; they are in OUT.rejects.jsonl. With
            more of them nothing is made.
        engine: beam: as an Apache Beam pipeline, for clusters; the corpus is the same.
        beam_options: options of Beam and its runner, such as "--runner=FlinkRunner".
    """
    import shlex

    splits: dict[SplitName, tuple[str, ...]] = {"train": train, "valid": valid, "test": test}
    given = {name: some for name, some in splits.items() if some}
    if given and sources:
        raise UserError(
            f"{sources[0]}: of which split is it? Name it after --train, --valid or --test, or "
            "name all files without these."
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
            text_field=text_column,
            rating_field=rating_column,
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
            f"--split {text!r} is not three whole numbers, train, valid and test: 1000,1,1"
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
    """Show what is in a corpus folder: counts, lengths, bytes, ratings, samples, an epoch's steps.

    Args:
        corpus: folder made by `prepare`.
        verify: recompute the checksums, and fail if one differs.
        batch: rows of the step whose epoch is told.
        window: its bytes.
        samples: documents to show.
        json_: write all of it, and the count of every byte, as JSON instead.
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
