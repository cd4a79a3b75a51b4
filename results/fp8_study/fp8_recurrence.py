"""The recurrence with fp8 operands in its four products, scaled as in Transformer Engine.

    h Wmh and m Wh forward, dz Wh' and dmh Wmh' backward

An operand x is multiplied by s = (largest number of the type) / (maximum of |x|), clipped to the
range of the type and rounded; the product is summed in float32 and divided by both scales. A matrix
is rounded once per window, with its own maximum. The maxima of h, m, dz and dmh are known only
after the window, so their scales use the largest maximum of the last updates ("delayed scaling").
Everything else is as in mlstm_jax/model/mlstm.py with bfloat16: saved values, weight
gradients, tables.

A product of two fp8 numbers is exact in float32, and every fp8 number is exact in bfloat16. So on a
CPU a product of bfloat16 arrays that hold fp8 numbers equals the fp8 product, at bfloat16 speed.
For a GPU (`Formats.on_gpu`) the arrays are fp8, and the summed axis is the last one of both
operands, as cuBLASLt requires.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlstm_jax.model.architecture import Carry
from mlstm_jax.model.language_model import (
    COMPUTE_TYPES,
    LanguageModel,
    ModelOutput,
    Parameters,
)
from mlstm_jax.model.mlstm import LayerWeights
from mlstm_jax.model.ops import (
    as_bits,
    matmul,
    of_bits,
    project,
    project_gradient,
    sum_rows,
    weight_norm,
)
from mlstm_jax.model.stack import empty_buffer, put_step, step_of

Array = jax.Array

BF16, E4M3, E5M2 = jnp.dtype(jnp.bfloat16), jnp.dtype("float8_e4m3fn"), jnp.dtype("float8_e5m2")
TENSORS = ("h", "m", "dz", "dmh")
FATES = ("saturated", "subnormal", "zeroed")
HISTORY = 16


class Formats(NamedTuple):
    """Types of the operands; bfloat16 is not scaled."""

    forward: Any = E4M3  # of h, m and the matrices, also in the backward products
    backward: Any = E4M3  # of dz and dmh
    on_gpu: bool = False  # see the module's docstring


class Scaling(NamedTuple):
    """Statistics of h, m, dz and dmh, float32; the "gradient" of a `Scaling` is the next one."""

    maxima: Array  # [HISTORY, 4] of the last updates, newest first; 0: unknown, so the scale is 1
    fates: Array  # [3, 4], fractions summed over updates: saturated; subnormal; zeroed


def no_scaling() -> Scaling:
    """Return the statistics before the first update."""
    return Scaling(jnp.zeros((HISTORY, len(TENSORS))), jnp.zeros((len(FATES), len(TENSORS))))


def rounded(x: Array, dtype: Any) -> Array:
    """Round x, float32, to the nearest numbers of an fp8 type, clipped to its range; float32.

    This equals a cast to the type and back, which XLA for CPUs does at a third of the speed.
    """
    about = jnp.finfo(dtype)
    least = float(about.smallest_subnormal)
    x = jnp.clip(x, float(about.min), float(about.max))
    normal = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=about.nmant)
    subnormal = jnp.round(x * (1 / least)) * least
    return jnp.where(jnp.abs(x) < float(about.smallest_normal), subnormal, normal)


def scale_for(maximum: Array, dtype: Any) -> Array:
    """Return the scale of an operand, float32."""
    if dtype == BF16:
        return jnp.ones_like(maximum)
    return jnp.where(maximum > 0, float(jnp.finfo(dtype).max) / maximum, 1)


def quantised(x: Array, scale: Array, dtype: Any, on_gpu: bool) -> Array:
    """Return x · scale as an operand of a product."""
    if dtype == BF16:
        return x.astype(BF16)
    if on_gpu:
        largest = float(jnp.finfo(dtype).max)
        return jnp.clip(x * scale, -largest, largest).astype(dtype)
    return rounded(x * scale, dtype).astype(BF16)


def _fates(x: Array, scale: Array, dtype: Any) -> Array:
    """Return the fraction of the values of x · scale with each of FATES, [3]; 0 for bfloat16."""
    if dtype == BF16:
        return jnp.zeros(len(FATES))
    about = jnp.finfo(dtype)
    x = jnp.abs(x.astype(jnp.float32)) * scale
    # Half of the smallest number rounds to even, which is 0.
    zeroed = (x > 0) & (x <= float(about.smallest_subnormal) / 2)
    subnormal = (x < float(about.smallest_normal)) & (x > 0) & ~zeroed
    # 1 % of tolerance: rounding of the scale may move the newest maximum past the largest number.
    saturated = x > 1.01 * float(about.max)
    fates = (saturated, subnormal, zeroed)
    return jnp.stack([jnp.mean(fate, dtype=jnp.float32) for fate in fates])


class _Matrix(NamedTuple):
    """The right operand of a product, its scale, and its summed axis."""

    operand: Array
    scale: Array
    axis: int

    @classmethod
    def of(cls, w_IO: Array, formats: Formats) -> "_Matrix":
        scale = scale_for(jnp.max(jnp.abs(w_IO)), formats.forward)
        w = w_IO.T if formats.on_gpu else w_IO
        operand = quantised(w, scale, formats.forward, formats.on_gpu)
        return cls(operand, scale, int(formats.on_gpu))

    def product_with(self, scale: Array) -> Callable[[Array], Array]:
        """Return x ↦ x W, float32, for operands with this scale. Call it outside of loops."""
        dimensions = (((1,), (self.axis,)), ((), ()))
        unit = 1 / (scale * self.scale)

        def times(x: Array) -> Array:
            return unit * jax.lax.dot_general(
                x, self.operand, dimensions, preferred_element_type=jnp.float32
            )

        return times


class _Saved(NamedTuple):
    """Saved values, as in the package's recurrence."""

    h: Array
    before_c: Array
    made: tuple[Array, ...]


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def recurrence(
    carry: Carry, bytes_TB: Array, weights: LayerWeights, scaling: Scaling, formats: Formats
) -> tuple[Carry, Array]:
    """Run one layer over the bytes of a window, as the package does in bfloat16, without padding.

    The "gradient" of `scaling` is not a gradient but the statistics after the update.
    """
    return _forward(carry, bytes_TB, weights, scaling, formats)[0]


