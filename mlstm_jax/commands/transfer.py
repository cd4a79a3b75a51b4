"""Commands on the state of a frozen model: features, transfer."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from mlstm_jax import output
from mlstm_jax.commands import RunFolder, features_of, require_files, require_folder_of
from mlstm_jax.errors import UserError
from mlstm_jax.terminal import show

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mlstm_jax.transfer.features import Features, Featurizer


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
    require_files(source)
    from mlstm_jax.run import load_run
    from mlstm_jax.transfer import feature_file
    from mlstm_jax.transfer.features import Featurizer
    from mlstm_jax.transfer.labels import read_texts

    if out.suffix != ".npz":
        raise UserError(f"--out {out} does not end in .npz; name it so.")
    require_folder_of(out)
    texts = read_texts(source, text_column)
    loaded = load_run(run, checkpoint)
    featurizer = Featurizer(loaded, states=state, all_layers=all_layers, units=units)
    started = time.monotonic()
    found = features_of(featurizer, "features", texts)
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
        valid: likewise, to choose C, the inverse strength of the L1 penalty, on; unset:
            cross-validation.
        label_column: field or column of the label, a number or a text.
        text_column: field or column of the text; unset: text, reviewText, sentence, ...
        state: c, the cell state, or h, after the last byte; or mean_h, the mean of h over all
            bytes; one or several, all in one pass over the texts.
        all_layers: of every layer; otherwise the top one's.
        checkpoint: best (by validation BPC), latest, or a step.
    """
    require_files(train, valid, test)
    import numpy as np

    from mlstm_jax.interop.weights import fingerprint
    from mlstm_jax.run import load_run
    from mlstm_jax.training.progress import ProgressLine
    from mlstm_jax.transfer import classify as classifiers
    from mlstm_jax.transfer import experiment, report
    from mlstm_jax.transfer.classify import Examples
    from mlstm_jax.transfer.features import Featurizer
    from mlstm_jax.transfer.labels import Labelled, read_labelled, require_classes

    kept = out / "features"
    folders = {one: out / one if len(state) > 1 else out for one in state}
    is_begun = out.is_dir() and any(path != kept for path in out.iterdir())
    is_done = all((folder / report.REPORT).exists() for folder in folders.values())
    if out.exists() and (not out.is_dir() or (is_begun and (is_done or not kept.is_dir()))):
        raise UserError(f"{out} exists; choose another folder with --out.")
    output.require_folder(out)

    def read(path: Path) -> Labelled:
        return read_labelled(path, text_column, label_column)

    texts: experiment.Texts = (read(train), read(valid) if valid else None, read(test))
    require_classes(train, texts[0])
    classes = texts[0].classes
    require_classes(test, texts[2], classes)
    if valid and texts[1]:
        require_classes(valid, texts[1], classes)
    loaded = load_run(run, checkpoint)
    model = fingerprint(loaded.params)
    featurizer = Featurizer(loaded, states=state, all_layers=all_layers)
    named = {name: part for name, part in zip(experiment.PARTS, texts, strict=True) if part}
    found = _features(
        kept, featurizer, model, {n: part.texts for n, part in named.items()}, is_begun=is_begun
    )
    for one in state:
        chosen = np.flatnonzero(featurizer.state_of_column == one)
        columns = [
            experiment.Unit(int(featurizer.layer_of_column[n]), int(featurizer.unit_of_column[n]))
            for n in chosen
        ]

        def examples(part: str, chosen: "NDArray[np.intp]" = chosen) -> Examples | None:
            if part not in named:
                return None
            values = found[part][:, chosen] if len(state) > 1 else found[part]
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
        (folder / report.REPORT).unlink(missing_ok=True)
        about = classifiers.Description(one, all_layers, model, text_column)
        classifiers.save(folder, classifier, about)
        report.write(folder, result, loaded.name)
        show((folder / report.REPORT).read_text(encoding="utf-8"))
        show(f"in {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def _features(
    kept: Path,
    featurizer: "Featurizer",
    model: str,
    texts: dict[str, list[str]],
    *,
    is_begun: bool,
) -> "dict[str, Features]":
    """Return the features of all texts: those that are kept already, and others, kept at once.

    Raises UserError where OUT `is_begun` and its features are not those of this command.
    """
    from mlstm_jax.transfer import feature_file

    keys = {name: feature_file.key_of(model, featurizer, part) for name, part in texts.items()}
    before = {name: feature_file.read_features(kept / f"{name}.npz", keys[name]) for name in texts}
    # The features of all texts come first: what is in OUT without them is another command's.
    if is_begun and any(found is None for found in before.values()):
        raise UserError(
            f"{kept.parent} exists, and the features in it are not of these texts, states and "
            "parameters; give the command that it was begun with, or choose another folder with "
            "--out."
        )
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--out {kept.parent}: cannot be made: {error.strerror or error}"
        ) from error
    made: dict[str, Features] = {}
    read_now, started = 0, time.monotonic()
    for name, part in texts.items():
        found = before[name]
        if found is None:
            found = features_of(featurizer, f"features of {name}", part)
            # Whatever fails from here on, they are the longer part of the work.
            feature_file.write(kept / f"{name}.npz", found, featurizer, keys[name])
            read_now += len(part)
        made[name] = found
    if read_now:
        rate = read_now / (time.monotonic() - started)
        show(f"features of {read_now:,} texts: {rate:,.1f} texts/s", file=sys.stderr)
    if read_now < sum(map(len, texts.values())):
        show(f"features in {kept} of the same texts are used", file=sys.stderr)
    return made
