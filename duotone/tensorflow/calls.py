"""Control flow that is not lowered: keeps the types of the operands of While and If.

In a session, TensorFlow lowers ``While`` and ``If`` to loops and switches before its pass runs. In
files they are not lowered. The pass alone would then make a list of tensors half although its
reader, in the body of the loop, expects float32, and the graph would fail when it runs. So
these nodes keep their types in files::

    caller   = a node that names a function in an attribute (While, If, Case, a map of a dataset)
    kept     = callers, and the TensorList ops that a list can reach from or to a caller

``rewrite`` does this except with the painter ``tensorflow``, which follows TensorFlow's pass.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from duotone.ops.tensorflow_kinds import CALLS, LIST_CARRIERS
from duotone.tensorflow.checks import node_of
from duotone.tensorflow.protos import GraphDef, NodeDef, bodies_of, functions_named, library_of

KEEP = "_grappler_do_not_remove"
"""The attribute with which TensorFlow's own tools exclude a node from every rewrite."""

Marks = list[tuple[str, str]]
"""Marked nodes: the name of the function, empty for the graph itself, and that of the node."""


def is_kept(node: NodeDef) -> bool:
    """Returns True if a node is marked so that optimizers must keep it."""
    return KEEP in node.attr and node.attr[KEEP].b


def keep_calls(graph: GraphDef) -> Marks:
    """Marks the nodes that must keep their types, in the graph and in its functions.

    Args:
        graph: a GraphDef; marks are added to its nodes.

    Example:
        >>> from duotone.tensorflow.protos import new_graph
        >>> graph = new_graph()
        >>> node = graph.node.add(name="list", op="TensorListReserve")
        >>> loop = graph.node.add(name="loop", op="While", input=["list"])
        >>> loop.attr["body"].func.name = "f"
        >>> keep_calls(graph)
        [('', 'list'), ('', 'loop')]
    """
    marks: Marks = []
    for where, nodes in bodies_of(graph):
        for node in _to_keep(nodes):
            if not is_kept(node):
                node.attr[KEEP].b = True
                marks.append((where, node.name))
    return marks


def loop_bodies(graph: GraphDef) -> dict[str, frozenset[int]]:
    """Returns the functions that are the bodies of loops.

    Returns:
        By name, the numbers of the arguments that the loop's condition reads.
    """
    library = library_of(graph)
    found: dict[str, frozenset[int]] = {}
    for _, nodes in bodies_of(graph):
        for node in nodes:
            if node.op in ("While", "StatelessWhile"):
                body, condition = (node.attr[name].func.name for name in ("body", "cond"))
                tested = _read_arguments(library[condition]) if condition in library else ()
                found[body] = found.get(body, frozenset()).union(tested)
    return found


def _read_arguments(function: Any) -> set[int]:
    """Returns the numbers of the arguments on which the results of a function depend."""
    reads = {node.name: [node_of(text) for text in node.input] for node in function.node_def}
    names = {argument.name: i for i, argument in enumerate(function.signature.input_arg)}
    queue = [node_of(text) for text in function.ret.values()]
    seen = set(queue)
    for name in queue:  # it grows in this loop
        new = set(reads.get(name, ())) - seen
        queue += new
        seen |= new
    return {names[name] for name in seen if name in names}


def release(graph: GraphDef, marks: Collection[tuple[str, str]]) -> None:
    """Removes the marks of :func:`keep_calls` from the rewritten graph."""
    marks = set(marks)
    for where, nodes in bodies_of(graph):
        for node in nodes:
            if (where, node.name) in marks:
                del node.attr[KEEP]


def _to_keep(nodes: Sequence[NodeDef]) -> list[NodeDef]:
    """Returns callers, and TensorList ops joined to one by ops that may carry a list."""
    callers = {
        node.name
        for node in nodes
        if node.op not in CALLS and any(True for _ in functions_named(node))
    }
    if not callers:
        return []
    neighbours: dict[str, list[str]] = {}
    for node in nodes:
        for text in node.input:
            if not text.startswith("^"):
                source = node_of(text)
                neighbours.setdefault(source, []).append(node.name)
                neighbours.setdefault(node.name, []).append(source)
    carriers = {node.name for node in nodes if _holds_list(node) or node.op in LIST_CARRIERS}
    reached = set(callers)
    waiting = list(callers)
    while waiting:
        for name in neighbours.get(waiting.pop(), ()):
            if name in carriers and name not in reached:
                reached.add(name)
                waiting.append(name)
    return [
        node
        for node in nodes
        if node.name in callers or (node.name in reached and _holds_list(node))
    ]


def _holds_list(node: NodeDef) -> bool:
    return "TensorList" in node.op
