"""Functions of the library: each body on its own, and which are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from duotone.errors import GraphDefError
from duotone.policy.policy import Policy
from duotone.tensorflow.functions import import_order
from duotone.tensorflow.protos import FLOAT
from tests.tensorflow.painted import Builder, check_types, half, placeholder, rewrite


def add_function(b: Builder, name: str, *, middle: str = "Relu", calls: str = "") -> Any:
    """A function of one argument: MatMul, something, MatMul, two results."""
    function = b.graph.library.function.add()
    function.signature.name = name
    function.signature.input_arg.add(name="x", type=FLOAT)
    function.signature.output_arg.add(name="r", type=FLOAT)
    function.signature.output_arg.add(name="s", type=FLOAT)
    inside = (("m", "MatMul", ["x", "x"]), ("mid", middle, ["m:product:0"]))
    for node, op, inputs in (*inside, ("n", "MatMul", [_second(middle), "x", "^mid"])):
        function.node_def.add(name=node, op=op, input=inputs).attr["T"].type = FLOAT
    if calls:
        function.node_def.add(name="call", op=calls, input=["x"])
    function.ret["r"] = "n:product:0"
    function.ret["s"] = "x"
    return function


def _second(op: str) -> str:
    return "mid:activations:0" if op == "Relu" else "mid:y:0"


def call(b: Builder, function: str) -> str:
    return b.graph.node.add(name=f"call_{function}", op=function, input=["x"]).name


def graph_with(*names: str, called: str = "f") -> Builder:
    b = Builder()
    placeholder(b)
    for name in names:
        add_function(b, name)
    call(b, called)
    return b


@pytest.mark.parametrize("pattern", ["m", "f/m", "f/*"])
def test_nodes_of_functions_can_be_kept_full_by_name(pattern, caplog):
    done = rewrite(graph_with("f", "g").graph, policy=Policy(keep_full=[pattern])).functions["f"]
    assert "m" not in half(done)  # type: ignore[arg-type]
    assert not caplog.messages


def test_a_body_is_rewritten_and_keeps_its_signature():
    b = graph_with("f")
    result = rewrite(b.graph)
    done = result.functions["f"]
    assert half(done) == ["m", "mid", "n"]  # type: ignore[arg-type]
    casts = ["n-0-CastToFp32-0-AutoMixedPrecision", "x-0-CastToFp16-0-AutoMixedPrecision"]
    assert sorted(cast.name for cast in done.casts) == casts
    function = result.graph_def.library.function[0]
    assert function.signature == b.graph.library.function[0].signature
    assert dict(function.ret) == {"r": f"{casts[0]}:y:0", "s": "x"}
    nodes = {node.name: node for node in function.node_def}
    assert list(nodes["m"].input) == [f"{casts[1]}:y:0"] * 2
    assert list(nodes["n"].input) == ["mid:activations:0", f"{casts[1]}:y:0"]  # ^mid says nothing
    assert list(nodes[casts[0]].input) == ["n:product:0"]
    check_types(result.graph_def)


def test_what_the_graph_does_not_reach_is_dropped_unless_kept():
    b = graph_with("f", "g")
    result = rewrite(b.graph)
    assert result.dropped_functions == ("g",)
    assert [f.signature.name for f in result.graph_def.library.function] == ["f"]
    kept = rewrite(b.graph, keep_functions=True)
    assert kept.graph_def.library.function[1] == b.graph.library.function[1]
    assert set(kept.functions) == {"f"}


def test_functions_are_reached_through_attributes_and_functions():
    b = graph_with("g", called="g")
    add_function(b, "f", calls="g")
    del b.graph.node[-1]
    b.add("PartitionedCall", "x", name="p")
    attributes = b.graph.node[-1].attr
    attributes["f"].func.name = "f"
    attributes["Tin"].list.type.append(FLOAT)
    attributes["Tout"].list.type.extend([FLOAT, FLOAT])
    assert set(rewrite(b.graph).functions) == {"f", "g"}


def test_stateful_nodes_and_control_results_of_a_body_are_preserved():
    b = graph_with("f")
    b.graph.library.function[0].control_ret["done"] = "mid"
    assert half(rewrite(b.graph).functions["f"]) == ["m", "n"]  # type: ignore[arg-type]


def test_generic_and_tf_data_functions_are_left_alone():
    b = graph_with("f")
    b.graph.library.function[0].attr["_tf_data_function"].b = True
    assert not rewrite(b.graph).functions
    b.graph.library.function[0].attr["_tf_data_function"].b = False
    assert rewrite(b.graph).functions
    b.graph.library.function[0].node_def[1].attr["T"].placeholder = "T"
    assert not rewrite(b.graph).functions


def test_what_a_tf_data_function_calls_is_left_alone_only_if_nothing_else_is_rewritten():
    b = graph_with("inner", called="outer")
    outer = add_function(b, "outer", calls="inner")
    outer.attr["_tf_data_function"].b = True
    assert not rewrite(b.graph).functions
    add_function(b, "other")
    call(b, "other")
    assert set(rewrite(b.graph).functions) == {"inner", "other"}


def test_xla_compiles_some():
    b = graph_with("f")
    add_function(b, "g")
    call(b, "g")
    b.graph.node.add(name="launch", op="XlaLaunch")
    attributes = b.graph.node[-1].attr
    for name in ("Tconstants", "Targs", "Tresults"):
        attributes[name].list.SetInParent()
    attributes["Nresources"].i = 0
    attributes["function"].func.name = "f"
    assert set(rewrite(b.graph).functions) == {"g"}


def test_nodes_of_a_body_are_ordered_as_the_importer_orders_them():
    """By position among those that are ready, not as they are written."""
    b = Builder()
    for name, inputs in (("late", ["a", "b"]), ("b", ["a"]), ("a", []), ("free", [])):
        b.graph.node.add(name=name, op="NoOp", input=inputs)
    assert [b.graph.node[i].name for i in import_order(b.graph.node)] == ["a", "b", "late", "free"]


def test_a_body_that_reads_what_is_not_there():
    b = graph_with("f")
    b.graph.library.function[0].node_def[2].input[0] = "mid:nothing:0"
    with pytest.raises(GraphDefError, match=r"'f'.*'n' reads 'mid:nothing:0'"):
        rewrite(b.graph)


def test_the_order_inside_a_body_is_that_of_the_importer():
    """Written backwards, an infer chain downstream of an allow op still becomes half throughout."""
    b = Builder()
    placeholder(b)
    function = add_function(b, "f", middle="Tanh")
    function.node_def[2].op = "Tanh"
    function.node_def[2].input[:] = ["mid:y:0"]
    function.ret["r"] = "n:y:0"
    nodes = [node.SerializeToString() for node in reversed(function.node_def)]
    for node, text in zip(function.node_def, nodes, strict=True):
        node.ParseFromString(text)
    call(b, "f")
    assert sorted(half(rewrite(b.graph).functions["f"])) == ["m", "mid", "n"]  # type: ignore[arg-type]
