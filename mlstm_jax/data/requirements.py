"""Checks before `prepare` begins: its arguments, its folders and the free disk space."""

import errno
import math
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlstm_jax import fields
from mlstm_jax.data.corpus import SPLITS, SplitName
from mlstm_jax.data.prepare_options import SPLIT, PrepareOptions
from mlstm_jax.data.sources import PYDOC, Source
from mlstm_jax.errors import UserError

# Bytes of text per compressed byte of reviews, at most.
_COMPRESSION = 4
# DuckDB itself sets no limit.
_MOST_THREADS = 256
# Bytes of a file name on most systems, less what is added for temporary files.
_LONGEST_NAME = 255 - len(".partial-4194304.old") - len(".")
# Bytes of the documents table and of what its sort spills, per byte of text.
_SCRATCH = 2


def check_options(sources: Sequence[str], options: PrepareOptions) -> None:
    """Raise UserError unless the sources and options of `prepare` make sense."""
    fields.require_valid(options)
    if not sources:
        raise UserError(f"no source given; name text files, or {PYDOC}")
    for option, field in (
        ("--text-column", options.text_column),
        ("--rating-column", options.rating_column),
    ):
        if field == "":
            raise UserError(f"{option} '': names no column; name one, or leave the option out.")
    split = options.split
    if len(split) != 3 or not 0 < sum(split) < math.inf or min(split) < 0:
        raise UserError(
            f"--split {','.join(map(str, split))}: must be three weights, train, valid and test, "
            "none negative, at least one above 0; such as 1000,1,1 or 0.8,0.1,0.1, or 0,0,1 for a "
            "test set only"
        )
    rejected, threads = options.max_reject_fraction, options.threads
    if not 0 <= rejected <= 1:
        raise UserError(f"--max-reject-fraction {rejected:g}: must be from 0 (none) to 1 (all).")
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise UserError(f"--threads {threads}: must be from 1 to {_MOST_THREADS}.")
    if not -(2**63) <= options.seed < 2**63:
        raise UserError(f"--seed {options.seed}: must be a number of at most 64 bits.")
    limit = options.memory_limit
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)? ?[KMGT]i?B", limit, re.IGNORECASE):
        raise UserError(f"--memory-limit {limit!r}: must be a size such as 4GB or 500MB.")
    if options.engine != "beam" and options.beam_options:
        raise UserError("--beam-options needs --engine beam; add it.")
    try:
        shlex.split(options.beam_options)
    except ValueError as error:
        raise UserError(f"--beam-options {options.beam_options!r}: {error}.") from error


def check_given(sources: Mapping[SplitName, Sequence[str]], options: PrepareOptions) -> None:
    """Raise UserError unless the options suit given splits."""
    unknown = sources.keys() - set(SPLITS)
    if unknown:
        raise UserError(f"{min(unknown)!r} is not a split; the splits are {', '.join(SPLITS)}.")
    for option, is_other in (
        ("--split", options.split != SPLIT),
        ("--dedupe", options.dedupe not in (None, "none")),
        ("--seed", options.seed != 0),
        ("--engine", options.engine != "duckdb"),
    ):
        if is_other:
            raise UserError(
                f"{option}: splits given with --train, --valid and --test are kept unchanged, all "
                "documents in their order; leave the option out, or name the files without their "
                "splits."
            )


def check_apart(found: Mapping[str, Sequence[Source]]) -> None:
    """Raise UserError if two splits have a file in common."""
    split_of: dict[tuple[str, ...], str] = {}
    for split, sources in found.items():
        for source in sources:
            other = split_of.setdefault(source.place, split)
            if other != split:
                raise UserError(
                    f"{source}: is named for --{other} and --{split}; a score on text that was "
                    "trained on says nothing about new text, so name it for only one."
                )


def resolved(option: str, path: Path) -> Path:
    """Return a path without links; raise UserError if it cannot hold a corpus."""
    try:
        resolved = path.resolve()
        resolved.exists()  # raises if a part of it is too long or not accessible
        if len(os.fsencode(resolved.name)) > _LONGEST_NAME:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        str(resolved).encode()
    except UnicodeEncodeError as error:
        why = "this name is not UTF-8, so DuckDB cannot open files there"
        raise UserError(f"{option} {resolved}: {why}; name another folder.") from error
    except (OSError, RuntimeError) as error:  # RuntimeError: Python 3.13 and earlier
        why = getattr(error, "strerror", None) or "a link that leads back to itself"
        raise UserError(f"{option} {path}: {why}; name another folder.") from error
    return resolved


def check_disk(sources: Sequence[Source], out: Path, scratch: Path, *, sorts: bool) -> None:
    """Raise UserError unless there is enough disk space for a corpus.

    Args:
        sources: the sources to read, as `find_sources` returns them.
        out: the corpus folder.
        scratch: the folder next to which temporary files are written.
        sorts: whether there are temporary files.
    """
    text = sum(
        source.size * (_COMPRESSION if source.is_gzip or source.kind == "parquet" else 1)
        for source in sources
    )
    temporary = _SCRATCH * text if sorts else 0
    advice = "free some space, or write the corpus to another disk with --out."
    if sorts:
        advice = (
            "free some space, write the corpus to another disk with --out, or put the temporary "
            f"files, about {_gigabytes(temporary)}, on another disk with --temp-dir."
        )
    needed: dict[int, tuple[Path, int]] = {}
    for place, size in ((out.parent, text), (scratch.parent, temporary)):
        folder = next(folder for folder in (place, *place.parents) if folder.exists())
        device = folder.stat().st_dev
        needed[device] = (folder, needed.get(device, (folder, 0))[1] + size)
    for folder, size in needed.values():
        free = shutil.disk_usage(folder).free
        if size > free:
            raise UserError(
                f"{folder}: about {_gigabytes(size)} may be needed here, but only "
                f"{_gigabytes(free)} is free; {advice}"
            )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
