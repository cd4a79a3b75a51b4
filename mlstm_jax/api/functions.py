"""Functions to train, to draw metrics, and to import weights."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlstm_jax import environment, openai, weights
from mlstm_jax.api.model import TrainedModel, load
from mlstm_jax.config import Config, load_file
from mlstm_jax.errors import UserError, extra
from mlstm_jax.fields import public
from mlstm_jax.run import write_imported
from mlstm_jax.training.train import Session
from mlstm_jax.training.train import train as run_train

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@public
def train(
    config: Config | str | Path,
    *,
    callbacks: Sequence[Callable[[dict[str, Any]], None]] = (),
    resume: bool = False,
    reset_carry: bool = False,
    show_progress: bool = True,
    owns_process: bool = False,
) -> TrainedModel:
    """Train a model, or resume a run that was stopped.

    Args:
        config: what to train; `config.out` is the run folder. Or a config file, which is executed,
            or the name of one that comes with the package, such as "small_512".
        callbacks: each is called with each line of metrics.jsonl as it is written, a dict with
            `kind` "train", "eval" or "event". An exception in a callback ends the training.
        resume: fail unless the run folder contains a run to resume.
        reset_carry: resume with another data.batch, data.window, data.shards or order of the
            shards. The hidden state of every stream then starts from zero, near the same place in
            the text.
        show_progress: on standard error.
        owns_process: set if the process does nothing else. Signals then stop the run with a
            checkpoint, and a run that hangs ends the process. Required with several processes.

    Returns:
        The best checkpoint by validation bits per character.

    Raises:
        ValueError: config, corpus and run folder do not match.
        OSError: a checkpoint could not be written.
        mlstm_jax.errors.KnownError: the run diverged or was interrupted.

    Examples:
        >>> config = mlstm.vary(mlstm.load("runs/mine").config, out="runs/new", train__steps=2)
        >>> mlstm.train(config, show_progress=False).step
        2
    """
    callbacks = list(callbacks)
    for callback in callbacks:
        if not callable(callback):
            raise UserError(f"callbacks has {callback!r}, but each must be a function.")
    config = load_file(config)
    environment.prepare(config.devices, deterministic=config.train.deterministic)
    session = Session(
        callbacks=callbacks,
        resume=resume,
        reset_carry=reset_carry,
        show_progress=show_progress,
        owns_process=owns_process,
    )
    return load(run_train(config, session))


@public
def import_weights(
    kind: Literal["openai", "mlstm"], source: str | Path, out: str | Path
) -> TrainedModel:
    """Import weights of another program, or of `TrainedModel.export`, into a run folder.

    Nothing in the files is executed.

    Args:
        kind: openai: the folder of 0.npy to 14.npy of generating-reviews-discovering-sentiment;
            mlstm: a .safetensors of export.
        source: the folder or file.
        out: run folder to create.

    Returns:
        The model in that folder.

    Raises:
        ValueError: a file is damaged or has other arrays, or `out` exists.

    Examples:
        >>> path = mlstm.load("sentiment").export("weights.safetensors")
        >>> mlstm.import_weights("mlstm", path, "runs/imported").hidden
        1024
    """
    readers: dict[str, Callable[[Path], weights.ModelWeights]] = {
        "openai": openai.read_openai,
        "mlstm": weights.load_weights,
    }
    write_imported(Path(out), readers[kind](Path(source)))
    return load(out)


@public
def plot_metrics(
    runs: Sequence[str | Path],
    *,
    x: Literal["step", "megabytes", "epoch", "minutes"] = "megabytes",
) -> "Figure":
    """Plot bits per character, rate, gradient, speed and, in fp16, loss scale of runs.

    Args:
        runs: run folders, or folders of run folders.
        x: the quantity on the horizontal axis.

    Returns:
        A figure of matplotlib, with a panel for each.

    Raises:
        ValueError: there is no run, or the extra `notebooks` is missing.

    Examples:
        >>> mlstm.plot_metrics(["runs/mine"]).savefig("curve.png")
    """
    runs = list(runs)
    if not runs:
        raise UserError("runs is empty; pass at least one run folder.")
    with extra("notebooks", "plots need matplotlib and pandas"):
        from mlstm_jax import analysis

        return analysis.plot_runs(runs, x)
