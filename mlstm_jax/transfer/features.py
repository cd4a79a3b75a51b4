"""Features of texts: the final cell state of the top layer of a frozen model.

Puri et al. 2018, section VI, after Radford et al. 2017: each text is cleaned as the corpus was and
read from a zero state. Texts are sorted by length into batches of one shape and read a window at a
time, so that any length takes the same memory; behind a text's end its cell state is held, so a
text's features do not depend on what shares its batch.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mlstm_jax.data.documents import clean
from mlstm_jax.model.language_model import Carry, LanguageModel, Parameters
from mlstm_jax.run import Run

_ROWS = 64
_WINDOW = 128


@partial(jax.jit, static_argnums=0)
def _read_window(
    model: LanguageModel,
    params: Parameters,
    carry: Carry,
    bytes_BT: jax.Array,
    length_B: jax.Array,
) -> Carry:
    hold_BT = jnp.arange(bytes_BT.shape[1])[None, :] >= length_B[:, None]
    carry, *_ = model.apply({"params": params}, bytes_BT, carry, hold_BT)
    return carry


def features(
    run: Run, texts: Sequence[str], on_text: Callable[[int], None] = lambda count: None
) -> NDArray[np.float32]:
    """Return c of the top layer after each text, float32 [texts, H].

    Args:
        run: a trained model.
        texts: any number, of any length.
        on_text: called with the number of texts done, for a progress line.
    """
    params = jax.device_put(run.params)
    cleaned = [clean(text, run.cleaning) for text in texts]
    order = np.argsort([len(text) for text in cleaned], kind="stable")
    result = np.zeros((len(texts), run.config.model.hidden), np.float32)
    for start in range(0, len(order), _ROWS):
        chosen = order[start : start + _ROWS]
        batch = [cleaned[index] for index in chosen]
        windows = -(-max(map(len, batch)) // _WINDOW)
        bytes_BS = np.zeros((_ROWS, windows * _WINDOW), np.uint8)
        length_B = np.zeros(_ROWS, np.int32)
        for row, text in enumerate(batch):
            bytes_BS[row, : len(text)] = np.frombuffer(text, np.uint8)
            length_B[row] = len(text)
        carry = run.model.init_carry(_ROWS)
        for window in range(windows):
            at = window * _WINDOW
            bytes_BT = bytes_BS[:, at : at + _WINDOW]
            carry = _read_window(run.model, params, carry, bytes_BT, length_B - at)
        result[chosen] = np.asarray(carry.c[:, -1], np.float32)[: len(chosen)]
        on_text(start + len(chosen))
    return result
