"""The program that a GPU runs, compiled without one: laws that no machine is needed to check.

They run where the extra `gpu-compile` is installed: `make test-compiled`.
"""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.compile_without_gpu import Compiled, compile_program, compile_step, require
from benchmarks.compiled_program import (
    Array,
    Kernel,
    atomic_adds,
    collectives,
    kernels,
    parse,
    products,
    zero_fills,
)
from mlstm_jax.config import Config, Data, Devices, Model, Precision, Train
from mlstm_jax.data.stream import EvaluationBatch
from mlstm_jax.errors import UserError
from mlstm_jax.model.architecture import Totals
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.planning import load_machine
from mlstm_jax.training.memory import memory_bytes, parameter_count
from mlstm_jax.training.step import make_evaluation_step
from mlstm_jax.transfer import device_bytes, windows

MACHINES = Path(__file__).parents[1] / "configs/machines"
H200 = MACHINES / "h200.json"
FLAGS = MACHINES.parent / "xla_flags"
PROGRAM = MACHINES.parents[1] / "benchmarks/gpu_program.py"
WINDOW = 24
NAMES = {"bf16": "bf16", "fp16": "f16"}
# Of one time step, in the loop of bytes: with more, a GPU waits for launches.
MOST_FORWARD, MOST_BACKWARD = 8, 9


@pytest.fixture(autouse=True, scope="module")
def _needs_the_compiler() -> None:
    try:
        require()
    except UserError as error:
        pytest.skip(str(error))


def make_config(compute: Any = "bf16", *, rows: int = 64, **sections: Any) -> Config:
    return Config(
        model=sections.pop("model", Model(hidden=512)),
        data=Data(batch=rows, window=WINDOW),
        precision=sections.pop("precision", Precision(compute=compute)),
        **sections,
    )


@functools.lru_cache
def compiled(config: Config, devices: int = 1, machine: Path = H200) -> Compiled:
    return compile_step(config, load_machine(machine), devices)


def in_loops(found: list[Kernel]) -> list[int]:
    """Return how many kernels each loop of the program has, in its order."""
    places = dict.fromkeys(one.place for one in found if one.is_in_loop)
    return [sum(one.place == place for one in found) for place in places]


def stacks(arrays: list[Array], window: int = WINDOW) -> list[Array]:
    """Return the arrays of all time steps."""
    return [one for one in arrays if len(one.shape) > 2 and window in one.shape[:2]]


# Several options to a program, because a program takes seconds to compile.
CONFIGS = {
    "bytes": make_config(),
    "fp16, layers, heads": make_config("fp16", model=Model(hidden=512, layers=2, rating_head=True)),
    "recompute, micro": make_config(train=Train(recompute_every=8, micro_batches=2)),
    "pallas, layers, recompute": make_config(
        model=Model(hidden=512, layers=2),
        train=Train(recompute_every=8),
        devices=Devices(kernels="pallas"),
    ),
}
PALLAS = make_config(devices=Devices(kernels="pallas"))


FAST = {"bytes", "recompute, micro"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in CONFIGS]
)
def test_laws_of_the_training_step(name: str) -> None:
    config = CONFIGS[name]
    program = parse(compiled(config).text)
    compute = NAMES[config.precision.compute]
    made = products(program)
    # Three products of a step forward and back each, three weight gradients, tables and decoder.
    assert len(made) >= 12
    assert {one.operands for one in made} == {(compute, compute)}
    # Only the gradient of what the decoder reads is rounded as it is made.
    assert len([one for one in made if one.result != "f32"]) == 1
    assert stacks(zero_fills(program)) == []
    assert atomic_adds(program) == []
    assert collectives(kernels(program)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("compute", "expected"), [("fp32", "f32"), ("tf32", "tf32")])
def test_types_of_float32(compute: Any, expected: str) -> None:
    found = kernels(parse(compiled(make_config(compute)).text))
    assert {one.operand_type for one in found if one.flops} == {expected}


