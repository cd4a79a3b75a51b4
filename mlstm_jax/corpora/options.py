"""The options of `prepare`, and which of them go together."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mlstm_jax.corpora.rejects import MAX_REJECT_FRACTION
from mlstm_jax.errors import require
from mlstm_jax.fields import Between
from mlstm_jax.options import Cleaning, CsvOptions, Dedupe, Unit

SplitWeights = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(CsvOptions):
    """How to make a corpus.

    Attributes:
        text_column: column or field of the text; unset: the first non-null of text, reviewText,
            review_body, sentence and content.
        rating_column: column or field of a rating to keep; unset: the first non-null of rating,
            overall, star_rating and stars.
        document: what one document of a text file is; unset: a line.
        delimiter: the character between the fields of a table such as .csv, for example ; or \\t, a
            tab; unset: as its suffix says, or another one with which the header has a text column.
        quoting: whether the fields of a table may be in quotes: yes or no; unset: yes unless tabs
            separate them, and with tabs if the file shows it.
        split: weights of train, valid and test in documents: 8,1,1 or 0.8,0.1,0.1; 0,0,1
            makes only a test set. Valid and test get at least one document each unless their
            weight is 0. Unset: 20,1,1, or 1000,1,1 from 100,000 distinct documents on.
        seed: seed of the document order, which depends only on the seed and the documents.
        clean: radford: unescape HTML (tags stay), newlines to spaces, strip, pad; none: keep all.
        dedupe: keep one of several equal documents. normalized: ignore differences in case
            and white space; exact: compare bytes; none: keep all. Paper: duplicates removed.
            Unset: normalized, or none if the splits are given.
        workers: processes that read, at most one for a source and for 32 MB; unset: all cores.
        temp_dir: folder for temporary files, twice the unpacked text; unset: next to the corpus.
        max_reject_fraction: largest fraction of unreadable records, which are listed in
            OUT.rejects.jsonl; above it, no corpus is written.
        engine: beam: run as an Apache Beam pipeline, for clusters; the corpus is the same.
        beam_options: options for Beam and its runner, such as "--runner=FlinkRunner"; in a command
            line, after a =.

    Examples:
        >>> mlstm.PrepareOptions(split=(8, 1, 1)).clean
        'radford'
    """

    text_column: str | None = None
    rating_column: str | None = None
    document: Unit | None = None
    split: SplitWeights | None = None
    seed: int = 0
    clean: Cleaning = "radford"
    dedupe: Dedupe | None = None
    workers: Annotated[int, Between(1, 256)] | None = None
    temp_dir: Path | None = None
    max_reject_fraction: Annotated[float, Between(0, 1)] = MAX_REJECT_FRACTION
    engine: Literal["local", "beam"] = "local"
    beam_options: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.temp_dir, str):
            object.__setattr__(self, "temp_dir", Path(self.temp_dir))
        super().__post_init__()
        split = self.split or (20, 1, 1)
        is_split = 0 < sum(split) < math.inf and min(split) >= 0
        needs_beam = self.engine != "beam" and self.beam_options
        weights = "three weights, such as 8,1,1 or 0,0,1, none negative, at least one above 0"
        require(is_split, "split", self.split, weights)
        require(not needs_beam, "beam_options", self.beam_options, "empty without `engine` beam")


DEFAULTS = PrepareOptions()
