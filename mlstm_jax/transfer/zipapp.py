"""Pack a model and a classifier as one program, a zip file that needs Python and NumPy alone."""

import contextlib
import io
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mlstm_jax import arrays, output, weights
from mlstm_jax.corpora.sources import FORMATS
from mlstm_jax.errors import UserError, require
from mlstm_jax.loaded import Loaded
from mlstm_jax.model import numpy_model
from mlstm_jax.transfer import standalone
from mlstm_jax.transfer.classifier import Classifier

# Several threads of BLAS wait busily for each other at each byte (numpy_products.py).
_MAIN = """import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from {name} import main

main()
"""
_TIME = (1980, 1, 1, 0, 0, 0)  # the same model gives the same bytes


def pack(path: Path, loaded: Loaded, classifier: Classifier) -> None:
    """Write a program atomically; its module has the name of the file."""
    name = path.stem
    require(name.isidentifier(), "out", str(path), "a name of letters, digits and _, such as a.pyz")
    kind = loaded.architecture.title.lower()
    objective = loaded.architecture.objective
    if kind not in numpy_model.KINDS or objective != "next-byte":
        why = f"this is a model:{kind}, trained with {objective}"
        raise UserError(f"a .pyz has a model of next bytes that NumPy reads; {why}.")
    classifier.require_no_words("a .pyz")
    about = {
        "name": path.name,
        "kind": kind,
        "cleaning": loaded.cleaning,
        "layers": classifier.about.layers(loaded.architecture),
        "classes": classifier.classes,
        "softmax": classifier.softmax,
        "familiar": classifier.about.familiar and asdict(classifier.about.familiar),
        "source": loaded.name,
        "column": classifier.about.text_column,
        "formats": {
            suffix: (one.parser, one.delimiter) for suffix, one in FORMATS.items() if one.has_lines
        },
    }
    stored: dict[str, Any] = _smallest(arrays.flatten(loaded.params))
    for one in ("label_kernel", "label_bias"):
        stored.pop(one, None)
    stored["classifier/weights"] = classifier.weights_KD
    stored["classifier/intercepts"] = classifier.intercepts_K
    code = Path(standalone.__file__).read_text(encoding="utf-8")
    model = io.BytesIO()
    np.savez(model, **stored)
    files: dict[str, str | bytes] = {
        "__main__.py": _MAIN.format(name=name),
        f"{name}/__init__.py": code.replace("mlstm_jax.model.numpy_model", ".numpy_model"),
        f"{name}/numpy_model.py": Path(numpy_model.__file__).read_text(encoding="utf-8"),
        f"{name}/about.json": json.dumps(about, indent=1),
        f"{name}/model.npz": model.getvalue(),
    }
    with output.atomic_file(path) as partial, zipfile.ZipFile(partial, "w") as file:
        for inside, content in files.items():
            entry = zipfile.ZipInfo(inside, _TIME)
            entry.external_attr = 0o644 << 16
            file.writestr(entry, content, zipfile.ZIP_DEFLATED)


def _smallest(flat: arrays.Arrays) -> arrays.Arrays:
    """The arrays as int8 or float16 if that changes no number, otherwise as they are."""
    with contextlib.suppress(UserError):
        stored = weights.to_int8(flat)
        if weights.equal(weights.from_int8(stored), flat):
            return stored
    with np.errstate(over="ignore"):
        halves = {name: array.astype(np.float16) for name, array in flat.items()}
    return halves if weights.equal(halves, flat) else flat
