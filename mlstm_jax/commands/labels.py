"""Commands on what a model knows of labels: features, transfer, finetune, classify."""

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from mlstm_jax import out_folder
from mlstm_jax.commands import RunFolder, require_folder_of, require_same_model
from mlstm_jax.errors import UserError
from mlstm_jax.terminal import one_line, show

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mlstm_jax.transfer.features import Features, Featurizer


def _require_files(*paths: Path | None) -> None:
    """Raise UserError unless all files of texts can be opened: before a model is loaded."""
    from mlstm_jax.data.sources import check_source

    for path in paths:
        if path:
            check_source(path)


def _read(featurizer: "Featurizer", name: str, texts: list[str]) -> "Features":
    """Return the features of texts, with a progress line of a name."""
    from mlstm_jax.training.progress import ProgressLine

    with ProgressLine(name, len(texts)) as progress:
        return featurizer(texts, lambda count: progress.update(count, "texts"))


def features(
    run: RunFolder,
    source: Annotated[Path, Positional, arg(metavar="INPUT")],
    out: Path,
    state: tuple[Literal["c", "h", "mean_h"], ...] = ("c",),
    all_layers: bool = False,
    units: tuple[int, ...] | None = None,
    text_column: str | None = None,
    checkpoint: str = "best",
) -> None:
    """Write what a trained model makes of texts: its state after each, a row a record.

    OUT is an .npz of `features` float32 [records, columns], and `state`, `layer` and `unit` of each
    column. A record without text has the state of an empty one: zeros.

    Args:
        run: run folder.
        source: texts, in .csv, .tsv, .json, .jsonl or .txt, each also .gz.
        out: .npz to write.
        state: c, the cell state, or h, after the last byte; or mean_h, the mean of h over all
            bytes; one or several, all in one pass over the texts.
        all_layers: of every layer, the lowest first; otherwise the top one's.
        units: these units alone.
        text_column: field or column of the text; unset: text, reviewText, sentence, ...
        checkpoint: best (by validation BPC), latest, or a step.
    """
    _require_files(source)
    import time

    from mlstm_jax.run import load
    from mlstm_jax.transfer import feature_file
    from mlstm_jax.transfer.features import Featurizer
    from mlstm_jax.transfer.labels import read_texts

    if out.suffix != ".npz":
        raise UserError(f"--out {out} does not end in .npz; name it so.")
    require_folder_of(out)
    texts = read_texts(source, text_column)
    loaded = load(run, checkpoint)
    featurizer = Featurizer(loaded, states=state, all_layers=all_layers, units=units)
    started = time.monotonic()
    found = _read(featurizer, "features", texts)
    seconds = time.monotonic() - started
    feature_file.write(out, found, featurizer)
    show(
        f"{out}: {len(texts):,} texts x {found.shape[1]} features, {len(texts) / seconds:,.0f} "
        f"texts/s (checkpoint of step {loaded.step:,})"
    )


