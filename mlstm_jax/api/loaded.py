"""A loaded model: where it came from, its parameters, and the metrics of its run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import output
from mlstm_jax import run as runs
from mlstm_jax.api.arguments import public
from mlstm_jax.config import Config
from mlstm_jax.errors import UserError
from mlstm_jax.interop import weights
from mlstm_jax.run import Run
from mlstm_jax.training import metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class LoadedModel:
    """What a model is; `TrainedModel` adds what it does with texts."""

    def __init__(self, run: Run, checkpoint: str = "best") -> None:
        """Wrap a run in memory. Use `load` instead."""
        self._run, self.checkpoint = run, checkpoint
        self._readers: dict[object, Any] = {}

    @property
    def path(self) -> Path:
        """The run folder, or the file of weights."""
        return self._run.folder

    @property
    def step(self) -> int:
        """The step of the checkpoint, in updates."""
        return self._run.step

    @property
    def config(self) -> Config:
        """The config of the run."""
        return self._run.config

    @property
    def hidden(self) -> int:
        """Number of units H in a layer."""
        return self.config.model.hidden

    @property
    def parameters(self) -> Mapping[str, NDArray[np.float32]]:
        """The float32 arrays by name, which cannot be written; docs/weights.md lists them."""
        found = {name: array.view() for name, array in weights.flatten(self._run.params).items()}
        for array in found.values():
            array.flags.writeable = False
        return found

    def __repr__(self) -> str:
        model = self.config.model
        count = sum(array.size for array in self.parameters.values())
        return (
            f"{type(self).__name__}({str(self.path)!r}, checkpoint={self.checkpoint!r})\n"
            f"  {model.title}, {model.layers} x {model.hidden} units, {count:,} parameters, "
            f"{self.config.precision.compute}\n"
            f"  {self._run.origin}, "
            f"texts cleaned as {self._run.cleaning}"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @public
    def export(
        self, path: str | Path, dtype: weights.Dtype = "float32", *, overwrite: bool = False
    ) -> Path:
        """Write the model as one .safetensors or .npz file that any program can read.

        Args:
            path: the file to create.
            dtype: "float32", or "float16" for half the size, with parameters rounded to 11 bits.
            overwrite: replace an existing file.

        Raises:
            ValueError: the path has another suffix, or exists; or a parameter is too large
                for float16.
            OSError: it cannot be written.
        """
        path = Path(path)
        output.require_file(path, overwrite=overwrite, option="path")
        weights.save(path, runs.as_weights(self._run), dtype)
        return path

    @property
    def metrics(self) -> Any:
        """The lines of metrics.jsonl as a pandas DataFrame, or without pandas a list of dicts.

        Raises:
            ValueError: the model was not trained here.
        """
        lines = self._lines()
        try:
            import pandas as pd
        except ImportError:
            return lines
        return pd.DataFrame(lines)

    def _lines(self) -> list[dict[str, Any]]:
        lines = metrics.read_metrics(self.path / "metrics.jsonl")
        if not lines:
            raise UserError(f"{self.path} has no metrics: it was not trained here.")
        return lines

    @public
    def plot(self, x: Literal["step", "megabytes", "epoch", "minutes"] = "megabytes") -> "Figure":
        """Plot bits per character, learning rate, gradient and speed of the run.

        Needs matplotlib and pandas, the extra `notebooks`.
        """
        from mlstm_jax.api.plots import plot_metrics

        self._lines()
        return plot_metrics([self.path], x=x)

    def _kept(self, key: object, make: Callable[[], Any]) -> Any:
        """Return the reader of a key, with its compiled program; create it once."""
        if key not in self._readers:
            self._readers[key] = make()
        return self._readers[key]
