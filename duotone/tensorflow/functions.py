"""Functions: bodies of the graph's library as graphs of their own, and back.

::

    reachable(graph)    the functions that a graph calls, directly or through others
    open_body(function) its body as a GraphDef: arguments are _Arg nodes, results _Retval nodes,
                        nodes in the order in which TensorFlow's importer makes them
    close_body          the FunctionDef with the rewritten body

TensorFlow rewrites each function that the graph reaches separately; its arguments and results keep
their types. It does not change functions that depend on attributes of their caller, or that tf.data
or XLA compiles.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from duotone.errors import GraphDefError
from duotone.ops.tensorflow_kinds import DATASETS
from duotone.tensorflow.checks import called_functions
from duotone.tensorflow.op_registry import Argument, OpDefinition
from duotone.tensorflow.protos import FunctionDef, GraphDef, NodeDef, library_of, new_graph
from duotone.tensorflow.rewrite_record import CastNodeRecord
from duotone.tensorflow.units import FindOp, split_input

RETURN_SUFFIX = "_RetVal"


def reachable(
    nodes: Iterable[NodeDef], library: Mapping[str, FunctionDef], gradients: Mapping[str, str]
) -> set[str]:
    """Returns the functions that nodes reach, through other functions and gradients as well."""
    found: set[str] = set()
    waiting = [name for node in nodes for name in called_functions(node, library)]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        waiting += [c for node in library[name].node_def for c in called_functions(node, library)]
        if gradients.get(name) in library:
            waiting.append(gradients[name])
    return found


def _reached(graph: GraphDef) -> tuple[dict[str, FunctionDef], set[str]]:
    """Returns the functions of a graph's library by name, and which of them the graph reaches."""
    library = library_of(graph)
    gradients = {g.function_name: g.gradient_func for g in graph.library.gradient}
    return library, reachable(graph.node, library, gradients)


def drop_unreachable(graph: GraphDef) -> tuple[str, ...]:
    """Removes the functions that a graph does not reach; returns their names."""
    if not graph.library.function:
        return ()
    library, found = _reached(graph)
    dropped = tuple(name for name in library if name not in found)
    if dropped:
        kept = [library[name].SerializeToString() for name in library if name in found]
        del graph.library.function[:]
        for text in kept:
            graph.library.function.add().ParseFromString(text)
        gradients = [g for g in graph.library.gradient if g.function_name in found]
        pairs = [(g.function_name, g.gradient_func) for g in gradients]
        del graph.library.gradient[:]
        for function, gradient in pairs:
            graph.library.gradient.add(function_name=function, gradient_func=gradient)
    return dropped


def rewritable(graph: GraphDef) -> list[str]:
    """Returns the functions of a graph's library that a rewrite concerns, in library order."""
    if not graph.library.function:
        return []
    library, found = _reached(graph)
    everywhere = [*graph.node, *(n for name in found for n in library[name].node_def)]
    launched = [node for node in everywhere if node.op == "XlaLaunch"]
    data = [
        name
        for name, function in library.items()
        if "_tf_data_function" in function.attr and function.attr["_tf_data_function"].b
    ]
    compiled = reachable(launched, library, {}).union(data)
    open_to_all = [
        name
        for name, function in library.items()
        if name in found and name not in compiled and not _is_generic(function)
    ]
    called_by_data = {
        callee for name in data for callee in reachable(library[name].node_def, library, {})
    }
    # TensorFlow skips the functions that a tf.data function calls, but forgets to do so as soon as
    # it has rewritten any other function.
    others = [name for name in open_to_all if name not in called_by_data]
    return open_to_all if others else []


def _is_generic(function: FunctionDef) -> bool:
    """Returns True if types or attributes of the function come from its caller."""
    signature = function.signature
    if any(
        a.type_attr or a.number_attr or a.type_list_attr
        for a in (*signature.input_arg, *signature.output_arg)
    ):
        return True
    return any(value.placeholder for node in function.node_def for value in node.attr.values())


