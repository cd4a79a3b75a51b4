"""Texts, with or without labels, from a file of any format that `prepare` reads."""

from pathlib import Path
from typing import NamedTuple

from mlstm_jax.data.readers import read_documents
from mlstm_jax.data.sources import Source
from mlstm_jax.errors import UserError

_SHOWN = 5


class Labelled(NamedTuple):
    """Texts and the label of each, as a string: "1", "positive"."""

    texts: list[str]
    labels: list[str]

    @property
    def classes(self) -> list[str]:
        """The distinct labels: numbers in numeric order, then other labels alphabetically."""
        return sorted(set(self.labels), key=_order)


def _order(label: str) -> tuple[float, str]:
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label


def read_texts(path: Path, text_column: str | None) -> list[str]:
    """Return the texts of a file, in order, with "" for a record without text.

    Raises UserError if the file cannot be read or holds no text.
    """
    documents = read_documents(Source(str(path)), text_column=text_column)
    return [document.text if document else "" for document in documents]


def read_labelled(path: Path, text_column: str | None, label_column: str) -> Labelled:
    """Return the texts of a file and their labels; records without text are skipped.

    Raises UserError if a text has no label, or no text has one.
    """
    texts: list[str] = []
    labels: list[str] = []
    without: int | None = None
    source = Source(str(path))
    documents = read_documents(source, text_column=text_column, label_column=label_column)
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        if document.label is None:
            without = without or number
            continue
        texts.append(document.text)
        labels.append(document.label)
    if not labels:
        raise UserError(
            f"{path}: no record has a label in {label_column!r}; give the field or column of the "
            "labels with --label-column."
        )
    if without:
        raise UserError(
            f"{path}: the label of record {without:,}, in {label_column!r}, is empty (or neither a "
            "string nor a number); add a label, or remove the record."
        )
    return Labelled(texts, labels)


def require_classes(path: Path | str, found: Labelled, known: list[str] | None = None) -> None:
    """Raise UserError unless there are two or more classes, all of them in `known` if given."""
    if known is None:
        if len(found.classes) < 2:
            raise UserError(
                f"{path} has only the label {', '.join(found.classes)}; a classifier needs at "
                "least two."
            )
        if len(found.classes) > max(100, len(found.texts) // 2):
            shown = ", ".join(found.classes[:_SHOWN])
            raise UserError(
                f"{path} has {len(found.classes):,} different labels ({shown}, ...) for "
                f"{len(found.texts):,} texts; is --label-column right?"
            )
    elif unknown := [label for label in found.classes if label not in known]:
        raise UserError(
            f"{path} has the label {unknown[0]!r}, which the training texts do not have; theirs: "
            f"{', '.join(known[:_SHOWN])}{', ...' if len(known) > _SHOWN else ''}."
        )
