"""Measure weak scaling: the same rows on each of 1, 2, 4, 8 local devices.

    python benchmarks/scaling.py --hidden 4096 --rows 256 --window 256 --dtype bf16

Every number of devices trains in the same process, in turn, with the package's own step. Without
GPUs the script creates virtual CPU devices. They share the cores, so the times only measure the
overhead of the program (splitting, the all-reduce, its copies), not real devices.
"""

import argparse
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line; call it before jax starts with this number of devices."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--rows", type=int, default=16, help="rows on each device")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--all-reduce", choices=("fp32", "compute"), default="fp32")
    parser.add_argument("--steps", type=int, default=5, help="steps per measurement")
    parser.add_argument("--rounds", type=int, default=9, help="rounds, after one warm-up")
    parser.add_argument("--virtual-cpu", action="store_true", help="always use virtual devices")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here")
    arguments = parser.parse_args()
    for name in ("hidden", "rows", "window", "steps", "rounds"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if min(arguments.devices) < 1:
        parser.error("--devices must be at least 1")
    return arguments


def has_gpus() -> bool:
    """Look for GPUs without starting jax, so that it can still create virtual devices."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()


def main() -> None:
    """Measure, print and write."""
    arguments = parse_arguments()
    from mlstm_jax import environment
    from mlstm_jax.config import Config, Data, Devices, Model, Precision

    virtual = arguments.virtual_cpu or not has_gpus()
    if virtual:
        environment.prepare(Devices(virtual_cpu=max(arguments.devices)))
        print(
            f"virtual devices share {len(os.sched_getaffinity(0))} CPU cores, so N devices take at "
            "least N times as long. See the column 'overhead'."
        )
    import jax
    import numpy as np
    from measure import write_results
    from steps import TrainingStep

    from mlstm_jax.parallel import Parallel

    def trainer(count: int) -> Any:
        """Return a function that takes some steps on `count` devices."""
        batch, window = count * arguments.rows, arguments.window
        config = Config(
            model=Model(hidden=arguments.hidden),
            data=Data(batch=batch, window=window),
            precision=Precision(compute=arguments.dtype, all_reduce=arguments.all_reduce),
        )
        step = TrainingStep(config, Parallel(jax.local_devices()[:count]))
        return partial(step.take, arguments.steps)

    found = jax.local_device_count()
    counts = [count for count in arguments.devices if count <= found]
    if len(counts) < len(arguments.devices):
        print(f"this machine has only {found} devices; larger numbers are skipped")
    calls = [trainer(count) for count in counts]
    times = np.zeros((arguments.rounds, len(calls)))
    for call in calls:
        call()
    order = np.random.default_rng(0)
    for done in range(arguments.rounds):
        for n in order.permutation(len(calls)):
            started = time.perf_counter()
            calls[n]()
            times[done, n] = (time.perf_counter() - started) / arguments.steps
    rows = []
    print(
        f"{'devices':>7} {'s/step':>9} {'min':>9} {'max':>9} {'kB/s':>9} {'efficiency':>10}", end=""
    )
    print(f" {'overhead':>9}" if virtual else "")
    for n, count in enumerate(counts):
        own = times[:, n]
        median = statistics.median(own)
        # Relative to the fewest devices, round by round: efficiency for equal rows per device; or,
        # for devices that share their cores, overhead for equal rows in total.
        efficiency = statistics.median(times[:, 0] / own)
        overhead = statistics.median(own / times[:, 0]) * counts[0] / count
        rows.append(
            {
                "devices": count,
                "hidden": arguments.hidden,
                "batch": count * arguments.rows,
                "window": arguments.window,
                "dtype": arguments.dtype,
                "all_reduce": arguments.all_reduce,
                "median_s": median,
                "min_s": own.min(),
                "max_s": own.max(),
                "bytes_per_s": count * arguments.rows * arguments.window / median,
                "efficiency": efficiency,
                "time_over_devices": overhead,
            }
        )
        print(
            f"{count:7} {median:9.4f} {own.min():9.4f} {own.max():9.4f} "
            f"{rows[-1]['bytes_per_s'] / 1e3:9.1f} {efficiency:10.3f}",
            f"{overhead:9.2f}" if virtual else "",
        )
    if arguments.json:
        write_results(arguments.json, "scaling", virtual_devices=virtual, rows=rows)


if __name__ == "__main__":
    main()
