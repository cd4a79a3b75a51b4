"""The loops over time with the elementwise parts of a step as Pallas kernels, for GPUs.

XLA compiles a step to eight kernels forward and nine backward; this file needs five and five. Two
of each five are Pallas kernels, one after each matrix product. Each looks up its rows of the
tables, writes its step of the time buffers, and adds the parts of the preceding product, whose sums
over H (over 4H backward) are split in two: otherwise a product of B rows with only H columns is too
small to use all processors of a GPU. results/speed has the measurements.

Each block of threads works on a piece of one row. Pallas has two compilers for GPUs. Triton is
deprecated since jax 0.11; this module uses the other, Mosaic GPU, which compiles for compute
capability 9.0 and later, and since jax 0.11 for 8.0. On a CPU the same kernels run in Pallas's
interpreter, which is slow and only meant for tests.

Arrays and the equations of a step are those of mlstm.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from mlstm_jax.errors import UserError
from mlstm_jax.model.architecture import Carry
from mlstm_jax.model.mlstm import Gates, LayerWeights, Saved, advance, gradient, step_gradient
from mlstm_jax.model.ops import dot, is_bytes, project
from mlstm_jax.model.stack import Loops

try:
    # The only file that imports Pallas, and below Mosaic. Without it devices.kernels cannot be
    # "pallas"; XLA's loops compute the same numbers, to rounding.
    from jax.experimental import pallas as pl
except ImportError:
    pl = None  # type: ignore[assignment]

Array = jax.Array
float32 = jnp.float32
Shape = jax.ShapeDtypeStruct

# Mosaic distributes an array over the 128 threads of a warp group.
LEAST_UNITS = 128


def require_gpu(hidden: int, capability: tuple[int, int] | None) -> None:
    """Raise UserError unless the kernels can run on the GPU.

    Args:
        hidden: H.
        capability: compute capability of the NVIDIA GPU, None if there is none.
    """
    # Mosaic of jax 0.10 ends the process if it compiles for less than 9.0.
    version = tuple(int(part) for part in jax.__version__.split(".")[:2])
    least = (8, 0) if version >= (0, 11) else (9, 0)
    gpu = f"an NVIDIA GPU of compute capability {least[0]}.{least[1]} or later"
    if pl is None:
        problem = f"jax.experimental.pallas, but jax {jax.__version__} has none"
    elif capability is None:
        problem = f"{gpu}, but JAX found none"
    elif capability < least:
        problem = f"{gpu}, but this one has {capability[0]}.{capability[1]}"
        if capability >= (8, 0):
            problem += "; with jax 0.11 or later 8.0 is enough"
    elif hidden < LEAST_UNITS:
        problem = f"a model.hidden of {LEAST_UNITS} or more, but it is {hidden}"
    else:
        return
    raise UserError(
        f"devices.kernels is 'pallas', which needs {problem}; use `devices.kernels` xla."
    )


def _piece(hidden: int) -> int:
    """Return the number of units of a block; the last piece may overlap the previous one."""
    # A thread reads up to 4 units at once, and their offset must be a multiple of their number.
    return next((n for n in (512, 256) if hidden % n == 0), min(LEAST_UNITS, hidden))


def _is_piece(index: Any) -> bool:
    """Whether an index of a reference ends with a slice of units, and not with a number."""
    last = index[-1] if isinstance(index, tuple) else index
    return isinstance(last, pl.Slice)


class _Spread:
    """A reference whose pieces have the same layout over the threads, whatever their type."""

    def __init__(self, reference: Any, size: int) -> None:
        self.reference = reference
        self.size = size
        self.shape = reference.shape

    def __getitem__(self, index: Any) -> Array:
        value = self.reference[index]
        if not _is_piece(index):
            return value
        from jax.experimental.pallas import mosaic_gpu

        each = self.size // LEAST_UNITS
        layout = mosaic_gpu.Layout.WG_STRIDED((self.size,), vec_size=each)
        return mosaic_gpu.layout_cast(value, layout)

    def __setitem__(self, index: Any, value: Array) -> None:
        self.reference[index] = value


class _Counted:
    """Replaces a reference, and counts the bytes of the pieces that a kernel moves."""

    def __init__(self, array: Array | Shape, size: int) -> None:
        self.shape = array.shape
        self.piece = Shape((size,), array.dtype)
        self.bytes = 0

    def __getitem__(self, index: Any) -> Array:
        if not _is_piece(index):
            return jnp.zeros((), self.piece.dtype)
        self.bytes += self.piece.size * self.piece.dtype.itemsize
        return jnp.zeros(self.piece.shape, self.piece.dtype)

    def __setitem__(self, index: Any, value: Array) -> None:
        self[index]


def _launch(
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
    grid = (rows, pl.cdiv(hidden, size))
    shapes = [Shape(x.shape, x.dtype) for x in in_place]
    count = len(in_place)

    def at(row: Array, piece: Array) -> tuple[Array, Array, int]:
        return row, jnp.minimum(piece * size, hidden - size), size

    if interpret:
        # The interpreter passes each in-place array twice: once to read, once to write.
        first = len(inputs)

        def interpreted(*references: Any) -> None:
            written = references[first + count :]
            body(*at(pl.program_id(0), pl.program_id(1)), *references[:first], *written)

        results = pl.pallas_call(
            interpreted,
            out_shape=(*shapes, *outputs),
            grid=grid,
            input_output_aliases={first + k: k for k in range(count)},
            interpret=True,
            name=name,
        )(*inputs, *in_place)
        return tuple(results[:count]), tuple(results[count:])

    from jax.experimental.pallas import mosaic_gpu

    def kernel(*references: Any) -> None:
        spread = [_Spread(reference, size) for reference in references]
        body(*at(jax.lax.axis_index("row"), jax.lax.axis_index("piece")), *spread)

    call = pl.kernel(
        kernel,
        mesh=mosaic_gpu.Mesh(grid=grid, grid_names=("row", "piece")),
        compiler_params=mosaic_gpu.CompilerParams(),
        name=name,
    )
    # The compiled program keeps this name, and benchmarks/compiled_program.py reads it there:
    # XLA knows only the arrays of such a kernel, most of which cover all steps.
    arrays: tuple[Array | Shape, ...] = (*inputs, *shapes, *outputs)
    counted = [_Counted(x, size) for x in arrays]
    jax.eval_shape(lambda row: body(row, row, size, *counted), Shape((), jnp.int32))
    moved = "_".join(str(grid[0] * grid[1] * array.bytes) for array in counted)
    unwritten = [jax.lax.empty(x.shape, x.dtype) for x in outputs]
    with jax.named_scope(f"moves_{moved}_bytes"):
        results = pl.run_state(lambda written: call(*inputs, *written))((*in_place, *unwritten))
    return tuple(results[:count]), tuple(results[count:])


def _parts(width: int) -> int:
    return 2 if width % 2 == 0 else 1


def _partial_dots(x: Array, w_IO: Array) -> Array:
    """Return x W as parts to be added: float32 [P, B, O]."""
    parts = _parts(w_IO.shape[0])
    x_BPI = x.reshape(x.shape[0], parts, -1)
    w_PIO = w_IO.reshape(parts, -1, w_IO.shape[1])
    return jnp.einsum("bpi,pio->pbo", x_BPI, w_PIO, preferred_element_type=float32)


def _add(parts: Any, row: Array, units: Any) -> Array:
    whole = parts[0, row, units]
    for k in range(1, parts.shape[0]):
        whole = whole + parts[k, row, units]
    return whole


def _input_arrays(x_TB: Array, t: Array, w_IO: Array) -> tuple[Array, ...]:
    """Return the arrays from which a kernel reads x_t W: the bytes and the table, or x_t W."""
    if is_bytes(x_TB):
        return x_TB, w_IO
    return (project(jax.lax.dynamic_index_in_dim(x_TB, t, keepdims=False), w_IO),)


def _look_up(references: list[Any], t: Array, row: Array, units: Any) -> Array:
    """Return x_t W for some units of a row, of bytes and a table, of x_t W, or of x W [T, B, O]."""
    if len(references) == 2:
        bytes_TB, table = references
        return table[bytes_TB[t, row], units]
    (xw,) = references
    return xw[row, units] if len(xw.shape) == 2 else xw[t, row, units]


def _forward_loop(
    interpret: bool, carry: Carry, x_TB: Array, weights: LayerWeights, compute: Any
) -> tuple[Carry, Saved]:
    """Run the window; see `Loops`. `before_c` also has c after the last step, [T + 1, B, H]."""
    window = x_TB.shape[0]
    rows, hidden = carry.h.shape
    run: Any = partial(_launch, rows=rows, hidden=hidden, interpret=interpret)
    rounded = Shape((rows, hidden), compute)

    def multiply(row: Array, start: Array, size: int, *references: Any) -> None:
        t_1, *read_mx, mh_PBH, mh_gates, m_BH = references
        t = t_1[0]
        units = pl.ds(start, size)
        mh = _add(mh_PBH, row, units)
        m_BH[row, units] = (_look_up(read_mx, t, row, units) * mh).astype(compute)
        mh_gates[t, 0, row, units] = mh.astype(compute)

    def advance_units(row: Array, start: Array, size: int, *references: Any) -> None:
        t_1, z_BG, b_G, *read_zx, h_BH, c_buffer, h_buffer, mh_gates, rounded_h = references
        t = t_1[0]
        units = pl.ds(start, size)
        z = []
        for k in range(4):
            gate = pl.ds(start + k * hidden, size)
            z.append(_look_up(read_zx, t, row, gate) + z_BG[row, gate] + b_G[gate])
        gates, h, c = advance(tuple(z), c_buffer[t, row, units].astype(float32))
        # A step writes other elements than it reads, see `_launch`.
        h_BH[row, units] = h
        c_buffer[t + 1, row, units] = c.astype(carry.c.dtype)
        h_buffer[t, row, units] = h.astype(compute)
        rounded_h[row, units] = h.astype(compute)
        for k, value in enumerate(gates):
            mh_gates[t, k + 1, row, units] = value.astype(compute)

    def step(t: Array, before: tuple[Array, ...]) -> tuple[Array, ...]:
        rounded_h, h_BH, c_buffer, h_buffer, mh_gates = before
        mx = _input_arrays(x_TB, t, weights.wmx_IH)
        zx = _input_arrays(x_TB, t, weights.wx_IG)
        inputs = (jnp.int32(t)[None], *mx, _partial_dots(rounded_h, weights.wmh_HH))
        (mh_gates,), (m_BH,) = run("multiply", multiply, inputs, (mh_gates,), (rounded,))
        inputs = (jnp.int32(t)[None], dot(m_BH, weights.wh_HG), weights.b_G, *zx)
        in_place = (h_BH, c_buffer, h_buffer, mh_gates)
        in_place, (rounded_h,) = run("advance", advance_units, inputs, in_place, (rounded,))
        return rounded_h, *in_place

    c_buffer = jax.lax.empty((window + 1, rows, hidden), carry.c.dtype).at[0].set(carry.c)
    h_buffer = jax.lax.empty((window, rows, hidden), compute)
    mh_gates = jax.lax.empty((window, 5, rows, hidden), compute)
    before = (carry.h.astype(compute), carry.h, c_buffer, h_buffer, mh_gates)
    _, h_BH, c_buffer, h_buffer, mh_gates = jax.lax.fori_loop(0, window, step, before)
    return Carry(h_BH, c_buffer[window]), Saved(h_buffer, c_buffer, (mh_gates,))


def _backward_loop(
    interpret: bool,
    first: Carry,
    x_TB: Array,
    weights: LayerWeights,
    saved: Saved,
    compute: Any,
    dlast: Carry,
    dh_TBH: Array,
) -> tuple[Array, Array, Array, Array]:
    """Run back through the window; see `Loops`."""
    window = x_TB.shape[0]
    rows, hidden = first.h.shape
    run: Any = partial(_launch, rows=rows, hidden=hidden, interpret=interpret)
    mh_gates = saved.mh_gates[0]
    wmh_transposed = weights.wmh_HH.T
    wh_transposed = weights.wh_HG.T
    mx: tuple[Array, ...] = (x_TB, weights.wmx_IH)
    if not is_bytes(x_TB):
        mx = (project(*mx),)

    def gate_gradients(row: Array, start: Array, size: int, *references: Any) -> None:
        k_1, dh_PBH, dh_TBH, before_c, mh_gates, dc_2BH, dz_buffer, dz_BG = references
        k = k_1[0]
        t = window - 1 - k
        units = pl.ds(start, size)
        dh = _add(dh_PBH, row, units) + dh_TBH[t, row, units].astype(float32)
        gates = Gates(*(mh_gates[t, n, row, units].astype(float32) for n in range(1, 5)))
        c = before_c[t, row, units].astype(float32)
        dz_gates, dc = step_gradient(gates, c, dh, dc_2BH[k % 2, row, units])
        dc_2BH[(k + 1) % 2, row, units] = dc
        for n, dz in enumerate(dz_gates):
            gate = pl.ds(start + n * hidden, size)
            dz_buffer[t, row, gate] = dz.astype(compute)
            dz_BG[row, gate] = dz.astype(compute)

    def multiply_gradients(row: Array, start: Array, size: int, *references: Any) -> None:
        k_1, dm_PBH, mh_gates, *read_mx, dm_buffer, dmh_BH = references
        t = window - 1 - k_1[0]
        units = pl.ds(start, size)
        dm = _add(dm_PBH, row, units)
        dmh = (dm * _look_up(read_mx, t, row, units)).astype(compute)
        dmx = (dm * mh_gates[t, 0, row, units].astype(float32)).astype(compute)
        dmh_BH[row, units] = dmh
        dm_buffer[t, 0, row, units] = dmh
        dm_buffer[t, 1, row, units] = dmx

    def step(k: Array, later: tuple[Array, ...]) -> tuple[Array, ...]:
        dh_PBH, dc_2BH, dz_buffer, dm_buffer = later
        inputs: tuple[Array, ...] = (jnp.int32(k)[None], dh_PBH, dh_TBH, saved.before_c, mh_gates)
        in_place = (dc_2BH, dz_buffer)
        made = (Shape((rows, 4 * hidden), compute),)
        (dc_2BH, dz_buffer), (dz_BG,) = run(
            "gate_gradients", gate_gradients, inputs, in_place, made
        )
        inputs = (jnp.int32(k)[None], _partial_dots(dz_BG, wh_transposed), mh_gates, *mx)
        made = (Shape((rows, hidden), compute),)
        (dm_buffer,), (dmh_BH,) = run(
            "multiply_gradients", multiply_gradients, inputs, (dm_buffer,), made
        )
        return _partial_dots(dmh_BH, wmh_transposed), dc_2BH, dz_buffer, dm_buffer

    # The cotangent of c, before and after a step.
    dc_2BH = jax.lax.empty((2, rows, hidden), float32).at[0].set(dlast.c.astype(float32))
    dh_PBH = jnp.zeros((_parts(hidden), rows, hidden), float32).at[0].set(dlast.h)
    dz_buffer = jax.lax.empty((window, rows, 4 * hidden), compute)
    dm_buffer = jax.lax.empty((window, 2, rows, hidden), compute)
    later = (dh_PBH, dc_2BH, dz_buffer, dm_buffer)
    dh_PBH, dc_2BH, dz_buffer, dm_buffer = jax.lax.fori_loop(0, window, step, later)
    return jnp.sum(dh_PBH, axis=0), dc_2BH[window % 2], dz_buffer, dm_buffer


# Our kernels, on a GPU; and in Pallas's interpreter, for tests.
PALLAS = Loops(partial(_forward_loop, False), partial(gradient, partial(_backward_loop, False)))
INTERPRETED = Loops(partial(_forward_loop, True), partial(gradient, partial(_backward_loop, True)))
