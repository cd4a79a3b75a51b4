"""Files of .npy that are damaged, or of any type and order: imported whole or refused in words."""

import io
from pathlib import Path

import numpy as np
import pytest

from mlstm_jax.errors import UserError
from mlstm_jax.interop import openai, weights
from tests.interop.test_weights import write_openai

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
        b"\x93NUMPY",
        b"",
        b"PK\x03\x04",
        zipped(),
        b"\x80\x04N.",  # a pickle
    ],
    ids=lambda content: repr(content[8:30]),
)
def test_a_npy_that_is_none_is_named(
    content: bytes, tmp_path: Path, random: np.random.Generator
) -> None:
    write_openai(tmp_path / "o", random)
    (tmp_path / "o/12.npy").write_bytes(content)
    with pytest.raises(UserError, match=r"12\.npy: is not a \.npy file of numbers"):
        openai.read_openai(tmp_path / "o")


@pytest.mark.parametrize("kind", ["<f2", "<f8", ">f4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_float_in_any_order_is_imported(
    kind: str, order: str, tmp_path: Path, random: np.random.Generator
) -> None:
    write_openai(tmp_path / "o", random)
    for path in (tmp_path / "o").iterdir():  # to numbers that all of the types hold
        np.save(path, np.load(path).astype(np.float16).astype(np.float32))
    expected = weights.flatten(openai.read_openai(tmp_path / "o").params)
    for path in (tmp_path / "o").iterdir():
        np.save(path, np.array(np.load(path), kind, order=order))
    found = openai.read_openai(tmp_path / "o")
    for name, array in weights.flatten(found.params).items():
        np.testing.assert_array_equal(array, expected[name])
    assert {array.dtype.str for array in found.params["layer_0"].values()} == {"<f4"}


@pytest.mark.parametrize("kind", ["i4", "c8", "?", "S4", "f4,f4"])
def test_what_is_no_float_is_refused(
    kind: str, tmp_path: Path, random: np.random.Generator
) -> None:
    write_openai(tmp_path / "o", random)
    np.save(tmp_path / "o/12.npy", np.zeros(7, kind))
    with pytest.raises(UserError, match=r"12\.npy must be finite floating-point numbers, not"):
        openai.read_openai(tmp_path / "o")
