"""The commands, one function each; its docstring is the help.

Heavy imports are inside the functions, so that help and errors are quick.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from mlstm_jax.errors import UserError

if TYPE_CHECKING:
    from mlstm_jax.transfer.features import Features, Featurizer

RunFolder = Annotated[Path, Positional, arg(metavar="RUN")]


def require_files(*paths: Path | None) -> None:
    """Raise UserError unless all files of texts can be opened: before a model is loaded."""
    from mlstm_jax.data.sources import check_source

    for path in paths:
        if path:
            check_source(path)


def features_of(featurizer: "Featurizer", name: str, texts: list[str]) -> "Features":
    """Return the features of texts, with a progress line of a name."""
    from mlstm_jax.training.progress import ProgressLine

    with ProgressLine(name, len(texts)) as progress:
        return featurizer(texts, lambda count: progress.update(count, "texts"))


def require_folder_of(path: Path) -> None:
    """Raise UserError unless a file can be made there: before the work for it, not after."""
    if not path.resolve().parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}; make it first.")


def require_same_model(classifier: Path, made_with: str, given: str, run: Path) -> None:
    """Raise UserError unless a classifier was made with a run's parameters: two fingerprints."""
    if made_with != given:
        raise UserError(
            f"{classifier} was made with other parameters than those of {run}; name that run and "
            "--checkpoint, or make it again with `mlstm-jax transfer`."
        )
