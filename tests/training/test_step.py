"""The training step on one and on four devices: equality, overflow, one compilation."""

import dataclasses
import functools
import re
import typing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlstm_jax import config as configs
from mlstm_jax import parallel
from mlstm_jax.config import BERT, Config, Data, Model, Optimizer, Precision, Train
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.data.stream import Batch
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.model.language_model import Carry, LanguageModel
from mlstm_jax.parallel import Parallel
from mlstm_jax.training import replicas, schedule
from mlstm_jax.training.objective import label_losses
from mlstm_jax.training.rows import open_rows
from mlstm_jax.training.state import TrainState, adjust_loss_scale, fresh_state
from mlstm_jax.training.step import StepMetrics, make_train_step
from tests.marks import FP16
from tests.tolerance import assert_close, bound

pytestmark = pytest.mark.numeric


def make_config(corpus: Path, **precision: Any) -> Config:
    return Config(
        model=Model(hidden=24, embedding=8),
        data=Data(corpus=str(corpus), batch=8, window=16, shards=16),
        optimizer=Optimizer(learning_rate=5e-3),
        precision=Precision(**precision),
        train=Train(steps=200, log_every=5),
    )


@functools.lru_cache
def fresh(config: Config) -> TrainState:
    """The state before the first step: of the model, the precision, the optimizer and the seed."""
    model = LanguageModel(config.model, config.precision.types)
    return fresh_state(config, model)


class Trainer:
    """A few steps, without the loop around them."""

    def __init__(
        self, config, devices, micro_batches=1, recompute_every=None, mapped_by=parallel.MAPPED_BY
    ) -> None:
        self.config = config = configs.vary(config, train__micro_batches=micro_batches)
        self.devices = Parallel(jax.local_devices()[:devices], mapped_by)
        self.model = LanguageModel(config.model, config.precision.types, recompute_every)
        self.stream = open_rows(config, open_corpus(Path(config.data.corpus))).stream
        self.traces = 0
        step = make_train_step(config, self.model)

        def counted(*arguments: Any) -> Any:
            self.traces += 1
            return step(*arguments)

        self.step = self.devices.map(counted, donate=(0, 1))
        rates = schedule.rates_of(config.optimizer, config.data.batch, 200)
        self.go_on = self.devices.replicate((np.float32(0), rates))
        self.restart()

    def restart(self) -> "Trainer":
        seed = Train(seed=self.config.train.seed)
        self.state = self.devices.replicate(fresh(dataclasses.replace(self.config, train=seed)))
        self.carry = self.devices.split_rows(self.model.init_carry(self.config.data.batch))
        return self

    def run(self, first: int, last: int) -> StepMetrics:
        with jax.transfer_guard("disallow"):
            for step in range(first, last):
                metrics = self.take(self.stream.batch(step))
        return metrics

    def take(self, batch: Batch) -> StepMetrics:
        rows = self.devices.split_rows(batch)
        self.state, self.carry, metrics = self.step(self.state, self.carry, rows, *self.go_on)
        return self.devices.unreplicate(metrics)

    def lower(self) -> Any:
        batch = self.devices.split_rows(self.stream.batch(0))
        return self.step.lower(self.state, self.carry, batch, *self.go_on)

    @property
    def host_state(self) -> TrainState:
        return self.devices.unreplicate(self.state)

    @property
    def host_carry(self) -> Carry:
        return self.devices.fetch_rows(self.carry)

    def assert_replicas_are_equal(self) -> None:
        for leaf in jax.tree.leaves(self.state):
            for shard in leaf.addressable_shards[1:]:
                np.testing.assert_array_equal(shard.data, leaf.addressable_shards[0].data)


@functools.cache
def _trainer(config: Config, devices: int, micro_batches: int) -> Trainer:
    return Trainer(config, devices, micro_batches)


def started(config: Config, devices: int, micro_batches: int = 1) -> Trainer:
    """A trainer at its first step; all tests share it, as its step is slow to trace."""
    return _trainer(config, devices, micro_batches).restart()


@pytest.fixture
def plain(corpus: Path) -> Trainer:
    """On one device."""
    return started(make_config(corpus), 1)


