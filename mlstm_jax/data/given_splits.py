"""Read given splits: every document of each, in the order of its files.

Benchmarks such as enwik8, Penn Treebank and WikiText are published this way. Nothing is sorted, so
no engine is needed: the files are read twice, to count their documents and to write them.
"""

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isnan, nan
from pathlib import Path

from mlstm_jax.data.corpus import SourceManifest
from mlstm_jax.data.documents import Recipe, Reject, Unit, Written, clean
from mlstm_jax.data.gathered import Gathered, Report, manifest_names
from mlstm_jax.data.readers import read_source
from mlstm_jax.data.rejects import Rejects
from mlstm_jax.data.sources import is_builtin, is_gzip_name, suffix_of
from mlstm_jax.errors import UserError

_BYTES_A_REPORT = 1 << 20

OnRead = Callable[[int], None]


@contextmanager
def gather(
    sources: Mapping[str, Sequence[str]], recipe: Recipe, rejects: Rejects, *, report: Report
) -> Iterator[Gathered]:
    """Count the documents of every split, and yield what to write.

    Args:
        sources: the sources of each split, in the order in which to write the splits.
        recipe: with cleaning "none", a text file is kept byte for byte, and a document is cut
            after the end of a line or paragraph; otherwise see `clean`.

    Raises:
        UserError: a source cannot be used.
    """
    every = [(split, name) for split, names in sources.items() for name in names]
    names = manifest_names([name for _, name in every])
    on_disk = [0 if is_builtin(name) else Path(name).stat().st_size for _, name in every]
    total, done = sum(on_disk) or 1, 0
    counts: list[SourceManifest] = []
    sizes: Counter[str] = Counter()
    rated = False

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report("read", min(1.0, done / total))

    for (split, name), shown in zip(every, names, strict=True):
        seen: Counter[str] = Counter()
        for found in _read(name, recipe, advance):
            if isinstance(found, Reject):
                rejects.add(found)
                continue
            seen["without" if found is None else "text" if found[0] else "blank"] += 1
            rated = rated or (found is not None and not isnan(found[1]))
        if not seen["text"]:
            raise UserError(f"{name}: no text is left after cleaning; leave it out.")
        sizes[split] += seen["text"]
        counts.append(
            SourceManifest(
                name=shown,
                documents=seen["text"],
                without_text=seen["without"],
                blank=seen["blank"],
            )
        )
    documents = (
        document
        for (_, name), count in zip(every, counts, strict=True)
        for document in _again(name, recipe, count.documents)
    )
    yield Gathered(counts, sizes.total(), rated, documents, dict(sizes))


def _again(name: str, recipe: Recipe, expected: int) -> Iterator[Written]:
    count = 0
    for found in _read(name, recipe, lambda count: None):
        if found and not isinstance(found, Reject) and found[0]:
            count += 1
            yield found
    if count != expected:
        raise UserError(f"{name}: changed while it was being read; run prepare again.")


def _read(name: str, recipe: Recipe, on_read: OnRead) -> Iterator[Written | Reject | None]:
    """Yield the documents of a source, including empty ones; None for a record without text."""
    if recipe.cleaning == "none" and not is_builtin(name) and suffix_of(Path(name)) == ".txt":
        for text in _as_it_is(Path(name), recipe.document or "line", on_read):
            yield text, nan
        return
    for found in read_source(name, recipe, on_read):
        if found is None or isinstance(found, Reject):
            yield found
        else:
            rating = nan if found.rating is None else found.rating
            yield clean(found.text, recipe.cleaning), rating


def _as_it_is(source: Path, document: Unit, on_read: OnRead) -> Iterator[bytes]:
    """Yield all bytes of a file as documents, including line ends and blank lines.

    The bytes are not decoded: a split of enwik8 may begin inside a character.
    """
    parts: list[bytes] = []
    told, has_text, was_blank = 0, False, False
    try:
        with source.open("rb") as raw:
            for line in gzip.GzipFile(fileobj=raw) if is_gzip_name(source) else raw:
                is_blank = not line.strip()
                ends = document == "line" or (document == "paragraph" and was_blank)
                if has_text and ends and not is_blank:
                    yield b"".join(parts)
                    parts, has_text = [], False
                parts.append(line)
                has_text, was_blank = has_text or not is_blank, is_blank
                if (position := raw.tell()) - told >= _BYTES_A_REPORT:
                    on_read(position - told)
                    told = position
            on_read(raw.tell() - told)
    except (OSError, EOFError, zlib.error) as error:  # also from gzip
        raise UserError(f"{source}: cannot be read: {error}; fetch or create it again.") from error
    if parts:
        yield b"".join(parts)
