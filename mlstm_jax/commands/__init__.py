"""The commands, one function each; the docstring of the function is the help.

Heavy imports are inside the functions, so that help and errors are fast.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from mlstm_jax.transfer.features import Featurizer, Reading

RunFolder = Annotated[Path, Positional, arg(metavar="RUN")]


def require_files(*paths: Path | None) -> None:
    """Raise UserError unless all text files can be opened; call it before loading a model."""
    from mlstm_jax.data.sources import Source, check_source

    for path in paths:
        if path:
            check_source(Source(str(path)))


def read(featurizer: "Featurizer", name: str, texts: list[str]) -> "Reading":
    """Read texts, with a named progress bar."""
    from mlstm_jax.progress import ProgressLine

    with ProgressLine(name, len(texts)) as progress:
        return featurizer.read(texts, lambda count: progress.update(count, "texts"))
