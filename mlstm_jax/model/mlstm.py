"""The multiplicative LSTM: its equations, parameters, step, loops over time, and gradient.

The loop over time is a `fori_loop` (forward: time_loop.py; back: `_backward`), so that each step
reads and writes its part of the time buffers in place: the loop back overwrites the gates with dz,
and half types are stored as bits. As inputs and outputs of `scan` these arrays would be copied, on
a CPU with a conversion of the whole array.

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
    wh_v,  wh_g    [H, G], [G]      G = 4H
    b              [G]      zero

The gradient, from the cotangents of h_t and c_t after a step to those before it::

    dc_t     = dc_t + dh_t ∘ σ(o) ∘ (1 - tanh²(c_t))     dc_{t-1} = dc_t ∘ σ(f)
    dz_t     = [di df do du], see `step_gradient`
    dm_t     = dz_t Whᵀ                                  dWh  = Σ m_tᵀ dz_t
    dmh_t    = dm_t ∘ mx_t                               dWmh = Σ h_{t-1}ᵀ dmh_t
    dmx_t    = dm_t ∘ mh_t                               dWmx = Σ x_tᵀ dmx_t
    dh_{t-1} = dmh_t Wmhᵀ                                dWx  = Σ x_tᵀ dz_t

It is explicit, instead of JAX's own, for three reasons:

* Reverse mode through `lax.scan` adds to the weight gradients at every step, in the compute type.
  Here each is one product over all T·B rows after the loop back, summed in float32.
* The products of the loop back have operands of the compute type; JAX would multiply a float32
  cotangent by a half-precision matrix.
* It keeps mh, the gates, c and h; m, tanh(c_t) and the derivatives of σ are cheap to compute again.

h and c are float32 between steps (c optionally in the compute type), and h is rounded to the
compute type where it enters a product. Every product of the loop forward is over B rows for any T,
so two carried windows give bit for bit the result of one. docs/performance.md has the gains.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen

from mlstm_jax.fields import Positive
from mlstm_jax.model import fp8, ops
from mlstm_jax.model.architecture import LSTMCarry
from mlstm_jax.model.stack import Cotangents, Loops, Recurrent, Residuals, Weights, forward_loop
from mlstm_jax.model.time_loop import Step, empty_buffer, put_step, step_of

Array = jax.Array
# The input, forget and output gates after σ, and the update after tanh; or the cotangents of z.
Gates = tuple[Array, Array, Array, Array]


def advance(
    z: tuple[Array, ...], before_c: Array, padding: tuple[Array, Array] | None = None
) -> tuple[Gates, Array, Array]:
    """The gates, and h and c after the step, of the pre-activations of i, f, o and u.

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
    return (i, f, o, u), h, c


def step_gradient(gates: Gates, before_c: Array, dh: Array, dc: Array) -> tuple[Gates, Array]:
    """The cotangents of z and of c before a step, from `dh` and `dc` after it."""
    i, f, o, u = gates
    tanh_c = jnp.tanh(f * before_c + i * u)
    dc = dc + dh * o * (1 - tanh_c * tanh_c)
    di = dc * u * i * (1 - i)
    df = dc * before_c * f * (1 - f)
    do = dh * tanh_c * o * (1 - o)
    du = dc * i * (1 - u * u)
    return (di, df, do, du), dc * f


class Kept(NamedTuple):
    """What a step keeps for its gradient, the last two in the compute type; also time buffers."""

    before_c: Array  # [B, H]
    parts: Array  # mh [B, H]; or if stacked, mh and the gates [5, B, H]
    gates: Array | None = None  # side by side [B, 4H]; None if stacked


