"""The loops over time with the elementwise parts of a step as Pallas kernels, for GPUs.

XLA compiles a step to eight kernels forward and nine backward; this file needs four and four, and
one more for every four steps. Two of each four are Pallas kernels, one after each matrix product.
Each looks up its rows of the tables, writes its step of the time buffers, and adds the parts of the
preceding product, whose sums over H (over 4H backward) are split in two: otherwise a product of B
rows with only H columns is too small to use all processors of a GPU. results/speed has the
measurements.

Each block of threads works on a piece of one row. Pallas has two compilers for GPUs. Triton is
deprecated since jax 0.11; this module uses the other, Mosaic GPU, which compiles for compute
capability 9.0 and later, and since jax 0.11 for 8.0. On a CPU the same kernels run in Pallas's
interpreter, which is slow and only meant for tests.

Arrays and the equations of a step are those of mlstm.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlstm_jax.errors import UserError
from mlstm_jax.model.architecture import Carry
from mlstm_jax.model.fp8 import Quantised, operand
from mlstm_jax.model.mlstm import (
    Gates,
    LayerWeights,
    Saved,
    StepGradients,
    advance,
    gradient,
    step_gradient,
)
from mlstm_jax.model.ops import is_bytes, project, sum_rows
from mlstm_jax.model.stack import Loops, step_of

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


def missing(hidden: int, capability: tuple[int, int] | None, *, fp8: bool = False) -> str | None:
    """Return what the kernels need and the GPU or the model has not; None: nothing.

    Args:
        hidden: H.
        capability: compute capability of the NVIDIA GPU, None if there is none.
        fp8: whether they multiply fp8.
    """
    # Mosaic of jax 0.10 ends the process if it compiles for less than 9.0.
    version = tuple(int(part) for part in jax.__version__.split(".")[:2])
    newest = (8, 9) if fp8 else (8, 0)
    least = newest if version >= (0, 11) else (9, 0)
    gpu = f"an NVIDIA GPU of compute capability {least[0]}.{least[1]} or later"
    if pl is None:
        return f"jax.experimental.pallas, but jax {jax.__version__} has none"
    if capability is None:
        return f"{gpu}, but JAX found none"
    if capability < least:
        problem = f"{gpu}, but this one has {capability[0]}.{capability[1]}"
        if capability >= newest:
            problem += f"; with jax 0.11 or later {newest[0]}.{newest[1]} is enough"
        return problem
    if hidden < LEAST_UNITS:
        return f"a model.hidden of {LEAST_UNITS} or more, but it is {hidden}"
    return None


def require_gpu(hidden: int, capability: tuple[int, int] | None, *, fp8: bool = False) -> None:
    """Raise UserError unless the kernels can run on the GPU; see `missing`."""
    problem = missing(hidden, capability, fp8=fp8)
    if problem is None:
        return
    field = "devices.kernels is 'pallas'"
    advice = "`devices.kernels` xla"
    if fp8:
        field = "precision.recurrent is 'fp8'"
        advice = "`precision.recurrent` compute"
    raise UserError(f"{field}, which needs {problem}; use {advice}.")


def is_proven(hidden: int, capability: tuple[int, int] | None) -> bool:
    """Whether the kernels have trained on such a GPU, an H100 or H200, and can run."""
    return capability == (9, 0) and missing(hidden, capability) is None


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

    def __getitem__(self, index: Any) -> Any:
        if not _is_piece(index):
            return 0  # so that what is moved is that of the first step
        self.bytes += self.piece.size * self.piece.dtype.itemsize
        return jnp.zeros(self.piece.shape, self.piece.dtype)

    def __setitem__(self, index: Any, value: Array) -> None:
        self[index]


class _StepNumber(NamedTuple):
    """The number of a step of a loop, whose turns have several steps each."""

    turn: Array
    each: int
    offset: int

    def __call__(self, turn: Any) -> Any:
        """The number, of `turn` as it is read."""
        return turn * self.each + self.offset


def _run_steps(window: int, step: Callable[[_StepNumber, Any], Any], carried: Any) -> Any:
    """Run the steps of a window, four in each turn: XLA counts turns with one kernel each."""
    each = next(n for n in (4, 2, 1) if window % n == 0)

    def turn(number: Array, carried: Any) -> Any:
        for offset in range(each):
            carried = step(_StepNumber(number, each, offset), carried)
        return carried

    return jax.lax.fori_loop(0, window // each, turn, carried)


def _launch(
    name: str,
    body: Callable[..., None],
    step: _StepNumber,
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
        body: called with (step, row, first unit, number of units) and then references to `inputs`,
            `in_place` and `outputs`. It must not read what it writes, because pieces overlap if
            their size does not divide `hidden`.
        step: the number of the step.
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
    inputs = (jnp.int32(step.turn)[None], *inputs)
    shapes = [Shape(x.shape, x.dtype) for x in in_place]
    count = len(in_place)

    def run_body(row: Array, piece: Array, turn_1: Any, *references: Any) -> None:
        start = jnp.minimum(piece * size, hidden - size)
        body(step(turn_1[0]), row, start, size, *references)

    if interpret:
        # The interpreter passes each in-place array twice: once to read, once to write.
        first = len(inputs)

        def interpreted(*references: Any) -> None:
            written = references[first + count :]
            run_body(pl.program_id(0), pl.program_id(1), *references[:first], *written)

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
        run_body(jax.lax.axis_index("row"), jax.lax.axis_index("piece"), *spread)

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
    jax.eval_shape(lambda row: run_body(row, row, *counted), Shape((), jnp.int32))
    moved = "_".join(str(grid[0] * grid[1] * array.bytes) for array in counted)
    unwritten = [jax.lax.empty(x.shape, x.dtype) for x in outputs]
    with jax.named_scope(f"moves_{moved}_bytes"):
        results = pl.run_state(lambda written: call(*inputs, *written))((*in_place, *unwritten))
    return tuple(results[:count]), tuple(results[count:])


def _parts(width: int) -> int:
    return 2 if width % 2 == 0 else 1


def _product(
    w: Array | Quantised, parts: int, *, transposed: bool = False
) -> Callable[[Array], Array]:
    """Return the product x → x W, or x Wᵀ, as parts to be added: float32 [P, B, O].

    That of fp8 operands is in units of `_scales`. Call it outside of the loop.
    """
    if isinstance(w, Quantised):
        # cuBLAS wants the summed axis last in both operands.
        w_OI = w.w_IO if transposed else w.w_IO.T
        w_OPI = w_OI.reshape(w_OI.shape[0], parts, -1)
        w_POI = jax.lax.optimization_barrier(w_OPI.swapaxes(0, 1))
        form = "bpi,poi->pbo"
    else:
        w_IO = w.T if transposed else w
        w_POI = w_IO.reshape(parts, -1, w_IO.shape[1])
        form = "bpi,pio->pbo"

    def product(x: Array) -> Array:
        x_BPI = x.reshape(x.shape[0], parts, -1)
        return jnp.einsum(form, x_BPI, w_POI, preferred_element_type=float32)

    return product


def _scales(*matrices: Array | Quantised, transposed: bool) -> Array:
    """Return for each matrix the scale of its operand and the unit of its product, float32 [2·n].

    They are 1 without fp8.
    """
    values = []
    for w in matrices:
        scale = jnp.float32(1)
        unit = scale
        if isinstance(w, Quantised):
            scale = w.scale_of(transposed=transposed)
            unit = 1 / (scale * w.scale)
        values += [scale, unit]
    return jax.lax.optimization_barrier(jnp.stack(values))


def _operand_type(w: Array | Quantised) -> Any:
    return w.w_IO.dtype if isinstance(w, Quantised) else w.dtype


def _add(parts: Any, row: Array, units: Any) -> Array:
    whole = parts[0, row, units]
    for k in range(1, parts.shape[0]):
        whole = whole + parts[k, row, units]
    return whole


def _input_arrays(x_TB: Array, t: _StepNumber, w_IO: Array) -> tuple[Array, ...]:
    """Return the arrays from which a kernel reads x_t W: the bytes and the table, or x_t W."""
    if is_bytes(x_TB):
        return x_TB, w_IO
    return (project(step_of(x_TB, t(t.turn)), w_IO),)


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
    kind = _operand_type(weights.wmh_HH)
    made = (Shape((rows, hidden), kind),)
    scales_4 = _scales(weights.wmh_HH, weights.wh_HG, transposed=False)
    times_wmh = _product(weights.wmh_HH, _parts(hidden))
    times_wh = _product(weights.wh_HG, 1)

    def multiply(t: Array, row: Array, start: Array, size: int, *references: Any) -> None:
        scales_4, *read_mx, mh_PBH, mh_buffer, m_BH = references
        units = pl.ds(start, size)
        mh = _add(mh_PBH, row, units) * scales_4[1]
        m_BH[row, units] = operand(_look_up(read_mx, t, row, units) * mh, scales_4[2], kind)
        mh_buffer[t, row, units] = mh.astype(compute)

    def advance_units(t: Array, row: Array, start: Array, size: int, *references: Any) -> None:
        scales_4, z_PBG, b_G, *read_zx, h_BH, c_buffer, h_buffer, gates_buffer, h_operand = (
            references
        )
        units = pl.ds(start, size)
        z = []
        for k in range(4):
            gate = pl.ds(start + k * hidden, size)
            mwh = _add(z_PBG, row, gate) * scales_4[3]
            z.append(_look_up(read_zx, t, row, gate) + mwh + b_G[gate])
        gates, h, c = advance(tuple(z), c_buffer[t, row, units].astype(float32))

        @pl.when(t == window - 1)
        def _() -> None:
            h_BH[row, units] = h

        # A step writes other elements than it reads, see `_launch`.
        c_buffer[t + 1, row, units] = c.astype(carry.c.dtype)
        h_buffer[t, row, units] = h.astype(compute)
        h_operand[row, units] = operand(h.astype(compute), scales_4[0], kind)
        for k, value in enumerate(gates):
            gates_buffer[t, k, row, units] = value.astype(compute)

    def step(t: _StepNumber, before: tuple[Array, ...]) -> tuple[Array, ...]:
        h_operand, mh_buffer, *in_place = before
        mx = _input_arrays(x_TB, t, weights.wmx_IH)
        zx = _input_arrays(x_TB, t, weights.wx_IG)
        inputs = (scales_4, *mx, times_wmh(h_operand))
        (mh_buffer,), (m_BH,) = run("multiply", multiply, t, inputs, (mh_buffer,), made)
        inputs = (scales_4, times_wh(m_BH), weights.b_G, *zx)
        in_place, (h_operand,) = run("advance", advance_units, t, inputs, tuple(in_place), made)
        return h_operand, mh_buffer, *in_place

    c_buffer = jax.lax.empty((window + 1, rows, hidden), carry.c.dtype).at[0].set(carry.c)
    h_buffer = jax.lax.empty((window, rows, hidden), compute)
    mh_buffer = jax.lax.empty((window, rows, hidden), compute)
    gates_buffer = jax.lax.empty((window, 4, rows, hidden), compute)
    first_h = operand(carry.h.astype(compute), scales_4[0], kind)
    before = (first_h, mh_buffer, carry.h, c_buffer, h_buffer, gates_buffer)
    after = _run_steps(window, step, before)
    _, mh_buffer, h_BH, c_buffer, h_buffer, gates_buffer = after
    return Carry(h_BH, c_buffer[window]), Saved(h_buffer, c_buffer, (mh_buffer, gates_buffer))


def _backward_loop(
    interpret: bool,
    first: Carry,
    x_TB: Array,
    weights: LayerWeights,
    saved: Saved,
    compute: Any,
    dlast: Carry,
    dh_TBH: Array,
) -> StepGradients:
    """Run back through the window; see `Loops`.

    dmh of a step is stored at the place of the step before, and so beside the h that it belongs to.
    """
    window = x_TB.shape[0]
    rows, hidden = first.h.shape
    run: Any = partial(_launch, rows=rows, hidden=hidden, interpret=interpret)
    mh_TBH, gates_T4BH = saved.mh_gates
    kind = _operand_type(weights.wh_HG)
    scales_4 = _scales(weights.wh_HG, weights.wmh_HH, transposed=True)
    times_wh = _product(weights.wh_HG, _parts(4 * hidden), transposed=True)
    times_wmh = _product(weights.wmh_HH, _parts(hidden), transposed=True)
    mx: tuple[Array, ...] = (x_TB, weights.wmx_IH)
    if not is_bytes(x_TB):
        mx = (project(*mx),)

    def gate_gradients(k: Array, row: Array, start: Array, size: int, *references: Any) -> None:
        scales_4, dh_PBH, dh_TBH, before_c, gates_T4BH, dc_2BH, dz_buffer, dz_BG = references
        t = window - 1 - k
        units = pl.ds(start, size)
        dh = _add(dh_PBH, row, units) * scales_4[3] + dh_TBH[t, row, units].astype(float32)
        gates = Gates(*(gates_T4BH[t, n, row, units].astype(float32) for n in range(4)))
        c = before_c[t, row, units].astype(float32)
        dz_gates, dc = step_gradient(gates, c, dh, dc_2BH[k % 2, row, units])
        dc_2BH[(k + 1) % 2, row, units] = dc
        for n, dz in enumerate(dz_gates):
            gate = pl.ds(start + n * hidden, size)
            dz_buffer[t, row, gate] = dz.astype(compute)
            dz_BG[row, gate] = operand(dz.astype(compute), scales_4[0], kind)

    def multiply_gradients(k: Array, row: Array, start: Array, size: int, *references: Any) -> None:
        scales_4, dm_PBH, mh_TBH, *read_mx, dmh_buffer, dmx_buffer, first_dmh, dmh_operand = (
            references
        )
        t = window - 1 - k
        units = pl.ds(start, size)
        dm = _add(dm_PBH, row, units) * scales_4[1]
        dmh = (dm * _look_up(read_mx, t, row, units)).astype(compute)
        dmx_buffer[t, row, units] = (dm * mh_TBH[t, row, units].astype(float32)).astype(compute)
        dmh_operand[row, units] = operand(dmh, scales_4[2], kind)

        @pl.when(t > 0)
        def _() -> None:
            dmh_buffer[t - 1, row, units] = dmh

        @pl.when(t == 0)
        def _() -> None:
            first_dmh[row, units] = dmh

    def step(k: _StepNumber, later: tuple[Array, ...]) -> tuple[Array, ...]:
        dh_PBH, dc_2BH, dz_buffer, *in_place = later
        inputs: tuple[Array, ...] = (scales_4, dh_PBH, dh_TBH, saved.before_c, gates_T4BH)
        made = (Shape((rows, 4 * hidden), kind),)
        (dc_2BH, dz_buffer), (dz_BG,) = run(
            "gate_gradients", gate_gradients, k, inputs, (dc_2BH, dz_buffer), made
        )
        inputs = (scales_4, times_wh(dz_BG), mh_TBH, *mx)
        made = (Shape((rows, hidden), kind),)
        in_place, (dmh_BH,) = run(
            "multiply_gradients", multiply_gradients, k, inputs, tuple(in_place), made
        )
        return times_wmh(dmh_BH), dc_2BH, dz_buffer, *in_place

    # The cotangent of c, before and after a step.
    dc_2BH = jax.lax.empty((2, rows, hidden), float32).at[0].set(dlast.c.astype(float32))
    # The kernel multiplies by the unit of the product.
    dh_PBH = jnp.zeros((_parts(hidden), rows, hidden), float32).at[0].set(dlast.h / scales_4[3])
    dz_buffer = jax.lax.empty((window, rows, 4 * hidden), compute)
    dmh_buffer = jax.lax.empty((window, rows, hidden), compute).at[window - 1].set(0)
    dmx_buffer = jax.lax.empty((window, rows, hidden), compute)
    first_dmh = jax.lax.empty((rows, hidden), compute)
    later = (dh_PBH, dc_2BH, dz_buffer, dmh_buffer, dmx_buffer, first_dmh)
    later = _run_steps(window, step, later)
    dh_PBH, dc_2BH, dz_TBG, dmh_TBH, dmx_TBH, first_dmh = later
    # XLA would merge this product with that of the decoder's gradient, which also reads h, and for
    # that copy both.
    h_TBH = jax.lax.optimization_barrier(saved.h)
    dwmh_HH = sum_rows(h_TBH, dmh_TBH) + sum_rows(first.h.astype(compute), first_dmh)
    carry = Carry(jnp.sum(dh_PBH, axis=0) * scales_4[3], dc_2BH[window % 2])
    return StepGradients(carry, dz_TBG, dmh_TBH, dmx_TBH, dwmh_HH)


# Our kernels, on a GPU; and in Pallas's interpreter, for tests.
PALLAS = Loops(partial(_forward_loop, False), partial(gradient, partial(_backward_loop, False)))
INTERPRETED = Loops(partial(_forward_loop, True), partial(gradient, partial(_backward_loop, True)))
