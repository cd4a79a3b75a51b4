"""A corpus of texts in memory, each with a rating."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from mlstm_jax.corpora.documents import CleanDocument, Recipe
from mlstm_jax.corpora.parts import Piece, distributed, in_order, joined
from mlstm_jax.corpora.writer import check_out, durable, write_split
from mlstm_jax.data import corpus
from mlstm_jax.data.corpus import FORMAT_VERSION, Manifest, SplitManifest
from mlstm_jax.errors import UserError
from mlstm_jax.options import SPLITS, Cleaning, SplitName
from mlstm_jax.output import atomic_directory

_RECIPE = Recipe(dedupe="none")


def write_rated(
    out: Path, documents: Mapping[SplitName, list[CleanDocument]], cleaning: Cleaning
) -> None:
    """Write a corpus of some splits, by content, duplicates kept: always the same bytes.

    UserError if `out` is a corpus of other documents: a run that began with them would go on with
    these.
    """
    splits: dict[str, SplitManifest] = {}
    with atomic_directory(out, lambda: check_out(out, overwrite=True)) as folder:
        for name in SPLITS:
            piece = _sorted(documents.get(name, []))
            splits[name] = write_split(folder, name, [piece], len(piece.rows), rated=True)
        train, valid, test = (splits[name].documents for name in SPLITS)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            seed=0,
            cleaning=cleaning,
            split=(train, valid, test),
            sources=(),
            records=train + valid + test,
            without_text=0,
            blank=0,
            duplicates=0,
            splits=splits,
        )
        with durable(folder / corpus.MANIFEST) as file:
            file.write(manifest.to_json().encode())
        written = corpus.open_corpus(folder)
        if out.exists() and corpus.open_corpus(out).identity != written.identity:
            raise UserError(
                f"{out} was made from different texts or labels; resume with the same files, or "
                "choose another folder with `out`."
            )


def _sorted(documents: Iterable[CleanDocument]) -> Piece:
    """The documents in the order of a corpus; all are in memory."""
    pieces = distributed(documents, _RECIPE, 1)
    return in_order(joined(piece for _, piece in pieces), _RECIPE)