# Of an update: 8 rows of 16 steps, and there and back through the products of 24 units.
TERMS = 8 * 16 + 2 * (2 * 24 + 8)


def test_half_of_the_rows(plain: Trainer) -> None:
    """Although Adam undoes the scale of the gradient."""
    before = plain.host_state.params
    states = []
    for fraction in (1, 0.5):
        batch = plain.stream.batch(0)._replace(targets_B=np.full(8, 16, np.int32))
        fraction_B = np.full(8, fraction, np.float32)
        plain.restart().take(batch._replace(active_fraction_B=fraction_B))
        states.append(plain.host_state)
    whole, half = states

    def compare(old: Any, one: Any, other: Any) -> None:
        # Each new parameter is rounded once, by half a unit in its last place.
        ulp = np.spacing(np.maximum(np.abs(one), np.abs(other)))
        assert (np.abs((other - old) - (one - old) / 2) <= ulp).all()
        assert (one != old).any()

    jax.tree.map(compare, before, whole.params, half.params)
    jax.tree.map(np.testing.assert_array_equal, whole.opt_state, half.opt_state)


@pytest.mark.parametrize("compute", ["fp32", pytest.param("bf16", marks=pytest.mark.slow), FP16])
def test_shard_map_and_pmap(corpus: Path, compute: str) -> None:
    """And each of them compiles it once."""
    config = make_config(corpus, compute=compute, all_reduce="compute")
    found = []
    for way in typing.get_args(parallel.MappedBy):
        trainer = Trainer(config, 4, mapped_by=way)
        found.append((trainer.run(0, 5), trainer.host_state, trainer.host_carry))
        assert (trainer.host_state.step, trainer.traces) == (5, 1)
        trainer.assert_replicas_are_equal()
    jax.tree.map(np.testing.assert_array_equal, *found)


def rated(kind: type[Architecture]) -> dict[str, Any]:
    """Masks of dropout, and ratings, which go with the rows, not with who reads them."""
    model = kind(hidden=24, embedding=8, layers=2, rating_head=True)
    return {"model": model, "data__shuffle_shards": True, "train__dropout": 0.3}


FP32 = {"precision": Precision(compute="fp32", all_reduce="compute")}
HALF = {"precision": Precision(compute="fp16", all_reduce="compute")}
# A loss over a quarter of the rows has gradients, and so maxima, four times as large.
FP8 = {"precision": Precision(compute="bf16", recurrent="fp8_emulated")}


@pytest.mark.parametrize(
    ("changes", "devices", "micro_batches", "steps", "terms", "unit"),
    [
        (FP32, 4, 1, 20, TERMS, "fp32"),
        (FP32, 1, 4, 20, TERMS, "fp32"),
        pytest.param(FP32, 2, 2, 20, TERMS, "fp32", marks=pytest.mark.slow),
        pytest.param(HALF, 2, 2, 20, TERMS, "fp16", marks=[pytest.mark.slow, pytest.mark.fp16]),
        # Without optimization XLA converts E4M3 by way of fp16.
        pytest.param(FP8, 2, 2, 3, 1, "bfloat16", marks=pytest.mark.fp16),
        pytest.param(rated(Model), 2, 2, 10, 2 * TERMS, "fp32", marks=pytest.mark.slow),
        pytest.param(rated(BERT), 2, 2, 10, 2 * TERMS, "fp32", marks=pytest.mark.slow),
    ],
)
def test_devices_and_micro_batches(
    changes, devices, micro_batches, steps, terms, unit, corpus, rated_corpus
) -> None:
    """1 x 8 rows = 4 x 2 rows = 2 x 2 rows on two devices, the carry included."""
    config = configs.vary(make_config(rated_corpus if "model" in changes else corpus), **changes)
    whole = started(config, 1)
    parts = started(config, devices, micro_batches)
    expected = whole.run(0, steps).tally
    found = parts.run(0, steps).tally
    assert (expected["labels"] > 0) == config.model.rating_head
    state = parts.host_state
    other = whole.host_state
    if changes == FP8:
        assert (np.asarray(state.maxima_U3[:3]) > 0).all()
        assert not np.asarray(state.maxima_U3[3:]).any()
    for field in ("params", "opt_state", "maxima_U3"):
        assert_close(getattr(state, field), getattr(other, field), steps * terms, unit)
    assert_close(parts.host_carry, whole.host_carry, steps * terms, unit)
    for name in ("loss", "label_loss"):
        assert_close(found[name], expected[name], steps * terms, unit)
    parts.assert_replicas_are_equal()


