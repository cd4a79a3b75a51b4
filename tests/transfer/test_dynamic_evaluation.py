"""Dynamic evaluation: its law, its update, its choice, and what the command says."""

import hashlib
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlstm_jax import cli
from mlstm_jax.config import Precision
from mlstm_jax.data.corpus import Split, open_corpus
from mlstm_jax.data.evaluation_stream import EvaluationBatch
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.run import Run, load_run
from mlstm_jax.training import dynamic_evaluation
from mlstm_jax.training.adapting_step import Adapting, Rule, Setting, make_adapting_step
from mlstm_jax.training.dynamic_evaluation import STATIC, DynamicEvaluator, DynamicScore, best, grid
from mlstm_jax.training.evaluation import Evaluator
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.state import init_loss_scale
from tests import splits
from tests.marks import FP16
from tests.tolerance import assert_close, bound

numeric = pytest.mark.numeric

WINDOW = 32  # of the run
# Of a loss and its gradient: there and back through the products of two layers of 64 units.
TERMS = 2 * 2 * (2 * 64 + 16)


def make_split(lines: list[str], name: str = "test") -> Split:
    texts = [line.encode() for line in lines]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.uint64)
    data = np.frombuffer(b"".join(texts), np.uint8)
    return splits.make_split(data, offsets, name=name)


def nonsense(seed: int, lines: int) -> list[str]:
    """Sentences of a vocabulary that the run has never met."""
    words = ["QUUX", "ZAX!", "KRRP", "WYVVLE", "#33#", "FJORDH", "XYLQ"]
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(words, 6)) + "\n" for _ in range(lines)]


def make_evaluator(run: Run, rows: int = 1, **other: Any) -> DynamicEvaluator:
    model = other.pop("model", run.model)
    device = Parallel(jax.local_devices()[:1])
    return DynamicEvaluator(model, run.params, device, window=WINDOW, rows=rows, **other)


def of_precision(run: Run, compute: Any) -> LanguageModel:
    return LanguageModel(run.config.model, Precision(compute=compute))


