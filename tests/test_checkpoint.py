"""Checkpoints: which are kept, and that none is read as another than was written."""

import functools
import math
import shutil
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from mlstm_jax import checkpoint, digest
from mlstm_jax.checkpoint import CheckpointFailed, Checkpoints, Damaged, OtherRun, kept_steps
from mlstm_jax.config import Config, Model, Precision
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.parallel import Parallel
from mlstm_jax.record import Meta, read_record
from mlstm_jax.training.state import TrainState, fresh_state
from tests.marks import FAILED_READS

pytestmark = FAILED_READS

RUN = "0123456789abcdef"
ABOUT = Meta("c0ffee", "radford", {"batch": 8, "window": 16}, {}, 0.25, 1000)


@pytest.mark.parametrize(
    ("steps", "scores", "newest", "reach", "expected"),
    [
        ([], {}, 2, 100, set()),
        ([10], {}, 2, 100, {10}),
        # Wide apart: the last but one is old enough already.
        ([1000, 2000, 3000], {}, 2, 100, {2000, 3000}),
        ([1000, 2000, 3000], {1000: 2.0, 2000: 2.5}, 2, 100, {1000, 2000, 3000}),
        # Close together: 100 is old enough, and 120 will be.
        (range(20, 221, 20), {}, 2, 100, {120, 140, 200, 220}),
        # One step less than `reach` is too few.
        ([99, 198, 297], {}, 1, 100, {99, 198, 297}),
        # None is old enough yet; the first will be.
        ([20, 40, 60, 80], {}, 2, 100, {20, 60, 80}),
        ([10, 20, 30], {10: math.nan, 20: 3.0, 30: math.inf}, 1, 0, {20, 30}),
        ([10, 20, 30], {10: None}, 1, 0, {30}),
        # The earliest of the best.
        ([10, 20, 30], {10: -math.inf, 20: 1.5, 30: 1.5}, 1, 0, {20, 30}),
        ([10, 20, 30], {10: 1.5, 20: 1.5}, 1, 0, {10, 30}),
    ],
)
def test_kept_steps(steps, scores, newest, reach, expected) -> None:
    assert kept_steps(steps, scores, newest, reach) == expected


def draw_like(tree: Any) -> Any:
    random = np.random.default_rng(0)
    return jax.tree.map(lambda x: random.normal(size=x.shape).astype(x.dtype), tree)


@functools.cache
def drawn() -> tuple[TrainState, Any]:
    """A small state and carry."""
    precision = Precision(compute="bf16", recurrent="fp8_emulated")
    config = Config(model=Model(hidden=16, embedding=8, layers=2), precision=precision)
    model = LanguageModel(config.model, config.precision.types)
    return draw_like(fresh_state(config, model)), draw_like(model.init_carry(8))


class Saved:
    """A folder to save a state and a carry in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.devices = Parallel(jax.local_devices()[:4])
        self.state, self.carry = drawn()

    def save(self, checkpoints: Checkpoints, step: int, bpc: float | None = None) -> None:
        about = ABOUT._replace(bpc=bpc)
        checkpoints.save(step, self.at(step), self.carry, self.devices.join_rows, about)

    def at(self, step: int) -> TrainState:
        """The state of a step; the carry is the same at all steps."""
        state = jax.tree.map(lambda x: (x + step).astype(x.dtype), self.state)
        return state._replace(step=np.int32(step))

    def restore(self, step: int, devices: Parallel | None = None) -> tuple[Any, Any]:
        devices = devices or self.devices
        with closing(Checkpoints(self.folder, RUN, read_only=True)) as checkpoints:
            shapes = devices.abstract_rows(self.carry)
            state, rows = checkpoints.restore(step, self.state, shapes)
        return state, devices.own_rows(rows)

    def assert_restored(self, restored: Any) -> None:
        jax.tree.map(np.testing.assert_array_equal, restored, (self.at(40), self.carry))

    def copy(self, folder: Path) -> "Saved":
        return Saved(shutil.copytree(self.folder, folder))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A run folder with checkpoints of steps 20 and 40, beside it one of another run."""
    made = Saved(tmp_path_factory.mktemp("saved") / "run")
    for folder, run in ((made.folder, RUN), (made.folder.parent / "sibling", RUN[::-1])):
        checkpoints = Checkpoints(folder, run)
        for step in (20, 40):
            made.save(checkpoints, step, 2.5)
        checkpoints.close()
    return made


