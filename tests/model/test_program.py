"""The program that XLA makes of the recurrence on a CPU: what costs time and changes nothing."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.compiled_program import Program, kernels, parse, places, products
from mlstm_jax.model.architecture import LSTMCarry
from mlstm_jax.model.mlstm import MLSTM, SEPARATE
from mlstm_jax.model.ops import dot, times, with_transpose
from mlstm_jax.model.stack import Recurrence, Weights, run_layer
from tests.tolerance import assert_close

T = 24
B = 8
H = 128


@cache
def gradient(compute: str) -> Program:
    """Compile the gradient by all weights of one layer that reads bytes."""

    def total(carry: LSTMCarry, bytes_TB: jax.Array, weights: Weights) -> jax.Array:
        recurrence = Recurrence(MLSTM(), jnp.dtype(compute), SEPARATE)
        (last, _), h_TBH = run_layer(recurrence, carry, bytes_TB, weights)
        return jnp.sum(last) + jnp.sum(h_TBH.astype(jnp.float32))

    zero_BH = jnp.zeros((B, H))
    shapes = {"wmx": (256, H), "wx": (256, 4 * H), "wmh": (H, H), "wh": (H, 4 * H), "b": (4 * H,)}
    given = LSTMCarry(zero_BH, zero_BH), jnp.zeros((T, B), jnp.int32)
    weights = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    compiled = jax.jit(jax.grad(total, argnums=2)).lower(*given, weights).compile()
    return parse(compiled.as_text())


@pytest.mark.parametrize("kind", ["W", "transposed W", "W with its transpose"])
@pytest.mark.parametrize(
    ("compute", "rows"),
    [("float32", 8), ("float32", 16), ("float32", 300), ("bfloat16", 8), ("bfloat16", 16)],
)
def test_products_of_a_loop(compute, kind, rows, random) -> None:
    """With few rows and a large matrix, the matrix is the left operand on a CPU."""
    transposed = kind == "transposed W"
    w_IO = random.normal(size=(512, 2048)).astype(compute)
    x = random.normal(size=(rows, 2048 if transposed else 512)).astype(compute)
    given = with_transpose(jnp.asarray(w_IO)) if kind == "W with its transpose" else w_IO
    product = jax.jit(lambda x, w: times(w, rows, transposed=transposed)(x))
    exact = np.float64(x) @ (np.float64(w_IO).T if transposed else np.float64(w_IO))
    # The operands are exact in their type, and the sums are float32.
    assert_close(product(x, given), exact, terms=x.shape[1])
    program = parse(product.lower(x, given).compile().as_text())
    every = (one for part in program.computations.values() for one in part.values())
    (found,) = (one for one in every if one.opcode == "dot")
    is_left = rows == 16 or (rows == 8 and kind == "W with its transpose")
    assert found.arrays[0].shape[1 if is_left else 0] == rows


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_copies_of_stacks(compute: str) -> None:
    """A stack that is read and written in one step is copied unless the reading comes last."""
    program = gradient(compute)
    loops = [name for name, _, in_loop in places(program) if in_loop]
    copied = [
        one
        for name in loops
        for one in program.computations[name].values()
        if one.opcode in {"copy", "convert"} and one.bytes >= 2 * T * B * H
    ]
    assert len(loops) >= 3
    assert copied == []


def test_products_of_half_types() -> None:
    """XLA multiplies in float32 where a transposed operand keeps it from its own product."""
    x_BH = jnp.zeros((B, H), jnp.bfloat16)
    w_HH = jnp.zeros((H, H), jnp.bfloat16)
    plain = parse(jax.jit(dot).lower(x_BH, w_HH).compile().as_text())
    expected = {one.operands for one in products(plain)}
    found = products(gradient("bfloat16"))
    assert len(found) == 6
    assert {one.operands for one in found} == expected


def test_parsed_types() -> None:
    text = """
ENTRY %main (a: u16[2,3]) -> (f32[3,3], s8[]) {
  %a = u16[2,3]{1,0} parameter(0)
  %b = bf16[2,3]{1,0} bitcast(%a)
  %c = bf16[3,2]{0,1} transpose(%b), dimensions={1,0}
  %d = f32[3,3]{1,0} dot(%c, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %e.1 = f32[3,3]{1,0} fusion(%d), kind=kLoop, calls=%some.2, metadata={op_name="x/(y)"}
  %f = s8[] constant(3)
  ROOT %g = (f32[3,3]{1,0}, s8[]) tuple(%e.1, /*index=1*/%f)
}
"""
    program = parse(text)
    found = program.computations["main"]
    opcodes = ["parameter", "bitcast", "dot", "constant", "tuple"]
    assert [found[name].opcode for name in "abdfg"] == opcodes
    assert [one.bytes for one in found.values()] == [12, 12, 12, 36, 36, 1, 37]
    assert found["a"].number == 0
    assert found["e.1"].called == ("some.2",)
    assert found["g"].operands == ("e.1", "f")
    assert found["g"].is_root
    # A product reads the bits of a stack as its own type.
    assert [one.operands for one in products(program)] == [("bf16", "bf16")]


def test_parsed_conditional() -> None:
    text = """
%one (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  ROOT %sine = f32[4]{0} sine(%a)
}

%two (b: f32[4]) -> f32[4] {
  %b = f32[4]{0} parameter(0)
  ROOT %cosine = f32[4]{0} cosine(%b)
}

ENTRY %main (p: pred[], x: f32[4]) -> f32[4] {
  %p = pred[] parameter(0)
  %x = f32[4]{0} parameter(1)
  ROOT %c = f32[4]{0} conditional(%p, %x, %x), BRANCHES
}
"""
    for branches in (
        "true_computation=%one, false_computation=%two",
        "branch_computations={%one, %two}, metadata={}",
    ):
        program = parse(text.replace("BRANCHES", branches))
        assert [place for place, *_ in places(program)] == ["main", "one", "two"]
        assert [one.name for one in kernels(program)] == ["sine", "cosine"]
