"""Fine-tuning: train a model end to end to predict labels, along with its language model loss.

The labelled texts become a corpus whose ratings are class numbers, or several binary labels,
and the trainer does the rest (devices, precision, checkpoints, exact resume). At the end of each
document a linear head reads h of the top layer, and its cross-entropy (of several labels, the mean
over those that the document has) counts as `label_weight` bytes of the language model's loss.
Howard and Ruder 2018 and Radford et al. 2018 keep that loss, too. A Transformer, which carries
nothing, reads each document in windows of its own, and predicts the label in each; BERT's head
reads the mean of h, and its other loss is that of masked bytes. After each epoch the loss of the
validation labels, of a calibrated head, is measured; it chooses the checkpoint. The folder holds::

    corpus/        the texts, in the order they are read
    run/           a run folder like any other
    classifier/    the head, for `mlstm-jax classify`
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from mlstm_jax import environment, output
from mlstm_jax.config import Compute, Config, Data, Devices, Optimizer, Train
from mlstm_jax.config.sections import Seed
from mlstm_jax.corpora.documents import clean, in_order
from mlstm_jax.corpora.writer import check_out, durable, write_split
from mlstm_jax.data import corpus
from mlstm_jax.data.corpus import FORMAT_VERSION, Cleaning, Manifest
from mlstm_jax.errors import UserError, first_line
from mlstm_jax.fields import Between, Checked, Count, Fraction, Positive
from mlstm_jax.interop.weights import fingerprint
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.output import atomic_directory
from mlstm_jax.run import Run, load_run
from mlstm_jax.training import parallel
from mlstm_jax.training.loop import train
from mlstm_jax.transfer import known, words
from mlstm_jax.transfer.classifier_file import Description, save
from mlstm_jax.transfer.classify import Classifier, Examples
from mlstm_jax.transfer.features import Featurizer
from mlstm_jax.transfer.labels import MISSING, Labelled, Task, require_task, usable
from mlstm_jax.transfer.thresholds import LabelScore, best_thresholds, macro

# Rows of a batch, and the fewest updates of an epoch if there can be so many (results/finetune/).
_LEAST_ROWS, _MOST_ROWS, _UPDATES = 2, 32, 40


def write_corpus(
    out: Path, train: Labelled, valid: Labelled, task: Task, cleaning: Cleaning
) -> None:
    """Write the corpus of two sets of labelled texts, ordered by content, duplicates kept.

    Writing it again gives the same bytes, so an interrupted run can resume.

    Raises:
        UserError: `out` already holds a corpus of other texts.
    """
    splits = {}
    with atomic_directory(out, lambda: check_out(out, overwrite=True)) as folder:
        for name, part in (("train", train), ("valid", valid), ("test", Labelled([], []))):
            # What a text has as labels is one number for the order, as a class is.
            kinds, kind_N = np.unique(task.codes(part.labels), axis=0, return_inverse=True)
            several = len(task.names) if task.several else 0
            kinds = np.where(kinds == MISSING, np.nan, kinds)
            labelled = zip((clean(text, cleaning) for text in part.texts), kind_N, strict=True)
            texts = ((text, float(kind)) for text, kind in labelled if text)
            ordered = in_order(texts, seed=0, dedupe="none")
            documents = [(text, kinds[int(kind)]) for text, kind in ordered]
            splits[name] = write_split(folder, name, documents, len(documents), True, several)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            seed=0,
            cleaning=cleaning,
            split=(len(train.texts), len(valid.texts), 0),
            sources=(),
            records=len(train.texts) + len(valid.texts),
            without_text=0,
            blank=0,
            duplicates=0,
            splits=splits,
        )
        with durable(folder / corpus.MANIFEST) as file:
            file.write(manifest.to_json().encode())
        written = corpus.open_corpus(folder)
        if out.exists() and corpus.open_corpus(out).identity != written.identity:
            raise UserError(
                f"{out} holds other texts or labels than those given now; resume with the same "
                "files, or choose another folder with `out`."
            )


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(Checked):
    """How to fine-tune a model.

    Attributes:
        epochs: passes over the training texts.
        learning_rate: peak rate, reached after a tenth of the steps; it then falls to a 32nd.
        label_weight: how many bytes of the language model's loss one label counts as.
        batch: rows in the global batch; unset: 32, or with few texts fewer, so that an epoch has
            about 40 updates or more.
        window: bytes of truncated back-propagation; a Transformer's is always `model.positions`.
        dropout: fraction of the units of each layer's output that are dropped.
        seed: of dropout and of the order of the text.
        compute: type of the matrix products; unset: that of the run, and with a model of the
            package or an imported one the fastest, as `precision.compute` of a new run.
        words: average the probabilities of the model with those of TF-IDF, for classes only; if
            one of them alone is clearly better on the validation texts, take those alone.
    """

    epochs: Positive = 3.0
    learning_rate: Positive = 1e-3
    label_weight: Annotated[float, Between(0, ends="[)")] = 1000.0
    batch: Count | None = None
    window: Count = 128
    dropout: Fraction = 0.2
    seed: Seed = 0
    compute: Compute | None = None
    words: bool = False


class Finetuned(NamedTuple):
    """A fine-tuned model, its classifier and accuracies."""

    run: Run
    classifier: Classifier
    about: Description
    accuracy: dict[str, float]  # of train, valid and test, fractions; or the macro F1 of labels
    labels: dict[str, list[LabelScore]]  # of train, valid and test; empty for classes
    without_words: dict[str, float]  # accuracies of the model alone; empty without `words`

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {score:.3f}" for name, score in self.accuracy.items())
        scores = f"{'macro F1' if self.labels else 'accuracy'} {scores}"
        return f"{type(self).__name__}: {scores}; {self.classifier}\n  in {self.run.folder}"


def finetune(
    run: Run,
    texts: Mapping[str, Labelled],
    out: Path,
    options: FinetuneOptions,
    *,
    checkpoint: str = "best",
    text_column: str | None = None,
    owns_process: bool = False,
    show_progress: bool = False,
) -> Finetuned:
    """Fine-tune a model end to end to predict labels; see `TrainedModel.finetune`.

    Args:
        run: the model to start from.
        texts: train, and optionally valid and test.
    """
    output.require_folder(out)
    texts = usable(texts, run.cleaning, "valid")
    task = require_task(texts["train"])
    for name, table in texts.items():
        require_task(table, task, thresholds=name == "valid")
        run.cleaned(table.texts, table.name)
    notes = known.note_known(run, texts)
    counted = _words(texts, task) if options.words else None
    out.mkdir(parents=True, exist_ok=True)
    write_corpus(out / "corpus", texts["train"], texts["valid"], task, run.cleaning)
    config = make_config(run, out, task, options)
    state = config.model.label_state

    def read(run: Run, *names: str, loud: bool = show_progress) -> dict[str, Examples]:
        featurizer, examples = Featurizer(run, states=(state,)), {}
        for name in names:
            values = featurizer(texts[name].texts, f"features of {name}" if loud else None)
            examples[name] = Examples(values, task.codes(texts[name].labels))
        return examples

    def score_labels(params: Parameters) -> tuple[float, float]:
        model = LanguageModel(config.model, config.precision)
        now = dataclasses.replace(run, config=config, model=model, params=params, batch_model=None)
        held_out = read(now, "valid", loud=False)["valid"]
        classifier = calibrated(head(now, task), held_out)
        return classifier.loss(held_out), classifier.score(held_out)

    trained = train(
        config,
        score_labels=score_labels,
        quiet=not show_progress,
        owns_process=owns_process,
    )
    tuned = load_run(trained, checkpoint)
    examples = read(tuned, *texts)
    alone = calibrated(head(tuned, task), examples["valid"])
    fitted = known.digests(texts["train"].texts, run.cleaning)
    if counted:
        held_out = examples["valid"]
        words_NK = counted.probabilities(texts["valid"].texts)
        states_NK = alone.probabilities(held_out.features)
        weight = words.best_weight(states_NK, words_NK, held_out.labels)
        counted = dataclasses.replace(counted, weight=weight)
    classifier = alone._replace(words=counted, texts=np.unique(fitted))
    about = Description(state, False, fingerprint(tuned.params), text_column, step=tuned.step)
    (out / "classifier").mkdir(exist_ok=True)
    save(out / "classifier", classifier, about)
    accuracy = {name: classifier.score(part, texts[name].texts) for name, part in examples.items()}
    labels, without_words = {}, {}
    report = {"run": str(run.folder), "step": tuned.step, "notes": notes}
    if task.several:
        labels = {name: classifier.label_scores(part) for name, part in examples.items()}
        report["labels"] = {
            name: [asdict(one) for one in scores] for name, scores in labels.items()
        }
        report["macro"] = {name: macro(scores) for name, scores in labels.items()}
    else:
        report |= {"classes": task.names, "accuracy": accuracy}
    if counted:
        without_words = {name: alone.score(part) for name, part in examples.items()}
        report["without_words"] = without_words
        report["word_weight"] = counted.weight
    output.write_text(out / "report.json", json.dumps(report, indent=2) + "\n")
    return Finetuned(tuned, classifier, about, accuracy, labels, without_words)


def _words(texts: Mapping[str, Labelled], task: Task) -> words.Words:
    """Return the classifier of word counts, before the hours of training."""
    words.require_classes(task)
    try:
        return words.fit(texts["train"], texts["valid"], task).words
    except ValueError as error:  # raised by scikit-learn
        raise words.uncountable(first_line(error)) from error


def make_config(run: Run, out: Path, task: Task, options: FinetuneOptions) -> Config:
    """Return the config of the run, which evaluates and reshuffles the shards every epoch."""
    longest = run.config.model.longest_window
    # A model without a carry knows of a document only what is in a window.
    window = longest or options.window
    several, count = task.several, len(task.names)
    model = dataclasses.replace(
        run.config.model,
        classes=0 if several else count,
        binary_labels=count if several else 0,
        rating_head=False,
    )
    split = corpus.open_corpus(out / "corpus").split("train")
    sizes = np.diff(split.offsets.astype(np.int64))
    windows = (-(-sizes // window)).sum() if longest else sizes.sum() // window
    batch = options.batch or _rows(int(windows), parallel.local(Devices()).count)
    steps = int(windows) // batch
    if not steps:
        raise UserError(
            f"the training texts have {int(windows)} windows of {window} bytes, too few for a "
            f"`batch` of {batch}; lower `batch` or `window`, or give more texts."
        )
    precision = run.config.precision
    compute = options.compute or precision.compute or environment.fastest_compute(model.hidden)
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
            start_from=str(run.folder),
            log_every=max(1, steps // 50),
            eval_every=steps,
            checkpoint_every=max(1, min(steps, 500)),
        ),
    )


def _rows(windows: int, devices: int) -> int:
    """Return the rows of a batch for so many windows: a power of two, or what devices can share."""
    rows = min(max(windows // _UPDATES, _LEAST_ROWS), _MOST_ROWS, max(windows, 1))
    rows = 2 ** int(math.log2(rows))
    return -(-rows // devices) * devices


def calibrated(classifier: Classifier, valid: Examples) -> Classifier:
    """Return a classifier as sure of itself as it may be, with thresholds of several labels.

    Its scores are divided by the temperature of the smallest loss (Guo et al. 2017, arXiv
    1706.04599), and classes stay the same. Without this the loss on held-out texts rises soon,
    while accuracy still rises, too: it would choose a checkpoint that is too early.
    """
    weights_KD, intercepts_K = classifier.weights_KD, classifier.intercepts_K
    tried = [
        classifier._replace(weights_KD=weights_KD / t, intercepts_K=intercepts_K / t)
        for t in 2.0 ** np.arange(0, 4.1, 0.25)
    ]
    classifier = min(tried, key=lambda one: one.loss(valid))
    if not classifier.thresholds:
        return classifier
    yes_NK = classifier.probabilities(valid.features)
    return classifier._replace(thresholds=best_thresholds(valid.labels, yes_NK))


def head(run: Run, task: Task) -> Classifier:
    """Return the label head of a trained run as a classifier of h; thresholds are 0.5.

    Raises UserError if the head has another number of classes or labels.
    """
    model, names, count = run.config.model, task.names, len(task.names)
    if (model.binary_labels if task.several else model.classes) != count:
        raise UserError(f"{run.folder} predicts {model.labels} labels, not those of the texts.")
    weights_KD = np.asarray(run.params["label_kernel"], np.float64).T
    intercepts_K = np.asarray(run.params["label_bias"], np.float64)
    if count == 2 and not task.several:
        # For two classes a softmax is the logistic function of the difference.
        weights_KD, intercepts_K = weights_KD[1:] - weights_KD[:1], np.diff(intercepts_K)
    weights_KD = np.ascontiguousarray(weights_KD)
    if task.several:
        Cs, thresholds = [math.inf] * count, [0.5] * count
        return Classifier(weights_KD, intercepts_K, names, Cs, thresholds=thresholds)
    return Classifier(weights_KD, intercepts_K, names, math.inf, softmax=count > 2)
