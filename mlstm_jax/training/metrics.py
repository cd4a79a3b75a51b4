"""metrics.jsonl, one JSON object per line, and the same scalars for TensorBoard if installed.

Each line has `kind` (train, eval, event) and `step`, the number of batches seen. When a run
resumes, the lines after the checkpoint's step are dropped, because those steps are repeated.

A checkpoint records the extent of the file when it was saved, and every reader compares it.
"""

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import jax

from mlstm_jax import output
from mlstm_jax.digest import Extent
from mlstm_jax.errors import UserError
from mlstm_jax.record import SET_ASIDE, move_aside, newest_record

FILE = "metrics.jsonl"
KINDS = ("train", "eval", "event")


class LogDamaged(UserError):
    """A file of metrics differs from what its run has written."""


def set_aside_damaged(folder: Path) -> list[str]:
    """Move damaged metrics to the folder `set-aside`, so that the run can resume; return notes."""
    path = folder / FILE
    try:
        read_metrics(path)
    except LogDamaged as error:
        if path.exists():
            move_aside(path, folder / SET_ASIDE)
        return [f"{error} The run goes on with new metrics; damaged ones are in {SET_ASIDE}/"]
    return []


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, without a last line that a kill has truncated.

    Raises LogDamaged if it differs from what the newest checkpoint next to it records, and
    UserError or FileError if a line is something else or the file cannot be read.
    """
    newest = newest_record(path.parent)  # first, since a run that trains adds lines
    extent = newest.meta.metrics if newest else Extent()
    content = b""
    with suppress(FileNotFoundError, NotADirectoryError), output.read_errors(path):
        content = path.read_bytes()  # weights in one file have none
    if newest and Extent().extended(content[: extent.size]) != extent:
        what = f"its first {extent.size:,} bytes have changed" if path.exists() else "it is missing"
        raise LogDamaged(
            f"{path} does not match the checkpoint of step {newest.step}: {what}. Restore it from "
            "a copy; a run that is trained further goes on without it."
        )
    return _parsed(path, content)


def _parsed(path: Path, content: bytes) -> list[dict[str, Any]]:
    lines = content.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    parsed = []
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            if line["kind"] not in KINDS or type(line["step"]) is not int:
                raise ValueError("it has no kind or no step")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(
                f"{path}: line {number} is not a line of metrics ({error!r}); remove or correct it."
            ) from error
        parsed.append(line)
    return parsed


def by_kind(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The lines of each kind, `train`, `eval` and `event`."""
    kinds: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for line in lines:
        kinds[line["kind"]].append(line)
    return kinds


def runs_in(folder: Path) -> list[Path]:
    """The folders with metrics in or below a folder, also by links; UserError if there is none.

    Each is there once, by its own name rather than a link's.
    """
    folders = []
    seen: set[tuple[int, int]] = set()
    tops = [folder]  # and links, after all that is found without them
    for top in tops:
        for root, inner, files in os.walk(top):
            path = Path(root)
            status = path.stat()
            place = (status.st_dev, status.st_ino)
            if place in seen:
                inner.clear()
                continue
            seen.add(place)
            inner.sort()
            tops += filter(Path.is_symlink, map(path.joinpath, inner))
            if FILE in files and path.name != SET_ASIDE:  # damaged metrics of a run
                folders.append(path)
    if not folders:
        raise UserError(f"{folder} holds no run: there is no metrics.jsonl in or below it.")
    return sorted(folders)


class MetricsLog:
    """The metrics of one run, appended to after `step`; without a folder nothing is written.

    Its newest event is `last_event`.
    """

    def __init__(
        self,
        folder: Path | None,
        step: int,
        callbacks: Sequence[Callable[[dict[str, Any]], None]] = (),
    ) -> None:
        self.last_event: str | None = None
        self._started = time.monotonic()
        self._file: IO[str] | None = None
        self._extent = Extent()
        self._closing = ExitStack()
        if folder is None:
            return
        self._callbacks = callbacks
        path = folder / FILE
        # Without a comparison: `set_aside_damaged` has begun this file anew, or found it right.
        content = path.read_bytes() if path.exists() else b""
        seconds = 0.0
        text = ""
        for line in _parsed(path, content):
            if step > 0 and line["step"] <= step:
                text += json.dumps(line) + "\n"
                seconds = max(seconds, line.get("seconds") or 0.0)
                self.last_event = line.get("event", self.last_event)
        self._started -= seconds
        output.write_text(path, text)
        self._extent = Extent().extended(text.encode())
        self._file = self._closing.enter_context(path.open("a"))
        plain = self._closing.enter_context(output.plain_path(folder))
        self._events = _event_writer(plain / "tensorboard", step)
        if self._events:
            self._closing.callback(self._events.close)

    @property
    def seconds(self) -> float:
        """Training time, with earlier sessions."""
        return time.monotonic() - self._started

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append a line and flush it; NaN and inf, which JSON does not have, become null."""
        if self._file is None:
            return
        self.last_event = values.get("event", self.last_event)
        line = {"kind": kind, "step": step, **values}
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                line[name] = None
        text = json.dumps(line) + "\n"
        self._file.write(text)
        self._file.flush()
        self._extent = self._extent.extended(text.encode())
        with jax.transfer_guard("allow"):  # The loop forbids implicit ones, to itself alone.
            for callback in self._callbacks:
                callback(dict(line))
        if self._events:
            _add_scalars(self._events, line)

    def extent(self) -> Extent:
        """The extent of the file, after its lines are on the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        return self._extent

    def close(self) -> None:
        self._closing.close()


def _event_writer(folder: Path, step: int) -> Any:
    """Open TensorBoard's event file; None without TensorBoard."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ModuleNotFoundError:
        return None
    writer = EventFileWriter(str(folder))
    # A session that starts at `step` makes TensorBoard discard what an earlier one wrote after it.
    start = SessionLog(status=SessionLog.START)
    writer.add_event(Event(session_log=start, step=step, wall_time=time.time()))
    return writer


def _add_scalars(writer: Any, line: dict[str, Any]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    summary = Summary()
    for name, value in line.items():
        if isinstance(value, int | float) and name != "step":
            summary.value.add(tag=f"{line['kind']}/{name}", simple_value=value)
    if summary.value:
        writer.add_event(Event(summary=summary, step=line["step"], wall_time=time.time()))
