"""SQL that processes records as `documents` does: find, clean, normalize, key.

SQL processes plain ASCII text without "&"; for all other text it calls the functions themselves.
Tests compare the two.
"""

import re
from collections.abc import Sequence

from mlstm_jax.corpora.documents import LARGEST_RATING, NUMBER, Recipe
from mlstm_jax.corpora.sources import Source

# Kinds of records: the column `kind`.
TEXT, NONE, BLANK, BAD = range(4)

# The ASCII white space of str.strip and str.split.
_SPACE = "chr(9)||chr(10)||chr(11)||chr(12)||chr(13)||chr(28)||chr(29)||chr(30)||chr(31)||' '"
# Runs of it except a single space, the most common run, which needs no replacement.
_RUN = r"[\x09-\x0d\x1c-\x1f][\x09-\x0d\x1c-\x20]*| [\x09-\x0d\x1c-\x20]+"

# Delimits the names of fields; if a name contains it, Python reads the file.
_KEY_END = '"'


def insert(rows: str, recipe: Recipe) -> str:
    """Return the SQL that cleans rows of (source, bad, raw, rating), and inserts them.

    `py_clean` and `py_normalized` must be `documents.clean` and `documents.normalized`.
    """
    plain = "strlen(raw) = length(raw)"  # as many bytes as characters: ASCII
    if recipe.cleaning == "radford":
        plain += " AND NOT contains(raw, '&')"
        line = (
            "CASE WHEN contains(raw, chr(10)) OR contains(raw, chr(13)) THEN replace(replace("
            "replace(raw, chr(13)||chr(10), ' '), chr(10), ' '), chr(13), ' ') ELSE raw END"
        )
        body, stripped, padded = _stripped("line"), "body", "chr(10) || ' ' || body || ' '"
    else:
        line, body, stripped, padded = "raw", "raw", _stripped("body"), "body || chr(10)"
    if recipe.cleaning == "protein":
        plain = "false"
    comparable = "text"
    if recipe.dedupe == "normalized":
        # Few texts have such runs, and searching for strings is faster than for a pattern.
        has_runs = " OR ".join(
            f"contains(body, {one})" for one in ["'  '", *_SPACE.split("||")[:-1]]
        )
        comparable = (
            f"CASE WHEN plain THEN lower(CASE WHEN {has_runs} "
            f"THEN regexp_replace(body, {quoted(_RUN)}, ' ', 'g') ELSE body END) "
            "ELSE py_normalized(text) END"
        )
        if recipe.cleaning == "none":
            comparable = comparable.replace("body", f"({stripped})")
    return f"""
        INSERT INTO documents
        SELECT
            CASE WHEN text IS NOT NULL
                THEN md5({quoted(f"{recipe.seed}:")} || {comparable})::UUID END,
            source,
            CASE WHEN bad THEN {BAD} WHEN raw IS NULL THEN {NONE}
                WHEN text IS NULL THEN {BLANK} ELSE {TEXT} END,
            text,
            rating
        FROM (
            SELECT *, CASE
                WHEN NOT plain THEN py_clean(raw)
                WHEN {stripped} <> '' THEN {padded} END AS text
            FROM (
                SELECT *, {body} AS body FROM (
                    SELECT *, {line} AS line FROM (
                        SELECT source, coalesce(bad, false) AS bad, raw, rating,
                            {plain} AS plain
                        FROM ({rows})))))"""


def json_rows(files: Sequence[Source], recipe: Recipe) -> str:
    """Return the SQL of the records of JSON lines files: source, bad, raw and rating.

    The table `files` must contain the number of each file.
    """
    fields = [*recipe.text_columns, *recipe.rating_columns]
    pointers = ", ".join(
        quoted("/" + name.replace("~", "~0").replace("/", "~1")) for name in fields
    )
    split = len(recipe.text_columns)

    def first(start: int, end: int) -> str:
        each = (f"nullif(field[{n}]::VARCHAR, 'null')" for n in range(start + 1, end + 1))
        return f"coalesce({', '.join(each)}, NULL)"

    # One expression: DuckDB computes `names` again for each time that it is used.
    keys = [re.escape(f"{_KEY_END}{name}{_KEY_END}") for name in fields]
    twice = f"regexp_matches(names, {quoted('(?s)' + '|'.join(f'{key}.*{key}' for key in keys))})"
    names = ", ".join(quoted(unglobbed(file.name)) for file in files)
    return f"""
        SELECT source,
            json IS NULL OR json_type(json) <> 'OBJECT' OR left(value, 1) <> '"'
                OR {twice} AS bad,
            CASE WHEN left(value, 1) = '"' THEN json_extract_string(value, '$') END AS raw,
            {number("json_extract_string(mark, '$')")} AS rating
        FROM (
            SELECT source, json, names,
                {first(0, split)} AS value, {first(split, len(fields))} AS mark
            FROM (
                SELECT filename, json, json_extract(json, [{pointers}]) AS field,
                    {quoted(_KEY_END)} || array_to_string(json_keys(json), {quoted(2 * _KEY_END)})
                        || {quoted(_KEY_END)} AS names
                FROM read_ndjson_objects([{names}], filename = true, ignore_errors = true,
                        hive_partitioning = false)
            ) JOIN files USING (filename)
        )"""


def _stripped(column: str) -> str:
    """Return the SQL of str.strip for ASCII text; it is slow, so texts that need none skip it."""
    return (
        f"CASE WHEN {column}[1] <= ' ' OR {column}[-1] <= ' ' "
        f"THEN trim({column}, {_SPACE}) ELSE {column} END"
    )


def number(text: str) -> str:
    """Return the SQL of `documents.rating_of` for a text."""
    stripped = f"trim({text}, chr(9)||chr(10)||chr(11)||chr(12)||chr(13)||' ')"
    return (
        f"CASE WHEN regexp_full_match({stripped}, {quoted(NUMBER)}) "
        f"AND abs(TRY_CAST({stripped} AS DOUBLE)) <= {LARGEST_RATING} "
        f"THEN TRY_CAST({stripped} AS DOUBLE) + 0.0 END"
    )


def quoted(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def unglobbed(path: str) -> str:
    """Return a path in which DuckDB sees no pattern."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)
