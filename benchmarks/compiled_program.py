"""Read the text of a compiled XLA program: its kernels, what each moves and multiplies, how long.

`parse` reads the text of `jax.stages.Compiled.as_text`, HLO after all optimisations of a backend,
as computations of instructions. A kernel is an instruction that a GPU launches: a fusion, a
product, a copy, a custom call. Only the bytes that it must move are counted: if it reads or writes
one slice of a stack, only that slice.

`estimate` gives a kernel the longest of three times (its products at the machine's rate, its bytes
from memory and its bytes from the cache), plus a launch. An array counts as cached if a loop reuses
it at every step and it fills at most half of the cache; the slices of a larger stack come from
memory.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from mlstm_jax.planning import Machine

# Seconds of a launch. Inside a command buffer, as XLA uses for a loop's body, about the second.
LAUNCHES = (0.0, 1e-6, 2e-6)

_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "bf16", "f16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
}
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e[0-9]m[0-9](?:fn)?)?)\[([0-9,]*)\]")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_COMMENT = re.compile(r"/\*.*?\*/")


class Array(NamedTuple):
    """The type of one array."""

    dtype: str  # XLA's name, such as bf16
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Number of bytes."""
        return self.size * _BYTES[self.dtype]


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]  # of its result; of a tuple, one for each part
    operands: tuple[str, ...]  # names
    attributes: str
    is_root: bool

    @property
    def bytes(self) -> int:
        """Bytes of the result."""
        return sum(array.bytes for array in self.arrays)

    @property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it runs: one for a fusion, two for a while, branches."""
        names = _CALLED.findall(self.attributes)
        if branches := _BRANCHES.search(self.attributes):
            names += re.findall(r"[\w.\-]+", branches[1])
        return tuple(names)

    @property
    def number(self) -> int:
        """The index of a parameter, or the index of the part that a get-tuple-element takes."""
        found = re.search(r"index=(\d+)", self.attributes) if self.opcode != "parameter" else None
        return int(found[1] if found else self.operands[0])

    @property
    def trips(self) -> int:
        """How often the body of a while runs; 1 if XLA does not know."""
        found = re.search(r'known_trip_count":\{"n":"(\d+)"', self.attributes)
        return int(found[1]) if found else 1


Computation = dict[str, Instruction]


class Program(NamedTuple):
    """All computations of a program by name, and the name of its entry computation."""

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Program:
    """Parse a text of HLO; lines that are not instructions are skipped."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (found := _INSTRUCTION.match(line)):
            current[found[2]] = _instruction(found[2], found[3], bool(found[1]))
    return Program(computations, entry)


def root(computation: Computation) -> Instruction:
    """Return the instruction whose result is the computation's result."""
    return next(one for one in computation.values() if one.is_root)


def places(program: Program) -> Iterator[tuple[str, int, bool]]:
    """Yield, for each computation that starts kernels: its name, its runs, whether in a loop.

    Every branch of a conditional counts as if it ran.
    """
    waiting, seen = [(program.entry, 1, False)], set()
    while waiting:
        name, times, is_in_loop = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        yield name, times, is_in_loop
        for one in program.computations[name].values():
            if one.opcode == "while":
                waiting.append((_attribute(one, "body"), times * one.trips, True))
            elif one.opcode in ("call", "conditional", "async-start"):
                waiting += [(called, times, is_in_loop) for called in one.called]


def _attribute(instruction: Instruction, name: str) -> str:
    found = re.search(rf"\b{name}=%?([\w.\-]+)", instruction.attributes)
    assert found, instruction
    return found[1]


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    """Parse the text after the equals sign: TYPE OPCODE(OPERANDS), ATTRIBUTES."""
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    opcode, _, rest = text[end:].strip().partition("(")
    inside = _closing(f"({rest}", 0)
    operands = _COMMENT.sub("", rest[: inside - 2])
    names = re.findall(r"%([\w.\-]+)", operands)
    if opcode == "parameter":
        names = [operands]
    arrays = [
        Array(dtype, tuple(int(size) for size in shape.split(",") if size))
        for dtype, shape in _ARRAY.findall(_COMMENT.sub("", text[:end]))
        if dtype in _BYTES
    ]
    return Instruction(name, opcode, tuple(arrays), tuple(names), rest[inside - 1 :], is_root)


def _closing(text: str, start: int) -> int:
    """Return the index after the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place + 1
    return len(text)


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
# compile_without_gpu.py names our Pallas kernels after the bytes of each operand that they move.
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


def overlapping(program: Program, found: list[Kernel]) -> dict[str, list[Kernel]]:
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
            is_library = (
                one.opcode == "custom-call" and 'custom_call_target="__cublas' in one.attributes
            )
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
    is_library = one.opcode == "custom-call" and 'custom_call_target="__cublas' in one.attributes
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


# The fraction of the cache that one array may fill, since it shares the cache with others.
_USABLE_CACHE = 0.5
# Bandwidth of the cache relative to memory, about that of NVIDIA GPUs since Volta.
_CACHE_SPEED = 1.6
_TYPES = {"f8e4m3fn": "fp8", "bf16": "bf16", "f16": "fp16", "tf32": "tf32", "f32": "fp32"}


class Estimate(NamedTuple):
    """The estimate for one run of a program on one device, without its collectives."""

    launches: int
    bytes: int  # read and written, by all kernels
    seconds: float  # without the cost of launches
    loops: dict[str, int]  # name of each loop → kernels of one step, in program order

    def with_launches(self, each: float) -> float:
        """Return the seconds if each launch takes `each` seconds."""
        return self.seconds + self.launches * each


def estimate(kernels: list[Kernel], machine: Machine, gpu: dict[str, Any]) -> Estimate:
    """Return the model's estimate for the kernels of a program."""
    shared = set(collectives(kernels))
    own = [one for one in kernels if one not in shared]
    loops: dict[str, int] = {}
    for one in own:
        if one.is_in_loop:
            loops[one.place] = loops.get(one.place, 0) + 1
    return Estimate(
        launches=sum(one.times for one in own),
        bytes=sum(one.times * one.bytes for one in own),
        seconds=sum(one.times * _seconds(one, machine, gpu) for one in own),
        loops=loops,
    )


def _seconds(kernel: Kernel, machine: Machine, gpu: dict[str, Any]) -> float:
    rates = machine.step_flops_per_s | machine.product_flops_per_s
    rate = rates.get(_TYPES.get(kernel.operand_type or "", ""), 0.0)
    flops = kernel.flops / rate if rate else 0.0

    def is_cached(access: Access) -> bool:
        return kernel.is_in_loop and access.whole <= _USABLE_CACHE * gpu["l2_cache_size"]

    memory = sum(a.bytes for a in (*kernel.reads, *kernel.writes) if not is_cached(a))
    return max(
        flops,
        memory / machine.memory_bytes_per_s,
        kernel.bytes / (_CACHE_SPEED * machine.memory_bytes_per_s),
    )
