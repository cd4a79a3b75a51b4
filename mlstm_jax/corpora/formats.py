"""The formats of files of texts: how each is named, and what reads it."""

from typing import Literal, NamedTuple

from mlstm_jax.corpora.compression import COMPRESSIONS


class Format(NamedTuple):
    """A format of texts, of which `_records` in readers.py makes records."""

    suffix: str  # of a file, or the beginning of the name of another source
    reader: Literal["json", "jsonl", "parquet", "pydoc", "table", "text", "tfds"]
    delimiter: str = ""  # the usual one, between the fields of a table
    has_columns: bool = True  # so that a record may have a label
    has_lines: bool = True  # so that it may be compressed


PYDOC = Format("pydoc:", "pydoc", has_columns=False)
TFDS = Format("tfds:", "tfds", has_lines=False)
UNKNOWN = Format("", "text")  # of a file that is refused
_OF_FILES = (
    Format(".json", "json"),
    Format(".jsonl", "jsonl"),
    Format(".csv", "table", delimiter=","),
    Format(".tsv", "table", delimiter="\t"),
    Format(".txt", "text", has_columns=False),
    Format(".parquet", "parquet", has_lines=False),
)
FORMATS = {one.suffix: one for one in _OF_FILES}


def known_formats() -> str:
    """The suffixes of files that can be read, as help and messages list them."""
    lines = ", ".join(one.suffix for one in _OF_FILES if one.has_lines)
    compressed = " or ".join(one.suffix for one in COMPRESSIONS)
    others = " and ".join(one.suffix for one in _OF_FILES if not one.has_lines)
    return f"{lines}, each also with {compressed} after it, and {others}"
