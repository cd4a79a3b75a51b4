"""Read documents of typed columns: Parquet files, and TensorFlow Datasets without TensorFlow.

DuckDB reads Parquet; it refuses a file in which one text is not UTF-8. A data set of TFDS must have
been prepared as ArrayRecord files: nothing is downloaded here.
"""

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mlstm_jax.corpora.documents import SEVERAL_LABELS, Recipe
from mlstm_jax.corpora.records import RecordOrReject, no_column, text_columns
from mlstm_jax.corpora.sources import TFDS, Source
from mlstm_jax.errors import UserError, extra, first_line

if TYPE_CHECKING:
    import duckdb


def parquet_records(source: Source, recipe: Recipe) -> Iterator[RecordOrReject]:
    """Yield the columns that are read of each record of a file."""
    import duckdb

    # One thread is fast enough, and each holds a group of rows.
    with duckdb.connect(config={"threads": 1}) as con:
        try:
            names, query = _parquet_rows(con, source, recipe)
            con.execute(query)
            while rows := con.fetchmany(4096):
                for row in rows:
                    yield "", dict(zip(names, row, strict=False))  # DuckDB refuses what is wrong
        except (duckdb.Error, UnicodeError) as error:  # the latter of a file's name
            raise UserError(
                f"{source} cannot be read as Parquet: {first_line(error)} Correct the file, or "
                "write the table as CSV or JSON lines."
            ) from error


def _parquet_rows(
    con: "duckdb.DuckDBPyConnection", source: Source, recipe: Recipe
) -> tuple[list[str], str]:
    """The columns of a file that are read, and the SQL of all its records."""
    # DuckDB sees no pattern in it, and no home folder, as in "~a.parquet".
    name = re.sub(r"([*?[])", r"[\1]", str(source.path.absolute()))
    name.encode()  # DuckDB opens no other one
    path = "'" + name.replace("'", "''") + "'"
    table = f"read_parquet({path}, hive_partitioning = false)"
    # DuckDB renames columns that differ in case only, and keeps their order.
    described = con.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()
    columns = {}
    names = _column_names(con, path)
    for name, (renamed, kind, *_) in zip(names, described, strict=True):
        columns[name] = ('"' + renamed.replace('"', '""') + '"', kind)
    label = recipe.label_column
    text_columns(source, recipe, names)
    if label is not None and label not in columns:
        option = f"`label_column` ({SEVERAL_LABELS})"
        raise UserError(no_column(source, [label], names, option))
    wanted = [name for name in columns if name in recipe.columns]
    values = []
    for name in wanted:
        value, kind = columns[name]
        if kind == "BLOB":  # some writers do not mark texts as UTF-8
            value = f"decode({value})"
        elif kind == "FLOAT":  # 0.1, not 0.10000000149011612
            value = f"{value}::VARCHAR::DOUBLE"
        values.append(value)
    return wanted, f"SELECT {', '.join(values)} FROM {table}"


def _column_names(con: "duckdb.DuckDBPyConnection", path: str) -> list[str]:
    """The names of a file's columns, without the fields inside of columns."""
    schema = f"SELECT name, coalesce(num_children, 0) FROM parquet_schema({path})"
    names = []
    inside = 0  # fields that are still to come in the present column
    for name, children in con.execute(schema).fetchall()[1:]:
        if not inside:
            names.append(name)
            inside = 1
        inside += children - 1
    return names


def tfds_records(source: Source, recipe: Recipe) -> Iterator[RecordOrReject]:
    """Yield the features that are read of each example of `tfds:NAME[/CONFIG]:SPLIT`."""
    name, _, split = source.name.removeprefix(TFDS.suffix).partition(":")
    if not name or not split:
        form = "tfds:NAME[/CONFIG]:SPLIT, such as tfds:imdb_reviews:train"
        raise UserError(f"{source} is not of the form {form}.")
    with extra("tfds", f"{source} needs TensorFlow Datasets"):
        import tensorflow_datasets as tfds
        from tensorflow_datasets.core.read_only_builder import builder_from_files
    folder = os.environ.get("TFDS_DATA_DIR") or tfds.core.constants.DATA_DIR
    try:
        # Opened from its files: the code that created them may need TensorFlow and is not run.
        builder = builder_from_files(name, data_dir=folder)
        examples = builder.as_data_source(split)
    except (tfds.core.DatasetNotFoundError, NotImplementedError, ValueError, KeyError) as error:
        make = f"tensorflow_datasets.builder({name!r}, file_format='array_record')"
        raise UserError(
            f"{source} cannot be read from {folder} ({first_line(error)}). If it is not prepared "
            f"there as ArrayRecord files, do so once, which may download it: in Python, {make}"
            ".download_and_prepare(); or set TFDS_DATA_DIR to its folder."
        ) from error
    text_columns(source, recipe, list(builder.info.features))
    for number, example in enumerate(examples, 1):
        record = {one: _plain(example[one]) for one in recipe.columns if one in example}
        yield f"example {number:,}", record


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and value.shape == ():
        value = value.item()
    return value.decode(errors="replace") if isinstance(value, bytes) else value
