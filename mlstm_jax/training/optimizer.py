"""The optimizers, built from optax's transformations, on float32 master weights.

Puri et al. 2018, section VIII: Adam, β 0.9/0.999, ε 1e-8; NVIDIA's code clips the global norm at 1.
LAMB (You et al. 2020, arXiv 1904.00962, algorithm 2) and LARS (You et al. 2017, arXiv 1708.03888)
scale the rate of each matrix by the trust ratio ‖w‖ / ‖update‖. LAMB with the norm clipped at 1 is
NVIDIA's variant, which divides the gradient by its global norm if that exceeds 1.

Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks") is momentum for
the matrices, with all singular values set to about one. With gradient G and β = muon_momentum::

    M ← β M + G
    O  = NS(G + β M)        Newton-Schulz, five steps: U Σ Vᵀ → about U Vᵀ
    W ← W − η √max(1, columns / rows) O

Biases, gains, the embedding, label heads and, unless optimizer.muon_decoder is set, the decoder use
Adam. Each gate's columns are a separate matrix (`Architecture.matrices`), which devices share out
more evenly. Optax's iteration is not used, because its products sum in the type of their operands.
docs/large_batches.md explains η under weight normalisation.

Biases, gains, label heads and a recurrent model's embedding have neither trust ratio nor decay
(`Architecture.decays`). In a weight-normalised matrix W = g V / ‖V‖ only the direction of V
matters, and the gradient shrinks as ‖V‖ grows. The trust ratio cancels exactly this and turns V by
the same angle at any norm. Decay of V changes only that norm; it is therefore safe, but does not
regularise.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mlstm_jax.arrays import named
from mlstm_jax.config import Compute, Optimizer
from mlstm_jax.errors import UserError
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.model.language_model import parameter_shapes

Array = jax.Array

# Of x, x³ and x⁵ (Jordan et al. 2024): the steepest at zero that keeps values near one there.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def build(
    optimizer: Optimizer,
    architecture: Architecture,
    lr_schedule: optax.Schedule,
    *,
    update_bytes: int = 0,
    axis_name: str | None = None,
    compute: Compute | None = None,
) -> optax.GradientTransformation:
    """Build clip → optimizer → −rate; the structure of its state does not depend on clipping.

    Args:
        lr_schedule: learning rate by the number of applied updates.
        update_bytes: bytes of text in one update, on all devices; used with b2_half_life and
            weight_decay_bytes.
        axis_name: axis of the devices that divide Muon's matrices; None: no axis.
        compute: the config's `precision.compute`. With bf16 Muon's products are bf16, too. The
            range of fp16 is too small for them, so they stay float32.
    """
    decays = map_by_name(architecture.decays)
    clip = optax.identity()
    if optimizer.clip_norm is not None:
        clip = optax.clip_by_global_norm(optimizer.clip_norm)
    b2 = second_moment_decay(optimizer, update_bytes)
    adam = optax.scale_by_adam(b1=optimizer.b1, b2=b2, eps=optimizer.eps)
    weight_decay = decay_of_update(optimizer, update_bytes)
    decay = optax.add_decayed_weights(weight_decay, mask=decays)
    descend = optax.scale_by_learning_rate(lr_schedule)
    match optimizer.name:
        case "adam":
            return optax.chain(clip, adam, descend)
        case "adamw":
            return optax.chain(clip, adam, decay, descend)
        case "lamb":
            trust = optax.masked(optax.scale_by_trust_ratio(), decays)
            return optax.chain(clip, adam, decay, trust, descend)
        case "lars":
            trust = optax.masked(
                optax.scale_by_trust_ratio(trust_coefficient=optimizer.trust_coefficient), decays
            )
            momentum = optax.trace(decay=optimizer.b1)
            return optax.chain(clip, decay, trust, descend, momentum)
        case "muon":
            ratio = optimizer.muon_learning_rate / optimizer.learning_rate
            dtype = jnp.bfloat16 if compute == "bf16" else jnp.float32
            side_by_side = partial(matrices, architecture, optimizer.muon_decoder)
            muon = optax.chain(
                optax.trace(decay=optimizer.muon_momentum, nesterov=True),
                orthogonalise(optimizer.muon_steps, dtype, axis_name, side_by_side),
                optax.add_decayed_weights(weight_decay),
                optax.scale_by_learning_rate(lambda count: ratio * lr_schedule(count)),
            )
            transforms = {True: muon, False: optax.chain(adam, decay, descend)}
            is_matrix = map_by_name(lambda name: side_by_side(name) > 0)
            return optax.chain(clip, optax.partition(transforms, is_matrix))
        case name:
            raise NotImplementedError(name)


def product_flops(optimizer: Optimizer, architecture: Architecture, devices: int) -> int:
    """Flops of an update's products on each device: the Newton-Schulz steps of Muon.

    One of its steps is three products: 2 r²c, 2 r³ and 2 r²c flops for an r by c matrix, r ≤ c.
    """
    if "muon_steps" not in optimizer.kind.fields:
        return 0
    side_by_side = partial(matrices, architecture, optimizer.muon_decoder)
    # The matrices of one shape are one stack, which the devices share out.
    stacks = Counter[tuple[int, int]]()
    for name, leaf in named(parameter_shapes(architecture)).items():
        if count := side_by_side(name):
            stacks[leaf.shape[0], leaf.shape[1] // count] += count
    flops = 0
    for shape, count in stacks.items():
        r, c = sorted(shape)
        flops += (4 * r * r * c + 2 * r**3) * -(-count // devices)
    return optimizer.muon_steps * flops


def second_moment_decay(optimizer: Optimizer, update_bytes: int) -> float:
    """Adam's β2: as set, or from the half-life `b2_half_life` of a gradient in bytes.

    β2 = 2^(−bytes of an update / half-life): the second moment is then a mean over the same amount
    of text at any batch (Marek et al. 2025, arXiv 2507.07101, section 3).
    """
    b2 = optimizer.b2
    if optimizer.b2_half_life is not None:
        b2 = 2.0 ** (-update_bytes / optimizer.b2_half_life)
    return b2


def require_b2(optimizer: Optimizer, update_bytes: int) -> None:
    """Raise UserError if β2 is 1 in float32; `update_bytes` as in `build`."""
    if np.float32(second_moment_decay(optimizer, update_bytes)) == 1:
        raise UserError(
            "`optimizer.b2` or `optimizer.b2_half_life` is too large: β2 is 1 in float32, and Adam "
            "would divide by zero."
        )


def decay_of_update(optimizer: Optimizer, update_bytes: int) -> float:
    """The weight decay λ of an update: as set, or in proportion to its bytes.

    At one learning rate η, weights then decay by the factor 1 / e over the same amount of text,
    bytes of an update / (η λ), at any batch (Wang and Aitchison 2024, arXiv 2405.13698).
    """
    reference_bytes = optimizer.weight_decay_bytes
    if reference_bytes is None:
        return optimizer.weight_decay
    return optimizer.weight_decay * (update_bytes / reference_bytes)


def map_by_name(function: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Make a function of trees that replaces every leaf by `function` of its name, layer_0/b."""
    return partial(jax.tree_util.tree_map_with_path, lambda path, _: function(_name(path)))


