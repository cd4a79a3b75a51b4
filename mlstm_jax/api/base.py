"""What a loaded model is: parameters, config, log and score; how it is exported."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import weights
from mlstm_jax.api.arguments import AnyClassifier, as_classifier, require_export
from mlstm_jax.errors import UserError, extra
from mlstm_jax.fields import public
from mlstm_jax.loaded import Loaded, SmallModel
from mlstm_jax.options import ReadingCompute, ReadingLibrary, SplitName
from mlstm_jax.transfer import zipapp
from mlstm_jax.transfer.classifier import Classifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mlstm_jax.api.jax_model import JaxModel
    from mlstm_jax.config import Config
    from mlstm_jax.model.language_model import LanguageModel, Parameters
    from mlstm_jax.run import Run
    from mlstm_jax.training.evaluation import Score


class LoadedModel:
    """The part of `TrainedModel` that is given no text."""

    def __init__(
        self,
        loaded: Loaded,
        checkpoint: str = "best",
        compute: ReadingCompute = "auto",
        reader: ReadingLibrary = "auto",
    ) -> None:
        """Wrap a model in memory. Use `load` instead."""
        self.loaded = loaded
        self.path = loaded.folder
        # It stays where it is when the process changes its folder.
        self._place = loaded.folder.resolve()
        self.checkpoint = checkpoint
        self.compute = compute
        self.step = loaded.step
        self.cleaning = loaded.cleaning
        self.hidden = loaded.architecture.hidden
        self._library = reader

    @cached_property
    def _jax(self) -> "JaxModel":
        """The same model in JAX, which this starts."""
        from mlstm_jax.api import jax_model  # imports JAX

        if isinstance(self.loaded, SmallModel):
            again = jax_model.load(self._place, self.checkpoint, self.compute)
            require_unchanged(again.run, self.loaded.fingerprint)
            return again
        run: Any = self.loaded
        return jax_model.JaxModel(run)

    @property
    def run(self) -> "Run":
        """The run that the model is from, in JAX, which this starts."""
        return self._jax.run

    @property
    def config(self) -> "Config":
        """The config of the run that trained it; JAX is imported."""
        return self.run.config

    @property
    def parameters(self) -> Mapping[str, NDArray[np.float32]]:
        """The float32 arrays by name, which cannot be written; docs/weights.md lists them."""
        arrays = {}
        for name, array in weights.flatten(self.loaded.params).items():
            arrays[name] = array.view()
            arrays[name].flags.writeable = False
        return arrays

    @property
    def flax(self) -> "tuple[LanguageModel, Parameters]":
        """The Flax module and its tree of parameters, for programs such as those in examples/.

        `module.apply({"params": params}, bytes_BT, module.reading_carry(B))` reads a window.
        """
        return self.run.model, self.run.params

    @property
    def metrics(self) -> Any:
        """The lines of metrics.jsonl as a pandas DataFrame, or without pandas a list of dicts."""
        from mlstm_jax.training import metrics  # imports JAX

        lines = metrics.read_metrics(self._place / metrics.FILE)
        if not lines:
            raise UserError(f"{self.path} has no {metrics.FILE}, the log of a run.")
        try:
            import pandas as pd
        except ImportError:
            return lines
        return pd.DataFrame(lines)

    @public
    def plot(self, x: Literal["step", "megabytes", "epoch", "minutes"] = "megabytes") -> "Figure":
        """Plot bits per character, learning rate, gradient and speed of the run.

        Args:
            x: the quantity on the horizontal axis.

        Returns:
            A figure of matplotlib, with a panel for each.

        Raises:
            ValueError: the model is not of a run, or the extra `notebooks` is missing.

        Examples:
            >>> mlstm.load("runs/mine").plot().savefig("curve.png")
        """
        with extra("notebooks", "plots need matplotlib and pandas"):
            from mlstm_jax import analysis

            return analysis.plot_runs([self._place], x)

    @public
    def evaluate(
        self,
        split: SplitName = "test",
        *,
        corpus: str | Path | None = None,
        show_progress: bool = False,
    ) -> "Score":
        """Score a split of a corpus with a carried state (Puri et al. 2018, VI).

        Args:
            split: which part of the corpus.
            corpus: corpus folder; unset: the one that the model was trained on.
            show_progress: on standard error.

        Returns:
            Its bits per character and loss.

        Raises:
            ValueError: the corpus is missing or damaged, or the split has too little text.

        Examples:
            >>> mlstm.load("runs/mine").evaluate("valid").bpc < 9
            True
        """
        return self._jax.evaluate(split, corpus=corpus, show_progress=show_progress)

    @public
    def export(
        self,
        out: str | Path | None = None,
        dtype: Literal["float32", "float16", "int8"] = "float32",
        *,
        classifier: AnyClassifier | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write the model as one .safetensors file, or as a program for Python and NumPy alone.

        Args:
            out: file to write, .safetensors or .pyz (docs/without_jax.md); unset: the run's name
                with .safetensors, in the current folder.
            dtype: float32; float16 for half the size; or int8 for a quarter, with the matrices of
                a weight normalisation rounded to 8 bits. A .pyz has the smallest that changes no
                number.
            classifier: of a .pyz; unset: the one that comes with a pretrained model.
            overwrite: replace an existing file.

        Returns:
            The file that was written.

        Raises:
            ValueError: the path has another suffix, or exists; or a parameter is too large for
                float16.
            OSError: it cannot be written.

        Examples:
            >>> model.export("sentiment.pyz").name
            'sentiment.pyz'
        """
        path = Path(out or f"{self._place.name}.safetensors")
        require_export(path, classifier, overwrite=overwrite)
        if path.suffix == ".pyz":
            zipapp.pack(path, self.loaded, self._classifier(classifier))
        else:
            from mlstm_jax.run import as_weights  # imports JAX

            weights.save(path, as_weights(self.run), dtype)
        return path

    def _classifier(self, given: AnyClassifier | None) -> Classifier:
        """A classifier, unset: the model's own; UserError unless it belongs to this model."""
        name, classifier = as_classifier(given, self.path)
        classifier.require_model(name, self.loaded)
        return classifier

    def __repr__(self) -> str:
        architecture = self.loaded.architecture
        count = sum(array.size for array in self.parameters.values())
        compute, _, *several = self.loaded.precision
        also = f", several texts in {several[0]}" if several else ""
        return (
            f"{type(self).__name__}({str(self.path)!r}, checkpoint={self.checkpoint!r})\n"
            f"  {architecture.title}, {architecture.layers} x {architecture.hidden} units, "
            f"{count:,} parameters, {compute}{also}\n"
            f"  {self.loaded.origin}, texts cleaned as {self.cleaning}"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def require_unchanged(again: Loaded, fingerprint: str) -> None:
    """Raise UserError if a path has other parameters than before: what was fitted would be wrong.

    A file can be replaced, and a pretrained model can differ in another version of the package.
    """
    if again.fingerprint != fingerprint:
        raise UserError(
            f"{again.place} has other parameters than when it was loaded before; restore it, or "
            "load it again, and fit again what was fitted to it."
        )
