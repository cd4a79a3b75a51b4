"""Texts of any length, read by one model: texts → windows → carry and states.

Each row of a window reads one text, from a zero state. A row whose text ends is given the next text
at once, the longest first; when fewer texts are left than rows, the rest is read in fewer rows.
Rows and windows have a few sizes only, and one compiled program serves each; a call begins with the
number of rows that costs least, and on a GPU leaves out sizes that gain little. Cost is
proportional to bytes.

A text's state depends on that text alone, up to rounding: rows do not mix, and two windows give bit
for bit what one long window gives; but a product of another number of rows adds in another order.
"""

import functools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mlstm_jax import environment, parallel
from mlstm_jax.config import Devices
from mlstm_jax.model.architecture import StateOutput, Totals
from mlstm_jax.model.language_model import Carry, LanguageModel, cross_entropy, reset
from mlstm_jax.model.numpy_model import Summary
from mlstm_jax.model.stack import Recurrent
from mlstm_jax.parallel import Parallel
from mlstm_jax.run import Run
from mlstm_jax.terminal import told_if_slow

ROWS = (1, 8, 16, 32, 64, 256)  # of the programs, on each device
_WINDOWS = (16, 128)
_MOST_PADDING = 1 / 8  # of a window's bytes; else the window is a short one
# A step of n rows costs about as much as n + 4 (GPUs: n + 176) rows would without the time to read
# the weights: on two cores of an EPYC 8, 64 and 256 rows cost 3, 18 and 67 times one row in fp32,
# and 2, 10 and 37 times in bf16 (768 units).
_WEIGHTS_COST = {"cpu": 4}
_GPU_WEIGHTS_COST = 176
# Of the cost, on a GPU, where a program takes seconds to compile: each size is autotuned.
_FEWER_PROGRAMS = 0.05


class TextWindow(NamedTuple):
    """The next bytes of some texts, one in each row."""

    bytes_BT: Any  # uint8, T + 1 of them; zero after the end of a text
    # How many of the first T bytes belong to the text, how many of the bytes after each of these
    # do, and whether the text begins here, int32.
    counts_B3: Any


class ReadStep(NamedTuple):
    """Which bytes of which texts a window reads."""

    width: int  # T
    kept_B: NDArray[np.intp] | None  # the rows of the step before that go on, if fewer do
    text_B: NDArray[np.int64]  # which text each row reads; -1: none
    place_B: NDArray[np.int64]  # where in it the window begins
    rest_B: NDArray[np.int64]  # how many bytes of it are not read yet; 0 without a text

    @property
    def size(self) -> int:
        """How many bytes are read."""
        return int(np.minimum(self.rest_B, self.width).sum())

    @property
    def ended(self) -> NDArray[np.intp]:
        """The rows whose text ends here."""
        return np.flatnonzero((self.text_B >= 0) & (self.rest_B <= self.width))

    def window(self, texts: Sequence[bytes]) -> TextWindow:
        """Cut the bytes out of the texts."""
        bytes_BT = np.zeros((len(self.text_B), self.width + 1), np.uint8)
        for row in np.flatnonzero(self.text_B >= 0):
            start = self.place_B[row]
            piece = texts[self.text_B[row]][start : start + self.width + 1]
            bytes_BT[row, : len(piece)] = np.frombuffer(piece, np.uint8)
        read_B = np.clip(self.rest_B, 0, self.width)
        scored_B = np.clip(self.rest_B - 1, 0, self.width)
        starts_B = (self.text_B >= 0) & (self.place_B == 0)
        counts_B3 = np.stack([read_B, scored_B, starts_B], axis=1).astype(np.int32)
        return TextWindow(bytes_BT, counts_B3)


def _least(sizes: Sequence[int], count: int) -> int:
    """The smallest size that has room for `count` rows, or else the largest."""
    return next((size for size in sizes if size >= count), sizes[-1])


def read_steps(
    texts: Sequence[bytes], sizes: Sequence[int], widths: Sequence[int]
) -> Iterator[ReadStep]:
    """Yield the steps that read all texts, the longest first; none reads an empty text.

    `sizes` are numbers of rows, and `widths` numbers of bytes T to choose from, both rising.
    """
    length_N = np.array([len(text) for text in texts], np.int64)
    order = np.argsort(-length_N, kind="stable")
    waiting = deque(order[length_N[order] > 0].tolist())
    text_B = np.full(_least(sizes, len(waiting)), -1)
    place_B = np.zeros(len(text_B), np.int64)
    while waiting or (text_B >= 0).any():
        for row in np.flatnonzero(text_B < 0)[: len(waiting)]:
            text_B[row] = waiting.popleft()
            place_B[row] = 0
        kept_B = None
        size = _least(sizes, int(np.count_nonzero(text_B >= 0)))
        if size < len(text_B):
            kept_B = np.argsort(text_B < 0, kind="stable")[:size]  # rows with a text first
            text_B = text_B[kept_B]
            place_B = place_B[kept_B]
        rest_B = np.where(text_B >= 0, length_N[text_B] - place_B, 0)
        width = widths[0]
        for wider in widths[1:]:
            padding_B = np.maximum(wider - rest_B[text_B >= 0], 0)
            if padding_B.mean() <= _MOST_PADDING * wider:
                width = wider
        yield ReadStep(width, kept_B, text_B.copy(), place_B, rest_B)
        text_B[rest_B <= width] = -1
        place_B = place_B + width