@pytest.mark.parametrize(
    ("all_reduce", "width"), [("fp32", 4), pytest.param("compute", 2, marks=pytest.mark.slow)]
)
def test_one_all_reduce(all_reduce: Any, width: int) -> None:
    precision = Precision(compute="bf16", all_reduce=all_reduce)
    config = make_config(rows=8 * 64, precision=precision, train=Train(micro_batches=2))
    found = collectives(kernels(parse(compiled(config, 8).text)))
    assert not any(one.is_in_loop for one in found)
    assert {one.opcode.removesuffix("-start") for one in found} == {"all-reduce"}
    sent = sum(access.bytes for one in found for access in one.writes)
    gradient = width * parameter_count(config)
    assert gradient <= sent <= gradient + 1024  # the loss and other single numbers


def papers(kernels_of: Any = "xla", recurrent: Any = "compute") -> Config:
    """Puri et al. 2018: 4096 units; 256 rows of 256 bytes on a device."""
    return Config(
        model=Model(hidden=4096),
        data=Data(batch=256, window=256),
        precision=Precision(compute="bf16", recurrent=recurrent),
        devices=Devices(kernels=kernels_of),
    )


@pytest.mark.parametrize(
    ("config", "most"),
    # Four steps of Pallas kernels are a turn of the loop, which one more kernel counts.
    [
        (papers(), (MOST_FORWARD, MOST_BACKWARD)),
        pytest.param(papers("pallas"), (17, 17), marks=pytest.mark.slow),
        (papers("pallas", "fp8"), (17, 17)),
    ],
    ids=["xla", "pallas", "fp8"],
)
def test_bounds_of_the_papers_step(config: Config, most: tuple[int, int]) -> None:
    made = compiled(config)
    assert made.temporary_bytes <= 8.4e9
    needed = made.argument_bytes + made.temporary_bytes
    assert memory_bytes(config, 256) == pytest.approx(needed, rel=0.2)
    forward, backward = in_loops(kernels(parse(made.text)))
    assert forward <= most[0]
    assert backward <= most[1]


def test_products_in_fp8() -> None:
    config = papers("pallas", "fp8")
    program = parse(compiled(config).text)
    assert {one.operands for one in products(program)} == {("f8e4m3fn",) * 2, ("bf16",) * 2}
    found = kernels(program)
    assert {one.operand_type for one in found if one.flops and one.is_in_loop} == {"f8e4m3fn"}
    assert {one.operand_type for one in found if one.flops and not one.is_in_loop} == {"bf16"}
    assert stacks(zero_fills(program), config.data.window) == []
    with pytest.raises(UserError, match=r"precision\.recurrent is 'fp8', which needs"):
        compile_step(config, load_machine(MACHINES / "v100.json"), 1)


def test_bytes_of_our_kernels() -> None:
    """Of 64 rows of 512 units, in units of [64, 512]: bf16 2 bytes, float32 4."""
    text = compiled(PALLAS).text
    assert text.count("mosaic_gpu_v2") == 16
    found = kernels(parse(text))
    moved = {one.source.split("/")[-2]: one.bytes for one in found if "moves_" in one.source}
    unit = 64 * 512
    assert moved == {
        # Two parts of mh and a row of the table; m, and mh kept.
        "multiply": (2 * 4 + 4 + 2 + 2) * unit,
        # z, a row of the table and the bias of four gates, c; c, h twice, four gates.
        "advance": (4 * 3 * 4 + 4 + 4 + 2 * 2 + 4 * 2) * unit,
        # Two parts of dh and the logits' part, c, four gates, dc; dc, dz twice.
        "gate_gradients": (2 * 4 + 2 + 4 + 4 * 2 + 4 + 4 + 2 * 4 * 2) * unit,
        # Two parts of dm, a row of the table, mh; dmh twice, dmx.
        "multiply_gradients": (2 * 4 + 4 + 2 + 3 * 2) * unit,
    }


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["v100", "a100", "b200"])
def test_described_machines(machine: str) -> None:
    """An H100 is an H200 with other memory. Our own kernels say what these lack."""
    compute, path = "fp16" if machine == "v100" else "bf16", MACHINES / f"{machine}.json"
    made = compiled(make_config(compute), machine=path)
    assert {one.result for one in products(parse(made.text))} <= {"f32", NAMES[compute]}
    # For a B200 ptxas failed once beside another compilation: its kernels are not compiled here.
    if machine != "b200":
        with pytest.raises(UserError, match=r"needs|compute capability 9\.0"):
            compile_step(PALLAS, load_machine(path), 1)


