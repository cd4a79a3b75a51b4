"""Read documents of typed columns: Parquet files, and TensorFlow Datasets without TensorFlow.

Parquet is read with DuckDB, or with pyarrow if a text is not UTF-8: DuckDB rejects a whole file for
one such text, and returns none of the rows around it. A data set of TFDS must have been prepared as
ArrayRecord files: nothing is downloaded here. TFDS decides where it is stored (`TFDS_DATA_DIR`, by
default ~/tensorflow_datasets).
"""

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from mlstm_jax.corpora.documents import SEVERAL_LABELS, Document, Recipe, Reject, first, rating_of
from mlstm_jax.corpora.records import no_column, reject
from mlstm_jax.corpora.sources import TFDS, Source
from mlstm_jax.errors import UserError, extra, first_line

if TYPE_CHECKING:
    import duckdb

_ROWS_A_FETCH = 4096
# From DuckDB's error messages, of a column of strings and of `decode`.
_NOT_UTF8 = re.compile("Invalid string encoding|could not convert blob to UTF8", re.IGNORECASE)
_STRINGS = ("string", "large_string", "string_view")  # pyarrow's


def read_parquet(source: Source, recipe: Recipe) -> Iterator[Document | Reject | None]:
    """Yield the documents of a file, None for each record without text, and rejects.

    Raises UserError if it cannot be read, or has no text column, label column or readable text.
    """
    import duckdb

    done = 0
    # One thread is fast enough, and each holds a group of rows.
    with duckdb.connect(config={"threads": 1}) as con:
        try:
            con.execute(_parquet_rows(con, source, recipe))
            while rows := con.fetchmany(_ROWS_A_FETCH):
                for text, rating, label in rows:
                    yield None if text is None else _document(recipe, text, rating, label)
                done += len(rows)
            return
        except duckdb.Error as error:
            if not _NOT_UTF8.search(str(error)):
                raise _not_parquet(source, error) from error
    bad: Reject | None = None
    good = done
    for record in islice(_read_bytes(source, recipe), done, None):
        if isinstance(record, Reject):
            bad = bad or record
        else:
            good += 1
        yield record
    if bad and not good:
        raise UserError(bad.message)


def _parquet_rows(con: "duckdb.DuckDBPyConnection", source: Source, recipe: Recipe) -> str:
    """The SQL of all records of a file: text, rating as text, and label."""
    path = re.sub(r"([*?[])", r"[\1]", source.name)  # DuckDB sees no pattern in it
    table = f"read_parquet({quoted(path)}, hive_partitioning = false)"
    described = con.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()
    types = {row[0]: row[1] for row in described}
    texts = [field for field in recipe.text_columns if field in types]
    ratings = [field for field in recipe.rating_columns if field in types]
    label = recipe.label_column
    not_text = [field for field in texts if types[field] not in ("VARCHAR", "BLOB")]
    wrong = ""
    if not texts:
        wrong = no_column(source, recipe.text_columns, list(types))
    elif label is not None and label not in types:
        option = f"`label_column` ({SEVERAL_LABELS})"
        wrong = no_column(source, [label], list(types), option)
    elif not_text:
        wrong = (
            f"{source}: its column {not_text[0]} is {types[not_text[0]]}, not text; name another "
            "with `text_column`."
        )
    if wrong:
        raise UserError(wrong)

    def column(field: str) -> str:
        name = '"' + field.replace('"', '""') + '"'
        if types[field] == "BLOB":  # some writers do not mark texts as UTF-8
            return f"decode({name})"
        if types[field] == "FLOAT":  # 0.1, not 0.10000000149011612
            return f"{name}::VARCHAR::DOUBLE"
        return name

    def first_of(fields: list[str]) -> str:
        values = [f"{column(name)}::VARCHAR" for name in fields]
        return f"coalesce({', '.join([*values, 'NULL'])})"

    label_value = "NULL" if label is None else column(label)
    return f"SELECT {first_of(texts)}, {first_of(ratings)}, {label_value} FROM {table}"


