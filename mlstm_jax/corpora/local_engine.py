"""Read, deduplicate and order documents on this machine, out of core and on all cores.

This process reads the sources. Others clean the texts and compute their keys, a batch at a time, by
the functions of `documents`. Each document goes into one of many part files, by the first bits of
its key; then each part is sorted by itself. So memory does not grow with the corpus.
"""

import gc
import math
import os
import pickle
import subprocess
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mlstm_jax.corpora.documents import Keyed, Recipe, Reject, clean, order_key
from mlstm_jax.corpora.readers import read_source
from mlstm_jax.corpora.records import Rejects
from mlstm_jax.corpora.sources import Source
from mlstm_jax.corpora.writer import (
    COMPRESSION,
    Report,
    SortedDocuments,
    read_parts,
    scratch_errors,
    source_manifests,
    write_part,
)
from mlstm_jax.errors import UserError

_CHARACTERS_A_BATCH = 1 << 19
_DOCUMENTS_A_BATCH = 4096
_BYTES_A_PART = 1 << 25  # a process sorts a part in memory
_MOST_BITS = 12  # 4,096 parts
_BUFFERED = 1 << 26  # bytes of all parts, before they are written
_CALLS_HERE = 16
_MOST_PROCESSES = 8  # One process reads, which keeps no more busy.


@contextmanager
def read_and_sort(
    sources: Sequence[Source],
    recipe: Recipe,
    rejects: Rejects,
    scratch: Path,
    *,
    processes: int | None,
    report: Report,
) -> Iterator[SortedDocuments]:
    """Read all sources into parts in the folder `scratch`, sort these, and yield what to write.

    Raises:
        UserError: a source cannot be used, or there is too little disk.
    """
    bits = _bits(sources)
    texts, without, blank = Counter[int](), Counter[int](), Counter[int]()
    is_rated = False
    with _Workers(processes or min(_MOST_PROCESSES, os.cpu_count() or 1)) as workers:
        parts = _Parts(scratch)
        batches = _batches(sources, recipe, rejects, without, report)
        tasks = ((number, batch, recipe, bits) for number, batch in batches)
        for number, size, kept, rated, pieces in workers.map(_clean_batch, tasks):
            texts[number] += kept
            blank[number] += size - kept
            is_rated = is_rated or rated
            parts.add(pieces)
        parts.write()
        report("read", 1)
        for number, source in enumerate(sources):
            if not texts[number]:
                raise UserError(f"{source}: no text is left after cleaning; leave it out.")
        documents = 0
        files = sorted(scratch.iterdir())
        with scratch_errors(scratch):
            sizes = workers.map(_sort_part, ((file, recipe) for file in files))
            for number, size in enumerate(sizes):
                report("sort", number / len(files))
                documents += size
    counts = ((texts[n], without[n], blank[n]) for n in range(len(sources)))
    yield SortedDocuments(
        sorted(source_manifests(sources, counts)), documents, is_rated, read_parts(scratch)
    )


def _bits(sources: Sequence[Source]) -> int:
    """Return the number of bits of a key that name its part."""
    size = sum(
        source.size * (COMPRESSION if source.is_gzip or source.kind == "parquet" else 1)
        for source in sources
    )
    if any(not source.is_file for source in sources):  # whose size is unknown
        size = max(size, 64 * _BYTES_A_PART)
    return min(_MOST_BITS, math.ceil(math.log2(max(1, size / _BYTES_A_PART))))


def _batches(
    sources: Sequence[Source],
    recipe: Recipe,
    rejects: Rejects,
    without: Counter[int],
    report: Report,
) -> Iterator[tuple[int, list[tuple[str, float | None]]]]:
    """Yield texts and ratings with the numbers of their sources; count records without text."""
    total, done = sum(source.size for source in sources) or 1, 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report("read", min(1.0, done / total))

    for number, source in enumerate(sources):
        batch: list[tuple[str, float | None]] = []
        size = 0
        for found in read_source(source, recipe, advance):
            if isinstance(found, Reject):
                rejects.add(found)
            elif found is None:
                without[number] += 1
            else:
                batch.append((found.text, found.rating))
                size += len(found.text)
                if size >= _CHARACTERS_A_BATCH or len(batch) == _DOCUMENTS_A_BATCH:
                    yield number, batch
                    batch, size = [], 0
        if batch:
            yield number, batch


