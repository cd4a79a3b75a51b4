"""The meta of a checkpoint: JSON, with the checksums of its arrays and one of itself.

It is separate from checkpoint.py because reading it needs no arrays, and thus neither JAX nor
Orbax.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

from mlstm_jax import digest, fields
from mlstm_jax.data.documents import Cleaning
from mlstm_jax.data.stream import Origin

FOLDER = "checkpoints"
# The file of a checkpoint: checkpoints/STEP/meta/metadata.
ITEM, FILE = "meta", "metadata"

Sums = dict[str, dict[str, int]]  # by item and by an array's path in it


class Meta(NamedTuple):
    """What a checkpoint was trained on."""

    corpus: str  # identity of the corpus, a sha256
    cleaning: Cleaning  # of its documents; a prompt is cleaned in the same way
    rows: dict[str, Any]  # what determines which bytes a row reads: batch, window, shards, ...
    origin: Origin
    epoch: float
    bytes_seen: int
    # A sha256 of the parameters that train.start_from named, if any.
    start: str | None = None
    high_steps: int = 0  # latest steps in a row whose loss was above train.divergence_bpc
    bpc: float | None = None  # of the validation split, if it was measured at this step


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints of a run folder, in order, from their names."""
    names = [path.name for path in (folder / FOLDER).glob("[0-9]*")]
    return sorted(int(name) for name in names if name.isdigit())


def seal(meta: Meta, sums: Sums) -> dict[str, Any]:
    """Return a checkpoint's JSON: its meta, the checksums of its arrays, and one of both."""
    bpc = meta.bpc
    values = meta._replace(bpc=bpc if bpc is None or math.isfinite(bpc) else None)._asdict()
    return digest.sealed({"meta": values, "sums": sums})


def read_meta(folder: Path, step: int) -> tuple[Meta, Sums]:
    """Return the meta of the checkpoint of `step`, and the checksums of its arrays.

    Raises OSError, ValueError, KeyError or TypeError if the file is damaged.
    """
    content = digest.opened(fields.parse((folder / FOLDER / str(step) / ITEM / FILE).read_bytes()))
    values = content["meta"]
    return Meta(**values | {"origin": Origin(*values["origin"])}), content["sums"]


def score(folder: Path, step: int) -> float | None:
    """Return the validation BPC at a step; None if there is none, or it cannot be read."""
    try:
        return read_meta(folder, step)[0].bpc
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # The file is damaged; restoring the checkpoint will raise an error.