def layer_step(weights: Weights, rows: int, *, stacked: bool = False) -> Step:
    """The function of one step of `rows` rows, with rounded weights.

    The loop back writes dz over gates that are kept side by side; XLA writes a `stacked` array in
    one kernel on a GPU.
    """
    times_wmh = ops.times(weights["wmh"], rows)
    times_wh = ops.times(weights["wh"], rows)

    def step(
        rounded_h: Array, carry: LSTMCarry, x: Array, mask_B: Array | None
    ) -> tuple[LSTMCarry, Kept]:
        mh = times_wmh(rounded_h)
        m = ops.project(x, weights["wmx"]) * mh
        z_BG = ops.project(x, weights["wx"]) + times_wh(m) + weights["b"][None]
        padding = None if mask_B is None else (mask_B[:, None], carry.h)
        z = tuple(jnp.split(z_BG, 4, axis=-1))
        gates, h, c = advance(z, carry.c.astype(jnp.float32), padding)
        after = LSTMCarry(h=h, c=c.astype(carry.c.dtype))
        kept_mh, *kept_gates = (part.astype(rounded_h.dtype) for part in (mh, *gates))
        if stacked:
            return after, Kept(carry.c, jnp.stack([kept_mh, *kept_gates]))
        return after, Kept(carry.c, kept_mh, jnp.concatenate(kept_gates, axis=-1))

    return step


def _backward(
    residuals: Residuals, dlast: LSTMCarry, dh_TBH: Array, *, stacked: bool
) -> Cotangents:
    first, x, weights, h_TBH, kept = residuals
    compute = h_TBH.dtype
    window, rows, hidden = h_TBH.shape
    # For bytes a lookup in the loop saves a GPU from writing all of mx first.
    mx_TBH = None if ops.is_bytes(x) else ops.project(x, weights["wmx"])
    times_wmh = ops.times(weights["wmh"], rows, transposed=True)
    times_wh = ops.times(weights["wh"], rows, transposed=True)
    dh_bits = ops.as_bits(dh_TBH)
    if stacked:
        dz_buffer = empty_buffer((window, rows, 4 * hidden), compute)
        gates_BG = None
    else:
        # dz overwrites the gates, so a CPU need not allocate new pages of memory. A step is read
        # after the later one has been written; otherwise XLA would copy the buffer each time.
        dz_buffer = kept.gates
        gates_BG = step_of(dz_buffer, jnp.int32(window - 1))

    def step(k: Array, later: tuple[Any, ...]) -> tuple[Any, ...]:
        dh, dc, gates_BG, dz_TBG, dm_T2BH = later
        t = window - 1 - k
        mx = ops.project(step_of(x, t), weights["wmx"]) if mx_TBH is None else step_of(mx_TBH, t)
        here = step_of(kept.parts, t)
        parts = here if stacked else (here, *jnp.split(gates_BG, 4, axis=-1))
        mh, i, f, o, u = (ops.of_bits(part, compute).astype(jnp.float32) for part in parts)
        before_c = ops.of_bits(step_of(kept.before_c, t), first.c.dtype).astype(jnp.float32)
        dh = dh + ops.of_bits(step_of(dh_bits, t), compute).astype(jnp.float32)
        dgates, dc = step_gradient((i, f, o, u), before_c, dh, dc)
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
    dh, dc, _, dz_buffer, dm_buffer = jax.lax.fori_loop(0, window, step, start)
    dm_T2BH = ops.of_bits(dm_buffer, compute)
    dmh_TBH = dm_T2BH[:, 0]
    before_h_TBH = jnp.concatenate([first.h.astype(compute)[None], h_TBH[:-1]])
    mh_TBH = ops.of_bits(kept.parts[:, 0] if stacked else kept.parts, compute)
    dz_TBG = ops.of_bits(dz_buffer, compute)
    m_TBH = read_m(x, weights, mh_TBH)
    dwmh_HH = ops.sum_rows(before_h_TBH, dmh_TBH)
    dx, dweights = weight_gradients(residuals, m_TBH, dz_TBG, dm_T2BH[:, 1], dwmh_HH)
    maxima_3 = None
    if isinstance(weights["wh"], fp8.Quantised):
        # The kernels for GPUs have each step of dmh at the place of the step before.
        maxima_3 = fp8.maxima(m_TBH, dz_TBG, jnp.roll(dmh_TBH, -1, axis=0))
    return Cotangents(LSTMCarry(dh, dc), dx, dweights, maxima_3)


