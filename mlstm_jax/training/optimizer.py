"""Adam, from optax's pieces, on float32 masters.

Puri et al. 2018, section VIII: β 0.9/0.999, ε 1e-8; NVIDIA's code clips the global norm at 1.
"""

import optax

from mlstm_jax.config import Optimizer


def build(optimizer: Optimizer, rate: optax.Schedule) -> optax.GradientTransformation:
    """Return clip → Adam → −rate; its state has one structure, clipped or not."""
    clip = optimizer.clip_norm
    return optax.chain(
        optax.identity() if clip is None else optax.clip_by_global_norm(clip),
        optax.scale_by_adam(b1=optimizer.b1, b2=optimizer.b2, eps=optimizer.eps),
        optax.scale_by_learning_rate(rate),
    )
