"""Another program's weights."""

from pathlib import Path

import numpy as np
import pytest

from tests.weights.test_weights import write_openai


@pytest.fixture
def folder(tmp_path: Path, random: np.random.Generator) -> Path:
    write_openai(tmp_path / "o", random)
    return tmp_path / "o"
