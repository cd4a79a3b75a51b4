"""What these tests share with those of training."""

from tests.training.conftest import collected, short_pauses, undisturbed

__all__ = ["collected", "short_pauses", "undisturbed"]
