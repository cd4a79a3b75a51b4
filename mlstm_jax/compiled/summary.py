"""The part of a plan on the compiled program: memory, kernels, collectives and seconds."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from mlstm_jax.compiled import deviceless, hlo
from mlstm_jax.compiled.estimate import estimate
from mlstm_jax.compiled.kernels import beside, collectives, kernels
from mlstm_jax.config import Config
from mlstm_jax.environment import MEMORY_FRACTION
from mlstm_jax.planning import plan
from mlstm_jax.planning.machine import Machine

# Seconds of a launch. Inside a command buffer, as XLA uses for a loop's body, about the second.
LAUNCHES = (0.0, 1e-6, 2e-6)


class Collective(NamedTuple):
    """A transfer between devices."""

    name: str
    bytes: int  # of each device's part
    is_in_loop: bool
    beside_flops: int  # of the products that run at the same time
    beside_seconds: float  # modelled, of all kernels that run at the same time, without launches


class Row(NamedTuple):
    """The program of one device, for a number of devices and a phase."""

    devices: int
    phase: int  # from 1; 0 if the run has no phases
    rows: int  # of a device
    argument_bytes: int
    temporary_bytes: int
    fits: bool
    loops: tuple[tuple[int, int], ...]  # for each loop: kernels and bytes of a time step
    launches: int
    collectives: tuple[Collective, ...]
    seconds: tuple[float, ...]  # one for each of `LAUNCHES`, without collectives
    formula_seconds: float  # of the plan, without its all-reduce


def compile_plan(
    config: Config,
    machine: Machine,
    devices: list[int],
    on_done: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """Compile a config's steps for each number of devices.

    Args:
        config: of the run.
        machine: the target.
        devices: numbers of GPUs.
        on_done: called with the number of programs compiled so far.

    Raises:
        UserError: see `deviceless.compile_step`; or the batch cannot be divided among the devices.
    """
    made: list[Row] = []
    for count in devices:
        for phase, here in plan.phases(plan.resolve_batch(config, count)):
            made.append(_row(here, machine, count, phase))
            on_done(len(made))
    return made


def _row(config: Config, machine: Machine, devices: int, phase: int) -> Row:
    compiled = deviceless.compile_step(config, machine, devices)
    assert machine.gpu is not None
    program = hlo.parse(compiled.text)
    found = kernels(program)
    meanwhile = beside(program, found)
    estimated = estimate(found, machine, machine.gpu)
    needed = compiled.argument_bytes + compiled.temporary_bytes
    rows = config.data.batch // devices
    return Row(
        devices=devices,
        phase=phase,
        rows=rows,
        argument_bytes=compiled.argument_bytes,
        temporary_bytes=compiled.temporary_bytes,
        fits=needed <= machine.memory_bytes * MEMORY_FRACTION,
        loops=tuple(
            (count, sum(one.bytes for one in found if one.place == place))
            for place, count in estimated.loops.items()
        ),
        launches=estimated.launches,
        collectives=tuple(
            Collective(
                one.opcode.removesuffix("-start"),
                sum(access.bytes for access in one.writes),
                one.is_in_loop,
                sum(other.times * other.flops for other in meanwhile[one.name]),
                estimate(meanwhile[one.name], machine, machine.gpu).seconds,
            )
            for one in collectives(found)
        ),
        seconds=tuple(estimated.with_launches(each) for each in LAUNCHES),
        formula_seconds=plan.step_seconds(config, machine, rows),
    )


def format_programs(machine: Machine, rows: list[Row]) -> str:
    """Return the rows as a text table."""
    assert machine.gpu is not None
    has_phases = any(row.phase for row in rows)
    lines = [
        f"Compiled for {machine.gpu.description}, but not run. GB: XLA's count of arguments and "
        "temporary memory.",
        "ms: modelled, without collectives, for launches of 0, 1 and 2 us; formula: the plan's "
        "estimate in ms.",
        "",
        f"{'devices':>7} {'phase ' if has_phases else ''}{'rows':>6} {'GB':>7} "
        f"{'kernels/step':>12} {'MB/step':>13} {'launches':>8} {'ms':>20} {'formula':>8}  "
        "collectives",
    ]
    for row in rows:
        counts = "+".join(str(count) for count, _ in row.loops)
        sizes = "+".join(f"{size / 1e6:.0f}" for _, size in row.loops)
        ms = " / ".join(f"{1e3 * seconds:.1f}" for seconds in row.seconds)
        needed = (row.argument_bytes + row.temporary_bytes) / 1e9
        lines.append(
            f"{row.devices:>7} {f'{row.phase:>5} ' if has_phases else ''}{row.rows:>6} "
            f"{needed:>6.2f}{' ' if row.fits else '!'} {counts:>12} {sizes:>13} "
            f"{row.launches:>8} {ms:>20} {1e3 * row.formula_seconds:>8.1f}  {_talk(row)}".rstrip()
        )
    if any(not row.fits for row in rows):
        lines += [
            "",
            f"! does not fit into {machine.memory_bytes / 1e9:.0f} GB ({MEMORY_FRACTION:.0%} "
            "usable): use fewer rows per device, more --train.micro-batches, or "
            "--train.recompute-every.",
        ]
    return "\n".join(lines)


def _talk(row: Row) -> str:
    """Return the number and sizes of collectives, and how many are in a loop or overlapped."""
    if not row.collectives:
        return "none"
    counts = Counter(f"{one.bytes / 1e6:.1f}" for one in row.collectives)
    sizes = " + ".join(f"{n} x {size}" if n > 1 else size for size, n in counts.items())
    inside = sum(one.is_in_loop for one in row.collectives)
    names = sorted({one.name for one in row.collectives})
    where = f", {inside} of them in a loop" if inside else ""
    hidden = sum(one.bytes for one in row.collectives if one.beside_flops)
    beside_what = f", {hidden / 1e6:.1f} MB overlap products" if hidden else ""
    return f"{len(row.collectives)} {', '.join(names)} of {sizes} MB{where}{beside_what}"


def as_json(rows: list[Row]) -> list[dict[str, Any]]:
    """Return the rows for a JSON file."""
    return [
        row._asdict() | {"collectives": [one._asdict() for one in row.collectives]} for row in rows
    ]
