"""Check the correctness of a device's results before measuring its speed.

    python benchmarks/gpu_check.py --json check.json      # --small: as a trial on a CPU

The compiled program satisfies the rules of tests/test_gpu_program.py; gradients agree with
float64 NumPy; a run that is stopped and resumed equals an uninterrupted one bit for bit; an
overflow costs only updates; the Pallas kernels agree with XLA's. A check of what the GPU cannot
run, such as fp8 on an A100, is left out.
It needs jax, flax, optax and numpy. The exit code is 1 if a check fails.
"""

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a clone is enough: the package need not be installed

from mlstm_jax import environment  # noqa: E402
from mlstm_jax.config import (  # noqa: E402
    Config,
    Data,
    Devices,
    Model,
    Optimizer,
    Precision,
    Train,
)

# Before jax is imported: only deterministic kernels make a resumed run equal bit for bit.
environment.prepare(Devices(), deterministic=True)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import measure  # noqa: E402
import numpy as np  # noqa: E402
import reference  # noqa: E402
import train_step  # noqa: E402
from compiled_program import (  # noqa: E402
    atomic_adds,
    collectives,
    kernels,
    parse,
    products,
    zero_fills,
)
from reference import bound, error  # noqa: E402
from steps import TrainingStep  # noqa: E402

from mlstm_jax.corpora.prepare import prepare  # noqa: E402
from mlstm_jax.model import fp8  # noqa: E402
from mlstm_jax.model.architecture import LSTMCarry  # noqa: E402
from mlstm_jax.model.kernels import INTERPRETED, PALLAS  # noqa: E402
from mlstm_jax.model.language_model import LanguageModel  # noqa: E402
from mlstm_jax.model.mlstm import MLSTM, STACKED  # noqa: E402
from mlstm_jax.model.stack import Loops, Recurrence, Weights, run_layer  # noqa: E402
from mlstm_jax.parallel import Parallel  # noqa: E402
from mlstm_jax.training import metrics  # noqa: E402
from mlstm_jax.training.train import train as run_train  # noqa: E402

Result = dict[str, Any]
TYPES = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def compiles_fp16() -> bool:
    """Return whether XLA compiles fp16; without F16C a processor has none."""
    try:
        jax.jit(jnp.sin)(np.ones(2, np.float16))
    except jax.errors.JaxRuntimeError:
        return False
    return True


def program(compute: str, hidden: int) -> Result:
    """Check the compiled step: types of products, kernels per time step, no forbidden kernels."""
    point = measure.Point(hidden, 64, 24, compute)
    devices = Parallel(jax.local_devices()[:1])
    compiled = TrainingStep(train_step.make_config(point), devices).compiled
    made = parse(compiled.as_text())
    found, types = kernels(made), {(*one.operands, one.result) for one in products(made)}
    places = dict.fromkeys(one.place for one in found if one.is_in_loop)
    stacks = [one.shape for one in zero_fills(made) if len(one.shape) > 2 and 24 in one.shape[:2]]
    is_gpu = jax.default_backend() == "gpu"
    # The gradient of what the decoder reads is rounded by its product.
    expected = {(TYPES[compute],) * 2 + (result,) for result in ("f32", TYPES[compute])}
    return {
        "passed": not is_gpu
        or (types == expected and not stacks and not collectives(found) and not atomic_adds(made)),
        "products": sorted(map(list, types)),
        "kernels_a_time_step": [sum(one.place == place for one in found) for place in places],
        "stacks_of_zeros": stacks,
        "atomic_adds": len(atomic_adds(made)),
        "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
    }


