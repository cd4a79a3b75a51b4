"""Features, heat maps and text of every kind of model; here untrained."""

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax import arrays, weights
from mlstm_jax.config import Config
from mlstm_jax.corpora.documents import prompt_bytes
from mlstm_jax.errors import UserError
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.options import HeatmapOptions, SamplingOptions
from mlstm_jax.run import Run, as_weights, load_run
from mlstm_jax.transfer.classifier import Classifier, Description
from mlstm_jax.transfer.features import Featurizer
from mlstm_jax.transfer.heatmap import as_html, heat
from mlstm_jax.transfer.trace import Tracer, generate
from mlstm_jax.view.viewer import Viewer
from tests.tables import attributes, draw_arrays
from tests.tolerance import assert_close
from tests.transfer.pieces import whole
from tests.transfer.test_features import one_device

pytestmark = pytest.mark.numeric

TEXTS = ["the café is good", "my cable sounds great " * 9]


def draw(kind: str, hidden: int = 12, layers: int = 2) -> Run:
    config = Config(model=Architecture.kinds[kind](hidden=hidden, embedding=4, layers=layers))
    random = np.random.default_rng(0)
    shapes = weights.expected_shapes(config.model)
    params = arrays.unflatten(draw_arrays(random, shapes, spread=1 / 3))
    model = LanguageModel(config.model, config.precision.types)
    return Run(Path("untrained"), config, 0, "radford", model, params)


# A GRU reads and writes as an LSTM does, but for its states.
@pytest.fixture(params=["bert", "lstm", "mlstm", "transformer"], scope="module")
def untrained(request: pytest.FixtureRequest) -> Run:
    return draw(request.param)


NAMES = {"c": "cell state c", "h": "h of", "mean_h": "mean of h"}


def test_features_and_heat_maps(untrained: Run) -> None:
    """In each state of each layer a text's feature is that after its last byte."""
    states = (*untrained.config.model.states, "mean_h")
    every = Featurizer(untrained, states=states, all_layers=True, devices=one_device())
    found = every(TEXTS).reshape(2, len(states), 2, 12)
    default = Featurizer(untrained)
    assert {*attributes(default.columns, "state")} == {*states} - {"h"}
    assert {*attributes(default.columns, "layer")} == {1}
    tracer = Tracer(untrained)
    for text, features in zip(TEXTS, found, strict=True):
        for state, array in zip(states, features, strict=True):
            end_2H = tracer(f"\n {text.strip()} ".encode(), [(state, 0), (state, 1)]).values_TH[-1]
            assert_close(array, end_2H.reshape(2, 12), 2 * 3 * 12)
    for state, layer in product(states, (0, 1)):
        made = heat(tracer, TEXTS[0], 9, HeatmapOptions(state=state, layer=layer))
        values_TH = tracer(prompt_bytes(TEXTS[0], "radford"), [(state, layer)]).values_TH
        ends = np.cumsum([len(one.encode()) for one in made.texts]) - 1
        np.testing.assert_array_equal(made.values, values_TH[ends, 9])
        page = as_html(made)
        assert f"unit 9 of layer {layer}" in page.lower()
        assert NAMES[state] in page
    shown = heat(tracer, TEXTS[0], 3)
    assert shown.name.startswith(NAMES[states[0]])
    assert shown.scale == pytest.approx(np.abs(shown.values).max())


def test_model_without_next_bytes() -> None:
    run = draw("bert")
    model = mlstm.TrainedModel(run)
    assert model.states("a café").shape == (len(b"\n a caf.. "), 12)
    about = Description("mean_h", False, run.fingerprint, None)
    classifier = Classifier(np.ones((1, 12)), np.zeros(1), ["no", "yes"], 1.0, about=about)
    assert Viewer(run, classifier).model({})["scores"] == []
    for read, task in (
        (model.reader, "reading byte by byte"),
        (partial(model.log_probabilities, "a"), "reading byte by byte"),
        (partial(model.bits_per_character, ["a"]), "scoring a text"),
        (partial(model.heatmap, "a", score=classifier), "a score after each character"),
        (partial(model.generate, "a"), "generating text"),
    ):
        with pytest.raises(UserError, match=f"{task} needs a model that predicts the next byte"):
            read()


def test_missing_state(untrained: Run) -> None:
    kind = untrained.config.model
    wrong: Any = "x" if "c" in kind.states else "c"
    known = ", ".join((*kind.states, "mean_h"))
    with pytest.raises(UserError, match=f"state is '{wrong}', .* {known}.* of {kind.cli_name}"):
        Featurizer(untrained, states=(wrong,))


@pytest.mark.parametrize("kind", ["lstm", "mlstm", "transformer"])
def test_sample(kind: str) -> None:
    """At temperature 0 each byte is the likeliest after the text so far."""
    untrained = draw(kind)
    tracer = Tracer(untrained)
    (drawn,) = whole(generate(tracer, "the", SamplingOptions(bytes=5, temperature=0)))
    for n in range(5):
        assert tracer(b"\n the" + drawn[:n]).next_V.argmax() == drawn[n]
    if "c" not in untrained.config.model.states:
        with pytest.raises(UserError, match=r"set_unit .* has no cell state c"):
            next(generate(tracer, "a", SamplingOptions(set_unit={0: 1.0})))
    else:
        how = SamplingOptions(bytes=50, set_unit=dict.fromkeys(range(12), 30.0))
        held = whole(generate(tracer, "the", how))
        assert held != whole(generate(tracer, "the", SamplingOptions(bytes=50)))


@pytest.mark.parametrize("kind", sorted(set(Architecture.kinds) - {"mlstm"}))
def test_round_trip(kind: str, tmp_path: Path) -> None:
    untrained = draw(kind)
    weights.save(tmp_path / "model.safetensors", as_weights(untrained))
    found = load_run(tmp_path / "model.safetensors")
    assert found.config.model == untrained.config.model
    jax.tree.map(np.testing.assert_array_equal, found.params, untrained.params)
