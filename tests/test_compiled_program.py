"""Programs are read from their text; test_program.py reads those that XLA compiles for this CPU."""

from benchmarks.compiled_program import kernels, parse, places, products


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


def test_the_branches_of_a_conditional_are_read() -> None:
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
