"""Check the arguments of public functions; read texts and labels, from files or from memory."""

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias, runtime_checkable

from mlstm_jax import output, shipped
from mlstm_jax.corpora.documents import SEVERAL_LABELS, TEXT_COLUMNS, is_broken, note_broken
from mlstm_jax.errors import UserError, require
from mlstm_jax.options import CSV, Cleaning, CsvOptions
from mlstm_jax.transfer.classifier import Classifier, load_classifier
from mlstm_jax.transfer.features import TextFile
from mlstm_jax.transfer.labels import Labelled, of_classes, read_labelled

# Texts in memory; or a file of them, of any kind that `prepare` reads, or Path("-").
Texts: TypeAlias = Iterable[str] | Path


@runtime_checkable
class Table(Protocol):
    """A DataFrame of pandas or polars."""

    columns: Any

    def __getitem__(self, column: str) -> Any:
        """Return a column."""


@runtime_checkable
class HasClassifier(Protocol):
    """What `transfer` and `finetune` return."""

    @property
    def classifier(self) -> Any:
        """The classifier."""


# What `transfer` or `finetune` returned, its classifier, or its folder.
AnyClassifier: TypeAlias = HasClassifier | Classifier | str | Path
LabelledTexts: TypeAlias = Annotated[
    str | Path | Table | tuple[Sequence[str], Sequence[object]],
    "a file or table of texts and labels, or both in one tuple, (texts, labels)",
]


def as_texts(texts: Texts, name: str = "texts", *, files: bool = False) -> list[str]:
    """Return texts in memory as a list; UserError for what may mean something else.

    In messages the argument is `name`; with `files` it may also be a `Path`.
    """
    kind = type(texts).__name__
    if isinstance(texts, (str, bytes)):
        or_file = ", or Path(file)" if files else ""
        raise UserError(f"{name} is a single {kind}; pass a list of texts, [text]{or_file}.")
    is_other = isinstance(texts, (Mapping, Set)) or _has_columns(texts)
    if is_other or not isinstance(texts, Iterable):
        rule = "a list of texts, such as one column of a table"
        raise UserError(f"{name} has type {kind}, but it must be {rule}.")
    result = list(texts)
    wrong = next((n for n, text in enumerate(result) if not isinstance(text, str)), None)
    if wrong is not None:
        raise UserError(
            f"{name}[{wrong}] has type {type(result[wrong]).__name__}, but it must be a str; leave "
            'missing texts out, or pass "", in pandas by .fillna("").'
        )
    return result


def noted(texts: list[str]) -> list[str]:
    """Return the texts; note those with half of a character."""
    note_broken([number for number, text in enumerate(texts, 1) if is_broken(text)], len(texts))
    return texts


def as_read(
    texts: Texts | TextFile, text_column: str | None, cleaning: Cleaning
) -> list[str] | TextFile:
    """Return texts in memory as a list, and a file as a `TextFile`."""
    if isinstance(texts, TextFile):
        return texts
    if isinstance(texts, Path):
        return TextFile(texts, text_column, cleaning)
    return noted(as_texts(texts, files=True))


def _has_columns(values: object) -> bool:
    return hasattr(values, "columns") or getattr(values, "ndim", 1) != 1


def as_labelled(
    given: Mapping[str, LabelledTexts | None],
    text_column: str | None,
    label_column: str | None,
    csv: CsvOptions = CSV,
) -> dict[str, Labelled]:
    """Return the texts and labels of each set that is given, from files or from memory."""
    column = label_column or "label"
    sets = {}
    for name, part in given.items():
        if part is None:
            continue
        if isinstance(part, (str, Path)):
            labelled = read_labelled(Path(part), text_column, column, csv)
            sets[name] = labelled._replace(name=str(part))
            continue
        if isinstance(part, Table):
            part = _columns_of(name, part, text_column, column)
        texts = as_texts(part[0], f"{name}[0]")
        if _has_columns(part[1]):
            raise UserError(
                f"{name}[1] has type {type(part[1]).__name__}, but it must be a list with the "
                f"class of each text ({SEVERAL_LABELS})."
            )
        labels = list(part[1])
        if not texts or len(texts) != len(labels):
            raise UserError(
                f"{name} has {len(texts):,} texts and {len(labels):,} labels; pass a label for "
                "each text, and one text or more."
            )
        places = [f"{name}[1], text {number:,}: the label" for number in range(len(texts))]
        sets[name] = of_classes(texts, labels, places, name)
    return sets


def _columns_of(
    name: str, table: Table, text_column: str | None, label_column: str
) -> tuple[Any, Any]:
    """The columns of a table's texts and classes."""
    columns = {str(column): column for column in table.columns}  # a number, without a header
    wanted = TEXT_COLUMNS if text_column is None else (text_column,)
    text = next((column for column in wanted if column in columns), wanted[0])
    for what, column in (("text", text), ("label", label_column)):
        if column not in columns:
            raise UserError(
                f"{name} is a table with no {what} among its columns, {', '.join(columns)}; pass "
                f"`{what}_column`, or a tuple such as (df.text, df.label) ({SEVERAL_LABELS})."
            )
    return table[columns[text]], table[columns[label_column]]


def as_classifier(given: AnyClassifier | None, model: Path) -> tuple[str, Classifier]:
    """Return a classifier's name in messages, and the classifier; unset: the model's own."""
    given = given or shipped.classifier(model)
    if given is None:
        raise UserError(
            "this model comes with no classifier; pass one that `transfer` returned, or its folder."
        )
    if isinstance(given, (str, Path)):
        return str(given), load_classifier(Path(given))
    return "the classifier", given if isinstance(given, Classifier) else given.classifier


def require_export(path: Path, classifier: AnyClassifier | None, *, overwrite: bool) -> None:
    """Raise UserError unless `export` can write this file."""
    is_known = path.suffix in (".safetensors", ".pyz")
    require(is_known, "out", str(path), "a file that ends in .safetensors or .pyz")
    output.require_file(path, overwrite=overwrite)
    if path.suffix == ".safetensors" and classifier is not None:
        raise UserError(
            "a classifier can only be exported to .pyz; change `out`, or leave `classifier` out."
        )
