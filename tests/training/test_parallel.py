"""The all-reduce in pieces, with the sums of one piece to the bit; replicas that drift apart."""

import functools
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlstm_jax import parallel
from mlstm_jax.config import Distributed
from mlstm_jax.distributed import Cluster
from mlstm_jax.parallel import Parallel
from mlstm_jax.training import replicas
from mlstm_jax.training.replicas import ReplicasDiffer, fold, require_equal_replicas

EARLY = ["decoder", "layer_0/wmh_v", "layer_0/wh_v", "of another model"]
# So many rows of 32 float32 numbers are just enough for a piece of their own.
LARGE = replicas.LEAST_BYTES // (32 * 4)


def make_trees(devices: int, rows: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return draw.random((devices, *shape), np.float32)

    layer = {"wh_v": array(rows, 64), "wmh_v": array(rows - 1, 32), "b": array(16)}
    return {"layer_0": layer, "decoder": array(rows, 32)}, (array(), array())


def summed(tree: Any, others: Any) -> Any:
    return replicas.sum_over_devices(tree, others, EARLY)


@pytest.mark.parametrize(
    ("devices", "rows", "pieces"),
    [(4, LARGE, [f"{LARGE},32", f"{LARGE},64"]), (4, 8, []), (1, LARGE, [])],
)
def test_pieces_of_the_sum(devices, rows, pieces) -> None:
    """With the sums of one piece to the bit; one device has nothing in pieces."""
    trees = make_trees(devices, rows)
    several = Parallel(jax.local_devices()[:devices])
    mapped = several.map(summed)
    expected = several.map(lambda *x: jax.lax.psum(x, parallel.AXIS))(*trees)
    jax.tree.map(np.testing.assert_array_equal, mapped(*trees), expected)
    program = str(jax.make_jaxpr(mapped)(*trees))
    assert program.count("optimization_barrier") == len(pieces)
    sums = [
        re.findall(r"f32\[([0-9,]*)\]", line) for line in program.splitlines() if "= psum" in line
    ]
    assert sums[: len(pieces)] == [[piece] for piece in pieces]
    whole = [f"{rows},32", f"{rows},64", f"{rows - 1},32", "16", "", ""]
    assert sorted(itertools.chain(*sums)) == sorted(whole)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, jnp.bfloat16, np.uint8])
def test_checksum_of_replicas(dtype: Any, random: np.random.Generator) -> None:
    a, b = random.normal(size=(2, 4, 4)).astype(np.float32)
    folds = map(fold, ([a, b], [b, a], [a.T, b], [a], [a, b, b]))
    assert len(set(map(int, folds))) == 5
    array = random.integers(0, 2, (3, 4)).astype(dtype)
    folded = jax.jit(fold)
    before = int(folded([array]))
    for place in range(array.size):
        for bit in range(8 * array.dtype.itemsize):
            raw = array.copy().reshape(-1).view(f"u{array.dtype.itemsize}")
            raw[place] ^= 1 << bit
            assert int(folded([raw.view(array.dtype).reshape(3, 4)])) != before


def test_different_bit(random: np.random.Generator) -> None:
    devices = Parallel(jax.local_devices()[:4])
    matrix = random.normal(size=(7, 5)).astype(np.float32)
    half = random.normal(size=9).astype(jnp.bfloat16)
    state = devices.replicate({"matrix": matrix, "half": half, "count": np.int32(3)})
    require_equal = functools.partial(
        require_equal_replicas, Cluster(Distributed(), Path()), devices
    )
    with jax.transfer_guard("disallow"):
        require_equal(7, state)
    shards = [np.array(shard.data) for shard in state["matrix"].addressable_shards]
    shards[2].reshape(-1).view(np.uint32)[13] ^= 1
    placed = list(map(jax.device_put, shards, devices.local_devices))
    whole = state["matrix"]
    odd = jax.make_array_from_single_device_arrays(whole.shape, whole.sharding, placed)
    with pytest.raises(ReplicasDiffer, match=r"at step 7 .* of device 2 of process 0 ") as found:
        require_equal(7, state | {"matrix": odd})
    assert "device 1" not in str(found.value)


def test_copy_of_the_first_device(random: np.random.Generator) -> None:
    devices = Parallel(jax.local_devices()[:4])
    numbers = random.normal(size=(4, 7, 5)).astype(np.float32)
    scales = np.arange(4, dtype=np.int32)
    rows = devices.split_rows({"matrix": numbers, "count": scales})
    found = devices.map(parallel._copy_first_device)(rows)
    for shard in (*found["matrix"].addressable_shards, *found["count"].addressable_shards):
        expected = numbers[:1] if shard.data.ndim == 4 else scales[:1]
        np.testing.assert_array_equal(shard.data[0], expected)


REFUSED = """
import jax
import mlstm_jax as mlstm
from mlstm_jax import parallel

traced = []
program = jax.jit(lambda x: traced.append(x) or x + 1)
for most in (10**9, 0):
    parallel.MAPPINGS = most
    program(1)
    try:
        mlstm.train(mlstm.vary(mlstm.Config(), data__corpus="absent"))
    except ValueError:
        program(1)
    print(len(traced))
"""
HAS_MAPPINGS = pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="it has no mappings to count"
)


@HAS_MAPPINGS
def test_programs_before_a_run(launcher) -> None:
    """A run begins without the programs of earlier ones where these take many mappings."""
    launcher.call(sys.executable, "-c", REFUSED)
    assert launcher.ended(0) == ["1\n2\n"]


RUNS = """
import mmap, sys
from pathlib import Path
import mlstm_jax as mlstm
from mlstm_jax import parallel

# Neighbours of one kind would be one mapping.
kinds = [mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE]
held = [mmap.mmap(-1, 4096, prot=kinds[n % 2]) for n in range(parallel.MAPPINGS)]
corpus, folder = map(Path, sys.argv[1:])
small = {"model__hidden": 4, "model__embedding": 4, "data__batch": 2, "train__steps": 1}
for window in (4, 5, 6):
    out = str(folder / f"run{window}")
    config = mlstm.vary(mlstm.Config(), data__corpus=str(corpus), out=out, **small)
    mlstm.train(mlstm.vary(config, data__window=window), show_progress=False)
    print(Path("/proc/self/maps").read_text().count("\\n"))
"""


@pytest.mark.slow
@HAS_MAPPINGS
def test_runs_of_other_shapes(corpus, tmp_path, launcher) -> None:
    """A process that has many mappings of memory gets no more; at 65,530 it would die."""
    launcher.call(sys.executable, "-c", RUNS, corpus, tmp_path)
    (said,) = launcher.ended(0)
    first, *later = map(int, said.split())
    assert max(later) < first + 100  # A run has four times as many.
