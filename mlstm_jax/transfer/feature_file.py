"""Features on disk: an .npz of `features` and, for each column, `state`, `layer` and `unit`.

A file that a later call may reuse also has a `key`: a sha256 of everything that determines the
features, so that a file of other texts or of another model is never reused by mistake; and `crc32`
of the features.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlstm_jax import digest, output
from mlstm_jax.transfer.features import Features, Featurizer


def write(path: Path, found: Features, featurizer: Featurizer, key: str = "") -> None:
    """Write features atomically; KnownError if they cannot be written."""
    named: dict[str, Any] = {}
    if key:
        named = {"key": np.array(key), digest.FIELD: digest.of_array(found)}
    with (
        output.write_errors(path),
        output.atomic_file(path) as partial,
        partial.open("wb") as file,
    ):
        np.savez(
            file,
            allow_pickle=False,
            features=found,
            state=featurizer.state_of_column,
            layer=featurizer.layer_of_column,
            unit=featurizer.unit_of_column,
            **named,
        )


def key_of(model: str, featurizer: Featurizer, texts: Sequence[str]) -> str:
    """Return a hex digest of model, reading, columns, texts, and what was asked of them."""
    found = hashlib.sha256(model.encode())
    columns = featurizer.state_of_column, featurizer.layer_of_column, featurizer.unit_of_column
    # States side by side have the columns of those alone, but belong to another call.
    asked = featurizer.states if any("+" in state for state in featurizer.states) else ()
    for part in (*featurizer.reading, *(column.tolist() for column in columns), *asked):
        found.update(f"{part!r}\0".encode())
    for text in texts:
        coded = text.encode("utf-8", "surrogatepass")
        found.update(len(coded).to_bytes(8, "little") + coded)
    return found.hexdigest()


def read_features(path: Path, key: str) -> Features | None:
    """Return the features that were saved with this key, or None if there are none."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file) as found:  # NumPy would not close a bad one
            if "key" not in found or str(found["key"]) != key:
                return None
            features: Features = found["features"]
            return features if digest.of_array(features) == found[digest.FIELD] else None
    except Exception:  # NumPy, zipfile and zlib raise many types
        return None  # damaged, so they are computed again
