"""Lowered loops: NextIteration and Merge have one precision."""

from __future__ import annotations

import pytest

from duotone.errors import GraphDefError
from tests.tensorflow.painted import Builder, check_types, half, placeholder, rewrite


def loop(b: Builder, *, step: str = "MatMul", name: str = "") -> None:
    """A loop that applies an op to what it carries."""
    start = b.add("Enter", placeholder(b, f"x{name}"), name=f"enter{name}", frame_name="f")
    merge = b.add("Merge", start, f"next{name}", name=f"merge{name}")
    stop = b.add("Placeholder", name=f"stop{name}", dtype=10, shape=())
    switch = b.add("Switch", merge, stop, name=f"switch{name}")
    operands = [f"{switch}:1"] * (2 if step == "MatMul" else 1)
    b.add("NextIteration", b.add(step, *operands, name=f"step{name}"), name=f"next{name}")
    b.add("Exit", switch, name=f"exit{name}")


def test_a_loop_of_half_carries_half():
    b = Builder()
    loop(b)
    result = rewrite(b.graph)
    assert half(result) == ["enter", "merge", "switch", "step", "next", "exit"]
    check_types(result.graph_def)


def test_a_merge_that_must_be_full_makes_its_next_iteration_full():
    b = Builder()
    loop(b)
    result = rewrite(b.graph, fetch=["merge"])
    assert half(result) == ["switch", "step", "exit"]
    check_types(result.graph_def)


def test_one_full_merge_makes_its_sibling_full():
    b = Builder()
    loop(b)
    other = b.add("Merge", "enter", "next", name="sibling")
    b.add("MatMul", other, other, name="m")
    result = rewrite(b.graph, fetch=["sibling"])
    assert "merge" not in half(result)
    assert "next" not in half(result)
    check_types(result.graph_def)


def test_a_next_iteration_that_is_kept_still_follows_its_merge():
    b = Builder()
    loop(b)
    assert "next" in half(rewrite(b.graph, fetch=["next"]))


def test_only_a_merge_may_read_a_next_iteration():
    b = Builder()
    loop(b)
    b.add("Relu", "next", name="thief")
    with pytest.raises(GraphDefError, match=r"'thief' \(Relu\) reads the NextIteration 'next'"):
        rewrite(b.graph)
