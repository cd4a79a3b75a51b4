"""The training step on one and on four devices: equality, overflow, one compilation."""

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlstm_jax import config as configs
from mlstm_jax.config import BERT, Config, Data, Model, Optimizer, Precision, Train
from mlstm_jax.data.corpus import open_corpus
from mlstm_jax.data.stream import Batch
from mlstm_jax.errors import UserError
from mlstm_jax.model.architecture import Architecture, Carry
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.model.pallas import INTERPRETED
from mlstm_jax.model.recurrence import SEPARATE, Loops
from mlstm_jax.training import begin, optimizer, parallel, schedule
from mlstm_jax.training.objective import label_losses
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.phases import train_stream
from mlstm_jax.training.state import TrainState
from mlstm_jax.training.step import StepMetrics, make_train_step
from mlstm_jax.transfer import finetune
from mlstm_jax.transfer.labels import Labelled
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
    model = LanguageModel(config.model, config.precision)
    tx = optimizer.build(config.optimizer, config.model, lambda count: 0.0)
    return begin.fresh_state(config, model, tx, None)


class Trainer:
    """A few steps, without the loop around them."""

    def __init__(
        self,
        config: Config,
        devices: int,
        recompute_every: int | None = None,
        micro_batches: int = 1,
        loops: Loops | None = None,
        without_pmap: bool = False,
    ) -> None:
        train = dataclasses.replace(config.train, micro_batches=micro_batches)
        config = dataclasses.replace(config, train=train)
        self.devices = Parallel(jax.local_devices()[:devices])
        model = LanguageModel(config.model, config.precision, recompute_every, loops)
        rate = schedule.learning_rate(config.optimizer, config.data.batch, 200)
        tx = optimizer.build(config.optimizer, config.model, rate)
        self.stream = train_stream(config, open_corpus(Path(config.data.corpus)))
        self.traces = 0
        step = make_train_step(config, model, tx, rate, parallel.AXIS)

        def counted(*arguments: Any) -> Any:
            self.traces += 1
            return step(*arguments)

        self.step = (
            parallel.by_shard_map(counted, self.devices.mesh, donate=(0, 1))
            if without_pmap
            else self.devices.map(counted, donate=(0, 1))
        )
        self.go_on = self.devices.replicate(np.float32(0))
        self.state = self.devices.replicate(
            fresh(dataclasses.replace(config, train=Train(seed=train.seed)))
        )
        self.carry = self.devices.split_rows(model.init_carry(config.data.batch))

    def run(self, first: int, last: int) -> StepMetrics:
        with jax.transfer_guard("disallow"):
            for step in range(first, last):
                metrics = self.take(self.stream.batch(step))
        return metrics

    def take(self, batch: Batch) -> StepMetrics:
        rows = self.devices.split_rows(batch)
        self.state, self.carry, metrics = self.step(self.state, self.carry, rows, self.go_on)
        return self.devices.unreplicate(metrics)

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


# Of an update: 8 rows of 16 steps, and there and back through the products of 24 units.
TERMS = 8 * 16 + 2 * (2 * 24 + 8)


@pytest.mark.parametrize("name", ["adam", "lamb", "lars", "muon"])
def test_an_update_from_half_of_the_rows_is_half_as_large(corpus: Path, name: Any) -> None:
    config = make_config(corpus)
    config = dataclasses.replace(config, optimizer=Optimizer(name=name, learning_rate=5e-3))
    trainers = [Trainer(config, 1) for _ in range(2)]
    before = trainers[0].host_state.params
    batch = trainers[0].stream.batch(0)
    for trainer, reading in zip(trainers, (1, 0.5), strict=True):
        trainer.take(batch._replace(active_fraction_B=np.full(8, reading, np.float32)))
    whole, half = (trainer.host_state for trainer in trainers)

    def compare(old: Any, one: Any, other: Any) -> None:
        # Each new parameter is rounded once, by half a unit in its last place.
        ulp = np.spacing(np.maximum(np.abs(one), np.abs(other)))
        assert (np.abs((other - old) - (one - old) / 2) <= ulp).all()
        assert (one != old).any()

    jax.tree.map(compare, before, whole.params, half.params)
    jax.tree.map(np.testing.assert_array_equal, whole.opt_state, half.opt_state)