def transfer(
    run: RunFolder,
    train: Path,
    test: Path,
    out: Path,
    valid: Path | None = None,
    label_column: str = "label",
    text_column: str | None = None,
    state: tuple[Literal["c", "h", "mean_h"], ...] = ("c",),
    all_layers: bool = False,
    checkpoint: str = "best",
) -> None:
    """Classify texts by a frozen model's state: accuracies, the units that matter, a report.

    OUT gets report.md, report.json and pictures, and the classifier for `mlstm-jax classify`.
    TF-IDF and logistic regression on the same texts stand beside it. (Pictures: extra "plot".) Of
    several states each gets a folder of its own in OUT. The features are kept in OUT/features, and
    the same command, whenever it was stopped, goes on with them and makes all reports.

    Args:
        run: run folder.
        train: texts with labels, two or more, in .csv, .tsv, .json or .jsonl, each also .gz.
        test: likewise, to report the accuracy on.
        out: folder to write.
        valid: likewise, to choose the strength of the L1 penalty on; unset: cross-validation.
        label_column: field or column of the label, a number or a text.
        text_column: field or column of the text; unset: text, reviewText, sentence, ...
        state: c, the cell state, or h, after the last byte; or mean_h, the mean of h over all
            bytes; one or several, all in one pass over the texts.
        all_layers: of every layer; otherwise the top one's.
        checkpoint: best (by validation BPC), latest, or a step.
    """
    _require_files(train, valid, test)
    import time

    import numpy as np

    from mlstm_jax.interop.weights import fingerprint
    from mlstm_jax.run import load
    from mlstm_jax.training.progress import ProgressLine
    from mlstm_jax.transfer import classify as classifiers
    from mlstm_jax.transfer import experiment, feature_file
    from mlstm_jax.transfer.classify import Examples
    from mlstm_jax.transfer.features import Featurizer
    from mlstm_jax.transfer.labels import Labelled, read_labelled, require_classes

    kept = out / "features"
    folders = {one: out / one if len(state) > 1 else out for one in state}
    has_more = out.is_dir() and any(path != kept for path in out.iterdir())
    is_done = all((folder / experiment.REPORT).exists() for folder in folders.values())
    if out.exists() and (not out.is_dir() or (has_more and (is_done or not kept.is_dir()))):
        raise UserError(f"{out} exists; choose another folder with --out.")
    out_folder.require(out)

    def read(path: Path) -> Labelled:
        return read_labelled(path, text_column, label_column)

    texts: experiment.Texts = (read(train), read(valid) if valid else None, read(test))
    require_classes(train, texts[0])
    classes = texts[0].classes
    require_classes(test, texts[2], classes)
    if valid and texts[1]:
        require_classes(valid, texts[1], classes)
    loaded = load(run, checkpoint)
    model = fingerprint(loaded.params)
    featurizer = Featurizer(loaded, states=state, all_layers=all_layers)
    named = {name: part for name, part in zip(experiment.PARTS, texts, strict=True) if part}
    keys = {n: feature_file.key_of(model, featurizer, part.texts) for n, part in named.items()}
    made = {name: feature_file.read(kept / f"{name}.npz", keys[name]) for name in named}
    # The features of all texts come first: what is here without them is another command's.
    if has_more and any(found is None for found in made.values()):
        raise UserError(
            f"{out} exists, and the features in it are not of these texts, states and parameters; "
            "give the command that it was begun with, or choose another folder with --out."
        )
    features_of: dict[str, Features] = {}
    read_now, started = 0, time.monotonic()
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be made: {error.strerror or error}") from error
    for name, part in named.items():
        found = made[name]
        if found is None:
            found = _read(featurizer, f"features of {name}", part.texts)
            # Whatever fails from here on, they are the longer part of the work.
            feature_file.write(kept / f"{name}.npz", found, featurizer, keys[name])
            read_now += len(part.texts)
        features_of[name] = found
    if read_now:
        rate = read_now / (time.monotonic() - started)
        show(f"features of {read_now:,} texts: {rate:,.1f} texts/s", file=sys.stderr)
    if read_now < sum(len(part.texts) for part in named.values()):
        show(f"features in {kept} of the same texts are used", file=sys.stderr)

    name = f"{run.resolve().name}, step {loaded.step:,}"
    for one in state:
        chosen = np.flatnonzero(featurizer.state_of_column == one)
        columns = [
            experiment.Unit(int(featurizer.layer_of_column[n]), int(featurizer.unit_of_column[n]))
            for n in chosen
        ]

        def examples(part: str, chosen: "NDArray[np.intp]" = chosen) -> Examples | None:
            if part not in named:
                return None
            values = features_of[part]
            if len(state) > 1:
                values = values[:, chosen]
            return Examples(values, np.array([classes.index(x) for x in named[part].labels]))

        train_part, test_part = examples("train"), examples("test")
        assert train_part
        assert test_part
        with ProgressLine(f"classifier of {one}", experiment.PARTS_OF_A_RUN) as progress:
            classifier, result = experiment.run(
                train_part,
                examples("valid"),
                test_part,
                texts,
                classes,
                one,
                columns,
                progress.update,
            )
        folder = folders[one]
        folder.mkdir(exist_ok=True)
        (folder / experiment.REPORT).unlink(missing_ok=True)
        about = classifiers.Description(one, all_layers, model, text_column)
        classifiers.save(folder, classifier, about)
        experiment.write(folder, result, name)
        show((folder / experiment.REPORT).read_text(encoding="utf-8"))
        show(f"in {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def finetune(
    run: RunFolder,
    train: Path,
    valid: Path,
    out: Path,
    test: Path | None = None,
    label_column: str = "label",
    text_column: str | None = None,
    epochs: float = 3.0,
    learning_rate: float = 1e-3,
    label_weight: float = 1000.0,
    batch: int = 32,
    window: int = 128,
    dropout: float = 0.2,
    seed: int = 0,
    checkpoint: str = "best",
) -> None:
    """Train a model on to tell labels, end to end, with its language model beside.

    OUT gets corpus/, run/ (a run folder), classifier/ (for `mlstm-jax classify OUT/run`) and
    report.json. The same command goes on with a run that was stopped.

    Args:
        run: run folder, trained or imported.
        train: texts with labels, two or more, in .csv, .tsv, .json or .jsonl, each also .gz.
        valid: likewise; their bits per character choose the checkpoint, their accuracy is told.
        out: folder to write, or to go on in.
        test: likewise, to report the accuracy on.
        label_column: field or column of the label, a number or a text.
        text_column: field or column of the text; unset: text, reviewText, sentence, ...
        epochs: passes over the training texts.
        learning_rate: the largest, a tenth of the way; then it falls to a 32nd.
        label_weight: how many bytes of the language model's loss one label counts as.
        batch: rows in the global batch.
        window: bytes of truncated back-propagation.
        dropout: fraction of the units of each layer's output that are left out.
        seed: of dropout and of the order of the text.
        checkpoint: of the finished run, for the classifier: best (by validation BPC), or latest.
    """
    _require_files(train, valid, test)
    import numpy as np

    from mlstm_jax.interop.weights import fingerprint
    from mlstm_jax.run import load
    from mlstm_jax.training.loop import train as run_train
    from mlstm_jax.transfer import classify as classifiers
    from mlstm_jax.transfer import finetune as tuning
    from mlstm_jax.transfer.features import Featurizer
    from mlstm_jax.transfer.labels import read_labelled, require_classes

    out_folder.require(out)
    paths = {"train": train, "valid": valid} | ({"test": test} if test else {})
    tables = {name: read_labelled(path, text_column, label_column) for name, path in paths.items()}
    require_classes(train, tables["train"])
    classes = tables["train"].classes
    for name, path in paths.items():
        require_classes(path, tables[name], classes)
    loaded = load(run)
    out.mkdir(parents=True, exist_ok=True)
    tuning.write_corpus(out / "corpus", tables["train"], tables["valid"], classes, loaded.cleaning)
    config = tuning.make_config(
        loaded,
        out,
        len(classes),
        epochs=epochs,
        learning_rate=learning_rate,
        label_weight=label_weight,
        batch=batch,
        window=window,
        dropout=dropout,
        seed=seed,
    )
    tuned = load(run_train(config), checkpoint)
    classifier = tuning.head(tuned, classes)
    (out / "classifier").mkdir(exist_ok=True)
    about = classifiers.Description("h", False, fingerprint(tuned.params), text_column)
    classifiers.save(out / "classifier", classifier, about)
    featurizer = Featurizer(tuned, states=("h",))
    accuracies = {}
    for name, table in tables.items():
        read = _read(featurizer, f"features of {name}", table.texts)
        labels = np.array([classes.index(label) for label in table.labels])
        accuracies[name] = classifier.accuracy(classifiers.Examples(read, labels))
    result = {"run": str(run), "step": tuned.step, "classes": classes, "accuracy": accuracies}
    (out / "report.json").write_text(json.dumps(result, indent=2) + "\n")
    shown = ", ".join(f"{name} {100 * score:.1f}" for name, score in accuracies.items())
    show(f"\naccuracy, %: {shown} (step {tuned.step:,})\nin {out}: run/, classifier/, report.json")


