"""A run folder: what is where in it, and the way from it to a model ready to use.

::

    config.json         the resolved config
    environment.json    versions and devices of the last session
    metrics.jsonl       one JSON object a line
    tensorboard/        the same as TensorBoard events
    checkpoints/        one folder a step

What `mlstm-jax import` makes is a run folder, too, of config.json and weights.safetensors alone.
"""

import errno
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax

from mlstm_jax import __version__, config_differences, config_text, environment, out_folder
from mlstm_jax.checkpoints import meta
from mlstm_jax.checkpoints.checkpoint import Checkpoints
from mlstm_jax.config import Config
from mlstm_jax.data.documents import Cleaning
from mlstm_jax.errors import InUse, KnownError, UserError, remedy
from mlstm_jax.interop import weights
from mlstm_jax.interop.weights import ModelWeights
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.terminal import show

_LOCK = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class Run:
    """A trained model and where it comes from."""

    folder: Path
    config: Config
    step: int
    cleaning: Cleaning
    model: LanguageModel
    params: Parameters  # NumPy, float32
    corpus: str | None = None  # identity of the corpus it was trained on; None if imported

    @property
    def name(self) -> str:
        """What reports and pictures call it."""
        name = self.folder.resolve().name
        return f"{name}, imported" if self.imported else f"{name}, step {self.step:,}"

    @property
    def imported(self) -> bool:
        """Whether it is another program's, or an export."""
        return (self.folder / WEIGHTS).is_file()


def read_config(folder: Path) -> Config | None:
    """Return the config of the run in `folder`, or None where there is none."""
    path = folder / "config.json"
    return config_text.load_json(path) if path.is_file() else None


