"""A text byte by byte: states, log-probabilities, words, and a text that comes in pieces."""

import contextlib
import itertools
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest

import mlstm_jax as mlstm
from mlstm_jax.corpora.documents import clean, cleaned_spans
from mlstm_jax.errors import UserError
from mlstm_jax.run import Run
from mlstm_jax.transfer.trace import Tracer
from tests.tolerance import assert_close, bound
from tests.transfer.test_kinds import draw

pytestmark = pytest.mark.numeric

TEXT = "my guitar is good, the café works very well as expected &amp; great. " * 4
# The sums that a value passes through in a step: H, E and the gates' inputs, of two layers.
TERMS = 2 * 3 * 64


@pytest.fixture(scope="module")
def read(run: Run) -> Any:
    """The bytes of TEXT, and what the Flax module gives after each."""
    text_T = np.frombuffer(clean(TEXT, run.cleaning), np.uint8)

    @jax.jit
    def apply(text_T: Any) -> Any:
        return run.model.apply(
            {"params": run.params}, text_T[None], run.model.init_carry(1), return_states="each"
        )

    return text_T, apply(text_T)


def test_states_of_each_byte(model: mlstm.TrainedModel, read: Any) -> None:
    text_T, output = read
    assert model.cleaned(TEXT) == text_T.tobytes()
    c_TH = np.asarray(output.states.c[0, :, -1], np.float64)
    h_TH = np.asarray(output.states.h[0, :, -1], np.float64)
    mean_TH = h_TH.cumsum(axis=0) / np.arange(1, len(h_TH) + 1)[:, None]
    for state, expected in (("c", c_TH), ("h", h_TH), ("mean_h", mean_TH)):
        found = model.states(TEXT, state)
        assert found.dtype == np.float32
        assert_close(found, expected, TERMS)
        assert_close(found[-1:], model.encode([TEXT], state), TERMS)
    np.testing.assert_array_equal(model.states(TEXT), model.states(TEXT, "c"))
    assert model.states(" ").shape == (0, 64)


def test_log_probabilities(model, read) -> None:
    text_T, output = read
    logits_TV = np.asarray(output.logits_BTV[0], np.float64)[:-1]
    shares_TV = np.exp(logits_TV - logits_TV.max(axis=1, keepdims=True))
    shares_TV /= shares_TV.sum(axis=1, keepdims=True)
    found = model.log_probabilities(TEXT)
    expected = np.log(shares_TV[np.arange(len(text_T) - 1), text_T[1:]])
    assert_close(found, expected, TERMS)
    assert model.log_probabilities("").shape == (0,)
    # Of every byte but the first, text by text.
    texts = [TEXT, "", "that strap sounds bad 12."]
    nats_N = np.concatenate([*map(model.log_probabilities, texts)], dtype=np.float64)
    bits = -nats_N.mean() / np.log(2)
    assert bits == pytest.approx(model.bits_per_character(texts), rel=bound(TERMS + len(nats_N)))
    with pytest.raises(ValueError, match="nothing to score"):
        model.bits_per_character([])


@pytest.mark.parametrize(
    ("kind", "given"), [(None, TEXT), ("lstm", TEXT), ("transformer", TEXT[:20])]
)
def test_pieces_of_a_text(kind, given, run, random) -> None:
    """Byte by byte, and in random pieces, some of which are empty or longer than a window."""
    model = mlstm.TrainedModel(draw(kind) if kind else run)
    # A Transformer's products have other shapes for other pieces.
    terms = 4 * 64 if kind == "transformer" else 0
    text = model.cleaned(given)
    scores = model.log_probabilities(given)
    few = [0, *np.sort(random.integers(0, len(text), 3)), len(text)]
    many = [0, *np.sort(random.integers(0, len(text), 60)), len(text)]
    each = range(len(text) + 1)
    for state, places in [("mean_h", each), ("mean_h", few), (None, many), ("h", few)]:
        states = model.states(given, state)
        reader = model.reader(state)
        found = []
        assert not reader.state.any()
        for a, b in pairwise(places):
            reader.feed(text[a:b])
            found.append((reader.states, reader.scores))
            if b:
                assert_close(reader.state, states[b - 1], terms)
        for whole, pieces in zip((states, scores), zip(*found, strict=True), strict=True):
            assert_close(np.concatenate(pieces), whole, terms)


