"""Labelled texts from a file of any format that `prepare` reads."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.data.documents import read_documents
from mlstm_jax.errors import UserError


def read_labelled(
    path: Path, text_field: str | None, label_field: str
) -> tuple[list[str], NDArray[np.int64]]:
    """Return the texts of a file and their labels, int64 [texts].

    Raises UserError where a text has no whole number in `label_field`, or all have the same.
    """
    texts: list[str] = []
    labels: list[int] = []
    records = read_documents(path, text_field=text_field, rating_field=label_field)
    for number, record in enumerate(records, 1):
        if record is None:
            continue
        if record.rating is None or record.rating != int(record.rating):
            raise UserError(
                f"{path}: record {number:,} has no whole number in {label_field!r}; name the field "
                "with the labels by --label-field."
            )
        texts.append(record.text)
        labels.append(int(record.rating))
    if len(set(labels)) != 2:
        raise UserError(
            f"{path} has the labels {sorted(set(labels))}, but there must be two of them."
        )
    return texts, np.array(labels, np.int64)
