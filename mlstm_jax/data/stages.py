"""Progress bars of the stages of `prepare`: read, sort, write."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID, TimeElapsedColumn

from mlstm_jax.data.documents import Written


class Stages:
    """A progress bar for each stage."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def report(self, stage: str, fraction: float) -> None:
        """Show that `fraction` of a stage is done; for a sort it is unknown."""
        if stage not in self._tasks:
            for earlier in self._tasks.values():
                self._progress.update(earlier, completed=1, total=1)
            total = None if stage == "sort" else 1
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], completed=fraction)

    def counted(self, documents: Iterator[Written], count: int) -> Iterator[Written]:
        """Yield the documents, and show the fraction yielded so far."""
        for n, document in enumerate(documents):
            if n % 10_000 == 0:
                self.report("write", n / count)
            yield document


@contextmanager
def shown_stages(wanted: bool) -> Iterator[Stages]:
    """Yield the stages; show them on standard error if `wanted` and if it is a terminal."""
    console = Console(stderr=True)
    with Progress(
        *Progress.get_default_columns(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (wanted and console.is_terminal),
    ) as progress:
        yield Stages(progress)
