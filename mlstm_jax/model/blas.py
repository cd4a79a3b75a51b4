"""The products of numpy_model.py in float32, for processors whose OpenBLAS has small kernels.

OpenBLAS copies a matrix before it multiplies by it, which with few rows takes longer than the
product. With AVX-512 it has kernels for small products that copy nothing: so W is cut into blocks
of columns, and x into groups of rows.
"""

import functools
from typing import Any

import numpy as np

from mlstm_jax.model.numpy_model import Array, Product, float_product

_ARCHITECTURES = ("SkylakeX", "Cooperlake", "SapphireRapids")
_MOST = 10**6  # multiplications of a product that its kernels take
_GROUP = 8  # rows
_COLUMNS = 64
_ROWS = 128  # of texts at a time: more are hardly faster


@functools.cache
def controller() -> Any:
    """What knows and limits the libraries of NumPy's products; finding them takes time."""
    # Here: machines that only train on GPUs, and read with JAX, may lack it.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@functools.cache
def has_small_kernels() -> bool:
    """Whether the library multiplies small matrices without a copy."""
    found = controller().select(internal_api="openblas").info()
    return any(library["architecture"] in _ARCHITECTURES for library in found)


def fastest() -> dict[str, Any]:
    """What to give to `NumpyModel`, for this processor."""
    if has_small_kernels():
        return {"product": blocked_product, "rows": _ROWS}
    return {}


def blocked_product(v_IO: Array, scale_O: Array) -> Product:
    """The product with W = scale · V in float32."""
    inputs, outputs = v_IO.shape
    if outputs % _COLUMNS or _GROUP * _COLUMNS * inputs > _MOST:
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
