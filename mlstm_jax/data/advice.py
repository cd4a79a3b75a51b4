"""Notes for the user on a new corpus, each with what to do about it."""

from collections.abc import Iterator, Sequence

from mlstm_jax.data import summary
from mlstm_jax.data.corpus import Corpus, Manifest
from mlstm_jax.data.documents import Unit
from mlstm_jax.data.markup import markup_share
from mlstm_jax.data.sources import passed_over

# With fewer bytes, bits per character depend too much on the choice of documents.
_LEAST_SCORED = 50_000
# Amazon reviews have 0.0008.
_MUCH_MARKUP = 0.1
_MOST_NAMED = 5
_LINES = (".txt", ".txt.gz")
# Smallest weight of the train split, each other being 1: most of the text is for training.
_LEAST_TRAINED = 8


def advice(made: Corpus, sources: Sequence[str], document: Unit | None) -> Iterator[str]:
    """Yield notes on a corpus, one line each; often there are none.

    Args:
        made: the corpus.
        sources: its sources, as passed to `find_sources`.
        document: the requested unit of a document in a text file; None: no request.

    Raises:
        UserError: a split's files do not match the manifest.
    """
    manifest = made.manifest
    if manifest.rejected:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in manifest.rejected.items())
        yield f"skipped, and listed in {made.path}.rejects.jsonl: {counts}."
        if any("gzip" in kind for kind in manifest.rejected):
            yield "the rest of a damaged gzip file is lost; fetch or create the file again."
    train = made.split("train")
    share = markup_share(train)
    if share >= _MUCH_MARKUP:
        yield (
            f"{share:.0%} of the train split's bytes are in tags such as <p>, so it looks like "
            "HTML or XML; if that is not intended, extract the text first."
        )
    others = passed_over(sources, without=(made.path.resolve(),))
    if others:
        names = ", ".join(path.name for path in others[:_MOST_NAMED])
        yield (
            f"{len(others):,} file(s) in the folders are of an unknown kind and were not read: "
            f"{names}{', ...' if len(others) > _MOST_NAMED else ''}; if one is text, rename it to "
            "end in .txt."
        )
    of_lines = any(source.name.endswith(_LINES) for source in manifest.sources)
    is_cut = document is None and manifest.split is not None and of_lines
    median = summary.wrapped(train) if is_cut else 0
    if median:
        yield (
            f"half of the documents have at most {median:,} bytes, and most end in mid-sentence. "
            "Each line of a text file is a document: if the lines are wrapped, use --document "
            "paragraph or file."
        )
    yield from _too_small(manifest)


def _too_small(manifest: Manifest) -> Iterator[str]:
    """Yield a note on each split that is too small to score, with how to enlarge it."""
    sizes = {name: split.bytes for name, split in manifest.splits.items()}
    _, valid, test = (int(weight > 0) for weight in manifest.split or (1, 1, 1))
    # A quarter more, because documents differ in length.
    train = int(sum(sizes.values()) / (1.25 * _LEAST_SCORED)) - valid - test
    if manifest.split is None:
        remedy = f"a good score needs {_LEAST_SCORED:,}."
    elif train >= _LEAST_TRAINED:
        share = f"one in {train + valid + test} documents"
        remedy = f"--split {train},{valid},{test} gives {share} to each, enough for good scores."
    else:
        remedy = f"a good score needs {_LEAST_SCORED:,}, so add more text."
    for name in ("valid", "test"):
        if 0 < sizes[name] < _LEAST_SCORED:
            yield (
                f"the {name} split has only {sizes[name]:,} bytes, so its scores will be noisy; "
                f"{remedy}"
            )
