"""The kernels of a compiled program: how often each runs, what it reads, writes and multiplies.

A kernel is an instruction that a GPU launches: a fusion, a product, a copy, a custom call. Only the
bytes that it must move are counted: if it reads or writes one slice of a stack, only that slice.
"""

import re
from typing import NamedTuple

from mlstm_jax.compiled.hlo import Array, Computation, Instruction, Program, places, root

# These launch nothing on the device.
_FREE = frozenset(
    [
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
        *("opt-barrier", "partition-id", "replica-id", "while", "call", "conditional"),
        "async-start",
    ]
)
# Instructions of a fusion that pass on every element of a parameter.
_SAME = frozenset(["bitcast", "reshape", "transpose", "copy", "convert", "bitcast-convert"])
_PARTS = frozenset(["dynamic-slice", "slice", "gather"])
# The names of our Pallas kernels give the bytes of each operand that they move: model/launch.py.
_MOVED = re.compile(r"\bmoves_([\d_]+)_bytes\b")
_COLLECTIVES = re.compile(r"^(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)")


class Access(NamedTuple):
    """One array that a kernel reads or writes: the bytes moved, and those of the whole array."""

    bytes: int
    whole: int


class Kernel(NamedTuple):
    """A kernel of a program."""

    name: str
    opcode: str
    source: str  # the JAX operation that it came from, or "" if XLA does not say
    place: str  # the computation that it is in
    is_in_loop: bool
    times: int  # how often it runs in total
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    flops: int  # of its products, for one run
    operand_type: str | None  # of its products, XLA's name or tf32; None without products

    @property
    def bytes(self) -> int:
        """Bytes read and written in one run."""
        return sum(access.bytes for access in (*self.reads, *self.writes))


class Product(NamedTuple):
    """A matrix product: the types of its operands and of its result, and its computation."""

    operands: tuple[str, str]
    result: str
    place: str


def kernels(program: Program) -> list[Kernel]:
    """Return all kernels in program order; those of a loop's body appear once."""
    found = []
    for place, times, is_in_loop in places(program):
        computation = program.computations[place]
        for one in computation.values():
            if one.opcode in _FREE or one.opcode.endswith("-done"):
                continue
            if "AllocateBuffer" in one.attributes:  # allocates an array, but writes nothing
                continue
            flops, operand_type = _flops(program, computation, one)
            source = re.search(r'op_name="([^"]*)"', one.attributes)
            moved = _MOVED.search(source[1]) if source and one.opcode == "custom-call" else None
            if moved:
                each = zip(moved[1].split("_"), one.operands, strict=True)
                reads = tuple(Access(int(n), computation[name].bytes) for n, name in each)
                writes: tuple[Access, ...] = ()
            else:
                reads, writes = _accesses(program, computation, one)
            found.append(
                Kernel(
                    name=one.name,
                    opcode=one.opcode,
                    source=source[1] if source else "",
                    place=place,
                    is_in_loop=is_in_loop,
                    times=times,
                    reads=reads,
                    writes=writes,
                    flops=flops,
                    operand_type=operand_type,
                )
            )
    return found


def collectives(found: list[Kernel]) -> list[Kernel]:
    """Return the kernels that communicate between devices."""
    return [one for one in found if _COLLECTIVES.match(one.opcode)]


def beside(program: Program, found: list[Kernel]) -> dict[str, list[Kernel]]:
    """Return, for each collective by name, the kernels that start while it runs.

    These are the kernels between its -start and its -done: the text of a compiled program is in the
    order of execution.
    """
    among: dict[str, list[Kernel]] = {one.name: [] for one in collectives(found)}
    for place in dict.fromkeys(one.place for one in found):
        running: list[str] = []
        for one in program.computations[place].values():
            if one.opcode.endswith("-done") and one.operands[0] in running:
                running.remove(one.operands[0])
            elif running:
                called = [places(program._replace(entry=name)) for name in one.called]
                inside = {name for computations in called for name, *_ in computations}
                started = [x for x in found if x.name == one.name or x.place in inside]
                for name in running:
                    among[name] += started
            if one.name in among and one.opcode.endswith("-start"):
                running.append(one.name)
    return among


def zero_fills(program: Program) -> list[Array]:
    """Return the arrays that kernels fill with one constant."""
    filled: list[Array] = []
    for place, _, _ in places(program):
        for one in program.computations[place].values():
            inner = program.computations[one.called[0]] if one.opcode == "fusion" else None
            made = [root(inner)] if inner else [one]
            if inner and made[0].opcode == "tuple":
                made = [inner[name] for name in made[0].operands]
            among = inner if inner else program.computations[place]
            filled += [array for x in made if _is_constant(among, x) for array in x.arrays]
    return filled


