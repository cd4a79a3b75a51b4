"""Functions on corpora, which need no JAX: prepare, inspect."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlstm_jax.api.arguments import public
from mlstm_jax.corpora.inspect import summarise
from mlstm_jax.corpora.options import PrepareOptions
from mlstm_jax.corpora.prepare import prepare as run_prepare
from mlstm_jax.corpora.writer import resolved
from mlstm_jax.data.corpus import Corpus, SplitName, open_corpus
from mlstm_jax.errors import UserError
from mlstm_jax.fields import Count

Sources = str | Path | Sequence[str | Path]


@public
def prepare(
    sources: Sources | Mapping[SplitName, Sources],
    out: str | Path,
    options: PrepareOptions | None = None,
    *,
    overwrite: bool = False,
    show_progress: bool = False,
) -> Corpus:
    """Create a corpus from text files: read, clean, deduplicate, shuffle and split them.

    Args:
        sources: one or several files, folders or patterns; or a dict of them by split, to use
            existing splits.
        out: the corpus folder; it is complete or absent.
        options: how to make the corpus; unset: the defaults of `PrepareOptions`.
        overwrite: replace an existing corpus.
        show_progress: on standard error.

    Raises:
        ValueError: a source, `out` or an option cannot be used.
        OSError: the corpus cannot be written.
    """
    if type(sources).__module__.partition(".")[0] in ("pandas", "polars", "numpy"):
        raise UserError(
            f"sources is a {type(sources).__name__}, but `prepare` reads files: write it to one, "
            'such as with df.to_json("texts.jsonl", orient="records", lines=True)'
        )
    given = (
        {split: _names(some) for split, some in sources.items()}
        if isinstance(sources, Mapping)
        else _names(sources)
    )
    # The corpus replaces the folder, so "." would still be the old one.
    out = resolved("out", Path(out))
    run_prepare(
        given, out, options or PrepareOptions(), overwrite=overwrite, show_progress=show_progress
    )
    return open_corpus(out)


def _names(sources: Sources) -> list[str]:
    names = [sources] if isinstance(sources, (str, Path)) else list(sources)
    for name in names:
        if not isinstance(name, (str, Path)):
            raise UserError(f"sources: {name!r:.80} is not the path of a file, folder or pattern.")
    return [str(name) for name in names]


@public
def inspect(
    corpus: str | Path,
    *,
    verify: bool = False,
    batch: Count = 128,
    window: Count = 256,
    samples: int = 3,
) -> dict[str, Any]:
    """Describe a corpus: counts, lengths, bytes, ratings, samples, steps per epoch.

    Args:
        corpus: corpus folder, created by `prepare`.
        verify: recompute the checksums, and fail if one differs.
        batch: rows per training step, to count the steps of an epoch.
        window: bytes per row and step, for the same count.
        samples: documents to show.
    """
    opened = open_corpus(Path(corpus), verify=verify)
    report = summarise(opened, batch=batch, window=window, samples=max(0, samples))
    if verify:
        report["checksums"] = "all agree"
    return report
