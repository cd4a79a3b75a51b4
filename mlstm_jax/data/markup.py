"""How much of a text looks like markup: HTML or XML, of which a model would learn the tags."""

import re

from mlstm_jax.data.corpus import Split

_SAMPLE = 1 << 20  # bytes; of documents in a random order
# No longer than within a document, which in a corpus of reviews begins with a newline.
_TAG = re.compile(rb"<[A-Za-z/!?][^<>\n]{0,1000}>")


def markup_share(split: Split) -> float:
    """Return the share of a split's bytes that are in tags, from 0 to 1, by its first million."""
    sample = split.bytes[:_SAMPLE].tobytes()
    return sum(len(tag[0]) for tag in _TAG.finditer(sample)) / max(1, len(sample))
