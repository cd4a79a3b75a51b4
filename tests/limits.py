"""Limits of this process, as `ulimit` sets them."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    """Set a soft limit, such as RLIMIT_FSIZE, within."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
