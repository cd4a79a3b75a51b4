"""Pallas kernels on a GPU: what they need, and how one is launched over all units of all rows.

Each block of threads works on a piece of one row. Pallas has two compilers for GPUs. Triton is
deprecated since jax 0.11; this module uses the other, Mosaic GPU, which compiles for compute
capability 9.0 and later, and since jax 0.11 for 8.0. On a CPU the same kernels run in Pallas's
interpreter, which is slow and only meant for tests. kernels.py has the kernels.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mlstm_jax.errors import UserError

try:
    # The only file that imports Pallas, and below Mosaic. Without it devices.kernels cannot be
    # "pallas"; XLA's loops compute the same numbers, to rounding.
    from jax.experimental import pallas as pl
except ImportError:
    pl = None  # type: ignore[assignment]

Array = jax.Array
Shape = jax.ShapeDtypeStruct

# Mosaic distributes an array over the 128 threads of a warp group.
LEAST_UNITS = 128


def missing(hidden: int, capability: tuple[int, int] | None, *, fp8: bool = False) -> str | None:
    """What the kernels, in fp8 or not, need and the GPU or the model lacks; None: nothing.

    `capability` is the NVIDIA GPU's compute capability, None if there is none.
    """
    if pl is None:
        return f"jax.experimental.pallas, but jax {jax.__version__} has none"
    # Mosaic of jax 0.10 ends the process if it compiles for less than 9.0.
    newest = (8, 9) if fp8 else (8, 0)
    least = (9, 0) if jax.__version__.startswith("0.10.") else newest
    gpu = f"an NVIDIA GPU of compute capability {least[0]}.{least[1]} or later"
    if capability is None:
        return f"{gpu}, but JAX found none"
    if capability < least:
        problem = f"{gpu}, but this one has {capability[0]}.{capability[1]}"
        if capability >= newest:
            problem += f"; with jax 0.11 or later {newest[0]}.{newest[1]} is enough"
        return problem
    if hidden < LEAST_UNITS:
        return f"a `model.hidden` of {LEAST_UNITS} or more, but it is {hidden}"
    return None


def require_gpu(hidden: int, capability: tuple[int, int] | None, *, fp8: bool = False) -> None:
    """Raise UserError unless the kernels can run on the GPU; see `missing`."""
    problem = missing(hidden, capability, fp8=fp8)
    if problem and fp8:
        start = f"precision.recurrent is 'fp8', which needs {problem}"
        raise UserError(f"{start}; use `precision.recurrent` compute.")
    if problem:
        start = f"devices.kernels is 'pallas', which needs {problem}"
        raise UserError(f"{start}; use `devices.kernels` xla.")


class _Spread:
    """A reference whose pieces have the same layout over the threads, whatever their type."""

    def __init__(self, reference: Any, size: int) -> None:
        self.reference = reference
        self.size = size
        self.shape = reference.shape
        self.dtype = reference.dtype

    def __getitem__(self, index: Any) -> Array:
        value = self.reference[index]
        last = index[-1] if isinstance(index, tuple) else index
        if not isinstance(last, pl.Slice):
            return value
        from jax.experimental.pallas import mosaic_gpu

        each = self.size // LEAST_UNITS
        layout = mosaic_gpu.Layout.WG_STRIDED((self.size,), vec_size=each)
        return mosaic_gpu.layout_cast(value, layout)

    def __setitem__(self, index: Any, value: Array) -> None:
        self.reference[index] = value


class StepNumber(NamedTuple):
    """The number of a step of a loop, whose turns have several steps each."""

    turn: Array
    each: int
    offset: int

    def __call__(self, turn: Any) -> Any:
        """The number, of `turn` as it is read."""
        return turn * self.each + self.offset


def run_steps(window: int, step: Callable[[StepNumber, Any], Any], carried: Any) -> Any:
    """Run the steps of a window, four in each turn: XLA counts turns with one kernel each."""
    each = next(n for n in (4, 2, 1) if window % n == 0)

    def turn(number: Array, carried: Any) -> Any:
        for offset in range(each):
            carried = step(StepNumber(number, each, offset), carried)
        return carried

    return jax.lax.fori_loop(0, window // each, turn, carried)


class Grid(NamedTuple):
    """All units of all rows; `interpret` runs Pallas's interpreter instead of a GPU."""

    rows: int
    hidden: int
    interpret: bool

    @property
    def size(self) -> int:
        """The number of units of a block; the last piece may overlap the previous one."""
        # A thread reads up to 4 units at once, and their offset must be a multiple of their number.
        return next((n for n in (512, 256) if self.hidden % n == 0), min(LEAST_UNITS, self.hidden))

    def launch(
        self,
        body: Callable[..., None],
        step: StepNumber,
        inputs: tuple[Array, ...],
        in_place: tuple[Array, ...],
        outputs: tuple[Shape, ...],
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Run a kernel over the grid; return `in_place` after it, and its outputs.

        The kernel reads `inputs`, and reads and writes `in_place`; `outputs` are shapes and types.
        The `body` is called with (step, row, first unit, number of units) and then references to
        these. It must not read what it writes, because pieces overlap if their size does not
        divide `hidden`. Its name is shown in profilers and in the compiled program.
        """
        name = body.__name__.removeprefix("_")
        size = self.size
        inputs = (jnp.int32(step.turn)[None], *inputs)
        count = len(in_place)

        def run_body(row: Array, piece: Array, turn_1: Any, *references: Any) -> None:
            start = jnp.minimum(piece * size, self.hidden - size)
            body(step(turn_1[0]), row, start, size, *references)

        if not self.interpret:
            results = self.run_on_gpu(name, run_body, inputs, in_place, outputs)
            return tuple(results[:count]), tuple(results[count:])
        # The interpreter passes each in-place array twice: once to read, once to write.
        first = len(inputs)

        def interpreted(*references: Any) -> None:
            written = references[first + count :]
            run_body(pl.program_id(0), pl.program_id(1), *references[:first], *written)

        made: tuple[Any, ...] = (*in_place, *outputs)
        results = pl.pallas_call(
            interpreted,
            out_shape=[Shape(x.shape, x.dtype) for x in made],
            grid=(self.rows, pl.cdiv(self.hidden, size)),
            input_output_aliases={first + k: k for k in range(count)},
            interpret=True,
            name=name,
        )(*inputs, *in_place)
        return tuple(results[:count]), tuple(results[count:])

    def run_on_gpu(
        self,
        name: str,
        run_body: Callable[..., None],
        inputs: tuple[Array, ...],
        in_place: tuple[Array, ...],
        outputs: tuple[Shape, ...],
    ) -> Any:
        """Run a kernel of one piece; return all arrays that it writes."""
        from jax.experimental.pallas import mosaic_gpu

        grid = (self.rows, pl.cdiv(self.hidden, self.size))

        def kernel(*references: Any) -> None:
            spread = [_Spread(reference, self.size) for reference in references]
            run_body(jax.lax.axis_index("row"), jax.lax.axis_index("piece"), *spread)

        call = pl.kernel(
            kernel,
            mesh=mosaic_gpu.Mesh(grid=grid, grid_names=("row", "piece")),
            compiler_params=mosaic_gpu.CompilerParams(),
            name=name,
        )
        unwritten = [jax.lax.empty(x.shape, x.dtype) for x in outputs]
        return pl.run_state(lambda written: call(*inputs, *written))((*in_place, *unwritten))
