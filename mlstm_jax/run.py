"""Run folders: their files, and how to load a model from one.

::

    config.json         the resolved config
    environment.json    versions and devices of the last session
    metrics.jsonl       one JSON object per line
    tensorboard/        the same as TensorBoard events
    checkpoints/        one folder per step

`mlstm-jax import` also creates a run folder, with only config.json and weights.safetensors.
"""

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import jax

from mlstm_jax import __version__, config_text, output, shipped, suggestion
from mlstm_jax.checkpoints.checkpoint import Checkpoints
from mlstm_jax.config import Config
from mlstm_jax.data.documents import Cleaning
from mlstm_jax.errors import UserError
from mlstm_jax.interop import weights
from mlstm_jax.interop.weights import ModelWeights
from mlstm_jax.model.language_model import LanguageModel, Parameters
from mlstm_jax.quiet import quiet

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
        """The name in reports and pictures."""
        name = self.folder.resolve().name
        if shipped.is_ours(self.folder):
            return name
        return f"{name}, imported" if self.imported else f"{name}, step {self.step:,}"

    @property
    def imported(self) -> bool:
        """Whether the model is from another program or an exported file."""
        return self.folder.is_file() or (self.folder / WEIGHTS).is_file()


def read_config(folder: Path) -> Config | None:
    """Return the config of the run in `folder`, or None if there is none."""
    path = folder / "config.json"
    return config_text.load_json(path) if path.is_file() else None


def load_run(folder: Path, checkpoint: str = "best") -> Run:
    """Load a trained model.

    Args:
        folder: a run folder; a .safetensors or .npz file that `weights.save` wrote; or the name of
            a model that comes with the package.
        checkpoint: "best" by validation BPC, "latest", or a step.

    Raises:
        UserError: not a run folder, no complete checkpoint, or none of that step.
    """
    folder = shipped.model(folder)
    if folder.is_file() and folder.suffix in (".safetensors", ".npz"):
        found = weights.load_weights(folder)
        made = Config(out=str(folder), model=found.model)
        model = LanguageModel(found.model, made.precision)
        return Run(folder, made, 0, found.cleaning, model, found.params)
    config = read_config(folder)
    if config is None:
        if (folder / "manifest.json").is_file():
            raise UserError(
                f"{folder} is a corpus, not a run; train on it with `mlstm-jax train CONFIG.py "
                f"--data.corpus {folder} --out runs/mine`, and give that run."
            )
        ours = shipped.files("model")
        near = suggestion.question(suggestion.nearest(str(folder), ours)) or "."
        raise UserError(
            f"{folder} is not a run folder: it has no config.json. Give the --out of `mlstm-jax "
            f"train` or `import`, such as runs/mine, or a model of the package, {', '.join(ours)}"
            f"{near}"
        )
    if (folder / WEIGHTS).is_file():
        if checkpoint not in ("best", "latest"):
            raise UserError(
                f"--checkpoint {checkpoint}: {folder} has imported weights and no checkpoints; "
                "leave the option out."
            )
        found = weights.load_weights(folder / WEIGHTS)
        if found.model != config.model:
            raise UserError(
                f"{folder}: config.json and {WEIGHTS} are from different models; import it again."
            )
        model = LanguageModel(found.model, config.precision)
        return Run(folder, config, 0, found.cleaning, model, found.params)
    if not (folder / "checkpoints").is_dir():
        raise UserError(
            f"{folder} has no checkpoint: train the run for longer, or give another run (those in "
            "results/ have only metrics)."
        )
    with quiet(), closing(Checkpoints(folder, read_only=True)) as checkpoints:
        step = _choose(checkpoints, folder, checkpoint)
        model = LanguageModel(config.model, config.precision)
        shapes = jax.eval_shape(model.init_parameters, jax.random.key(0))
        params = checkpoints.restore_params(step, shapes)
        about = checkpoints.meta(step)
        return Run(folder, config, step, about.cleaning, model, params, about.corpus)


def initial_parameters(config: Config) -> Callable[[], Parameters] | None:
    """Return a function that reads the parameters of `train.start_from`; None if it is unset."""
    if config.train.start_from is None:
        return None
    folder = Path(config.train.start_from)
    return lambda: load_run(folder).params


def write_imported(folder: Path, imported: ModelWeights) -> None:
    """Create a run folder of an imported model atomically.

    Raises UserError if the folder already exists and is not empty.
    """
    folder = Path(os.path.realpath(folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists; choose another folder with --out.")
    config = Config(out=str(folder.name), model=imported.model)
    with output.atomic_directory(folder) as partial:
        weights.save(partial / WEIGHTS, imported)
        output.write_text(partial / "config.json", config_text.to_json(config))


def as_weights(run: Run) -> ModelWeights:
    """Return a trained or imported model in the form that `weights.save` writes."""
    if run.imported:
        file = run.folder if run.folder.is_file() else run.folder / WEIGHTS
        return weights.load_weights(file)  # keeps its source
    source = f"mlstm_jax {__version__}, step {run.step}"
    return ModelWeights(run.config.model, run.cleaning, run.params, source)


def _choose(checkpoints: Checkpoints, folder: Path, wanted: str) -> int:
    steps = checkpoints.steps()
    if not steps:
        raise UserError(f"{folder} has no complete checkpoint yet; train the run for longer.")
    if wanted == "best":
        for step in steps:
            checkpoints.meta(step)  # a damaged one may be the best
    if wanted in ("best", "latest"):
        step = checkpoints.best() if wanted == "best" else checkpoints.latest()
        assert step is not None
        return step
    by_name = {str(step): step for step in steps}
    if wanted not in by_name:
        raise UserError(
            f"--checkpoint {wanted}: {folder} has checkpoints at {', '.join(map(str, steps))}; "
            "give one of these steps, best or latest."
        )
    return by_name[wanted]
