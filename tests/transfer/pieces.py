"""The texts that `generate` yields in pieces."""

from collections.abc import Iterable


def whole(pieces: Iterable[list[bytes]]) -> list[bytes]:
    """The text of each sample."""
    return [b"".join(sample) for sample in zip(*pieces, strict=True)]
