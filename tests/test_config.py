"""Configs: checks, files, the command line, and what a resume may change."""

import dataclasses
from pathlib import Path

import pytest

from mlstm_jax import config as configs
from mlstm_jax import config_differences, config_text, quickstart
from mlstm_jax.config import Config, Data, Distributed, Model, Optimizer, Precision, Train
from mlstm_jax.errors import UserError

FOLDER = Path(__file__).parent.parent / "configs"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_every_config_file_loads_and_says_what_to_expect(path: Path) -> None:
    config = configs.load_file(path)
    assert config.out == f"runs/{path.stem}"
    for word in ("Command:", "Hardware:", "Expected:"):
        assert word in path.read_text()


def test_the_papers_run() -> None:
    config = configs.resolve_batch(configs.load_file(FOLDER / "amazon_4096.py"), 8)
    assert (config.model.hidden, config.data.batch, config.data.window) == (4096, 2048, 256)
    assert (config.optimizer.learning_rate, config.optimizer.decay_steps) == (3e-3, 100_000)
    assert (config.train.steps, config.train.epochs) == (100_000, 3)


def test_a_line_overrides_a_file_and_a_file_the_default() -> None:
    words = [str(FOLDER / "small_512.py"), "--data.batch", "64", "--optimizer.clip-norm", "None"]
    config, resume, reset = config_text.parse([*words, "--resume"], quickstart.config, "train")
    assert (resume, reset) == (True, False)
    assert (config.model.hidden, config.data.batch, config.optimizer.clip_norm) == (512, 64, None)
    assert config_text.parse([], quickstart.config, "train") == (quickstart.config, False, False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Model(hidden=0), "model.hidden is 0, but it must be at least 1"),
        (lambda: Data(window=-1), "data.window is -1"),
        (lambda: Optimizer(learning_rate=0), "optimizer.learning_rate is 0"),
        (lambda: Optimizer(b2=1.0), "optimizer.b2 is 1.0"),
        (lambda: Precision(initial_loss_scale=0.5), "between 1.0 and 16777216.0"),
        (lambda: Train(steps=None, epochs=None), "train.steps is None"),
        (lambda: Train(epochs=-1), "train.epochs is -1"),
        (lambda: Train(rollback_factor=1.0), "train.rollback_factor is 1.0"),
        (lambda: Distributed(coordinator="node1"), "must be HOST:PORT, as node1:8476"),
        (lambda: Distributed(coordinator="[::1]:0"), "distributed.coordinator is '[::1]:0'"),
        (lambda: Distributed(processes=2, index=2), "distributed.index is 2, but it must be below"),
    ],
)
def test_a_bad_value_is_named(make: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        make()
    assert message in str(error.value)


def test_a_file_without_a_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("batch = 3\n")
    with pytest.raises(UserError, match=r"x\.py sets no `config = Config"):
        configs.load_file(tmp_path / "x.py")


def test_batch_per_device_gives_the_global_batch() -> None:
    config = Config(data=Data(batch_per_device=256))
    assert configs.resolve_batch(config, 8).data == Data(batch=2048)


def test_differences_part_what_forbids_a_resume_from_what_does_not() -> None:
    old = Config()
    new = dataclasses.replace(
        old,
        out="elsewhere",
        model=Model(hidden=8),
        data=Data(corpus="moved", batch=64),
        optimizer=Optimizer(learning_rate=1.0),
        distributed=Distributed(coordinator="node1:8476", processes=4, index=2),
    )
    found = config_differences.differences(old, new)
    assert found.forbidden == ["model.hidden: 4096 → 8"]
    assert found.resets_carry == ["data.batch: 128 → 64"]
    assert found.allowed == ["optimizer.learning_rate: 0.0005 → 1.0"]


def test_json_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the config of a run"):
        config_text.from_json('{"model": {"depth": 3}}', tmp_path / "config.json")
    with pytest.raises(UserError, match="is not the config of a run"):
        config_text.from_json("not json", tmp_path / "config.json")