def test_four_devices_equal_one_after_twenty_steps(corpus: Path) -> None:
    trainers = [Trainer(make_config(corpus), devices) for devices in (1, 4)]
    metrics = [trainer.run(0, 20) for trainer in trainers]
    one, four = trainers
    for what in ("params", "opt_state"):
        found, expected = (getattr(trainer.host_state, what) for trainer in (four, one))
        assert_close(found, expected, 20 * TERMS)
    assert_close(four.host_carry, one.host_carry, 20 * TERMS)
    assert_close(metrics[1].tally.loss, metrics[0].tally.loss, 20 * TERMS)
    four.assert_replicas_are_equal()


@pytest.mark.parametrize("compute", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_shard_map_takes_the_step_of_pmap_to_the_bit(corpus: Path, compute: str) -> None:
    config = make_config(corpus, compute=compute, all_reduce="compute")
    trainers = [Trainer(config, 4, without_pmap=without) for without in (False, True)]
    metrics = [trainer.run(0, 5) for trainer in trainers]
    found, expected = [
        (trainer.host_state, trainer.host_carry, one)
        for trainer, one in zip(trainers, metrics, strict=True)
    ]
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert found[0].step == 5
    for trainer in trainers:
        assert trainer.traces == 1
        trainer.assert_replicas_are_equal()


@pytest.mark.parametrize(
    "compute",
    [
        "fp32",
        pytest.param("bf16", marks=pytest.mark.slow),
        FP16,
    ],
)
def test_the_step_compiles_once_in_every_type(corpus: Path, compute: str) -> None:
    trainer = Trainer(make_config(corpus, compute=compute, all_reduce="compute"), 4)
    trainer.run(0, 4)
    assert trainer.traces == 1
    trainer.assert_replicas_are_equal()


@pytest.mark.parametrize(
    ("compute", "devices", "micro_batches"),
    [
        ("fp32", 1, 4),
        pytest.param("fp32", 2, 2, marks=pytest.mark.slow),
        pytest.param("fp16", 1, 4, marks=[pytest.mark.slow, pytest.mark.fp16]),
        pytest.param("fp16", 2, 2, marks=[pytest.mark.slow, pytest.mark.fp16]),
    ],
)
def test_micro_batches_make_one_update(
    compute: str, devices: int, micro_batches: int, corpus: Path
) -> None:
    """1 x 8 rows = 4 x 2 rows on one device = 2 x 2 rows on two, the carry included."""
    config = make_config(corpus, compute=compute)
    whole = Trainer(config, 1)
    expected = whole.run(0, 20)
    parts = Trainer(config, devices, micro_batches=micro_batches)
    metrics = parts.run(0, 20)
    assert_close(parts.host_state.params, whole.host_state.params, 20 * TERMS, compute)
    assert_close(parts.host_carry, whole.host_carry, 20 * TERMS, compute)
    assert_close(metrics.tally.loss, expected.tally.loss, 20 * TERMS, compute)


def with_options(
    corpus: Path, steps: int = 200, kind: type[Architecture] = Model, **train: Any
) -> Config:
    """Two layers, shuffling, dropout and the rating's objective, all at once."""
    config = make_config(corpus)
    return dataclasses.replace(
        config,
        model=kind(hidden=24, embedding=8, layers=2, rating_head=True),
        data=dataclasses.replace(config.data, shuffle_shards=True),
        train=Train(steps=steps, log_every=5, dropout=0.3, **train),
    )


def test_the_loss_of_several_labels_is_the_mean_of_those_a_document_has(
    random: np.random.Generator,
) -> None:
    """And its gradient, in NumPy; a missing label, whatever its logit, changes nothing."""
    shape = (3, 5, 4)
    logits_BTK = (20 * random.normal(size=shape)).astype(np.float32)
    labels_BTK = random.choice(np.array([0, 1, np.nan], np.float32), shape)
    labels_BTK[0, 0] = np.nan  # no document ends here
    labels_BTK[0, 1] = (1, np.nan, np.nan, np.nan)
    known_BTK = ~np.isnan(labels_BTK)

    def loss(logits_BTK: Any) -> Any:
        return label_losses(logits_BTK, labels_BTK)

    (found, count), gradient = jax.value_and_grad(loss, has_aux=True)(logits_BTK)
    x = logits_BTK.astype(np.float64)
    y = np.where(known_BTK, labels_BTK, 0)
    count_BT1 = np.maximum(known_BTK.sum(-1, keepdims=True), 1)
    nats_BTK = np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0) - x * y
    each_BTK = known_BTK / count_BT1 / 15
    # A sum of four labels, and of 15 bytes; a few operations for each term.
    assert_close(found, (nats_BTK * each_BTK).sum(), terms=4 + 15 + 8)
    assert_close(count, known_BTK.any(-1).mean(), terms=15)
    assert_close(gradient, (1 / (1 + np.exp(-x)) - y) * each_BTK, terms=4 + 15 + 8)
    assert not np.asarray(gradient)[~known_BTK].any()
    other_BTK = np.where(known_BTK, logits_BTK, -3)
    assert loss(other_BTK)[0] == found


