"""Draw bytes in NumPy: the text that JAX's generator gives for a seed, up to rounding.

JAX draws random numbers with Threefry-2x32 (Salmon et al. 2011), 20 rounds: a key and a counter of
two words each give two words. A byte is the largest of its logit plus -log(-log(u)), whose
maximum is distributed as the softmax of the logits. A logit differs from JAX's in its last bits, so
a text is another where two sums are equal to seven digits, which is rare.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlstm_jax.model.numpy_model import Array, NumpyCarry, NumpyModel

BLOCK = 64  # bytes that are drawn before they are shown
VOCABULARY = 256
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)

Drawn = NDArray[np.uint8]  # [BLOCK, B]
Words = NDArray[np.uint32]


class Sampling(NamedTuple):
    """How a byte is drawn; scalars, float32 unless said."""

    temperature: Any
    top_k: Any  # int32: only from this many most likely bytes
    top_p: Any  # only from the fewest bytes whose total probability is at least this


class Request(NamedTuple):
    """What to write."""

    samples: int
    bytes: int  # of each
    seed: int
    how: Sampling
    held_H: Array  # values that units of the top layer's c are held at; NaN: they are not


def threefry(key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Words, Words]:
    """The two words of a counter of two words, uint32 of any shape that broadcasts."""
    k0, k1 = (np.asarray(word, np.uint32) for word in key)
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    with np.errstate(over="ignore"):  # sums are modulo 2^32
        x0 = np.asarray(counter[0], np.uint32) + k0
        x1 = np.asarray(counter[1], np.uint32) + k1
        for n in range(5):
            for rotation in _ROTATIONS[n % 2]:
                x0 = x0 + x1
                x1 = (x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))
                x1 = x1 ^ x0
            x0 = x0 + keys[(n + 1) % 3]
            x1 = x1 + keys[(n + 2) % 3] + np.uint32(n + 1)
    return x0, x1


def fold_in(key: tuple[Any, Any], number: Any) -> tuple[Words, Words]:
    """`jax.random.fold_in` of a key: one of the keys that follow from it."""
    return threefry(key, (np.zeros_like(number, np.uint32), number))


def gumbel(key_B: tuple[Words, Words]) -> Array:
    """-log(-log(u)) of 256 uniform numbers for each key, float32 [B, 256]."""
    count_V = np.arange(VOCABULARY, dtype=np.uint32)
    key_B1 = (key_B[0][:, None], key_B[1][:, None])
    high, low = threefry(key_B1, (np.zeros_like(count_V), count_V))
    bits = ((high ^ low) >> np.uint32(9)) | np.float32(1).view(np.uint32)
    tiny = np.finfo(np.float32).tiny
    uniform = np.maximum(bits.view(np.float32) - np.float32(1) + tiny, tiny)
    return -np.log(-np.log(uniform))


def _cut(logits_BV: Array, how: Sampling) -> Array:
    """The logits, -inf where a byte is not among the most likely."""
    falling_BV = -np.sort(-logits_BV, axis=1)
    shares_BV = np.exp(falling_BV - falling_BV[:, :1])
    shares_BV /= shares_BV.sum(axis=1, keepdims=True)
    before_BV = np.cumsum(shares_BV, axis=1) - shares_BV
    kept_B = np.minimum(how.top_k, (before_BV < how.top_p).sum(axis=1))
    least_B = falling_BV[np.arange(len(kept_B)), np.maximum(kept_B, 1) - 1]
    return np.where(logits_BV >= least_B[:, None], logits_BV, -np.inf)


def draw(key_B: tuple[Words, Words], logits_BV: Array, how: Sampling) -> NDArray[np.uint8]:
    """Draw a byte for each row, uint8 [B]."""
    if how.temperature <= 0:
        return logits_BV.argmax(axis=1).astype(np.uint8)
    logits_BV = logits_BV / np.maximum(how.temperature, np.float32(1e-6))
    if how.top_k < VOCABULARY or how.top_p <= 1:
        logits_BV = _cut(logits_BV, how)
    return (gumbel(key_B) + logits_BV).argmax(axis=1).astype(np.uint8)


def write(
    model: NumpyModel, reached: NumpyCarry, logits_V: Array, request: Request
) -> Iterator[Drawn]:
    """Yield the bytes that continue a text, a block of each sample at a time.

    `reached` is the carry of the text, of one row, and `logits_V` are of the next byte.
    """
    samples = request.samples
    carry = NumpyCarry(np.repeat(reached.h, samples, axis=1), np.repeat(reached.c, samples, axis=1))
    logits_BV = np.repeat(logits_V[None], samples, axis=0)
    is_held_H = ~np.isnan(request.held_H)
    keys_B = fold_in((0, request.seed), np.arange(samples, dtype=np.uint32))
    for first in range(0, request.bytes, BLOCK):
        drawn_TB = np.empty((min(BLOCK, request.bytes - first), samples), np.uint8)
        for t in range(len(drawn_TB)):
            at = np.full(samples, first + t, np.uint32)
            byte_B = draw(fold_in(keys_B, at), logits_BV, request.how)
            carry.c[-1][:, is_held_H] = request.held_H[is_held_H]
            logits_BV = model.logits(model.step(byte_B, carry))
            drawn_TB[t] = byte_B
        yield drawn_TB
