"""Fine-tuning: train a model end to end to predict labels, along with its language model loss.

The labelled texts become a corpus whose ratings are class numbers, and the trainer does the rest.
At the end of each document a linear head reads h of the top layer, and its cross-entropy counts as
`label_weight` bytes of the language model's loss (Howard and Ruder 2018, Radford et al. 2018). A
Transformer reads each document in windows of its own, and predicts the label in each; BERT's head
reads the mean of h. After each epoch the loss of the validation labels, of a calibrated head, is
measured; it chooses the checkpoint. The folder holds::

    corpus/        the texts, in the order they are read
    run/           a run folder like any other
    classifier/    the head, for `mlstm-jax classify`
    start-*        the first parameters, if the given run's best checkpoint has others
"""

import dataclasses
import json
import math
import shutil
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlstm_jax import host, output, parallel, weights
from mlstm_jax.config import Config, Data, Devices, Optimizer, Train
from mlstm_jax.corpora.documents import CleanDocument, clean
from mlstm_jax.corpora.rated import write_rated
from mlstm_jax.data import corpus
from mlstm_jax.errors import UserError, require
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.options import Cleaning, FinetuneOptions, SplitName, State
from mlstm_jax.record import newest_record
from mlstm_jax.run import Run, as_weights, load_run
from mlstm_jax.training.train import Session, train
from mlstm_jax.transfer import words
from mlstm_jax.transfer.classifier import Classifier, Description, Examples, of_softmax
from mlstm_jax.transfer.features import Featurizer
from mlstm_jax.transfer.labels import Labelled, codes
from mlstm_jax.transfer.sets import Sets, note_known
from mlstm_jax.transfer.words import Words

# Rows of a batch, and the fewest updates of an epoch with enough windows (results/finetune/).
_LEAST_ROWS = 2
_MOST_ROWS = 32
_UPDATES = 40


class Finetuned(NamedTuple):
    """A fine-tuned model, its classifier and accuracies.

    Attributes:
        run: the trained run; `load(tuned.run.folder)` reads with it.
        classifier: what `TrainedModel.classify` takes.
        accuracy: of train, valid and test, fractions.
        without_words: accuracies of the model alone; empty without `words`.
    """

    run: Run
    classifier: Classifier
    accuracy: dict[str, float]
    without_words: dict[str, float]

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {score:.3f}" for name, score in self.accuracy.items())
        scores = f"accuracy {scores}; {self.classifier}"
        return f"{type(self).__name__}: {scores}\n  in {self.run.folder}"


def finetune(
    run: Run,
    sets: Sets,
    out: Path,
    options: FinetuneOptions,
    *,
    owns_process: bool = False,
    show_progress: bool = False,
) -> Finetuned:
    """Fine-tune a model to predict the labels of texts; see `TrainedModel.finetune`."""
    texts = sets.texts
    classes = sets.classes
    on_read, on_repeated = note_known(run, sets)
    counted = None
    if options.words:  # before the hours of training
        counted = words.fit(texts["train"], texts["valid"], classes).words
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    documents: dict[SplitName, list[CleanDocument]] = {
        "train": _documents(texts["train"], classes, run.cleaning),
        "valid": _documents(texts["valid"], classes, run.cleaning),
    }
    write_rated(out / "corpus", documents, run.cleaning)
    try:
        config = make_config(run, _start(run, out), out, len(classes), options)
        _require_same_rows(config, out)
    except UserError:
        if is_new:  # or its corpus would refuse other texts
            shutil.rmtree(out)
        raise
    state: State = "mean_h" if config.model.bidirectional else "h"
    heads = _Heads(texts, classes, state)

    def score_labels(params: Parameters) -> tuple[float, float]:
        model = LanguageModel(config.model, config.precision.types)
        now = dataclasses.replace(run, config=config, model=model, params=params, batch_model=None)
        classifier, examples = heads.measured(now, ["valid"], show_progress=False)
        return classifier.loss(examples["valid"]), classifier.score(examples["valid"])

    session = Session(
        score_labels=score_labels, show_progress=show_progress, owns_process=owns_process
    )
    tuned = load_run(train(config, session))
    alone, examples = heads.measured(tuned, texts, show_progress=show_progress)
    if counted:
        counted = _weighted(counted, alone, examples["valid"])
    about = Description(state, False, tuned.fingerprint, sets.text_column, step=tuned.step)
    classifier = alone._replace(words=counted, texts=np.unique(sets.same["train"]), about=about)
    accuracy = {name: classifier.score(part) for name, part in examples.items()}
    without_words = {}
    if counted:
        without_words = {name: alone.score(part) for name, part in examples.items()}
    made = Finetuned(tuned, classifier, accuracy, without_words)
    _save(out, made, run, on_read + on_repeated)
    return made


class _Heads(NamedTuple):
    """Measures the label heads of a model, in training and at its end."""

    texts: dict[str, Labelled]
    classes: list[str]
    state: State  # which a head reads

    def measured(
        self, tuned: Run, names: Iterable[str], *, show_progress: bool
    ) -> tuple[Classifier, dict[str, Examples]]:
        """A model's label head, calibrated, and the features of some texts."""
        featurizer = Featurizer(tuned, states=(self.state,))
        examples: dict[str, Examples] = {}
        for name in names:
            part = self.texts[name]
            values = featurizer(part.texts, f"features of {name}", show_progress=show_progress)
            examples[name] = Examples(values, codes(part.labels, self.classes), part.texts)
        return calibrated(head(tuned, self.classes), examples["valid"]), examples


