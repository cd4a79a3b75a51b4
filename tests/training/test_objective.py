"""The objectives: what is asked of a window."""

from typing import get_args

import jax
import numpy as np

from mlstm_jax.config import Config, Model, Train
from mlstm_jax.config.resolve import Hardware, resolve
from mlstm_jax.model.architecture import ObjectiveName
from mlstm_jax.training.objective import MASK, OBJECTIVES, Targets, masked_bytes, row_keys

ROWS = 64
SIZE = 200


@jax.jit
def mask(bytes_BT: jax.Array, counted_BT: jax.Array, step: jax.Array, row_B: jax.Array) -> Targets:
    return masked_bytes(bytes_BT, bytes_BT, counted_BT, row_keys(1, 2, step, row_B))


def ask(step: int = 3, counted: np.ndarray | None = None, first: int = 0) -> tuple:
    bytes_BT = np.random.default_rng(0).integers(0, 256, (ROWS, SIZE), dtype=np.uint8)[first:]
    counted_BT = np.ones(bytes_BT.shape, bool) if counted is None else counted[first:]
    return bytes_BT, mask(bytes_BT, counted_BT, step, np.arange(first, ROWS))


def test_masked_and_replaced_bytes() -> None:
    """Each share is within five standard deviations of a binomial's."""
    bytes_BT, asked = ask()
    chosen = np.asarray(asked.weight_BT) > 0
    np.testing.assert_array_equal(chosen.sum(axis=1), 30)  # 15% of 200
    np.testing.assert_array_equal(asked.targets_BT, bytes_BT)
    read = np.asarray(asked.inputs_BT)
    np.testing.assert_array_equal(read[~chosen], bytes_BT[~chosen])
    masked = (read == MASK)[chosen]
    kept = (read == bytes_BT)[chosen]
    n = ROWS * 30
    # A random byte is the old one in 1 of 256 cases.
    for found, share in ((masked, 0.8), (kept, 0.1 + 0.1 / 256)):
        assert abs(found.sum() - n * share) < 5 * np.sqrt(n * share * (1 - share))
    replaced = read[chosen][~masked & ~kept]
    assert replaced.max() > 200
    assert replaced.min() < 50
    # Every place is chosen about as often as any other.
    share = 0.15
    assert (np.abs(chosen.sum(axis=0) - ROWS * share) < 6 * np.sqrt(ROWS * share)).all()


def test_weight_of_a_row() -> None:
    counted = np.arange(SIZE) < np.array([SIZE, 7, 1, 0] * (ROWS // 4))[:, None]
    _, asked = ask(counted=counted)
    np.testing.assert_allclose(asked.weight_BT.sum(axis=1), counted.sum(axis=1), rtol=1e-6)
    weight = np.asarray(asked.weight_BT)
    assert not weight[~counted].any()
    # 15%, rounded up.
    np.testing.assert_array_equal((weight > 0).sum(axis=1)[:4], [30, 2, 1, 0])


def test_seeds_of_masks() -> None:
    _, asked = ask()
    _, again = ask(first=20)
    np.testing.assert_array_equal(asked.inputs_BT[20:], again.inputs_BT)
    _, later = ask(step=4)
    assert (np.asarray(later.weight_BT > 0) != (asked.weight_BT > 0)).any(axis=1).all()
    assert len({tuple(row) for row in np.asarray(asked.weight_BT > 0)}) == ROWS


def test_names_of_objectives() -> None:
    assert set(OBJECTIVES) == set(get_args(ObjectiveName))
    for name, objective in OBJECTIVES.items():
        config = Config(model=Model(hidden=8), train=Train(objective=name))
        assert OBJECTIVES[resolve(config, Hardware(1)).model.objective] is objective
