"""Checks the structure of a graph, independently of its ops.

::

    names       every node has a unique name, and so has every function
    inputs      name a node of the graph; control inputs come last
    loops       every cycle goes through a NextIteration
    functions   none calls itself, directly or through others

``units`` checks the requirements of ops (types, attributes, number of inputs). No function here is
recursive, so no graph is too deep.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

from duotone._checks import check_strings
from duotone.errors import GraphDefError
from duotone.ops.tensorflow_kinds import LOOP_ENDS
from duotone.tensorflow.protos import FunctionDef, GraphDef, NodeDef, functions_named
from duotone.text.suggestions import did_you_mean

_SHOWN = 6


def check_graph(graph: GraphDef) -> None:
    """Raises if a graph or a function of its library is invalid.

    Raises:
        GraphDefError: the message names the problem and the node.

    Example:
        >>> from duotone.tensorflow.protos import new_graph
        >>> graph = new_graph()
        >>> node = graph.node.add(name="y", op="Neg", input=["x"])
        >>> check_graph(graph)
        Traceback (most recent call last):
        duotone.errors.GraphDefError: node 'y' (Neg) reads 'x', and there is no node 'x'.
    """
    _check_body(graph.node, (), "")
    functions: dict[str, FunctionDef] = {}
    for function in graph.library.function:
        name = function.signature.name
        if not name:
            raise GraphDefError("the library has a function without a name: the file is damaged.")
        if name in functions:
            raise GraphDefError(f"the library has two functions named {name!r}.")
        functions[name] = function
    for name, function in functions.items():
        arguments = [argument.name for argument in function.signature.input_arg]
        _check_body(function.node_def, arguments, f"function {name!r}: ")
    calls = {
        name: [called for node in function.node_def for called in called_functions(node, functions)]
        for name, function in functions.items()
    }
    if ring := _find_ring(calls):
        raise GraphDefError(f"function recursion, which no rewrite can follow: {_arrows(ring)}.")


def check_names(graph: GraphDef, option: str, names: Iterable[str]) -> None:
    """Raises if a node that is to be kept does not exist.

    Args:
        graph: a GraphDef.
        option: what the names were given for: ``"fetch"`` or ``"feed"``.
        names: the names of nodes or tensors (``"name:0"``).

    Raises:
        ArgumentTypeError: ``names`` is no list of strings.
        GraphDefError: names the first that does not exist, and similar ones that do.
    """
    check_strings("duotone.tensorflow", option, names)
    known = {node.name for node in graph.node}
    for given in names:
        name = node_of(given)
        if name not in known:
            few = list(known)[:100_000]
            meant = did_you_mean(name, few, "none is like it.", most=3, cutoff=0.7)
            raise GraphDefError(f"{option} {given!r}: the graph has no node {name!r}; {meant}")


def node_of(text: str) -> str:
    """Returns the node that an input or a tensor's name names.

    Example:
        >>> node_of("^init"), node_of("split:1"), node_of("cell:output:0")
        ('init', 'split', 'cell')
    """
    return text.removeprefix("^").partition(":")[0]


def _check_body(nodes: Sequence[NodeDef], arguments: Collection[str], where: str) -> None:
    """Checks the nodes of a graph or function body."""
    index: dict[str, int] = {}
    for position, node in enumerate(nodes):
        if not node.name:
            raise GraphDefError(f"{where}node {position} ({node.op or 'no op'}) has no name.")
        if not node.op:
            raise GraphDefError(f"{where}node {node.name!r} has no op.")
        if node.name in index or node.name in arguments:
            raise GraphDefError(f"{where}there are two nodes named {node.name!r}.")
        index[node.name] = position
    reads: list[list[int]] = []
    for node in nodes:
        reads.append([])
        control = False
        for text in node.input:
            if control and not text.startswith("^"):
                raise GraphDefError(
                    f"{where}node {node.name!r} ({node.op}) has the input {text!r} after a control "
                    "input; data inputs come first."
                )
            control = text.startswith("^")
            source = node_of(text)
            if source in index:
                reads[-1].append(index[source])
            elif source not in arguments:
                raise GraphDefError(
                    f"{where}node {node.name!r} ({node.op}) reads {text!r}, and there is no node "
                    f"{source!r}."
                )
    _check_cycles(nodes, reads, where)


def _check_cycles(nodes: Sequence[NodeDef], reads: list[list[int]], where: str) -> None:
    """Raises if a graph without its loop ends has a cycle."""
    readers: list[list[int]] = [[] for _ in nodes]
    open_inputs = [0] * len(nodes)
    for reader, sources in enumerate(reads):
        for source in sources:
            if nodes[source].op not in LOOP_ENDS:
                readers[source].append(reader)
                open_inputs[reader] += 1
    ready = [position for position, count in enumerate(open_inputs) if not count]
    for position in ready:  # grows while it is walked
        for reader in readers[position]:
            open_inputs[reader] -= 1
            if not open_inputs[reader]:
                ready.append(reader)
    if len(ready) == len(nodes):
        return
    # All remaining nodes are on a cycle or downstream of one: following inputs back finds one.
    left = {position for position, count in enumerate(open_inputs) if count}
    position, way = min(left), dict[int, None]()
    while position not in way:
        way[position] = None
        position = next(s for s in reads[position] if s in left and nodes[s].op not in LOOP_ENDS)
    ring = list(way)[list(way).index(position) :]
    names = [nodes[p].name for p in (*ring, position)][::-1]
    raise GraphDefError(
        f"{where}nodes read each other in a circle outside of any loop: {_arrows(names)}. "
        "A loop goes through a NextIteration."
    )


def called_functions(node: NodeDef, library: Container[str]) -> Iterator[str]:
    """Yields the functions of a library that a node calls or names in an attribute."""
    names = (node.op, *(function.name for function in functions_named(node)))
    return (name for name in names if name in library)


def _find_ring(calls: Mapping[str, Sequence[str]]) -> list[str] | None:
    """Returns a chain of calls that ends where it began, or None."""
    done: set[str] = set()
    for start in calls:
        if start in done:
            continue
        chain = {start: iter(calls[start])}
        while chain:
            caller, rest = next(reversed(chain.items()))
            callee = next(rest, None)
            if callee is None:
                done.add(caller)
                del chain[caller]
            elif callee in chain:
                names = list(chain)
                return [*names[names.index(callee) :], callee]
            elif callee not in done:
                chain[callee] = iter(calls[callee])
    return None


def _arrows(names: Sequence[str]) -> str:
    """Returns a chain of names, without the middle of a long one."""
    if len(names) > _SHOWN:
        names = [*names[: _SHOWN // 2], "…", *names[-_SHOWN // 2 :]]
    return " → ".join(names)