def _documents(
    labelled: Labelled, classes: Sequence[str], cleaning: Cleaning
) -> list[CleanDocument]:
    """The cleaned texts, with the number of their class as a rating."""
    documents = []
    for text, code in zip(labelled.texts, codes(labelled.labels, classes), strict=True):
        documents.append((clean(text, cleaning), float(code)))
    return documents


def _weighted(counted: Words, alone: Classifier, valid: Examples) -> Words:
    """The words with the weight that suits a classifier of states alone."""
    words_NK = counted.probabilities(valid.texts)
    states_NK = alone.probabilities(valid.features)
    weight = words.best_weight(states_NK, words_NK, valid.labels)
    return dataclasses.replace(counted, weight=weight)


def _save(out: Path, made: Finetuned, run: Run, notes: list[str]) -> None:
    """Write the classifier and the report; the model was fine-tuned from `run`."""
    classifier = made.classifier
    report = {
        "run": str(run.folder),
        "step": made.run.step,
        "notes": notes,
        "classes": classifier.classes,
        "accuracy": made.accuracy,
    }
    if classifier.words:
        report |= {"without_words": made.without_words, "word_weight": classifier.words.weight}
    (out / "classifier").mkdir(exist_ok=True)
    classifier.save(out / "classifier")
    output.write_text(out / "report.json", json.dumps(report, indent=2) + "\n")


def make_config(run: Run, start: Path, out: Path, classes: int, options: FinetuneOptions) -> Config:
    """Return the config of the run, which evaluates and reshuffles the shards every epoch."""
    longest = run.config.model.longest_window
    # A model without a carry knows of a document only what is in a window.
    window = longest or options.window
    model = dataclasses.replace(run.config.model, classes=classes, rating_head=False)
    split = corpus.open_corpus(out / "corpus").split("train")
    sizes = np.diff(split.offsets.astype(np.int64))
    windows = int(sizes.sum()) // window
    if longest:  # each text has windows of its own
        windows = int(np.ceil(sizes / window).sum())
    require(windows > 0, "window", window, f"at most {sizes.sum()}, the bytes of the texts")
    batch = options.batch or _rows(windows, parallel.local_devices(Devices()).count)
    steps = windows // batch
    rule = f"at most {windows}, the windows of {window} bytes in the training texts"
    require(steps > 0, "batch", batch, f"{rule}; lower `batch` or `window`, or add texts")
    precision = run.config.precision
    compute = options.compute or precision.compute or host.fastest_compute(model.hidden)
    return Config(
        out=str(out / "run"),
        model=model,
        data=Data(
            corpus=str(out / "corpus"),
            batch=batch,
            window=window,
            shuffle_shards=True,
            seed=options.seed,
        ),
        optimizer=Optimizer(
            learning_rate=options.learning_rate, schedule="triangular", name="adam", clip_norm=1.0
        ),
        precision=dataclasses.replace(precision, compute=compute),
        train=Train(
            epochs=options.epochs,
            label_weight=options.label_weight,
            dropout=options.dropout,
            seed=options.seed,
            start_from=str(start),
            log_every=max(1, steps // 50),
            eval_every=steps,
            checkpoint_every=max(1, min(steps, 500)),
            sigterm_exit_code=128 + signal.SIGTERM,  # no success: there is no classifier yet
        ),
    )


def _require_same_rows(config: Config, out: Path) -> None:
    """Raise UserError if the run in `out` has a checkpoint, of rows of another size."""
    begun = newest_record(Path(config.out))
    for name in ("batch", "window"):
        now = getattr(config.data, name)
        if begun and begun.meta.rows[name] != now:
            raise UserError(
                f"`{name}` is {now}, but the run in {out} was begun with {begun.meta.rows[name]}; "
                "repeat the options that it was begun with, or choose another folder with `out`."
            )


def _start(run: Run, out: Path) -> Path:
    """Where the trainer finds a run's parameters: its folder, if the best checkpoint has them."""
    if load_run(run.folder).fingerprint == run.fingerprint:
        return run.folder
    path = out / f"start-{run.fingerprint[:12]}.safetensors"
    weights.save(path, as_weights(run))
    return path


def _rows(windows: int, devices: int) -> int:
    """Return the rows of a batch, for the windows of an epoch; a power of two on one device."""
    rows = min(max(windows // _UPDATES, _LEAST_ROWS), _MOST_ROWS, max(windows, 1))
    rows = 2 ** int(math.log2(rows))
    return -(-rows // devices) * devices


def calibrated(classifier: Classifier, valid: Examples) -> Classifier:
    """A classifier with its scores divided by the temperature of the smallest loss.

    (Guo et al. 2017, arXiv 1706.04599.) Without this the loss on held-out texts rises soon, while
    accuracy still rises, too: it would choose a checkpoint that is too early.
    """
    tried = []
    for temperature in 2.0 ** np.arange(0, 4.1, 0.25):
        weights_KD = classifier.weights_KD / temperature
        intercepts_K = classifier.intercepts_K / temperature
        tried.append(classifier._replace(weights_KD=weights_KD, intercepts_K=intercepts_K))
    return min(tried, key=lambda candidate: candidate.loss(valid))


def head(run: Run, classes: list[str]) -> Classifier:
    """Return the label head of a trained run as a classifier of h."""
    weights_KD = np.asarray(run.params["label_kernel"], np.float64).T
    intercepts_K = np.asarray(run.params["label_bias"], np.float64)
    return of_softmax(weights_KD, intercepts_K, classes, math.inf)
