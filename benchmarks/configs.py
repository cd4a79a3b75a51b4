"""Time the training steps of configs, one after another in each round.

    python benchmarks/configs.py runs/small_512 fast_512 \
        --json benchmarks/results/configs_cpu.json

It answers how long the whole runs take here, relative to each other: the seconds of each phase's
step, times its number of steps, on one device with XLA's kernels. The bytes are random; evaluations
and checkpoints are not counted. An unset compute type is the one that `train` would choose here.
A config needs `train.steps` or phases; --steps NAME=N sets them.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
import measure
import numpy as np
from steps import TrainingStep

from mlstm_jax import host
from mlstm_jax.config import Config, Phase, load_file, load_json, resolve_batch, vary
from mlstm_jax.training.parallel import Parallel


def spread(values: list[float]) -> dict[str, float]:
    """Return the median, the minimum and the maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def read_config(name: str) -> Config:
    """Return the config of a run folder, of a file, or that comes with the package."""
    path = Path(name, "config.json")
    config = load_json(path) if path.is_file() else load_file(name)
    compute = config.precision.compute
    if compute is None and config.precision.recurrent != "compute":
        compute = "bf16"
    compute = compute or host.fastest_compute(config.model.hidden)
    return resolve_batch(vary(config, precision__compute=compute), 1)


def phases_of(name: str, config: Config) -> tuple[Phase, ...]:
    """Return the phases of a config; one without phases is one."""
    if config.phases:
        return config.phases
    if config.train.steps is None:
        raise SystemExit(f"{name}: train.steps is not set; use --steps {name}=N.")
    return (Phase(steps=config.train.steps, batch=config.data.batch, window=config.data.window),)


def make_call(config: Config, phase: Phase) -> Callable[[], None]:
    """Compile the step of a phase; each call continues from the state after the last."""
    config = vary(config, data__batch=phase.batch, data__window=phase.window, phases=())
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
        cases += [(name, phase, make_call(config, phase)) for phase in phases_of(name, config)]
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
    totals = [
        {
            name: sum(
                phase.steps * seconds[n][turn]
                for n, (of, phase, _) in enumerate(cases)
                if of == name
            )
            for name in arguments.configs
        }
        for turn in range(arguments.rounds)
    ]
    first = arguments.configs[0]
    results = {}
    for name in arguments.configs:
        minutes = [total[name] / 60 for total in totals]
        ratios = [total[name] / total[first] for total in totals]
        results[name] = {
            "phases": [
                {
                    "steps": phase.steps,
                    "batch": phase.batch,
                    "window": phase.window,
                    "seconds": spread(seconds[n]),
                    "kB/s": phase.batch * phase.window / statistics.median(seconds[n]) / 1e3,
                }
                for n, (of, phase, _) in enumerate(cases)
                if of == name
            ],
            "minutes": spread(minutes),
            f"ratio to {first}": spread(ratios),
        }
        rates = ", ".join(f"{phase['kB/s']:.1f}" for phase in results[name]["phases"])
        print(
            f"{name}: {rates} kB/s; {statistics.median(minutes):.1f} minutes "
            f"({min(minutes):.1f} to {max(minutes):.1f}); {statistics.median(ratios):.3f} of "
            f"{first} ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    if arguments.json:
        measure.write_results(arguments.json, "configs", configs=results)


if __name__ == "__main__":
    main()
