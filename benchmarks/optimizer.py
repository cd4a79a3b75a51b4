"""Time an update of each optimizer on its own, over sizes: the time it adds to a step.

    python benchmarks/optimizer.py --json benchmarks/results/optimizer_cpu.json

The gradient is given; only the hidden units of a point matter. Flops are those of Muon's
Newton-Schulz steps (mlstm_jax/training/optimizer.py).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import measure
from measure import Case, Point

from mlstm_jax.config import Config, Model, Optimizer
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.training import optimizer

IMPLEMENTATIONS = ["adam", "lamb", "muon"]


def cases(arguments: Any, point: Point) -> Iterator[Case]:
    """Yield an update by each optimizer; each call continues from the state of the last one."""
    for name in arguments.implementations:
        config = Config(model=Model(hidden=point.hidden), optimizer=Optimizer(name=name))
        model = LanguageModel(config.model, config.precision)
        params = jax.jit(model.init_parameters)(jax.random.key(0))
        tx = optimizer.build(config.optimizer, config.model, lambda count: 1e-3)
        now = [tx.init(params)]
        compiled = jax.jit(tx.update, donate_argnums=1).lower(params, now[0], params).compile()

        def call(compiled: Any, now: list[Any], params: Any) -> None:
            updates, now[0] = compiled(params, now[0], params)
            jax.block_until_ready((updates, now))

        flops = 150 * point.hidden**3 if name == "muon" else 0
        temp_bytes = compiled.memory_analysis().temp_size_in_bytes
        yield Case(name, "update", flops, partial(call, compiled, now, params), temp_bytes)


if __name__ == "__main__":
    arguments = measure.parse_arguments(__doc__.splitlines()[0], IMPLEMENTATIONS)
    measure.run("optimizer", arguments, partial(cases, arguments))
