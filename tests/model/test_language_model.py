"""The model against NumPy in float64, and the laws of its carry."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import reference
from mlstm_jax import config
from mlstm_jax.errors import UserError
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.model.language_model import Carry, LanguageModel, parameter_shapes
from mlstm_jax.model.ops import weight_norm
from mlstm_jax.options import NumberTypes
from tests.marks import FP16
from tests.tolerance import assert_close

pytestmark = pytest.mark.numeric

# Those with a carry; the others are in test_transformer.py.
KINDS = [name for name, kind in sorted(Architecture.kinds.items()) if kind().longest_window is None]


@functools.cache
def initial(model: LanguageModel) -> dict:
    return jax.device_get(jax.jit(model.init_parameters)(jax.random.key(0)))


@functools.cache
def applied(model: LanguageModel) -> Callable[..., Any]:
    """The model's function of {"params": ...}, bytes, carry, padding; one for all tests."""
    return jax.jit(model.apply, static_argnames="return_states")


def read(model, params: dict, *window: Any, states: str = "none", dropout_B: Any = None) -> Any:
    """Read a window: bytes, carry, padding."""
    given = {"return_states": states, "dropout_B": dropout_B}
    return applied(model)({"params": params}, *window, **given)


def make(compute="fp32", kind="mlstm", *, hidden: int = 5, layers: int = 2, **model: object):
    sizes = Architecture.kinds[kind](hidden=hidden, embedding=3, layers=layers, **model)
    built = LanguageModel(sizes, NumberTypes(compute))
    return built, drawn(sizes)