class FunctionBody:
    """A function's body as a graph.

    Args:
        function: the function; it is only read.
        find_op: gives the definition of an op or library function.

    Attributes:
        graph: the body.
        preserved: names of its nodes that may not be changed.

    Raises:
        GraphDefError: a node reads something that does not exist.
    """

    def __init__(self, function: FunctionDef, find_op: FindOp) -> None:
        self._function = function
        self._definitions: dict[str, OpDefinition | None] = {
            node.name: find_op(node.op) for node in function.node_def
        }
        self._nodes = {node.name: node for node in function.node_def}
        self._arguments = {argument.name for argument in function.signature.input_arg}
        self.graph = new_graph()
        self.preserved = {*self._arguments, *function.control_ret.values()}
        self._add_nodes()

    def _add_nodes(self) -> None:
        function = self._function
        nodes: list[NodeDef] = []
        scratch = new_graph()
        for number, argument in enumerate(function.signature.input_arg):
            node = scratch.node.add(name=argument.name, op="_Arg")
            node.attr["T"].type = argument.type
            node.attr["index"].i = number
            for name, value in function.arg_attr[number].attr.items():
                node.attr[name].ParseFromString(value.SerializeToString())
            nodes.append(node)
        for original in function.node_def:
            node = scratch.node.add()
            node.MergeFromString(original.SerializeToString())
            for slot, text in enumerate(original.input):
                node.input[slot] = self._port(text, original.name)
            definition = self._definitions[node.name]
            if definition is not None and (definition.stateful or node.op in DATASETS):
                self.preserved.add(node.name)
            nodes.append(node)
        for number, argument in enumerate(function.signature.output_arg):
            text = dict(function.ret).get(argument.name, argument.name)
            node = scratch.node.add(name=self._return_name(argument.name), op="_Retval")
            node.input.append(self._port(text, argument.name))
            node.attr["T"].type = argument.type
            node.attr["index"].i = number
            self.preserved.add(node.name)
            nodes.append(node)
        self.graph.node.extend(nodes[i] for i in import_order(nodes))

    def _return_name(self, argument: str) -> str:
        name = f"{argument}{RETURN_SUFFIX}"
        while name in self._definitions or name in self._arguments:
            name += "_"
        return name

    def _port(self, text: str, reader: str) -> str:
        """Returns ``"node:out:1"`` as ``"node:3"``."""
        if text.startswith("^") or text in self._arguments:
            return text
        name, _, rest = text.partition(":")
        output, _, number = rest.partition(":")
        if name in self._arguments:
            return name
        definition = self._definitions.get(name)
        node = self._nodes.get(name)
        if definition is not None and node is not None:
            first = 0
            for argument in definition.outputs:
                count = _ports(node, definition, argument)
                if argument.name == output or not output:
                    if (number or "0").isdigit() and int(number or 0) < count:
                        return f"{name}:{first + int(number or 0)}"
                    break
                first += count
        raise GraphDefError(
            f"function {self._function.signature.name!r}: {reader!r} reads {text!r}, which does "
            "not exist in its body."
        )

    def close(self, casts: Iterable[CastNodeRecord]) -> FunctionDef:
        """Returns the function with the rewritten body."""
        function = type(self._function)()
        function.CopyFrom(self._function)
        written = {node.name: node for node in self.graph.node}
        texts = _source_texts(self._function, self)
        for node in function.node_def:
            data = [text for text in node.input if not text.startswith("^")]
            node.CopyFrom(_same_class(written[node.name], node))
            node.input[:] = data + [text for text in node.input if text.startswith("^")]
        by_name = {node.name: node for node in function.node_def}
        results = {self._return_name(a.name): a.name for a in function.signature.output_arg}
        for cast in casts:
            node = function.node_def.add()
            node.CopyFrom(_same_class(written[cast.name], node))
            node.input[:] = [texts[cast.source]]
            for consumer in cast.consumers:
                reader, _, slot = consumer.rpartition("#")
                if reader in results:
                    function.ret[results[reader]] = f"{cast.name}:y:0"
                else:
                    by_name[reader].input[int(slot)] = f"{cast.name}:y:0"
        return function


def _same_class(node: NodeDef, like: NodeDef) -> NodeDef:
    """Converts ``node`` to the message class of ``like``."""
    if type(node) is type(like):
        return node
    return type(like).FromString(node.SerializeToString())


def _ports(node: NodeDef, definition: OpDefinition, argument: Argument) -> int:
    """Returns how many output ports an argument has."""
    name = argument.type_list_attr or argument.number_attr
    if not name:
        return 1
    if name in node.attr:
        return len(node.attr[name].list.type) if argument.type_list_attr else node.attr[name].i
    default = definition.attributes[name].default if name in definition.attributes else None
    return len(default) if isinstance(default, list) else int(default or 0)


def _source_texts(function: FunctionDef, body: FunctionBody) -> dict[str, str]:
    """Returns how the function writes each ``"node:port"`` of its body."""
    texts = {f"{a.name}:0": a.name for a in function.signature.input_arg}
    for node in function.node_def:
        definition = body._definitions[node.name]
        port = 0
        for argument in definition.outputs if definition is not None else ():
            for number in range(_ports(node, definition, argument)):  # type: ignore[arg-type]
                texts[f"{node.name}:{port}"] = f"{node.name}:{argument.name}:{number}"
                port += 1
    return texts


def import_order(nodes: list[NodeDef]) -> list[int]:
    """Returns the order in which TensorFlow's importer makes nodes: inputs first, then by position.

    A Merge that a NextIteration feeds waits for one input only.

    Example:
        >>> from duotone.tensorflow.protos import new_graph
        >>> graph = new_graph()
        >>> reader = graph.node.add(name="reader", op="Identity", input=["source"])
        >>> import_order([reader, graph.node.add(name="source", op="Const")])
        [1, 0]
    """
    index = {node.name: i for i, node in enumerate(nodes)}
    loops = {node.name for node in nodes if node.op == "NextIteration"}
    readers: list[list[int]] = [[] for _ in nodes]
    waiting = []
    for position, node in enumerate(nodes):
        sources = [split_input(text.removeprefix("^"))[0] for text in node.input]
        for source in sources:
            if source in index:
                readers[index[source]].append(position)
        count = len(sources)
        if node.op == "Merge" and any(source in loops for source in sources):
            count = 1 + sum(text.startswith("^") for text in node.input)
        waiting.append(count)
    ready = [position for position, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        position = heapq.heappop(ready)
        order.append(position)
        for reader in readers[position]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    done = set(order)  # a damaged graph may have a cycle; it is found elsewhere
    return order + [position for position in range(len(nodes)) if position not in done]