def gradients(compute: str) -> Result:
    """Compare the gradient of a small model with NumPy's in float64, by the complex step."""
    hidden, rows, window = 5, 2, 6
    config = Config(model=Model(hidden=hidden, embedding=4), precision=Precision(compute=compute))
    model = LanguageModel(config.model, config.precision.types)
    params = jax.device_get(jax.jit(model.init_parameters)(jax.random.key(0)))
    random = np.random.default_rng(0)
    text = random.integers(97, 123, (rows, window + 1), dtype=np.uint8)
    inputs, targets = text[:, :-1], text[:, 1:].astype(np.int32)
    carry = model.init_carry(rows)

    @jax.jit
    def scalar_gradient(params: Any) -> Any:
        def scalar(params: Any) -> jax.Array:
            logits = model.apply({"params": params}, inputs, carry).logits_BTV
            chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
            return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

        with model.product_precision():
            return jax.grad(scalar)(params)

    found = jax.device_get(scalar_gradient(params))
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    zero = dict.fromkeys(("c", "h"), np.zeros((rows, 1, hidden)))
    # For the embedding, only the rows that are read are compared.
    exact = reference.gradient("mlstm", wide, inputs, targets, zero)
    errors = jax.tree.map(error, found, exact)
    largest = max(jax.tree.leaves(errors))
    # Terms: rows and steps in a weight gradient, products both ways, the loss over the bytes.
    limit = bound(rows * window + 4 * hidden + 256, compute)
    return {"passed": largest <= limit, "largest_error": largest, "limit": limit}


def our_own_kernels(compute: str) -> Result:
    """Compare the gradients by Pallas and XLA kernels; on a CPU Pallas is interpreted."""
    window, rows, hidden = (5, 3, 130) if jax.default_backend() == "cpu" else (64, 32, 1030)
    own = INTERPRETED if jax.default_backend() == "cpu" else PALLAS
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    root = np.float32(np.sqrt(hidden))
    weights = {
        "wmx": normal(256, hidden),
        "wx": normal(256, 4 * hidden),
        "wmh": normal(hidden, hidden) / root,
        "wh": normal(hidden, 4 * hidden) / root,
        "b": normal(4 * hidden),
    }
    carry = LSTMCarry(np.tanh(normal(rows, hidden)), normal(rows, hidden))
    bytes_TB = random.integers(0, 256, (window, rows), dtype=np.int32)
    cotangent = normal(window, rows, hidden)

    def gradient(loops: Loops) -> Any:
        def scalar(carry: LSTMCarry, weights: Weights) -> jax.Array:
            dtype = jnp.dtype(NAMES[compute])
            made = run_layer(Recurrence(MLSTM(), dtype, loops), carry, bytes_TB, weights)
            return jnp.vdot(made[1].astype(jnp.float32), cotangent) + jnp.sum(made[0].c)

        with jax.default_matmul_precision("highest"):
            return jax.device_get(jax.jit(jax.grad(scalar, (0, 1)))(carry, weights))

    errors = jax.tree.map(error, gradient(own), gradient(STACKED))
    largest, limit = max(jax.tree.leaves(errors)), bound(rows * window + 4 * hidden, compute)
    return {"passed": largest <= limit, "largest_error": largest, "limit": limit}