def cheapest_rows(
    texts: Sequence[bytes],
    sizes: Sequence[int],
    widths: Sequence[int],
    weights_cost: float,
    *,
    margin: float = 0.0,
) -> Sequence[int]:
    """The sizes up to the number of rows with which reading the texts costs least.

    Many rows multiply faster, but wait for the longest texts. Sizes that add at most `margin` of
    the cost are left out, so that fewer programs are compiled.
    """

    def places(tried: Sequence[int]) -> Counter[int]:
        """How many bytes of each row are read with each number of rows."""
        read = Counter[int]()
        for step in read_steps(texts, tried, widths):
            read[len(step.text_B)] += step.width
        return read

    def cost(read: Counter[int]) -> float:
        return sum((rows + weights_cost) * width for rows, width in read.items())

    most = sizes.index(_least(sizes, len(texts))) + 1
    best = sizes[:most]
    # Of more texts than sixteen times the rows the schedule itself would take time.
    tried = [sizes[:n] for n in range(1, most + 1) if sizes[n - 1] * 16 >= len(texts)]
    if len(tried) > 1:
        best = min(tried, key=lambda one: cost(places(one)))
    if not margin:
        return best
    read = places(best)
    left = margin * cost(read)
    while len(read) > 1:
        # Rows that wait in a larger size; the windows stay the same.
        added, size, larger = min((read[a] * (b - a), a, b) for a, b in pairwise(sorted(read)))
        if added > left:
            break
        left -= added
        read[larger] += read.pop(size)
    return sorted(read) or best


class RowStates(NamedTuple):
    """What a row knows of its text so far."""

    carry: Carry
    totals: Totals  # of h over its bytes; undefined unless kept
    nats_B: Any  # of its bytes but the first, float32; zero without `score`


class StepOutputs(NamedTuple):
    """What a window gives besides the state after it."""

    states: Carry  # after each byte
    logits_BTV: Any  # of the byte after each


AfterStep = tuple[ReadStep, RowStates, StepOutputs | None]


def _make_step(
    model: LanguageModel, *, keep_states: StateOutput, score: bool
) -> Callable[..., Any]:
    """Return the step of one device: it reads a window."""

    def step(weights: Any, state: RowStates, window: TextWindow) -> Any:
        params, reading_weights = weights
        variables = {"params": params, "reading": {"weights": reading_weights}}
        bytes_BT = window.bytes_BT[:, :-1]
        read_B, scored_B, starts_B = window.counts_B3.T
        carry, totals, nats_B = reset(state, starts_B)
        place_1T = jnp.arange(bytes_BT.shape[1])[None]
        padding_mask_BT = place_1T >= read_B[:, None]
        read = model.apply(variables, bytes_BT, carry, padding_mask_BT, return_states=keep_states)
        if keep_states == "totals":
            starts_B11 = starts_B[:, None, None]
            highest_BLH = jnp.where(starts_B11, -jnp.inf, totals.max)
            highest_BLH = jnp.maximum(highest_BLH, read.states.max)
            totals = Totals(totals.sum + read.states.sum, highest_BLH)
        if score:
            nats_BT = cross_entropy(read.logits_BTV, window.bytes_BT[:, 1:])
            nats_B = nats_B + jnp.where(place_1T < scored_B[:, None], nats_BT, 0).sum(axis=1)
        outputs = None
        if keep_states == "each":
            outputs = StepOutputs(read.states, read.logits_BTV)
        return RowStates(read.carry, totals, nats_B), outputs

    return step


@functools.cache
def _program(
    model: LanguageModel, devices: tuple[jax.Device, ...], keep_states: StateOutput, score: bool
) -> Any:
    """Return the step on all devices, the same for equal arguments: it is compiled once."""
    return Parallel(devices).map(_make_step(model, keep_states=keep_states, score=score))