def products(program: Program) -> list[Product]:
    """Return every matrix product of the program, inside fusions and in library calls."""
    found = []
    for place, computation in program.computations.items():
        for one in computation.values():
            is_library = one.opcode == "custom-call" and "cublas" in one.attributes
            if one.opcode == "dot" or is_library:
                operands = [_before_casts(computation, name) for name in one.operands[:2]]
                found.append(
                    Product(
                        (operands[0].arrays[0].dtype, operands[1].arrays[0].dtype),
                        one.arrays[0].dtype,
                        place,
                    )
                )
    return found


def atomic_adds(program: Program) -> list[Instruction]:
    """Return the scatters with possibly repeated indices, whose sums may vary in order."""
    return [
        one
        for computation in program.computations.values()
        for one in computation.values()
        if one.opcode == "scatter" and "unique_indices=true" not in one.attributes
    ]


def _accesses(
    program: Program, computation: Computation, one: Instruction
) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    whole = [computation[name].bytes for name in one.operands if name in computation]
    if one.opcode == "fusion":
        inner = program.computations[one.called[0]]
        read = {
            x.number: min(_bytes_read(inner, x.name), x.bytes)
            for x in inner.values()
            if x.opcode == "parameter"
        }
        reads = [Access(read.get(n, 0), size) for n, size in enumerate(whole)]
        result = root(inner)
        made = [inner[n] for n in result.operands] if result.opcode == "tuple" else [result]
        writes = [_written(inner, x) for x in made]
    elif one.opcode == "dynamic-update-slice":
        update = computation[one.operands[1]].bytes
        reads, writes = [Access(update, update)], [Access(update, one.bytes)]
    elif one.opcode in _PARTS:
        reads, writes = [Access(one.bytes, whole[0])], [Access(one.bytes, one.bytes)]
    else:
        reads = [Access(size, size) for size in whole]
        writes = [Access(array.bytes, array.bytes) for array in one.arrays]
    return tuple(a for a in reads if a.bytes), tuple(a for a in writes if a.bytes)


def _users(computation: Computation, name: str) -> list[Instruction]:
    return [one for one in computation.values() if name in one.operands]


def _bytes_read(inner: Computation, name: str) -> int:
    """Return the bytes that a fusion reads of the value `name`."""
    whole, total = inner[name].bytes, 0
    if inner[name].is_root:
        return whole
    for user in _users(inner, name):
        if user.opcode in _PARTS and user.operands[0] == name:
            total += user.bytes
        elif user.opcode == "tuple" or (
            user.opcode == "dynamic-update-slice" and user.operands[0] == name
        ):
            continue  # it is passed on, or updated in place
        elif user.opcode in _SAME and user.bytes == whole:
            total += _bytes_read(inner, user.name)
        else:
            return whole
    return total


def _written(inner: Computation, one: Instruction) -> Access:
    while one.opcode in _SAME and inner[one.operands[0]].bytes == one.bytes:
        one = inner[one.operands[0]]
    if one.opcode == "dynamic-update-slice":
        return Access(inner[one.operands[1]].bytes, one.bytes)
    return Access(0 if one.opcode == "parameter" else one.bytes, one.bytes)


def _flops(program: Program, computation: Computation, one: Instruction) -> tuple[int, str | None]:
    if one.opcode == "fusion":
        inner = program.computations[one.called[0]]
        found = [_flops(program, inner, x) for x in inner.values()]
        types = [dtype for _, dtype in found if dtype]
        return sum(flops for flops, _ in found), types[0] if types else None
    is_library = one.opcode == "custom-call" and "cublas" in one.attributes
    if one.opcode != "dot" and not is_library:
        return 0, None
    left = computation[one.operands[0]].arrays[0]
    contracted = re.search(r'lhs_contracting_dim(?:ension)?s"?[=:][\[{]"?([0-9,]*)', one.attributes)
    inner_size = 1
    for axis in (contracted[1] if contracted else "").split(","):
        inner_size *= left.shape[int(axis)] if axis else 1
    is_rounded = left.dtype == "f32" and "highest" not in one.attributes.lower()
    return 2 * one.arrays[0].size * inner_size, "tf32" if is_rounded else left.dtype


def _before_casts(computation: Computation, name: str) -> Instruction:
    """Return an operand before instructions that only change its shape or layout."""
    one = computation[name]
    while one.opcode in ("bitcast", "reshape", "transpose", "copy") and one.operands:
        before = computation[one.operands[0]]
        # Since jax 0.12 a bitcast also reads the bits of a stack, uint16, as a half type.
        if before.arrays[0].dtype != one.arrays[0].dtype:
            break
        one = before
    return one


def _is_constant(computation: Computation, one: Instruction) -> bool:
    while one.opcode in (*_SAME, "broadcast") and one.operands:
        one = computation[one.operands[0]]
    return one.opcode == "constant"
