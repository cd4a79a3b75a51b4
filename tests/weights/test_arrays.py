"""Weights from strangers: damaged, hostile or odd, they are imported whole or refused in words."""

import io
import json
import os
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlstm_jax import arrays, config, openai, weights
from mlstm_jax.errors import UserError
from tests.tables import draw_arrays

SIZES: dict[str, Any] = {"hidden": 4, "embedding": 3, "layers": 2}
MODEL = config.Model(**SIZES)
ABOUT = {"format": 1, "cleaning": "radford", "source": "a test", "model": SIZES}


@pytest.fixture
def exported(tmp_path, random) -> tuple[Path, dict[str, np.ndarray]]:
    """The path of an export, and its arrays."""
    shapes = weights.expected_shapes(MODEL)
    return tmp_path / "m.safetensors", draw_arrays(random, shapes)


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Fail where Python and NumPy take more memory within."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def test_memory_of_wrong_shapes(exported: Any, folder: Path) -> None:
    path, flat = exported
    flat["layer_1/wh_v"] = np.zeros((4, 2_000_000), np.float32)
    save_file(flat, path, metadata={"mlstm_jax": json.dumps(ABOUT)})
    with at_most(path.stat().st_size + 2_000_000), pytest.raises(UserError, match="2000000"):
        weights.load_weights(path)
    np.save(folder / "14.npy", np.zeros(2_000_000))
    with at_most(2_000_000), pytest.raises(UserError, match=r"14\.npy has the shape \(2000000,\)"):
        openai.read_openai(folder)


LARGE = np.full((4, 256), 1e300)


@pytest.mark.parametrize(
    ("about", "changed", "field"),
    [
        ([], {}, "not an object"),
        ({"model": None}, {}, "model is None"),
        ({"cleaning": "soap"}, {}, "cleaning is 'soap'"),
        ({"format": 2}, {}, "format is 2, but it must be 1"),
        ({"layers": 1_000_000}, {}, r"model\.layers"),
        ({"hidden": 10**30}, {}, r"model\.hidden"),
        ({"embedding_std": 10**400}, {}, r"model\.embedding_std"),
        ({"depth": 1}, {}, r"model\.depth"),
        ("[" * 100_000, {}, "metadata are invalid"),
        ({}, {"layer_1/b": None, "x": LARGE}, "is missing layer_1/b and has the unexpected x"),
        ({}, dict.fromkeys(map("x{}".format, range(2000)), np.zeros(1)), r"x0, x1, .*, \.\.\."),
        ({}, {"decoder_kernel": LARGE}, "decoder_kernel .* inf or NaN"),
        ({}, {"decoder_kernel": LARGE * np.nan}, "decoder_kernel .* inf or NaN"),
        ({}, {"decoder_kernel": np.zeros((4, 256), int)}, "decoder_kernel .* int64"),
        ({}, {"decoder_kernel": LARGE[:3]}, r"decoder_kernel .* \(3, 256\)"),
    ],
)
def test_refused_by_field(about, changed, field, exported: Any) -> None:
    path, flat = exported
    flat = flat | changed
    if flat["layer_1/b"] is None:
        del flat["layer_1/b"]
    if isinstance(about, dict):
        about = ABOUT | (about if about.keys() <= ABOUT.keys() else {"model": SIZES | about})
    text = about if isinstance(about, str) else json.dumps(about)
    save_file(flat, path, metadata={"mlstm_jax": text})
    with pytest.raises(UserError, match=rf"m\.\w+:? .*{field}") as error:
        weights.load_weights(path)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(("kind", "size"), [("BF16", 2), ("F8_E4M3", 1)])
def test_types_that_numpy_lacks(kind: str, size: int, tmp_path: Path) -> None:
    about = {"dtype": kind, "shape": [3], "data_offsets": [0, 3 * size]}
    header = json.dumps({"a": about}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(3 * size))
    # ml_dtypes, where it is imported, teaches NumPy some of them.
    with pytest.raises(UserError, match=r"m\.safetensors( .* as |: a .* must have).*float"):
        arrays.checked_arrays(f"{path}: ", arrays.read_arrays(path)[1], {"a": (3,)})


def test_pipes(folder: Path, tmp_path: Path) -> None:
    (folder / "3.npy").unlink()
    for name in ("o/3.npy", "m.safetensors"):
        os.mkfifo(tmp_path / name)
    signal.alarm(20)  # ends the process
    with pytest.raises(UserError, match=r"3\.npy: there is no"):
        openai.read_openai(folder)
    with pytest.raises(UserError, match=r"m\.safetensors: there is no"):
        weights.load_weights(tmp_path / "m.safetensors")
    signal.alarm(0)


def test_nan(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        before = path.read_bytes()
        array = np.load(path)
        array.flat[-1] = np.nan
        with path.open("wb") as file:
            np.save(file, array)
        with pytest.raises(UserError) as error:
            openai.read_openai(folder)
        assert f"{path} must be finite numbers" in str(error.value)
        path.write_bytes(before)


# --- .npy

_GOOD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (7,), }"


def npy(header: bytes, data: bytes = bytes(28), version: tuple[int, int] = (1, 0)) -> bytes:
    length = len(header).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + header + data


def zipped() -> bytes:
    made = io.BytesIO()
    np.savez(made, a=np.zeros(7))
    return made.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        npy(b"{'descr': ('<f4'"),  # tokenize.TokenError
        npy(b"(" * 5000),
        npy(b"-" * 9000 + b"1"),  # RecursionError
        npy(b"\xff\xfe" * 30, version=(3, 0)),  # UnicodeDecodeError
        npy(_GOOD.replace(b"7", b"7" * 30)),
        npy(_GOOD.replace(b"7", b"-7")),
        npy(_GOOD.replace(b"f4", b"zz")),
        npy(_GOOD, data=bytes(27)),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(1000),
        b"\x93NUMPY\x09\x00" + bytes(1000),
        b"",
        b"PK\x03\x04",
        zipped(),
        b"\x80\x04N.",  # a pickle
    ],
    ids=lambda content: repr(content[8:30]),
)
def test_invalid_npy(content: bytes, folder: Path) -> None:
    (folder / "12.npy").write_bytes(content)
    with pytest.raises(UserError, match=r"12\.npy is not a \.npy file of numbers"):
        openai.read_openai(folder)


@pytest.mark.parametrize("kind", ["<f2 F", "<f8 C", ">f4 F", ">f8 C"])
def test_types_and_orders(kind: str, folder: Path) -> None:
    dtype, order = kind.split()
    for path in folder.iterdir():  # to numbers that all of the types hold
        np.save(path, np.load(path).astype(np.float16).astype(np.float32))
    expected = arrays.flatten(openai.read_openai(folder).params)
    for path in folder.iterdir():
        np.save(path, np.array(np.load(path), dtype, order=order))
    for name, array in arrays.flatten(openai.read_openai(folder).params).items():
        np.testing.assert_array_equal(array, expected[name], strict=True)
    for wrong in ("i4", "c8", "?", "S4", "f4,f4"):
        np.save(folder / "12.npy", np.zeros(7, wrong))
        with pytest.raises(UserError, match=r"12\.npy has .* floating-point"):
            openai.read_openai(folder)


# --- anything


def test_written_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    array = np.arange(6.0).reshape(2, 3)
    arrays.write_arrays(path, {"a": np.asfortranarray(array)})
    np.testing.assert_array_equal(arrays.read_arrays(path)[1]["a"], array)
