"""Mincut: precisions with the fewest bytes of casts, under TensorFlow's deny rules.

::

    half   : the allow operations
    full   : denied operations, operations that TensorFlow's passes deny, infer operations that no
             allow operation leads to with nothing denied in between
    open   : the other infer and clear operations
    choose : the fewest bytes of casts
    ties   : as many half operations as possible

TensorFlow's painting obeys the same rules, so it is one of the choices. This painter is for ONNX
models. :mod:`duotone.tensorflow.mincut` is for GraphDefs, whose units are finer than nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from duotone.graph.graph import Graph, Paint, Value
from duotone.graph.reach import reach
from duotone.ops.entries import PASSIVE, Kind
from duotone.precision.classify.classes import Classes
from duotone.precision.painters.cheapest_choice import Choice
from duotone.precision.painters.painting import Painting
from duotone.precision.painters.tensorflow_passes import paint_tensorflow
from duotone.precision.rules import Rule


def paint_mincut(graph: Graph, classes: Classes, off: Collection[str] = ()) -> Painting:
    """Paints a graph with the fewest bytes of casts.

    Args:
        graph: the program.
        classes: the class of each node.
        off: ignored, since no rule of this painter can be switched off.

    Returns:
        A precision and a rule for every node: TensorFlow's if no other choice is cheaper.
    """
    before = paint_tensorflow(graph, classes, off)
    below = _below_allow(graph, classes, before)
    given = [
        None if _is_open(index, classes, before, below) else paint
        for index, paint in enumerate(before.compute)
    ]
    choice = Choice(graph, given, _bytes)
    chosen = choice.solve()
    if choice.cost_of_casts(chosen) >= choice.cost_of_casts(before.compute):
        return before
    rules = tuple(
        rule if old is new else Rule.CUT
        for rule, old, new in zip(before.rules, before.compute, chosen, strict=True)
    )
    return dataclasses.replace(before, compute=tuple(chosen), store=tuple(chosen), rules=rules)


def _bytes(value: Value) -> int:
    """Returns the bytes that a cast reads and writes; an unknown dimension counts as 1."""
    return max(value.bytes(half=True) + value.bytes(half=False), 1)


def _below_allow(graph: Graph, classes: Classes, before: Painting) -> set[int]:
    """Returns nodes downstream of an allow operation with nothing denied in between."""
    roots = [index for index, rule in enumerate(before.rules) if rule is Rule.ALLOW]
    after: list[list[int]] = [[] for _ in graph.nodes]
    for node in graph.nodes:
        for value, may in zip(node.inputs, node.half_inputs, strict=True):
            producer = graph.values[value].producer
            if may and producer >= 0:
                after[producer].append(node.index)

    def passable(index: int) -> bool:
        return _may_be_half(index, classes, before)

    return reach(roots, after, passable)


def _may_be_half(index: int, classes: Classes, before: Painting) -> bool:
    """Returns True if TensorFlow's rules would let an operation be half."""
    open_ones = (Rule.TENSORFLOW, Rule.NO_HALF_OPERAND)
    return classes.nodes[index].kind in PASSIVE and before.rules[index] in open_ones


def _is_open(index: int, classes: Classes, before: Painting, below: Collection[int]) -> bool:
    if not _may_be_half(index, classes, before):
        return False
    half = before.compute[index] is Paint.HALF
    return half or classes.nodes[index].kind is Kind.CLEAR or index in below
