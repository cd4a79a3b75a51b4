"""A model that has been loaded: what it is, and its readers, each created once."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.config import Config
from mlstm_jax.interop import weights
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.run import ReadingCompute, Run


class LoadedModel:
    """What a model is; `ReadingModel` adds what it does with texts."""

    def __init__(
        self, run: Run, checkpoint: str = "best", compute: ReadingCompute = "auto"
    ) -> None:
        """Wrap a run in memory. Use `load` instead."""
        self._run, self.checkpoint, self.compute = run, checkpoint, compute
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
        arrays = {name: array.view() for name, array in weights.flatten(self._run.params).items()}
        for array in arrays.values():
            array.flags.writeable = False
        return arrays

    @property
    def flax(self) -> tuple[LanguageModel, Parameters]:
        """The Flax module and its tree of parameters, for programs such as those in examples/.

        `module.apply({"params": params}, bytes_BT, module.reading_carry(B))` reads a window.
        """
        return self._run.model, self._run.params

    def __repr__(self) -> str:
        model = self.config.model
        count = sum(array.size for array in self.parameters.values())
        return (
            f"{type(self).__name__}({str(self.path)!r}, checkpoint={self.checkpoint!r})\n"
            f"  {model.title}, {model.layers} x {model.hidden} units, {count:,} parameters, "
            f"{self._run.model.precision.compute}"
            f"{', several texts in bf16' if self._run.batch_model else ''}\n"
            f"  {self._run.origin}, "
            f"texts cleaned as {self._run.cleaning}"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _kept(self, key: object, make: Callable[[], Any]) -> Any:
        """Return the reader of a key, with its compiled program; create it once."""
        if key not in self._readers:
            self._readers[key] = make()
        return self._readers[key]
