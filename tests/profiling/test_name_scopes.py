"""Names of operations in compiled programs."""

from __future__ import annotations

import pytest

from duotone.profiling.name_scopes import scope_and_primitive, source_lines


@pytest.mark.parametrize(
    ("name", "scope", "primitive"),
    [
        ("jit(step)/dot_general", "", "dot_general"),
        ("jit(step)/jvp(encoder)/layer_0/dot_general", "encoder/layer_0", "dot_general"),
        ("jit(step)/transpose(jvp(encoder))/layer_0/mul", "encoder/layer_0", "mul"),
        ("jit(step)/jvp()/while/body/closed_call/tanh", "", "tanh"),
        ("jit(f)/checkpoint/rematted_computation/block/exp", "block", "exp"),
        ("jit(f)/vmap(jit(relu))/max", "", "max"),
        ("jit(f)/cond/branch_1_fun/head/add", "head", "add"),
        ("jit(f)/a/mul;jit(f)/b/add", "a", "mul"),
        ("jit(f)/dot_general[dimension_numbers=(((1,), (0,)), ((), ()))]", "", "dot_general"),
        ("reduce_sum", "", "reduce_sum"),
        ("", "", ""),
    ],
)
def test_scope_and_primitive(name: str, scope: str, primitive: str) -> None:
    assert scope_and_primitive(name) == (scope, primitive)


def test_source_lines_of_older_and_newer_compilers() -> None:
    text = """HloModule m

FileNames
1 "model.py"
2 "train.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=2 function_name_id=1 line=12 end_line=12 column=11 end_column=38}

StackFrames
1 {file_location_id=1 parent_frame_id=1}


ENTRY %main (x: f32[]) -> f32[] {
"""
    source = source_lines(text)
    assert source('metadata={op_name="x" stack_frame_id=1}') == "train.py:12"
    assert source('metadata={op_name="x" source_file="a.py" source_line=3}') == "a.py:3"
    assert source("") == ""