def _scales(scaling: Scaling, formats: Formats) -> list[Array]:
    maxima = jnp.max(scaling.maxima, axis=0)
    types = (formats.forward, formats.forward, formats.backward, formats.backward)
    return [scale_for(maxima[n], dtype) for n, dtype in enumerate(types)]


def _forward(
    carry: Carry, bytes_TB: Array, weights: LayerWeights, scaling: Scaling, formats: Formats
) -> tuple[tuple[Carry, Array], Any]:
    window, shape = bytes_TB.shape[0], carry.h.shape
    h_scale, m_scale, *_ = _scales(scaling, formats)
    times_wmh = _Matrix.of(weights.wmh_HH, formats).product_with(h_scale)
    times_wh = _Matrix.of(weights.wh_HG, formats).product_with(m_scale)
    as_operand = partial(quantised, dtype=formats.forward, on_gpu=formats.on_gpu)

    def step(t: Array, before: tuple[Array, Carry, _Saved]) -> tuple[Array, Carry, _Saved]:
        h_operand, carry, saved = before
        x = step_of(bytes_TB, t)
        mh = times_wmh(h_operand)
        m = project(x, weights.wmx_IH) * mh
        mwh = times_wh(as_operand(m, m_scale))
        i, f, o, u = jnp.split(project(x, weights.wx_IG) + mwh + weights.b_G[None], 4, axis=-1)
        i, f, o, u = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jax.nn.sigmoid(o), jnp.tanh(u)
        c = f * carry.c + i * u
        h = o * jnp.tanh(c)
        made = [y.astype(BF16) for y in (mh, i, f, o, u)]
        if formats.on_gpu:
            made = [jnp.stack(made)]
        saved = _Saved(
            h=put_step(saved.h, h.astype(BF16), t),
            before_c=put_step(saved.before_c, carry.c, t),
            made=tuple(put_step(stack, y, t) for stack, y in zip(saved.made, made, strict=True)),
        )
        return as_operand(h, h_scale), Carry(h, c), saved

    saved = _Saved(
        h=empty_buffer((window, *shape), BF16),
        before_c=empty_buffer((window, *shape), jnp.float32),
        made=(empty_buffer((window, 5, *shape), BF16),)
        if formats.on_gpu
        else tuple(empty_buffer((window, *shape), BF16) for _ in range(5)),
    )
    first = as_operand(carry.h, h_scale), carry, saved
    _, last, saved = jax.lax.fori_loop(0, window, step, first)
    return (last, of_bits(saved.h, BF16)), (carry, bytes_TB, weights, scaling, saved)