def quoted(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _not_parquet(source: Source, error: Exception) -> UserError:
    return UserError(f"{source}: cannot be read as Parquet: {first_line(error)}")


def _document(recipe: Recipe, text: str, rating: object, label: object) -> Document:
    record = None
    if recipe.label_column is not None:
        record = {recipe.label_column: label}
    return Document(text, rating_of(rating), record)


def _read_bytes(source: Source, recipe: Recipe) -> Iterator[Document | Reject | None]:
    """Do the same with pyarrow, which returns texts as bytes, UTF-8 or not."""
    what = "has a text that is not UTF-8; convert the file, or install pyarrow to skip its row"
    with extra("parquet", f"{source}: {what}"):
        import pyarrow
        import pyarrow.parquet
    try:
        with pyarrow.parquet.ParquetFile(source.path) as file:
            there = [name for name in recipe.columns if name in file.schema_arrow.names]
            row = 0
            for batch in file.iter_batches(_ROWS_A_FETCH, columns=there):
                columns = {}
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if pyarrow.types.is_dictionary(column.type):
                        column = column.dictionary_decode()
                    if str(column.type) in _STRINGS:
                        column = column.cast(pyarrow.large_binary())
                    if pyarrow.types.is_float32(column.type):  # 0.1, as DuckDB's reader gives
                        column = column.cast(pyarrow.string()).cast(pyarrow.float64())
                    columns[name] = column.to_pylist()
                for values in zip(*columns.values(), strict=True):
                    row += 1
                    record = dict(zip(columns, values, strict=True))
                    yield _document_of(source, row, record, recipe)
    except (pyarrow.ArrowException, OSError) as error:
        raise _not_parquet(source, error) from error


def _document_of(
    source: Source, row: int, record: dict[str, object], recipe: Recipe
) -> Document | Reject | None:
    text = first(record, recipe.text_columns)
    if text is None:
        return None
    assert isinstance(text, bytes)
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        why = f"not UTF-8 text (byte 0x{text[error.start]:02x}); correct it at its source."
        excerpt = text.decode(errors="backslashreplace")
        return reject("not UTF-8", source, f"row {row:,}", why, excerpt)
    rating = str(_text_of(first(record, recipe.rating_columns)))
    label = record.get(recipe.label_column or "")
    return _document(recipe, decoded, rating, _text_of(label))


def read_tfds(source: Source, recipe: Recipe) -> Iterator[Document | None]:
    """Yield the documents of a data set, and None for each record without text.

    The source is `tfds:NAME[/CONFIG]:SPLIT`, such as ``tfds:glue/sst2:train[:10%]``.

    Raises UserError if the data set does not exist, is not prepared as ArrayRecord files, or has no
    such split or feature.
    """
    name, _, split = source.name.removeprefix(TFDS).partition(":")
    if not name or not split:
        raise UserError(
            f"{source}: must be tfds:NAME[/CONFIG]:SPLIT, such as tfds:imdb_reviews:train"
        )
    examples, features = _open_tfds(source, name, split)
    text_columns = tuple(field for field in recipe.text_columns if field in features)
    if not text_columns:
        raise UserError(no_column(source, recipe.text_columns, list(features)))
    for example in examples:
        text = _text_of(first(example, text_columns))
        rating = first(example, recipe.rating_columns)
        if hasattr(rating, "item"):
            rating = rating.item()
        label = _text_of(example.get(recipe.label_column))
        yield _document(recipe, text, rating, label) if isinstance(text, str) else None


def _text_of(value: object) -> object:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _open_tfds(source: Source, name: str, split: str) -> tuple[Any, Mapping[str, Any]]:
    with extra("tfds", f"{source}: needs TensorFlow Datasets"):
        import tensorflow_datasets as tfds
        from tensorflow_datasets.core.read_only_builder import builder_from_files
    make = (
        f"in Python, tensorflow_datasets.builder({name!r}, file_format='array_record')"
        ".download_and_prepare()"
    )
    folder = os.environ.get("TFDS_DATA_DIR") or tfds.core.constants.DATA_DIR
    known = ""
    try:
        # Opened from its files: the code that created them may need TensorFlow and is not run.
        builder = builder_from_files(name, data_dir=folder)
        known = ", ".join(builder.info.splits)
        return builder.as_data_source(split), builder.info.features
    except (tfds.core.DatasetNotFoundError, NotImplementedError, ValueError, KeyError) as error:
        if isinstance(error, NotImplementedError):
            why = (
                "is prepared, but not as ArrayRecord files, the only ones readable without "
                f"TensorFlow. Remove {builder.data_dir}, and prepare it again: {make}"
            )
        elif known:
            why = f"has no split {split}; it has {known} ({first_line(error)})"
        else:
            why = (
                f"no such data set is prepared in {folder} ({first_line(error)}). Prepare it once, "
                f"which may download it: {make}; or set TFDS_DATA_DIR to its folder."
            )
        raise UserError(f"{source}: {why}") from error
