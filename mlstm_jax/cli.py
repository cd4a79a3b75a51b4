"""The `mlstm-jax` command: one function a subcommand, its docstring the help.

Exit codes: 0 done, 1 failed (a run that diverged), 2 a mistake in what was given, 130 interrupted.
Heavy imports are inside the functions, so that help and errors are quick.
"""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import FlagCreatePairsOff, Positional, arg

from mlstm_jax import __version__
from mlstm_jax.errors import KnownError, UserError

if TYPE_CHECKING:
    from mlstm_jax.config import Config

_RunFolder = Annotated[Path, Positional, arg(metavar="RUN")]


def prepare(
    sources: Annotated[list[str], Positional, arg(metavar="SOURCE [SOURCE ...]")],
    out: Path,
    text_field: str | None = None,
    rating_field: str | None = None,
    document: Literal["line", "paragraph", "file"] | None = None,
    split: str = "1000,1,1",
    seed: int = 0,
    clean: Literal["radford", "none", "protein"] = "radford",
    keep_duplicates: bool = False,
    overwrite: bool = False,
) -> None:
    """Make a corpus folder from files of text.

    Args:
        sources: .json, .jsonl, .csv, .tsv, .txt files, each also .gz; `pydoc:` is Python's docs.
        out: folder to write; it appears whole or not at all.
        text_field: field of the text; unset: text, reviewText, review_body, sentence or content.
        rating_field: field of a rating to keep; unset: rating, overall, star_rating or stars.
        document: what one document of a text file is; unset: a line.
        split: documents in train, valid and test, as weights. Paper: 1000,1,1.
        seed: of the order of the documents, which hangs on it and on their content alone.
        clean: radford: unescape HTML, newlines to spaces, strip, pad; none: the text as it is;
            protein: sequences of amino acids, as UniRep reads them.
        keep_duplicates: keep documents of the same cleaned text. Paper: removed.
        overwrite: replace the corpus that is there.
    """
    from mlstm_jax.data import corpus
    from mlstm_jax.data.prepare import prepare as run_prepare

    run_prepare(
        sources,
        out,
        text_field=text_field,
        rating_field=rating_field,
        document=document,
        split=_split(split),
        seed=seed,
        cleaning=clean,
        keep_duplicates=keep_duplicates,
        overwrite=overwrite,
        progress=True,
    )
    print(corpus.describe(corpus.open_corpus(out)))


def _split(text: str) -> tuple[int, int, int]:
    try:
        train, valid, test = (int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--split {text!r} is not three whole numbers, train, valid and test: 1000,1,1"
        ) from None
    return train, valid, test


def inspect(corpus: Annotated[Path, Positional, arg(metavar="DIR")], verify: bool = False) -> None:
    """Show what is in a corpus folder.

    Args:
        corpus: folder made by `prepare`.
        verify: recompute the checksums, and fail if one differs.
    """
    from mlstm_jax.data import corpus as corpora

    opened = corpora.open_corpus(corpus)
    print(corpora.describe(opened))
    if verify:
        wrong = corpora.verify(opened)
        if wrong:
            raise UserError(
                f"{corpus}: {', '.join(wrong)} is not what the manifest says; prepare it again."
            )
        print("checksums: all agree")


def train(arguments: Sequence[str], program: str) -> None:
    """Train a model, or go on with an unfinished run; without a config, the quickstart."""
    from mlstm_jax import config as configs
    from mlstm_jax import quickstart
    from mlstm_jax.training import environment

    config, resume, reset_carry = configs.parse(arguments, quickstart.config, program)
    environment.prepare(config.devices)
    is_quickstart = config.data.corpus == quickstart.config.data.corpus
    if is_quickstart:
        quickstart.prepare_corpus()
    from mlstm_jax.training.cluster import place
    from mlstm_jax.training.loop import train as run_train

    here = place(config.distributed, os.environ)
    run = run_train(config, resume=resume, reset_carry=reset_carry)
    if here.processes > 1:
        if here.index == 0:
            print(f"\ndone; `mlstm-jax report {run}` shows what it learned")
        return
    report(run)
    if is_quickstart:
        print("\n" + quickstart.next_steps(run))