def reading_programs() -> dict[str, Compiled]:
    """What evaluates, makes features and generates."""
    machine, config = load_machine(H200), CONFIGS["bytes"]
    model = LanguageModel(config.model, config.precision.types)
    params = jax.eval_shape(lambda: model.init_parameters(jax.random.key(0)))
    carry, bytes_BT = model.init_carry(64), np.zeros((64, 32), np.uint8)
    mask_BT, reset_B = np.zeros((64, 32), np.bool_), np.zeros(64, np.bool_)
    batch = EvaluationBatch(bytes_BT, bytes_BT, mask_BT, reset_B, np.zeros(64, np.uint32))
    zeros = np.zeros((64, 1, 512), np.float32)
    sums = windows.RowStates(carry, Totals(zeros, zeros), np.zeros(64, np.float32))
    window = windows.TextWindow(np.zeros((64, 33), np.uint8), np.zeros((64, 3), np.int32))
    reading_weights = jax.eval_shape(
        lambda params: model.architecture.reading_weights(params, model.compute, several_rows=True),
        params,
    )
    held_H = np.full(512, np.nan, np.float32)
    how = device_bytes.Sampling(np.float32(1), np.int32(256), np.float32(2))
    logits_BV, seed = np.zeros((64, 256), np.float32), np.uint32(0)

    def block(weights: Any, carry: Any, logits_BV: Any, seed: Any) -> Any:
        of_device = jax.tree.map(lambda x: x[None], weights)
        first = np.int32(0)
        return device_bytes._generate_block(
            model, of_device, carry, logits_BV, seed, first, how, held_H
        )

    return {
        "evaluation": compile_program(
            machine, make_evaluation_step(model), (params, carry, batch), donate=(1,)
        ),
        "features": compile_program(
            machine,
            windows._make_step(model, keep_states="totals", score=True),
            ((params, reading_weights), sums, window),
            donate=(1,),
        ),
        "generation": compile_program(
            machine, block, ((params, reading_weights), carry, logits_BV, seed)
        ),
    }


def test_laws_of_reading() -> None:
    kept = {"evaluation": 0, "features": 64 * 32 * 512 * 4, "generation": 0}
    for name, made in reading_programs().items():
        program = parse(made.text)
        types = {(one.operands, one.result) for one in products(program)}
        assert types == {(("bf16", "bf16"), "f32")}, name
        assert stacks(zero_fills(program)) == [], name
        assert atomic_adds(program) == [], name
        assert not any(one.is_in_loop for one in collectives(kernels(program))), name
        # No stack of a step's parts is kept: at most h of each step, for the sums and logits.
        assert made.temporary_bytes < kept[name] + 64 * 32 * (512 * 2 + 256 * 4) + 16e6, name


@pytest.mark.slow
def test_all_reduce_beside_the_backward_pass(tmp_path: Path) -> None:
    """In a process of its own, since JAX reads XLA_FLAGS when it starts."""
    path = tmp_path / "out.json"
    words = f"--size 4096 64 {WINDOW} --devices 8 --json {path}".split()
    environment = os.environ | {"XLA_FLAGS": (FLAGS / "overlap.txt").read_text().strip()}
    subprocess.run([sys.executable, PROGRAM, *words], check=True, env=environment)
    (row,) = json.loads(path.read_text())["rows"]
    decoder, wmh, wh, rest = row["collectives"]
    sizes = [one["bytes"] / 4 / 4096 for one in (decoder, wmh, wh)]
    assert sizes == [256, 4096, 4 * 4096]
    # Beside the decoder's the whole backward scan runs, beside Wmh's the product of Wh's gradient.
    steps = 64 * WINDOW
    scan, of_wh = 2 * steps * 5 * 4096**2, 2 * steps * 4 * 4096**2
    assert decoder["beside_flops"] >= scan
    assert wmh["beside_flops"] >= of_wh
    assert wh["beside_flops"] >= 2 * steps * 256 * 4 * 4096  # the tables'
    assert rest["bytes"] < 0.02 * sum(one["bytes"] for one in row["collectives"])


def test_machine_without_a_gpu() -> None:
    machine = dataclasses.replace(load_machine(H200), gpu=None)
    with pytest.raises(UserError, match="the machine's file has no field gpu"):
        compile_step(make_config(), machine, 1)