@pytest.mark.parametrize(
    ("source", "item", "error"),
    [
        ("run/checkpoints/20", "params", Damaged),
        ("run/checkpoints/20", "state", Damaged),
        ("run/checkpoints/20", "carry", Damaged),
        ("run/checkpoints/20", "meta", Damaged),
        ("run/checkpoints/20", "", Damaged),
        ("sibling/checkpoints/40", "state", None),  # the same in both runs
        ("sibling/checkpoints/40", "carry", Damaged),
        ("sibling/checkpoints/40", "", OtherRun),
        (None, "params", Damaged),
        (None, "state", Damaged),
        (None, "carry", Damaged),
    ],
)
def test_mixed_items(source, item, error, saved, tmp_path) -> None:
    """Items, or whole checkpoints, of another step or another run; or that are missing."""
    mixed = saved.copy(tmp_path / "run")
    place = mixed.folder / "checkpoints/40" / item
    shutil.rmtree(place)
    if source:
        shutil.copytree(saved.folder.parent / source / item, place)
    message = None if source else rf"step 40 cannot be read \(item {item}: "
    with pytest.raises(error, match=message) if error else nullcontext():
        mixed.assert_restored(mixed.restore(40))


def test_other_numbers_of_devices(saved: Saved) -> None:
    for count in (4, 2, 1):
        saved.assert_restored(saved.restore(40, Parallel(jax.local_devices()[:count])))


def test_renamed_record(saved: Saved, tmp_path: Path) -> None:
    renamed = saved.copy(tmp_path / "run")
    (renamed.folder / "checkpoints/20").rename(renamed.folder / "checkpoints/30")
    with pytest.raises(ValueError, match="the checkpoint of step 20 under another name"):
        read_record(renamed.folder, 30)


def test_file_out_of_reach(saved, tmp_path, monkeypatch):
    away = saved.copy(tmp_path / "run")
    params = away.folder / "checkpoints/40/params"
    shutil.move(params, tmp_path / "params")

    def sleep(seconds: float) -> None:
        if seconds == 5.0:
            shutil.move(tmp_path / "params", params)

    monkeypatch.setattr(checkpoint, "PAUSES", (0.5, 5.0))
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(sleep=sleep))
    away.assert_restored(away.restore(40))


def test_refused_save(tmp_path: Path) -> None:
    saved = Saved(tmp_path / "run")
    checkpoints = Checkpoints(saved.folder, RUN)
    saved.save(checkpoints, 20)
    checkpoints.close()
    checkpoints.open()
    for step in (20, 10):
        with pytest.raises(CheckpointFailed, match=r"could not be .* the checkpoint of step 20"):
            saved.save(checkpoints, step)


def test_set_aside(saved: Saved, tmp_path: Path) -> None:
    moved = saved.copy(tmp_path / "run")
    for target in ("40", "40-2"):
        checkpoints = Checkpoints(moved.folder, RUN)
        checkpoints.set_aside([40])
        assert (moved.folder / "set-aside" / target / "meta").is_dir()
        checkpoints.close()
        checkpoints.open()
        assert checkpoints.steps() == [20]
        moved.save(checkpoints, 40)
        checkpoints.close()
    root = saved.folder / "checkpoints/40"
    for path in root.rglob("*"):
        kept_path = moved.folder / "set-aside/40" / path.relative_to(root)
        assert path.is_dir() or kept_path.read_bytes() == path.read_bytes()


def test_checksums() -> None:
    random = np.random.default_rng(0)
    array = random.normal(size=(3, 5)).astype(np.float32)
    others = (array, array.T, array.reshape(5, 3), array.view(np.int32), array[:2])
    sums = {*map(digest.of_array, others)}
    assert len(sums) == 5
    assert digest.of_array(np.asfortranarray(array)) == digest.of_array(array)


def test_diagnostics_of_another_version(saved, tmp_path) -> None:
    whole = saved.at(40)
    kept = {name: whole.tally[name] for name in ("loss", "updates")}
    small = whole._replace(tally=kept)
    folder = tmp_path / "run"
    with closing(Checkpoints(folder, RUN)) as checkpoints:
        checkpoints.save(40, small, saved.carry, saved.devices.join_rows, ABOUT)
    with closing(Checkpoints(folder, RUN, read_only=True)) as checkpoints:
        state, _ = checkpoints.restore(40, saved.state, None)
    expected = {}  # a sum that begins within a line is no mean
    for name, x in whole.tally.items():
        unknown = np.nan if np.issubdtype(x.dtype, np.floating) else 0
        expected[name] = kept.get(name, np.full_like(x, unknown))
    jax.tree.map(np.testing.assert_array_equal, state.tally, expected)
    with closing(Checkpoints(saved.folder, RUN, read_only=True)) as checkpoints:
        state, _ = checkpoints.restore(40, small, None)
    jax.tree.map(np.testing.assert_array_equal, state, small)