def plan(arguments: Sequence[str]) -> None:
    """Say how long a config takes on a machine: seconds a step, hours, memory and cost."""
    from mlstm_jax import config as configs
    from mlstm_jax import plan as planning
    from mlstm_jax import quickstart
    from mlstm_jax.data.corpus import open_corpus

    default, rest = configs.take_file(arguments, quickstart.config)

    @dataclass(frozen=True, kw_only=True)
    class Arguments:
        config: Annotated[configs.Config, arg(name="")] = default
        # Description of the machine, JSON; configs/machines/ has ready ones.
        machine: Path
        # Numbers of devices to plan for, over all nodes.
        gpus: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
        # Bytes of the training split; unset: those of data.corpus, if it is there.
        corpus_bytes: float | None = None
        # Results of `benchmarks/train_step.py --json` on such a device: its measured rate.
        rates: Path | None = None
        # Price of one device for an hour; unset: the description's.
        price: float | None = None
        # Also write the plan here, as JSON.
        json: Path | None = None

    given = tyro.cli(
        Arguments,
        args=rest,
        prog="mlstm-jax plan [CONFIG.py]",
        description="Seconds an iteration, bytes a second, memory, hours and cost of a config on "
        "1 to many devices, by a roofline of the step and a ring all-reduce. CONFIG.py sets the "
        "fields of the run, the options override them, as with train.",
    )
    config, machine = given.config, planning.load_machine(given.machine)
    if given.rates:
        machine = planning.with_measured_rate(
            machine, given.rates, config.precision.compute, config.model.hidden
        )
    if given.price is not None:
        machine = dataclasses.replace(machine, price_per_device_hour=given.price)
    if not given.gpus or min(given.gpus) < 1:
        raise UserError(f"--gpus is {given.gpus}, but it must be numbers of at least 1.")
    corpus_bytes = given.corpus_bytes
    folder = Path(config.data.corpus)
    if corpus_bytes is None and folder.is_dir():
        corpus_bytes = open_corpus(folder).manifest.splits["train"].bytes
    rows = planning.plan(config, machine, list(given.gpus), corpus_bytes)
    if given.json:
        text = json.dumps({"machine": machine.name, "rows": planning.as_json(rows)}, indent=2)
        given.json.write_text(text + "\n")
    print(planning.describe(config, machine, rows, corpus_bytes))


def evaluate(
    run: _RunFolder,
    corpus: Path | None = None,
    split: Literal["train", "valid", "test"] = "test",
    checkpoint: str = "best",
    json_path: Annotated[Path | None, arg(name="json")] = None,
) -> None:
    """Score a trained model on a split: bits per character, bytes scored, seconds.

    Args:
        run: run folder.
        corpus: corpus folder; unset: the one it was trained on.
        split: which part of it.
        checkpoint: best (by validation BPC), latest, or a step.
        json_path: also write the result here, as JSON.
    """
    from mlstm_jax.config import Devices
    from mlstm_jax.data.corpus import open_corpus
    from mlstm_jax.evaluation import Evaluator
    from mlstm_jax.run import load
    from mlstm_jax.training import parallel
    from mlstm_jax.training.progress import ProgressLine

    loaded = load(run, checkpoint)
    opened = open_corpus(corpus or Path(loaded.config.data.corpus))
    devices = parallel.local(Devices())
    evaluator = Evaluator(loaded.model, opened.split(split), loaded.config.data.window, devices)
    with ProgressLine("evaluate", evaluator.stream.steps) as progress:
        score = evaluator(
            devices.replicate(loaded.params), lambda step: progress.update(step, "windows")
        )
    result = {
        "run": str(run),
        "step": loaded.step,
        "corpus": str(opened.path),
        "split": split,
        "bpc": score.bpc,
        "loss": score.loss,
        "bytes_scored": score.bytes_scored,
        "seconds": score.seconds,
    }
    if json_path:
        json_path.write_text(json.dumps(result, indent=2) + "\n")
    print(
        f"{split} bpc {score.bpc:.4f} over {score.bytes_scored:,} bytes in {score.seconds:.1f} s "
        f"(checkpoint of step {loaded.step:,})"
    )


