"""Compile the train step for a GPU, without having one, over a grid of sizes; write its costs.

    python benchmarks/gpu_program.py --grid paper --json benchmarks/results/gpu_program_h200.json

Kernels, bytes, memory and collectives are those of the compiled programs; seconds are modelled
(compiled_program.py). Nothing is run. It needs the extra `gpu-compile`.
"""

import argparse
import datetime
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX looks for no driver

import jax
from compile_without_gpu import Compiled, compile_step
from compiled_program import (
    LAUNCHES,
    collectives,
    estimate,
    kernels,
    overlapping,
    parse,
    products,
)

from mlstm_jax import planning
from mlstm_jax.config import Config, Data, Devices, Model, Precision
from mlstm_jax.environment import MEMORY_FRACTION
from mlstm_jax.planning import Machine, load_machine

# Hidden units, rows on a device, bytes of the window.
GRIDS = {
    "small": [(512, 32, 128), (1024, 256, 256)],
    "paper": [
        *((512, 32, 128), (1024, 256, 256), (2048, 256, 256), (4096, 128, 256)),
        *((4096, 256, 256), (8192, 96, 256), (8192, 256, 256)),
    ],
}
# Types of the products; fp8 is bf16 with fp8 in the recurrent products, and needs Pallas.
TYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")
MACHINES = Path(__file__).parents[1] / "configs/machines"


def counts(config: Config, machine: Machine, devices: int, compiled: Compiled) -> dict[str, Any]:
    """Return the memory, kernels, collectives and modelled seconds of a training step.

    A collective has the bytes of each device's part, and the flops of the products and the modelled
    seconds of the kernels that run at the same time.
    """
    assert machine.gpu is not None
    program = parse(compiled.text)
    of_program = kernels(program)
    meanwhile = overlapping(program, of_program)
    estimated = estimate(of_program, machine, machine.gpu)
    rows = config.data.batch // devices
    needed = compiled.argument_bytes + compiled.temporary_bytes
    return {
        "devices": devices,
        "rows": rows,
        "argument_bytes": compiled.argument_bytes,
        "temporary_bytes": compiled.temporary_bytes,
        "fits": needed <= machine.memory_bytes * MEMORY_FRACTION,
        "loops": [
            (count, sum(one.bytes for one in of_program if one.place == place))
            for place, count in estimated.loops.items()
        ],
        "launches": estimated.launches,
        "bytes": estimated.bytes,
        "products": Counter(" x ".join(one.operands) for one in products(program)),
        "collectives": [
            {
                "name": one.opcode.removesuffix("-start"),
                "bytes": sum(access.bytes for access in one.writes),
                "is_in_loop": one.is_in_loop,
                "beside_flops": sum(x.times * x.flops for x in meanwhile[one.name]),
                "beside_seconds": estimate(meanwhile[one.name], machine, machine.gpu).seconds,
            }
            for one in collectives(of_program)
        ],
        "seconds": [estimated.with_launches(each) for each in LAUNCHES],
        "formula_seconds": planning.step_seconds(config, machine, rows),
    }


def main() -> None:
    """Compile the grid, print a line for each point, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--grid", choices=GRIDS, default="small")
    parser.add_argument(
        "--size",
        nargs=3,
        type=int,
        action="append",
        metavar=("H", "B", "T"),
        help="instead of a grid: units, rows on a device, bytes of the window; can be repeated",
    )
    parser.add_argument("--machine", type=Path, default=MACHINES / "h200.json")
    parser.add_argument("--dtypes", nargs="+", default=["bf16"], choices=TYPES)
    parser.add_argument(
        "--kernels", default="xla", choices=("xla", "pallas"), help="--devices.kernels of the run"
    )
    parser.add_argument("--devices", type=int, default=1, help="GPUs that share the gradient")
    parser.add_argument("--json", type=Path, help="also write the results here")
    given = parser.parse_args()
    machine = load_machine(given.machine)
    configs = []
    for hidden, rows, window in given.size or GRIDS[given.grid]:
        for dtype in given.dtypes:
            precision = Precision(compute="bf16", recurrent="fp8")
            if dtype != "fp8":
                precision = Precision(compute=dtype)
            config = Config(
                model=Model(hidden=hidden),
                data=Data(batch=rows * given.devices, window=window),
                precision=precision,
                devices=Devices(kernels=given.kernels),
            )
            # Before minutes of compilation: the machine's file may lack the rate of a type.
            planning.step_seconds(config, machine, rows)
            configs.append((config, dtype))
    results = []
    for config, dtype in configs:
        hidden, window = config.model.hidden, config.data.window
        compiled = compile_step(config, machine, given.devices)
        row = counts(config, machine, given.devices, compiled)
        results.append({"hidden": hidden, "window": window, "dtype": dtype} | row)
        of_step = "+".join(str(count) for count, _ in row["loops"])
        products_of = ", ".join(f"{n} {name}" for name, n in row["products"].items())
        ms = " / ".join(f"{1e3 * seconds:.1f}" for seconds in row["seconds"])
        print(
            f"{hidden}/{row['rows']}/{window} {dtype}: {of_step} kernels a turn of the loops, {ms} "
            f"ms at 0 / 1 / 2 us a launch, {row['temporary_bytes'] / 1e9:.2f} GB temporary; "
            f"products: {products_of}",
            flush=True,
        )
    if given.json:
        made = {
            "command": " ".join(["python", "benchmarks/gpu_program.py", *sys.argv[1:]]),
            "date": datetime.date.today().isoformat(),
            "machine": machine.name,
            "jax": jax.__version__,
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "rows": results,
        }
        given.json.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