def test_loss_of_labels(random) -> None:
    """And its gradient, in NumPy; a missing label, whatever its logits, changes nothing."""
    logits_BTK = (20 * random.normal(size=(3, 5, 4))).astype(np.float32)
    labels_BT = random.choice(np.array([0, 1, 2, 3, np.nan], np.float32), (3, 5))
    labels_BT[0, 0] = np.nan
    known_BT = ~np.isnan(labels_BT)

    def loss(logits_BTK: Any) -> Any:
        return label_losses(logits_BTK, labels_BT)

    (found, count), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(logits_BTK)
    x = logits_BTK.astype(np.float64)
    is_class_BTK = labels_BT[..., None] == np.arange(4)
    shares_BTK = np.exp(x - x.max(-1, keepdims=True))
    shares_BTK /= shares_BTK.sum(-1, keepdims=True)
    nats_BT = -np.log(shares_BTK, where=is_class_BTK, out=np.zeros_like(x)).sum(-1)
    # A sum of four classes, and of 15 bytes; a few operations for each term.
    assert_close(found, nats_BT.mean(), terms=4 + 15 + 8)
    assert_close(count, known_BT.mean(), terms=15)
    expected = known_BT[..., None] * (shares_BTK - is_class_BTK) / 15
    assert_close(gradient, expected, terms=4 + 15 + 8)
    assert not np.asarray(gradient)[~known_BT].any()
    assert loss(np.where(known_BT[..., None], logits_BTK, -3))[0] == found
    # A rating is one label, with a squared error.
    rating, number = label_losses(logits_BTK[..., :1], labels_BT)
    squares_BT = np.where(known_BT, (x[..., 0] - labels_BT) ** 2, 0)
    assert_close(rating, squares_BT.mean(), terms=15 + 8)
    assert_close(number, known_BT.mean(), terms=15)


@pytest.mark.slow
def test_dropout(corpus: Path) -> None:
    """The decoder's gradient is the outer product of what is kept and the error: one row tells."""
    one_row = {"data__batch": 1, "model__hidden": 400, "optimizer__clip_norm": None}
    config = configs.vary(make_config(corpus), **one_row)
    dropping = configs.vary(config, train__dropout=0.25)
    gradients = []
    for chosen, steps in ((config, (0,)), (dropping, (0, 1))):
        trainer = Trainer(chosen, 1)
        first = trainer.host_state
        for step in steps:
            trainer.restart().state = trainer.devices.replicate(first._replace(step=np.int32(step)))
            trainer.take(trainer.stream.batch(0))
            # Adam's first moment is a tenth of its first gradient.
            gradients.append(trainer.host_state.opt_state[1].mu["decoder_kernel"])
    whole_H, *dropped = np.linalg.norm(gradients, axis=2)
    kept = []
    for norm_H in dropped:
        kept_H = norm_H > 0
        kept.append(kept_H)
        assert 0.68 < kept_H.mean() < 0.82
        # What is kept is larger by 1 / (1 - 0.25); the errors differ a little, as the logits do.
        assert np.median(norm_H[kept_H] / whole_H[kept_H]) == pytest.approx(4 / 3, rel=0.05)
    assert 0.5 < (kept[0] == kept[1]).mean() < 0.75  # 0.625 of independent draws