def generate(
    run: _RunFolder,
    prompt: str = "",
    length: int = 400,
    temperature: float = 0.7,
    top_k: int | None = None,
    top_p: float | None = None,
    samples: int = 1,
    set_unit: tuple[str, ...] = (),
    stop: str = "",
    seed: int = 0,
    checkpoint: str = "best",
) -> None:
    """Let a trained model go on with a prompt.

    Args:
        run: run folder.
        prompt: text to go on with; empty: a document from its beginning.
        length: bytes to generate, at most.
        temperature: 1 is the model's own distribution, lower is safer, 0 takes the likeliest byte.
        top_k: draw from the k likeliest bytes alone.
        top_p: draw from the fewest bytes that have this probability together alone.
        samples: how many texts.
        set_unit: UNIT=VALUE, any number of them: hold a unit of the top layer's cell state.
        stop: a byte that ends a text, as it is or as \\n, \\x02; a review ends at \\n.
        seed: the same seed gives the same texts.
        checkpoint: best (by validation BPC), latest, or a step.
    """
    from mlstm_jax.run import load
    from mlstm_jax.transfer.generate import as_text
    from mlstm_jax.transfer.generate import generate as run_generate

    held = dict(_held(text) for text in set_unit)
    loaded = load(run, checkpoint)
    pieces = run_generate(
        loaded,
        prompt,
        length=length,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        samples=samples,
        held=held,
        stop=_byte(stop),
    )
    if samples == 1:
        print(prompt, end="", flush=True)
        for text in as_text(piece for (piece,) in pieces):
            print(text, end="", flush=True)
        print()
        return
    for number, whole in enumerate(zip(*pieces, strict=True), 1):
        print(f"--- {number} of {samples}\n{prompt}{''.join(as_text(iter(whole)))}")


def _held(text: str) -> tuple[int, float]:
    unit, _, value = text.partition("=")
    try:
        return int(unit), float(value)
    except ValueError:
        raise UserError(f"--set-unit {text!r} is not UNIT=VALUE, such as 2388=1.5") from None


def _byte(text: str) -> bytes:
    """Return one byte that is written as it is or as an escape, or none."""
    try:
        found = text.encode("latin-1").decode("unicode_escape").encode("latin-1")
    except UnicodeError:
        found = b"??"
    if len(found) > 1:
        raise UserError(f"--stop {text!r} is not one byte; write it as it is, or as \\n or \\x02.")
    return found


def heatmap(
    run: _RunFolder,
    unit: int,
    out: Path,
    text: str = "",
    file: Path | None = None,
    scale: float | None = None,
    checkpoint: str = "best",
) -> None:
    """Colour a text by the value of one unit, as a page that needs no network or as a picture.

    Args:
        run: run folder.
        unit: unit of the top layer's cell state; `mlstm-jax transfer` finds the ones that matter.
        out: .html or .png to write.
        text: what to read.
        file: read this file instead.
        scale: the value of the fullest colour; unset: the largest in the text.
        checkpoint: best (by validation BPC), latest, or a step.
    """
    from mlstm_jax.run import load
    from mlstm_jax.transfer.heatmap import heat, write
    from mlstm_jax.transfer.reader import Reader

    if file is not None:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    made = heat(Reader(load(run, checkpoint)), text, unit, scale)
    write(out, made)
    print(
        f"{out}: {len(made.texts):,} characters, unit {unit} from {made.values.min():.3f} to "
        f"{made.values.max():.3f}"
    )


