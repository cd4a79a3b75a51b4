"""Commands for corpora: prepare, inspect."""

import json
import signal
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from mlstm_jax.corpora import inspect as summary
from mlstm_jax.corpora.inspect import advice
from mlstm_jax.corpora.prepare import PrepareOptions
from mlstm_jax.corpora.prepare import prepare as run_prepare
from mlstm_jax.data import corpus as corpora
from mlstm_jax.data.corpus import SplitName, format_corpus, open_corpus
from mlstm_jax.errors import UserError
from mlstm_jax.guard import interruptible
from mlstm_jax.terminal import show

_OfSplit = arg(metavar="SOURCE [SOURCE ...]", help_behavior_hint="")


def prepare(
    sources: Annotated[list[str], Positional, arg(metavar="[SOURCE ...]", help_behavior_hint="")],
    out: Path,
    train: Annotated[tuple[str, ...], _OfSplit] = (),
    valid: Annotated[tuple[str, ...], _OfSplit] = (),
    test: Annotated[tuple[str, ...], _OfSplit] = (),
    corpus: OmitArgPrefixes[PrepareOptions] = PrepareOptions(),  # noqa: B008
    overwrite: bool = False,
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
        corpus: How to make the corpus.
        overwrite: replace an existing corpus.
    """
    splits: dict[SplitName, tuple[str, ...]] = {"train": train, "valid": valid, "test": test}
    given = {name: some for name, some in splits.items() if some}
    if given and sources:
        raise UserError(
            f"{sources[0]}: belongs to no split; name it after --train, --valid or --test, or use "
            "none of these options."
        )
    sources = sources or [name for some in given.values() for name in some]

    with interruptible(signal.SIGINT, signal.SIGTERM, note=lambda: "no temporary files are left"):
        run_prepare(given or sources, out, corpus, overwrite=overwrite, show_progress=True)
    made = open_corpus(out)
    show(format_corpus(made))
    for note in advice(made, sources, corpus.document):
        show(f"note: {note}")


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
