"""Whether a folder can be made, asked before the work that is to fill it."""

import tempfile
from pathlib import Path

from mlstm_jax.errors import UserError


def require(folder: Path) -> None:
    """Raise UserError unless a folder exists or can be made, and can be written in.

    This is tried in the nearest folder that exists: permissions alone do not tell, as in /proc.
    """
    nearest = next((place for place in (folder, *folder.parents) if place.exists()), Path())
    if not nearest.is_dir():
        raise UserError(
            f"{folder}: cannot be made: {nearest} is a file; choose another folder with --out."
        )
    try:
        with tempfile.TemporaryDirectory(prefix=".mlstm-jax-", dir=nearest):
            pass
    except OSError as error:
        raise UserError(
            f"{folder}: nothing can be written in {nearest} ({error.strerror or error}); choose "
            "another folder with --out."
        ) from error
