"""The command evaluate: bits per character of a split, with static or dynamic evaluation."""

import json
import math
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from tyro.conf import arg

from mlstm_jax import output
from mlstm_jax.commands import RunFolder
from mlstm_jax.config import Devices
from mlstm_jax.data.corpus import Corpus, SplitName
from mlstm_jax.errors import KnownError, UserError
from mlstm_jax.progress import ProgressLine
from mlstm_jax.run import Run, load_run
from mlstm_jax.terminal import show
from mlstm_jax.training import parallel
from mlstm_jax.training.dynamic_evaluation import (
    STATIC,
    DynamicEvaluator,
    DynamicResult,
    DynamicScore,
    Rule,
    RuleName,
    Setting,
    Stream,
    best,
    grid,
    statistics_places,
)
from mlstm_jax.training.evaluation import Evaluator, Score, corpus_of


class _Options(NamedTuple):
    """The options of dynamic evaluation as given."""

    rate: float | None
    decay: float | None
    rule: "RuleName"
    rows: int


def evaluate(
    run: RunFolder,
    corpus: Path | None = None,
    split: Literal["train", "valid", "test"] = "test",
    checkpoint: str = "best",
    dynamic: bool = False,
    dynamic_rate: float | None = None,
    dynamic_decay: float | None = None,
    dynamic_rule: Literal["rms", "sgd"] = "rms",
    dynamic_rows: int = 1,
    json_path: Annotated[Path | None, arg(name="json")] = None,
    overwrite: bool = False,
) -> None:
    """Score a trained model on a split: bits per character, bytes scored, seconds.

    Args:
        run: run folder, or a model of the package.
        corpus: corpus folder; unset: the one it was trained on.
        split: which part of it.
        checkpoint: best (by validation BPC), latest, or a step.
        dynamic: also score it with dynamic evaluation (Krause et al. 2018): after each window the
            parameters take a step of gradient descent on the bytes just scored. Rate and decay are
            chosen on the validation split. The checkpoint does not change.
        dynamic_rate: the rate of these steps; rate and decay are then not chosen.
        dynamic_decay: only with --dynamic-rate: how far each step moves back to the trained
            parameters, 0 to 1; unset: 0.
        dynamic_rule: rms divides each gradient by its root mean square on the training split; sgd
            uses the gradient unchanged.
        dynamic_rows: number of streams that the split is read in; all adapt the same parameters.
            1 reads the text in order; more rows are faster but gain less.
        json_path: also write the result to this file, as JSON.
        overwrite: replace that file if it exists.
    """
    options = _Options(dynamic_rate, dynamic_decay, dynamic_rule, dynamic_rows)
    _require_options(options, split, dynamic=dynamic)
    if json_path:
        output.require_file(json_path, overwrite=overwrite, option="--json")
    loaded = load_run(run, checkpoint)
    splits: tuple[SplitName, ...] = ("train", "valid", split) if dynamic else (split,)
    opened, is_own = corpus_of(loaded, corpus, *splits)
    adapted = _dynamic(loaded, opened, split, options) if dynamic else None
    score = adapted.static if adapted else _static(loaded, opened, split)
    result = {
        "run": str(run),
        "step": loaded.step,
        "corpus": str(opened.path),
        "trained_on_this_corpus": is_own,
        "split": split,
        "bpc": score.bpc,
        "loss": score.loss,
        "bytes_scored": score.bytes_scored,
        "seconds": score.seconds,
    }
    if adapted:
        result["dynamic"] = adapted.as_json()
    show(
        f"{split} bpc {score.bpc:.4f} over {score.bytes_scored:,} bytes of {opened.path} in "
        f"{score.seconds:.1f} s ({loaded.origin})"
    )
    if adapted:
        show(adapted.describe(split))
    if opened.stop is not None:
        print("each protein is read from a zero state; its start is not scored, its stop is.")
    if not is_own and not loaded.imported:
        print("note: the run was trained on another corpus than this one.")
    if json_path:
        with output.write_errors(json_path):
            output.write_text(json_path, json.dumps(result, indent=2) + "\n")


def _require_options(options: _Options, split: str, *, dynamic: bool) -> None:
    """Raise UserError unless the options of dynamic evaluation are valid together."""
    rate, decay, rule, rows = options
    given = {
        "--dynamic-rate": rate is not None,
        "--dynamic-decay": decay is not None,
        "--dynamic-rule": rule != "rms",
        "--dynamic-rows": rows != 1,
    }
    for option, is_given in given.items():
        if is_given and not dynamic:
            raise UserError(f"{option} is an option of dynamic evaluation; also give --dynamic.")
    if not dynamic:
        return
    if rate is not None and not (math.isfinite(rate) and rate >= 0):
        raise UserError(f"--dynamic-rate is {rate}, but it must be at least 0 and finite.")
    if decay is not None and not 0 <= decay <= 1:
        raise UserError(f"--dynamic-decay is {decay}, but it must be 0 to 1.")
    if decay is not None and rate is None:
        raise UserError(
            "--dynamic-decay needs --dynamic-rate: give both, or neither to choose both on the "
            "validation split."
        )
    if rows < 1:
        raise UserError(f"--dynamic-rows is {rows}, but it must be at least 1.")
    if split == "train":
        raise UserError(
            "--dynamic cannot score the train split: the parameters and the scale of their steps "
            "come from it. Use --split test."
        )
    if split == "valid" and rate is None:
        raise UserError(
            "--dynamic chooses rate and decay on the valid split, so it cannot also score that "
            "split. Use --split test, or give --dynamic-rate."
        )


