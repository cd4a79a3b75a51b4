"""The folder that a transfer writes: whether it may, and what an earlier call has left there."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import get_args

from mlstm_jax import output
from mlstm_jax.errors import UserError
from mlstm_jax.options import SPLITS, FeatureState, TransferOptions

REPORT = "report.md"  # written last: if it exists, all files are complete
_STATE = "|".join(map(re.escape, get_args(FeatureState)))
_RESULT = r"(report\.(md|json)|classifier\.(json|safetensors))(\.partial)?|[^/]*\.png"
_FEATURES = rf"features(/({'|'.join(SPLITS)})\.npz(\.partial)?)?"
# All that `transfer` writes; a file of a killed call has ".partial" at its end.
_WRITTEN = re.compile(rf"{_FEATURES}|{_RESULT}|({_STATE})(/({_RESULT}))?")


def require_out(out: Path, options: TransferOptions, *, overwrite: bool) -> None:
    """Raise UserError unless `out` is new, is of an earlier call that was stopped, or replaced.

    All that is in it must be from `transfer`: to replace it deletes all.
    """
    for path in sorted([*out.glob("*"), *out.glob("*/*")]):
        name = path.relative_to(out).as_posix()
        if not _WRITTEN.fullmatch(name):
            raise UserError(
                f"{out} exists, and {name} in it is not from `transfer`; choose another folder "
                "with `out`."
            )
    states = options.states or ()
    folders = [out]
    if len(states) > 1:
        folders = [out / state for state in states]
    is_done = all((folder / REPORT).exists() for folder in folders)
    is_ours = (out / "features").is_dir()
    may_go_on = is_ours and (overwrite or not is_done)
    if results_in(out) and not may_go_on:
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


def results_in(out: Path) -> list[Path]:
    """What a folder has besides features, which are saved before all else."""
    if not out.is_dir():
        return []
    return [path for path in out.iterdir() if path.name != "features"]


def remove_results(out: Path) -> None:
    with output.write_errors(out):
        for path in results_in(out):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
