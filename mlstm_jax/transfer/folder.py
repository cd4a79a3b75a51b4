"""The folder that a transfer writes: whether it may, and what an earlier call has left there."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import get_args

from mlstm_jax import output
from mlstm_jax.errors import UserError
from mlstm_jax.options import SPLITS, FeatureState, TransferOptions

REPORT = "report.md"  # written last: if it exists, all files are complete
_STATE = "|".join(map(re.escape, get_args(FeatureState)))
_FEATURES = re.compile(rf"features(/({'|'.join(SPLITS)})\.npz(\.lock)?(\.partial)?)?")
# All else that `transfer` writes; a file of a killed call has ".partial" at its end.
_RESULT = r"(report\.(md|json)|classifier\.(json|safetensors))(\.lock)?(\.partial)?|[^/]*\.png"
_RESULTS = re.compile(rf"{_RESULT}|({_STATE})(/({_RESULT}))?")


def require_out(out: Path, options: TransferOptions, *, overwrite: bool) -> None:
    """Raise UserError unless `out` is new, is of an earlier call that was stopped, or replaced.

    A folder that is replaced must be from `transfer`; hidden files may be in it.
    """
    for name in _names_in(out) if overwrite else []:
        is_hidden = name.rpartition("/")[2].startswith(".")
        if not is_hidden and not _FEATURES.fullmatch(name) and not _RESULTS.fullmatch(name):
            raise UserError(
                f"{out} exists, and {name} in it is not from `transfer`; move it away, or choose "
                "another folder with `out`."
            )
    states = options.states or ()
    folders = [out]
    if len(states) > 1:
        folders = [out / state for state in states]
    is_done = all((folder / REPORT).exists() for folder in folders)
    is_ours = (out / "features").is_dir()
    may_go_on = is_ours and (overwrite or not is_done)
    if _names_in(out) and not may_go_on:
        raise UserError(
            f"{out} exists; choose another folder with `out`, or replace one that `transfer` wrote "
            "with `overwrite=True`."
        )
    output.require_folder(out)


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Wait until no other call has locked the features in `out`."""
    place = os.open(out / "features", os.O_RDONLY)
    try:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def results_in(out: Path) -> list[str]:
    """The names of what `transfer` wrote in a folder besides features, which it saves first."""
    return [name for name in _names_in(out) if _RESULTS.fullmatch(name)]


def remove_results(out: Path) -> None:
    """Remove what an earlier call wrote besides features."""
    with output.write_errors(out):
        for name in reversed(results_in(out)):  # what is in a folder before the folder
            path = out / name
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # It has files of others.
                    path.rmdir()
            else:
                path.unlink()


def _names_in(out: Path) -> list[str]:
    """The names in a folder and in its folders, in order."""
    return sorted(path.relative_to(out).as_posix() for path in [*out.glob("*"), *out.glob("*/*")])
