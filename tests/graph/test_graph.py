"""The graph and the checks that run on the stages' results."""

from __future__ import annotations

import dataclasses

import pytest

from duotone.errors import RewriteError
from duotone.graph.check import check_graph
from duotone.graph.graph import HALF_TYPES, Boundary, Graph, Paint
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import classify
from duotone.precision.classify.lists import OpLists
from duotone.precision.painters.painting import Canvas, Painting, check_painting
from duotone.precision.rules import Rule
from tests.graph.tiny import Tiny


def _graph() -> Graph:
    t = Tiny()
    i = t.input(64, dtype="int32")
    t.returns(t.op("gather", t.dot(), i))
    return t.graph()


def test_half_types_agree_with_their_formats() -> None:
    jnp = pytest.importorskip("jax.numpy")
    for name, half in HALF_TYPES.items():
        info = jnp.finfo(name)
        assert half.largest == float(info.max)
        assert half.smallest_normal == float(info.smallest_normal)
        assert half.smallest == float(info.smallest_subnormal)
        assert half.epsilon == float(info.eps)
        assert half.bits == info.bits


def test_consumers_name_node_and_slot() -> None:
    graph = _graph()
    assert graph.consumers[graph.nodes[0].outputs[0]] == [(1, 0)]


def test_having_lists_nodes_in_program_order() -> None:
    t = Tiny()
    x = t.input()
    t.returns(t.op("reshape", t.op("add", t.op("div", x, x), t.op("reshape", x))))
    graph = t.graph()

    def names(*traits: Trait) -> list[str]:
        return [node.op for node in graph.having(*traits)]

    assert names(Trait.ADDS) == ["add"]
    assert names(Trait.COMMUTES, Trait.DIVIDES) == ["div", "reshape", "reshape"]
    assert names(Trait.CONTRACTS) == []


def test_moved_from_ends_at_what_computes() -> None:
    t = Tiny()
    product = t.op("mul", t.input(), t.input())
    moved = t.op("reshape", t.op("broadcast", product))
    t.returns(t.op("add", moved, product))
    graph = t.graph()
    assert graph.moved_from[moved] == product
    assert graph.moved_from[product] == product


def test_constants_by_node_and_slot() -> None:
    t = Tiny()
    x = t.input()
    t.returns(t.op("add", t.op("mul", x, t.constant(2.0)), x))
    ((node, ((slot, magnitude),)),) = t.graph().constants.items()
    assert (node, slot, magnitude.largest) == (0, 1, 2.0)


def test_known_follows_from_constants_alone() -> None:
    t = Tiny()
    constant, x = t.constant(2.0), t.input()
    known = t.op("exp", t.op("reshape", constant))
    t.returns(t.op("add", known, x))
    graph = t.graph()
    assert {constant, known} <= graph.known
    assert graph.known.isdisjoint({x, graph.outputs[0][0]})


def test_stored() -> None:
    graph = _graph()
    store = (Paint.HALF, Paint.FULL)
    result = graph.nodes[0].outputs[0]
    assert graph.stored(store, graph.values[result]) is Paint.HALF
    assert graph.stored(store, graph.values[graph.inputs[0]]) is Paint.FULL


def test_a_value_in_the_wrong_place_is_found() -> None:
    graph = _graph()
    values = (graph.values[1], graph.values[0], *graph.values[2:])
    with pytest.raises(RewriteError, match="value 1 is at position 0"):
        check_graph(dataclasses.replace(graph, values=values))


def test_a_wrong_producer_is_found() -> None:
    graph = _graph()
    values = (dataclasses.replace(graph.values[0], producer=0), *graph.values[1:])
    with pytest.raises(RewriteError, match="value 0 is not a result of node 0"):
        check_graph(dataclasses.replace(graph, values=values))


def test_a_node_in_the_wrong_place_is_found() -> None:
    graph = _graph()
    with pytest.raises(RewriteError, match=r"is at position 0|not a result of node"):
        check_graph(dataclasses.replace(graph, nodes=graph.nodes[::-1]))


def test_a_half_flag_on_integers_is_found() -> None:
    graph = _graph()
    node = dataclasses.replace(graph.nodes[1], half_inputs=(True, True))
    with pytest.raises(RewriteError, match=r"gather.*line 1.*int32 claims it may be half"):
        check_graph(dataclasses.replace(graph, nodes=(graph.nodes[0], node)))


def test_flags_must_match_slots() -> None:
    graph = _graph()
    node = dataclasses.replace(graph.nodes[1], half_inputs=(True,))
    with pytest.raises(RewriteError, match="flags do not match"):
        check_graph(dataclasses.replace(graph, nodes=(graph.nodes[0], node)))


def test_a_node_without_rule_is_found() -> None:
    graph = _graph()
    canvas = Canvas(graph, classify(graph, OpLists({}), HALF_TYPES["float16"]))
    canvas.rules = [Rule.ALLOW, None]
    with pytest.raises(RewriteError, match="no rule painted gather at line 1"):
        canvas.finish()


def test_a_fixed_node_that_was_painted_half_is_found() -> None:
    graph = _graph()
    node = dataclasses.replace(graph.nodes[0], fixed="has no half form")
    painting = Painting((Paint.HALF, Paint.FULL), (Paint.HALF, Paint.FULL), (Rule.ALLOW,) * 2, {})
    with pytest.raises(RewriteError, match="cannot be: has no half form"):
        check_painting(painting, dataclasses.replace(graph, nodes=(node, graph.nodes[1])))


def test_an_integer_that_must_leave_half_is_found() -> None:
    graph = dataclasses.replace(_graph(), outputs=((0, Boundary.HALF),))
    painting = Painting((Paint.FULL,) * 2, (Paint.FULL,) * 2, (Rule.NO_HALF_OPERAND,) * 2, {})
    with pytest.raises(RewriteError, match="int32 cannot leave in half"):
        check_painting(painting, graph)
