"""The reader of program text."""

from pathlib import Path

import pytest

from duotone.cost.hlo import Array, bits_of, parse
from duotone.errors import ProgramTextError

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.txt"))

ONE = """HloModule m, is_scheduled=true

%region (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main.1 (x: bf16[2,3], y: (f32[4], s32[])) -> (f32[], bf16[2,3]) {
  %x = bf16[2,3]{1,0:T(8,128)(2,1)S(1)} parameter(0), metadata={op_name="x (of f)"}
  %y = (f32[4]{0}, s32[]) parameter(1)
  %get-tuple-element.1 = f32[4]{0} get-tuple-element(%y), index=0
  %zero = f32[] constant(0)
  %table = s32[3]{0} constant({1, 2, 3})
  %sum = f32[] reduce(%get-tuple-element.1, %zero), dimensions={0}, to_apply=%region
  %call = (f32[7]{0}, /*index=1*/u8[0]{0}) custom-call(%sum, /*index=1*/%table), \
custom_call_target="a(b)", backend_config={"text":"}, )\\" {"}
  ROOT %out = (f32[], bf16[2,3]{1,0}) tuple(%sum, %x)
}
"""


def test_reads_computations_instructions_and_types():
    program = parse(ONE)
    assert set(program.computations) == {"region", "main.1"}
    entry = program.entry
    assert [p.name for p in entry.parameters] == ["x", "y"]
    assert entry.parameters[0].arrays == (Array("bf16", (2, 3), space=1),)
    assert entry.parameters[0].source == "x (of f)"
    assert entry.parameters[1].is_tuple
    assert entry.parameters[1].arrays == (Array("f32", (4,)), Array("s32", ()))
    assert entry.root.name == "out"
    assert entry.root.operands == ("sum", "x")
    total = entry.instructions["sum"]
    assert total.opcode == "reduce"
    assert total.numbers("dimensions") == (0,)
    assert total.attribute("to_apply") == "%region"
    assert total.called == ()  # a region is applied, it does not run in place of the reduction
    assert entry.operand(total, 1).literal == "0"
    call = entry.instructions["call"]
    assert call.operands == ("sum", "table")
    assert call.target == "a(b)"
    assert [array.bytes for array in call.arrays] == [28, 0]


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: file.stem)
def test_reads_real_programs(file):
    program = parse(file.read_text())
    for computation in program.computations.values():
        for instruction in computation.instructions.values():
            assert instruction.opcode
            for name in instruction.operands:
                assert name in computation.instructions, (instruction.name, name)
            for name in instruction.called:
                assert name in program.computations


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("f32", 32), ("bf16", 16), ("pred", 8), ("s4", 4), ("f8e4m3fn", 8), ("c128", 128)],
)
def test_sizes_of_element_types(dtype, bits):
    assert bits_of(dtype) == bits


def test_bytes_of_small_elements_are_rounded_up():
    assert Array("s4", (3,)).bytes == 2
    assert Array("f32", ()).bytes == 4
    assert Array("f32", (0, 5)).bytes == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not a program", "without an ENTRY"),
        (ONE.replace("ROOT %out", "%out"), "0 roots"),
        (ONE.replace("tuple(%sum, %x)", "tuple(%sum, %x"), "do not close"),
        (ONE.replace("reduce(%get-tuple-element.1", "reduce"), "without operands"),
    ],
)
def test_a_program_that_cannot_be_read_is_an_error_that_shows_the_line(text, said):
    if said == "without operands":
        text = ONE.replace("tuple(%sum, %x)", "nothing")
    with pytest.raises(ProgramTextError, match=said) as caught:
        parse(text)
    assert "please report" in str(caught.value)


def test_an_unknown_element_type_is_an_error():
    with pytest.raises(ProgramTextError, match="huge"):
        bits_of("huge")
