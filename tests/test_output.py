"""Folders that are written all or nothing."""

import os
from pathlib import Path

import pytest

from mlstm_jax.errors import FileError
from mlstm_jax.output import atomic_directory


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").touch()
    rename = os.rename

    def fail(source: Path, target: Path) -> None:
        """Refuse to rename the new folder, after the old one is aside."""
        if (Path(source) / "new").exists():
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(FileError, match="cannot be written"), atomic_directory(out) as folder:
        (folder / "new").touch()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == [
        "out",
        "out/old",
    ]