def schedule(arguments: Sequence[str]) -> None:
    """Show the learning rate of a config over its run, as a table or a picture."""
    from mlstm_jax import config as configs
    from mlstm_jax import quickstart

    default, rest = configs.take_file(arguments, quickstart.config)

    @dataclass(frozen=True, kw_only=True)
    class Arguments:
        config: Annotated[configs.Config, arg(name="")] = default
        # Devices that a config with data.batch_per_device runs on.
        gpus: int = 1
        # Bytes of the training split; unset: those of data.corpus, which must be there then.
        corpus_bytes: float | None = None
        # Also draw it, as a .png, .svg or .pdf (needs the extra "plot").
        plot: Path | None = None

    given = tyro.cli(
        Arguments,
        args=rest,
        prog="mlstm-jax schedule [CONFIG.py]",
        description="The learning rate of a config over its run: scaling, warm-up and decay. "
        "CONFIG.py sets the fields, the options override them, as with train.",
    )
    from mlstm_jax.data.corpus import open_corpus
    from mlstm_jax.training import schedule as schedules
    from mlstm_jax.training.parts import total_steps, train_stream

    config = configs.resolve_batch(given.config, given.gpus)
    if given.corpus_bytes is None:
        stream = train_stream(config, open_corpus(Path(config.data.corpus)))
        steps_per_epoch = stream.steps_per_epoch
    else:
        steps_per_epoch = int(given.corpus_bytes // (config.data.batch * config.data.window))
    total = total_steps(config.train, max(1, steps_per_epoch))
    drawn = schedules.draw(config.optimizer, config.data.batch, total, steps_per_epoch)
    print(drawn.text)
    if given.plot:
        schedules.plot(drawn, given.plot)
        print(f"drawn: {given.plot}")


def sweep(
    spec: Annotated[Path, Positional, arg(metavar="SPEC.py")],
    out: Path,
    table_only: bool = False,
) -> None:
    """Train all runs of a specification, one after the other, and make their table.

    A run that is finished or has diverged is not run again; stop it at any time, and go on with
    the same command. OUT/table.md has the validation BPC of each, OUT/table.csv every figure.

    Args:
        spec: Python file that sets `runs = {(ROW, COLUMN): Config(...)}`; see configs/sweeps/.
        out: folder of the run folders, OUT/ROW/COLUMN, and of the tables.
        table_only: train nothing; make the tables of what is there.
    """
    from mlstm_jax import sweep as sweeps

    runs = sweeps.load(spec)

    def write_tables() -> str:
        results = [sweeps.result(key, sweeps.folder(out, key)) for key in runs]
        table = sweeps.as_markdown(results)
        out.mkdir(parents=True, exist_ok=True)
        (out / "table.csv").write_text(sweeps.as_csv(results))
        (out / "table.md").write_text(table)
        return table

    if not table_only:
        waiting = list(sweeps.pending(runs, out))
        for number, (key, config) in enumerate(waiting, 1):
            print(f"\n{number} of {len(waiting)}: {key[0]} / {key[1]}", file=sys.stderr)
            _train_one(config)
            write_tables()
    print(write_tables())
    print(f"every figure: {out / 'table.csv'}")


def _train_one(config: "Config") -> None:
    """Train a run of a sweep; one that diverges is a result, too."""
    import jax

    from mlstm_jax.training.loop import train as run_train
    from mlstm_jax.training.reporter import Diverged

    try:
        run_train(config)
    except Diverged as error:
        print(f"diverged: {error}", file=sys.stderr)
    jax.clear_caches()


def report(run: _RunFolder, corpus: Path | None = None) -> None:
    """Show what a run learned: its BPC beside gzip, bz2 and xz, and a sample of its text.

    Args:
        run: run folder.
        corpus: corpus folder; unset: the one it was trained on.
    """
    from mlstm_jax.report import report as make_report

    print("\n" + make_report(run, corpus))


def features(
    run: _RunFolder,
    source: Annotated[Path, Positional, arg(metavar="INPUT")],
    out: Path,
    state: Literal["c", "h", "mean_h"] = "c",
    all_layers: bool = False,
    units: tuple[int, ...] | None = None,
    text_column: str | None = None,
    checkpoint: str = "best",
) -> None:
    """Write what a trained model makes of texts: its state after each, a row a record.

    OUT is an .npz of `features` float32 [records, units], `layer` and `unit` of each column, and
    `state`. A record without text has the state of an empty one: zeros.

    Args:
        run: run folder.
        source: texts, in .csv, .tsv, .json, .jsonl or .txt, each also .gz.
        out: .npz to write.
        state: c, the cell state, or h, after the last byte; or the mean of h over all bytes.
        all_layers: of every layer, the lowest first; otherwise the top one's.
        units: these units alone.
        text_column: field or column of the text; unset: text, reviewText, sentence, ...
        checkpoint: best (by validation BPC), latest, or a step.
    """
    import time

    import numpy as np

    from mlstm_jax.run import load
    from mlstm_jax.training.progress import ProgressLine
    from mlstm_jax.transfer.features import Featurizer
    from mlstm_jax.transfer.labels import read_texts

    if out.suffix != ".npz":
        raise UserError(f"--out {out} does not end in .npz; name it so.")
    texts = read_texts(source, text_column)
    loaded = load(run, checkpoint)
    featurizer = Featurizer(loaded, state=state, all_layers=all_layers, units=units)
    started = time.monotonic()
    with ProgressLine("features", len(texts)) as progress:
        found = featurizer(texts, lambda count: progress.update(count, "texts"))
    seconds = time.monotonic() - started
    partial = out.with_name(f"{out.name}.partial")
    with partial.open("wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            features=found,
            layer=featurizer.layer_of_column,
            unit=featurizer.unit_of_column,
            state=np.array(state),
        )
    partial.replace(out)
    print(
        f"{out}: {len(texts):,} texts x {found.shape[1]} features, {len(texts) / seconds:,.0f} "
        f"texts/s (checkpoint of step {loaded.step:,})"
    )


def transfer(
    run: _RunFolder,
    train: Path,
    test: Path,
    out: Path,
    valid: Path | None = None,
    label_column: str = "label",
    text_column: str | None = None,
    state: Literal["c", "h", "mean_h"] = "c",
    all_layers: bool = False,
    checkpoint: str = "best",
) -> None:
    """Classify texts by a frozen model's state: accuracies, the units that matter, a report.

    OUT gets report.md, report.json and pictures, and the classifier for `mlstm-jax classify`.
    TF-IDF and logistic regression on the same texts stand beside it.

    Args:
        run: run folder.
        train: texts with labels, two or more, in .csv, .tsv, .json or .jsonl, each also .gz.
        test: likewise, to report the accuracy on.
        out: folder to write.
        valid: likewise, to choose the strength of the L1 penalty on; unset: cross-validation.
        label_column: field or column of the label, a number or a text.
        text_column: field or column of the text; unset: text, reviewText, sentence, ...
        state: c, the cell state, or h, after the last byte; or the mean of h over all bytes.
        all_layers: of every layer; otherwise the top one's.
        checkpoint: best (by validation BPC), latest, or a step.
    """
    import numpy as np

    from mlstm_jax.interop.weights import fingerprint
    from mlstm_jax.run import load
    from mlstm_jax.training.progress import ProgressLine
    from mlstm_jax.transfer import classify as classifiers
    from mlstm_jax.transfer import experiment
    from mlstm_jax.transfer.features import Featurizer
    from mlstm_jax.transfer.labels import Labelled, read_labelled, require_classes

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists; choose another folder with --out.")

    def read(path: Path) -> Labelled:
        return read_labelled(path, text_column, label_column)

    texts: experiment.Texts = (read(train), read(valid) if valid else None, read(test))
    require_classes(train, texts[0])
    classes = texts[0].classes
    require_classes(test, texts[2], classes)
    if valid and texts[1]:
        require_classes(valid, texts[1], classes)
    loaded = load(run, checkpoint)
    featurizer = Featurizer(loaded, state=state, all_layers=all_layers)

    def examples(name: str, table: Labelled) -> classifiers.Examples:
        with ProgressLine(f"features of {name}", len(table.texts)) as progress:
            read = featurizer(table.texts, lambda count: progress.update(count, "texts"))
        labels = np.array([classes.index(label) for label in table.labels])
        return classifiers.Examples(read, labels)

    parts = (
        examples("train", texts[0]),
        examples("valid", texts[1]) if texts[1] else None,
        examples("test", texts[2]),
    )
    with ProgressLine("classifier", experiment.PARTS_OF_A_RUN) as progress:
        classifier, result = experiment.run(*parts, texts, classes, progress.update)
    out.mkdir(parents=True, exist_ok=True)
    name = f"{run.resolve().name}, step {loaded.step:,}"
    about = classifiers.Description(state, all_layers, fingerprint(loaded.params), text_column)
    classifiers.save(out, classifier, about)
    experiment.write(out, result, name)
    print((out / "report.md").read_text())
    print(f"in {out}: {', '.join(sorted(path.name for path in out.iterdir()))}")


def finetune(
    run: _RunFolder,
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
    import numpy as np

    from mlstm_jax.interop.weights import fingerprint
    from mlstm_jax.run import load
    from mlstm_jax.training.loop import train as run_train
    from mlstm_jax.training.progress import ProgressLine
    from mlstm_jax.transfer import classify as classifiers
    from mlstm_jax.transfer import finetune as tuning
    from mlstm_jax.transfer.features import Featurizer
    from mlstm_jax.transfer.labels import read_labelled, require_classes

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
    featurizer = Featurizer(tuned, state="h")
    accuracies = {}
    for name, table in tables.items():
        with ProgressLine(f"texts of {name}", len(table.texts)) as progress:
            read = featurizer(table.texts, lambda count: progress.update(count, "texts"))
        labels = np.array([classes.index(label) for label in table.labels])
        accuracies[name] = classifier.accuracy(classifiers.Examples(read, labels))
    result = {"run": str(run), "step": tuned.step, "classes": classes, "accuracy": accuracies}
    (out / "report.json").write_text(json.dumps(result, indent=2) + "\n")
    shown = ", ".join(f"{name} {100 * score:.1f}" for name, score in accuracies.items())
    print(f"\naccuracy, %: {shown} (step {tuned.step:,})\nin {out}: run/, classifier/, report.json")


def classify(
    run: _RunFolder,
    classifier: Annotated[Path, Positional, arg(metavar="DIR")],
    source: Annotated[Path, Positional, arg(metavar="INPUT")],
    out: Path | None = None,
    text_column: str | None = None,
    checkpoint: str = "best",
) -> None:
    """Label texts with a classifier that `transfer` made: CSV of label and probabilities.

    Args:
        run: run folder of the model that the classifier was made with.
        classifier: folder of `mlstm-jax transfer`.
        source: texts, in .csv, .tsv, .json, .jsonl or .txt, each also .gz.
        out: .csv to write; unset: standard output.
        text_column: field or column of the text; unset: that of the classifier's own texts.
        checkpoint: best (by validation BPC), latest, or a step.
    """
    import csv

    from mlstm_jax.interop.weights import fingerprint
    from mlstm_jax.run import load
    from mlstm_jax.training.progress import ProgressLine
    from mlstm_jax.transfer import classify as classifiers
    from mlstm_jax.transfer.features import Featurizer
    from mlstm_jax.transfer.labels import read_texts

    chosen, about = classifiers.load(classifier)
    loaded = load(run, checkpoint)
    _require_same_model(classifier, about.model, fingerprint(loaded.params), run)
    texts = read_texts(source, text_column or about.text_column)
    featurizer = Featurizer(loaded, state=about.state, all_layers=about.all_layers)  # type: ignore[arg-type]
    with ProgressLine("classify", len(texts)) as progress:
        read = featurizer(texts, lambda count: progress.update(count, "texts"))
    probabilities = chosen.probabilities(read)
    with out.open("w", newline="") if out else contextlib.nullcontext(sys.stdout) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["label", *(f"p({name})" for name in chosen.classes)])
        for row, best in zip(probabilities, probabilities.argmax(axis=1), strict=True):
            writer.writerow([chosen.classes[best], *(f"{p:.4f}" for p in row)])
    if out:
        print(f"{out}: {len(texts):,} texts")


def _require_same_model(classifier: Path, made_with: str, given: str, run: Path) -> None:
    if made_with != given:
        raise UserError(
            f"{classifier} was made with other parameters than those of {run}; name that run and "
            "--checkpoint, or make it again with `mlstm-jax transfer`."
        )


def view(
    run: _RunFolder,
    classifier: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    checkpoint: str = "best",
) -> None:
    """Open a local page: write a text, and see units, classes and bytes to come; let it go on.

    Args:
        run: run folder.
        classifier: folder of `mlstm-jax transfer` with this run, to show class probabilities.
        host: where to listen; 127.0.0.1 is this machine alone. The page asks nobody who they are.
        port: 0 takes a free one.
        checkpoint: best (by validation BPC), latest, or a step.
    """
    try:
        import starlette as _
        import uvicorn as _  # noqa: F401, F811
    except ImportError as error:
        raise UserError(f"the page needs {error.name}: pip install 'mlstm-jax[view]'") from error
    from mlstm_jax.interop.weights import fingerprint
    from mlstm_jax.run import load
    from mlstm_jax.transfer import classify as classifiers
    from mlstm_jax.view.server import Viewer, bind, serve

    loaded, chosen = load(run, checkpoint), None
    if classifier:
        chosen, about = classifiers.load(classifier)
        _require_same_model(classifier, about.model, fingerprint(loaded.params), run)
        if about.state != "c":
            raise UserError(f"{classifier} reads {about.state}, but the page shows c alone.")
    address = bind(host, port)
    viewer = Viewer(loaded, chosen)
    print(f"{address.url} shows {run}, step {loaded.step:,}; Ctrl-C ends it", flush=True)
    serve(viewer, address, host)


def import_(
    kind: Annotated[
        Literal["openai", "nvidia", "unirep", "mlstm"], Positional, arg(metavar="KIND")
    ],
    source: Annotated[Path, Positional, arg(metavar="SOURCE")],
    out: Path,
) -> None:
    """Make a run folder of other people's weights: openai, nvidia, unirep, or what export wrote.

    The folder can be used like one that was trained here: features, transfer, generate, evaluate.
    Nothing in the files is executed.

    Args:
        kind: openai: the folder of 0.npy to 14.npy of generating-reviews-discovering-sentiment;
            nvidia: a state_dict .pt of sentiment-discovery (needs the extra "torch"); unirep: the
            folder of embed_matrix:0.npy and the others; mlstm: a .safetensors or .npz of export.
        source: that folder or file.
        out: run folder to make.
    """
    from mlstm_jax.interop import nvidia, openai, unirep, weights
    from mlstm_jax.plan import parameter_count
    from mlstm_jax.run import read_config, write_imported

    readers = {
        "openai": openai.read,
        "nvidia": nvidia.read,
        "unirep": unirep.read,
        "mlstm": weights.load,
    }
    found = readers[kind](source)
    write_imported(out, found)
    config = read_config(out)
    assert config is not None
    print(
        f"{out}: {found.model.layers} x {found.model.hidden}-d, {parameter_count(config):,} "
        f"parameters, cleaning {found.cleaning}, from {found.source}"
    )


def export(
    run: _RunFolder,
    out: Path | None = None,
    format: Literal["safetensors", "npz"] | None = None,
    checkpoint: str = "best",
) -> None:
    """Write a model as one file, .safetensors or .npz, that other programs can read.

    The arrays are named as in language_model.py; the metadata hold the model's sizes and the
    cleaning of its texts. `mlstm-jax import mlstm` reads it back.

    Args:
        run: run folder.
        out: file to write; unset: the run's name, here.
        format: unset: what the ending of `out` says, or safetensors.
        checkpoint: best (by validation BPC), latest, or a step.
    """
    from mlstm_jax import run as runs
    from mlstm_jax.interop import weights

    ending = format or (out.suffix.removeprefix(".") if out else "safetensors")
    out = out or Path(f"{run.resolve().name}.{ending}")
    if out.suffix != f".{ending}":
        raise UserError(f"--out {out} does not end in .{ending}, its --format; change one of them.")
    if out.exists():
        raise UserError(f"{out} exists; name another file, or remove it.")
    loaded = runs.load(run, checkpoint)
    weights.save(out, runs.as_weights(loaded))
    print(f"{out}: {out.stat().st_size:,} bytes, the model of {run}, step {loaded.step:,}")


_COMMANDS: dict[str, Callable[..., None]] = {
    "prepare": prepare,
    "inspect": inspect,
    "plan": plan,
    "schedule": schedule,
    "sweep": sweep,
    "train": train,
    "evaluate": evaluate,
    "generate": generate,
    "heatmap": heatmap,
    "report": report,
    "features": features,
    "transfer": transfer,
    "finetune": finetune,
    "classify": classify,
    "view": view,
    "import": import_,
    "export": export,
}


def _usage(program: str) -> str:
    lines = [f"usage: {program} COMMAND ...", ""]
    for name, function in _COMMANDS.items():
        summary = (function.__doc__ or "").splitlines()[0]
        lines.append(f"  {name:<10}{summary}")
    return "\n".join([*lines, "", f"{program} COMMAND --help explains a command's options."])


def main(arguments: Sequence[str] | None = None, program: str | None = None) -> None:
    """Run the command line and exit."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(_usage("mlstm-jax"))
        sys.exit(0)
    if name == "--version":
        print(f"mlstm-jax {__version__}")
        sys.exit(0)
    if name not in _COMMANDS:
        print(f"mlstm-jax: there is no command {name!r}.\n\n{_usage('mlstm-jax')}", file=sys.stderr)
        sys.exit(2)
    try:
        if name == "train":
            train(rest, program or "mlstm-jax train")
        elif name in ("plan", "schedule"):
            {"plan": plan, "schedule": schedule}[name](rest)
        else:
            config = (FlagCreatePairsOff,)
            tyro.cli(_COMMANDS[name], args=rest, prog=f"mlstm-jax {name}", config=config)
    except KnownError as error:
        print(f"mlstm-jax {name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
