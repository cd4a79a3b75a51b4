"""Time the public layers and Flax's own, forward with backward, in turns.

    python benchmarks/layers.py --hidden 256 512 --json benchmarks/results/layers_cpu.json

Inputs are vectors of the width of the layer; the loss is a sum over all h, and the gradient is of
the parameters and of the inputs. A line has the median of the CPU seconds and its spread, and the
ratio to `flax.linen.RNN(OptimizedLSTMCell)`, whose rounds alternate with the others.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import measure
from flax import linen

from mlstm_jax import layers

FLAX = "flax.linen.RNN(OptimizedLSTMCell)"


def programs(hidden: int, rows: int, window: int) -> dict[str, Callable[[], Any]]:
    """Return each layer's gradient by name, compiled, without arguments."""
    x_BTI = jax.random.normal(jax.random.key(0), (rows, window, hidden))
    made: dict[str, Any] = {
        FLAX: linen.RNN(linen.OptimizedLSTMCell(hidden)),
        "LSTM": layers.LSTM(hidden),
        "GRU": layers.GRU(hidden),
        "MLSTM": layers.MLSTM(hidden),
    }
    found = {}
    for name, layer in made.items():
        variables = layer.init(jax.random.key(1), x_BTI)

        def loss(variables: Any, x_BTI: jax.Array, layer: Any = layer) -> jax.Array:
            read = layer.apply(variables, x_BTI)
            return jnp.sum(read if isinstance(read, jax.Array) else read[1])

        gradient = jax.jit(jax.grad(loss, (0, 1))).lower(variables, x_BTI).compile()
        found[name] = lambda gradient=gradient, variables=variables: gradient(variables, x_BTI)
    return found


def main() -> None:
    """Print a line for each layer and size, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    for hidden in options.hidden:
        made = programs(hidden, options.rows, options.window)
        seconds: dict[str, list[float]] = {name: [] for name in made}
        for round_number in range(options.rounds + 1):
            for name, program in made.items():
                before = time.process_time()
                jax.block_until_ready(program())
                if round_number:  # the first warms up
                    seconds[name].append(time.process_time() - before)
        for name, times in seconds.items():
            ratio = statistics.median(times) / statistics.median(seconds[FLAX])
            line = {"layer": name, "hidden": hidden, "cpu_s": statistics.median(times)}
            line |= {"least": min(times), "most": max(times), "ratio": ratio}
            print(json.dumps(line))
            results.append(line)
    if options.json:
        sizes = {"rows": options.rows, "window": options.window}
        measure.write_results(options.json, "layers", **sizes, results=results)


if __name__ == "__main__":
    main()
