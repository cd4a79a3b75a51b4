"""The gradient's all-reduce in pieces: the sums of one piece, to the bit, in the given order."""

import re
from typing import Any

import jax
import numpy as np
import pytest

from mlstm_jax.config import Model, Precision
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.training import parallel
from mlstm_jax.training.parallel import AXIS

EARLY = ["decoder", "layer_0/wmh_v", "layer_0/wh_v", "of another model"]


def make_trees(devices: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return draw.standard_normal((devices, *shape)).astype(np.float32)

    layer = {"wh_v": array(8, 64), "wmh_v": array(8, 16), "b": array(16)}
    return {"layer_0": layer, "decoder": array(8, 32)}, (array(), array())


def mapped(devices: int) -> Any:
    return jax.pmap(
        lambda tree, others: parallel.sum_over_devices(tree, others, EARLY, AXIS),
        axis_name=AXIS,
        devices=jax.local_devices()[:devices],
    )


@pytest.mark.parametrize("least", [1, 8 * 32 * 4, 1 << 20])
def test_the_sums_are_those_of_one_piece(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = make_trees(4)
    expected = jax.pmap(lambda x: jax.lax.psum(x, AXIS), axis_name=AXIS)(trees)
    monkeypatch.setattr(parallel, "LEAST_BYTES", least)
    jax.tree.map(np.testing.assert_array_equal, mapped(4)(*trees), expected)


def test_large_parts_are_pieces_in_the_order_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "LEAST_BYTES", 8 * 32 * 4)
    program = str(jax.make_jaxpr(mapped(4))(*make_trees(4)))
    pieces = [
        re.findall(r"f32\[([0-9,]*)\]", line.split("=")[0])
        for line in program.splitlines()
        if "= psum" in line
    ]
    assert pieces[:2] == [["8,32"], ["8,64"]]
    assert sorted(shape for piece in pieces[2:] for shape in piece) == ["", "", "16", "8,16"]
    assert program.count("optimization_barrier") == 2


def test_one_device_has_nothing_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "LEAST_BYTES", 1)
    assert "optimization_barrier" not in str(jax.make_jaxpr(mapped(1))(*make_trees(1)))


@pytest.mark.parametrize("layers", [1, 3])
def test_the_names_in_the_order_are_the_models(layers: int) -> None:
    """A name that no parameter has would be left out in silence."""
    model = LanguageModel(Model(hidden=8, layers=layers), Precision())
    params = jax.eval_shape(lambda: model.init_parameters(jax.random.key(0)))
    found = jax.tree_util.tree_leaves_with_path(params)
    names = {jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in found}
    order = model.backward_order()
    assert set(order) <= names
    assert len(set(order)) == len(order) == 3 + 4 * (layers - 1)
