"""The loops over time with the elementwise parts of a step as kernels, for GPUs.

XLA compiles a step to eight kernels forward and nine backward; this file needs five and five. Two
of each five are Pallas kernels, one after each matrix product. Each looks up its rows of the
tables, writes its step of the stacks, and adds the parts of the preceding product, whose sums over
H (over 4H backward) are split in two: otherwise a product of B rows with only H columns is too
small to use all processors of a GPU. docs/performance.md has the measurements.

Arrays as in recurrence.py; the equations of a step are those of cell.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlstm_jax.model import cell
from mlstm_jax.model.inputs import is_bytes, project
from mlstm_jax.model.launch import Shape, launch, pl
from mlstm_jax.model.matmul import dot

Array = jax.Array
float32 = jnp.float32


class Forward(NamedTuple):
    """The results of the forward loop."""

    h: Array  # after the window, float32 [B, H]
    c: Array  # after the window [B, H]
    h_TBH: Array  # after each step, in the compute type
    before_c: Array  # [T + 1, B, H]: c before each step and after the last
    made: Array  # mh, i, f, o and u of each step, [T, 5, B, H], in the compute type


class Backward(NamedTuple):
    """The results of the backward loop."""

    dh: Array  # of h before the window, float32 [B, H]
    dc: Array  # of c before the window, float32 [B, H]
    dz_TBG: Array  # in the compute type
    dm_T2BH: Array  # of mh and of mx, in the compute type


def _parts(width: int) -> int:
    return 2 if width % 2 == 0 else 1


def _partial_dots(x: Array, w_IO: Array) -> Array:
    """Return x W as parts to be added: float32 [P, B, O]."""
    parts = _parts(w_IO.shape[0])
    return jnp.einsum(
        "bpi,pio->pbo",
        x.reshape(x.shape[0], parts, -1),
        w_IO.reshape(parts, -1, w_IO.shape[1]),
        preferred_element_type=float32,
    )


def _add(parts: Any, row: Array, units: Any) -> Array:
    whole = parts[0, row, units]
    for k in range(1, parts.shape[0]):
        whole = whole + parts[k, row, units]
    return whole


def _what_is_read(x_TB: Array, t: Array, w_IO: Array) -> tuple[Array, ...]:
    """Return the arrays from which a kernel reads x_t W: the bytes and the table, or x_t W."""
    if is_bytes(x_TB):
        return x_TB, w_IO
    return (project(jax.lax.dynamic_index_in_dim(x_TB, t, keepdims=False), w_IO),)


def _find(references: list[Any], t: Array, row: Array, units: Any) -> Array:
    """Return x_t W for some units of a row."""
    if len(references) == 2:
        bytes_TB, table = references
        return table[bytes_TB[t, row], units]
    return references[0][row, units]


def _as_array(t: Array) -> Array:
    return jnp.reshape(t, (1,)).astype(jnp.int32)


def _of_hold(hold_TB: Array | None) -> tuple[Array, ...]:
    return () if hold_TB is None else (hold_TB.astype(jnp.int32),)


def forward(
    first_h: Array,
    first_c: Array,
    x_TB: Array,
    hold_TB: Array | None,
    weights: tuple[Array, ...],
    compute: Any,
    interpret: bool,
) -> Forward:
    """Run the window; arguments as in `recurrence.recurrence`, with rounded matrices."""
    wmx_IH, wx_IG, wmh_HH, wh_HG, b_G = weights
    window, (rows, hidden), cell_type = x_TB.shape[0], first_h.shape, first_c.dtype
    hold = _of_hold(hold_TB)

    def run(name: str, body: Any, inputs: Any, in_place: Any, outputs: Any) -> Any:
        return launch(name, body, inputs, in_place, outputs, rows, hidden, interpret)

    def step(t: Array, before: tuple[Array, ...]) -> tuple[Array, ...]:
        rounded_h, h_2BH, c_stack, h_stack, made = before
        mx, zx = _what_is_read(x_TB, t, wmx_IH), _what_is_read(x_TB, t, wx_IG)

        def multiply(row: Array, start: Array, size: int, *references: Any) -> None:
            t_1, *read_mx, mh_PBH, made, m_BH = references
            t, units = t_1[0], pl.ds(start, size)
            mh = _add(mh_PBH, row, units)
            m_BH[row, units] = (_find(read_mx, t, row, units) * mh).astype(compute)
            made[t, 0, row, units] = mh.astype(compute)

        def advance(row: Array, start: Array, size: int, *references: Any) -> None:
            t_1, z_BG, b_G, *others, h_2BH, c_stack, h_stack, made, rounded_h = references
            read_zx, read_hold = others[: len(zx)], others[len(zx) :]
            t, units = t_1[0], pl.ds(start, size)

            def z(k: int) -> Array:
                gate = pl.ds(start + k * hidden, size)
                return _find(read_zx, t, row, gate) + z_BG[row, gate] + b_G[gate]

            gates, h, c = cell.advance(
                tuple(z(k) for k in range(4)),
                h_2BH[t % 2, row, units],
                c_stack[t, row, units].astype(float32),
                read_hold[0][t, row] != 0 if read_hold else None,
            )
            # A step writes other elements than it reads, see `launch`.
            h_2BH[(t + 1) % 2, row, units] = h
            c_stack[t + 1, row, units] = c.astype(cell_type)
            h_stack[t, row, units] = h.astype(compute)
            rounded_h[row, units] = h.astype(compute)
            for k, gate in enumerate(gates):
                made[t, k + 1, row, units] = gate.astype(compute)

        mh_PBH = _partial_dots(rounded_h, wmh_HH)
        rounded = Shape((rows, hidden), compute)
        inputs = (_as_array(t), *mx, mh_PBH)
        (made,), (m_BH,) = run("multiply", multiply, inputs, (made,), (rounded,))
        inputs = (_as_array(t), dot(m_BH, wh_HG), b_G, *zx, *hold)
        in_place = (h_2BH, c_stack, h_stack, made)
        in_place, (rounded_h,) = run("advance", advance, inputs, in_place, (rounded,))
        return rounded_h, *in_place

    h_2BH = jax.lax.empty((2, rows, hidden), float32).at[0].set(first_h)
    c_stack = jax.lax.empty((window + 1, rows, hidden), cell_type).at[0].set(first_c)
    h_stack = jax.lax.empty((window, rows, hidden), compute)
    made = jax.lax.empty((window, 5, rows, hidden), compute)
    before = first_h.astype(compute), h_2BH, c_stack, h_stack, made
    _, h_2BH, c_stack, h_stack, made = jax.lax.fori_loop(0, window, step, before)
    return Forward(h_2BH[window % 2], c_stack[window], h_stack, c_stack, made)


def backward(
    last_dh: Array,
    last_dc: Array,
    dh_TBH: Array,
    x_TB: Array,
    hold_TB: Array | None,
    weights: tuple[Array, ...],
    before_c: Array,
    made: Array,
    compute: Any,
    interpret: bool,
) -> Backward:
    """Run back through the window.

    Args:
        last_dh: the cotangent of h after the window, float32.
        last_dc: the cotangent of c after the window, float32.
        dh_TBH: the cotangent of h after each step, in the compute type.
        x_TB: the layer's input.
        hold_TB: where the state was held.
        weights: those of `forward`.
        before_c: `before_c` of `forward`'s result.
        made: `made` of `forward`'s result.
        compute: type of the products.
        interpret: run the kernels in Pallas's interpreter.
    """
    wmx_IH, _, wmh_HH, wh_HG, _ = weights
    window, (rows, hidden) = x_TB.shape[0], last_dh.shape
    hold = _of_hold(hold_TB)
    wmh_transposed, wh_transposed = wmh_HH.T, wh_HG.T
    of_bytes = is_bytes(x_TB)
    mx_arrays = (x_TB, wmx_IH) if of_bytes else (project(x_TB, wmx_IH),)

    def run(name: str, body: Any, inputs: Any, in_place: Any, outputs: Any) -> Any:
        return launch(name, body, inputs, in_place, outputs, rows, hidden, interpret)

    def gate_gradients(row: Array, start: Array, size: int, *references: Any) -> None:
        k_1, dh_PBH, dh_TBH, before_c, made, *hold, d_2NBH, dz_stack, dz_BG = references
        k, units = k_1[0], pl.ds(start, size)
        t = window - 1 - k
        dh = _add(dh_PBH, row, units) + dh_TBH[t, row, units].astype(float32)
        if hold:
            dh = dh + d_2NBH[k % 2, 1, row, units]
        found = cell.gradient(
            cell.Gates(*(made[t, n, row, units].astype(float32) for n in range(1, 5))),
            before_c[t, row, units].astype(float32),
            dh,
            d_2NBH[k % 2, 0, row, units],
            hold[0][t, row] != 0 if hold else None,
        )
        d_2NBH[(k + 1) % 2, 0, row, units] = found.c
        if hold:
            d_2NBH[(k + 1) % 2, 1, row, units] = found.held_h
        for n, dz in enumerate(found.z):
            gate = pl.ds(start + n * hidden, size)
            dz_stack[t, row, gate] = dz.astype(compute)
            dz_BG[row, gate] = dz.astype(compute)

    def multiply_gradients(row: Array, start: Array, size: int, *references: Any) -> None:
        k_1, dm_PBH, made, *read_mx, dm_stack, dmh_BH = references
        t, units = window - 1 - k_1[0], pl.ds(start, size)
        dm = _add(dm_PBH, row, units)
        mx = _find(read_mx, t, row, units) if of_bytes else read_mx[0][t, row, units]
        dmh = (dm * mx).astype(compute)
        dmh_BH[row, units] = dmh
        dm_stack[t, 0, row, units] = dmh
        dm_stack[t, 1, row, units] = (dm * made[t, 0, row, units].astype(float32)).astype(compute)

    def step(k: Array, later: tuple[Array, ...]) -> tuple[Array, ...]:
        dh_PBH, d_2NBH, dz_stack, dm_stack = later
        inputs = (_as_array(k), dh_PBH, dh_TBH, before_c, made, *hold)
        shape = Shape((rows, 4 * hidden), compute)
        in_place = (d_2NBH, dz_stack)
        (d_2NBH, dz_stack), (dz_BG,) = run(
            "gate_gradients", gate_gradients, inputs, in_place, (shape,)
        )
        inputs = (_as_array(k), _partial_dots(dz_BG, wh_transposed), made, *mx_arrays)
        shape = Shape((rows, hidden), compute)
        (dm_stack,), (dmh_BH,) = run(
            "multiply_gradients", multiply_gradients, inputs, (dm_stack,), (shape,)
        )
        return _partial_dots(dmh_BH, wmh_transposed), d_2NBH, dz_stack, dm_stack

    # The cotangent of c, and with hold that of h in held steps, before and after a step.
    d_2NBH = jax.lax.empty((2, 1 + len(hold), rows, hidden), float32).at[0, 0].set(last_dc)
    if hold:
        d_2NBH = d_2NBH.at[0, 1].set(0)
    dh_PBH = jnp.zeros((_parts(hidden), rows, hidden), float32).at[0].set(last_dh)
    dz_stack = jax.lax.empty((window, rows, 4 * hidden), compute)
    dm_stack = jax.lax.empty((window, 2, rows, hidden), compute)
    dh_PBH, d_2NBH, dz_stack, dm_stack = jax.lax.fori_loop(
        0, window, step, (dh_PBH, d_2NBH, dz_stack, dm_stack)
    )
    last = d_2NBH[window % 2]
    dh = jnp.sum(dh_PBH, axis=0) + (last[1] if hold else 0)
    return Backward(dh, last[0], dz_stack, dm_stack)
