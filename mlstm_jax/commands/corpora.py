"""Commands for corpora, and for what comes with the package: prepare, inspect, configs."""

import json
import sys
from pathlib import Path
from typing import Annotated, get_args

from tyro.conf import FlagCreatePairsOff, Positional, arg

from mlstm_jax import shipped
from mlstm_jax.commands import Flag, Flat
from mlstm_jax.corpora.options import DEFAULTS, PrepareOptions
from mlstm_jax.corpora.sources import FORMATS, Source, known_formats
from mlstm_jax.errors import UserError, did_you_mean, nearest
from mlstm_jax.guard import interruptible
from mlstm_jax.options import SplitName
from mlstm_jax.terminal import show

_Sources = Annotated[
    tuple[str, ...],
    Positional,
    arg(
        metavar="[SOURCE ...]",
        help=f"{known_formats()} files; folders and patterns of them; tfds:NAME[/CONFIG]:SPLIT; "
        "`pydoc:` for Python's docs.",
        help_behavior_hint="",
    ),
]
_OfSplit = Annotated[tuple[str, ...], arg(metavar="SOURCE ...", help_behavior_hint="")]

_UNIT = (
    "each line of a .txt file is a document; for prose or code: --document paragraph or file; "
    "--clean none keeps line breaks"
)

_HEADINGS: dict[shipped.Kind, str] = {
    "config": "configs, for train and plan",
    "sweep": "sweeps, for sweep",
    "machine": "machines, for plan --machine",
    "flags": 'flags for XLA on GPUs, as XLA_FLAGS="$(mlstm-jax configs NAME)"',
    "model": "models, wherever a RUN is expected; `mlstm-jax configs NAME` prints the card",
}


def prepare(
    sources: _Sources = (),
    *,
    out: Path,
    train: _OfSplit = (),
    valid: _OfSplit = (),
    test: _OfSplit = (),
    options: Flat[PrepareOptions] = DEFAULTS,
    overwrite: Flag = False,
) -> None:
    """Make a corpus folder from text files.

    Args:
        out: the corpus folder; it is complete or absent.
        train: sources of the train split, if a corpus comes with its splits. All documents are
            kept in their order; with --clean none, byte for byte.
        valid: sources of the validation split.
        test: sources of the test split.
        overwrite: replace an existing corpus.
    """
    from mlstm_jax.corpora.prepare import prepare as make_corpus

    splits: dict[SplitName, tuple[str, ...]] = {"train": train, "valid": valid, "test": test}
    given = {name: some for name, some in splits.items() if some}
    if given and sources:
        raise UserError(
            f"{sources[0]} is not assigned to a split; put it after --train, --valid or --test, or "
            "use none of the three."
        )
    with interruptible(note=lambda: "no temporary files are left"):
        made = make_corpus(given or sources, out, options, overwrite=overwrite, show_progress=True)
    show(str(made))
    formats = [Source(source.name).format for source in made.manifest.sources]
    if options.document is None and FORMATS[".txt"] in formats:
        show(f"\n{_UNIT}")


def inspect(
    corpus: Annotated[Path, Positional, arg(metavar="CORPUS")],
    verify: Flag = False,
    batch: int = 128,
    window: int = 256,
    samples: int = 3,
    json_: Annotated[bool, FlagCreatePairsOff, arg(name="json")] = False,
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
    from mlstm_jax.corpora.inspect import format_summary
    from mlstm_jax.corpora.inspect import inspect as summarise
    from mlstm_jax.data.corpus import open_corpus

    summary = summarise(corpus, verify=verify, batch=batch, window=window, samples=samples)
    if json_:
        print(json.dumps(summary, indent=2))
        return
    show(f"{open_corpus(corpus)}\n\n{format_summary(summary)}")
    if "checksums" in summary:
        show(f"checksums: {summary['checksums']}")


def configs(
    name: Annotated[str | None, Positional, arg(metavar="NAME")] = None,
) -> None:
    """List what comes with the package, configs to models; or print one of them.

    Commands accept these names wherever they expect such a file. To change a config, copy it:
    `mlstm-jax configs small_512 > mine.py`, `mlstm-jax train mine.py`.

    Args:
        name: the file to print; unset: list all.
    """
    known = shipped.files()
    if name is None:
        width = max(map(len, known))
        for kind in get_args(shipped.Kind):
            show(f"{_HEADINGS[kind]}:")
            for one, path in shipped.files(kind).items():
                show(f"  {one:<{width}}  {shipped.summary(path)}")
            show("")
        show("`mlstm-jax configs NAME` prints a file; `> mine.py` copies it, to be changed.")
        return
    if name not in known:
        near = did_you_mean(nearest(name, known))
        raise UserError(
            f"the package has no config, sweep, machine, flags or model {name!r}{near} "
            "`mlstm-jax configs` lists all names."
        )
    sys.stdout.write(known[name].read_text(encoding="utf-8"))
