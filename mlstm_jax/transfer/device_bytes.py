"""One text at a time on a device of JAX: read byte by byte, and continued.

Each call of the program that writes runs a block of steps, so one compiled program serves prompts
and texts of any length.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mlstm_jax import environment
from mlstm_jax.model.architecture import VOCABULARY
from mlstm_jax.model.language_model import Carry, LanguageModel
from mlstm_jax.model.numpy_model import Each
from mlstm_jax.model.numpy_sampling import BLOCK, Drawn, Request, Sampling
from mlstm_jax.parallel import Parallel
from mlstm_jax.run import Run
from mlstm_jax.terminal import told_if_slow
from mlstm_jax.transfer.windows import WindowReader


def _least_kept(logits_V: jax.Array, how: Sampling) -> jax.Array:
    falling_V = -jnp.sort(-logits_V)
    before_V = jnp.cumsum(jax.nn.softmax(falling_V)) - jax.nn.softmax(falling_V)
    kept = jnp.minimum(how.top_k, jnp.sum(before_V < how.top_p))
    return falling_V[jnp.maximum(kept, 1) - 1]


def _sample(key: jax.Array, logits_V: jax.Array, how: Sampling) -> jax.Array:
    logits_V = logits_V / jnp.maximum(how.temperature, 1e-6)
    # A CPU sorts for longer than it takes to do all the rest.
    is_cut = (how.top_k < VOCABULARY) | (how.top_p <= 1)
    least = jax.lax.cond(is_cut, _least_kept, lambda *_: jnp.float32(-jnp.inf), logits_V, how)
    drawn = jax.random.categorical(key, jnp.where(logits_V >= least, logits_V, -jnp.inf))
    return jnp.where(how.temperature > 0, drawn, jnp.argmax(logits_V)).astype(jnp.uint8)


@functools.partial(jax.jit, static_argnums=0)
def _generate_block(
    model: LanguageModel,
    weights: Any,
    carry: Carry,
    logits_BV: jax.Array,
    seed: Any,
    first: Any,
    how: Sampling,
    held_H: Any,
) -> tuple[Carry, jax.Array, jax.Array]:
    params, reading_weights = jax.tree.map(lambda x: x[0], weights)
    variables = {"params": params, "reading": {"weights": reading_weights}}
    key = jax.random.key(seed, impl="threefry2x32")
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(logits_BV.shape[0]))

    def step(
        state: tuple[Carry, jax.Array], at: jax.Array
    ) -> tuple[tuple[Carry, jax.Array], jax.Array]:
        carry, logits_BV = state
        keys = jax.vmap(jax.random.fold_in, (0, None))(keys_B, at)
        byte_B = jax.vmap(_sample, (0, 0, None))(keys, logits_BV, how)
        if "c" in model.architecture.states:
            # NaN: a unit of the top layer that is not held.
            top_BH = jnp.where(jnp.isnan(held_H), carry.c[:, -1], held_H)
            carry = carry._replace(c=carry.c.at[:, -1].set(top_BH.astype(carry.c.dtype)))
        carry, logits_BTV, *_ = model.apply(variables, byte_B[:, None], carry)
        return (carry, logits_BTV[:, 0]), byte_B

    steps = first + jnp.arange(BLOCK)
    (carry, logits_BV), drawn_TB = jax.lax.scan(step, (carry, logits_BV), steps)
    return carry, logits_BV, drawn_TB


class DeviceBytes:
    """The `ByteEngine` of JAX, on one device."""

    def __init__(self, run: Run) -> None:
        """Take a model; its programs are compiled when they are first needed."""
        self._run = run
        self._device = Parallel(jax.local_devices()[:1])
        self._windows = WindowReader(run, self._device, 1, keep_states="each")
        # Any text needs them; the first answer of the page does not wait for them.
        _, self._weights = self._windows.one_row

    @functools.cached_property
    def _writer(self) -> tuple[LanguageModel, Any]:
        """The model that generates text, of any number of rows, and its weights [1, ...]."""
        if (model := self._run.batch_model) is None:
            return self._run.model, self._weights
        params = self._run.params
        return model, self._device.replicate((params, model.reading_weights(params)))

    def each(self, piece: bytes, reached: Any) -> Iterator[tuple[Any, Each]]:
        for step, after, outputs in self._windows.read([piece], reached):
            assert outputs
            carry, logits_BTV = self._device.fetch_rows(outputs)
            named = self._run.architecture.named_states(carry)
            states = {name: np.asarray(x[0, : step.size]) for name, x in named.items()}
            yield after, Each(states, logits_BTV[0, : step.size])

    def write(self, reached: Any, logits_V: Any, request: Request) -> Iterator[Drawn]:
        environment.require_own_jax()
        samples = request.samples
        model, weights = self._writer
        # In bf16 one row has a product of its own, which adds in another order. That changes the
        # last bits of some states after rounding, and so in the end the text.
        rows = samples if model is self._run.model else max(samples, 2)
        # All outside the program is NumPy's: an operation of jnp would compile a program of its
        # own. Arrays lie where the program leaves its own: one serves all calls.
        once = (self._device.fetch_rows(reached.carry), logits_V[None])
        repeated = jax.tree.map(lambda x: np.repeat(x, rows, axis=0), once)
        carry, logits_BV = self._device.copy_to_all(repeated)
        seed = np.uint32(request.seed)
        for first in range(0, request.bytes, BLOCK):
            with told_if_slow("compiling the program that generates text", unless=first > 0):
                carry, logits_BV, drawn_TB = _generate_block(
                    model, weights, carry, logits_BV, seed, np.int32(first), request.how,
                    request.held_H,
                )  # fmt: skip
            yield np.asarray(drawn_TB)[: request.bytes - first, :samples]
