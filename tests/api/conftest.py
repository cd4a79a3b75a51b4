"""The small trained model of tests/transfer."""

from tests.transfer.conftest import model, run

__all__ = ["model", "run"]