def _static(loaded: "Run", opened: "Corpus", split: "SplitName") -> "Score":
    devices = parallel.local(Devices())
    window = loaded.config.data.window
    evaluator = Evaluator(loaded.model, opened.split(split), window, devices, opened.stop)
    with _line("evaluate", evaluator.stream) as progress:
        return evaluator(
            devices.replicate(loaded.params),
            lambda step: progress.update(_bytes(evaluator.stream, step)),
        )


def _line(name: str, stream: "Stream", windows: int | None = None) -> "ProgressLine":
    """Return a progress line of the bytes of some windows of a stream, by default of all."""
    return ProgressLine(name, _bytes(stream, windows or stream.steps), of_bytes=True)


def _bytes(stream: "Stream", windows: int) -> int:
    """Return the bytes that this many windows of a stream score, on average."""
    return stream.scored * windows // stream.steps


def _dynamic(
    loaded: "Run", opened: "Corpus", split: "SplitName", options: _Options
) -> "DynamicResult":
    """Score a split twice: with static and with adapting parameters.

    Raises:
        UserError: the corpus has no split to choose the setting on, or to scale the steps with.
        KnownError: the loss is not finite.
    """
    import jax

    _require_splits(opened, options)
    if jax.local_device_count() > 1:
        show("note: dynamic evaluation uses one device: each window waits for the previous one")
    window = loaded.config.data.window
    device = parallel.local(Devices(count=1))
    evaluator = DynamicEvaluator(
        loaded.model, loaded.params, device, window=window, rows=options.rows, stop=opened.stop
    )
    stream = evaluator.stream(opened.split(split))
    rule, statistics = _rule(evaluator, opened, options.rule)
    setting, tried = Setting(options.rate or 0.0, options.decay or 0.0), []
    if options.rate is None:
        tried = _search(evaluator, evaluator.stream(opened.split("valid")), rule, options.rule)
        setting = best(tried).setting
    static = _score(evaluator, stream, rule, STATIC)
    score = static if setting == STATIC else _score(evaluator, stream, rule, setting)
    if score.diverged:
        raise KnownError(
            f"with rate {setting.rate:g} and decay {setting.decay:g} the loss of the {split} split "
            "is not finite; give a lower --dynamic-rate."
        )
    rows, size = stream.rows, evaluator.window
    return DynamicResult(static, score, options.rule, rows, size, statistics, tried)


def _require_splits(opened: "Corpus", options: _Options) -> None:
    """Raise UserError if a required split has no byte to predict."""
    splits = opened.manifest.splits
    if options.rule == "rms" and splits["train"].bytes < 2:
        raise UserError(
            f"{opened.path} has no training split, whose gradients scale the steps of "
            "--dynamic-rule rms; use --dynamic-rule sgd, or prepare the corpus with a training "
            "split (--split)."
        )
    if options.rate is None and splits["valid"].bytes < 2:
        raise UserError(
            f"{opened.path} has no validation split to choose the rate on; give --dynamic-rate, or "
            "prepare the corpus with a validation split (--split)."
        )


def _rule(evaluator: "DynamicEvaluator", opened: "Corpus", name: "RuleName") -> tuple["Rule", int]:
    """Return the rule of this name, and the number of windows of its statistics."""
    if name == "sgd":
        return evaluator.sgd(), 0
    train = evaluator.stream(opened.split("train"))
    windows = len(statistics_places(train))
    with _line("gradients of the training split", train, windows) as progress:
        return evaluator.rms(train, lambda done: progress.update(_bytes(train, done))), windows


def _search(
    evaluator: "DynamicEvaluator", stream: "Stream", rule: "Rule", name: "RuleName"
) -> list["DynamicScore"]:
    """Score the validation split with every setting of the grid."""
    settings = grid(name)
    scores: list[DynamicScore] = []
    with _line("choose on validation", stream, len(settings) * stream.steps) as progress:

        def on_window(done: int) -> None:
            progress.update(_bytes(stream, len(scores) * stream.steps + done))

        for setting in settings:
            score = evaluator(stream, rule, setting, on_window)
            found = "diverged" if score.diverged else f"{score.bpc:.4f}"
            progress.say(f"rate {setting.rate:g}, decay {setting.decay:g}: validation bpc {found}")
            scores.append(score)
    return scores


def _score(
    evaluator: "DynamicEvaluator", stream: "Stream", rule: "Rule", setting: "Setting"
) -> "DynamicScore":
    name = "dynamic" if setting.rate else "static"
    with _line(f"evaluate, {name}", stream) as progress:
        return evaluator(stream, rule, setting, lambda done: progress.update(_bytes(stream, done)))