class WindowReader:
    """Reads texts with one model, whose programs and weights it keeps."""

    def __init__(
        self,
        run: Run,
        devices: Parallel | None,
        rows: int | None = None,
        *,
        keep_states: StateOutput = "none",
        score: bool = False,
    ) -> None:
        """Choose what to compute, for at most `rows` texts at a time (unset: 256 a device).

        `keep_states` "totals": of h over the bytes of each text; "each": also yield `StepOutputs`,
        and read texts of all lengths with one program. `score`: sum the loss of each text.
        """
        devices = devices or parallel.local_devices(Devices())
        self._run = run
        self._devices = devices
        most = ROWS[-1]
        if rows is not None:
            most = -(-rows // devices.count)
        elif not isinstance(run.config.model, Recurrent):
            most = ROWS[-2]  # a Transformer would take more memory
        sizes = [size for size in ROWS if size < most] + [most]
        self._sizes = [size * devices.count for size in sizes]
        platform = devices.devices[0].platform
        self._weights_cost = _WEIGHTS_COST.get(platform, _GPU_WEIGHTS_COST) * devices.count
        self._margin = 0.0 if platform == "cpu" else _FEWER_PROGRAMS
        widths = _WINDOWS[-1:] if keep_states == "each" else _WINDOWS
        self._widths = sorted({run.config.model.reading_window(width) for width in widths})
        self._outputs = (keep_states, score)
        self._called: set[tuple[int, ...]] = set()  # shapes of windows: a program for each

    # Each is prepared when it is first needed: many calls need only one of them.
    @functools.cached_property
    def one_row(self) -> tuple[Any, Any]:
        """The program that reads one row on each device, and its weights [N, ...]."""
        return self._prepare(self._run.model, several_rows=self._run.batch_model is None)

    @functools.cached_property
    def _several_rows(self) -> tuple[Any, Any]:
        if self._run.batch_model is None:
            return self.one_row
        return self._prepare(self._run.batch_model, several_rows=True)

    @functools.cached_property
    def _params(self) -> Any:
        return self._devices.replicate(self._run.params)

    def _prepare(self, model: LanguageModel, *, several_rows: bool) -> tuple[Any, Any]:
        step = _program(model, tuple(self._devices.devices), *self._outputs)
        reading_weights = model.reading_weights(self._run.params, several_rows=several_rows)
        return step, (self._params, self._devices.replicate(reading_weights))

    def read(self, texts: Sequence[bytes], state: Any = None) -> Iterator[AfterStep]:
        """Yield each step, with the state and outputs after it; `state`: of a text that goes on."""
        environment.require_own_jax()
        goes_on = state is not None
        pending = deque[AfterStep]()
        sizes = cheapest_rows(
            texts, self._sizes, self._widths, self._weights_cost, margin=self._margin
        )
        for step in read_steps(texts, sizes, self._widths):
            rows = len(step.text_B)
            window = step.window(texts)
            if goes_on:
                window.counts_B3[:, 2] = False
            if state is None:
                model = self._run.model
                zeros = np.zeros((rows, *model.architecture.shape), np.float32)
                totals = Totals(zeros, zeros)
                start = RowStates(model.reading_carry(rows), totals, np.zeros(rows, np.float32))
                state = self._devices.split_rows(start)
            elif step.kept_B is not None:
                kept = jax.tree.map(lambda x: x[step.kept_B], self._devices.fetch_rows(state))  # noqa: B023
                state = self._devices.split_rows(kept)
            is_one_row = rows <= self._devices.count
            program, weights = self.one_row if is_one_row else self._several_rows
            shape = window.bytes_BT.shape
            with told_if_slow(
                f"compiling the program that reads texts, {rows:,} at a time",
                unless=shape in self._called,
            ):
                state, outputs = program(weights, state, self._devices.split_rows(window))
            self._called.add(shape)
            pending.append((step, state, outputs))
            if len(pending) > 1:  # it is copied while the next step is computed
                yield pending.popleft()
        yield from pending

    def summaries(
        self, texts: Sequence[bytes], advance: Callable[[int], None]
    ) -> Iterator[Summary]:
        """Yield what is known after each text; texts without bytes are left out."""
        length_N = np.array([len(text) for text in texts])
        for step, after, _ in self.read(texts):
            advance(step.size)
            ended = step.ended
            if not ended.size:
                continue
            text_N = step.text_B[ended]
            reached = self._devices.fetch_rows(after)
            carry, totals, nats_N = jax.tree.map(lambda x: x[ended], reached)  # noqa: B023
            states = self._run.architecture.named_states(carry)
            states["mean_h"] = totals.sum / length_N[text_N][:, None, None]
            states["max_h"] = totals.max
            yield Summary(text_N, states, nats_N)

    def states_at(
        self, texts: Sequence[bytes], places: Sequence[Any], state: str
    ) -> list[NDArray[np.float32]]:
        """Return a state of the top layer after the bytes at places, float32 [places, units]."""
        model = self._run.config.model
        states = [np.zeros((len(place), model.hidden), np.float32) for place in places]
        for step, _, outputs in self.read(texts):
            assert outputs
            values_BTLH = self._devices.fetch_rows(model.named_states(outputs.states)[state])
            for row in np.flatnonzero(step.text_B >= 0):
                text = step.text_B[row]
                here = places[text] - step.place_B[row]
                inside = (here >= 0) & (here < values_BTLH.shape[1])
                states[text][inside] = values_BTLH[row, here[inside], -1]
        return states