def _clean_batch(
    number: int, batch: list[tuple[str, float | None]], recipe: Recipe, bits: int
) -> tuple[int, int, int, bool, dict[int, bytes]]:
    """Clean texts; return the source's number, how many there were and are, whether any is rated.

    And by the first bits of their keys, the pickled documents.
    """
    parts: dict[int, list[Keyed]] = defaultdict(list)
    is_rated = False
    for text, rating in batch:
        if cleaned := clean(text, recipe.cleaning):
            key = order_key(cleaned, recipe.seed, recipe.dedupe)
            is_rated = is_rated or rating is not None
            part = int(key[:8], 16) >> (32 - bits)
            parts[part].append((key, cleaned, math.nan if rating is None else rating))
    pieces = {part: pickle.dumps(documents) for part, documents in parts.items()}
    return number, len(batch), sum(map(len, parts.values())), is_rated, pieces


class _Parts:
    """Files of unsorted documents, by the first bits of their keys."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pieces: dict[int, list[bytes]] = defaultdict(list)
        self._size = 0
        with scratch_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, pieces: dict[int, bytes]) -> None:
        for part, piece in pieces.items():
            self._pieces[part].append(piece)
            self._size += len(piece)
        if self._size > _BUFFERED:
            self.write()

    def write(self) -> None:
        with scratch_errors(self._folder):
            for part, pieces in self._pieces.items():
                with (self._folder / f"{part:03x}").open("ab") as file:
                    file.writelines(pieces)
        self._pieces.clear()
        self._size = 0


def _sort_part(file: Path, recipe: Recipe) -> int:
    """Replace a part by a sorted one without duplicates; return how many documents it has."""
    documents: list[Keyed] = []
    with file.open("rb") as pieces, suppress(EOFError):
        while True:
            documents += pickle.load(pieces)
    file.unlink()
    return write_part(file.with_suffix(".npz"), documents, recipe)


class _Workers:
    """Processes that call functions of this module, until the block ends.

    They start after a few calls, made in this process, which a small corpus does not exceed. Those
    of `multiprocessing` would import the user's program again, and outlive one that is killed.
    """

    def __init__(self, count: int) -> None:
        self._count, self._calls_here = count, _CALLS_HERE
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._threads = ThreadPoolExecutor(count)

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._threads.shutdown(cancel_futures=True)

    def map(self, function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield what `function` returns for each task, in their order."""
        running: deque[Future[Any]] = deque()
        for task in tasks:
            if self._count == 1 or self._calls_here:
                self._calls_here = max(0, self._calls_here - 1)
                yield function(*task)
                continue
            if not self._processes:
                self._start()
            running.append(self._threads.submit(self._call, function, task))
            if len(running) > 2 * self._count:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()

    def _start(self) -> None:
        for _ in range(self._count):
            ours, theirs = Pipe()
            program = (
                f"import sys; sys.path[:] = {sys.path!r}; from mlstm_jax.corpora import "
                f"local_engine; local_engine.serve({theirs.fileno()})"
            )
            # In a group of its own, because Ctrl-C is for this process alone.
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", program], pass_fds=[theirs.fileno()], process_group=0
                )
            )
            theirs.close()
            self._idle.put(ours)

    def _call(self, function: Callable[..., Any], task: tuple[Any, ...]) -> Any:
        connection = self._idle.get()
        try:
            connection.send((function, task))
            result = connection.recv()
        except (EOFError, OSError) as error:
            raise UserError(
                "a process that cleans or sorts texts has ended, perhaps because memory was full; "
                "use fewer --threads."
            ) from error
        finally:
            self._idle.put(connection)
        if isinstance(result, Exception):
            raise result
        return result


def serve(descriptor: int) -> None:
    """Call the functions that come over a connection, and send what they return, to its end."""
    gc.disable()  # It would look at each of many documents again and again.
    connection = Connection(descriptor)
    with suppress(EOFError, OSError):
        while True:
            function, task = connection.recv()
            try:
                result = function(*task)
            except Exception as error:
                result = error
            connection.send(result)
