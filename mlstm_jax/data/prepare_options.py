"""How to make a corpus: one declaration for Python and for the command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlstm_jax.data.documents import Cleaning, Dedupe, Quoting, Unit

Engine = Literal["duckdb", "beam"]
SplitWeights = tuple[float, float, float]

SPLIT: SplitWeights = (1000, 1, 1)
MAX_REJECT_FRACTION = 0.001


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """How to make a corpus.

    Attributes:
        text_column: column or field of the text; unset: the first non-null of text, reviewText,
            review_body, sentence and content.
        rating_column: column or field of a rating to keep; unset: the first non-null of rating,
            overall, star_rating and stars.
        document: what one document of a text file is; unset: a line.
        quoting: whether the fields of .csv and .tsv files may be in quotes: yes or no; unset: yes
            if commas separate them, and with tabs if the file shows it.
        split: weights of train, valid and test, in documents, such as 8,1,1 or 0.8,0.1,0.1; 0,0,1
            makes only a test set. Valid and test get at least one document each unless their
            weight is 0.
        seed: seed of the document order, which depends only on the seed and the documents.
        clean: radford: unescape HTML, newlines to spaces, strip, pad; none: keep the text;
            protein: read amino acid sequences as UniRep does.
        dedupe: keep one of several equal documents. normalized: ignore differences in case
            and white space; exact: compare bytes; none: keep all. Paper: duplicates removed.
            Unset: normalized, or none if the splits are given.
        memory_limit: limit for DuckDB, which reads and sorts; add a few hundred MB for the rest.
        threads: threads of DuckDB; unset: all cores.
        temp_dir: folder for temporary files, about twice the text; unset: next to the corpus.
        max_reject_fraction: largest fraction of unreadable records, which are listed in
            OUT.rejects.jsonl; above it, no corpus is written.
        engine: beam: run as an Apache Beam pipeline, for clusters; the corpus is the same.
        beam_options: options for Beam and its runner, such as "--runner=FlinkRunner".
    """

    text_column: str | None = None
    rating_column: str | None = None
    document: Unit | None = None
    quoting: Quoting | None = None
    split: SplitWeights = SPLIT
    seed: int = 0
    clean: Cleaning = "radford"
    dedupe: Dedupe | None = None
    memory_limit: str = "4GB"
    threads: int | None = None
    temp_dir: Path | None = None
    max_reject_fraction: float = MAX_REJECT_FRACTION
    engine: Engine = "duckdb"
    beam_options: str = ""
