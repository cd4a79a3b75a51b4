"""The Transformer against NumPy in float64, and how it reads a text."""

from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import reference
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.model.ops import attention, gpu_capability
from mlstm_jax.model.transformer import Input, Transformer
from tests.model.test_language_model import applied, make, mean_loss, read
from tests.tolerance import assert_close

pytestmark = pytest.mark.numeric

KINDS = ["transformer", "bert"]
# Two layers of six products over at most 4 · 6 terms, attention over 16 places, and the decoder.
TERMS = 2 * (6 * 4 * 6 + 2 * 16) + 6


def small(kind: str, compute: str = "fp32", **model: object) -> tuple[LanguageModel, dict]:
    return make(compute, kind, hidden=6, heads=2, **({"positions": 16} | model))


@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_gradient(kind: str, random: np.random.Generator) -> None:
    model, params = small(kind)
    batch = random.integers(0, 256, (2, 9), dtype=np.uint8)
    exact_params = jax.tree.map(np.float64, params)
    inputs = batch[:, :-1]
    targets = batch[:, 1:]
    sees_ahead = kind == "bert"

    found = read(model, params, inputs, (), states="each")
    logits, h_BTLH = reference.transformer(exact_params, inputs, 2, sees_ahead)
    assert_close((found.logits_BTV, found.states.h), (logits, h_BTLH), TERMS)
    assert found.carry == ()

    gradient = jax.jit(jax.grad(lambda p: mean_loss(model, p, batch, ())))(params)
    left_out = ("embedding", "decoder_kernel", "decoder_bias", "layer_1")
    gradient = {name: leaf for name, leaf in gradient.items() if name not in left_out}

    def loss(params: dict) -> complex:
        logits, _ = reference.transformer(params, inputs, 2, sees_ahead)
        return reference.cross_entropy(logits, targets)

    exact = reference.derivative(loss, exact_params, left_out)
    assert_close(gradient, exact, 2 * TERMS + inputs.size)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_place_sees(kind: str, random: np.random.Generator) -> None:
    """What follows is seen by BERT alone."""
    model, params = small(kind)
    bytes_BT = random.integers(0, 256, (2, 9), dtype=np.uint8)
    padding = np.arange(9) >= np.array([5, 9])[:, None]
    changed = np.where(padding, bytes_BT + 1, bytes_BT).astype(np.uint8)
    for carry in ((), model.reading_carry(2)):
        one, other = (
            read(model, params, x, carry, padding).logits_BTV for x in (bytes_BT, changed)
        )
        np.testing.assert_array_equal(one[0, :5], other[0, :5])
        np.testing.assert_array_equal(one[1], other[1])
        alone = read(model, params, bytes_BT[:1, :5], ()).logits_BTV
        assert_close(one[:1, :5], alone, TERMS)

    changed = bytes_BT.copy()
    changed[1, 5] += 1
    one, other = (read(model, params, x, (), padding).logits_BTV for x in (bytes_BT, changed))
    difference_T = np.abs(one - other)[1].max(axis=1)
    assert (difference_T[5:] > 1e-4).all()
    assert (difference_T[:5] > 1e-4).all() if kind == "bert" else not difference_T[:5].any()


def test_windows_of_a_text(random: np.random.Generator) -> None:
    """As long as it has no more bytes than the model has positions; rows may end early."""
    model, params = small("transformer")
    bytes_BT = random.integers(0, 256, (2, 9), dtype=np.uint8)
    lengths = np.array([9, 6])
    whole_h = np.asarray(read(model, params, bytes_BT, (), states="each").states.h)
    for split in ((9,), (3, 1, 1, 3, 1)):
        carry = model.reading_carry(2)
        states = []
        at = 0
        for size in split:
            window_BT = bytes_BT[:, at : at + size]
            padding = np.arange(at, at + size) >= lengths[:, None]
            one = read(model, params, window_BT, carry, padding, states="each")
            carry, at = one.carry, at + size
            states.append(np.asarray(model.architecture.named_states(one.states)["h"]))
        found = np.concatenate(states, axis=1)
        for row, length in enumerate(lengths):
            assert_close(found[row, :length], whole_h[row, :length], TERMS)
            ends = np.asarray(model.architecture.named_states(carry)["h"])[row]
            np.testing.assert_array_equal(ends, found[row, length - 1])
            assert np.asarray(carry.count_B)[row] == length
            text = np.asarray(carry.bytes_BP)[row, -length:]
            np.testing.assert_array_equal(text, bytes_BT[row, :length])