@pytest.fixture(scope="module")
def corpus_of_labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts with three labels of yes or no; a third is missing."""
    random = np.random.default_rng(0)
    texts = [f"the {word} is text {n}" for n, word in enumerate(random.choice(["a", "bb"], 400))]
    rows = [tuple(row) for row in random.integers(-1, 2, (400, 3)).tolist()]
    made = Labelled(texts, rows, ("a", "b", "c"))
    out = tmp_path_factory.mktemp("labels") / "corpus"
    finetune.write_corpus(out, made, made, made.task, "radford")
    return out


@pytest.mark.parametrize(
    ("devices", "micro_batches"), [(2, 1), pytest.param(1, 4, marks=pytest.mark.slow)]
)
def test_several_labels_go_with_the_rows_not_with_who_reads_them(
    devices: int, micro_batches: int, corpus_of_labels: Path
) -> None:
    config = make_config(corpus_of_labels)
    config = dataclasses.replace(
        config,
        model=Model(hidden=24, embedding=8, yes_no=3),
        train=Train(steps=200, log_every=5, label_weight=50),
    )
    whole = Trainer(config, 1)
    parts = Trainer(config, devices, micro_batches=micro_batches)
    metrics, found = whole.run(0, 5), parts.run(0, 5)
    assert metrics.tally.labels > 0
    assert np.abs(whole.host_state.params["label_kernel"]).max() > 0
    assert_close(parts.host_state.params, whole.host_state.params, 5 * TERMS)
    assert_close(found.tally.label_loss, metrics.tally.label_loss, 5 * TERMS)
    assert_close(found.tally.labels, metrics.tally.labels, 5 * TERMS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Model, BERT])
@pytest.mark.parametrize(("devices", "micro_batches"), [(2, 1), (1, 4)])
def test_dropout_masks_and_ratings_go_with_the_rows_not_with_who_reads_them(
    devices: int, micro_batches: int, kind: type[Architecture], rated_corpus: Path
) -> None:
    """1 x 8 rows = 4 x 2 rows on one device = 1 x 4 rows on two, and = a run resumed."""
    config = with_options(rated_corpus, kind=kind)
    whole = Trainer(config, 1)
    first, zero = whole.host_state, whole.host_carry
    metrics = whole.run(0, 10)
    assert metrics.tally.labels > 0
    parts = Trainer(config, devices, micro_batches=micro_batches)
    found = parts.run(0, 10)
    # Of two layers.
    assert_close(parts.host_state.params, whole.host_state.params, 10 * 2 * TERMS)
    assert_close(found.tally.label_loss, metrics.tally.label_loss, 10 * 2 * TERMS)
    expected = whole.host_state.params
    for state, carry, first_step, end in ((first, zero, 0, 5), (None, None, 5, 10)):
        # What a checkpoint keeps.
        state, carry = state or whole.host_state, carry or whole.host_carry
        whole.state = whole.devices.replicate(state)
        whole.carry = whole.devices.split_rows(carry)
        whole.run(first_step, end)
    jax.tree.map(np.testing.assert_array_equal, whole.host_state.params, expected)


@pytest.mark.slow
def test_dropout_leaves_out_other_units_at_every_step_and_keeps_the_mean(corpus: Path) -> None:
    """The decoder's gradient is the outer product of what is kept and the error: one row tells."""
    config = dataclasses.replace(
        make_config(corpus),
        data=Data(corpus=str(corpus), batch=1, window=16, shards=16),
        model=Model(hidden=400, embedding=8),
        optimizer=Optimizer(clip_norm=None),
    )
    dropping = dataclasses.replace(config, train=Train(steps=200, dropout=0.25))
    gradients = []
    for chosen, steps in ((config, (0,)), (dropping, (0, 1))):
        trainer = Trainer(chosen, 1)
        first, zero = trainer.host_state, trainer.host_carry
        for step in steps:
            trainer.state = trainer.devices.replicate(first._replace(step=np.int32(step)))
            trainer.carry = trainer.devices.split_rows(zero)
            trainer.take(trainer.stream.batch(0))
            # Adam's first moment is a tenth of its first gradient.
            gradients.append(trainer.host_state.opt_state[1].mu["decoder_kernel"])
    whole_H, *dropped = (np.linalg.norm(g, axis=1) for g in gradients)
    kept = [norm_H > 0 for norm_H in dropped]
    for kept_H, norm_H in zip(kept, dropped, strict=True):
        assert 0.68 < kept_H.mean() < 0.82
        # What is kept is larger by 1 / (1 - 0.25); the errors differ a little, as the logits do.
        assert np.median(norm_H[kept_H] / whole_H[kept_H]) == pytest.approx(4 / 3, rel=0.05)
    assert 0.5 < (kept[0] == kept[1]).mean() < 0.75  # 0.625 of independent draws