def matrices(architecture: Architecture, decoder: bool, name: str) -> int:
    """How many of Muon's matrices, with the decoder or not, a parameter has."""
    if name == "decoder_kernel" and not decoder:
        return 0
    return architecture.matrices(name)


def orthogonalise(
    steps: int, dtype: Any, axis_name: str | None, side_by_side: Callable[[str], int]
) -> optax.GradientTransformation:
    """The stateless transformation G → √max(1, columns / rows) · NS(G) of every matrix.

    The operands of the products have type `dtype`. The devices of the axis, if any, divide the
    matrices among themselves; `side_by_side` says how many a parameter has, by its name.
    """

    def update(gradient: Any, params: Any) -> Any:
        del params
        leaves, structure = jax.tree_util.tree_flatten_with_path(gradient)
        blocks: list[Array] = []
        counts: list[int] = []
        for path, leaf in leaves:
            counts.append(side_by_side(_name(path)))
            blocks += jnp.split(leaf, counts[-1], axis=1)
        # Blocks of one shape are computed as one stack.
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for number, block in enumerate(blocks):
            by_shape.setdefault(block.shape, []).append(number)
        for numbers in by_shape.values():
            stack_NIO = jnp.stack([blocks[number] for number in numbers])
            stack_NIO = _orthogonal(stack_NIO, steps, dtype, axis_name)
            for number, block in zip(numbers, stack_NIO, strict=True):
                blocks[number] = block
        places = iter(blocks)
        joined = [jnp.concatenate(list(itertools.islice(places, n)), axis=1) for n in counts]
        return jax.tree.unflatten(structure, joined)

    return optax.stateless(update)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _orthogonal(stack_NIO: Array, steps: int, dtype: Any, axis_name: str | None) -> Array:
    """Orthogonalise the matrices of a stack; each device computes a part."""
    count, rows, columns = stack_NIO.shape
    scale = math.sqrt(max(1.0, columns / rows))
    devices = jax.lax.axis_size(axis_name) if axis_name else 1
    if devices == 1:
        return scale * _newton_schulz(stack_NIO, steps, dtype)
    each = -(-count // devices)
    padding = ((0, each * devices - count), (0, 0), (0, 0))
    first = jax.lax.axis_index(axis_name) * each
    part_NIO = jax.lax.dynamic_slice_in_dim(jnp.pad(stack_NIO, padding), first, each)
    part_NIO = _newton_schulz(part_NIO, steps, dtype)
    return scale * jax.lax.all_gather(part_NIO, axis_name, tiled=True)[:count]


def _newton_schulz(stack_NIO: Array, steps: int, dtype: Any) -> Array:
    """U p(Σ) Vᵀ for every U Σ Vᵀ / ‖Σ‖, float32; p is the polynomial applied `steps` times.

    The operands of the products have type `dtype`; the sums, and x between two steps, are float32.
    """

    def product(equation: str, x: Array, y: Array) -> Array:
        return jnp.einsum(
            equation, x.astype(dtype), y.astype(dtype), preferred_element_type=jnp.float32
        )

    a, b, c = COEFFICIENTS
    _, rows, columns = stack_NIO.shape
    if rows > columns:  # Use the smaller of x xᵀ and xᵀ x.
        return jnp.swapaxes(_newton_schulz(jnp.swapaxes(stack_NIO, 1, 2), steps, dtype), 1, 2)
    x = stack_NIO / (jnp.linalg.norm(stack_NIO, axis=(1, 2), keepdims=True) + 1e-8)
    for _ in range(steps):
        s = product("nik,njk->nij", x, x)
        x = a * x + product("nij,njk->nik", b * s + c * product("nij,njk->nik", s, s), x)
    return x