def test_long_text(random: np.random.Generator) -> None:
    model, params = small("transformer")
    bytes_BT = random.integers(0, 256, (2, 27), dtype=np.uint8)
    carry = model.reading_carry(2)
    padding = np.zeros((2, 3), bool)
    for at in range(0, 27, 3):
        found = read(model, params, bytes_BT[:, at : at + 3], carry, padding, states="each")
        carry = found.carry
    last = read(model, params, bytes_BT[:, -16:], ())
    assert_close(found.logits_BTV, last.logits_BTV[:, -3:], TERMS)


def test_dropout(random: np.random.Generator) -> None:
    """With every branch dropped, only the embedding is left; with factors of 1, nothing changes."""
    model, params = small("transformer")
    bytes_BT = random.integers(0, 256, (2, 9), dtype=np.uint8)
    shape = (2, *model.architecture.dropout_shape(9))

    def states(dropout_B: np.ndarray | None) -> np.ndarray:
        return read(model, params, bytes_BT, (), states="each", dropout_B=dropout_B).states.h

    plain = states(None)
    kept = states(np.ones(shape, np.float32))
    dropped = states(np.zeros(shape, np.float32))
    np.testing.assert_array_equal(kept, plain)
    embedded = params["embedding"] @ params["input"]["kernel"]
    first = embedded[bytes_BT] + params["input"]["positions"][:9]
    assert_close(dropped[:, :, 0], first, 3)


def test_first_positions() -> None:
    """A shift by n places is the same linear map everywhere: their products depend on n only."""
    model = Transformer(hidden=64, heads=2, layers=1, positions=128, embedding_std=0.5)
    start = jax.jit(Input(model, jnp.float32).init, static_argnums=3)
    table = np.zeros((256, 64), np.float32)
    made = start(jax.random.key(0), np.zeros((1, 1), np.int32), table, None)
    places = np.asarray(made["params"]["positions"])
    products = places @ places.T
    for n in (0, 1, 5, 50):
        assert_close(np.diag(products, n), np.full(128 - n, products[0, n]), 64 * 128)
    # cos² + sin² is 1 in each pair of units.
    assert_close(products[0, 0], np.float64(0.5**2 * 64), 64)
    assert products[0, 1] > 1.5 * abs(products[0, 50])


SEEN_BS = np.random.default_rng(0).random((2, 70)) < 0.7
SEEN_BS[:, 0] = True
LENGTHS_B = np.array([70, 33])


@pytest.mark.parametrize(
    ("causal", "keys", "mask"),
    [
        (True, {}, {}),
        (True, {"keys_BS": SEEN_BS}, {"mask": SEEN_BS[:, None, None]}),
        (False, {"lengths_B": LENGTHS_B}, {"key_value_seq_lengths": LENGTHS_B}),
    ],
    ids=["causal", "causal, some keys", "lengths"],
)
def test_attention(causal: bool, keys: dict, mask: dict, random: np.random.Generator) -> None:
    """Over more places than a block of queries has, with a gradient."""
    size = 70
    units = 4
    given = random.normal(size=(3, 2, size, 2, units)).astype(np.float32)
    direction = random.normal(size=given.shape[1:]).astype(np.float32)

    def both(run: Callable[..., jax.Array], **how: object) -> tuple[jax.Array, jax.Array]:
        @jax.jit
        def program(given: np.ndarray) -> tuple[jax.Array, jax.Array]:
            value, back = jax.vjp(lambda x: run(*x, **how), given)
            return value, back(direction)[0]

        return program(given)

    ours = both(attention, causal=causal, **keys)
    # Scores over the units, probabilities and values over the keys, and the same backward.
    terms = 2 * (2 * units + 3 * size)
    assert_close(ours, both(jax.nn.dot_product_attention, is_causal=causal, **mask), terms)


def test_counted_products() -> None:
    """The forward pass needs a third of them; XLA also counts norms and softmax."""
    model, params = make("fp32", "bert", hidden=32, heads=1, positions=512)
    bytes_BT = jnp.zeros((1, 512), jnp.uint8)
    counted = applied(model).lower({"params": params}, bytes_BT, ()).cost_analysis()["flops"]
    kind = model.architecture
    layers = sum(sum(kind.products(layer)) / 3 for layer in range(kind.layers))
    assert 1 <= counted / 512 / (layers + 2 * 256 * 32) < 1.1


@pytest.mark.parametrize(
    ("capability", "expected"), [("7.0", (7, 0)), ("10.0", (10, 0)), ("gfx942", None), (None, None)]
)
def test_capability_of_a_gpu(capability, expected) -> None:
    assert gpu_capability(SimpleNamespace(compute_capability=capability)) == expected
