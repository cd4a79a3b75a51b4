r"""Compile the train step with fp8 and with bf16 products for a GPU, without having one.

    cd results/fp8_study
    XLA_FLAGS=--xla_gpu_enable_triton_gemm=false python fp8_program.py --json program.json

The recurrence is that of fp8_recurrence.py with arrays of fp8 numbers. Kernels, bytes and memory
are those of the compiled programs; seconds are modelled (benchmarks/compiled_program.py) with twice
the bf16 rate for fp8 products. Nothing is run. It needs the extra `gpu-compile`.
"""

import argparse
import datetime
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from mlstm_jax import environment

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
environment.without_gpus()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from compile_without_gpu import compile_program  # noqa: E402
from compiled_program import (  # noqa: E402
    LAUNCHES,
    Kernel,
    estimate,
    kernels,
    parse,
    products,
)
from fp8 import ARMS, beside_scaling  # noqa: E402
from fp8_recurrence import Fp8Model  # noqa: E402

from mlstm_jax.config import Config, Data, Model, Precision  # noqa: E402
from mlstm_jax.data.stream import Batch  # noqa: E402
from mlstm_jax.model.language_model import LanguageModel  # noqa: E402
from mlstm_jax.planning.machine import Machine, load_machine  # noqa: E402
from mlstm_jax.training import optimizer, schedule  # noqa: E402
from mlstm_jax.training.parallel import AXIS  # noqa: E402
from mlstm_jax.training.state import init_state  # noqa: E402
from mlstm_jax.training.step import make_train_step  # noqa: E402

SIZES = [(512, 32, 128), (1024, 256, 256), (4096, 256, 256)]
MACHINES = ROOT / "configs/machines"


def as_bf16(kernel: Kernel, rate: int) -> Kernel:
    """Return an fp8 product as a bf16 product with its flops divided by `rate`."""
    if not (kernel.operand_type or "").startswith("f8"):
        return kernel
    return kernel._replace(operand_type="bf16", flops=kernel.flops // rate)


def compile_arm(arm: str, size: tuple[int, int, int], machine: Machine) -> dict[str, Any]:
    """Compile one train step; return its kernels, bytes, memory and modelled seconds."""
    hidden, rows, window = size
    config = Config(
        model=Model(hidden=hidden),
        data=Data(batch=rows, window=window),
        precision=Precision(compute="bf16"),
    )
    plain = LanguageModel(config.model, config.precision)
    model: Any = Fp8Model(plain, ARMS[arm]._replace(on_gpu=True))
    rate = schedule.learning_rate(config.optimizer, rows, 1_000_000)
    tx = beside_scaling(optimizer.build(config.optimizer, config.model, rate))
    bytes_BT = np.zeros((rows, window), np.uint8)
    arguments = (
        jax.eval_shape(lambda: init_state(config, model, tx, 0)),
        model.init_carry(rows),
        Batch(bytes_BT, bytes_BT, np.zeros(rows, bool)),
        np.float32(0),
    )
    step = make_train_step(config, model, tx, rate, AXIS)
    compiled = compile_program(machine, step, arguments, donate=(0, 1))
    program = parse(compiled.text)
    found = kernels(program)
    assert machine.gpu is not None
    slow, fast = (
        estimate([as_bf16(one, rate) for one in found], machine, machine.gpu) for rate in (1, 2)
    )
    return {
        "arm": arm,
        "hidden": hidden,
        "rows": rows,
        "window": window,
        "loops": [
            {"kernels": count, "bytes": sum(one.bytes for one in found if one.place == place)}
            for place, count in fast.loops.items()
        ],
        "launches": fast.launches,
        "bytes": fast.bytes,
        "temporary_bytes": compiled.temporary_bytes,
        "modelled_seconds": [fast.with_launches(each) for each in LAUNCHES],
        "modelled_seconds_at_the_rate_of_bf16": [slow.with_launches(each) for each in LAUNCHES],
        "products": dict(Counter(" x ".join(one.operands) for one in products(program))),
        "library_products": dict(Counter(_targets(compiled.text))),
        "loop_kernels": [
            {"name": one.name, "loop": one.place, "bytes": one.bytes, "operands": one.operand_type}
            for one in found
            if one.is_in_loop
        ],
    }


def _targets(text: str) -> list[str]:
    parts = text.split('custom_call_target="')[1:]
    return [name for part in parts if (name := part.split('"')[0]).startswith("__cublas")]


def main() -> None:
    """Compile all sizes, print a line for each program, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine", type=Path, default=MACHINES / "h200.json")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument(
        "--size",
        nargs=3,
        type=int,
        action="append",
        metavar=("H", "B", "T"),
        help="units, rows, bytes of the window; can be repeated",
    )
    parser.add_argument("--json", type=Path, help="also write the results here")
    given = parser.parse_args()
    machine, made = load_machine(given.machine), []
    for size in given.size or SIZES:
        for arm in given.arms:
            row = compile_arm(arm, tuple(size), machine)
            made.append(row)
            counts = "+".join(str(loop["kernels"]) for loop in row["loops"])
            sizes = "+".join(f"{loop['bytes'] / 1e6:.1f}" for loop in row["loops"])
            ms = " / ".join(f"{1e3 * seconds:.1f}" for seconds in row["modelled_seconds"])
            print(
                f"{size} {arm}: {counts} kernels and {sizes} MB a time step, {ms} ms at 0 / 1 / 2 "
                f"us a launch, {row['products']}, {row['library_products']}",
                flush=True,
            )
    if given.json:
        about = {
            "command": " ".join(["python", "results/fp8_study/fp8_program.py", *sys.argv[1:]]),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "date": datetime.date.today().isoformat(),
            "machine": machine.name,
            "jax": jax.__version__,
            "rows": made,
        }
        given.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