def fp8_gradients() -> Result:
    """Compare gradients with fp8 in the recurrent products, which a CPU emulates, with bf16's."""
    is_gpu = jax.default_backend() == "gpu"
    hidden, rows, window = (1024, 32, 32) if is_gpu else (128, 2, 16)
    precision = Precision(compute="bf16")
    model = LanguageModel(Model(hidden=hidden), precision.types, None, PALLAS if is_gpu else None)
    params = jax.jit(model.init_parameters)(jax.random.key(0))
    random = np.random.default_rng(0)
    text = random.integers(97, 123, (rows, window + 1), dtype=np.uint8)
    carry = model.init_carry(rows)

    def loss(params: Any, scales_3: Any) -> jax.Array:
        read = model.apply({"params": params}, text[:, :-1], carry, scales_3=scales_3)
        logits = read.logits_BTV
        chosen = jnp.take_along_axis(logits, text[:, 1:, None].astype(np.int32), -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    exact = jax.device_get(gradient(params, None)[0]["layer_0"])
    history_U3 = fp8.no_history()
    errors = {}
    for update in ("first", "second"):
        made, maxima_3 = gradient(params, fp8.scales(history_U3, rows * window))
        history_U3 = fp8.with_newest(history_U3, maxima_3, rows * window)
        for name in ("wmh_v", "wh_v", "wmx_v"):
            difference = np.linalg.norm(made["layer_0"][name] - exact[name])
            errors[f"{name}, {update}"] = float(difference / np.linalg.norm(exact[name]))
    # As in tests/model/test_fp8.py: two products of two rounded operands, and bf16 on both sides.
    limit = 2 * 0.0265 + 2 * 5e-3
    largest = max(errors.values())
    return {"passed": largest <= limit, "largest_error": largest, "limit": limit} | errors


def _small_run(out: Path, corpus: Path, **sections: Any) -> Config:
    values = {
        "model": Model(hidden=64),
        "data": Data(corpus=str(corpus), batch=16, window=32),
        "optimizer": Optimizer(learning_rate=5e-3, decay_steps=1000),
        "train": Train(
            steps=60, epochs=None, log_every=10, eval_every=30, checkpoint_every=30,
            deterministic=True,
        ),
    }  # fmt: skip
    return Config(out=str(out), **(values | sections))


def resume(folder: Path, corpus: Path, compute: str) -> Result:
    """Compare a run of 60 steps with one that stopped after 30 and resumed."""
    precision = Precision(compute=compute)
    run_train(whole := _small_run(folder / "whole", corpus, precision=precision))
    parts = _small_run(folder / "parts", corpus, precision=precision)
    run_train(dataclasses.replace(parts, train=dataclasses.replace(parts.train, steps=30)))
    run_train(parts)
    lines = [
        {
            (line["kind"], line["step"]): (line["loss"], line.get("grad_norm"))
            for line in metrics.read_metrics(Path(one.out) / "metrics.jsonl")
            if line["kind"] in ("train", "eval")
        }
        for one in (whole, parts)
    ]
    return {"passed": lines[0] == lines[1], "loss": [one["eval", 60][0] for one in lines]}


def overflow(folder: Path, corpus: Path) -> Result:
    """Start with a loss scale that overflows fp16: some updates are skipped, then it learns."""
    precision = Precision(compute="fp16", initial_loss_scale=2.0**24)
    config = _small_run(folder / "overflow", corpus, precision=precision)
    run_train(config)
    lines = metrics.read_metrics(Path(config.out) / "metrics.jsonl")
    train = [line for line in lines if line["kind"] == "train"]
    return {
        "passed": 0 < train[-1]["skipped"] < 30 and train[-1]["bpc"] < train[0]["bpc"],
        "skipped": train[-1]["skipped"],
        "bpc": [train[0]["bpc"], train[-1]["bpc"]],
    }


def main() -> None:
    """Run every check, print a line for each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--small", action="store_true", help="one type and a small program")
    given = parser.parse_args()
    results: dict[str, Result] = {}

    def check(name: str, call: Callable[[], Result]) -> None:
        started = time.monotonic()
        try:
            results[name] = call()
        except Exception as error:  # The other checks must still run.
            results[name] = {"passed": False, "error": f"{type(error).__name__}: {error}"[:500]}
        results[name]["seconds"] = round(time.monotonic() - started, 1)
        print(
            f"{'ok  ' if results[name]['passed'] else 'FAIL'} {name}: {results[name]}", flush=True
        )

    def check_pallas(name: str, call: Callable[[], Result], *, fp8: bool = False) -> None:
        problem = train_step.lacking(1024, fp8=fp8)
        if problem:
            print(f"left out: {name}, which needs {problem}", flush=True)
        else:
            check(name, call)

    computes = [compute for compute in TYPES if compute != "fp16" or compiles_fp16()]
    if given.small:
        del computes[:-1]  # The overflow needs fp16.
    hidden = 64 if given.small else 512
    for compute in computes:
        check(f"the program in {compute}", lambda compute=compute: program(compute, hidden))
        check(f"gradients in {compute}", lambda compute=compute: gradients(compute))
        check_pallas(
            f"Pallas's kernels in {compute}", lambda compute=compute: our_own_kernels(compute)
        )
    check_pallas("gradients with fp8", fp8_gradients, fp8=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text, corpus = (ROOT / "README.md").read_bytes(), folder / "corpus"
        for split, part in (("train", text * 4), ("valid", text[:5000])):
            (folder / f"{split}.txt").write_bytes(part)
        prepare(
            {"train": [str(folder / "train.txt")], "valid": [str(folder / "valid.txt")]},
            corpus,
            clean="none",
        )
        check("resume, bit for bit", lambda: resume(folder, corpus, computes[-1]))
        if "fp16" in computes:
            check("an overflow costs updates, not the run", lambda: overflow(folder, corpus))
    if given.json:
        measure.write_results(given.json, "gpu_check", checks=results)
    sys.exit(not all(result["passed"] for result in results.values()))


if __name__ == "__main__":
    main()
