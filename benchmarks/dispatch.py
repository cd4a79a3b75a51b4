"""Measure what a training step costs the host: pmap against jit and shard_map.

    python benchmarks/dispatch.py --json benchmarks/results/dispatch_cpu.json

A small model, so that the devices are done soon; the number of arrays of a step, on which the
host's part depends, is that of any model with as many layers. Four numbers of a step: the rows of a
batch are copied to the devices ("place"), the step is called until the call returns ("dispatch"),
the devices finish ("wait"), and the metrics come to the host ("fetch"). Nothing is in flight when
the next one starts. Each way takes its steps in turn in each round, with the state and the carry
donated or not; at the end all have the same state, to the bit. A round's number is that of its
fastest step, for the devices are virtual ones: their work takes cores from the host's, and with one
device the call does it itself. With two processes, pmap makes global arrays of the arguments of
each call; the other way has them from the start.
"""

import argparse
import datetime
import itertools
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

PARTS = ("place", "dispatch", "wait", "fetch")
WAYS = [(name, donated) for name in ("pmap", "shard_map") for donated in (True, False)]


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--points", nargs="+", default=["1x1", "1x4", "2x2"], help="processes x devices of each"
    )
    parser.add_argument("--rounds", type=int, default=9, help="rounds, after one warm-up")
    parser.add_argument("--steps", type=int, default=20, help="steps of each way in a round")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here")
    parser.add_argument("--process", help=argparse.SUPPRESS)  # index@coordinator@folder
    return parser.parse_args()


class Way:
    """One way to run the step on all devices, its state, and its batch on the host."""

    def __init__(self, devices: Any, name: str, donated: bool) -> None:
        import jax
        import numpy as np

        from mlstm_jax.config import Config, Data, Model
        from mlstm_jax.data.stream import Batch
        from mlstm_jax.model.language_model import LanguageModel
        from mlstm_jax.training import schedule
        from mlstm_jax.training.parallel import Parallel
        from mlstm_jax.training.state import fresh_state
        from mlstm_jax.training.step import make_train_step

        self.devices = Parallel(devices.devices, name)
        config = Config(
            model=Model(hidden=16, embedding=8), data=Data(batch=devices.count, window=8)
        )
        model = LanguageModel(config.model, config.precision)
        step = make_train_step(config, model)
        self.step = self.devices.map(step, (0, 1) * donated)
        each = len(devices.local_devices)
        text = np.random.default_rng(0).integers(0, 256, (each, 9), np.uint8)
        ones = np.ones(each, np.float32)
        targets = np.full(each, 8, np.int32)
        self.batch = Batch(
            text[:, :-1], text[:, 1:], np.zeros(each, bool), None, targets, ones, ones
        )
        state = self.devices.replicate(fresh_state(config, model))
        self.now = (state, self.devices.split_rows(model.init_carry(each)))
        rates = schedule.resolve(config.optimizer, config.data.batch, 1_000_000)
        self.go_on = self.devices.replicate((np.float32(0), rates))
        self.arrays = len(jax.tree.leaves((self.now, self.batch, self.go_on)))

    def take(self) -> list[float]:
        """Take a step; return the seconds of its parts."""
        import jax

        times = [time.perf_counter()]
        batch = jax.block_until_ready(self.devices.split_rows(self.batch))
        times.append(time.perf_counter())
        *after, metrics = self.step(*self.now, batch, *self.go_on)
        times.append(time.perf_counter())
        jax.block_until_ready((after, metrics))
        times.append(time.perf_counter())
        self.devices.unreplicate(metrics)
        times.append(time.perf_counter())
        self.now = tuple(after)
        return [end - begin for begin, end in itertools.pairwise(times)]


def measure_point(processes: int, arguments: Any) -> list[Any]:
    """Return a row for each way, measured in this process; all must have the same state then."""
    import jax
    import numpy as np

    from mlstm_jax.config import Devices, Distributed
    from mlstm_jax.distributed import Cluster
    from mlstm_jax.training import parallel

    with ExitStack() as stack:
        index, coordinator, folder = arguments.process.split("@")
        options = Distributed(coordinator=coordinator, processes=processes, index=int(index))
        cluster = stack.enter_context(Cluster(options, Path(folder)))
        devices = parallel.connect_devices(cluster, Devices())
        ways = [Way(devices, *way) for way in WAYS]
        for way in ways:
            way.take()
        order = np.random.default_rng(0)  # the same in all processes
        times = np.zeros((arguments.rounds, len(ways), len(PARTS)))
        for done in range(arguments.rounds):
            for n in order.permutation(len(ways)):
                steps = [ways[n].take() for _ in range(arguments.steps)]
                times[done, n] = np.min(steps, axis=0)
        states = [jax.tree.leaves(devices.unreplicate(way.now[0])) for way in ways]
        for state in states:
            for found, expected in zip(state, states[0], strict=True):
                np.testing.assert_array_equal(found, expected)
    rows = []
    for n, (name, donated) in enumerate(WAYS):
        row: dict[str, Any] = {"processes": processes, "devices": devices.count, "by": name}
        row |= {"donated": donated, "arrays": ways[n].arrays}
        for part, own in zip(PARTS, times[:, n].T, strict=True):
            row[part] = {
                "median_s": statistics.median(own),
                "min_s": own.min(),
                "max_s": own.max(),
            }
        # In turn with the same by shard_map, round by round.
        other = times[:, n % 2 + 2, 1]
        row["dispatch_over_shard_map"] = statistics.median(times[:, n, 1] / other)
        rows.append(row)
    return rows


def run_point(point: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Start the processes of a point; return what process 0 has measured."""
    processes = int(point.split("x")[0])
    with socket.create_server(("127.0.0.1", 0)) as free:
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--points", point, "--rounds", arguments.rounds, "--steps", arguments.steps]
    started = []
    with tempfile.TemporaryDirectory() as folder:
        for index in range(processes):
            own = ["--process", f"{index}@{coordinator}@{folder}"]
            command = [sys.executable, __file__, *map(str, options), *own]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{point}: a process has failed")
    return json.loads(outputs[0].splitlines()[-1])


def main() -> None:
    """Measure each point in processes of its own, print and write."""
    arguments = parse_arguments()
    if arguments.process:
        from mlstm_jax import environment
        from mlstm_jax.config import Devices

        processes, each = map(int, arguments.points[0].split("x"))
        environment.prepare(Devices(virtual_cpu=each))
        rows = measure_point(processes, arguments)
        from measure import machine

        print(json.dumps(machine() | {"rows": rows}))
        return
    rows = []
    print(f"{'processes':>9} {'devices':>7} {'by':>9} {'donated':>7}", end="")
    print("".join(f"{part + ', µs':>24}" for part in PARTS), f"{'/shard_map':>10}")
    for point in arguments.points:
        measured = run_point(point, arguments)
        for row in measured.pop("rows"):
            rows.append(row)
            print(f"{row['processes']:9} {row['devices']:7} {row['by']:>9}", end="")
            print(f" {row['donated']!s:>7}", end="")
            for part in PARTS:
                median, low, high = (row[part][f"{k}_s"] * 1e6 for k in ("median", "min", "max"))
                print(f"{f'{median:.0f} ({low:.0f} to {high:.0f})':>24}", end="")
            print(f" {row['dispatch_over_shard_map']:10.2f}", flush=True)
    if arguments.json:
        results = {
            "benchmark": "dispatch",
            "command": " ".join(["python", *sys.argv]),
            **measured,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "rounds": arguments.rounds,
            "steps": arguments.steps,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
        print(f"written to {arguments.json}")


if __name__ == "__main__":
    main()