@functools.cache
def drawn(model: Architecture) -> dict:
    """Parameters in NumPy, since a program that draws them takes seconds to compile.

    Gains and biases are away from where they start, so that their part is seen.
    """
    random = np.random.default_rng(1)

    def draw(path: Any, leaf: Any) -> Any:
        name = path[-1].key
        start = 1.0 if name == "scale" or name.endswith("_g") else 0.0
        spread = 0.3
        if name == "embedding":
            spread = 1.0
        elif len(leaf.shape) > 1:
            spread = leaf.shape[-2] ** -0.5
        return (start + spread * random.normal(size=leaf.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, parameter_shapes(model))


def random_carry(random: np.random.Generator, rows: int, model: LanguageModel) -> Carry:
    draw = lambda x: random.normal(size=x.shape).astype(np.float32)  # noqa: E731
    return jax.tree.map(draw, model.init_carry(rows))


def mean_loss(model: LanguageModel, params: dict, batch: np.ndarray, carry: Carry) -> jax.Array:
    _, logits_BTV, *_ = model.apply({"params": params}, batch[:, :-1], carry)
    targets_BT = batch[:, 1:].astype(np.int32)
    return optax.softmax_cross_entropy_with_integer_labels(logits_BTV, targets_BT).mean()


@pytest.mark.parametrize(
    ("kind", "recompute_every", "options"),
    [*((kind, None, {}) for kind in KINDS), ("lstm", 3, {"weight_norm": True})],
)
def test_forward_and_gradient(kind, recompute_every, options, random):
    model, params = make(kind=kind, hidden=4, **options)
    batch = random.integers(0, 256, (3, 5), dtype=np.uint8)
    carry = random_carry(random, 3, model)
    exact_params = jax.tree.map(np.float64, params)
    inputs = batch[:, :-1]
    targets = batch[:, 1:]

    after, logits, *_ = read(model, params, inputs, carry)
    states = {name: np.float64(x) for name, x in model.architecture.named_states(carry).items()}
    exact = reference.forward(kind, exact_params, inputs, states)
    # Two layers of three products over at most 4 units, and the decoder.
    terms = 2 * 3 * 4 + 4
    assert_close((logits, model.architecture.named_states(after)), exact, terms)

    model = model.clone(recompute_every=recompute_every)
    gradient = jax.jit(jax.grad(lambda p: mean_loss(model, p, batch, carry)))(params)
    decoder = {name: exact_params[name] for name in ("decoder_kernel", "decoder_bias")}
    exact = reference.gradient(kind, exact_params, inputs, targets, states, decoder)
    # What the decoder reads depends on none of its many numbers.
    no_decoder = {"decoder_kernel": np.eye(4), "decoder_bias": np.zeros(4)}
    h_BTH, _ = reference.forward(kind, exact_params | no_decoder, inputs, states)
    exact |= reference.derivative(
        lambda p: reference.cross_entropy(h_BTH @ p["decoder_kernel"] + p["decoder_bias"], targets),
        decoder,
    )
    assert_close(gradient, exact, 2 * terms + inputs.size)


@pytest.mark.parametrize("layers", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    ("kind", "compute"),
    [(kind, "fp32") for kind in KINDS]
    + [("mlstm", "bf16"), pytest.param("mlstm", *FP16.values, marks=FP16.marks)],
)
def test_two_windows_are_one(kind, compute, layers, random):
    model, params = make(compute, kind, hidden=32, layers=layers)
    bytes_BT = random.integers(0, 256, (4, 24), dtype=np.uint8)
    carry = random_carry(random, 4, model)
    whole_carry, whole, *_ = read(model, params, bytes_BT, carry)
    half_carry, first, *_ = read(model, params, bytes_BT[:, :12], carry)
    end_carry, second, *_ = read(model, params, bytes_BT[:, 12:], half_carry)

    jax.tree.map(np.testing.assert_array_equal, end_carry, whole_carry)
    # Not to the bit: the decoder is one product over T·B rows, and the sums of a product may be
    # taken in another order for another number of rows.
    assert_close(jnp.concatenate([first, second], axis=1), whole, terms=32)


def test_logits_with_states(random) -> None:
    model, params = make(hidden=256, layers=1)
    bytes_BT = random.integers(0, 256, (1, 128), dtype=np.uint8)
    carry = random_carry(random, 1, model)
    short = read(model, params, bytes_BT[:, :3], carry, states="each")
    long = read(model, params, bytes_BT, carry, states="each")
    np.testing.assert_array_equal(short.logits_BTV, long.logits_BTV[:, :3])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_padding(kind, random) -> None:
    """Neither its neighbours nor the future; padding holds the state, which is that after the last
    byte, and states are the carry after each."""
    model, params = make(kind=kind)
    bytes_BT = random.integers(0, 256, (2, 6), dtype=np.uint8)
    carry = random_carry(random, 2, model)

    changed = bytes_BT.copy()
    changed[0, 4:] += 1
    none = np.zeros((2, 6), bool)
    before, after = (read(model, params, x, carry, none).logits_BTV for x in (bytes_BT, changed))
    np.testing.assert_array_equal(before[1], after[1])
    np.testing.assert_array_equal(before[0, :4], after[0, :4])
    assert np.abs(before[0, 4:] - after[0, 4:]).max() > 1e-3

    padding = np.array([[False] * 3 + [True] * 3, [True] * 6])
    held = read(model, params, bytes_BT, carry, padding, states="each")
    without_states = read(model, params, bytes_BT, carry, padding)
    short = read(model, params, bytes_BT[:, :3], carry).carry
    for carry_after in (held.carry, without_states.carry):
        for found, there, started in zip(carry_after, short, carry, strict=True):
            assert_close(found[0], there[0], terms=2 * 3 * 5)
            np.testing.assert_array_equal(found[1], started[1])
    for found, steps in zip(held.carry, held.states, strict=True):
        np.testing.assert_array_equal(steps[:, 2], found)  # of later bytes, which none reads, none


def test_half_type_of_a_cell() -> None:
    types = NumberTypes("bf16", cell="compute")
    model = LanguageModel(config.Model(hidden=8, embedding=8), types)
    params = drawn(model.architecture)
    found = read(model, params, np.zeros((2, 3), np.uint8), model.init_carry(2), states="each")
    np.testing.assert_array_equal(found.states.c[:, 2], found.carry.c)


@pytest.mark.parametrize("recompute_every", [None, 2])
def test_gradient_with_padding(recompute_every: int | None) -> None:
    """Neither in the outputs, which our own kernels would compute as if there were none."""
    model, params = make()
    model = model.clone(recompute_every=recompute_every)
    bytes_BT = np.zeros((1, 3), np.uint8)

    def logits(params: dict) -> jax.Array:
        return model.apply({"params": params}, bytes_BT, model.init_carry(1), bytes_BT > 0)[1]

    with pytest.raises(UserError, match="padding_mask_BT"):
        jax.eval_shape(lambda params: jax.vjp(logits, params)[0], params)


# A GRU is as an LSTM, and a BERT as a Transformer; the mLSTM's own gradient: test_mlstm.py.
REST = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("bert", "gru", "mlstm")]


