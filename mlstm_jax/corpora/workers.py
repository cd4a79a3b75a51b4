"""Processes that read sources at the same time, each into files of its own.

They are fresh processes, not forks, because the program that calls `prepare` may have threads; and
Python's own pool would run that program's main file again.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from mlstm_jax import output
from mlstm_jax.corpora import parts
from mlstm_jax.corpora.documents import Recipe, Reject
from mlstm_jax.corpora.readers import OnRead, read_cleaned
from mlstm_jax.corpora.sources import Source
from mlstm_jax.corpora.writer import SourceCounts
from mlstm_jax.errors import KnownError

_PROGRAM = "from mlstm_jax.corpora.workers import work; work()"


class Task(NamedTuple):
    """The sources that a process adds to the files of their parts, in a folder of its own."""

    sources: Sequence[Source]
    recipe: Recipe
    parts: int
    folder: Path

    def run(self, on_read: OnRead, on_reject: Callable[[Reject], None]) -> list[SourceCounts]:
        read = []
        for source in self.sources:
            counts = SourceCounts(source)
            documents = counts.texts(read_cleaned(source, self.recipe, on_read), on_reject)
            for number, piece in parts.distributed(documents, self.recipe, self.parts):
                with output.write_errors(self.folder):
                    parts.append(self.folder, number, piece)
            read.append(counts)
        return read


def run_all(
    tasks: Sequence[Task], on_read: OnRead, on_reject: Callable[[Reject], None]
) -> list[SourceCounts]:
    """Run the first task here, which shows how far all are, and each other one in a process."""
    first, *others = tasks
    with ExitStack() as stack:
        results = [stack.enter_context(_process(task)) for task in others]
        counts = first.run(lambda size: on_read(size * len(tasks)), on_reject)
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
            counts += told[0]
            for reject in told[1]:
                on_reject(reject)
    return counts


@contextmanager
def _process(task: Task) -> Iterator[IO[bytes]]:
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
        told = task.run(check_parent, rejected.append), rejected
    except (KnownError, OSError, MemoryError) as error:
        told = error
    pickle.dump(told, result)
