"""The commands, one function each; the docstring of the function is the help.

Heavy imports are inside the functions, so that help and errors are fast.
"""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from mlstm_jax.corpora.sources import Source, check_source

RunFolder = Annotated[Path, Positional, arg(metavar="RUN")]


def require_files(*paths: Path | None) -> None:
    """Raise UserError unless all text files can be opened; call it before loading a model."""
    for path in paths:
        if path:
            check_source(Source(str(path)))
