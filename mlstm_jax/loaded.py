"""A model in memory: `Loaded`, whatever reads texts with it, and `SmallModel`, which NumPy reads.

NumPy reads a recurrent model of the package or of `mlstm-jax export`: JAX is then not imported, and
nothing is compiled. `run.py` loads any other model, for JAX.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from mlstm_jax import arrays, digest, shipped, weights
from mlstm_jax.corpora.documents import clean
from mlstm_jax.errors import UserError
from mlstm_jax.fields import InvalidField
from mlstm_jax.model import numpy_products
from mlstm_jax.model.architecture import Sizes
from mlstm_jax.model.numpy_model import KINDS, NumpyModel
from mlstm_jax.options import Cleaning, renamed

WEIGHTS = "weights.safetensors"


class Types(NamedTuple):
    """The types that a model reads with."""

    products: str
    cell: str
    several: str | None  # of the products of several texts; None: as of one


class Loaded(ABC):
    """A trained or imported model and where it comes from."""

    folder: Path
    step: int
    cleaning: Cleaning
    params: arrays.Parameters  # NumPy, float32
    source: str | None  # where imported parameters come from
    first_start: str | None = None  # a fingerprint of the parameters with which training began

    @property
    @abstractmethod
    def architecture(self) -> Sizes:
        """Its sizes and states."""

    @property
    @abstractmethod
    def precision(self) -> Types:
        """The types that it reads with."""

    @cached_property
    def fingerprint(self) -> str:
        return arrays.fingerprint(self.params)

    @cached_property
    def pretrained(self) -> str | None:
        """The name of a model that comes with the package; None for others."""
        return shipped.name_of(self.folder)

    @property
    def name(self) -> str:
        """The name in reports and pictures."""
        return self.pretrained or f"{self.folder.resolve().name}, {self.origin}"

    @property
    def place(self) -> str:
        """The name in messages: two runs may have one name in different folders."""
        return f"{self.pretrained or self.folder}, {self.origin}"

    @property
    def origin(self) -> str:
        """Where the parameters come from."""
        if self.pretrained:
            return "a pretrained model"
        return "imported" if self.imported else f"step {self.step:,}"

    @property
    def imported(self) -> bool:
        """Whether the model is from another program or an exported file."""
        return self.source is not None

    def cleaned(self, texts: Sequence[str]) -> list[bytes]:
        """The bytes that the model reads of texts."""
        return [clean(text, self.cleaning) for text in texts]

    def require_unchanged(self, fingerprint: str) -> None:
        """Raise UserError if a path had other parameters before: what was fitted would be wrong.

        A file can be replaced, and a pretrained model can differ in another version of the package.
        """
        if self.fingerprint != fingerprint:
            raise UserError(
                f"{self.place} has other parameters than when it was loaded before; restore it, or "
                "load it again, and fit again what was fitted to it."
            )


_SIZES: dict[str, type[Sizes]] = {
    name: type(kind.title, (Sizes,), {"title": kind.title, "states": kind.states})
    for name, kind in KINDS.items()
}


@dataclass(frozen=True)
class SmallModel(Loaded):
    """A recurrent model that NumPy reads."""

    folder: Path
    kind: str
    sizes: Sizes
    cleaning: Cleaning
    params: arrays.Parameters = field(repr=False)
    source: str | None = None
    first_start: str | None = None
    step: int = 0
    compute: Literal["fp32", "int8"] = "fp32"  # of `whole_texts`

    @property
    def architecture(self) -> Sizes:
        return self.sizes

    @property
    def precision(self) -> Types:
        return Types("fp32", "fp32", None if self.compute == "fp32" else self.compute)

    @cached_property
    def byte_by_byte(self) -> NumpyModel:
        """What reads byte by byte, and writes."""
        return NumpyModel(self.kind, arrays.named(self.params), **numpy_products.fastest())

    @cached_property
    def whole_texts(self) -> NumpyModel:
        """What reads whole texts."""
        if self.compute == "fp32":
            return self.byte_by_byte
        product = numpy_products.int8_product
        return NumpyModel(self.kind, arrays.named(self.params), product, numpy_products.INT8_ROWS)


def load_small(path: Path) -> SmallModel | None:
    """A model that NumPy can read; None for any other. `run.load_run` says what is wrong."""
    folder = shipped.model(path)
    file = folder / WEIGHTS if folder.is_dir() else folder
    if file.suffix != ".safetensors":
        return None
    with contextlib.suppress(InvalidField, UserError, OSError, KeyError, TypeError):
        file_metadata, stored = arrays.read_arrays(file)
        about = weights.metadata(file_metadata.get(weights.KEY, "{}"))
        model = about["model"]
        kind = model.get("kind", "mlstm")
        known = {one.name for one in fields(Sizes)}
        sizes = _SIZES[kind](**{name: model[name] for name in known})
        if folder.is_dir():
            config = digest.read_json((folder / "config.json").read_bytes())
            if renamed(config)["model"] != model:
                return None
        params = arrays.unflatten(arrays.flatten(weights.from_int8(stored)))
        source = about["source"]
        first_start = about.get("first_start")
        found = SmallModel(folder, kind, sizes, about["cleaning"], params, source, first_start)
        is_known = about["format"] == weights.FORMAT and found.cleaning in get_args(Cleaning)
        # So the arrays are as `export` wrote them, of these shapes.
        is_whole = found.fingerprint == about["fingerprint"]
        if is_known and is_whole and sizes.objective == "next-byte":
            return found
    return None
