"""Show how XLA compiles one product with fp8 operands for a GPU, without having one.

    python results/fp8_study/fp8_products.py --json results/fp8_study/products_h200.json

The product is [B, K] times [K, N], or times a matrix stored as [N, K]. It is compiled in three
ways: as XLA chooses without a device, with Triton tiles of 64 x 128, and without Triton. The output
lists library calls, tensor-core instructions and conversions in the PTX, and the other kernels. It
needs the extra `gpu-compile`.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MACHINES = ROOT / "configs/machines"
TILES = "block_m:64,block_n:128,block_k:64,split_k:1,num_stages:3,num_warps:4,num_ctas:1"
WAYS = {
    "as XLA chooses": "",
    "Triton, 64 x 128": f"--xla_gpu_override_gemm_autotuner='{TILES}'",
    "without Triton": "--xla_gpu_enable_triton_gemm=false",
}
# Rows, summed dimension, columns; types of left and right; whether the right is stored as [N, K].
CASES = [
    (256, 4096, 16384, "bfloat16", "bfloat16", False),
    (256, 4096, 16384, "float8_e4m3fn", "float8_e4m3fn", False),
    (256, 4096, 16384, "float8_e4m3fn", "float8_e4m3fn", True),
    (256, 16384, 4096, "float8_e5m2", "float8_e4m3fn", True),
    (32, 512, 2048, "float8_e4m3fn", "float8_e4m3fn", True),
]
_PTX = re.compile(r"\b((?:wgmma\.mma_async|mma\.sync)[\w.]*|cvt[\w.]*(?:e4m3|e5m2)[\w.]*)")


def compile_all(machine_path: Path, dump: Path) -> list[dict[str, Any]]:
    """Compile all cases with the XLA flags of this process."""
    from mlstm_jax import environment

    sys.path.append(str(ROOT / "benchmarks"))
    environment.without_gpus()
    import jax
    import jax.numpy as jnp
    from compile_without_gpu import compile_program
    from compiled_program import kernels, parse

    from mlstm_jax.planning.machine import load_machine

    machine, rows = load_machine(machine_path), []
    for batch, summed, columns, left, right, transposed in CASES:

        def product(x: jax.Array, w: jax.Array, s: jax.Array, axis: int = transposed) -> jax.Array:
            dimensions = (((1,), (axis,)), ((), ()))
            return s * jax.lax.dot_general(x, w, dimensions, preferred_element_type=jnp.float32)

        before = set(dump.glob("*.ptx"))
        shapes = (
            jax.ShapeDtypeStruct((batch, summed), jnp.dtype(left)),
            jax.ShapeDtypeStruct(
                (columns, summed) if transposed else (summed, columns), jnp.dtype(right)
            ),
            jax.ShapeDtypeStruct((), jnp.float32),
        )
        compiled = compile_program(machine, product, shapes)
        ptx = "".join(path.read_text() for path in set(dump.glob("*.ptx")) - before)
        found = kernels(parse(compiled.text))
        rows.append(
            {
                "shape": [batch, summed, columns],
                "operands": [left, right],
                "right side": "[N, K]" if transposed else "[K, N]",
                "library": re.findall(r'custom_call_target="(__cublas[^"]*)"', compiled.text),
                "ptx": dict(Counter(_PTX.findall(ptx))),
                "other kernels": {one.name: one.bytes for one in found if not one.flops},
            }
        )
    return rows


def main() -> None:
    """Compile each way in its own process, print a line for each case, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine", type=Path, default=MACHINES / "h200.json")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--dump", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.dump:  # one way
        given.json.write_text(json.dumps(compile_all(given.machine, given.dump)))
        return
    made = []
    for way, flags in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            dump, path = Path(folder, "dump"), Path(folder, "rows.json")
            command = [sys.executable, __file__, "--machine", given.machine, "--json", path]
            flags_here = f"--xla_dump_to={dump} {flags}"
            subprocess.run(
                [*command, "--dump", dump], check=True, env=os.environ | {"XLA_FLAGS": flags_here}
            )
            rows = json.loads(path.read_text())
        for row in rows:
            made.append({"way": way, "flags": flags} | row)
            print(made[-1], flush=True)
    if given.json:
        from importlib import metadata

        about = {
            "command": " ".join(["python", "results/fp8_study/fp8_products.py", *sys.argv[1:]]),
            "date": datetime.date.today().isoformat(),
            "machine": json.loads(given.machine.read_text())["name"],
            "jax": metadata.version("jax"),
            "rows": made,
        }
        given.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
