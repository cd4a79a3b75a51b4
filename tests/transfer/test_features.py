"""Features: the state after a text, whatever it is read with."""

import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jaxlib
import numpy as np
import pytest

from mlstm_jax import cache, cli, host
from mlstm_jax.errors import Note, UserError
from mlstm_jax.parallel import Parallel
from mlstm_jax.run import Run, load_run, with_compute
from mlstm_jax.transfer import features
from mlstm_jax.transfer.features import Featurizer, TextFile, features_key
from mlstm_jax.transfer.windows import ROWS, cheapest_rows, read_steps
from tests.corpora.written import jsonl
from tests.tables import attributes
from tests.tolerance import assert_close

pytestmark = pytest.mark.numeric

# Two layers of three products over 64 units.
TERMS = 2 * 3 * 64
TEXTS = ["the guitar is good", "é", "my cable sounds great " * 40, "that strap was bad" * 9, "a"]


def one_device() -> Parallel:
    return Parallel(jax.local_devices()[:1])


def test_batches(run: Run) -> None:
    """Up to rounding: products of other numbers of rows add in other orders."""
    read = Featurizer(run, devices=one_device())
    together = read(TEXTS * 10)
    assert_close(Featurizer(run)(TEXTS), read(TEXTS), TERMS)  # on four devices
    assert_close(together, np.tile(read(TEXTS), (10, 1)), TERMS)
    for number, text in enumerate(TEXTS):
        assert_close(read([text])[0], together[number], TERMS)
    np.testing.assert_array_equal(read(TEXTS * 10), together)


def test_parts_of_a_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_MOST_TEXTS", 3)
    file = tmp_path / "texts.jsonl"
    out = tmp_path / "features.npz"
    records = [{"text": text} for text in TEXTS]
    jsonl(file, records)
    source = TextFile(file, None, run.cleaning)
    expected = Featurizer(run)(TEXTS)
    assert list(source) == [TEXTS[:3], TEXTS[3:]]
    assert (source.count, source.size) == (5, sum(map(len, run.cleaned(TEXTS))))
    assert_close(Featurizer(run)(source), expected, TERMS)
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(file.read_bytes())))
    monkeypatch.setattr(sys, "stdin", stdin)
    cli.main(["features", str(run.folder), "-", "--out", str(out)])
    with np.load(out) as written:
        assert_close(written["features"], expected, TERMS)
    monkeypatch.setattr(features, "_MOST_TEXTS", 9)
    monkeypatch.setattr(features, "_MOST_CHARACTERS", 1000)
    assert [*map(len, source)] == [4, 1]
    for changed in (records[1:], [*records, {"text": "more"}]):
        jsonl(file, changed)
        with pytest.raises(UserError, match="has changed since"):
            list(source)


