"""Sweeps: several runs that answer one question, for example batch by learning rate, and a table.

A specification is a Python file that sets ``runs``: a dict from (row, column), the labels of the
table, to a `Config`. Each run has a normal run folder, OUT/ROW/COLUMN. Runs that are finished or
have diverged are not repeated, so a sweep that was stopped resumes where it ended.
"""

import csv
import functools
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax

from mlstm_jax import config as configs
from mlstm_jax import environment, output, shipped
from mlstm_jax.config import Config, by_phase, run_python
from mlstm_jax.config.text import differences, load_json
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.errors import InUse, UserError
from mlstm_jax.interop.weights import fingerprint
from mlstm_jax.run import load_run
from mlstm_jax.terminal import markdown, message, tell
from mlstm_jax.training import metrics
from mlstm_jax.training.report import Diverged
from mlstm_jax.training.run_folder import inputs, inputs_of
from mlstm_jax.training.train import train

Runs = dict[tuple[str, str], Config]


def load_sweep(path: Path) -> Runs:
    """Run a specification, which is the user's own Python code, and return its ``runs``.

    A bare name that is not a file selects a sweep that comes with the package: ``puri_fig5``.

    Raises:
        UserError: the file does not exist, sets no runs, or has labels that cannot name a folder.
    """
    path = shipped.find(path, "sweep")
    runs = run_python(path, "sweep").get("runs")
    valid = isinstance(runs, dict) and all(
        isinstance(key, tuple)
        and len(key) == 2
        and all(isinstance(label, str) for label in key)
        and isinstance(config, Config)
        for key, config in runs.items()
    )
    if not valid or not runs or not have_folders(runs):
        raise UserError(
            f"{path} sets no `runs = {{(ROW, COLUMN): Config(...)}}` with two labels that can name "
            "a folder; see `mlstm-jax configs puri_fig5`."
        )
    return runs


def have_folders(runs: Runs) -> bool:
    """Return whether all labels can name a folder."""
    return all(label.strip(".") and "/" not in label for key in runs for label in key)


def prepare(runs: Runs) -> None:
    """Set what JAX reads when it starts, as the runs need it; see `environment.prepare`.

    Raises:
        UserError: the runs have different numbers of virtual devices.
    """
    if not runs:
        return
    counts = {config.devices.virtual_cpu: key for key, config in runs.items()}
    if len(counts) > 1:
        (count, key), (other, other_key) = list(counts.items())[:2]
        raise UserError(
            f"devices.virtual_cpu is {count} in the run {' / '.join(key)}, but {other} in "
            f"{' / '.join(other_key)}; one process trains all runs of a sweep, so set the same "
            "number in all."
        )
    first = next(iter(runs.values()))
    deterministic = any(config.train.deterministic for config in runs.values())
    environment.prepare(first.devices, deterministic=deterministic)


class Result(NamedTuple):
    """The result of one run."""

    row: str
    column: str
    status: str  # done, diverged, unfinished or not begun
    batch: int  # of the last phase
    optimizer: str
    steps: int
    epochs: float | None
    peak_rate: float | None  # the largest in the lines of metrics
    bpc: float | None  # of the last validation
    best_bpc: float | None
    noise_scale: float | None  # in rows, the mean over the second half of the lines
    bytes_per_second: float | None
    seconds: float | None


def folder(out: Path, key: tuple[str, str]) -> Path:
    """Return the run folder of a run of the sweep."""
    return out / key[0] / key[1]