@pytest.mark.parametrize("kind", [None, "bert", "transformer"])
def test_texts_that_begin_alike(kind, run, monkeypatch) -> None:
    """As one types: what a new tracer gives, to the bit, after few bytes."""
    typed = clean(TEXT, "radford")
    ends = [120, 121, 122, 121, 115, 130, 400, 40, 6, 1, 12]  # also back, and by many bytes
    other = typed[:30] + b"X" + typed[31:100]
    one = draw(kind) if kind else run
    tracer = Tracer(one)
    each = tracer.engine.each
    count = []

    def counted(piece: bytes, reached: Any) -> Any:
        count.append(len(piece))
        return each(piece, reached)

    monkeypatch.setattr(tracer.engine, "each", counted)
    texts = [typed[:end] for end in ends]
    for text in [*texts, other, other + "é".encode()]:
        for layers in (None, [("mean_h", 0)]):
            count.clear()
            found = tracer(text, layers)
            bytes_read = sum(count)
            expected = Tracer(one)(text, layers)
            assert found is tracer(text, layers)
            jax.tree.map(np.testing.assert_array_equal, found[1:4], expected[1:4])
            assert found.text == text
            assert found.nats == pytest.approx(expected.nats, rel=1e-12)
            if text in (typed[:121], typed[:122], other + "é".encode()):
                assert 0 < bytes_read <= 10 or one.config.model.longest_window
            else:
                assert 0 < bytes_read <= len(text)
    tracer(b"another text")
    assert len(tracer._kept) == 1  # it keeps no other text


@pytest.mark.parametrize("is_overtaken", [False, True])
@pytest.mark.parametrize("window", [0, 1])
def test_stopped_and_overtaken_reads(window, is_overtaken, run) -> None:
    """Ctrl-C in the middle of a text, or a thread that reads with the same tracer meanwhile."""
    typed = clean(TEXT, "radford")
    text = typed[:60]
    other = typed[:32] + b"X" * 30  # both go on from the first 32 bytes
    windows = itertools.count()

    def check() -> None:
        if next(windows) == window:
            if not is_overtaken:
                raise KeyboardInterrupt
            tracer(other)

    tracer = Tracer(run)
    tracer(typed[:40])
    with contextlib.suppress(KeyboardInterrupt):
        tracer(text if is_overtaken else other, check=check)
    np.testing.assert_array_equal(tracer(text).values_TH, Tracer(run)(text).values_TH)


@pytest.mark.filterwarnings("ignore:half of a character")
def test_states_of_spans(model: mlstm.TrainedModel) -> None:
    """Found by other means: each word is in the cleaned text once."""
    texts = [
        "  \r\n the&#32;caf&eacute;\r\nworks &lt;very&gt; well.  ",
        "no spans",
        "日本 guitars, \ud800 cables\n",
        "a longer text " * 12 + "with an end",
    ]
    words = [["the", "caf&eacute;", "works", "very", "well"], [], ["日本", "cables"], ["end", "an"]]
    spans: list[Any] = [[], [], [], []]
    for found, text, some in zip(spans, texts, words, strict=True):
        for word in some:
            start = text.index(word)
            found.append((start, start + len(word)))
    spans[0].append((0, len(texts[0])))  # to the last character that cleaning keeps
    words[0].append(".")
    for state, given in ((None, spans), ("h", iter(spans))):
        found = model.spans(texts, given, state)
        assert [*map(len, found)] == [6, 0, 2, 2]
        for text, some, states in zip(texts, words, found, strict=True):
            cleaned = model.cleaned(text)
            for word, state_H in zip(some, states, strict=True):
                last = word.replace("&eacute;", "é").encode()
                end = cleaned.rindex(last) + len(last) - 1
                assert_close(state_H, model.states(text, state)[end], TERMS)


def test_end_of_a_span() -> None:
    for text, span, cleaning, word in (
        (" a b\n", (1, 2), "none", b" a"),
        ("x &amp;amp; y", (12, 13), "radford", b"\n x &amp; y"),
    ):
        (last,) = cleaned_spans(text, [span], cleaning)
        assert clean(text, cleaning)[: last + 1] == word


def test_wrong_spans(model: mlstm.TrainedModel) -> None:
    for text, span, message in (
        ("good", (2, 2), r"spans\[1\]: \(2, 2\) must have 0 <= start < end <= 4"),
        ("good", (0, 5), r"\(0, 5\) must have"),
        ("a &amp; b", (0, 4), r"\(0, 4\) cuts characters that cleaning makes one"),
        ("a\r\nb", (2, 4), r"\(2, 4\) cuts characters"),
        ("good  ", (4, 5), r"\(4, 5\), ' ', has no byte left after cleaning"),
        (" ", (0, 1), "has no byte left"),
        ("good", 3, r"spans\[1\] is \[3\], but it must be a list of pairs of integers"),
        ("good", (0, 1, 2), "a list of pairs"),
        ("good", (0, 1.5), "a list of pairs"),
    ):
        with pytest.raises(UserError, match=message):
            model.spans(["other", text], [[], [span]])
    with pytest.raises(UserError, match="spans has 1 lists, but texts has 2"):
        model.spans(["other", "good"], [[]])
