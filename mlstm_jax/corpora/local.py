"""The engine of `prepare` for one machine: one process or several read, and this one sorts.

Each process adds documents to the files of their parts, in a folder of its own. The processes are
fresh ones, not forks, because the program that calls `prepare` may have threads; and Python's own
pool would run that program's main file again.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from mlstm_jax import output
from mlstm_jax.corpora import parts
from mlstm_jax.corpora.documents import Recipe
from mlstm_jax.corpora.engine import Job, SortedDocuments, SourceCounts
from mlstm_jax.corpora.parts import Piece
from mlstm_jax.corpora.readers import OnRead
from mlstm_jax.corpora.rejects import Reject
from mlstm_jax.corpora.sources import Source, text_size
from mlstm_jax.data.stream import prefetch
from mlstm_jax.errors import KnownError
from mlstm_jax.terminal import ProgressLine

_MOST_PARTS = 1 << 10  # each has two files
_BYTES_A_WORKER = 1 << 25  # fewer are read before another process has started
_PROGRAM = "from mlstm_jax.corpora.local import work; work()"

OnReject = Callable[[Reject], None]


class _Task(NamedTuple):
    """What a process reads: sources, into the files of so many parts in a folder of its own."""

    sources: Sequence[Source]
    recipe: Recipe
    parts: int
    folder: Path


@contextmanager
def sort_here(sources: Sequence[Source], job: Job) -> Iterator[SortedDocuments]:
    """Read all sources into files of parts in the folder `scratch`, and yield what to write."""
    recipe = job.recipe
    count = parts.count(sources, _MOST_PARTS)
    cores = os.cpu_count() or 1
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))  # those that this process may use
    most = min(job.options.workers or cores, len(sources))
    workers = max(1, min(most, text_size(sources) // _BYTES_A_WORKER))
    by_size = sorted(sources, key=lambda source: -source.size)
    folders = [job.scratch / str(number) for number in range(workers)]
    tasks = []
    for number, folder in enumerate(folders):
        folder.mkdir(parents=True)
        tasks.append(_Task(by_size[number::workers], recipe, count, folder))
    # The first process shows how far all are.
    name = f"read, process 1 of {workers}" if workers > 1 else "read"
    size = sum(source.size for source in tasks[0].sources)
    with ProgressLine(name, size, of_bytes=True, shown=job.show_progress) as line:
        counts = _read_all(tasks, line.advance, job.rejects.add)
    kept = sum(parts.kept(parts.read_rows(folders, part), recipe) for part in range(count))

    def sorted_part(part: int) -> Piece:
        return parts.in_order(parts.read(folders, part), recipe)

    # One part is put in order while the one before it is written.
    with closing(prefetch(sorted_part, range(count), depth=1)) as in_order:
        yield SortedDocuments(counts, kept, in_order)


def _read(task: _Task, on_read: OnRead, on_reject: OnReject) -> list[SourceCounts]:
    read = []
    for source in task.sources:
        counts = SourceCounts(source)
        documents = counts.read(task.recipe, on_reject, on_read)
        for number, piece in parts.distributed(documents, task.recipe, task.parts):
            with output.write_errors(task.folder):
                parts.append(task.folder, number, piece)
        read.append(counts)
    return read


def _read_all(tasks: Sequence[_Task], on_read: OnRead, on_reject: OnReject) -> list[SourceCounts]:
    """Run the first task here, and each other one in a process."""
    first, *others = tasks
    with ExitStack() as stack:
        results = [stack.enter_context(_process(task)) for task in others]
        counts = _read(first, on_read, on_reject)
        for task, result in zip(others, results, strict=True):
            try:
                told = pickle.load(result)
            except EOFError as error:
                raise KnownError(
                    f"{task.sources[0]}: the process that reads it, or a source after it, has "
                    "ended; was it killed, or memory too small? Use fewer `workers`."
                ) from error
            if isinstance(told, BaseException):
                raise told
            counts_there, rejected = told
            counts += counts_there
            for reject in rejected:
                on_reject(reject)
    return counts


@contextmanager
def _process(task: _Task) -> Iterator[IO[bytes]]:
    """Start a process for a task, and yield where it writes the result; it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        process_group=0,  # a terminal's signals reach only this process
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            with process.stdin as given:
                pickle.dump((os.getpid(), task), given)
            yield process.stdout
        finally:
            process.kill()


def work() -> None:
    """Run a task for the process that has started this one, as long as that lives."""
    parent, task = pickle.load(sys.stdin.buffer)
    result = sys.stdout.buffer
    sys.stdout = sys.stderr  # for a library that prints

    def check_parent(_: int) -> None:
        if os.getppid() != parent:
            sys.exit()

    rejected: list[Reject] = []
    told: object
    try:
        told = _read(task, check_parent, rejected.append), rejected
    except (KnownError, OSError, MemoryError) as error:
        told = error
    pickle.dump(told, result)