def pending(runs: Runs, out: Path) -> Iterator[tuple[tuple[str, str], Config]]:
    """Return the runs that are neither finished nor diverged, with their folders set.

    Raises:
        UserError: a run in the folder has another config than in the specification.
    """
    for key, config in runs.items():
        run_folder = folder(out, key)
        here = configs.vary(config, out=str(run_folder))
        if (run_folder / "config.json").is_file():
            old = load_json(run_folder / "config.json")
            # A run saves its batch, not the rows of a device.
            rows = here.data.batch_per_device
            count = 1 if rows is None else max(1, old.data.batch // rows)
            wanted = configs.resolve_batch(here, count)
            different = [line for lines in differences(old, wanted) for line in lines]
            if different:
                raise UserError(
                    f"{run_folder} contains a run with another config "
                    f"({'; '.join(different)}); use another `out`, or remove the folder."
                )
            _require_same_inputs(run_folder, here)
        if not is_over(key, run_folder):
            yield key, here


def is_over(key: tuple[str, str], run_folder: Path) -> bool:
    """Return whether a run is finished or has diverged."""
    return result(key, run_folder).status in ("done", "diverged")


def _require_same_inputs(run_folder: Path, config: Config) -> None:
    """Raise UserError if a run used another corpus or other initial parameters than now.

    The config has only their paths, and the content at a path may have changed.
    """
    before = inputs_of(run_folder)
    if not before:
        return
    corpus = open_corpus(Path(config.data.corpus))
    start = None if config.train.start_from is None else _fingerprint(config.train.start_from)
    for name, value in inputs(corpus, start).items():
        if value != before.get(name, value):
            raise UserError(
                f"{run_folder} contains a run with another {name}: its fingerprint was "
                f"{str(before[name])[:12]}…, and is {str(value)[:12]}… now; use another `out`, or "
                "remove the folder."
            )


@functools.lru_cache
def _fingerprint(start_from: str) -> str:
    return fingerprint(load_run(Path(start_from)).params)


def sweep(
    runs: Runs,
    out: Path,
    *,
    on_begin: Callable[[int, int, tuple[str, str]], None],
    owns_process: bool,
) -> None:
    """Train the runs that are neither finished nor diverged; see `mlstm_jax.sweep`.

    The tables are written after each run.
    """
    waiting = list(pending(runs, out))
    elsewhere: list[str] = []
    for number, (key, config) in enumerate(waiting, 1):
        if is_over(key, folder(out, key)):
            continue  # another process has trained it in the meantime
        on_begin(number, len(waiting), key)
        try:
            train(config, owns_process=owns_process)
        except Diverged as error:  # a divergence is a result
            tell(f"diverged: {message(error)}")
        except InUse:
            tell("another process trains this run")
            elsewhere.append(" / ".join(key))
        jax.clear_caches()
        write_tables(runs, out)
    if elsewhere:
        tell(f"\nleft to other processes: {', '.join(elsewhere)}")


def write_tables(runs: Runs, out: Path) -> list[Result]:
    """Write table.csv and table.md of the existing results; return the results."""
    results = [result(key, folder(out, key)) for key in runs]
    out.mkdir(parents=True, exist_ok=True)
    output.write_text(out / "table.csv", as_csv(results))
    output.write_text(out / "table.md", as_markdown(results))
    return results


def result(key: tuple[str, str], run_folder: Path) -> Result:
    """Return the result of a run from the files of its folder."""
    lines = metrics.read_metrics(run_folder / "metrics.jsonl")
    kinds = metrics.by_kind(lines)
    train = kinds["train"]
    scores = [line["bpc"] for line in kinds["eval"]]
    ends = [line["event"] for line in kinds["event"]]
    last = lines[-1] if lines else {}
    path = run_folder / "config.json"
    has_begun = path.is_file()
    config = load_json(path) if has_begun else Config()
    # A finished run whose steps were raised has a later event.
    end = {"finished": "done", "diverged": "diverged"}.get(ends[-1] if ends else "", "unfinished")
    status = end if has_begun else "not begun"
    noise = [line["noise_scale"] for line in train[len(train) // 2 :] if line.get("noise_scale")]
    speeds = sorted(speed for line in train if (speed := line["bytes_per_second"]) is not None)
    return Result(
        row=key[0],
        column=key[1],
        status=status,
        batch=by_phase(config)[-1].data.batch,
        optimizer=config.optimizer.name,
        steps=last.get("step", 0),
        epochs=train[-1]["epoch"] if train else None,
        peak_rate=max((line["learning_rate"] for line in train), default=None),
        bpc=scores[-1] if scores and status == "done" else None,
        best_bpc=min((score for score in scores if score is not None), default=None),
        noise_scale=sum(noise) / len(noise) if noise else None,
        bytes_per_second=speeds[len(speeds) // 2] if speeds else None,
        seconds=max((line.get("seconds", 0.0) for line in lines), default=None),
    )


def as_csv(results: list[Result]) -> str:
    """Return all figures of all runs, one line per run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Result._fields)
    writer.writerows(results)
    return text.getvalue()


def as_markdown(results: list[Result]) -> str:
    """Return validation BPC by row and column, as in Puri et al. 2018, fig. 5; Div: diverged."""
    cells = {(run.row, run.column): _cell(run) for run in results}
    rows = list(dict.fromkeys(run.row for run in results))
    columns = list(dict.fromkeys(run.column for run in results))
    titles = " | ".join(map(markdown, columns))
    lines = [f"| | {titles} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        values = [cells.get((row, column), "") for column in columns]
        lines.append(f"| {markdown(row)} | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def _cell(run: Result) -> str:
    if run.status == "diverged":
        return "Div"
    return f"{run.bpc:.3f}" if run.bpc is not None else "…"
