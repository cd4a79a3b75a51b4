"""The share of a text that looks like HTML or XML, whose tags a model would learn."""

import re

from mlstm_jax.data.corpus import Split

_SAMPLE = 1 << 20  # bytes, from documents in random order
# Without newlines, to stay within a document: in a corpus of reviews each begins with one.
_TAG = re.compile(rb"<[A-Za-z/!?][^<>\n]{0,1000}>")


def markup_share(split: Split) -> float:
    """Return the share of a split's bytes in tags, from 0 to 1, among its first million."""
    sample = split.bytes[:_SAMPLE].tobytes()
    return sum(len(tag[0]) for tag in _TAG.finditer(sample)) / max(1, len(sample))
