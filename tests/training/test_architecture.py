"""All kinds of model learn and resume; and what objectives ask of a window."""

from typing import get_args

import jax
import numpy as np
import pytest

from mlstm_jax import run
from mlstm_jax.api.model import load
from mlstm_jax.config import BERT, Config, Model, Precision, Train, Transformer, vary
from mlstm_jax.config.resolve import Hardware, resolve
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.model.architecture import Architecture, ObjectiveName
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.parallel import Parallel
from mlstm_jax.training.evaluation import Evaluator
from mlstm_jax.training.memory import memory_bytes
from mlstm_jax.training.objective import MASK, OBJECTIVES, Targets, masked_bytes, row_keys
from mlstm_jax.training.train import Session
from mlstm_jax.training.train import train as run_train
from mlstm_jax.weights import expected_shapes
from tests.training import runs
from tests.training.runs import assert_same_run, copy_until, lines_of, make_config, short

# Muon's products and micro-batches are compiled: once is enough.
MUON = {"optimizer__name": "muon", "train__micro_batches": 2}
FP8 = {"precision__recurrent": "fp8_emulated", "devices__count": 2}  # its maxima are of the state


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("bert", MUON),
        ("mlstm", FP8),
        pytest.param("lstm", {"train__objective": "masked-bytes"}, marks=pytest.mark.slow),
        pytest.param("lstm", {}, marks=pytest.mark.slow),
        pytest.param("gru", {}, marks=pytest.mark.slow),
        pytest.param("transformer", {}, marks=pytest.mark.slow),
    ],
)
def test_learning_and_resuming(kind, changes, corpus, tmp_path) -> None:
    config = make_config(
        corpus,
        tmp_path / "run",
        model=Architecture.kinds[kind](hidden=16, embedding=8),
        precision=Precision(compute="bf16"),
        train=short(steps=40, eval_every=40, checkpoint_every=20, dropout=0.1),
    )
    config = vary(config, **{"optimizer__learning_rate": 2e-2, "devices__count": 1} | changes)
    whole = run.load_run(run_train(config, Session(show_progress=False)), "latest")
    assert whole.config.model == resolve(config, Hardware(1)).model
    lines = lines_of(whole.folder)
    assert lines["eval"][-1]["bpc"] < lines["train"][0]["bpc"] - 1
    text = load(whole.folder).report()
    masks = kind == "bert" or "train__objective" in changes
    assert ["masked bytes" in text, "A sample" in text] == [masks, not masks]
    if changes == FP8:
        state, _ = runs.final_state(whole.folder, 8)
        assert (state.maxima_U3 > 0).all()
        assert "maxima" not in str(whole.params.keys())  # nothing that reads a run sees them

    again = copy_until(whole.folder, 20, tmp_path / "again")
    run_train(vary(config, out=str(again)), Session(resume=True, show_progress=False))
    assert_same_run(again, whole.folder)
    assert memory_bytes(config, 8) > 0


@pytest.mark.parametrize(("kind", "window"), [("bert", 16), ("transformer", 8)])
def test_windows_of_evaluation(kind, window, corpus) -> None:
    sizes = Architecture.kinds[kind](hidden=8, embedding=8, layers=1)
    model = LanguageModel(sizes.for_windows(16))
    split = open_corpus(corpus).split("valid")
    device = Parallel(jax.local_devices()[:1])
    evaluator = Evaluator(model, split, 256, device)
    assert evaluator.stream.batch(0, 16).inputs_BT.shape == (16, window)


def test_bidirectional_models() -> None:
    masked = Train(objective="masked-bytes")
    sizes = {"hidden": 8, "heads": 2, "layers": 1}
    transformer = resolve(Config(model=Transformer(**sizes), train=masked), Hardware(1)).model
    assert transformer.bidirectional
    assert not Transformer(**sizes).bidirectional
    assert expected_shapes(transformer) == expected_shapes(BERT(**sizes, positions=256))
    model = resolve(Config(model=Model(hidden=8), train=masked), Hardware(1)).model
    assert (model.bidirectional, model.symbols) == (False, 257)


@pytest.mark.parametrize("kind", [*sorted(Architecture.kinds), "lstm with weight norm"])
def test_matrices_and_large_gradients(kind: str) -> None:
    name, *normed = kind.split(" with ")
    options = dict.fromkeys(["weight_norm"] * len(normed), True)
    model = Architecture.kinds[name](hidden=8, embedding=4, layers=2, classes=2, **options)
    shapes = expected_shapes(model)
    has_positions = "input/positions" in shapes
    large = set()
    for name, shape in shapes.items():
        is_matrix = len(shape) == 2
        is_table = name in ("embedding", "input/positions")
        if name == "label_kernel" or is_table:
            is_matrix = False
        assert bool(model.matrices(name)) == is_matrix
        assert model.decays(name) == (is_matrix or (is_table and has_positions))
        if is_matrix:
            assert shape[1] % model.matrices(name) == 0
            if shape[0] >= 8:
                large.add(name)
    order = LanguageModel(model).backward_order()
    assert set(order) == large
    places = []
    for name in order:
        layer = name.split("/")[0]
        places.append(["decoder_kernel", "layer_1", "layer_0"].index(layer))
    assert places == sorted(places)


# --- objectives

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
    assert len({*map(tuple, np.asarray(asked.weight_BT > 0))}) == ROWS


def test_names_of_objectives() -> None:
    assert set(OBJECTIVES) == set(get_args(ObjectiveName))
    for name, objective in OBJECTIVES.items():
        config = Config(model=Model(hidden=8), train=Train(objective=name))
        assert OBJECTIVES[resolve(config, Hardware(1)).model.objective] is objective
