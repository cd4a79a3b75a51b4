"""Faster products for numpy_model.py: in float32 in blocks, and in int8 by onnxruntime.

OpenBLAS copies a matrix before it multiplies by it, which with few rows takes longer than the
product. With AVX-512 it has kernels for small products that copy nothing: so W is cut into blocks
of columns, and x into groups of rows.

For int8 W = V · scale is rounded with a scale for each column, and x with a scale for each row, so
an answer does not depend on the other texts of a call. The sums are exact: they are the same in any
batch and on any processor.
"""

import functools
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.errors import extra
from mlstm_jax.model.numpy_model import Array, Product, float_product

_ARCHITECTURES = ("SkylakeX", "Cooperlake", "SapphireRapids")  # of OpenBLAS, with such kernels
_MOST_BLOCKED = 10**6  # multiplications of a product that these kernels take
_GROUP = 8  # rows
_COLUMNS = 64
_BLOCKED_ROWS = 128  # of texts at a time: more are hardly faster

# Texts at a time: what lies between the products of more would not stay in the processor's cache.
INT8_ROWS = 64
_MOST = 127
_ZERO = 128  # of x as uint8
# Of ONNX's TensorProto.DataType.
_TYPES = {np.dtype(np.float32): 1, np.dtype(np.uint8): 2, np.dtype(np.int8): 3}

_limiting = threading.Lock()  # of whoever limits BLAS, for the process

T = TypeVar("T")


@functools.cache
def controller() -> Any:
    """What knows and limits the libraries of NumPy's products; finding them takes time."""
    # Here: machines that only train on GPUs, and read with JAX, may lack it.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def with_one_thread(parts: Iterator[T]) -> Iterator[T]:
    """Yield parts that are computed by one thread of BLAS.

    Several wait busily for each other at each byte: beside other programs a byte would take a
    hundred times as long. A thread of Python that finds BLAS limited by another leaves it alone: it
    would restore the limit, not what was before.
    """
    while True:
        with ExitStack() as limited:
            if _limiting.acquire(blocking=False):
                limited.callback(_limiting.release)
                limited.enter_context(controller().limit(limits=1, user_api="blas"))
            part = next(parts, None)
        if part is None:
            return
        yield part


@functools.cache
def fastest() -> dict[str, Any]:
    """What to give to `NumpyModel`, for this processor."""
    for library in controller().select(internal_api="openblas").info():
        if library["architecture"] in _ARCHITECTURES:
            return {"product": blocked_product, "rows": _BLOCKED_ROWS}
    return {}


def blocked_product(v_IO: Array, scale_O: Array) -> Product:
    """The product with W = scale · V in float32."""
    inputs, outputs = v_IO.shape
    if outputs % _COLUMNS or _GROUP * _COLUMNS * inputs > _MOST_BLOCKED:
        return float_product(v_IO, scale_O)
    w_ISC = (v_IO * scale_O).reshape(inputs, -1, _COLUMNS)
    w_SIC = np.ascontiguousarray(w_ISC.swapaxes(0, 1))
    w_S1IC = w_SIC[:, None]

    def product(x: Array) -> Array:
        rows = len(x)
        grouped = rows - rows % _GROUP
        y_BSC = np.empty((rows, len(w_SIC), _COLUMNS), np.float32)
        if grouped:
            x_NGI = x[:grouped].reshape(-1, _GROUP, inputs)
            y_SBC = (x_NGI @ w_S1IC).reshape(len(w_SIC), grouped, _COLUMNS)
            y_BSC[:grouped] = y_SBC.swapaxes(0, 1)
        if grouped < rows:
            y_BSC[grouped:] = (x[grouped:] @ w_SIC).swapaxes(0, 1)
        return y_BSC.reshape(rows, outputs)

    return product


def int8_product(v_IO: Array, scale_O: Array) -> Product:
    """The product with W = scale · V in int8."""
    with extra("int8", "compute int8 needs onnxruntime"):
        import onnxruntime

    w_IO = v_IO * scale_O
    w_scale_O = (np.maximum(_largest_pairs(w_IO), 1e-30) / _MOST).astype(np.float32)
    graph = _graph(np.rint(w_IO / w_scale_O).astype(np.int8), w_scale_O)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    run = onnxruntime.InferenceSession(graph, options, ["CPUExecutionProvider"]).run

    def product(x: Array) -> Array:
        scale_B1 = np.abs(x).max(axis=1, keepdims=True)
        np.maximum(scale_B1, 1e-30, out=scale_B1)
        scale_B1 /= _MOST
        q = x / scale_B1
        q += _ZERO + 0.5
        y: Any = run(None, {"x": q.astype(np.uint8)})[0]
        y *= scale_B1
        return y

    return product


def _largest_pairs(w_IO: Array) -> Array:
    """The largest sum of two adjacent weights of a sign in each column.

    Without VNNI a processor adds such pairs, times x, in int16, which would saturate.
    """
    even_IO = np.pad(w_IO, ((0, len(w_IO) % 2), (0, 0)))
    above_IO = np.maximum(even_IO, 0)
    below_IO = np.maximum(-even_IO, 0)
    most_O: Array = (above_IO[::2] + above_IO[1::2]).max(axis=0)
    return np.maximum(most_O, (below_IO[::2] + below_IO[1::2]).max(axis=0))


def _graph(w_IO: NDArray[np.int8], scale_O: Array) -> bytes:
    """An ONNX model, y = (x - 128) W · scale: ModelProto of onnx.proto.

    The operator is onnxruntime's own: its products scale their int32 sums while they are cached.
    """
    domain = b"com.microsoft"
    constants: dict[bytes, NDArray[Any]] = {
        b"w": w_IO,
        b"one": np.array(1, np.float32),
        b"scale": scale_O,
        b"zero": np.array(_ZERO, np.uint8),
    }
    node = b"".join(_field(1, name) for name in (b"x", *constants))
    node += _field(2, b"y") + _field(4, b"MatMulIntegerToFloat") + _field(7, domain)
    graph = _field(1, node) + _field(2, b"product")
    for name, array in constants.items():  # TensorProto
        tensor = b"".join(_field(1, size) for size in array.shape)
        tensor += _field(2, _TYPES[array.dtype]) + _field(8, name) + _field(9, array.tobytes())
        graph += _field(5, tensor)
    for number, name, dtype in ((11, b"x", np.uint8), (12, b"y", np.float32)):  # ValueInfoProto
        tensor = _field(1, _TYPES[np.dtype(dtype)])
        graph += _field(number, _field(1, name) + _field(2, _field(1, tensor)))
    opset = _field(1, domain) + _field(2, 1)
    return _field(1, 5) + _field(7, graph) + _field(8, opset)


def _field(number: int, value: int | bytes) -> bytes:
    """A field of Protocol Buffers: its number and type, and its value or length and bytes."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit of a byte says that more follow."""
    low = value & 127
    if value == low:
        return bytes([value])
    return bytes([low | 128]) + _varint(value >> 7)
