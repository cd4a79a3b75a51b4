"""A model in scikit-learn: features as a transformer, fine-tuning as a classifier."""

import shutil
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from mlstm_jax.api.arguments import LabelledTexts, as_texts
from mlstm_jax.api.model import TrainedModel, load
from mlstm_jax.corpora.documents import SEVERAL_LABELS
from mlstm_jax.errors import UserError
from mlstm_jax.fields import Count, public, require_kind
from mlstm_jax.options import FINETUNE, FeatureState, FinetuneOptions
from mlstm_jax.transfer.features import features_of, layers_of
from mlstm_jax.transfer.known import READ, digests, note_among, read_with_ratings
from mlstm_jax.transfer.labels import of_classes, require_no_numbers


class _TextEstimator(BaseEstimator):
    """An estimator of texts, with a `TrainedModel` or the path of one."""

    model: TrainedModel | str | Path

    def _loaded(self) -> TrainedModel:
        if isinstance(self.model, TrainedModel):
            return self.model
        require_kind("model", self.model, TrainedModel | str | Path)
        known = getattr(self, "_from_path", None)
        if known is None or known[0] != self.model:
            known = self._from_path = (self.model, load(self.model))
        model: TrainedModel = known[1]
        return model

    def __getstate__(self) -> Any:
        # So that joblib's cache and a saved pipeline know the parameters, not the path alone.
        self._loaded()
        return super().__getstate__()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


