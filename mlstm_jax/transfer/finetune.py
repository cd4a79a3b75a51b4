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
from mlstm_jax.corpora.documents import Recipe, clean
from mlstm_jax.corpora.parts import sorted_here
from mlstm_jax.corpora.writer import check_out, durable, write_split
from mlstm_jax.data import corpus
from mlstm_jax.data.corpus import FORMAT_VERSION, Manifest
from mlstm_jax.errors import UserError, require
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.options import Cleaning, FinetuneOptions, State
from mlstm_jax.output import atomic_directory
from mlstm_jax.run import Run, as_weights, load_run
from mlstm_jax.training.train import Session, train
from mlstm_jax.transfer import words
from mlstm_jax.transfer.classifier import Classifier, Description, Examples, of_softmax
from mlstm_jax.transfer.features import Featurizer
from mlstm_jax.transfer.labels import Labelled, codes
from mlstm_jax.transfer.sets import Sets, note_known

# Rows of a batch, and the fewest updates of an epoch with enough windows (results/finetune/).
_LEAST_ROWS = 2
_MOST_ROWS = 32
_UPDATES = 40


def write_corpus(
    out: Path, train: Labelled, valid: Labelled, classes: Sequence[str], cleaning: Cleaning
) -> None:
    """Write the corpus of two sets of texts, by content, duplicates kept: always the same bytes."""
    splits = {}
    with atomic_directory(out, lambda: check_out(out, overwrite=True)) as folder:
        for name, part in (("train", train), ("valid", valid), ("test", Labelled([], []))):
            documents = []
            for text, code in zip(part.texts, codes(part.labels, classes), strict=True):
                cleaned = clean(text, cleaning)
                if cleaned:
                    documents.append((cleaned, float(code)))
            piece = sorted_here(documents, Recipe(dedupe="none"))
            splits[name] = write_split(folder, name, [piece], len(piece.rows), rated=True)
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
                f"{out} was made from different texts or labels; resume with the same files, or "
                "choose another folder with `out`."
            )


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
    write_corpus(out / "corpus", texts["train"], texts["valid"], classes, run.cleaning)
    try:
        config = make_config(run, _start(run, out), out, len(classes), options)
    except UserError:
        if is_new:  # or its corpus would refuse other texts
            shutil.rmtree(out)
        raise
    state: State = "mean_h" if config.model.bidirectional else "h"

    def measured(
        run: Run, names: Iterable[str], *, show_progress: bool
    ) -> tuple[Classifier, dict[str, Examples]]:
        """Its label head, calibrated, and the features of some texts."""
        featurizer = Featurizer(run, states=(state,))
        examples: dict[str, Examples] = {}
        for name in names:
            values = featurizer(
                texts[name].texts, f"features of {name}", show_progress=show_progress
            )
            labels_N = codes(texts[name].labels, classes)
            examples[name] = Examples(values, labels_N, texts[name].texts)
        return calibrated(head(run, classes), examples["valid"]), examples

    def score_labels(params: Parameters) -> tuple[float, float]:
        model = LanguageModel(config.model, config.precision)
        now = dataclasses.replace(run, config=config, model=model, params=params, batch_model=None)
        classifier, examples = measured(now, ["valid"], show_progress=False)
        return classifier.loss(examples["valid"]), classifier.score(examples["valid"])

    session = Session(
        score_labels=score_labels, show_progress=show_progress, owns_process=owns_process
    )
    tuned = load_run(train(config, session))
    alone, examples = measured(tuned, texts, show_progress=show_progress)
    if counted:
        words_NK = counted.probabilities(texts["valid"].texts)
        states_NK = alone.probabilities(examples["valid"].features)
        weight = words.best_weight(states_NK, words_NK, examples["valid"].labels)
        counted = dataclasses.replace(counted, weight=weight)
    about = Description(state, False, tuned.fingerprint, sets.text_column, step=tuned.step)
    classifier = alone._replace(words=counted, texts=np.unique(sets.same["train"]), about=about)
    accuracy = {name: classifier.score(part) for name, part in examples.items()}
    report = {
        "run": str(run.folder),
        "step": tuned.step,
        "notes": on_read + on_repeated,
        "classes": classes,
        "accuracy": accuracy,
    }
    without_words = {}
    if counted:
        without_words = {name: alone.score(part) for name, part in examples.items()}
        report |= {"without_words": without_words, "word_weight": counted.weight}
    (out / "classifier").mkdir(exist_ok=True)
    classifier.save(out / "classifier")
    output.write_text(out / "report.json", json.dumps(report, indent=2) + "\n")
    return Finetuned(tuned, classifier, accuracy, without_words)


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