@pytest.fixture(scope="module")
def shifted(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of corpora that are alike but for their test text."""
    folder = tmp_path_factory.mktemp("shifted")
    texts = {
        "train": text_file.read_text(encoding="utf-8").splitlines(keepends=True)[:200],
        "valid": nonsense(1, 60),
        "test": nonsense(2, 60),
        "other": [line.lower() for line in nonsense(3, 60)],
    }
    for name, lines in texts.items():
        (folder / f"{name}.txt").write_text("".join(lines))
    for name in ("test", "other"):
        given = [f"--{split} {folder}/{split}.txt" for split in ("train", "valid")]
        command = f"prepare {' '.join(given)} --test {folder}/{name}.txt --clean none"
        cli.main([*command.split(), "--out", str(folder / f"with_{name}")])
    return folder


@numeric
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", ["rms", "sgd"])
def test_no_byte_is_scored_by_parameters_that_have_read_it(run: Run, name: str, rows: int) -> None:
    """Another byte changes its own score and later ones, and no earlier one by a single bit."""
    evaluator = make_evaluator(run, rows)
    lines = nonsense(0, 32)
    rule = evaluator.sgd() if name == "sgd" else evaluator.rms(evaluator.stream(make_split(lines)))
    setting = Setting(0.1 if name == "sgd" else 3e-3, 0.01)

    def scores(split: Split) -> np.ndarray:
        stream = evaluator.stream(split)
        assert stream.rows == rows
        windows = [window.nats_BT for window in evaluator.windows(stream, rule, setting)]
        return np.concatenate(windows, axis=1)

    split = make_split(lines)
    before_BS = scores(split)
    static_BS = np.concatenate(
        [w.nats_BT for w in evaluator.windows(evaluator.stream(split), rule, STATIC)], axis=1
    )
    np.testing.assert_array_equal(before_BS[:, :WINDOW], static_BS[:, :WINDOW])
    assert (before_BS[:, WINDOW : 2 * WINDOW] != static_BS[:, WINDOW : 2 * WINDOW]).all()
    for place in (40, 64, 65, 150):  # of the first row: within windows and at their ends
        data = split.bytes[:]
        data[place] = ord("e")
        after_BS = scores(splits.make_split(data, split.offsets, name="test"))
        same_BS = after_BS == before_BS
        window = (place - 1) // WINDOW
        assert same_BS[:, : window * WINDOW].all()
        # In its own window the other rows, too, are scored before it is learned from.
        assert same_BS[1:, : (window + 1) * WINDOW].all()
        assert same_BS[0, : place - 1].all()
        assert not same_BS[0, place - 1]
        assert not same_BS[:, (window + 1) * WINDOW : (window + 2) * WINDOW].any()


@numeric
@pytest.mark.parametrize("compute", ["fp32", pytest.param("bf16", marks=pytest.mark.slow), FP16])
@pytest.mark.parametrize("stop", [None, 3])
def test_rate_0_gives_what_evaluate_gives(run: Run, compute: str, stop: int | None) -> None:
    """In sixteen rows, on four devices and on one: the sums are in another order."""
    model, split = of_precision(run, compute), make_split(nonsense(0, 100))
    devices = Parallel(jax.local_devices())
    plain = Evaluator(model, split, WINDOW, devices, stop)(devices.replicate(run.params))
    evaluator = make_evaluator(run, 16, model=model, stop=stop)
    found = evaluator(evaluator.stream(split), evaluator.sgd(), STATIC)
    assert found.bytes_scored == plain.bytes_scored
    assert found.loss == pytest.approx(plain.loss, rel=bound(TERMS + 16 * WINDOW, compute))


def test_rate_0_gives_what_a_forward_pass_gives_byte_by_byte(run: Run) -> None:
    split = make_split(nonsense(0, 8))
    evaluator = make_evaluator(run)
    found_BT, carry = [], run.model.init_carry(1)
    stream = evaluator.stream(split)
    forward = jax.jit(lambda batch, carry: run.model.apply({"params": run.params}, batch, carry))
    windows = evaluator.windows(stream, evaluator.sgd(), STATIC)
    for step, window in enumerate(windows):
        batch = stream.batch(step, 1)
        read = forward(batch.inputs_BT, carry)
        carry = read.carry
        nats_BT = optax.softmax_cross_entropy_with_integer_labels(
            read.logits_BTV, batch.targets_BT.astype(np.int32)
        )
        found_BT.append(window.nats_BT)
        expected_BT = np.where(batch.mask_BT, nats_BT, 0)
        # Of a logarithm of 256 summands.
        assert_close(window.nats_BT, expected_BT, terms=256)
    assert np.count_nonzero(found_BT) == stream.scored == len(split.bytes) - 1


@numeric
def test_one_step_is_that_of_numpy(run: Run, random: np.random.Generator) -> None:
    """θ − η g / (r + ε) + min(1, λ r / mean r) (θ_0 − θ), of a window that is not full."""
    trained, model = run.params, run.model
    params = jax.tree.map(lambda p: p + random.normal(0, 0.01, p.shape).astype(np.float32), trained)
    r = jax.tree.map(lambda p: random.exponential(1e-3, p.shape).astype(np.float32), trained)
    mean, epsilon, setting = np.float32(1e-3), np.float32(1e-4), Setting(3e-3, 0.5)
    bytes_BT = random.integers(97, 122, (2, WINDOW + 1)).astype(np.uint8)
    mask_BT = np.ones((2, WINDOW), np.bool_)
    mask_BT[1, 20:] = False
    reset_B, window_B = np.array([True, True]), np.arange(2, dtype=np.uint32)
    batch = EvaluationBatch(bytes_BT[:, :-1], bytes_BT[:, 1:], mask_BT, reset_B, window_B)

    def loss(params: Any) -> jax.Array:
        logits_BTV = model.apply({"params": params}, batch.inputs_BT, model.init_carry(2))[1]
        nats_BT = optax.softmax_cross_entropy_with_integer_labels(
            logits_BTV, batch.targets_BT.astype(np.int32)
        )
        return jnp.sum(nats_BT * mask_BT) / (2 * WINDOW)

    cost, gradient = jax.jit(jax.value_and_grad(loss))(params)

    def updated(p: Any, p0: Any, g: Any, r: Any) -> np.ndarray:
        p, p0, g, r = (np.asarray(x, np.float64) for x in (p, p0, g, r))
        back = np.minimum(1, setting.decay * r / mean) * (p0 - p)
        return p - setting.rate * g / (r + epsilon) + back

    expected = jax.tree.map(updated, params, trained, gradient, r)
    assert any((setting.decay * leaf / mean > 1).any() for leaf in jax.tree.leaves(r))
    adapting, _, window = jax.jit(make_adapting_step(model))(
        Adapting(params, init_loss_scale(model.precision)),
        model.init_carry(2),
        trained,
        Rule(r, mean, epsilon),
        Setting(*map(np.float32, setting)),
        batch,
    )
    # The carry of before is not read: the rows begin.
    assert_close(adapting.params, expected, TERMS + 2 * WINDOW)
    assert_close(np.sum(window.nats_BT) / (2 * WINDOW), cost, TERMS + 2 * WINDOW)
    assert not window.skipped


@numeric
def test_statistics_are_the_mean_square_of_gradients(run: Run) -> None:
    evaluator, split = make_evaluator(run), make_split(nonsense(0, 5), "train")
    stream = evaluator.stream(split)
    rule = jax.tree.map(lambda x: np.asarray(x)[0], evaluator.rms(stream))

    @jax.jit
    def gradient(batch: EvaluationBatch, carry: Any) -> Any:
        def loss(params: Any) -> Any:
            read = run.model.apply({"params": params}, batch.inputs_BT, carry)
            nats_BT = optax.softmax_cross_entropy_with_integer_labels(
                read.logits_BTV, batch.targets_BT.astype(jnp.int32)
            )
            return jnp.mean(nats_BT * batch.mask_BT), read.carry

        return jax.grad(loss, has_aux=True)(run.params)

    carry, gradients = run.model.init_carry(1), []
    for step in range(stream.steps):
        found, carry = gradient(stream.batch(step, 1), carry)
        gradients.append(found)
    r = jax.tree.map(lambda *g: np.sqrt(np.mean(np.square(g), axis=0)), *gradients)
    assert_close(rule.r, r, TERMS + WINDOW)
    mean = np.mean(np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(r)]))
    assert rule.mean == pytest.approx(mean, rel=bound(TERMS + WINDOW))
    assert rule.epsilon == pytest.approx(dynamic_evaluation.EPSILON * mean, rel=1e-4)


@pytest.mark.parametrize("compute", ["fp32", pytest.param("bf16", marks=pytest.mark.slow), FP16])
@pytest.mark.parametrize("rows", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_it_learns_a_vocabulary_that_the_model_never_met(
    run: Run, corpus: Path, compute: str, rows: int
) -> None:
    model = of_precision(run, compute)
    evaluator = make_evaluator(run, rows, model=model)
    stream = evaluator.stream(make_split(nonsense(0, 100)))
    rule = evaluator.rms(evaluator.stream(open_corpus(corpus).split("train")))

    def nats(setting: Setting) -> np.ndarray:
        windows = evaluator.windows(stream, rule, setting)
        return np.array([window.nats_BT.sum() for window in windows])

    static, found = nats(STATIC), nats(Setting(1e-3, 0.0))
    # Were it chance, each window would be better or worse by a coin: half of them, give or take
    # half of √n. All but a twentieth of the last three quarters are better, and by a third.
    late = slice(len(static) // 4, None)
    assert np.mean(found[late] < static[late]) > 0.95
    assert found[late].sum() < 2 / 3 * static[late].sum()


def test_the_run_stays_as_it_is_and_a_second_pass_repeats_to_the_bit(run: Run) -> None:
    before = jax.tree.map(np.copy, run.params)
    evaluator, split = make_evaluator(run), make_split(nonsense(0, 10))
    stream = evaluator.stream(split)
    one, other, again = (
        evaluator(stream, evaluator.sgd(), Setting(rate, 0.01)) for rate in (0.1, 0.3, 0.1)
    )
    assert one.loss == again.loss != other.loss
    jax.tree.map(np.testing.assert_array_equal, run.params, before)


def test_one_program_serves_all_rates_and_splits(run: Run) -> None:
    compiled: list[str] = []

    def note(event: str, seconds: float, **about: Any) -> None:
        if "backend_compile" in event:
            compiled.append(about.get("fun_name", event))

    evaluator = make_evaluator(run)
    rule = evaluator.sgd()
    evaluator(evaluator.stream(make_split(nonsense(0, 4))), rule, STATIC)
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        for seed, setting in enumerate(grid("sgd")):
            evaluator(evaluator.stream(make_split(nonsense(seed, 3))), rule, setting)
        assert compiled == []
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def test_a_setting_that_diverged_is_never_the_best(run: Run) -> None:
    evaluator = make_evaluator(run)
    stream = evaluator.stream(make_split(nonsense(0, 10)))
    rule = evaluator.rms(stream)
    wild = evaluator(stream, rule, Setting(1e38, 0.0))
    assert wild.diverged
    assert math.isnan(wild.bpc)
    tame = evaluator(stream, rule, STATIC)
    assert best([wild, tame, tame._replace(setting=Setting(1.0, 0.0))]) is tame
    with pytest.raises(ValueError, match="on one device"):
        DynamicEvaluator(
            run.model, run.params, Parallel(jax.local_devices()), window=WINDOW, rows=1
        )


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def test_the_command_chooses_on_validation_and_leaves_the_checkpoint_alone(
    run: Run,
    shifted: Path,
    tmp_path: Path,
    command_environment: dict[str, str],
) -> None:
    before = digest(run.folder)
    score, options = tmp_path / "score.json", ["--corpus", str(shifted / "with_test"), "--dynamic"]
    command = ["mlstm-jax", "evaluate", str(run.folder), *options, "--json", str(score)]
    done = subprocess.run(
        command, env=command_environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert digest(run.folder) == before
    found = json.loads(score.read_text())
    adapted = found["dynamic"]
    size = len((shifted / "test.txt").read_bytes())
    assert found["bytes_scored"] == size - 1
    assert adapted["bpc"] < 0.7 * found["bpc"]
    assert f"test bpc {found['bpc']:.4f} over {size - 1:,} bytes" in done.stdout
    assert f"test bpc {adapted['bpc']:.4f} by dynamic evaluation" in done.stdout
    tried = adapted["tried"]
    assert [Setting(one["rate"], one["decay"]) for one in tried] == grid("rms")
    lowest = min(tried, key=lambda one: one["bpc"])
    assert (adapted["rate"], adapted["decay"]) == (lowest["rate"], lowest["decay"])
    assert adapted["chosen_on"] == "valid"
    said = f"were chosen on the validation split ({tried[0]['bpc']:.4f} static, {lowest['bpc']:.4f}"
    assert said in done.stdout
    assert "the test split was scored once with them" in done.stdout
    assert done.stderr.count("validation bpc") == len(tried)
    assert "one device" not in done.stdout


@pytest.mark.slow
def test_another_test_text_changes_no_choice_and_what_was_chosen_can_be_given(
    run: Run,
    shifted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = [STATIC, Setting(1e-3, 0.01), Setting(1e-3, 0.1)]
    monkeypatch.setattr(dynamic_evaluation, "grid", lambda name: settings)
    file = tmp_path / "score.json"
    passes: list[tuple[int, Setting]] = []
    score = DynamicEvaluator.__call__

    def noted(self: Any, stream: Any, rule: Rule, setting: Setting, *more: Any) -> DynamicScore:
        passes.append((stream.scored, setting))
        return score(self, stream, rule, setting, *more)

    monkeypatch.setattr(DynamicEvaluator, "__call__", noted)

    def evaluate(name: str, *more: str) -> dict[str, Any]:
        options = [
            "--corpus",
            str(shifted / f"with_{name}"),
            "--dynamic",
            "--json",
            str(file),
            "--overwrite",
        ]
        cli.main(["evaluate", str(run.folder), *options, *more])
        return json.loads(file.read_text())["dynamic"]

    one, other = evaluate("test"), evaluate("other")
    assert one["tried"] == other["tried"]
    assert one["bpc"] != other["bpc"]
    assert (one["rate"], one["decay"]) == (other["rate"], other["decay"]) != STATIC
    assert "uses one device" in capsys.readouterr().out  # of the four that are here
    valid, *tests = (
        len((shifted / f"{name}.txt").read_bytes()) - 1 for name in ("valid", "test", "other")
    )
    chosen = Setting(one["rate"], one["decay"])
    for size in tests:
        expected = [*((valid, setting) for setting in settings), (size, STATIC), (size, chosen)]
        assert passes[: len(expected)] == expected
        del passes[: len(expected)]
    assert not passes

    given = ["--dynamic-rate", str(one["rate"]), "--dynamic-decay", str(one["decay"])]
    again = evaluate("test", *given)
    assert again["bpc"] == one["bpc"]
    assert (again["tried"], again["chosen_on"]) == ([], None)
    assert "were given; no other settings were tried" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        evaluate("test", "--dynamic-rate", "1e38")
    assert stop.value.code == 1
    assert "is not finite; give a lower --dynamic-rate" in capsys.readouterr().err


@pytest.mark.slow
def test_imported_weights_and_a_corpus_without_text_to_train_on(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, theirs, score = tmp_path / "model.npz", tmp_path / "theirs", tmp_path / "score.json"
    cli.main(["export", str(run.folder), "--out", str(file)])
    cli.main(["import", "mlstm", str(file), "--out", str(theirs)])
    (tmp_path / "test.txt").write_text("".join(nonsense(0, 200)))
    made = ["prepare", str(tmp_path / "test.txt"), "--split", "0,0,1", "--dedupe", "exact"]
    cli.main([*made, "--out", str(tmp_path / "c")])
    command = ["evaluate", str(theirs), "--corpus", str(tmp_path / "c"), "--dynamic"]
    for more, message in (
        ([], "has no training split, whose gradients"),
        (["--dynamic-rule", "sgd"], "has no validation split to choose the rate on"),
    ):
        with pytest.raises(SystemExit):
            cli.main([*command, *more])
        assert message in capsys.readouterr().err
    more = ["--dynamic-rule", "sgd", "--dynamic-rate", "0.1", "--dynamic-rows", "2"]
    cli.main([*command, *more, "--json", str(score)])
    found = json.loads(score.read_text())
    assert found["dynamic"]["bpc"] < found["bpc"]
    assert (found["dynamic"]["rows"], found["dynamic"]["window"]) == (2, 256)
    assert load_run(theirs).imported


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--dynamic-rate 0.1",
            "--dynamic-rate is an option of dynamic evaluation; also give --dynamic",
        ),
        ("--dynamic-rows 2", "--dynamic-rows is an option of"),
        ("--dynamic --dynamic-rate -1", "--dynamic-rate is -1.0, but it must be at least 0"),
        ("--dynamic --dynamic-rate nan", "--dynamic-rate is nan"),
        ("--dynamic --dynamic-rate 1 --dynamic-decay 2", "--dynamic-decay is 2.0, but it must be"),
        ("--dynamic --dynamic-decay 0.1", "--dynamic-decay needs --dynamic-rate: give both"),
        ("--dynamic --dynamic-rows 0", "--dynamic-rows is 0, but it must be at least 1"),
        ("--dynamic --split train", "--dynamic cannot score the train split"),
        ("--dynamic --split valid", "chooses rate and decay on the valid split"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_a_model_is_loaded(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["evaluate", "absent", *words.split()])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_what_is_said_of_a_choice() -> None:
    def score(rate: float, decay: float, bpc: float) -> DynamicScore:
        return DynamicScore(Setting(rate, decay), bpc * math.log(2), bpc, 1000, 0, 1.0)

    def said(*tried: DynamicScore) -> str:
        chosen = best(tried)
        return dynamic_evaluation.DynamicResult(
            tried[0], chosen, "rms", 1, 128, 256, list(tried)
        ).describe("test")

    text = said(score(0, 0, 2.0), score(1e-3, 0.1, 1.9))
    assert "rate 0.001 and decay 0.1 were chosen on the validation split (2.0000 static" in text
    assert "1 row x 128 bytes, scaled by the gradients of 256 windows of the training" in text
    assert "at the edge" not in text
    assert "no rate lowers the bpc of the validation split" in said(
        score(0, 0, 2.0), score(1e-3, 0.1, 2.1)
    )
    highest = dynamic_evaluation.RATES["rms"][-1]
    assert "at the edge of the grid" in said(score(0, 0, 2.0), score(highest, 0.1, 1.9))
