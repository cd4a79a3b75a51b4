"""Pauses as short as those of the tests of training."""

from tests.training.conftest import collected, short_pauses

__all__ = ["collected", "short_pauses"]
