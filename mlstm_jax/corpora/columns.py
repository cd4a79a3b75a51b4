"""Read documents of typed columns: Parquet files, and TensorFlow Datasets without TensorFlow.

DuckDB reads Parquet; it refuses a file in which one text is not UTF-8. A data set of TFDS must have
been prepared as ArrayRecord files: nothing is downloaded here. TFDS decides where it is stored
(`TFDS_DATA_DIR`, by default ~/tensorflow_datasets).
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mlstm_jax.corpora.documents import SEVERAL_LABELS, Recipe
from mlstm_jax.corpora.formats import TFDS
from mlstm_jax.corpora.records import RecordOrReject, no_column, text_columns
from mlstm_jax.corpora.sources import Source
from mlstm_jax.errors import UserError, extra, first_line

if TYPE_CHECKING:
    import duckdb

_ROWS_A_FETCH = 4096
# From DuckDB's error messages, of a column of strings and of `decode`.
_NOT_UTF8 = re.compile("Invalid string encoding|could not convert blob to UTF8", re.IGNORECASE)


def parquet_records(source: Source, recipe: Recipe) -> Iterator[RecordOrReject]:
    """Yield the columns that are read of each record of a file."""
    import duckdb

    # One thread is fast enough, and each holds a group of rows.
    with duckdb.connect(config={"threads": 1}) as con:
        try:
            names, query = _parquet_rows(con, source, recipe)
            con.execute(query)
            while rows := con.fetchmany(_ROWS_A_FETCH):
                for row in rows:
                    yield "", dict(zip(names, row, strict=False))  # DuckDB refuses what is wrong
        except duckdb.Error as error:
            why = f"{source} cannot be read as Parquet: {first_line(error)}"
            if _NOT_UTF8.search(str(error)):
                why = (
                    f"{source}, row {_bad_row(con, query):,} is not UTF-8 text, for which DuckDB "
                    f"refuses the file: {first_line(error)} Correct the text, or write the table "
                    "as CSV or JSON lines, in which such a record is skipped."
                )
            raise UserError(why) from error


def _parquet_rows(
    con: "duckdb.DuckDBPyConnection", source: Source, recipe: Recipe
) -> tuple[list[str], str]:
    """The columns of a file that are read, and the SQL of all its records."""
    # DuckDB sees no pattern in it, and no home folder, as in "~a.parquet".
    name = re.sub(r"([*?[])", r"[\1]", str(source.path.absolute()))
    path = "'" + name.replace("'", "''") + "'"
    table = f"read_parquet({path}, hive_partitioning = false, file_row_number = true)"
    # DuckDB renames columns that differ in case only, and keeps their order.
    described = con.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()
    columns = {}
    names = _column_names(con, path)
    for name, (renamed, kind, *_) in zip(names, described, strict=False):
        columns[name] = ('"' + renamed.replace('"', '""') + '"', kind)
    label = recipe.label_column
    texts = text_columns(source, recipe, names)
    if label is not None and label not in columns:
        option = f"`label_column` ({SEVERAL_LABELS})"
        raise UserError(no_column(source, [label], names, option))
    for name in texts:
        kind = columns[name][1]
        if kind not in ("VARCHAR", "BLOB"):
            raise UserError(
                f"column {name} of {source} is {kind}, not text; name another with `text_column`."
            )
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


def _bad_row(con: "duckdb.DuckDBPyConnection", query: str) -> int:
    """The number, from 1, of the first record that DuckDB cannot read, found by bisection."""
    import duckdb

    low = 0
    table = query.rpartition(" FROM ")[2]
    ((high,),) = con.execute(f"SELECT count(*) FROM {table}").fetchall()
    while high - low > 1:
        middle = (low + high) // 2
        rows = f"{query} WHERE file_row_number BETWEEN {low} AND {middle - 1}"
        try:
            con.execute(f"SELECT max(hash(COLUMNS(*))) FROM ({rows})").fetchall()
            low = middle
        except duckdb.Error:
            high = middle
    return low + 1


def tfds_records(source: Source, recipe: Recipe) -> Iterator[RecordOrReject]:
    """Yield the features that are read of each example of a data set.

    The source is `tfds:NAME[/CONFIG]:SPLIT`, such as ``tfds:glue/sst2:train[:10%]``.
    """
    name, _, split = source.name.removeprefix(TFDS.suffix).partition(":")
    if not name or not split:
        form = "tfds:NAME[/CONFIG]:SPLIT, such as tfds:imdb_reviews:train"
        raise UserError(f"{source} is not of the form {form}.")
    examples, features = _open_tfds(source, name, split)
    text_columns(source, recipe, list(features))
    for number, example in enumerate(examples, 1):
        record = {name: _plain(example[name]) for name in recipe.columns if name in example}
        yield f"example {number:,}", record


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and value.shape == ():
        value = value.item()
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _open_tfds(source: Source, name: str, split: str) -> tuple[Any, Mapping[str, Any]]:
    with extra("tfds", f"{source} needs TensorFlow Datasets"):
        import tensorflow_datasets as tfds
        from tensorflow_datasets.core.read_only_builder import builder_from_files
    made = f"tensorflow_datasets.builder({name!r}, file_format='array_record')"
    make = f"in Python, {made}.download_and_prepare()"
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
                "it is prepared, but not as ArrayRecord files, the only ones readable without "
                f"TensorFlow. Remove {builder.data_dir}, and prepare it again: {make}"
            )
        elif known:
            why = f"it has no split {split}; it has {known} ({first_line(error)})"
        else:
            why = (
                f"no such data set is prepared in {folder} ({first_line(error)}). Prepare it once, "
                f"which may download it: {make}; or set TFDS_DATA_DIR to its folder."
            )
        raise UserError(f"{source}: {why}") from error
