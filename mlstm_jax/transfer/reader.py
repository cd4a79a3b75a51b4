"""Texts of any length, read by one model: the loop over windows that all readers share.

Each row of a window reads one text from a zero state (windows.py). Rows and windows have a few
sizes only, and one compiled program serves each; a call begins with the number of rows that costs
least, and on a GPU leaves out sizes that gain little. Cost is proportional to bytes. What a window
computes of the parameters alone is computed once for a model.

A text's state depends on that text alone, up to rounding: rows do not mix, and two windows give bit
for bit what one long window gives; but a product of another number of rows adds in another order.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlstm_jax import environment
from mlstm_jax.model.architecture import StateOutput
from mlstm_jax.model.language_model import Carry, LanguageModel
from mlstm_jax.model.stack import Recurrent
from mlstm_jax.run import Run
from mlstm_jax.terminal import told_if_slow
from mlstm_jax.training.objective import cross_entropy
from mlstm_jax.training.parallel import Parallel
from mlstm_jax.training.step import reset
from mlstm_jax.transfer.windows import ReadStep, TextWindow, cheapest_rows, read_steps

ROWS = (1, 8, 16, 32, 64, 256)  # of the programs, on each device
_WINDOWS = (16, 128)
# A step of n rows costs about as much as n + 4 (GPUs: n + 176) rows would without the time to read
# the weights: on two cores of an EPYC 8, 64 and 256 rows cost 3, 18 and 67 times one row in fp32,
# and 2, 10 and 37 times in bf16 (768 units).
_WEIGHTS_COST = {"cpu": 4}
_GPU_WEIGHTS_COST = 176
# Of the cost, on a GPU, where a program takes seconds to compile: each size is autotuned.
_FEWER_PROGRAMS = 0.05


class RowStates(NamedTuple):
    """What a row knows of its text so far."""

    carry: Carry
    sum_BLH: Any  # of h over its bytes, float32; zero unless kept
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
        bytes_BT = window.bytes_BT[:, :-1]
        read_B, scored_B, starts_B = window.counts_B3.T
        carry, sum_BLH, nats_B = reset(state, starts_B)
        place_1T = jnp.arange(bytes_BT.shape[1])[None]
        padding_mask_BT = place_1T >= read_B[:, None]
        read = model.apply(
            {"params": params}, bytes_BT, carry, padding_mask_BT,
            return_states=keep_states, reading_weights=reading_weights,
        )  # fmt: skip
        if keep_states == "sum":
            sum_BLH = sum_BLH + read.states
        if score:
            nats_BT = cross_entropy(read.logits_BTV, window.bytes_BT[:, 1:])
            nats_B = nats_B + jnp.where(place_1T < scored_B[:, None], nats_BT, 0).sum(axis=1)
        outputs = None
        if keep_states == "each":
            outputs = StepOutputs(read.states, read.logits_BTV)
        return RowStates(read.carry, sum_BLH, nats_B), outputs

    return step


@functools.cache
def _program(
    model: LanguageModel, devices: tuple[jax.Device, ...], keep_states: StateOutput, score: bool
) -> Any:
    """Return the step on all devices, the same for equal arguments: it is compiled once."""
    return Parallel(devices).map(_make_step(model, keep_states=keep_states, score=score))


class TextReader:
    """Reads texts with one model, whose programs and weights it keeps."""

    def __init__(
        self,
        run: Run,
        devices: Parallel,
        rows: int | None = None,
        *,
        keep_states: StateOutput = "none",
        score: bool = False,
    ) -> None:
        """Choose what to compute.

        Args:
            rows: the most texts at a time; unset: 256 for each device, 64 if it is a Transformer.
            keep_states: "sum": of h over the bytes of each text; "each": also yield `StepOutputs`,
                and read texts of all lengths with one program.
            score: sum the loss of each text, of a model that predicts the next byte.
        """
        self._model = run.model
        self._devices = devices
        most = ROWS[-1]
        if rows is not None:
            most = -(-rows // devices.count)
        elif not isinstance(run.config.model, Recurrent):
            most = ROWS[-2]  # a Transformer would take more memory
        sizes = [size for size in ROWS if size < most] + [most]
        self._sizes = [size * devices.count for size in sizes]
        platform = devices.devices[0].platform
        cost = _WEIGHTS_COST.get(platform, _GPU_WEIGHTS_COST)
        self._weights_cost = cost * devices.count
        self._margin = 0.0 if platform == "cpu" else _FEWER_PROGRAMS
        widths = _WINDOWS[-1:] if keep_states == "each" else _WINDOWS
        self._widths = sorted({run.config.model.reading_window(width) for width in widths})
        self._run = run
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
        """Read texts: yield each step, and on the devices the state and the outputs after it.

        With the state after an earlier text, a single text is read as its continuation.
        """
        environment.require_own_jax()
        goes_on = state is not None
        pending = deque[AfterStep]()
        sizes = cheapest_rows(
            texts, self._sizes, self._widths, self._weights_cost, margin=self._margin
        )
        for step in read_steps(texts, sizes, self._widths):
            rows = len(step.text_B)
            if goes_on:
                step.window.counts_B3[:, 2] = False
            if state is None:
                sums = np.zeros((rows, *self._model.architecture.shape), np.float32)
                start = RowStates(self._model.reading_carry(rows), sums, np.zeros(rows, np.float32))
                state = self._devices.split_rows(start)
            elif step.kept_B is not None:
                kept = jax.tree.map(lambda x: x[step.kept_B], self.fetch(state))  # noqa: B023
                state = self._devices.split_rows(kept)
            is_one_row = rows <= self._devices.count
            program, weights = self.one_row if is_one_row else self._several_rows
            window = TextWindow(*self._devices.split_rows(tuple(step.window)))
            shape = step.window.bytes_BT.shape
            with told_if_slow(
                f"compiling the program that reads texts, {rows:,} at a time",
                unless=shape in self._called,
            ):
                state, outputs = program(weights, state, window)
            self._called.add(shape)
            pending.append((step, state, outputs))
            if len(pending) > 1:  # it is copied while the next step is computed
                yield pending.popleft()
        yield from pending

    def fetch(self, tree: Any) -> Any:
        """Return the rows of all devices, NumPy."""
        return self._devices.fetch_rows(tree)