def read_m(x: Array, weights: Weights, mh_TBH: Array) -> Array:
    """m of all steps, in the type of mh."""
    mx_TBH = ops.project(x, weights["wmx"])
    return (mx_TBH * mh_TBH.astype(jnp.float32)).astype(mh_TBH.dtype)


def weight_gradients(
    residuals: Residuals, m_TBH: Array, dz_TBG: Array, dmx_TBH: Array, dwmh_HH: Array
) -> tuple[Array | None, Weights]:
    """The cotangents of x and of the weights, float32; of Wmh it is given."""
    x = residuals.x
    weights = residuals.weights
    dx_of_mx, dwmx_IH = ops.project_gradient(x, weights["wmx"], dmx_TBH)
    dx_of_z, dwx_IG = ops.project_gradient(x, weights["wx"], dz_TBG)
    dx = None
    if dx_of_mx is not None and dx_of_z is not None:
        dx = dx_of_mx + dx_of_z
    dweights = {
        "wmx": dwmx_IH,
        "wmh": dwmh_HH,
        "wx": dwx_IG,
        "wh": ops.sum_rows(m_TBH, dz_TBG),
        "b": ops.bias_gradient(x, dwx_IG, dz_TBG),
    }
    return dx, dweights


# The first is best on a CPU, the second on a GPU.
SEPARATE = Loops(partial(forward_loop, layer_step), partial(_backward, stacked=False))
STACKED = Loops(
    partial(forward_loop, partial(layer_step, stacked=True)), partial(_backward, stacked=True)
)


@dataclass(frozen=True, kw_only=True)
class MLSTM(Recurrent, title="mLSTM"):
    """The network and its initial parameters.

    Attributes:
        recurrent_init: Initial recurrent matrices Wh and Wmh. Paper: uniform(±1/√H).
        recurrent_gain: Initial gains of Wh and Wmh, relative to the column norms of V, so that W =
            gain · V. √3 makes the columns of a uniform Wmh as long as in an orthogonal one.
            Paper: 1.
    """

    recurrent_init: Literal["uniform", "orthogonal"] = "uniform"
    recurrent_gain: Positive = 1.0

    gates: ClassVar[dict[str, int]] = {"wmx": 1, "wmh": 1, "wx": 4, "wh": 4}
    input_matrices: ClassVar[tuple[str, ...]] = ("wmx", "wx")
    biases: ClassVar[int] = 4

    def initial(self, name: str) -> tuple[Any, float]:
        if name in self.input_matrices:
            return ops.uniform(self.hidden), 1.0
        if self.recurrent_init == "orthogonal":
            return linen.initializers.orthogonal(), self.recurrent_gain
        return ops.uniform(self.hidden), self.recurrent_gain

    def rounded(
        self, weights: Weights, reads_bytes: bool, compute: Any, scales_3: Array | None = None
    ) -> Weights:
        """With scales, the recurrent matrices are E4M3."""
        rounded = super().rounded(weights, reads_bytes, compute)
        if scales_3 is not None:
            of_m, of_dz, of_dmh = scales_3
            rounded["wmh"] = fp8.quantised(weights["wmh"], jnp.float32(fp8.LARGEST), of_dmh)
            rounded["wh"] = fp8.quantised(weights["wh"], of_m, of_dz)
        return rounded

    step = staticmethod(layer_step)

    def loops(self) -> Loops:
        return SEPARATE if jax.default_backend() == "cpu" else STACKED

    def step_bytes(self, width: int, cell: int) -> int:
        """Count h, mh, four gates and c, then dz, dmh and dmx."""
        return 6 * width + cell + 6 * width
