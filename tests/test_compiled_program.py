"""Programs are read from their text: here those that XLA compiles for this CPU."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.compiled_program import Program, parse, places, products, root


@pytest.fixture(scope="module")
def program() -> Program:
    """Seven steps of a product, and in each three of another."""

    def inner(_: int, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ jnp.ones((8, 8)))

    def outer(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        x = jax.lax.fori_loop(0, 3, inner, x @ jnp.full((8, 8), 2.0))
        return x, x.sum()

    compiled = jax.jit(lambda x: jax.lax.scan(outer, x, None, length=7)).lower(jnp.ones((4, 8)))
    return parse(compiled.compile().as_text())


def test_loops_are_found_with_how_often_they_run_and_products_with_their_types(program) -> None:
    assert sorted(times for _, times, in_loop in places(program) if in_loop) == [7, 21]
    assert root(program.computations[program.entry]).is_root
    assert {(one.operands, one.result) for one in products(program)} == {(("f32", "f32"), "f32")}


def test_types_are_read_with_their_bytes() -> None:
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