@pytest.mark.slow
def test_noise_of_the_gradient(corpus: Path, plain: Trainer) -> None:
    """Four parts, on four devices or one after the other, against the formulas in NumPy."""
    config = make_config(corpus)
    found = []
    for four in (started(config, 4), started(config, 1, 4)):
        before = four.run(0, 2).tally
        after = four.run(2, 3).tally
        signal = after["gradient_signal"] - before["gradient_signal"]
        found.append((signal, after["gradient_trace"] - before["gradient_trace"]))
    plain.run(0, 2)
    batch = plain.stream.batch(2)
    params = plain.host_state.params
    carry = plain.host_carry

    @jax.jit
    @jax.grad
    def gradient(params: Any, inputs_BT: Any, targets_BT: Any, carry: Carry) -> Any:
        _, logits, *_ = plain.model.apply({"params": params}, inputs_BT, carry)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets_BT).mean()

    def square(first: int, last: int) -> float:
        given = (batch.inputs_BT, batch.targets_BT.astype(np.int32), carry)
        rows = jax.tree.map(lambda x: x[first:last], given)
        leaves = map(np.ravel, jax.tree.leaves(gradient(params, *rows)))
        numbers = np.concatenate([*leaves], dtype=np.float64)
        return float(numbers @ numbers)

    big = square(0, 8)
    small = np.mean([square(0, 2), square(2, 4), square(4, 6), square(6, 8)])
    # McCandlish et al. 2018, eqs. A.2 and A.3, with B_small = 2 and B_big = 8.
    signal = (8 * big - 2 * small) / (8 - 2)
    trace = (small - big) / (1 / 2 - 1 / 8)
    # Both are small differences of large squares.
    limit = 2 * bound(3 * TERMS) * max(big, small)
    for found_signal, found_trace in found:
        assert abs(found_signal - signal) < limit * (8 + 2) / (8 - 2)
        assert abs(found_trace - trace) < limit * 2 / (1 / 2 - 1 / 8)
    assert np.isnan(plain.run(2, 3).tally["gradient_trace"])


@pytest.mark.parametrize("recompute_every", [None, pytest.param(4, marks=pytest.mark.slow)])
def test_one_all_reduce(corpus, recompute_every, monkeypatch):
    """Autodiff of a scan can put an all-reduce into its loop, and run it once a byte."""
    monkeypatch.setattr(replicas, "LEAST_BYTES", 1)
    lowered = Trainer(make_config(corpus), 4, 2, recompute_every).lower()
    # All gradients are ready at once; recomputation has barriers of its own.
    assert recompute_every or "optimization_barrier" not in lowered.as_text()
    program = lowered.compile().as_text()
    entry = program[program.index("\nENTRY") :]
    entry = entry[: entry.index("\n}")]
    # An instruction "name = shape operation(operands)", of a computation of its own or the entry.
    operations = r" (?:all-(?:reduce|gather|to-all)|reduce-scatter|collective-permute)(?:-start)?\("
    everywhere = re.findall(operations, program)
    at_the_top = re.findall(operations, entry)
    assert at_the_top == everywhere == [" all-reduce("]
    assert " while(" in entry


def test_early_all_reduces(corpus, monkeypatch) -> None:
    monkeypatch.setattr(replicas, "LEAST_BYTES", 1)
    # The decoder's, Wmh's, Wh's, and the rest.
    assert Trainer(make_config(corpus), 4).lower().as_text().count("optimization_barrier") == 3


@pytest.mark.fp16
def test_overflow(corpus: Path) -> None:
    trainer = started(make_config(corpus, compute="fp16", initial_loss_scale=1024.0), 4)
    trainer.run(0, 6)
    before = trainer.host_state
    carry_before = trainer.host_carry
    # Real text does not overflow a sound model when it is asked to: a hidden state past fp16's
    # range does, at the first product of the next step.
    broken = jax.tree.map(np.array, carry_before)
    broken.h[4] = 1e5
    trainer.carry = trainer.devices.split_rows(broken)
    # The last row starts a shard; the one that overflows does not.
    batch = trainer.stream.batch(6)._replace(reset_B=np.arange(8) == 7)
    metrics = trainer.take(batch)

    after = trainer.host_state
    assert (metrics.tally["skipped"], metrics.consecutive_skips) == (1, 1)
    assert (after.step, after.applied) == (7, 6)
    assert (before.loss_scale.scale, after.loss_scale.scale) == (1024, 512)
    assert after.loss_scale.clean == 0
    for name in ("params", "opt_state"):
        same = jax.tree.map(np.array_equal, getattr(before, name), getattr(after, name))
        assert all(jax.tree.leaves(same))
    trainer.assert_replicas_are_equal()
    # The carry of the healthy rows has not moved, and holds no NaN; the last row's is zero.
    healthy = np.isin(np.arange(8), (4, 7), invert=True)
    np.testing.assert_array_equal(trainer.host_carry.c[healthy], carry_before.c[healthy])
    assert np.isfinite(trainer.host_carry.h).all()
    assert not trainer.host_carry.c[7].any()

    # The overflowing row starts a shard; the run goes on, at the rate of the updates applied.
    following = trainer.take(trainer.stream.batch(7)._replace(reset_B=np.arange(8) == 4))
    assert (following.tally["skipped"], following.consecutive_skips) == (1, 0)
    assert np.isfinite(following.tally["loss"])
    last = trainer.run(8, 12)
    for one, applied in ((metrics, 6), (following, 6), (last, 10)):
        assert_close(one.tally["learning_rate"], 5e-3 * (1 - applied / 200), terms=8)
    assert trainer.host_state.applied == 11
    trainer.assert_replicas_are_equal()


