"""Time a whole training step: loss, gradient, all-reduce, clipping, Adam, the new carry.

    python benchmarks/train_step.py --grid small --json benchmarks/results/train_step_cpu.json

"ours" is the step that `mlstm-jax train` runs, under pmap on one device, with XLA's kernels;
"pallas" that with Pallas kernels, "fp8" that with fp8 in the recurrent products (bf16 elsewhere;
on a CPU emulated); "autodiff" is the same
step with the plain scan and JAX's gradient instead of the recurrence; "torch" is the same model and
optimizer in eager PyTorch, "torch_compile" with its step compiled, "torch_lstm" its `nn.LSTM` with
as many parameters. It needs jax, flax, optax and numpy, and torch (and a C++ compiler) to measure
those.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import baselines
import jax
import measure
import numpy as np
from measure import Case, Point
from steps import TrainingStep

from mlstm_jax.config import Config, Data, Model, Optimizer, Precision, vary
from mlstm_jax.model import stack
from mlstm_jax.model.kernels import PALLAS
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.model.pallas import missing
from mlstm_jax.parallel import Parallel

IMPLEMENTATIONS = ["ours", "pallas", "fp8", "autodiff", "torch"]


def make_config(point: Point, recurrent: Any = "compute") -> Config:
    """Return the paper's model and optimizer at this size."""
    return Config(
        model=Model(hidden=point.hidden),
        data=Data(batch=point.batch, window=point.window),
        optimizer=Optimizer(learning_rate=5e-4),
        precision=Precision(compute=point.dtype, recurrent=recurrent),
    )


def lacking(hidden: int, *, fp8: bool = False) -> str | None:
    """Return what Pallas kernels, in fp8 or not, need and this GPU lacks; on a CPU None."""
    if jax.default_backend() != "gpu":
        return None
    capability = Parallel(jax.local_devices()[:1]).compute_capability()
    return missing(hidden, capability, fp8=fp8)


def our_case(name: str, point: Point, recompute_every: int | None) -> Case:
    """Compile the step; each call continues from its last state and carry, as in training."""
    is_gpu = jax.default_backend() == "gpu"
    recurrent = "compute"
    if name == "fp8":
        recurrent = "fp8" if is_gpu else "fp8_emulated"
    config = make_config(point, recurrent)
    if recompute_every:
        config = vary(config, train__recompute_every=recompute_every)
    loops = PALLAS if is_gpu and name in ("pallas", "fp8") else None
    run_layer = baselines.autodiff if name == "autodiff" else stack.run_layer
    with mock.patch.object(stack, "run_layer", run_layer):
        step = TrainingStep(config, Parallel(jax.local_devices()[:1]), loops)
    return Case(
        name, "train_step", point.step_flops, step.take, step.temporary_bytes, recompute_every
    )


def cases(arguments: Any, point: Point) -> Iterator[Case]:
    """Yield all cases to time at a point."""
    if "ours" in arguments.implementations:
        for k in [None, *arguments.recompute_every]:
            yield our_case("ours", point, k)
    for name in ("pallas", "fp8", "autodiff"):
        if name == "fp8" and point.dtype != "bf16":
            continue  # It goes with bf16 alone, see Precision.recurrent.
        if name not in arguments.implementations:
            continue
        problem = lacking(point.hidden, fp8=name == "fp8") if name != "autodiff" else None
        if problem:
            print(f"{name} is not measured: it needs {problem}")
        else:
            yield our_case(name, point, None)
    if "torch" in arguments.implementations:
        import torch_mlstm

        model = LanguageModel(make_config(point).model, make_config(point).precision.types)
        params = jax.jit(model.init_parameters)(jax.random.key(0))
        shape = point.batch, point.window + 1
        text_BT = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        data = (text_BT[:, :-1], text_BT[:, 1:])
        yield from torch_mlstm.train_step_cases(point, params, data)


if __name__ == "__main__":
    arguments = measure.parse_arguments(__doc__.splitlines()[0], IMPLEMENTATIONS)
    if jax.default_backend() != "gpu":
        arguments.implementations = [x for x in arguments.implementations if x != "pallas"]
    measure.run("train_step", arguments, partial(cases, arguments))
