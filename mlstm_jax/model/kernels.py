"""The mLSTM's loops over time with the elementwise parts of a step as Pallas kernels, for GPUs.

XLA compiles a step to eight kernels forward and nine backward; this file needs four and four, and
one more for every four steps. Two of each four are Pallas kernels, one after each matrix product.
Each looks up its rows of the tables, writes its step of the time buffers, and adds the parts of the
preceding product, whose sums over H (over 4H backward) are split in two: otherwise a product of B
rows with only H columns is too small to use all processors of a GPU. results/speed has the
measurements.

With fp8 operands (fp8.py) the kernels write E4M3, and multiply the products by their unit; the
scales are 1 without fp8. mlstm.py explains the arrays and the equations of a step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from mlstm_jax.model.architecture import LSTMCarry
from mlstm_jax.model.fp8 import Quantised, maxima, operand
from mlstm_jax.model.mlstm import advance, read_m, step_gradient, weight_gradients
from mlstm_jax.model.ops import is_bytes, project, sum_rows
from mlstm_jax.model.pallas import Grid, StepNumber, pl, run_steps
from mlstm_jax.model.stack import Cotangents, Loops, Residuals, Weights
from mlstm_jax.model.time_loop import step_of

Array = jax.Array
float32 = jnp.float32
Shape = jax.ShapeDtypeStruct


def _parts(width: int) -> int:
    return 2 if width % 2 == 0 else 1


def _product(
    w: Array | Quantised, parts: int, *, transposed: bool = False
) -> Callable[[Array], Array]:
    """The product x → x W, or x Wᵀ, as parts to be added, in units of `_scales` [P, B, O]."""
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
    """For each matrix the scale of its operand and the unit of its product: 1 without fp8."""
    values: list[Array] = []
    for w in matrices:
        if isinstance(w, Quantised):
            values += w.scale_and_unit(transposed=transposed)
        else:
            values += [jnp.float32(1), jnp.float32(1)]
    return jax.lax.optimization_barrier(jnp.stack(values))


def _add(parts: Any, row: Array, units: Any) -> Array:
    whole = parts[0, row, units]
    for k in range(1, parts.shape[0]):
        whole = whole + parts[k, row, units]
    return whole


def _input_arrays(x_TB: Array, t: StepNumber, w_IO: Array) -> tuple[Array, ...]:
    """The arrays from which a kernel reads x_t W: the bytes and the table, or x_t W."""
    if is_bytes(x_TB):
        return x_TB, w_IO
    return (project(step_of(x_TB, t(t.turn)), w_IO),)


def _look_up(references: list[Any], t: Array, row: Array, units: Any) -> Array:
    """x_t W for some units of a row, of bytes and a table, of x_t W, or of x W [T, B, O]."""
    if len(references) == 2:
        bytes_TB, table = references
        return table[bytes_TB[t, row], units]
    (xw,) = references
    return xw[row, units] if len(xw.shape) == 2 else xw[t, row, units]


def _multiply(t: Array, row: Array, start: Array, size: int, *references: Any) -> None:
    """A kernel forward: m = mx · mh of some units of a row, for the product z = m Wh."""
    scales_4, *read_mx, mh_PBH, mh_buffer, m_BH = references
    units = pl.ds(start, size)
    mh = _add(mh_PBH, row, units) * scales_4[1]
    m_BH[row, units] = operand(_look_up(read_mx, t, row, units) * mh, scales_4[2], m_BH.dtype)
    mh_buffer[t, row, units] = mh.astype(mh_buffer.dtype)


def _advance(t: Array, row: Array, start: Array, size: int, *references: Any) -> None:
    """A kernel forward: the gates, h and c of some units of a row."""
    scales_4, z_PBG, b_G, *read_zx, h_BH, c_buffer, h_buffer, gates_buffer, h_operand = references
    window = h_buffer.shape[0]
    hidden = h_BH.shape[1]
    compute = h_buffer.dtype
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

    # A step writes other elements than it reads, see `Grid.launch`.
    c_buffer[t + 1, row, units] = c.astype(c_buffer.dtype)
    h_buffer[t, row, units] = h.astype(compute)
    h_operand[row, units] = operand(h.astype(compute), scales_4[0], h_operand.dtype)
    for k, value in enumerate(gates):
        gates_buffer[t, k, row, units] = value.astype(compute)


def _forward_loop(
    interpret: bool, carry: LSTMCarry, x_TB: Array, weights: Weights, compute: Any
) -> tuple[LSTMCarry, Array, tuple[Array, ...]]:
    """Keep c before each step and after the last, [T + 1, B, H], mh, and the gates [T, 4, B, H]."""
    window = x_TB.shape[0]
    rows, hidden = carry.h.shape
    run = Grid(rows, hidden, interpret).launch
    operand_type = weights["wmh"].dtype
    made = (Shape((rows, hidden), operand_type),)
    scales_4 = _scales(weights["wmh"], weights["wh"], transposed=False)
    times_wmh = _product(weights["wmh"], _parts(hidden))
    times_wh = _product(weights["wh"], 1)

    def step(t: StepNumber, before: tuple[Array, ...]) -> tuple[Array, ...]:
        h_operand, mh_buffer, *in_place = before
        mx = _input_arrays(x_TB, t, weights["wmx"])
        zx = _input_arrays(x_TB, t, weights["wx"])
        inputs = (scales_4, *mx, times_wmh(h_operand))
        (mh_buffer,), (m_BH,) = run(_multiply, t, inputs, (mh_buffer,), made)
        inputs = (scales_4, times_wh(m_BH), weights["b"], *zx)
        arrays, (h_operand,) = run(_advance, t, inputs, tuple(in_place), made)
        return h_operand, mh_buffer, *arrays

    c_buffer = jax.lax.empty((window + 1, rows, hidden), carry.c.dtype).at[0].set(carry.c)
    h_buffer = jax.lax.empty((window, rows, hidden), compute)
    mh_buffer = jax.lax.empty((window, rows, hidden), compute)
    gates_buffer = jax.lax.empty((window, 4, rows, hidden), compute)
    first_h = operand(carry.h.astype(compute), scales_4[0], operand_type)
    before = (first_h, mh_buffer, carry.h, c_buffer, h_buffer, gates_buffer)
    after = run_steps(window, step, before)
    _, mh_buffer, h_BH, c_buffer, h_buffer, gates_buffer = after
    return LSTMCarry(h_BH, c_buffer[window]), h_buffer, (c_buffer, mh_buffer, gates_buffer)


def _gate_gradients(k: Array, row: Array, start: Array, size: int, *references: Any) -> None:
    """A kernel of the k-th step back: dz and dc of some units of a row."""
    scales_4, dh_PBH, dh_TBH, c_buffer, gates_T4BH, dc_2BH, dz_buffer, dz_BG = references
    window, _, hidden = dh_TBH.shape
    compute = dz_buffer.dtype
    t = window - 1 - k
    units = pl.ds(start, size)
    dh = _add(dh_PBH, row, units) * scales_4[3] + dh_TBH[t, row, units].astype(float32)
    i, f, o, u = (gates_T4BH[t, n, row, units].astype(float32) for n in range(4))
    c = c_buffer[t, row, units].astype(float32)
    dz_gates, dc = step_gradient((i, f, o, u), c, dh, dc_2BH[k % 2, row, units])
    dc_2BH[(k + 1) % 2, row, units] = dc
    for n, dz in enumerate(dz_gates):
        gate = pl.ds(start + n * hidden, size)
        dz_buffer[t, row, gate] = dz.astype(compute)
        dz_BG[row, gate] = operand(dz.astype(compute), scales_4[0], dz_BG.dtype)


def _multiply_gradients(k: Array, row: Array, start: Array, size: int, *references: Any) -> None:
    """A kernel of the k-th step back: dmh and dmx of some units of a row."""
    scales_4, dm_PBH, mh_TBH, *read_mx, dmh_buffer, dmx_buffer, first_dmh, dmh_operand = references
    compute = dmh_buffer.dtype
    t = mh_TBH.shape[0] - 1 - k
    units = pl.ds(start, size)
    dm = _add(dm_PBH, row, units) * scales_4[1]
    dmh = (dm * _look_up(read_mx, t, row, units)).astype(compute)
    dmx_buffer[t, row, units] = (dm * mh_TBH[t, row, units].astype(float32)).astype(compute)
    dmh_operand[row, units] = operand(dmh, scales_4[2], dmh_operand.dtype)

    @pl.when(t > 0)
    def _() -> None:
        dmh_buffer[t - 1, row, units] = dmh

    @pl.when(t == 0)
    def _() -> None:
        first_dmh[row, units] = dmh


def _backward(
    residuals: Residuals, dlast: LSTMCarry, dh_TBH: Array, *, interpret: bool
) -> Cotangents:
    """Store dmh of a step at the place of the step before, beside the h that it belongs to."""
    first, x_TB, weights, h_TBH, kept = residuals
    compute = h_TBH.dtype
    window = x_TB.shape[0]
    rows, hidden = first.h.shape
    run = Grid(rows, hidden, interpret).launch
    before_c, mh_TBH, gates_T4BH = kept
    operand_type = weights["wh"].dtype
    scales_4 = _scales(weights["wh"], weights["wmh"], transposed=True)
    times_wh = _product(weights["wh"], _parts(4 * hidden), transposed=True)
    times_wmh = _product(weights["wmh"], _parts(hidden), transposed=True)
    mx: tuple[Array, ...] = (x_TB, weights["wmx"])
    if not is_bytes(x_TB):
        mx = (project(*mx),)

    def step(k: StepNumber, later: tuple[Array, ...]) -> tuple[Array, ...]:
        dh_PBH, dc_2BH, dz_buffer, *in_place = later
        inputs: tuple[Array, ...] = (scales_4, dh_PBH, dh_TBH, before_c, gates_T4BH)
        made = (Shape((rows, 4 * hidden), operand_type),)
        (dc_2BH, dz_buffer), (dz_BG,) = run(_gate_gradients, k, inputs, (dc_2BH, dz_buffer), made)
        inputs = (scales_4, times_wh(dz_BG), mh_TBH, *mx)
        made = (Shape((rows, hidden), operand_type),)
        arrays, (dmh_BH,) = run(_multiply_gradients, k, inputs, tuple(in_place), made)
        return times_wmh(dmh_BH), dc_2BH, dz_buffer, *arrays

    # The cotangent of c, before and after a step.
    dc_2BH = jax.lax.empty((2, rows, hidden), float32).at[0].set(dlast.c.astype(float32))
    # The kernel multiplies by the unit of the product.
    dh_PBH = jnp.zeros((_parts(hidden), rows, hidden), float32).at[0].set(dlast.h / scales_4[3])
    dz_buffer = jax.lax.empty((window, rows, 4 * hidden), compute)
    dmh_buffer = jax.lax.empty((window, rows, hidden), compute).at[window - 1].set(0)
    dmx_buffer = jax.lax.empty((window, rows, hidden), compute)
    first_dmh = jax.lax.empty((rows, hidden), compute)
    later = (dh_PBH, dc_2BH, dz_buffer, dmh_buffer, dmx_buffer, first_dmh)
    later = run_steps(window, step, later)
    dh_PBH, dc_2BH, dz_TBG, dmh_TBH, dmx_TBH, first_dmh = later
    # XLA would merge this product with the decoder's gradient, which also reads h, and copy both.
    h_TBH = jax.lax.optimization_barrier(h_TBH)
    dwmh_HH = sum_rows(h_TBH, dmh_TBH) + sum_rows(first.h.astype(compute), first_dmh)
    m_TBH = read_m(x_TB, weights, mh_TBH)
    dx, dweights = weight_gradients(residuals, m_TBH, dz_TBG, dmx_TBH, dwmh_HH)
    maxima_3 = None
    if isinstance(weights["wh"], Quantised):
        maxima_3 = maxima(m_TBH, dz_TBG, dmh_TBH)
    dfirst = LSTMCarry(jnp.sum(dh_PBH, axis=0) * scales_4[3], dc_2BH[window % 2])
    return Cotangents(dfirst, dx, dweights, maxima_3)


# Our kernels, on a GPU; and in Pallas's interpreter, for tests.
PALLAS = Loops(partial(_forward_loop, False), partial(_backward, interpret=False))
INTERPRETED = Loops(partial(_forward_loop, True), partial(_backward, interpret=True))