class Features(TransformerMixin, _TextEstimator):
    """Transform texts to the state of a frozen model, in a `Pipeline` or a `GridSearchCV`.

    Fitting learns nothing: the model is already trained.

    Args:
        model: a `TrainedModel`, or what `load` takes.
        state, all_layers, batch_size, show_progress: see `TrainedModel.encode`.

    Examples:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> pipeline = make_pipeline(mlstm.Features("sentiment"), LogisticRegression())
        >>> pipeline.fit(["I loved it.", "I hated it."], ["yes", "no"]).predict(["A great film."])
        array(['yes'], dtype='<U3')
    """

    def __init__(
        self,
        model: TrainedModel | str | Path,
        *,
        state: FeatureState | None = None,
        all_layers: bool = False,
        batch_size: int | None = None,
        show_progress: bool = False,
    ) -> None:
        # scikit-learn requires that arguments are stored unchanged and checked in `fit`.
        self.model = model
        self.state = state
        self.all_layers = all_layers
        self.batch_size = batch_size
        self.show_progress = show_progress

    @public
    def fit(self, texts: Iterable[str], y: Any = None) -> "Features":
        """Check the texts and load the model; learn nothing.

        Args:
            texts: in memory; texts that come only once, as from a generator, are not checked.
            y: their labels: a warning counts the texts that a pretrained model has read with their
                ratings, on which accuracy is too high.

        Returns:
            This object.

        Raises:
            ValueError: an argument of the constructor is wrong, or the model has no such state.
        """
        require_kind("batch_size", self.batch_size, Count | None)
        if not isinstance(texts, Iterator):
            strings = as_texts(texts)
            if y is not None:
                loaded = self._loaded().loaded
                read = read_with_ratings(loaded)
                if read.size:
                    note_among("", digests(strings, loaded.cleaning), read, READ)
        self._states()
        return self

    @public
    def transform(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Read texts.

        Args:
            texts: in memory.

        Returns:
            float32 [texts, units]; after `set_output`, a table with the index of `texts`.

        Examples:
            >>> mlstm.Features("sentiment", state="mean_h").transform(["A great film."]).shape
            (1, 1024)
        """
        return self._loaded().encode(
            as_texts(texts),
            self.state,
            all_layers=self.all_layers,
            batch_size=self.batch_size,
            show_progress=self.show_progress,
        )

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Name the columns of `transform`.

        Args:
            input_features: ignored.

        Returns:
            str [units]: "c_0", ..., "mean_h_0", ...; with all layers "layer0_c_0", ...

        Examples:
            >>> mlstm.Features("sentiment", state="mean_h").get_feature_names_out()[:2].tolist()
            ['mean_h_0', 'mean_h_1']
        """
        (state,) = self._states()
        architecture = self._loaded().loaded.architecture
        names = []
        for single, layer in layers_of(architecture, state, all_layers=self.all_layers):
            before = f"layer{layer}_" if self.all_layers else ""
            names += [f"{before}{single}_{unit}" for unit in range(architecture.hidden)]
        return np.array(names, dtype=object)

    def _states(self) -> tuple[FeatureState, ...]:
        asked = None if self.state is None else (self.state,)
        return features_of(self._loaded().loaded.architecture, asked)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


class FineTuned(ClassifierMixin, _TextEstimator):
    """Classify texts with a model whose parameters are all fine-tuned; see `TrainedModel.finetune`.

    Args:
        model: a `TrainedModel`, or what `load` takes; it does not change.
        out: see `TrainedModel.finetune`; unset: a temporary folder, which is deleted with this
            object, so only one with `out` can be saved.
        options, show_progress: see `TrainedModel.finetune`.

    Attributes:
        classes_: the classes, sorted.
        tuned_: what `TrainedModel.finetune` returned.

    Examples:
        >>> tuned = mlstm.FineTuned("runs/mine", options=mlstm.FinetuneOptions(epochs=1))
        >>> texts, labels = ["It is good.", "It is bad."] * 99, ["yes", "no"] * 99
        >>> tuned.fit(texts, labels, valid=(texts, labels)).predict(["It is good."]).shape
        (1,)
    """

    def __init__(
        self,
        model: TrainedModel | str | Path,
        *,
        out: str | Path | None = None,
        options: FinetuneOptions = FINETUNE,
        show_progress: bool = False,
    ) -> None:
        self.model = model
        self.out = out
        self.options = options
        self.show_progress = show_progress

    @public
    def fit(
        self, texts: Iterable[str], y: Sequence[object], valid: LabelledTexts | None = None
    ) -> "FineTuned":
        """Fine-tune the model.

        Args:
            texts: in memory.
            y: the class of each.
            valid: see `TrainedModel.finetune`.

        Returns:
            This object.

        Raises:
            ValueError: as `TrainedModel.finetune` does, or `y` has several dimensions, numbers,
                classes with one name as text, such as 1 and "1", or equal ones, such as 1 and True.
        """
        strings = as_texts(texts)
        if getattr(y, "ndim", 1) != 1:
            raise UserError(
                "y has several dimensions, but it must have one, with the class of each text "
                f"({SEVERAL_LABELS})."
            )
        values = list(y)
        labelled = of_classes(strings, values, [f"y[{n}]" for n in range(len(values))], "y")
        require_no_numbers(labelled)
        check_classification_targets(values)
        classes, first = np.unique(np.asarray(values), return_index=True)
        names = [labelled.labels[n] for n in first]
        # One array has strings for 1 and "1", and equal numbers for 1 and True.
        if not len(classes) == len({*names}) == len({*zip(labelled.labels, values, strict=True)}):
            raise UserError(
                "y has classes with one name as text, such as '1' and 1, or equal ones, such as 1 "
                "and True; rename one of them."
            )
        temporary = None
        out = self.out
        if out is None:
            out = mkdtemp(prefix="finetuned-")
            temporary = weakref.finalize(self, shutil.rmtree, out, ignore_errors=True)
        tuned = self._loaded().finetune(
            (strings, labelled.labels),
            valid,
            out=out,
            options=self.options,
            show_progress=self.show_progress,
        )
        reader = load(tuned.run.folder, tuned.run.step)
        # A class whose texts are all blank is unknown to the classifier.
        columns = {name: column for column, name in enumerate(tuned.classifier.classes)}
        known = [name in columns for name in names]
        # All at the end: after an error this object is what it was before.
        self._temporary = temporary
        self._reader = reader
        self._columns = [columns[name] for name in names if name in columns]
        self.tuned_ = tuned
        self.classes_ = classes[known]
        return self

    @public
    def predict_proba(self, texts: Iterable[str]) -> NDArray[np.float64]:
        """Classify texts.

        Args:
            texts: in memory.

        Returns:
            The probability of each of `classes_`, float64 [texts, classes].

        Raises:
            ValueError: a text is blank, or the model is not fitted.
        """
        check_is_fitted(self)
        strings = as_texts(texts)
        for number, cleaned in enumerate(self._reader.loaded.cleaned(strings)):
            if not cleaned:
                raise UserError(f"texts[{number}] is blank and has no class; leave it out.")
        states = self._reader.encode(strings, self.tuned_.classifier.about.state)
        return self.tuned_.classifier.probabilities(states, strings)[:, self._columns]

    @public
    def predict(self, texts: Iterable[str]) -> NDArray[Any]:
        """Choose the most probable class of each text.

        Args:
            texts: in memory.

        Returns:
            One of `classes_` for each text, [texts].
        """
        best_N = self.predict_proba(texts).argmax(axis=1)
        predicted: NDArray[Any] = self.classes_[best_N]
        return predicted

    def __getstate__(self) -> Any:
        if getattr(self, "_temporary", None):
            raise UserError("the model is in a temporary folder; to save it, fit with `out`.")
        return super().__getstate__()
