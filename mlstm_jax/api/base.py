"""What all parts of a loaded model use: the model in memory, its run in JAX, and its classifier."""

from functools import cached_property
from typing import TYPE_CHECKING, cast

from mlstm_jax.api.arguments import AnyClassifier, as_classifier
from mlstm_jax.loaded import Loaded, SmallModel
from mlstm_jax.options import ReadingCompute, ReadingLibrary
from mlstm_jax.transfer.classifier import Classifier

if TYPE_CHECKING:
    from mlstm_jax.api.jax_model import JaxModel
    from mlstm_jax.run import Run


class LoadedModel:
    """What all parts of `TrainedModel` use."""

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

        if not isinstance(self.loaded, SmallModel):
            return jax_model.JaxModel(cast("Run", self.loaded))
        compute = "fp32" if self._library == "numpy" else self.compute  # what NumPy reads it in
        run = jax_model.load_run(self._place, self.checkpoint, compute)
        run.require_unchanged(self.loaded.fingerprint)
        return jax_model.JaxModel(run)

    @property
    def run(self) -> "Run":
        """The run that the model is from, in JAX, which this starts."""
        return self._jax.run

    def _classifier(self, given: AnyClassifier | None) -> Classifier:
        """A classifier, unset: the model's own; UserError unless it belongs to this model."""
        name, classifier = as_classifier(given, self.path)
        classifier.require_model(name, self.loaded)
        return classifier
