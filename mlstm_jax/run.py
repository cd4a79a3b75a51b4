"""How to load a model from a run folder, whose files docs/run_folder.md lists.

`mlstm-jax import` also creates a run folder, with only config.json and weights.safetensors.
"""

import dataclasses
import os
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import jax

from mlstm_jax import __version__, digest, environment, fields, host, output, shipped, weights
from mlstm_jax.checkpoint import Checkpoints, Damaged
from mlstm_jax.config import Config, Precision, load_json, require_function, to_json
from mlstm_jax.errors import UserError, note
from mlstm_jax.loaded import WEIGHTS, Loaded, Types
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.model.stack import Recurrent
from mlstm_jax.options import Cleaning, JaxCompute, NumberTypes
from mlstm_jax.output import read_errors
from mlstm_jax.record import FOLDER
from mlstm_jax.weights import ModelWeights

ENVIRONMENT = "environment.json"
_NO_CHECKPOINT = (
    "has no checkpoint: the run has not reached its first one, or its checkpoints were removed. "
    "Train on, or name another run (those in results/ have only metrics)."
)


@dataclass(frozen=True)
class Run(Loaded):
    """A trained model and where it comes from."""

    folder: Path
    config: Config
    step: int
    cleaning: Cleaning
    model: LanguageModel
    params: Parameters = field(repr=False)  # NumPy, float32
    corpus: str | None = None  # identity of the corpus it was trained on; None if imported
    # Reads several rows, and generates; None: `model` does.
    batch_model: LanguageModel | None = None
    source: str | None = None  # where imported parameters come from
    first_start: str | None = None

    @property
    def architecture(self) -> Architecture:
        return self.config.model

    @property
    def precision(self) -> Types:
        several = "bf16" if self.batch_model else None
        return Types(*self.model.types, several)


def read_config(folder: Path) -> Config | None:
    """The config of the run in `folder`, or None if there is none."""
    path = folder / "config.json"
    return load_json(path) if path.is_file() else None


def id_of(folder: Path) -> str | None:
    """The id of a run, drawn when it began; None if environment.json is missing."""
    path = folder / ENVIRONMENT
    if not path.exists():
        return None
    with fields.named(f"{path} is damaged", "; restore it, or remove it"), read_errors(path):
        return str(digest.read_json(path.read_bytes())["run"])


def load_run(folder: Path, checkpoint: str = "best") -> Run:
    """Load a trained model; see `mlstm_jax.load`."""
    shipped.require_model(folder)
    environment.local_devices()  # fails before the weights are read if JAX cannot start
    folder = shipped.model(folder)
    if folder.is_file():
        return _of_weights(folder, folder, None, checkpoint)
    config = read_config(folder)
    if config is None:
        raise UserError(
            f"{folder} is not a run folder: it has no config.json. {shipped.which_model(folder)}"
        )
    if (folder / WEIGHTS).is_file():
        return _of_weights(folder, folder / WEIGHTS, config, checkpoint)
    if not (folder / FOLDER).is_dir():
        raise UserError(f"{folder} {_NO_CHECKPOINT}")
    identity = id_of(folder)
    if identity is None:
        note(
            f"{ENVIRONMENT} is missing from {folder}, so it cannot be checked that the checkpoints "
            "belong to this run."
        )
    with (
        environment.silence(),
        closing(Checkpoints(folder, identity, read_only=True)) as checkpoints,
    ):
        model = LanguageModel(config.model, config.precision.types)
        shapes = jax.eval_shape(model.init_parameters, jax.random.key(0))
        while True:
            steps = checkpoints.steps()
            try:
                step = _choose(checkpoints, folder, checkpoint)
                about = checkpoints.meta(step)
                require_function(about.function, config, f"the checkpoint of step {step}")
                params = checkpoints.restore_params(step, shapes)
            except Damaged as error:
                checkpoints.look_again()
                # A run that trains deletes old checkpoints.
                if set(steps) <= set(checkpoints.steps()):
                    advice = "Restore it from a copy, or choose another step with `checkpoint`."
                    raise Damaged(f"{error}. {advice}") from error
                continue
            run = Run(folder, config, step, about.cleaning, model, params, about.corpus)
            return dataclasses.replace(run, first_start=about.first_start or about.start)


def _of_weights(folder: Path, file: Path, config: Config | None, checkpoint: str) -> Run:
    if checkpoint not in ("best", "latest"):
        raise UserError(
            f"{folder} has weights, and no checkpoint {checkpoint}; leave `checkpoint` out."
        )
    imported = weights.load_weights(file)
    config = config or Config(out=str(folder), model=imported.architecture)
    if (imported.architecture, Precision()) != (config.model, config.precision):
        raise UserError(
            f"{folder}: config.json and {file.name} are from different models; import it again."
        )
    model = LanguageModel(config.model, config.precision.types)
    run = Run(folder, config, 0, imported.cleaning, model, imported.params, source=imported.source)
    return dataclasses.replace(run, first_start=imported.first_start)


def with_compute(run: Run, compute: JaxCompute) -> Run:
    """A run that reads texts with products of a type.

    auto: the config's type; but instead of fp32, several rows of a recurrent model are read, and
    text is generated, in bf16 where the device multiplies it faster. One row is not: most of its
    time goes into reading the weights.
    """
    architecture = run.config.model
    types = run.config.precision.types
    if compute != "auto":
        types = types._replace(compute=compute)
        return dataclasses.replace(run, model=LanguageModel(architecture, types))
    is_fp32 = types.compute == "fp32" and isinstance(architecture, Recurrent)
    if not is_fp32 or host.fastest_compute(architecture.hidden) == "fp32":
        return run
    types = NumberTypes("bf16")
    return dataclasses.replace(run, batch_model=LanguageModel(architecture, types))


def write_imported(folder: Path, imported: ModelWeights) -> None:
    """Create a run folder of an imported model atomically."""
    folder = Path(os.path.realpath(folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists; choose another folder with `out`.")
    config = Config(out=str(folder.name), model=imported.architecture)
    with output.atomic_directory(folder) as partial:
        weights.save(partial / WEIGHTS, imported)
        output.write_text(partial / "config.json", to_json(config))


def as_weights(run: Run) -> ModelWeights:
    """A trained or imported model in the form that `weights.save` writes."""
    source = run.source or f"mlstm_jax {__version__}, step {run.step}"
    return ModelWeights(run.config.model, run.cleaning, run.params, source, run.first_start)


def _choose(checkpoints: Checkpoints, folder: Path, wanted: str) -> int:
    steps = checkpoints.steps()
    if not steps:
        raise UserError(f"{folder} {_NO_CHECKPOINT}")
    if wanted == "latest":
        return steps[-1]
    if wanted == "best":
        for step in steps:
            checkpoints.meta(step)  # a damaged one may be the best
        return checkpoints.best()
    if wanted not in map(str, steps):
        raise UserError(
            f"{folder} has no checkpoint {wanted}, only {', '.join(map(str, steps))}; choose one "
            "of these steps, best or latest."
        )
    return int(wanted)
