"""Parse the text of a compiled XLA program into computations of instructions.

The text is that of `jax.stages.Compiled.as_text`: HLO after all optimisations of a backend. Only
what the analysis needs is parsed: types, operands, called computations and a few attributes.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "bf16", "f16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
}
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e[0-9]m[0-9](?:fn)?)?)\[([0-9,]*)\]")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
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
        """Names of the computations that it runs: one for a fusion, two for a while."""
        return tuple(_CALLED.findall(self.attributes))

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
    """Yield, for each computation that starts kernels: its name, its runs, whether in a loop."""
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
