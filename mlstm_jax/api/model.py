"""A trained model in Python, and how to load one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from mlstm_jax import shipped, weights
from mlstm_jax.api.arguments import AnyClassifier, require_export
from mlstm_jax.api.choice import begins_with_numpy
from mlstm_jax.api.fitting import FittingModel
from mlstm_jax.arrays import flatten
from mlstm_jax.errors import UserError, extra, require
from mlstm_jax.fields import public
from mlstm_jax.loaded import load_small
from mlstm_jax.options import ReadingCompute, ReadingLibrary, SplitName

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mlstm_jax.config import Config
    from mlstm_jax.model.language_model import LanguageModel, Parameters
    from mlstm_jax.training.evaluation import Score


class TrainedModel(FittingModel):
    """A trained or imported model; `load` and `train` return one.

    It is immutable. It keeps the programs that it compiles, so a second call compiles nothing. A
    copy is the model itself. It is pickled as the path it was loaded from, which must then have the
    same parameters. A wrong argument of a method is a ValueError that names it; one of another name
    is a TypeError.

    Attributes:
        path: run folder, or file of weights.
        checkpoint: see `load`.
        compute: see `load`.
        step: of the checkpoint, in updates; 0 for imported weights.
        cleaning: how its texts are cleaned.
        hidden: number of units H in a layer.
        loaded: the model in memory, for the package's own programs.

    Examples:
        The examples of its methods begin with these lines, too.

        >>> import mlstm_jax as mlstm
        >>> model = mlstm.load("sentiment")
        >>> model.hidden
        1024
    """

    @property
    def config(self) -> "Config":
        """The config of the run that trained it; JAX is imported."""
        return self.run.config

    @property
    def parameters(self) -> Mapping[str, NDArray[np.float32]]:
        """The float32 arrays by name, which cannot be written; docs/weights.md lists them."""
        arrays = {}
        for name, array in flatten(self.loaded.params).items():
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
    def report(self, corpus: str | Path | None = None) -> str:
        """Compare the bits per character of the validation split with gzip's; show a sample.

        A model that does not predict the next byte neither compresses nor writes.

        Args:
            corpus: see `evaluate`.

        Returns:
            Lines of text, to print.

        Examples:
            >>> "gzip" in mlstm.load("runs/mine").report()
            True
        """
        from mlstm_jax.api.report import report_of  # imports JAX

        is_writer = self.loaded.architecture.objective == "next-byte"
        sample = self.generate() if is_writer else ""
        return report_of(self.run, corpus, self.evaluate("valid", corpus=corpus), sample)

    @public
    def view(
        self,
        classifier: AnyClassifier | None = None,
        *,
        label: str | None = None,
        host: str = "127.0.0.1",
        port: int = 8000,
    ) -> None:
        """Serve a local page, which shows how the model reads a text, until Ctrl-C.

        Args:
            classifier: what `transfer` returned, or its folder, to show class probabilities and a
                score; unset: the one that comes with a pretrained model.
            label: the class of the score with which the page begins; unset: the last, such as
                positive.
            host: address to listen on; 127.0.0.1 and ::1 accept only this machine. The page has no
                login.
            port: the port; 0 takes a free one. The address is printed.

        Raises:
            ValueError: `label` is given without a classifier that has a score; the classifier
                belongs to another model; the port is in use; or the extra "view" is missing.
        """
        with extra("view", "the page needs Starlette and uvicorn"):
            from mlstm_jax.view.server import show_page
        chosen = None
        if classifier or self.loaded.pretrained:
            chosen = self._classifier(classifier)
        example = shipped.example(self._place).strip()
        show_page(self.loaded, chosen, example, label=label, host=host, port=port)

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
            from mlstm_jax.transfer import zipapp

            zipapp.pack(path, self.loaded, self._classifier(classifier))
        else:
            from mlstm_jax.run import as_weights  # imports JAX

            weights.save(path, as_weights(self.run), dtype)
        return path

    def __repr__(self) -> str:
        architecture = self.loaded.architecture
        count = sum(array.size for array in self.parameters.values())
        types = self.loaded.precision
        also = f", several texts in {types.several}" if types.several else ""
        return (
            f"{type(self).__name__}({str(self.path)!r}, checkpoint={self.checkpoint!r})\n"
            f"  {architecture.title}, {architecture.layers} x {architecture.hidden} units, "
            f"{count:,} parameters, {types.products}{also}\n"
            f"  {self.loaded.origin}, texts cleaned as {self.cleaning}"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        # Store the step: if training continues, the best checkpoint may change.
        step = self.checkpoint if self.loaded.imported else str(self.step)
        # A pretrained model is found by its name in any environment.
        path = self.loaded.pretrained or self._place
        return _load_same, (str(path), step, self.compute, self._library, self.loaded.fingerprint)


@public
def load(
    path: str | Path,
    checkpoint: str | int = "best",
    compute: ReadingCompute = "auto",
    reader: ReadingLibrary = "auto",
) -> TrainedModel:
    """Load a trained model.

    NumPy reads a recurrent model of the package or of `export` at once, and JAX is not imported.
    For other models the compiled programs are kept for the next process (docs/troubleshooting.md).

    Args:
        path: run folder, trained or imported, or a pretrained model, such as sentiment; or a
            .safetensors that `export` wrote.
        checkpoint: best (by validation bits per character; of a run of `finetune`, by the loss of
            the validation labels), latest, or a step.
        compute: type of the products in reading texts; auto: as in the run's config, but bf16
            instead of fp32 for several texts at a time, and for generated text, where JAX reads
            and the CPU multiplies it faster. int8: NumPy reads whole texts, as `classify` and
            `encode` do, with int8 products by onnxruntime (docs/without_jax.md); the rest is fp32.
        reader: numpy, in fp32; or jax; auto: numpy where it can, unless JAX has a GPU, or the CPU
            multiplies bf16 and the texts of a call are many (docs/without_jax.md).

    Returns:
        The model, ready to read.

    Raises:
        ValueError: the model or the checkpoint does not exist.
        OSError: the checkpoint is damaged.

    Examples:
        >>> model = mlstm.load("sentiment")
        >>> model.classify(["It broke after a week."])[0]["negative"] > 0.8
        True
    """
    chosen = str(checkpoint)
    shipped.require_model(Path(path))
    if begins_with_numpy(chosen, compute, reader):
        small = load_small(Path(path))
        if small:
            if compute == "int8":
                small = replace(small, compute=compute)
            return TrainedModel(small, chosen, compute, reader)
    small_kinds = "mLSTMs, LSTMs and GRUs of the package or of `export`"
    rule = f"another type: NumPy alone reads in int8, {small_kinds}"
    require(compute != "int8", "compute", compute, rule)
    rule = f"auto or jax: NumPy reads {small_kinds}, in fp32 or int8"
    require(reader != "numpy", "reader", reader, rule)
    from mlstm_jax.api import jax_model  # imports JAX

    run = jax_model.load_run(Path(path), chosen, compute)
    return TrainedModel(run, chosen, compute, reader)


def _load_same(
    path: str,
    checkpoint: str,
    compute: ReadingCompute,
    reader: ReadingLibrary,
    fingerprint: str,
) -> TrainedModel:
    """Load a pickled model, with the parameters that it had."""
    model = load(path, checkpoint, compute, reader)
    model.loaded.require_unchanged(fingerprint)
    return model
