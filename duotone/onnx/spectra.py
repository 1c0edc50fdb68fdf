"""Spectra: filters whose power a logarithm reads stay full.

A logarithm of a power magnifies the *relative* error of what is small, and the rounding of a filter
bank or Fourier transform is relative to its largest terms: what is quiet beside a loud sound is all
rounding. Denied are the dots and convolutions that a ``Log`` reads through a square (or a root of a
sum of squares, an absolute value), with nothing but moves, sums and scales in between; no
activation, so a network's own last layer before a ``LogSoftmax`` is not one of them.

Who calls this: :mod:`duotone.onnx.road`, after the amendments.
"""

from __future__ import annotations

from duotone.graph.classify.classes import Classes
from duotone.graph.classify.rules import Rule
from duotone.graph.graph import Graph, Node
from duotone.ops.entries import Kind, Taint
from duotone.ops.traits import Trait

_SQUARES = frozenset({"Square", "Pow", "Abs", "ReduceSumSquare", "ReduceL2", "ReduceL1"})
_PASSES = frozenset(
    "Add Sub Mul Div Sum Sqrt ReduceSum ReduceMean AveragePool Square Pow Abs Neg ReduceSumSquare "
    "ReduceL2 ReduceL1 Max Clip ExactPower Concat Pad MatMul Gemm Conv Einsum".split()
)
_WHY = "a logarithm reads the power of what it filters"


def keep_spectra(graph: Graph, classes: Classes) -> Classes:
    """Denies filters before a logarithm of their power.

    Args:
        graph: the program.
        classes: what each node is.

    Returns:
        New classes; the same where there are none.
    """
    seen: set[tuple[int, bool]] = set()
    queue = [
        (graph.values[v].producer, False)
        for node in graph.nodes
        if node.listed_as == "Log"
        for v in node.inputs
    ]
    denied: dict[int, str] = {}
    while queue:
        index, squared = queue.pop()
        if index < 0 or (index, squared) in seen:
            continue
        seen.add((index, squared))
        node = graph.nodes[index]
        kind = classes.nodes[index].kind
        if not _passes(node, classes):
            continue
        squared = squared or node.listed_as in _SQUARES
        if squared and kind is Kind.ALLOW:
            denied[index] = _WHY
        queue += [(graph.values[v].producer, squared) for v in node.inputs]
    return classes.with_denied(denied, Rule.CLOSELY, Taint.DOMINANT)


def _passes(node: Node, classes: Classes) -> bool:
    entry = classes.nodes[node.index].entry
    moves = (
        Trait.COMMUTES in entry.traits
        and entry.kind is Kind.CLEAR
        and Trait.SELECTS not in entry.traits
    )
    return node.listed_as in _PASSES or (moves and node.listed_as != "Relu")