@pytest.mark.fp16
def test_overflow_of_the_gradient(corpus: Path) -> None:
    trainer = started(make_config(corpus, compute="fp16", initial_loss_scale=1024.0), 4)
    state = trainer.host_state
    scale = state.loss_scale._replace(scale=np.float32(2.0**24))
    trainer.state = trainer.devices.replicate(state._replace(loss_scale=scale))
    metrics = trainer.run(0, 1)
    assert np.isfinite(metrics.loss)
    assert metrics.tally["skipped"] == 1


def test_reset(plain: Trainer) -> None:
    batch = plain.stream.batch(0)._replace(reset_B=np.ones(8, bool))
    carries = [plain.host_carry, jax.tree.map(np.ones_like, plain.host_carry)]
    found = []
    for carry in carries:
        plain.restart().carry = plain.devices.split_rows(carry)
        found.append((plain.take(batch).tally["loss"], plain.host_carry))
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_tally_of_a_line(plain: Trainer) -> None:
    losses = []
    for step, updates in enumerate((1, 2, 3, 4, 5, 1, 2)):
        tally = plain.run(step, step + 1).tally
        assert tally["updates"] == updates
        losses.append(tally["loss"])
    assert losses[5] < losses[4] / 4


def test_step_without_a_target(plain: Trainer) -> None:
    """The last one of an epoch, if all rows that still read have one byte left."""
    before = plain.run(0, 2)
    params = plain.host_state.params
    nothing = {"targets_B": np.zeros(8, np.int32), "active_fraction_B": np.zeros(8, np.float32)}
    after = plain.take(plain.stream.batch(2)._replace(**nothing))
    for name in ("loss", "updates", "grad_norm"):
        assert after.tally[name] == before.tally[name]
    jax.tree.map(np.testing.assert_array_equal, plain.host_state.params, params)


@pytest.mark.parametrize(
    ("chosen", "finite", "expected"),
    [
        # It halves at an overflow and doubles after three clean updates.
        ({"initial_loss_scale": 8.0, "growth_interval": 3}, "yynyyyy", [8, 8, 4, 4, 4, 8, 8]),
        ({"initial_loss_scale": 2.0}, "nnn", [1, 1, 1]),
        ({"initial_loss_scale": 2.0**23, "max_loss_scale": 2.0**24}, "yyy", [2.0**24] * 3),
        ({"compute": "fp32"}, "yny", [1, 1, 1]),
        ({"compute": "bf16"}, "yny", [1, 1, 1]),
    ],
)
def test_loss_scale(chosen: dict[str, Any], finite: str, expected: list[float]) -> None:
    precision = Precision(**{"compute": "fp16", "growth_interval": 1} | chosen)
    scale = fresh(Config(model=Model(hidden=4, embedding=4), precision=precision)).loss_scale
    adjust = jax.jit(adjust_loss_scale, static_argnums=2)
    for letter, value in zip(finite, expected, strict=True):
        scale = adjust(scale, jnp.bool_(letter == "y"), precision)
        assert (scale.scale.dtype, scale.clean.dtype) == (jnp.float32, jnp.int32)
        assert scale.scale == value
