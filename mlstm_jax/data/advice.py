"""What a person should know of a corpus that was just made, and what to do about it."""

from collections.abc import Iterator, Sequence

from mlstm_jax.data import summary
from mlstm_jax.data.corpus import Corpus, Manifest
from mlstm_jax.data.documents import Unit
from mlstm_jax.data.markup import markup_share
from mlstm_jax.data.sources import passed_over

# With fewer bytes, bits per character depend on which few documents they are.
_LEAST_SCORED = 50_000
# Amazon's reviews have 0.0008.
_MUCH_MARKUP = 0.1
_MOST_NAMED = 5
_LINES = (".txt", ".txt.gz")
# The least weight of the train split beside 1 of the others: most of the text is to train on.
_LEAST_TRAINED = 8


def advice(made: Corpus, sources: Sequence[str], document: Unit | None) -> Iterator[str]:
    """Yield notes on a corpus, each a line; often there is none.

    Args:
        made: the corpus.
        sources: what it was made from, as `find_sources` takes them.
        document: what one document of a text file was asked to be; None: nothing was asked.

    Raises:
        UserError: a split's files are not what the manifest says.
    """
    manifest = made.manifest
    if manifest.rejected:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in manifest.rejected.items())
        yield f"left out, and listed in {made.path}.rejects.jsonl: {counts}."
        if any("gzip" in kind for kind in manifest.rejected):
            yield "of a gzip that is cut short the rest is missing; fetch it again."
    train = made.split("train")
    share = markup_share(train)
    if share >= _MUCH_MARKUP:
        yield (
            f"{share:.0%} of the train split's bytes are in tags such as <p>, so it looks like "
            "HTML or XML; if that is not meant, take the text out of it first."
        )
    others = passed_over(sources, without=(made.path.resolve(),))
    if others:
        names = ", ".join(path.name for path in others[:_MOST_NAMED])
        yield (
            f"{len(others):,} file(s) in the folders are of no known kind and were not read: "
            f"{names}{', ...' if len(others) > _MOST_NAMED else ''}; if one is text, rename it to "
            "end in .txt."
        )
    of_lines = any(source.name.endswith(_LINES) for source in manifest.sources)
    is_cut = document is None and manifest.split is not None and of_lines
    median = summary.wrapped(train) if is_cut else 0
    if median:
        yield (
            f"half of the documents have at most {median:,} bytes, and most end within a sentence. "
            "A document is a line of a text file: if the lines are wrapped, --document paragraph "
            "or file keeps together what belongs together."
        )
    yield from _too_small(manifest)


def _too_small(manifest: Manifest) -> Iterator[str]:
    """Yield a note on each split that is too small to score, with what makes it large enough."""
    sizes = {name: split.bytes for name, split in manifest.splits.items()}
    _, valid, test = (min(weight, 1) for weight in manifest.split or (1, 1, 1))
    # A quarter more, as documents differ in length.
    train = int(sum(sizes.values()) / (1.25 * _LEAST_SCORED)) - valid - test
    if manifest.split is None:
        remedy = f"a good score needs {_LEAST_SCORED:,}."
    elif train >= _LEAST_TRAINED:
        share = f"one in {train + valid + test} documents"
        remedy = f"--split {train},{valid},{test} gives {share} to each, enough for a good score."
    else:
        remedy = f"a good score needs {_LEAST_SCORED:,}, so give more text."
    for name in ("valid", "test"):
        if 0 < sizes[name] < _LEAST_SCORED:
            yield (
                f"the {name} split has only {sizes[name]:,} bytes, so its scores will be rough; "
                f"{remedy}"
            )
