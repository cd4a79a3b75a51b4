"""The command watch: the progress of runs, in a table that updates as they train."""

import contextlib
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from mlstm_jax.commands import command
from mlstm_jax.errors import UserError
from mlstm_jax.terminal import console, one_line
from mlstm_jax.training.metrics import by_kind, read_metrics, runs_in

if TYPE_CHECKING:
    from rich.table import Table

_SECONDS = 2.0
# A run counts as silent after this many times the usual interval between two lines.
_STALE = 10


@command()
def watch(
    runs: Annotated[tuple[Path, ...], Positional, arg(metavar="RUN [RUN ...]")],
) -> None:
    """Show the progress of runs, here or on a shared file system: BPC, rate, speed.

    In a terminal the table updates every two seconds until Ctrl-C; a file or a pipe gets it once.
    TensorBoard shows the curves: `tensorboard --logdir RUN`.

    Args:
        runs: run folders, or folders that contain them, such as that of a sweep.
    """
    from rich.live import Live

    if not runs:
        raise UserError("give at least one run folder, such as runs/quickstart.")
    _folders(runs)
    if not sys.stdout.isatty():
        console(width=160).print(table(runs))
        return
    live = Live(console=console(), auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), live:
        while True:
            live.update(table(runs), refresh=True)
            time.sleep(_SECONDS)


def _folders(runs: tuple[Path, ...]) -> dict[str, Path]:
    """Return the run folders by displayed name."""
    return {
        given.name if folder == given else f"{given.name}/{folder.relative_to(given)}": folder
        for given in runs
        for folder in runs_in(given)
    }


def table(runs: tuple[Path, ...]) -> "Table":
    """Return the table of all runs in these folders."""
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for name in ("run", "step", "epoch", "train bpc", "valid bpc", "rate", "scale", "kB/s", ""):
        is_text = name in ("run", "")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text)
    for name, folder in _folders(runs).items():
        table.add_row(one_line(name), *_row(folder))
    return table


def _row(folder: Path) -> list[str]:
    of_kind = by_kind(read_metrics(folder / "metrics.jsonl"))
    last = of_kind["train"][-1] if of_kind["train"] else {}
    scored = of_kind["eval"][-1] if of_kind["eval"] else {}

    def shown(values: dict[str, Any], name: str, form: str) -> str:
        value = values.get(name)
        return "" if value is None else format(value, form)

    return [
        shown(last, "step", ",d"),
        shown(last, "epoch", ".3f"),
        shown(last, "bpc", ".4f"),
        shown(scored, "bpc", ".4f"),
        shown(last, "learning_rate", ".2e"),
        shown(last, "loss_scale", ".0f"),
        "" if not last.get("bytes_per_second") else f"{last['bytes_per_second'] / 1e3:,.1f}",
        _state(folder, of_kind),
    ]


def _state(folder: Path, of_kind: dict[str, list[dict[str, Any]]]) -> str:
    """Return whether a run is finished, diverged or interrupted, or how long it has been silent."""
    events, train = of_kind["event"], of_kind["train"]
    end = events[-1] if events else {}
    newest = max((line["step"] for line in train), default=0)
    if end.get("event") in ("finished", "diverged", "interrupted") and end["step"] >= newest:
        return str(end["event"])
    times = [line["seconds"] for line in train[-5:]]
    usual = max((after - before for before, after in pairwise(times)), default=0)
    silent = time.time() - (folder / "metrics.jsonl").stat().st_mtime
    return f"no line for {silent:.0f} s" if silent > max(60.0, _STALE * usual) else ""
