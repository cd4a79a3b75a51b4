"""Commands on corpora: prepare, inspect."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from mlstm_jax.errors import UserError
from mlstm_jax.interruption import interruptible
from mlstm_jax.terminal import show

if TYPE_CHECKING:
    from mlstm_jax.data.corpus import Manifest, SplitName

# Below this, bits per character hang on which few documents they are.
_LEAST_SCORED = 50_000
# Amazon's reviews have 0.0008.
_MUCH_MARKUP = 0.1
_MOST_NAMED = 5
_LINES = (".txt", ".txt.gz")
# Of the weight of the train split beside the others' 1: more of the text is to train on.
_LEAST_TRAINED = 8


_OfSplit = arg(metavar="SOURCE [SOURCE ...]", help_behavior_hint="")


def prepare(
    sources: Annotated[list[str], Positional, arg(metavar="[SOURCE ...]", help_behavior_hint="")],
    out: Path,
    train: Annotated[list[str], _OfSplit] = [],  # noqa: B006
    valid: Annotated[list[str], _OfSplit] = [],  # noqa: B006
    test: Annotated[list[str], _OfSplit] = [],  # noqa: B006
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
        sources: .json, .jsonl, .csv, .tsv, .txt files, each also .gz, and .parquet; folders and
            patterns of them; tfds:NAME[/CONFIG]:SPLIT; `pydoc:` is Python's docs.
        out: folder to write; it appears whole or not at all.
        train: sources of the train split, where a corpus comes with its splits; they are kept as
            they are, all documents in their order, and with --clean none byte for byte.
        valid: those of the validation split.
        test: those of the test split.
        text_column: column or field of the text; unset: text, reviewText, review_body, sentence or
            content.
        rating_column: that of a rating to keep; unset: rating, overall, star_rating or stars.
        document: what one document of a text file is; unset: a line.
        split: documents in train, valid and test, as weights; 0,0,1 is a test
            set alone; unset: 1000,1,1, as in the paper.
        seed: of the order of the documents, which hangs on it and on their content alone.
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

    splits: dict[SplitName, list[str]] = {"train": train, "valid": valid, "test": test}
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
        from mlstm_jax.data import corpus, summary
        from mlstm_jax.data.markup import markup_share
        from mlstm_jax.data.prepare import prepare as run_prepare
        from mlstm_jax.data.sources import passed_over

        manifest = run_prepare(
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
    show(corpus.describe(made))
    if manifest.rejected:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in manifest.rejected.items())
        show(f"note: left out, and listed in {out}.rejects.jsonl: {counts}.")
        if any("gzip" in kind for kind in manifest.rejected):
            show("note: of a gzip that is cut short the rest is missing; fetch it again.")
    share = markup_share(made.split("train"))
    if share >= _MUCH_MARKUP:
        show(
            f"note: {share:.0%} of the train split's bytes are in tags such as <p>, so it looks "
            "like HTML or XML; if that is not meant, take the text out of it first."
        )
    others = passed_over(sources, without=(out.resolve(),))
    if others:
        names = ", ".join(path.name for path in others[:_MOST_NAMED])
        show(
            f"note: {len(others):,} file(s) in the folders are of no known kind and were not read: "
            f"{names}{', ...' if len(others) > _MOST_NAMED else ''}; if one is text, rename it to "
            "end in .txt."
        )
    of_lines = any(source.name.endswith(_LINES) for source in manifest.sources)
    if (
        document is None
        and not given
        and of_lines
        and (median := summary.wrapped(made.split("train")))
    ):
        show(
            f"note: half of the documents have at most {median:,} bytes, and most end within a "
            "sentence. A document is a line of a text file: if the lines are wrapped, --document "
            "paragraph or file keeps together what belongs together."
        )
    for note in _rough(manifest):
        show(f"note: {note}")


def _rough(manifest: "Manifest") -> list[str]:
    """Return a note on each split that is too small to score, with what makes it large enough."""
    sizes = {name: split.bytes for name, split in manifest.splits.items()}
    _, valid, test = (min(weight, 1) for weight in manifest.split or (1, 1, 1))
    # A quarter more, as documents differ in length.
    train = int(sum(sizes.values()) / (1.25 * _LEAST_SCORED)) - valid - test
    if manifest.split is None:
        advice = f"a good score needs {_LEAST_SCORED:,}."
    elif train >= _LEAST_TRAINED:
        share = f"one in {train + valid + test} documents"
        advice = f"--split {train},{valid},{test} gives {share} to each, enough for a good score."
    else:
        advice = f"a good score needs {_LEAST_SCORED:,}, so give more text."
    return [
        f"the {name} split has only {sizes[name]:,} bytes, so its scores will be rough; {advice}"
        for name in ("valid", "test")
        if 0 < sizes[name] < _LEAST_SCORED
    ]


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
    show(f"{corpora.describe(opened)}\n\n{summary.describe(made)}")
    if verify:
        show("checksums: all agree")
