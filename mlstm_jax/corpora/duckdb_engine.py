"""Read, deduplicate and order documents with DuckDB, out of core and on all cores.

If memory or disk space is too small, the error states what to do about it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from mlstm_jax.corpora.documents import Recipe
from mlstm_jax.corpora.duckdb_stage import Stage
from mlstm_jax.corpora.records import Rejects
from mlstm_jax.corpora.sources import Source
from mlstm_jax.corpora.writer import Report, SortedDocuments
from mlstm_jax.errors import UserError


@contextmanager
def read_and_sort(
    sources: Sequence[Source],
    recipe: Recipe,
    rejects: Rejects,
    scratch: Path,
    *,
    memory_limit: str | None,
    threads: int | None,
    report: Report,
) -> Iterator[SortedDocuments]:
    """Read all sources into a database in the folder `scratch`, and yield what to write.

    Raises:
        UserError: a source cannot be used, or there is too little memory or disk.
    """
    usual = 400 * min(max(threads or os.cpu_count() or 1, 2), 10)
    config: dict[str, Any] = {
        "memory_limit": memory_limit or f"{usual}MB",
        "temp_directory": str(scratch / "spill"),
        "preserve_insertion_order": False,
        # Download nothing, not even an extension.
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    if threads:
        config["threads"] = threads
    scratch.mkdir(parents=True, exist_ok=True)
    with _complaints(scratch), duckdb.connect(scratch / "documents.duckdb", config=config) as con:
        stage = Stage(con, sources, recipe, rejects, report)
        try:
            stage.read()
            counts = stage.counts()
            documents, rated = stage.totals()
            report("sort", 0)
            yield SortedDocuments(counts, documents, rated, stage.in_order())
        finally:
            stage.close()


@contextmanager
def _complaints(scratch: Path) -> Iterator[None]:
    """Convert DuckDB's errors about too little memory or disk into what to do about it."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise UserError(
            f"the memory limit is too low: {_brief(error)}\nRaise `memory_limit`, or use fewer "
            "`threads`."
        ) from error
    except duckdb.IOException as error:
        raise UserError(
            f"{scratch}: {_brief(error)}\nFree some space there, or name another folder with "
            "`temp_dir`."
        ) from error
    except duckdb.Error as error:
        raise UserError(f"DuckDB: {_brief(error)}") from error


def _brief(error: duckdb.Error) -> str:
    return str(error).strip().split("\n")[0]
