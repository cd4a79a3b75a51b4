"""A model trained on to tell labels, end to end, beside its language model.

The labelled texts become a corpus whose ratings are the numbers of their classes, and the trainer
does the rest (devices, precision, checkpoints, exact resume): at the end of each document a linear
head reads h of the top layer, and its cross-entropy counts as `label_weight` bytes of the language
model's loss (Howard and Ruder 2018 and Radford et al. 2018 keep that loss, too). The folder holds::

    corpus/        the texts, in the order they are read
    run/           a run folder like any other
    classifier/    the head, for `mlstm-jax classify`
"""

import dataclasses
import math
from pathlib import Path

import numpy as np

from mlstm_jax.config import Config, Data, Model, Optimizer, Train
from mlstm_jax.data import corpus
from mlstm_jax.data.corpus import FORMAT_VERSION, Manifest
from mlstm_jax.data.corpus_writer import check_out, durable, write_split
from mlstm_jax.data.documents import Cleaning, clean, in_order
from mlstm_jax.errors import UserError
from mlstm_jax.output import atomic_directory
from mlstm_jax.run import Run
from mlstm_jax.transfer.classify import Classifier
from mlstm_jax.transfer.labels import Labelled


def write_corpus(
    out: Path, train: Labelled, valid: Labelled, classes: list[str], cleaning: Cleaning
) -> None:
    """Write the corpus of two sets of labelled texts, ordered by content, duplicates kept.

    Writing it again gives the same bytes, so that an interrupted run goes on.

    Raises:
        UserError: there is one already, of other texts.
    """
    splits = {}
    with atomic_directory(out, lambda: check_out(out, overwrite=True)) as folder:
        for name, part in (("train", train), ("valid", valid), ("test", None)):
            labelled = (
                (clean(text, cleaning), float(classes.index(label)))
                for text, label in (zip(*part, strict=True) if part else ())
            )
            texts = ((text, label) for text, label in labelled if text)
            documents = list(in_order(texts, seed=0, dedupe="none"))
            splits[name] = write_split(folder, name, documents, len(documents), rated=True)
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
        made = corpus.open_corpus(folder)
        if out.exists() and corpus.open_corpus(out).identity != made.identity:
            raise UserError(
                f"{out} is of other texts or labels than are given now; go on with the same, or "
                "choose another folder with --out."
            )


def make_config(
    run: Run,
    out: Path,
    classes: int,
    *,
    epochs: float,
    learning_rate: float,
    label_weight: float,
    batch: int,
    window: int,
    dropout: float,
    seed: int,
) -> Config:
    """Return the config of the run, with a checkpoint an epoch and the corpus read anew in each."""
    model = dataclasses.asdict(run.config.model) | {"classes": classes, "rating_head": False}
    size = corpus.open_corpus(out / "corpus").manifest.splits["train"].bytes
    steps = max(1, size // (batch * window))
    return Config(
        out=str(out / "run"),
        model=Model(**model),
        data=Data(
            corpus=str(out / "corpus"), batch=batch, window=window, shuffle_shards=True, seed=seed
        ),
        optimizer=Optimizer(
            learning_rate=learning_rate, schedule="triangular", name="adam", clip_norm=1.0
        ),
        precision=run.config.precision,
        train=Train(
            epochs=epochs,
            label_weight=label_weight,
            dropout=dropout,
            seed=seed,
            start_from=str(run.folder),
            log_every=max(1, steps // 10),
            eval_every=steps,
            checkpoint_every=max(1, min(steps, 500)),
        ),
    )


def head(run: Run, classes: list[str]) -> Classifier:
    """Return the label head of a trained run as a classifier of h.

    Raises UserError where it has none for these classes.
    """
    if run.config.model.classes != len(classes):
        raise UserError(f"{run.folder} tells {run.config.model.classes} classes, not these.")
    weights_KD = np.asarray(run.params["label_kernel"], np.float64).T
    intercepts_K = np.asarray(run.params["label_bias"], np.float64)
    if len(classes) == 2:
        # Of two classes a softmax is the logistic function of the difference.
        weights_KD, intercepts_K = weights_KD[1:] - weights_KD[:1], np.diff(intercepts_K)
    weights_KD = np.ascontiguousarray(weights_KD)
    return Classifier(weights_KD, intercepts_K, classes, math.inf, softmax=len(classes) > 2)