@pytest.mark.slow
def test_the_rating_is_learned_from_the_state_at_the_end(rated_corpus: Path) -> None:
    config = dataclasses.replace(
        make_config(rated_corpus),
        model=Model(hidden=24, embedding=8, rating_head=True),
        # So small a model finds it from some starts alone: from seed 0 it takes longer.
        train=Train(steps=200, log_every=20, label_weight=30, seed=1),
        optimizer=Optimizer(learning_rate=2e-2),
    )
    trainer = Trainer(config, 1)
    errors = []
    for first in range(0, 200, 20):
        tally = trainer.run(first, first + 20).tally
        errors.append(tally.label_loss / tally.labels)
    assert errors[0] == pytest.approx(1, abs=0.4)  # near the variance: little is known
    assert errors[-1] < 0.4


@pytest.mark.slow
def test_the_noise_of_the_gradient_is_that_of_its_parts(corpus: Path) -> None:
    """Four parts, on four devices or one after the other, against the formulas in NumPy."""
    config = make_config(corpus)
    found = []
    for four in (Trainer(config, 4), Trainer(config, 1, micro_batches=4)):
        before, after = four.run(0, 2).tally, four.run(2, 3).tally
        found.append((after.signal - before.signal, after.trace - before.trace))
    trainer = Trainer(config, 1)
    trainer.run(0, 2)
    batch, params = trainer.stream.batch(2), trainer.host_state.params
    model = LanguageModel(config.model, config.precision)
    carry = trainer.host_carry

    @jax.jit
    @jax.grad
    def gradient(params: Any, inputs_BT: Any, targets_BT: Any, carry: Carry) -> Any:
        _, logits, *_ = model.apply({"params": params}, inputs_BT, carry)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets_BT).mean()

    def square(first: int, last: int) -> float:
        given = (batch.inputs_BT, batch.targets_BT.astype(np.int32), carry)
        rows = jax.tree.map(lambda x: x[first:last], given)
        leaves = jax.tree.leaves(gradient(params, *rows))
        return sum(float((np.float64(leaf) ** 2).sum()) for leaf in leaves)

    big = square(0, 8)
    small = np.mean([square(n, n + 2) for n in range(0, 8, 2)])
    # McCandlish et al. 2018, eqs. A.2 and A.3, with B_small = 2 and B_big = 8.
    signal = (8 * big - 2 * small) / (8 - 2)
    trace = (small - big) / (1 / 2 - 1 / 8)
    # Both are small differences of large squares.
    limit = 2 * bound(3 * TERMS) * max(big, small)
    for found_signal, found_trace in found:
        assert abs(found_signal - signal) < limit * (8 + 2) / (8 - 2)
        assert abs(found_trace - trace) < limit * 2 / (1 / 2 - 1 / 8)
    assert np.isnan(trainer.run(2, 3).tally.trace)