def test_long_text(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(features, "_LONG", 500)
    with pytest.warns(Note, match=f"{len(run.cleaned(TEXTS)[2])} bytes"):
        Featurizer(run)(TEXTS)


@pytest.mark.parametrize(
    "lengths", [[], [0], [5, 0, 1, 33, 130], [400, *range(60)], [16] * 70, [*range(150)]]
)
def test_steps_of_reading(lengths: list[int]) -> None:
    random = np.random.default_rng(0)
    texts = [*map(random.bytes, lengths)]
    read = 0
    cells = 0
    ended: dict[int, bytes] = {}
    rows: list[bytes] = []
    begun: list[int] = []  # the lengths
    for step in read_steps(texts, (1, 8, 64), (16, 128)):
        (bytes_BT, counts_B3), width = step.window(texts), step.width
        rows = rows or [b""] * len(bytes_BT)
        if step.kept_B is not None:
            rows = np.array(rows, object)[step.kept_B].tolist()
        assert len(bytes_BT) in (1, 8, 64)
        assert width in (16, 128)
        for row, (left, scored, starts) in enumerate(counts_B3.tolist()):
            rows[row] = (b"" if starts else rows[row]) + bytes_BT[row, :left].tobytes()
            assert 0 <= left - scored <= 1
        for row in step.ended:
            ended[int(step.text_B[row])] = rows[row]
        starts = step.text_B[counts_B3[:, 2] > 0]
        begun += sorted(np.array(lengths)[starts], reverse=True)
        assert (counts_B3[step.ended, 1] == np.maximum(counts_B3[step.ended, 0] - 1, 0)).all()
        read = read + step.size
        cells = cells + bytes_BT[:, :-1].size
    whole = dict(enumerate(texts))
    assert whole == dict.fromkeys(whole, b"") | ended
    assert b"" not in ended.values()
    assert read == sum(lengths)
    assert begun == sorted(begun, reverse=True)
    # The end of a long text is read alone, not with 63 empty rows.
    assert cells <= 2 * read + 64 * 2 * 16 + 8 * 16


def test_cheapest_rows() -> None:
    for lengths, most in (
        ([], 1),
        ([90], 1),
        ([90] * 9, 8),
        ([90] * 64, 64),
        ([1000, *[20] * 63], 8),  # a long text would keep 64 rows waiting
        ([90] * 1000, 256),
    ):
        texts = [*map(bytes, lengths)]
        assert cheapest_rows(texts, (1, 8, 32, 64, 256), (16, 128), 4)[-1] == most


@pytest.mark.parametrize("count", [2, 50, 300, 2000])
def test_fewer_programs(count: int) -> None:
    """On a GPU, where each size and window is a program to compile."""
    lengths = np.random.default_rng(0).lognormal(5.5, 1, count).astype(int)
    texts = [*map(bytes, lengths.tolist())]

    def of(sizes: Sequence[int]) -> tuple[int, float]:
        """The number of programs, and what reading costs."""
        shapes = set()
        cost = 0
        for step in read_steps(texts, sizes, (16, 128)):
            rows = len(step.text_B)
            shapes.add((rows, step.width))
            cost += (rows + 176) * step.width
        return len(shapes), cost

    programs, cost = of(cheapest_rows(texts, ROWS, (16, 128), 176))
    fewer, larger_cost = of(cheapest_rows(texts, ROWS, (16, 128), 176, margin=0.05))
    assert fewer <= max(2, programs - 2)
    assert cost <= larger_cost <= 1.05 * cost


def test_several_rows_in_bf16(run: Run) -> None:
    in_bf16 = with_compute(run, "bf16").model
    how = {"states": ("c", "mean_h"), "devices": one_device()}
    mixed = Featurizer(replace(run, batch_model=in_bf16), **how)
    exact = Featurizer(run, **how)
    assert features_key(mixed, TEXTS) != features_key(exact, TEXTS)  # those on disk are of one
    np.testing.assert_array_equal(mixed(TEXTS[:1]), exact(TEXTS[:1]))
    several = mixed(TEXTS * 4)
    expected = exact(TEXTS * 4)
    assert np.abs(several - expected).max() > 0
    assert_close(several, expected, TERMS, "bfloat16")


def test_auto(run: Run) -> None:
    assert with_compute(run, "auto") is run
    ours = load_run(Path("reviews-1024"))
    assert bool(with_compute(ours, "auto").batch_model) == host.multiplies_bf16_faster()
    fixed = with_compute(ours, "fp32")
    assert (fixed.batch_model, fixed.model) == (None, ours.model)


def test_gain_of_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.CACHE, str(tmp_path))
    kept = cache.Cache(cache.cache_folder())
    key = f"bf16_{jaxlib.__version__}"
    measure = host.multiplies_bf16_faster.__wrapped__
    measured = measure()
    assert measured == (float(kept.get(key)) >= 1.2)
    for gain, answer in ((b"1.19", False), (b"1.2", True)):
        kept.put(key, gain)
        assert measure() == answer


def test_units_layers_and_states(run: Run) -> None:
    """Two states side by side stand in the order of their name, whatever else is read."""
    whole = Featurizer(run, states=("c",), all_layers=True)
    read = Featurizer(run, states=("mean_h", "c+mean_h", "h"), all_layers=True)
    assert len(read.columns) == 3 * 128
    both = read(TEXTS)[:, features.places_of("c+mean_h", read.columns)]
    mean_h = Featurizer(run, states=("mean_h",), all_layers=True)(TEXTS)
    np.testing.assert_array_equal(both, np.concatenate([whole(TEXTS), mean_h], axis=1))
    assert attributes(whole.columns, "layer") == [0] * 64 + [1] * 64
    assert attributes(whole.columns, "unit") == [*range(64), *range(64)]


def test_places_of_records(run, tmp_path, printed) -> None:
    source = tmp_path / "a.csv"
    out = tmp_path / "out.npz"
    source.write_text('review,x\nthe guitar is good,1\n"",2\nmy cable is bad,3\n')
    command = ["features", str(run.folder), str(source), "--out", str(out)]
    assert "3 texts x 128 features" in printed(*command, "--text-column", "review")
    with np.load(out) as found:
        read = found["features"]
        assert found["unit"].tolist() == [*range(64), *range(64)]
        assert found["state"].tolist() == ["c"] * 64 + ["mean_h"] * 64
    expected = Featurizer(run)(["the guitar is good", "my cable is bad"])
    np.testing.assert_array_equal(read[[0, 2]], expected)
    assert not read[1].any()
