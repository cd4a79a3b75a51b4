"""The multiplicative LSTM: its equations, parameters, step, loops over time, and gradient.

The loop over time is a `lax.scan`: JAX lowers a `fori_loop` with static bounds to one. It is
written as a `fori_loop` so that each step reads and writes its part of the time buffers in place:
the loop back overwrites the gates with dz, and half types are stored as bits (stack.py). As inputs
and outputs of `scan` these arrays would be copied, on a CPU with a conversion of the whole array.

One layer (Krause et al. 2016, eqs. 10-12 and the LSTM around them; Puri et al. 2018, section VI)::

    mx_t = x_t Wmx                                       [B, H]
    mh_t = h_{t-1} Wmh                                   [B, H]
    m_t  = mx_t ∘ mh_t                                   [B, H]
    z_t  = x_t Wx + m_t Wh + b  = [i f o u]              [B, 4H]
    c_t  = σ(f) ∘ c_{t-1} + σ(i) ∘ tanh(u)               [B, H]
    h_t  = σ(o) ∘ tanh(c_t)                              [B, H]

Where x_t is a byte, Wmx and Wx are tables of 256 rows and x_t W is a lookup.

Parameters of a layer, all float32; each W is its V with columns normalised to the gains g::

    wmx_v, wmx_g   [I, H], [H]
    wmh_v, wmh_g   [H, H], [H]
    wx_v,  wx_g    [I, G], [G]      I = E for the first layer, H above
    wh_v,  wh_g    [H, G], [G]
    b              [G]      zero

A layer has an explicit gradient instead of JAX's own, for three reasons:

* Reverse mode through `lax.scan` adds to the weight gradients at every step, one small product at
  a time, in the compute type. Here the backward scan computes only dz_t, dmh_t and dmx_t, and each
  weight gradient is one product over all T·B rows afterwards, summed in float32.
* The products of the backward scan have operands of the compute type; JAX would multiply a float32
  cotangent by a half-precision matrix.
* It saves mh, the four gates, c and h; m, tanh(c_t) and the derivatives of σ are cheap to
  recompute.

h and c are float32 between steps (c optionally in the compute type), and h is rounded to the
compute type where it enters a product. Every product of the forward scan is over B rows for any T,
so two carried windows give bit for bit the result of one long window. docs/performance.md has the
gain from each choice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen

from mlstm_jax.fields import Positive
from mlstm_jax.model import fp8
from mlstm_jax.model.architecture import Carry, Tree
from mlstm_jax.model.ops import (
    as_bits,
    bias_gradient,
    is_bytes,
    of_bits,
    project,
    project_gradient,
    sum_rows,
    times,
    uniform,
)
from mlstm_jax.model.stack import (
    Loops,
    Matrix,
    Recurrent,
    Step,
    empty_buffer,
    matrix,
    put_step,
    step_of,
)

Array = jax.Array


class Gates(NamedTuple):
    """Input, forget and output gates after σ, and the update after tanh."""

    i: Array
    f: Array
    o: Array
    u: Array


def advance(
    z: tuple[Array, ...], before_c: Array, padding: tuple[Array, Array] | None = None
) -> tuple[Gates, Array, Array]:
    """Return the gates, and h and c after the step, of the pre-activations of i, f, o and u.

    `padding` is where h and c do not change, bool, and h before the step. All other arrays have one
    shape and are float32; the Pallas kernels compute these lines, too.
    """
    i, f, o = (jax.nn.sigmoid(x) for x in z[:3])
    u = jnp.tanh(z[3])
    if padding is not None:
        i = jnp.where(padding[0], 0, i)
        f = jnp.where(padding[0], 1, f)
    c = f * before_c + i * u
    h = o * jnp.tanh(c)
    if padding is not None:
        h = jnp.where(*padding, h)
    return Gates(i, f, o, u), h, c


def step_gradient(gates: Gates, before_c: Array, dh: Array, dc: Array) -> tuple[Gates, Array]:
    """Return the cotangents of z, and of c before the step, from those of h and c after it."""
    i, f, o, u = gates
    tanh_c = jnp.tanh(f * before_c + i * u)
    dc = dc + dh * o * (1 - tanh_c * tanh_c)
    dz = Gates(
        i=dc * u * i * (1 - i),
        f=dc * before_c * f * (1 - f),
        o=dh * tanh_c * o * (1 - o),
        u=dc * i * (1 - u * u),
    )
    return dz, dc * f


class LayerWeights(NamedTuple):
    """The matrices and the bias, float32; for bytes I is 256, and row v belongs to byte v.

    For reading, those that multiply h and m may be `Transposed`, in the compute type. In training
    with fp8 there are scales of m, dz and dmh; their "gradient" is the maxima of the window.
    """

    wmx_IH: Array
    wx_IG: Array
    wmh_HH: Array
    wh_HG: Array
    b_G: Array
    scales_3: Array | None = None

    def rounded(self, x: Array, compute: jnp.dtype) -> "LayerWeights":
        """Return the matrices of products in the compute type; tables and the bias stay."""
        wmx_IH, wx_IG, wmh_HH, wh_HG, b_G, scales_3 = self
        if not is_bytes(x):
            wmx_IH = wmx_IH.astype(compute)
            wx_IG = wx_IG.astype(compute)
        if scales_3 is None:
            wmh: Any = wmh_HH.astype(compute)
            wh: Any = wh_HG.astype(compute)
        else:
            of_m, of_dz, of_dmh = scales_3
            wmh = fp8.quantised(wmh_HH, jnp.float32(fp8.LARGEST), of_dmh)
            wh = fp8.quantised(wh_HG, of_m, of_dz)
        return LayerWeights(wmx_IH, wx_IG, wmh, wh, b_G, scales_3)


def layer_step(weights: LayerWeights, rows: int) -> Step:
    """Return the function of one step of `rows` rows, with rounded matrices.

    It keeps mh, and the four gates after their nonlinearities, [B, H].
    """
    times_wmh = times(weights.wmh_HH, rows)
    times_wh = times(weights.wh_HG, rows)

    def step(
        rounded_h: Array, carry: Carry, x: Array, mask_B: Array | None = None
    ) -> tuple[Carry, tuple[Array, Gates]]:
        mh = times_wmh(rounded_h)
        m = project(x, weights.wmx_IH) * mh
        z_BG = project(x, weights.wx_IG) + times_wh(m) + weights.b_G[None]
        padding = None if mask_B is None else (mask_B[:, None], carry.h)
        z = tuple(jnp.split(z_BG, 4, axis=-1))
        gates, h, c = advance(z, carry.c.astype(jnp.float32), padding)
        return Carry(h=h, c=c.astype(carry.c.dtype)), (mh, gates)

    return step


class Saved(NamedTuple):
    """What the backward loop needs besides the arguments, in time buffers (see `empty_buffer`).

    h after each step [T, B, H], c before each step [T, B, H], and mh, i, f, o and u of each step:
    stacked as one [T, 5, B, H], which XLA writes in one kernel on a GPU, or separate: mh
    [T, B, H], and the gates, stacked [T, 4, B, H] (kernels.py), or side by side [T, B, 4H], which
    the backward loop overwrites with dz.
    """

    h: Array
    before_c: Array
    mh_gates: tuple[Array, ...]


class StepGradients(NamedTuple):
    """The cotangents that the backward loop returns."""

    carry: Carry  # before the window, float32
    dz_TBG: Array  # in the compute type
    # In the compute type; each step at the place of the step before. The last place may be zero.
    dmh_TBH: Array
    dmx_TBH: Array  # in the compute type
    dwmh_HH: Array  # float32


def _put_gates(buffer: Array, gates: list[Array], t: Array) -> Array:
    """Write the gates side by side as step t of a buffer [T, B, 4H]; XLA does it in place."""
    for n, x in enumerate(gates):
        place = (t, 0, n * x.shape[-1])
        buffer = jax.lax.dynamic_update_slice(buffer, as_bits(x)[None], place)
    return buffer


def _forward_loop(
    stacked: bool, carry: Carry, x: Array, weights: LayerWeights, compute: jnp.dtype
) -> tuple[Carry, Saved]:
    window = x.shape[0]
    rows, hidden = carry.h.shape
    run = layer_step(weights, rows)

    def step(t: Array, before: tuple[Array, Carry, Saved]) -> tuple[Array, Carry, Saved]:
        rounded_h, carry, saved = before
        after, (mh, gates) = run(rounded_h, carry, step_of(x, t), None)
        rounded_h = after.h.astype(compute)
        parts = [part.astype(compute) for part in (mh, *gates)]
        mh_gates: tuple[Array, ...]
        if stacked:
            mh_gates = (put_step(saved.mh_gates[0], jnp.stack(parts), t),)
        else:
            mh_TBH, gates_TBG = saved.mh_gates
            mh_gates = (put_step(mh_TBH, parts[0], t), _put_gates(gates_TBG, parts[1:], t))
        saved = Saved(
            h=put_step(saved.h, rounded_h, t),
            before_c=put_step(saved.before_c, carry.c, t),
            mh_gates=mh_gates,
        )
        return rounded_h, after, saved

    shape = (window, rows, hidden)
    mh_gates: tuple[Array, ...]
    if stacked:
        mh_gates = (empty_buffer((window, 5, rows, hidden), compute),)
    else:
        mh_gates = (empty_buffer(shape, compute), empty_buffer((window, rows, 4 * hidden), compute))
    saved = Saved(empty_buffer(shape, compute), empty_buffer(shape, carry.c.dtype), mh_gates)
    # h is carried in both types: rounding it again at each step would need another kernel.
    first = (carry.h.astype(compute), carry, saved)
    _, last, saved = jax.lax.fori_loop(0, window, step, first)
    return last, saved


def _backward_loop(
    stacked: bool,
    first: Carry,
    x: Array,
    weights: LayerWeights,
    saved: Saved,
    compute: jnp.dtype,
    dlast: Carry,
    dh_TBH: Array,
) -> StepGradients:
    window = x.shape[0]
    rows, hidden = first.h.shape
    # For bytes a lookup in the loop saves a GPU from writing all of mx first.
    mx_TBH = None if is_bytes(x) else project(x, weights.wmx_IH)
    times_wmh = times(weights.wmh_HH, rows, transposed=True)
    times_wh = times(weights.wh_HG, rows, transposed=True)
    dh_bits = as_bits(dh_TBH)
    # Of each step, stacked: mh and the gates; otherwise mh alone.
    first_parts, *other_parts = saved.mh_gates
    if stacked:
        dz_buffer = empty_buffer((window, rows, 4 * hidden), compute)
        gates_BG = None
    else:
        # dz overwrites the gates, so a CPU need not allocate new pages of memory. A step is read
        # after the later one has been written; otherwise XLA would copy the buffer each time.
        (dz_buffer,) = other_parts
        gates_BG = step_of(dz_buffer, jnp.int32(window - 1))

    def step(k: Array, later: tuple[Any, ...]) -> tuple[Any, ...]:
        dh, dc, gates_BG, dz_TBG, dm_T2BH = later
        t = window - 1 - k
        mx = project(step_of(x, t), weights.wmx_IH) if mx_TBH is None else step_of(mx_TBH, t)
        here = step_of(first_parts, t)
        parts = here if stacked else (here, *jnp.split(gates_BG, 4, axis=-1))
        mh, *gates = (of_bits(part, compute).astype(jnp.float32) for part in parts)
        before_c = of_bits(step_of(saved.before_c, t), first.c.dtype).astype(jnp.float32)
        dh = dh + of_bits(step_of(dh_bits, t), compute).astype(jnp.float32)
        dgates, dc = step_gradient(Gates(*gates), before_c, dh, dc)
        dz_BG = jnp.concatenate(dgates, axis=-1).astype(compute)
        dm = times_wh(dz_BG)
        dmh = (dm * mx).astype(compute)
        dmx = (dm * mh).astype(compute)
        dz_TBG = put_step(dz_TBG, dz_BG, t)
        if not stacked:
            gates_BG = step_of(dz_TBG, jnp.maximum(t - 1, 0))
        dm_T2BH = put_step(dm_T2BH, jnp.stack([dmh, dmx]), t)
        return times_wmh(dmh), dc, gates_BG, dz_TBG, dm_T2BH

    dm_buffer = empty_buffer((window, 2, rows, hidden), compute)
    start = (dlast.h, dlast.c.astype(jnp.float32), gates_BG, dz_buffer, dm_buffer)
    dh0_BH, dc0_BH, _, dz_buffer, dm_buffer = jax.lax.fori_loop(0, window, step, start)
    dm_T2BH = of_bits(dm_buffer, compute)
    h_TBH = of_bits(saved.h, compute)
    before_h_TBH = jnp.concatenate([first.h.astype(compute)[None], h_TBH[:-1]])
    dmh_TBH = dm_T2BH[:, 0]
    return StepGradients(
        Carry(dh0_BH, dc0_BH),
        of_bits(dz_buffer, compute),
        jnp.roll(dmh_TBH, -1, axis=0),
        dm_T2BH[:, 1],
        sum_rows(before_h_TBH, dmh_TBH),
    )


def gradient(
    backward_loop: Callable[..., StepGradients],
    first: Carry,
    x: Array,
    weights: LayerWeights,
    saved: Saved,
    compute: jnp.dtype,
    dlast: Carry,
    dh_TBH: Array,
) -> tuple[Carry, Array | None, LayerWeights]:
    """Return the cotangents of the carry, of x and of the weights; see `Loops`."""
    dcarry, dz_TBG, dmh_TBH, dmx_TBH, dwmh_HH = backward_loop(
        first, x, weights, saved, compute, dlast, dh_TBH
    )
    mh = saved.mh_gates[0]
    mh_TBH = of_bits(mh[:, 0] if mh.ndim == 4 else mh, compute)
    mx_TBH = project(x, weights.wmx_IH)
    m_TBH = (mx_TBH * mh_TBH.astype(jnp.float32)).astype(compute)
    dx_of_mx, dwmx_IH = project_gradient(x, weights.wmx_IH, dmx_TBH)
    dx_of_z, dwx_IG = project_gradient(x, weights.wx_IG, dz_TBG)
    dx = None
    if dx_of_mx is not None and dx_of_z is not None:
        dx = (dx_of_mx + dx_of_z).astype(x.dtype)
    maxima_3 = None
    if weights.scales_3 is not None:
        maxima_3 = fp8.maxima(m_TBH, dz_TBG, dmh_TBH)
    dweights = LayerWeights(
        wmx_IH=dwmx_IH,
        wx_IG=dwx_IG,
        wmh_HH=dwmh_HH,
        wh_HG=sum_rows(m_TBH, dz_TBG),
        b_G=bias_gradient(x, dwx_IG, dz_TBG),
        scales_3=maxima_3,
    )
    return dcarry._replace(c=dcarry.c.astype(first.c.dtype)), dx, dweights


# XLA's loops, with equal numbers; kernels.py has the loops of our own kernels. The parts of a step
# in separate arrays, where dz overwrites the gates: best on a CPU.
SEPARATE = Loops(partial(_forward_loop, False), partial(gradient, partial(_backward_loop, False)))
# Stacked in one array: best on a GPU.
STACKED = Loops(partial(_forward_loop, True), partial(gradient, partial(_backward_loop, True)))


@dataclass(frozen=True, kw_only=True)
class MLSTM(Recurrent, title="mLSTM"):
    """The network and its initial parameters."""

    # Initial recurrent matrices Wh and Wmh. Paper: uniform(±1/√H).
    recurrent_init: Literal["uniform", "orthogonal"] = "uniform"
    # Initial gains of Wh and Wmh, relative to the column norms of V, so that W = gain · V. √3 makes
    # the columns of a uniform Wmh as long as those of an orthogonal one. Paper: 1.
    recurrent_gain: Positive = 1.0

    gates: ClassVar[dict[str, int]] = {"wmh": 1, "wh": 4, "wmx": 1, "wx": 4}
    input_matrices: ClassVar[tuple[str, ...]] = ("wmx", "wx")
    biases: ClassVar[int] = 4

    def initial(self, inputs: int) -> dict[str, Matrix]:
        """Uniform matrices; the recurrent ones may be orthogonal."""
        hidden = self.hidden
        gain = self.recurrent_gain
        initialise = uniform(hidden)
        recurrent = initialise
        if self.recurrent_init == "orthogonal":
            recurrent = linen.initializers.orthogonal()
        return {
            "wmx": Matrix((inputs, hidden), initialise),
            "wmh": Matrix((hidden, hidden), recurrent, gain),
            "wx": Matrix((inputs, 4 * hidden), initialise),
            "wh": Matrix((hidden, 4 * hidden), recurrent, gain),
        }

    def weights(self, params: Tree) -> LayerWeights:
        return LayerWeights(
            wmx_IH=matrix(params, "wmx"),
            wx_IG=matrix(params, "wx"),
            wmh_HH=matrix(params, "wmh"),
            wh_HG=matrix(params, "wh"),
            b_G=params["b"],
        )

    step = staticmethod(layer_step)

    def loops(self) -> Loops:
        return SEPARATE if jax.default_backend() == "cpu" else STACKED

    def step_bytes(self, width: int, cell: int) -> int:
        """Count h, mh, four gates and c, then dz, dmh and dmx."""
        return 6 * width + cell + 6 * width
