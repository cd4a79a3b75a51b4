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

Biases, gains, the embedding and, unless optimizer.muon_decoder is set, the decoder use Adam. Each
gate's columns are a separate matrix (`Architecture.matrices`): many small matrices are shared out
among the devices more evenly than few large ones, and joint ones were not better. The coefficients
are optax's. Its iteration is not used, because its products sum in the type of their operands, and
XLA for CPUs computes such products in bf16 at float32's rate. docs/large_batches.md explains η
under weight normalisation.

Biases, gains and a recurrent model's embedding have neither trust ratio nor decay
(`Architecture.decays`). In a weight-normalised matrix W = g V / ‖V‖ only the direction of V
matters, and the gradient shrinks as ‖V‖ grows. The trust ratio cancels exactly this and turns V by
the same angle at any norm. Decay of V changes only that norm; it is therefore safe, but does not
regularise.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mlstm_jax.config import Compute, Optimizer
from mlstm_jax.interop.weights import named
from mlstm_jax.model.architecture import Architecture
from mlstm_jax.model.language_model import parameter_shapes
from mlstm_jax.training.state import TrainState

Array = jax.Array

# Of x, x³ and x⁵ (Jordan et al. 2024): the steepest at zero that keeps values near one there.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def muon_type(compute: Compute | None) -> Any:
    """Return the operand type of Muon's products."""
    return jnp.bfloat16 if compute == "bf16" else jnp.float32


def build(
    optimizer: Optimizer,
    model: Architecture,
    lr_schedule: optax.Schedule,
    *,
    update_bytes: int = 0,
    axis_name: str | None = None,
    compute: Compute | None = None,
) -> optax.GradientTransformation:
    """Return clip → optimizer → −rate; the structure of its state does not depend on clipping.

    Args:
        optimizer: the config's.
        model: says which parameters are matrices.
        lr_schedule: learning rate by the number of applied updates.
        update_bytes: bytes of text in one update, on all devices; used with b2_half_life and
            weight_decay_bytes.
        axis_name: axis of the devices that divide Muon's matrices; None: no axis.
        compute: the config's `precision.compute`. With bf16 Muon's products are bf16, too. The
            range of fp16 is too small for them, so they stay float32.
    """
    decays = of_names(model.decays)
    clip, b2 = optimizer.clip_norm, second_moment_decay(optimizer, update_bytes)
    weight_decay = decay_of_update(optimizer, update_bytes)
    clipped = optax.identity() if clip is None else optax.clip_by_global_norm(clip)
    adam = optax.scale_by_adam(b1=optimizer.b1, b2=b2, eps=optimizer.eps)
    decay = optax.add_decayed_weights(weight_decay, mask=decays)
    descend = optax.scale_by_learning_rate(lr_schedule)
    match optimizer.name:
        case "adam":
            return optax.chain(clipped, adam, descend)
        case "adamw":
            return optax.chain(clipped, adam, decay, descend)
        case "lamb":
            trust = optax.masked(optax.scale_by_trust_ratio(), decays)
            return optax.chain(clipped, adam, decay, trust, descend)
        case "lars":
            trust = optax.masked(
                optax.scale_by_trust_ratio(trust_coefficient=optimizer.trust_coefficient), decays
            )
            momentum = optax.trace(decay=optimizer.b1)
            return optax.chain(clipped, decay, trust, descend, momentum)
        case "muon":
            ratio = optimizer.other_rates["Muon"]
            count_in = matrices(model, optimizer.muon_decoder)
            of_matrices = optax.chain(
                optax.trace(decay=optimizer.muon_momentum, nesterov=True),
                orthogonalise(optimizer.muon_steps, muon_type(compute), axis_name, count_in),
                optax.add_decayed_weights(weight_decay),
                optax.scale_by_learning_rate(lambda count: ratio * lr_schedule(count)),
            )
            transforms = {True: of_matrices, False: optax.chain(adam, decay, descend)}
            is_matrix = of_names(lambda name: count_in(name) > 0)
            return optax.chain(clipped, optax.partition(transforms, is_matrix))


