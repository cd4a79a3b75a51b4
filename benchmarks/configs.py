"""Time the training steps of configs, one after another in each round.

    python benchmarks/configs.py runs/small_512 fast_512 \
        --json benchmarks/results/configs_cpu.json

It answers how long the whole runs take here, relative to each other: the seconds of a
step, times the number of steps, on one device with XLA's kernels. The bytes are random; evaluations
and checkpoints are not counted. An unset compute type is the one that `train` would choose here.
A config needs `train.steps`; --steps NAME=N sets them.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import measure
import numpy as np
from steps import TrainingStep

from mlstm_jax import host
from mlstm_jax.config import Config, load_file, load_json, vary
from mlstm_jax.config.resolve import Hardware, resolve
from mlstm_jax.parallel import Parallel


def spread(values: list[float]) -> dict[str, float]:
    """Return the median, the minimum and the maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def read_config(name: str) -> Config:
    """Return the config of a run folder, of a file, or that comes with the package."""
    path = Path(name, "config.json")
    config = load_json(path) if path.is_file() else load_file(name)
    return resolve(config, Hardware(1, host.fastest_compute(config.model.hidden)))


def make_call(config: Config) -> Callable[[], None]:
    """Compile the step of a config; each call continues from the state after the last."""
    return TrainingStep(config, Parallel(jax.local_devices()[:1])).take


def main() -> None:
    """Measure, print a table, and write the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "configs", nargs="+", help="run folders, config files, or names of shipped configs"
    )
    parser.add_argument("--steps", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--rounds", type=int, default=9, help="after one warm-up round")
    parser.add_argument("--json", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    steps = dict(one.rsplit("=", 1) for one in arguments.steps)
    if unknown := steps.keys() - set(arguments.configs):
        parser.error(f"--steps {min(unknown)}: is none of the configs to measure")
    cases = []
    for name in arguments.configs:
        config = read_config(name)
        if name in steps:
            config = vary(config, train__steps=int(steps[name]))
        if config.train.steps is None:
            raise SystemExit(f"{name}: train.steps is not set; use --steps {name}=N.")
        cases.append((name, config, make_call(config)))
    seconds: list[list[float]] = [[] for _ in cases]
    for turn in range(arguments.rounds + 1):
        order = np.random.default_rng(turn).permutation(len(cases))
        for n in order:
            # As in training, each call follows another of the same case.
            cases[n][2]()
            began = time.perf_counter()
            cases[n][2]()
            if turn:
                seconds[n].append(time.perf_counter() - began)
    totals = {}
    results: dict[str, Any] = {}
    for (name, config, _), of_rounds in zip(cases, seconds, strict=True):
        totals[name] = config.train.steps * np.array(of_rounds)
        batch = config.data.batch
        window = config.data.window
        results[name] = {
            "steps": config.train.steps,
            "batch": batch,
            "window": window,
            "seconds": spread(of_rounds),
            "kB/s": batch * window / statistics.median(of_rounds) / 1e3,
        }
    first = arguments.configs[0]
    for name in arguments.configs:
        minutes = (totals[name] / 60).tolist()
        ratios = (totals[name] / totals[first]).tolist()
        results[name] |= {"minutes": spread(minutes), f"ratio to {first}": spread(ratios)}
        print(
            f"{name}: {results[name]['kB/s']:.1f} kB/s; {statistics.median(minutes):.1f} minutes "
            f"({min(minutes):.1f} to {max(minutes):.1f}); {statistics.median(ratios):.3f} of "
            f"{first} ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    if arguments.json:
        measure.write_results(arguments.json, "configs", configs=results)


if __name__ == "__main__":
    main()