@pytest.mark.parametrize("recompute_every", [None, pytest.param(4, marks=pytest.mark.slow)])
def test_four_devices_share_their_gradients_once_and_outside_every_loop(
    corpus: Path, recompute_every: int | None
) -> None:
    """Autodiff of a scan can put an all-reduce into its loop, and run it once a byte."""
    trainer = Trainer(make_config(corpus), 4, recompute_every, micro_batches=2)
    batch = trainer.devices.split_rows(trainer.stream.batch(0))
    program = (
        trainer.step.lower(trainer.state, trainer.carry, batch, trainer.go_on).compile().as_text()
    )
    entry = program[program.index("\nENTRY") :]
    entry = entry[: entry.index("\n}")]
    # An instruction "name = shape operation(operands)", of a computation of its own or the entry.
    operations = (
        r" (?:all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("
    )
    everywhere, at_the_top = (re.findall(operations, text) for text in (program, entry))
    assert at_the_top == everywhere == [" all-reduce("]
    assert " while(" in entry


@pytest.mark.parametrize(("micro_batches", "pieces"), [(1, 4), (2, 1)])
def test_a_large_gradient_is_sent_in_pieces_unless_all_is_ready_at_once(
    micro_batches: int, pieces: int, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "LEAST_BYTES", 1)
    trainer = Trainer(make_config(corpus), 4, micro_batches=micro_batches)
    batch = trainer.devices.split_rows(trainer.stream.batch(0))
    program = trainer.step.lower(trainer.state, trainer.carry, batch, trainer.go_on).as_text()
    # The decoder, Wmh, Wh, and the rest.
    assert 1 + program.count("optimization_barrier") == pieces


def without_resets(batch: Batch) -> Batch:
    """No row starts a shard, so that none escapes `overflow`."""
    return batch._replace(reset_B=np.zeros_like(batch.reset_B))


def overflow(trainer: Trainer, device: int) -> None:
    """Put a hidden state past fp16's range into one row of one device.

    Real text does not overflow a sound model when it is asked to; this row overflows at the first
    product of the next step, and nothing else is touched.
    """
    carry = jax.tree.map(np.array, trainer.host_carry)
    carry.h[2 * device] = 1e5
    trainer.carry = trainer.devices.split_rows(carry)


@pytest.mark.fp16
def test_an_overflow_on_one_of_four_devices_skips_one_step_everywhere(corpus: Path) -> None:
    trainer = Trainer(make_config(corpus, compute="fp16", initial_loss_scale=1024.0), 4)
    trainer.run(0, 6)
    before, carry_before = trainer.host_state, trainer.host_carry
    overflow(trainer, device=2)

    metrics = trainer.take(without_resets(trainer.stream.batch(6)))

    after = trainer.host_state
    assert (metrics.skipped, metrics.consecutive_skips) == (1, 1)
    assert (after.step, after.applied) == (7, 6)
    assert (before.loss_scale.scale, after.loss_scale.scale) == (1024, 512)
    assert after.loss_scale.clean == 0
    for name in ("params", "opt_state"):
        same = jax.tree.map(np.array_equal, getattr(before, name), getattr(after, name))
        assert all(jax.tree.leaves(same))
    trainer.assert_replicas_are_equal()
    # The carry of the healthy rows has not moved, and holds no NaN.
    healthy = np.arange(8) != 4
    np.testing.assert_array_equal(trainer.host_carry.c[healthy], carry_before.c[healthy])
    assert np.isfinite(trainer.host_carry.h).all()

    # The overflowing row starts a shard; the run goes on.
    batch = trainer.stream.batch(7)
    metrics = trainer.take(batch._replace(reset_B=np.arange(8) == 4))
    assert (metrics.skipped, metrics.consecutive_skips) == (1, 0)
    assert metrics.applied == 7
    assert np.isfinite(metrics.tally.loss)
    trainer.run(8, 12)
    assert trainer.host_state.applied == 11
    trainer.assert_replicas_are_equal()


