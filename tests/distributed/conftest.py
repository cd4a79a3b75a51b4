"""What these tests share with those of training."""

from tests.training.conftest import launcher

__all__ = ["launcher"]
