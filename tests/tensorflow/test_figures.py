"""The figures of a graph: nodes, half nodes, casts, bytes and products."""

from __future__ import annotations

from duotone.tensorflow import rewrite
from duotone.tensorflow.figures import figures_of
from duotone.tensorflow.protos import FLOAT
from tests.tensorflow.graphs import add, add_function, chain, while_loop

SIDE = 256
VALUE = 4 * SIDE * SIDE


def test_figures_of_a_float32_graph():
    found = figures_of(chain())
    # Exp and Relu move two values, MatMul three; Identity only names one.
    assert found.bytes == 7 * VALUE
    assert found.bytes_by_op == {"Exp": 2 * VALUE, "MatMul": 3 * VALUE, "Relu": 2 * VALUE, **NAMES}
    assert (found.nodes, found.half, found.casts, found.cast_bytes) == (5, 0, 0, 0)
    assert (found.products, found.half_products) == (1, 0)
    assert (found.flops, found.half_flops) == (2.0 * SIDE**3, 0.0)


NAMES = {"Identity": 0}


def test_figures_of_the_rewritten_graph():
    done = rewrite(chain(), fetch=["result"], painter="tensorflow")
    assert {cast.source for cast in done.casts} == {"x:0", "deny:0", "relu:0"}
    found = figures_of(done.graph_def)
    half = [node for node, types in done.painting.items() if "f16" in types.values()]
    assert (found.half, found.casts) == (len(half), 3)
    assert found.cast_bytes == done.cast_bytes == 3 * VALUE * 3 // 2
    assert found.bytes_by_op["MatMul"] == 3 * VALUE // 2
    assert (found.half_products, found.half_flops) == (1, found.flops)


def test_functions_count_where_the_graph_reaches_them():
    graph = chain()
    add_function(graph, "called")
    add_function(graph, "unused")
    outer = add_function(graph, "outer", calls="called")
    alone = figures_of(graph)
    assert alone.nodes == 5
    graph.node.add(name="call", op="outer", input=["x"])
    both = figures_of(graph)
    assert both.nodes == 5 + 1 + len(outer.node_def) + 2
    assert both.products == 2
    inside = figures_of(graph, "outer")
    assert (inside.nodes, inside.products) == (both.nodes - 6, 1)


def test_a_loop_counts_as_one_iteration():
    assert figures_of(while_loop()).products == 1


def test_a_side_that_is_not_known_counts_as_32():
    graph = chain()
    del graph.node[0].attr["shape"].shape.dim[0]
    graph.node[0].attr["shape"].shape.dim.add(size=-1)
    add(graph.node, "neg", "Neg", "x", T=FLOAT)
    assert figures_of(graph).bytes_by_op["Neg"] == 2 * 4 * SIDE * 32