@pytest.mark.fp16
def test_a_gradient_that_overflows_is_skipped_though_the_loss_is_finite(corpus: Path) -> None:
    trainer = Trainer(make_config(corpus, compute="fp16", initial_loss_scale=2.0**24), 4)
    metrics = trainer.run(0, 1)
    assert np.isfinite(metrics.loss)
    assert metrics.skipped == 1


@pytest.mark.fp16
def test_a_skip_keeps_the_zero_state_of_rows_that_start_a_shard(corpus: Path) -> None:
    trainer = Trainer(make_config(corpus, compute="fp16"), 4)
    trainer.run(0, 3)
    overflow(trainer, device=1)
    batch = trainer.stream.batch(3)._replace(reset_B=np.arange(8) == 7)
    trainer.take(batch)
    assert not trainer.host_carry.c[7].any()
    assert trainer.host_carry.c[6].any()


@pytest.mark.fp16
def test_the_learning_rate_counts_applied_updates(corpus: Path) -> None:
    trainer = Trainer(make_config(corpus, compute="fp16"), 4)
    first = trainer.run(0, 3).learning_rate
    overflow(trainer, device=1)
    skipped = trainer.take(without_resets(trainer.stream.batch(3))).learning_rate
    trainer.carry = jax.tree.map(jnp.zeros_like, trainer.carry)
    following = trainer.run(4, 5).learning_rate
    assert_close(np.array([first, skipped, following]), [0.00495, 0.004925, 0.004925], terms=8)


def test_a_reset_is_a_fresh_carry(corpus: Path) -> None:
    config = make_config(corpus)
    used, fresh = Trainer(config, 1), Trainer(config, 1)
    carry = jax.tree.map(lambda x: np.ones_like(x), used.host_carry)
    used.carry = used.devices.split_rows(carry)
    batch = used.stream.batch(0)._replace(reset_B=np.ones(8, bool))
    losses = [trainer.take(batch).tally.loss for trainer in (used, fresh)]
    assert losses[0] == losses[1]
    jax.tree.map(np.testing.assert_array_equal, used.host_carry, fresh.host_carry)


def test_the_tally_is_the_mean_of_a_line(corpus: Path) -> None:
    trainer = Trainer(make_config(corpus), 1)
    sums = [trainer.run(step, step + 1).tally for step in range(7)]
    assert [int(tally.updates) for tally in sums] == [1, 2, 3, 4, 5, 1, 2]
    assert float(sums[5].loss) < float(sums[4].loss) / 4


class Trained(NamedTuple):
    loss: float
    skipped: int


@pytest.mark.slow
@pytest.mark.fp16
def test_half_types_learn_as_float32_does(corpus: Path) -> None:
    results = {}
    for compute in ("fp32", "bf16", "fp16"):
        trainer = Trainer(make_config(corpus, compute=compute), 4)
        metrics = trainer.run(0, 150)
        results[compute] = Trained(float(metrics.tally.loss) / 5, int(metrics.skipped))
    assert results["fp32"].loss < 2.5  # from 5.5
    assert abs(results["bf16"].loss - results["fp32"].loss) < 0.02
    assert abs(results["fp16"].loss - results["fp32"].loss) < 0.02
    assert results["fp32"].skipped == results["bf16"].skipped == 0


def test_rows_that_devices_cannot_share_are_refused(corpus: Path) -> None:
    config = make_config(corpus)
    with pytest.raises(UserError, match=r"data\.batch is 8, which 3 devices"):
        configs.resolve_batch(config, 3)


@pytest.mark.slow
def test_a_step_by_our_own_kernels_is_that_by_xla_s(corpus: Path) -> None:
    """Two devices, micro-batches, five steps; Pallas's interpreter runs the kernels here."""
    config = make_config(corpus)
    losses = [
        [float(trainer.run(step, step + 1).loss) for step in range(5)]
        for trainer in (
            Trainer(config, 2, micro_batches=2, loops=loops) for loops in (SEPARATE, INTERPRETED)
        )
    ]
    assert losses[0][4] < losses[0][0]
    # Adam makes of a gradient near zero a step of the rate, whichever sign it has.
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
