"""What a While or If hands to its functions keeps its types; the marks for that go again."""

from __future__ import annotations

import pytest

from duotone.tensorflow import files, rewrite_file
from duotone.tensorflow.calls import KEEP, keep_calls, release
from duotone.tensorflow.protos import FLOAT, VARIANT, bodies_of
from tests.tensorflow import graphs


def _lists(nodes, x="x"):
    """One list that goes through a While, and one that does not."""
    for name in ("through", "beside"):
        made = nodes.add(name=name, op="TensorListFromTensor", input=[x, "shape"])
        made.attr["element_dtype"].type = FLOAT
        made.attr["shape_type"].type = 3
    shape = nodes.add(name="shape", op="Const")
    shape.attr["dtype"].type = 3
    shape.attr["value"].tensor.dtype = 3
    handle = graphs.add(nodes, "handle", "Identity", "through", T=VARIANT)
    loop = nodes.add(name="loop", op="While", input=[handle.name])
    loop.attr["T"].list.type.append(VARIANT)
    loop.attr["cond"].func.name = "cond"
    loop.attr["body"].func.name = "body"
    for name, source in (("stacked", "loop"), ("stacked beside", "beside")):
        read = nodes.add(name=name, op="TensorListStack", input=[source, "shape"])
        read.attr["element_dtype"].type = FLOAT


def _graph():
    graph = graphs.new_graph()
    graphs.add(graph.node, "x", "Placeholder", dtype=FLOAT)
    _lists(graph.node)
    for name in ("cond", "body", "caller"):
        function = graph.library.function.add()
        function.signature.name = name
        function.signature.input_arg.add(name="a", type=FLOAT)
    _lists(graph.library.function[2].node_def, "a")
    return graph


def _marked(graph):
    return [(name, n.name) for name, nodes in bodies_of(graph) for n in nodes if KEEP in n.attr]


def test_callers_and_the_lists_that_they_get_are_marked_in_every_body():
    graph = _graph()
    marks = keep_calls(graph)
    expected = {(b, n) for b in ("", "caller") for n in ("through", "loop", "stacked")}
    assert set(marks) == set(_marked(graph)) == expected
    del graph.library.function[0]  # a rewrite may drop functions
    release(graph, marks)
    assert _marked(graph) == []


def test_marks_that_were_there_stay():
    graph = _graph()
    graph.node[1].attr[KEEP].b = True
    release(graph, keep_calls(graph))
    assert _marked(graph) == [("", "through")]


@pytest.mark.parametrize("make", [graphs.chain, graphs.while_loop])
def test_without_callers_nothing_is_marked(make):
    graph = make()
    assert keep_calls(graph) == []
    assert graph == make()


def test_calls_of_functions_are_none():
    graph = graphs.chain()
    call = graph.node.add(name="call", op="StatefulPartitionedCall", input=["x"])
    call.attr["f"].func.name = "f"
    assert keep_calls(graph) == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_loop_of_keras_that_was_not_lowered(dtype, tmp_path):
    graph = _graph()
    for name in ("cond", "body", "caller"):
        del graph.library.function[0]
        function = graph.library.function.add()
        function.signature.name = name
        function.signature.input_arg.add(name="a", type=VARIANT)
        out = "c" if name == "cond" else "r"
        function.signature.output_arg.add(name=out, type=10 if name == "cond" else VARIANT)
        const = function.node_def.add(name="yes", op="Const")
        const.attr["dtype"].type = 10
        const.attr["value"].tensor.dtype = 10
        function.ret[out] = "yes:output:0" if name == "cond" else "a"
    graphs.add(graph.node, "product", "MatMul", "stacked", "stacked beside")
    files.write(tmp_path / "in.pb", graph)
    result = rewrite_file(tmp_path / "in.pb", fetch=(), dtype=dtype).graphs[0].result
    half = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    precisions = {name: set(found.values()) for name, found in result.painting.items()}
    assert precisions["product"] == precisions["stacked beside"] == {half}
    assert precisions["through"] == precisions["stacked"] == {"f32"}
    assert _marked(result.graph_def) == []
