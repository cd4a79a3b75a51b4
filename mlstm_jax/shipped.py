"""Find the configs, sweeps, machines, XLA flags and models that come with the package by name.

In a clone all but the models are in configs/, next to the package; in a wheel they are inside it.
A model is a run folder as `mlstm-jax import` writes it, with a card, a classifier and a text to
show::

    models/NAME/card.md, config.json, weights.safetensors, rated_texts.npy, sentiment/, example.txt
"""

import ast
import json
from pathlib import Path
from typing import Literal, get_args

from mlstm_jax.errors import UserError, did_you_mean, nearest

Kind = Literal["config", "sweep", "machine", "flags", "model"]

_PATTERNS: dict[Kind, str] = {
    "config": "*.py",
    "sweep": "sweeps/*.py",
    "machine": "machines/*.json",
    "flags": "xla_flags/*.txt",
    "model": "*/card.md",
}

MODEL = "sentiment"
MODELS = Path(__file__).parent / "models"


def folder() -> Path:
    """The folder of the package's files."""
    package = Path(__file__).parent
    in_wheel = package / "configs"
    return in_wheel if in_wheel.is_dir() else package.parent / "configs"


def files(*kinds: Kind) -> dict[str, Path]:
    """The package's files of some kinds (default: all), by name; of a model its card."""
    found = {}
    for kind in kinds or get_args(Kind):
        place = MODELS if kind == "model" else folder()
        for path in sorted(place.glob(_PATTERNS[kind])):
            found[path.parent.name if kind == "model" else path.stem] = path
    return found


def find(path: Path, kind: Kind) -> Path:
    """The path if it is a file, otherwise the package's file with that bare name."""
    known = files(kind)
    if not path.is_file() and str(path) in known:
        return known[str(path)]
    if path.exists():
        return path
    near = did_you_mean(nearest(path.stem, known))
    raise UserError(
        f"{path} does not exist, and the package has no {kind} of that name{near} "
        "`mlstm-jax configs` lists all names."
    )


def model(path: Path) -> Path:
    """The path of a pretrained model or of something in it; any other path as it is."""
    known = files("model")
    name, *inside = path.parts or ("",)
    own = [path] if inside else [path / "config.json", path / "classifier.json"]
    if name not in known or any(map(Path.exists, own)):
        return path
    return known[name].parent.joinpath(*inside)


def require_model(path: Path) -> None:
    """Raise UserError unless a path is a folder, a .safetensors file or a pretrained model."""
    if not model(path).exists():
        raise UserError(f"{path} does not exist. {which_model(path)}")
    if model(path).is_file() and path.suffix != ".safetensors":
        raise UserError(
            f"{path} is not a model. Name the model first: a run folder, a .safetensors file from "
            "`mlstm-jax export`, or a pretrained model, such as sentiment."
        )


def which_model(path: Path) -> str:
    """The end of a message: what to name instead of a path that is not a model."""
    ours = files("model")
    return (
        "Name the folder that `mlstm-jax train` or `mlstm-jax import` wrote, or "
        f"a pretrained model: {' or '.join(ours)}" + did_you_mean(nearest(str(path), ours))
    )


def classifier(path: Path) -> Path | None:
    """The classifier that comes with a pretrained model; None for other models."""
    return model(path) / "sentiment" if name_of(path) else None


def rated_texts(fingerprint: str | None) -> Path | None:
    """The digests of the texts that a pretrained model, in any folder, has read with ratings."""
    for card in files("model").values():
        about = json.loads((card.parent / "sentiment/classifier.json").read_bytes())
        if about["fingerprint"] == fingerprint:
            return card.parent / "rated_texts.npy"
    return None


def example(path: Path) -> str:
    """The text that the page of a pretrained model begins with; "" for other models."""
    if not name_of(path):
        return ""
    return (model(path) / "example.txt").read_text(encoding="utf-8")


def name_of(path: Path) -> str | None:
    """The name of a pretrained model, by its name or folder; None for other models."""
    place = model(path).resolve()
    return place.name if place.parent == MODELS.resolve() else None


def summary(path: Path) -> str:
    """A one-line summary of a file of the package."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    if path.suffix == ".json":
        return str(json.loads(text)["name"])
    if path.suffix == ".md":
        return text.partition("\n")[0].removeprefix("# ").partition(": ")[2]
    return text.strip()