@contextmanager
def lock_run_folder(
    config: Config, *, resume: bool, reset_carry: bool = False
) -> Iterator[list[str]]:
    """Hold the run folder of `config`, so that one process trains in it.

    A new folder gets its config at once: a run that is killed before its first checkpoint is
    still known as one. While it has neither that nor a line of metrics, it may become another.

    Yields:
        What has changed since the run was started, where that is allowed.

    Raises:
        UserError: the folder is something else, holds a run of another kind, or none although
            `resume` is set.
        InUse: another process trains in it.
    """
    folder = Path(config.out)
    if (folder / WEIGHTS).exists():
        raise UserError(
            f"{folder} holds imported weights, not a run to go on with; choose another folder with "
            "--out."
        )
    before = read_config(folder)
    has_begun = any((folder / "checkpoints").glob("[0-9]*")) or _size(folder / "metrics.jsonl") > 0
    changed: list[str] = []
    if before is None:
        if resume:
            raise UserError(f"--resume: {folder} holds no run; start one without --resume.")
        if folder.exists() and not (folder.is_dir() and all(map(_is_ours, folder.iterdir()))):
            raise UserError(f"{folder} exists and is not a run; choose another folder with --out.")
    elif has_begun:
        found = config_differences.differences(before, config)
        forbidden = found.forbidden + ([] if reset_carry else found.resets_carry)
        if forbidden:
            way_out = "" if found.forbidden else ", or go on with the carry reset, --reset-carry"
            raise UserError(
                f"the run in {folder} cannot go on with another "
                + ", another ".join(forbidden)
                + f". Undo the change, or start a new run with --out{way_out}."
            )
        changed = found.resets_carry + found.allowed
    if not folder.exists():
        out_folder.require(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        _lock(lock.fileno(), folder)
        if not has_begun:
            write_folder(config)
        yield changed


def _lock(file: int, folder: Path) -> None:
    """Lock the run folder's file, or warn where its file system has no locks.

    Raises InUse where another process has locked it, and UserError where one may have.
    """
    try:
        # The system lets go of it when the process ends, however it ends.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUse(
            f"another process is training in {folder}; wait for it, or use another --out."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            # NFS answers so also where another has the lock (EACCES).
            raise UserError(
                f"{folder} cannot be locked ({error.strerror}): another process may be training in "
                "it. If none is, the file system refuses locks; use another --out."
            ) from error
        show(
            f"mlstm-jax: warning: the file system of {folder} has no locks "
            f"({error.strerror}); see to it that no second run trains in this folder.",
            file=sys.stderr,
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _is_ours(path: Path) -> bool:
    """Return whether a file may be left of a run that was killed before it had its config."""
    return path.name == _LOCK or path.suffix == ".partial"


def write_folder(config: Config, inputs: Mapping[str, str | None] | None = None) -> None:
    """Write config.json and environment.json, each whole or not at all.

    Args:
        config: the run's.
        inputs: see environment.inputs.
    """
    folder = Path(config.out)
    _replace(folder / "config.json", config_text.to_json(config))
    described = environment.describe_environment() | {"inputs": dict(inputs or {})}
    _replace(folder / environment.FILE, json.dumps(described, indent=2) + "\n")


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError about a file into a KnownError that says how the run in a folder goes on."""
    try:
        yield
    except OSError as error:
        advice = remedy(error)
        if advice is None:  # Of a connection, say.
            raise
        steps = meta.steps_in(folder)
        ending = (
            f"the same command goes on from the checkpoint of step {steps[-1]}"
            if steps
            else "or name another folder with --out"
        )
        raise KnownError(
            f"{error.filename or folder}: {error.strerror or error}. {advice}; {ending}."
        ) from error


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    os.replace(partial, path)


def load_run(folder: Path, checkpoint: str = "best") -> Run:
    """Load a trained model.

    Args:
        folder: a run folder.
        checkpoint: "best" by validation BPC, "latest", or a step.

    Raises:
        UserError: not a run folder, no whole checkpoint, or none of that step.
    """
    config = read_config(folder)
    if config is None:
        if (folder / "manifest.json").is_file():
            raise UserError(
                f"{folder} is a corpus, not a run; train on it with `mlstm-jax train CONFIG.py "
                f"--data.corpus {folder} --out runs/mine`, and name that run."
            )
        raise UserError(
            f"{folder} is not a run folder: it has no config.json. Name the --out of `mlstm-jax "
            "train` or `import`, such as runs/mine."
        )
    if (folder / WEIGHTS).is_file():
        if checkpoint not in ("best", "latest"):
            raise UserError(f"--checkpoint {checkpoint}: {folder} holds imported weights alone.")
        found = weights.load_weights(folder / WEIGHTS)
        if found.model != config.model:
            raise UserError(
                f"{folder}: config.json and {WEIGHTS} are of different models; import it again."
            )
        model = LanguageModel(found.model, config.precision)
        return Run(folder, config, 0, found.cleaning, model, found.params)
    if not (folder / "checkpoints").is_dir():
        raise UserError(
            f"{folder} holds no checkpoint: let the run train for longer, or name another (those "
            "in results/ are metrics alone)."
        )
    checkpoints = Checkpoints(folder, read_only=True)
    try:
        step = _choose(checkpoints, folder, checkpoint)
        model = LanguageModel(config.model, config.precision)
        shapes = jax.eval_shape(model.init_parameters, jax.random.key(0))
        params = checkpoints.restore_params(step, shapes)
        about = checkpoints.meta(step)
        return Run(folder, config, step, about.cleaning, model, params, about.corpus)
    finally:
        checkpoints.close()


def write_imported(folder: Path, imported: ModelWeights) -> None:
    """Make a run folder of a model from elsewhere, whole or not at all.

    Raises UserError where there is something already.
    """
    folder = folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists; choose another folder with --out.")
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    config = Config(out=str(folder.name), model=imported.model)
    try:
        partial.mkdir(parents=True)
        weights.save(partial / WEIGHTS, imported)
        (partial / "config.json").write_text(config_text.to_json(config))
        partial.replace(folder)
    except OSError as error:
        raise KnownError(f"{folder}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def as_weights(run: Run) -> ModelWeights:
    """Return a trained or imported model as what `weights.save` writes."""
    if run.imported:
        return weights.load_weights(run.folder / WEIGHTS)  # with its source
    source = f"mlstm_jax {__version__}, step {run.step}"
    return ModelWeights(run.config.model, run.cleaning, run.params, source)


def _choose(checkpoints: Checkpoints, folder: Path, wanted: str) -> int:
    steps = checkpoints.steps()
    if not steps:
        raise UserError(f"{folder} has no whole checkpoint yet; let it train for longer.")
    if wanted in ("best", "latest"):
        step = checkpoints.best() if wanted == "best" else checkpoints.latest()
        assert step is not None
        return step
    by_name = {str(step): step for step in steps}
    if wanted not in by_name:
        raise UserError(
            f"--checkpoint {wanted}: {folder} has checkpoints at {', '.join(map(str, steps))}; "
            "name one of them, best or latest."
        )
    return by_name[wanted]