@pytest.mark.parametrize("compute", ["bf16", FP16])
@pytest.mark.parametrize("kind", ["lstm", "transformer", *REST])
def test_gradient_in_half_precision(compute, kind, random):
    batch = random.integers(0, 256, (8, 65), dtype=np.uint8)
    exact_model, params = make(kind=kind, hidden=64, layers=1)
    half_model, _ = make(compute, kind, hidden=64, layers=1)
    carry = random_carry(random, 8, exact_model)
    exact = jax.jit(jax.grad(lambda p: mean_loss(exact_model, p, batch, carry)))(params)
    half = jax.jit(jax.grad(lambda p: mean_loss(half_model, p, batch, carry) * 1024))(params)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(half))
    half = jax.tree.map(lambda x: x / 1024, half)
    # A recurrent step has four products, forward and back; a Transformer's layer ten.
    assert_close(half, exact, 8 * 64 + 2 * (4 if kind in KINDS else 10) * 64, compute)


def test_initial_parameters() -> None:
    params = initial(LanguageModel(config.Model(hidden=400, embedding=64)))
    layer = params["layer_0"]
    limit = 1 / np.sqrt(400)
    for name in ("wmx", "wmh", "wx", "wh"):
        v = np.asarray(layer[f"{name}_v"])
        g = np.asarray(layer[f"{name}_g"])
        assert 0.98 * limit < np.abs(v).max() <= limit
        np.testing.assert_allclose(v.std(), limit / np.sqrt(3), rtol=0.02)
        assert_close(g, np.linalg.norm(v, axis=0), terms=400)
    np.testing.assert_allclose(np.std(params["embedding"]), 1, rtol=0.02)
    assert not np.any(layer["b"])
    assert not np.any(params["decoder_bias"])
    assert np.abs(params["decoder_kernel"]).max() <= limit


def test_orthogonal_start() -> None:
    sizes = config.Model(hidden=40, recurrent_init="orthogonal", recurrent_gain=1.5)
    layer = initial(LanguageModel(sizes))["layer_0"]
    wmh = np.asarray(layer["wmh_v"])
    # 40 reflections make it, each a sum over 40 rows.
    assert_close(wmh @ wmh.T, np.eye(40), terms=40 * 40)
    for name, gain in (("wmh", 1.5), ("wh", 1.5), ("wx", 1), ("wmx", 1)):
        norms = np.linalg.norm(layer[f"{name}_v"], axis=0)
        assert_close(layer[f"{name}_g"], gain * norms, terms=64)


def test_weight_norm(random: np.random.Generator) -> None:
    v = random.normal(size=(9, 5)).astype(np.float32)
    g = random.normal(size=5).astype(np.float32)
    normalised = jax.jit(weight_norm)
    w = normalised(v, g)
    assert_close(np.linalg.norm(w, axis=0), np.abs(g), terms=9)
    assert_close(normalised(7 * v, g), w, terms=9)
    assert_close(normalised(v, np.linalg.norm(v, axis=0)), v, terms=9)
    v[:, 1] = 0
    gradient = jax.jit(jax.grad(lambda v, g: weight_norm(v, g).sum(), argnums=(0, 1)))(v, g)
    assert all(np.isfinite(leaf).all() for leaf in gradient)


@pytest.mark.fp16
def test_weight_norm_in_half_precision() -> None:
    v = jnp.full((400, 2), 30.0, jnp.float16)  # its squares sum to 360,000, past 65,504
    assert_close(np.linalg.norm(weight_norm(v, jnp.ones(2)), axis=0), np.ones(2), terms=400)