def _backward(
    formats: Formats, residuals: Any, cotangents: tuple[Carry, Array]
) -> tuple[Carry, None, LayerWeights, Scaling]:
    first, bytes_TB, weights, scaling, saved = residuals
    dlast, dh_TBH = cotangents
    window, shape = bytes_TB.shape[0], first.h.shape
    scales = _scales(scaling, formats)
    dz_scale, dmh_scale = scales[2:]
    times_wmh = _Matrix.of(weights.wmh_HH.T, formats).product_with(dmh_scale)
    times_wh = _Matrix.of(weights.wh_HG.T, formats).product_with(dz_scale)
    as_operand = partial(quantised, dtype=formats.backward, on_gpu=formats.on_gpu)
    dh_bits = as_bits(dh_TBH)

    def step(k: Array, later: tuple[Array, ...]) -> tuple[Array, ...]:
        dh, dc, dz_TBG, dm_T2BH = later
        t = window - 1 - k
        x, here = step_of((bytes_TB, saved), t)
        mx = project(x, weights.wmx_IH)
        mh, i, f, o, u = (
            of_bits(y, BF16).astype(jnp.float32)
            for y in (here.made[0] if formats.on_gpu else here.made)
        )
        tanh_c = jnp.tanh(f * here.before_c + i * u)
        dh = dh + of_bits(step_of(dh_bits, t), BF16).astype(jnp.float32)
        dc = dc + dh * o * (1 - tanh_c * tanh_c)
        di = dc * u * i * (1 - i)
        df = dc * here.before_c * f * (1 - f)
        do = dh * tanh_c * o * (1 - o)
        du = dc * i * (1 - u * u)
        dz = jnp.concatenate([di, df, do, du], axis=-1)
        dm = times_wh(as_operand(dz, dz_scale))
        dmh, dmx = dm * mx, (dm * mh).astype(BF16)
        dh = times_wmh(as_operand(dmh, dmh_scale))
        return (
            dh,
            dc * f,
            put_step(dz_TBG, dz.astype(BF16), t),
            put_step(dm_T2BH, jnp.stack([dmh.astype(BF16), dmx]), t),
        )

    unwritten = (
        empty_buffer((window, shape[0], 4 * shape[1]), BF16),
        empty_buffer((window, 2, *shape), BF16),
    )
    dh0_BH, dc0_BH, dz, dm = jax.lax.fori_loop(0, window, step, (dlast.h, dlast.c, *unwritten))
    dz_TBG, dm_T2BH = of_bits(dz, BF16), of_bits(dm, BF16)
    dmh_TBH, dmx_TBH = dm_T2BH[:, 0], dm_T2BH[:, 1]
    h_TBH = of_bits(saved.h, BF16)
    before_h_TBH = jnp.concatenate([first.h.astype(BF16)[None], h_TBH[:-1]])
    mh_TBH = of_bits(saved.made[0][:, 0] if formats.on_gpu else saved.made[0], BF16)
    m_TBH = (project(bytes_TB, weights.wmx_IH) * mh_TBH.astype(jnp.float32)).astype(BF16)
    _, dwmx_IH = project_gradient(bytes_TB, weights.wmx_IH, dmx_TBH)
    _, dwx_IG = project_gradient(bytes_TB, weights.wx_IG, dz_TBG)
    operands = (before_h_TBH, m_TBH, dz_TBG, dmh_TBH)
    types = (formats.forward, formats.forward, formats.backward, formats.backward)
    maxima = jnp.stack([jnp.max(jnp.abs(x)).astype(jnp.float32) for x in operands])
    fates = [_fates(*each) for each in zip(operands, scales, types, strict=True)]
    return (
        Carry(h=dh0_BH, c=dc0_BH),
        None,
        LayerWeights(
            wmx_IH=dwmx_IH,
            wx_IG=dwx_IG,
            wmh_HH=sum_rows(before_h_TBH, dmh_TBH),
            wh_HG=sum_rows(m_TBH, dz_TBG),
            b_G=jnp.sum(dwx_IG, axis=0),
        ),
        Scaling(
            maxima=jnp.concatenate([maxima[None], scaling.maxima[:-1]]),
            fates=scaling.fates + jnp.stack(fates, axis=1),
        ),
    )


recurrence.defvjp(_forward, _backward)


class Fp8Model:
    """The package's language model with one layer and the recurrence above.

    It replaces a `LanguageModel` in the training and evaluation steps. It has one more parameter,
    "scaling": see `beside_scaling` in fp8.py.
    """

    def __init__(self, plain: LanguageModel, formats: Formats) -> None:
        if plain.model.layers != 1 or plain.compute != COMPUTE_TYPES["bf16"]:
            raise ValueError("the study needs one layer, and bf16 outside the fp8 products")
        self.formats, self._plain = formats, plain

    def __getattr__(self, name: str) -> Any:
        """Return the package's, of all that is not replaced here."""
        return getattr(self._plain, name)

    def init_parameters(self, key: Array) -> Parameters:
        """Return the package's parameters and an empty history."""
        return {**self._plain.init_parameters(key), "scaling": no_scaling()}

    def apply(
        self,
        variables: Any,
        bytes_BT: Array,
        carry: Carry,
        padding_mask_BT: None = None,
        dropout_mask_BLH: None = None,
    ) -> ModelOutput:
        """Read a window of every row, as `LanguageModel` does."""
        params = variables["params"]
        layer, embedding_VE = params["layer_0"], params["embedding"]

        def matrix(name: str) -> Array:
            return weight_norm(layer[f"{name}_v"], layer[f"{name}_g"])

        weights = LayerWeights(
            wmx_IH=matmul(embedding_VE, matrix("wmx"), BF16),
            wx_IG=matmul(embedding_VE, matrix("wx"), BF16),
            wmh_HH=matrix("wmh"),
            wh_HG=matrix("wh"),
            b_G=layer["b"],
        )
        before = Carry(carry.h[:, 0], carry.c[:, 0])
        bytes_TB = bytes_BT.T.astype(jnp.int32)
        after, x = recurrence(before, bytes_TB, weights, params["scaling"], self.formats)
        logits_TBV = matmul(x, params["decoder_kernel"], BF16) + params["decoder_bias"][None, None]
        return ModelOutput(
            Carry(after.h[:, None], after.c[:, None]), logits_TBV.swapaxes(0, 1), None
        )
