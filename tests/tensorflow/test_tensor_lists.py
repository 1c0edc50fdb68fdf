"""Lists of tensors: one precision, hidden edges, and what makes them unsafe."""

from __future__ import annotations

import pytest

from duotone.errors import GraphDefError
from duotone.tensorflow.protos import FLOAT, VARIANT
from tests.tensorflow.painted import INT32, Builder, half, placeholder, rewrite


def push_and_pop(b: Builder, start: str) -> tuple[str, str]:
    """A MatMul is pushed on a list, popped and multiplied again."""
    m = b.add("MatMul", placeholder(b), "x", name="m")
    push = b.add("TensorListPushBack", start, m, name="push")
    pop = b.add("TensorListPopBack", push, b.constant([-1]), name="pop")
    b.add("MatMul", f"{pop}:1", f"{pop}:1", name="n")
    return push, pop


def empty_list(b: Builder, element: int = FLOAT) -> str:
    size = b.constant([4])
    return b.add(
        "EmptyTensorList", size, size, name="empty", element_dtype=element, shape_type=INT32
    )


def test_a_list_between_allow_ops_is_half():
    b = Builder()
    push_and_pop(b, empty_list(b))
    wanted = ["empty.element_dtype", "m", "push.element_dtype", "pop.element_dtype", "n"]
    assert half(rewrite(b.graph)) == wanted


def test_a_cast_moves_before_the_list_that_keeps_a_value_for_the_gradient():
    """Catches: weights that a loop keeps in float32 and casts again in each iteration back."""
    b = Builder()
    w = b.add("Placeholder", name="w", dtype=FLOAT, shape=(64, 64))
    b.add("MatMul", w, w, name="m")
    sides, most = b.constant([64, 64]), b.constant([4])
    start = b.add("EmptyTensorList", sides, most, shape_type=INT32, name="empty")
    push = b.add("TensorListPushBack", start, w, name="push")
    pop = b.add("TensorListPopBack", push, b.constant([64, 64]), name="pop")
    b.add("MatMul", f"{pop}:1", f"{pop}:1", name="n")
    result = rewrite(b.graph, painter="duotone")
    lists = ["empty.element_dtype", "push.element_dtype", "pop.element_dtype"]
    assert sorted(half(result)) == sorted(["m", "n", *lists])
    assert [cast.source for cast in result.casts if cast.to == "f16"] == ["w:0"]


def test_one_member_that_is_fetched_keeps_the_list_full():
    b = Builder()
    push_and_pop(b, empty_list(b))
    assert half(rewrite(b.graph, fetch=["pop"])) == ["m", "n"]
    assert half(rewrite(b.graph, fetch=["push"])) == ["m", "n"]


def test_a_list_that_comes_from_outside_stays_full():
    b = Builder()
    start = b.add("Placeholder", name="list", dtype=VARIANT)
    push_and_pop(b, start)
    assert half(rewrite(b.graph)) == ["m", "n"]


def test_the_handle_is_followed_through_other_ops():
    b = Builder()
    push, _ = push_and_pop(b, empty_list(b))
    far = b.add("Identity", push, name="handle", T=VARIANT)
    last = b.add("TensorListStack", far, b.constant([-1]), name="stack")
    b.add("Exp", last, name="e")
    assert "stack.element_dtype" in half(rewrite(b.graph))
    assert half(rewrite(b.graph, fetch=["stack"])) == ["m", "n"]


def test_deny_crosses_from_writer_to_reader():
    """No port joins what is pushed and what is popped."""
    b = Builder()
    x = placeholder(b)
    push = b.add("TensorListPushBack", empty_list(b), b.add("Exp", x, name="e"), name="push")
    pop = b.add("TensorListPopBack", push, b.constant([-1]), name="pop")
    i = b.add("Add", f"{pop}:1", f"{pop}:1", name="infer")
    b.add("MatMul", i, i, name="m")
    result = rewrite(b.graph)
    assert half(result) == ["m"]
    assert {d.rule for d in result.decisions if d.node == "pop"} == {"taint"}


def test_a_list_of_another_type_is_no_concern():
    b = Builder()
    x = placeholder(b)
    start = empty_list(b, INT32)
    push = b.add("TensorListPushBack", start, b.constant([1]), name="push", element_dtype=INT32)
    b.add("MatMul", x, x, name="m")
    assert half(rewrite(b.graph, fetch=[push])) == ["m"]


def test_a_reader_of_float32_downstream_of_a_writer_of_lists_is_refused():
    b = Builder()
    start = empty_list(b, VARIANT)
    push = b.add("TensorListPushBack", start, start, name="push", element_dtype=VARIANT)
    b.add("TensorListPopBack", push, b.constant([-1]), name="pop")
    with pytest.raises(GraphDefError, match=r"'pop' reads a list of float32 .* 'push' writes"):
        rewrite(b.graph)
