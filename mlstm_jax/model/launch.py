"""How a kernel of one step is launched: each block of threads works on a piece of one row.

Pallas has two compilers for GPUs. Triton is deprecated since jax 0.11; this module uses the other,
Mosaic GPU, which compiles for compute capability 9.0 and later, and since jax 0.11 for 8.0. On a
CPU the same kernels run in Pallas's interpreter, which is slow and only meant for tests.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mlstm_jax.errors import UserError

try:
    # The only file that imports Pallas, and below Mosaic. Without it devices.kernels cannot be
    # "pallas"; XLA's loops compute the same numbers, to rounding.
    from jax.experimental import pallas as pl
except ImportError:
    pl = None  # type: ignore[assignment]

Array = jax.Array
Shape = jax.ShapeDtypeStruct

# Mosaic distributes an array over the 128 threads of a warp group.
LEAST_UNITS = 128


def require_gpu(hidden: int, capability: tuple[int, int] | None) -> None:
    """Raise UserError unless the kernels can run on the GPU.

    Args:
        hidden: H.
        capability: compute capability of the NVIDIA GPU, None if there is none.
    """
    if pl is None:
        raise UserError(
            f"devices.kernels is 'pallas', but jax {jax.__version__} has no "
            "jax.experimental.pallas; use --devices.kernels xla."
        )
    # Mosaic of jax 0.10 ends the process if it compiles for less than 9.0.
    has_older = tuple(int(part) for part in jax.__version__.split(".")[:2]) >= (0, 11)
    least = (8, 0) if has_older else (9, 0)
    need = f"an NVIDIA GPU of compute capability {least[0]}.{least[1]} or later"
    if capability is None:
        found = "JAX found none"
    elif capability < least:
        found = f"this one has {capability[0]}.{capability[1]}"
        if capability >= (8, 0):
            found += "; with jax 0.11 or later 8.0 is enough"
    elif hidden < LEAST_UNITS:
        need, found = f"a model.hidden of {LEAST_UNITS} or more", f"it is {hidden}"
    else:
        return
    raise UserError(
        f"devices.kernels is 'pallas', which needs {need}, but {found}; use --devices.kernels xla."
    )


def _piece(hidden: int) -> int:
    """Return the number of units of a block; the last piece may overlap the previous one."""
    # A thread reads up to 4 units at once, and their offset must be a multiple of their number.
    return next((n for n in (512, 256) if hidden % n == 0), min(LEAST_UNITS, hidden))


class _Spread:
    """A reference whose pieces have the same layout over the threads, whatever their type."""

    def __init__(self, reference: Any, size: int) -> None:
        self.reference = reference
        self.size = size
        self.shape = reference.shape

    def __getitem__(self, index: Any) -> Array:
        index = index if isinstance(index, tuple) else (index,)
        if not isinstance(index[-1], pl.Slice):
            return self.reference[index]
        from jax.experimental.pallas import mosaic_gpu

        each = self.size // LEAST_UNITS
        layout = mosaic_gpu.Layout.WG_STRIDED((self.size,), vec_size=each)
        return mosaic_gpu.layout_cast(self.reference[index], layout)

    def __setitem__(self, index: Any, value: Array) -> None:
        self.reference[index] = value


class _Counted:
    """Replaces a reference, and counts the bytes of the pieces that a kernel moves."""

    def __init__(self, array: Array | Shape, size: int) -> None:
        self.shape, self.dtype, self.size = array.shape, array.dtype, size
        self.bytes = 0

    def _count(self, index: Any) -> tuple[int, ...]:
        index = index if isinstance(index, tuple) else (index,)
        if not isinstance(index[-1], pl.Slice):
            return ()
        self.bytes += self.size * self.dtype.itemsize
        return (self.size,)

    def __getitem__(self, index: Any) -> Array:
        return jnp.zeros(self._count(index), self.dtype)

    def __setitem__(self, index: Any, value: Array) -> None:
        self._count(index)


def _bytes_moved(
    body: Callable[..., None], arrays: tuple[Array | Shape, ...], size: int
) -> list[int]:
    """Return the number of bytes of each array that a block reads and writes."""
    counted = [_Counted(x, size) for x in arrays]
    jax.eval_shape(lambda at: body(at, at, size, *counted), Shape((), jnp.int32))
    return [x.bytes for x in counted]


def launch(
    name: str,
    body: Callable[..., None],
    inputs: tuple[Array, ...],
    in_place: tuple[Array, ...],
    outputs: tuple[Shape, ...],
    rows: int,
    hidden: int,
    interpret: bool,
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Run a kernel over all units of all rows.

    Args:
        name: its name in profilers and in the compiled program.
        body: called with (row, first unit, number of units) and then references to `inputs`,
            `in_place` and `outputs`. It must not read what it writes, because pieces overlap if
            their size does not divide `hidden`.
        inputs: arrays that it reads.
        in_place: arrays that it reads and writes.
        outputs: shapes and types of its outputs.
        rows: B.
        hidden: H.
        interpret: run the kernel in Pallas's interpreter.

    Returns:
        `in_place` after the kernel, and the outputs.
    """
    size = _piece(hidden)
    grid = rows, pl.cdiv(hidden, size)

    def at(row: Array, piece: Array) -> tuple[Array, Array, int]:
        return row, jnp.minimum(piece * size, hidden - size), size

    if interpret:
        # The interpreter passes each in-place array twice: once to read, once to write.
        first = len(inputs)

        def interpreted(*references: Any) -> None:
            written = references[first + len(in_place) :]
            body(*at(pl.program_id(0), pl.program_id(1)), *references[:first], *written)

        made = pl.pallas_call(
            interpreted,
            out_shape=(*(Shape(x.shape, x.dtype) for x in in_place), *outputs),
            grid=grid,
            input_output_aliases={first + k: k for k in range(len(in_place))},
            interpret=True,
            name=name,
        )(*inputs, *in_place)
        return tuple(made[: len(in_place)]), tuple(made[len(in_place) :])

    from jax.experimental.pallas import mosaic_gpu

    def kernel(*references: Any) -> None:
        spread = (_Spread(reference, size) for reference in references)
        body(*at(jax.lax.axis_index("row"), jax.lax.axis_index("piece")), *spread)

    call = pl.kernel(
        kernel,
        mesh=mosaic_gpu.Mesh(grid=grid, grid_names=("row", "piece")),
        compiler_params=mosaic_gpu.CompilerParams(),
        name=name,
    )
    unwritten = (jax.lax.empty(x.shape, x.dtype) for x in outputs)
    run = pl.run_state(lambda written: call(*inputs, *written))
    # The compiled program keeps this name, and compiled/kernels.py reads it there: XLA knows only
    # the arrays of such a kernel, most of which cover all steps.
    moved = _bytes_moved(body, (*inputs, *in_place, *outputs), size)
    with jax.named_scope(f"moves_{'_'.join(str(rows * grid[1] * n) for n in moved)}_bytes"):
        made = run((*in_place, *unwritten))
    return tuple(made[: len(in_place)]), tuple(made[len(in_place) :])
