"""The commands, one function each; the docstring of the function is the help.

Heavy imports are inside the functions, so that help and errors are fast.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from mlstm_jax.errors import UserError

if TYPE_CHECKING:
    from mlstm_jax.transfer.features import Features, Featurizer

RunFolder = Annotated[Path, Positional, arg(metavar="RUN")]


def require_files(*paths: Path | None) -> None:
    """Raise UserError unless all text files can be opened; call it before loading a model."""
    from mlstm_jax.data.sources import Source, check_source

    for path in paths:
        if path:
            check_source(Source(str(path)))


def features_of(featurizer: "Featurizer", name: str, texts: list[str]) -> "Features":
    """Return the features of texts, with a named progress bar."""
    from mlstm_jax.progress import ProgressLine

    with ProgressLine(name, len(texts)) as progress:
        return featurizer(texts, lambda count: progress.update(count, "texts"))


def require_output(path: Path, source: Path | None = None, *, option: str = "--out") -> None:
    """Raise UserError unless a file can be written that is not the source; call it before the work.

    The file replaces an old one, but nothing else: no folder and no device.
    """
    if not path.resolve().parent.is_dir():
        raise UserError(
            f"{option} {path}: the folder {path.parent} does not exist; create it first."
        )
    if path.exists() and not path.is_file():
        raise UserError(f"{option} {path} exists, and is not a file; choose another name.")
    if source and source.exists() and path.exists() and path.samefile(source):
        raise UserError(f"{option} {path} is the input, which would be lost; choose another file.")