def product_flops(optimizer: Optimizer, model: Architecture, devices: int) -> int:
    """Return the flops of an update's products on each device, those of Muon's Newton-Schulz.

    One of its steps is three products: 2 r²c, 2 r³ and 2 r²c flops for an r by c matrix, r ≤ c.
    """
    if optimizer.name != "muon":
        return 0
    count_in = matrices(model, optimizer.muon_decoder)
    # The matrices of one shape are one stack, which the devices share out.
    stacks = Counter(
        (leaf.shape[0], leaf.shape[1] // count_in(name))
        for name, leaf in named(parameter_shapes(model)).items()
        for _ in range(count_in(name))
    )
    flops = 0
    for shape, count in stacks.items():
        r, c = sorted(shape)
        flops += (4 * r * r * c + 2 * r**3) * -(-count // devices)
    return optimizer.muon_steps * flops


def second_moment_decay(optimizer: Optimizer, update_bytes: int) -> float:
    """Return Adam's β2: as set, or from the half-life `b2_half_life` of a gradient in bytes.

    β2 = 2^(−bytes of an update / half-life): the second moment is then a mean over the same amount
    of text at any batch (Marek et al. 2025, arXiv 2507.07101, section 3).
    """
    half_life = optimizer.b2_half_life
    return optimizer.b2 if half_life is None else 2.0 ** (-update_bytes / half_life)


def rescale_second_moment(
    optimizer: Optimizer, state: TrainState, before: int | None, now: int
) -> TrainState:
    """Return a state, NumPy, whose next updates have `now` bytes of text, the last had `before`.

    With `b2_half_life`, β2 then changes. Adam divides its second moment by 1 − β2ⁿ, as if all n
    updates had had the new β2; the moment is scaled here, so that the quotient is what it was.
    """
    if optimizer.b2_half_life is None or before in (None, now):
        return state
    # β2 itself may round to 0 or 1.
    half_lives = (n / optimizer.b2_half_life for n in (before or now, now))
    log_old, log_new = (-math.log(2) * count for count in half_lives)

    def adapt(part: Any) -> Any:
        if not _is_adam(part) or not (count := int(part.count)):
            return part
        ratio = np.float32(math.expm1(count * log_new) / math.expm1(count * log_old))
        return part._replace(nu=jax.tree.map(lambda nu: nu * ratio, part.nu))

    adapted = jax.tree.map(adapt, state.opt_state, is_leaf=_is_adam)
    return state._replace(opt_state=adapted)


def _is_adam(part: Any) -> bool:
    return isinstance(part, optax.ScaleByAdamState)


def decay_of_update(optimizer: Optimizer, update_bytes: int) -> float:
    """Return the weight decay λ of an update: as set, or in proportion to its bytes.

    At one learning rate η, weights then decay by the factor 1 / e over the same amount of text,
    bytes of an update / (η λ), at any batch (Wang and Aitchison 2024, arXiv 2405.13698).
    """
    of = optimizer.weight_decay_bytes
    return optimizer.weight_decay * (1.0 if of is None else update_bytes / of)


def of_names(of: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return the function that replaces every leaf of a tree by a value of its name, layer_0/b."""
    return lambda tree: jax.tree_util.tree_map_with_path(lambda path, _: of(_name(path)), tree)


def matrices(model: Architecture, decoder: bool) -> Callable[[str], int]:
    """Return how many of Muon's matrices are side by side in a parameter, by its name.

    Args:
        model: says which parameters are matrices.
        decoder: whether Muon trains the decoder, too.
    """
    return lambda name: model.matrices(name) if decoder or name != "decoder_kernel" else 0


def orthogonalise(
    steps: int, dtype: Any, axis_name: str | None, side_by_side: Callable[[str], int]
) -> optax.GradientTransformation:
    """Return the stateless transformation G → √max(1, columns / rows) · NS(G) of every matrix.

    Args:
        steps: number of Newton-Schulz iterations.
        dtype: type of the operands of the products.
        axis_name: axis of the devices that divide the matrices among themselves; None: each device
            computes all.
        side_by_side: how many matrices are side by side in a parameter, by its name.
    """

    def update(gradient: Any, params: Any) -> Any:
        del params
        split = jax.tree_util.tree_map_with_path(
            lambda path, leaf: jnp.split(leaf, side_by_side(_name(path)), axis=1), gradient
        )
        blocks, structure = jax.tree.flatten(split)
        # Blocks of one shape are computed as one stack.
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for number, block in enumerate(blocks):
            by_shape.setdefault(block.shape, []).append(number)
        for numbers in by_shape.values():
            stack_NIO = jnp.stack([blocks[number] for number in numbers])
            stack_NIO = _orthogonal(stack_NIO, steps, dtype, axis_name)
            for number, block in zip(numbers, stack_NIO, strict=True):
                blocks[number] = block
        return jax.tree.map(
            lambda parts: jnp.concatenate(parts, axis=1),
            jax.tree.unflatten(structure, blocks),
            is_leaf=lambda node: isinstance(node, list),
        )

    return optax.stateless(update)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _orthogonal(stack_NIO: Array, steps: int, dtype: Any, axis_name: str | None) -> Array:
    """Return the orthogonalised matrices of a stack; each device computes a part."""
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
    """Return U p(Σ) Vᵀ for every U Σ Vᵀ / ‖Σ‖, float32; p is the polynomial applied `steps` times.

    The operands of the products have type `dtype`; the sums, and x between two steps, are float32.
    """

    def product(equation: str, x: Array, y: Array) -> Array:
        operands = x.astype(dtype), y.astype(dtype)
        return jnp.einsum(equation, *operands, preferred_element_type=jnp.float32)

    a, b, c = COEFFICIENTS
    _, rows, columns = stack_NIO.shape
    # Use the smaller of x xᵀ and xᵀ x.
    x = stack_NIO if rows <= columns else jnp.swapaxes(stack_NIO, 1, 2)
    x = x / (jnp.linalg.norm(x, axis=(1, 2), keepdims=True) + 1e-8)
    for _ in range(steps):
        s = product("nik,njk->nij", x, x)
        x = a * x + product("nij,njk->nik", b * s + c * product("nij,njk->nik", s, s), x)
    return x if rows <= columns else jnp.swapaxes(x, 1, 2)
