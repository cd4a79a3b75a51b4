"""Progress of the stages of `prepare`: read, sort, write."""

from collections.abc import Iterator

from mlstm_jax.data.documents import Written
from mlstm_jax.progress import ProgressLine


class Stages:
    """A progress line for each stage, unless `quiet`; a context manager."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._stage: str | None = None
        self._line: ProgressLine | None = None

    def __enter__(self) -> "Stages":
        return self

    def __exit__(self, *error: object) -> None:
        self._end(finished=error[0] is None)

    def report(self, stage: str, fraction: float) -> None:
        """Show that `fraction` of a stage is done; for a sort it is 0 to its end."""
        if stage != self._stage:
            self._end(finished=True)
            self._line = ProgressLine(stage, 100, status="", quiet=self._quiet).__enter__()
            self._stage = stage
        if self._line and fraction:
            self._line.update(int(100 * fraction), "percent")

    def counted(self, documents: Iterator[Written], count: int) -> Iterator[Written]:
        """Yield the documents, and show the fraction yielded so far."""
        for n, document in enumerate(documents):
            if n % 10_000 == 0:
                self.report("write", n / count)
            yield document

    def _end(self, *, finished: bool) -> None:
        if self._line:
            if finished:
                self._line.update(100, "percent")
            self._line.__exit__(None, None, None)