def classify(
    run: RunFolder,
    classifier: Annotated[Path, Positional, arg(metavar="DIR")],
    source: Annotated[Path, Positional, arg(metavar="INPUT")],
    out: Path | None = None,
    text_column: str | None = None,
    checkpoint: str = "best",
) -> None:
    """Label texts with a classifier that `transfer` made: CSV of text, label and probabilities.

    `record` counts the records of INPUT, from 1.

    Args:
        run: run folder of the model that the classifier was made with.
        classifier: folder of `mlstm-jax transfer`, or classifier/ of `finetune`.
        source: texts, in .csv, .tsv, .json, .jsonl or .txt, each also .gz.
        out: .csv to write; unset: standard output.
        text_column: field or column of the text; unset: that of the classifier's own texts.
        checkpoint: best (by validation BPC), latest, or a step.
    """
    _require_files(source)
    import csv

    from mlstm_jax.interop.weights import fingerprint
    from mlstm_jax.run import load
    from mlstm_jax.transfer import classify as classifiers
    from mlstm_jax.transfer.features import Featurizer
    from mlstm_jax.transfer.labels import read_texts

    if out:
        require_folder_of(out)
    chosen, about = classifiers.load(classifier)
    texts = read_texts(source, text_column or about.text_column)
    loaded = load(run, checkpoint)
    require_same_model(classifier, about.model, fingerprint(loaded.params), run)
    featurizer = Featurizer(loaded, states=(about.state,), all_layers=about.all_layers)
    if chosen.weights_KD.shape[1] != featurizer.width:
        raise UserError(
            f"{classifier} reads {chosen.weights_KD.shape[1]} features, but {run} has "
            f"{featurizer.width}; make it again with `mlstm-jax transfer`."
        )
    probabilities = chosen.probabilities(_read(featurizer, "classify", texts))
    # A file or another program gets the labels as they are, a terminal what it can show.
    to_people = not out and sys.stdout.isatty()
    names = [one_line(name) for name in chosen.classes] if to_people else chosen.classes
    opened = out.open("w", newline="", encoding="utf-8", errors="replace") if out else None
    with opened or contextlib.nullcontext(sys.stdout) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["record", "text", "label", *(f"p({name})" for name in names)])
        for number, (text, row) in enumerate(zip(texts, probabilities, strict=True), 1):
            shown = one_line(text) if to_people else text
            writer.writerow([number, shown, names[row.argmax()], *(f"{p:.4f}" for p in row)])
    if out:
        show(f"{out}: {len(texts):,} texts")
