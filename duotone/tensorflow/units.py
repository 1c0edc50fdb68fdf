"""Units: a GraphDef as (node, type attribute) pairs joined by the ports that carry their type.

::

    unit   = a node and one of its type attributes     MatMul "T"
             one element of a list of types            IdentityN "T[2]"
             a fixed type of one of its ports          TensorListStack variant
    edge   = unit of an output port -> unit of the input port that reads it

Attributes that no port uses are units without edges. Control inputs are ignored. Units have the
order of their nodes, and the passes depend on this order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from duotone.errors import GraphDefError
from duotone.ops.tensorflow_kinds import LOOP_ENDS
from duotone.tensorflow.op_registry import Argument, OpDefinition
from duotone.tensorflow.protos import INVALID, GraphDef, NodeDef, type_name

MOST_REPEATS = 2**20
"""An argument repeated more often than this is a sign of a damaged file."""

FindOp = Callable[[str], OpDefinition | None]


class TypeAttribute(NamedTuple):
    """Names a unit within its node.

    Attributes:
        name: the name of the attribute; empty for a fixed type.
        position: in a list of types, or -1.
        fixed: number of the fixed type, or 0.
    """

    name: str
    position: int = -1
    fixed: int = 0

    def __str__(self) -> str:
        """Returns the name as in TensorFlow's logs: ``T``, ``Tin[0]``, ``variant``."""
        if not self.name:
            return type_name(self.fixed)
        return self.name if self.position < 0 else f"{self.name}[{self.position}]"


class Port(NamedTuple):
    """An input of a node: which node, which of its data inputs."""

    node: int
    slot: int


@dataclasses.dataclass(slots=True)
class Units:
    """A graph's units.

    All lists that are indexed by node or by unit are parallel.

    Attributes:
        nodes: the NodeDefs.
        index: position of each node by name.
        definitions: by node, of its op.
        of_node: by node, its units.
        inputs: by node, the unit of each data input.
        outputs: by node, the unit of each output port.
        sources: by node, the (node, port) that each data input reads.
        readers: by node, by output port, the inputs that read it.
        node: by unit, its node.
        attribute: by unit, the type attribute that it represents.
        dtype: by unit, number of its data type.
        before: by unit, the units whose values it reads.
        after: by unit, the units that read its values.
        order: the positions of the nodes, each after its inputs; back edges of loops are ignored.
    """

    nodes: list[NodeDef]
    index: dict[str, int]
    sources: list[list[tuple[int, int]]]
    readers: list[dict[int, list[Port]]]
    definitions: list[OpDefinition] = dataclasses.field(default_factory=list)
    of_node: list[list[int]] = dataclasses.field(default_factory=list)
    inputs: list[list[int]] = dataclasses.field(default_factory=list)
    outputs: list[list[int]] = dataclasses.field(default_factory=list)
    node: list[int] = dataclasses.field(default_factory=list)
    attribute: list[TypeAttribute] = dataclasses.field(default_factory=list)
    dtype: list[int] = dataclasses.field(default_factory=list)
    before: list[list[int]] = dataclasses.field(default_factory=list)
    after: list[list[int]] = dataclasses.field(default_factory=list)
    order: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.node)

    def find(self, node: int, name: str) -> int | None:
        """Returns the unit of a node's type attribute."""
        wanted = TypeAttribute(name)
        return next((u for u in self.of_node[node] if self.attribute[u] == wanted), None)

    def join(self, edges: Sequence[tuple[int, int]]) -> None:
        """Adds edges between units that no port carries."""
        for source, target in edges:
            self.before[target].append(source)
            self.after[source].append(target)
        self.remove_doubles()

    def remove_doubles(self) -> None:
        """Keeps one of several edges between the same units."""
        for edges in (self.before, self.after):
            for unit, ends in enumerate(edges):
                if len(ends) > 1:
                    edges[unit] = list(dict.fromkeys(ends))


def make_units(graph: GraphDef, find_op: FindOp) -> Units:
    """Returns the units of a graph.

    Raises:
        GraphDefError: the graph is damaged or has ops that TensorFlow 2.21 lacks.
    """
    nodes = list(graph.node)
    index = {node.name: i for i, node in enumerate(nodes)}
    units = Units(nodes, index, [[] for _ in nodes], [{} for _ in nodes])
    layouts: dict[str, _Layout] = {}
    for node in nodes:
        _add_node(units, node, _definition(node, find_op), layouts)
    for position in range(len(nodes)):
        _add_edges(units, position)
    units.remove_doubles()
    units.order = _running_order(units)
    return units


def _running_order(units: Units) -> list[int]:
    """Returns the positions of the nodes after their inputs; nodes of other cycles are left out."""
    readers: list[list[int]] = [[] for _ in units.nodes]
    waiting = [0] * len(units.nodes)
    back = {position for position, node in enumerate(units.nodes) if node.op in LOOP_ENDS}
    for position, sources in enumerate(units.sources):
        for source, _ in sources:
            if source not in back:
                readers[source].append(position)
                waiting[position] += 1
    order = [position for position, count in enumerate(waiting) if count == 0]
    for position in order:  # it grows on the way
        for reader in readers[position]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                order.append(reader)
    return order


def _definition(node: NodeDef, find_op: FindOp) -> OpDefinition:
    definition = find_op(node.op)
    if definition is None:
        raise GraphDefError(
            f"node {node.name!r}: TensorFlow 2.21 has no op {node.op!r}, and the graph's library "
            "has no function of this name. A custom op can be replaced by a library function."
        )
    return definition


def type_of(node: NodeDef, definition: OpDefinition, attribute: TypeAttribute) -> int:
    """Returns the number of a unit's data type; the op's default if the node does not set it."""
    if not attribute.name:
        return attribute.fixed
    given = node.attr
    if attribute.name in given:
        value = given[attribute.name]
        if attribute.position < 0:
            return value.type
        types = value.list.type
        return types[attribute.position] if attribute.position < len(types) else INVALID
    default = definition.attributes[attribute.name].default
    if attribute.position < 0:
        return default if isinstance(default, int) else INVALID
    return default[attribute.position] if isinstance(default, list) else INVALID


class _Layout(NamedTuple):
    """The units of a node: their attributes, and which of them each port belongs to."""

    attributes: tuple[TypeAttribute, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def _layout(node: NodeDef, definition: OpDefinition) -> _Layout:
    """Returns the units of one node, in the order of its inputs, outputs and other attributes."""
    found: dict[TypeAttribute, int] = {}

    def ports(arguments: Sequence[Argument]) -> tuple[int, ...]:
        types = [t for argument in arguments for t in _types(node, definition, argument)]
        return tuple(found.setdefault(t, len(found)) for t in types)

    inputs, outputs = ports(definition.inputs), ports(definition.outputs)
    for name, attribute in definition.attributes.items():
        if attribute.kind == "type" and (name in node.attr or attribute.has_default):
            found.setdefault(TypeAttribute(name), len(found))
        elif attribute.kind == "list(type)":
            for i in range(_length(node, definition, name)):
                found.setdefault(TypeAttribute(name, i), len(found))
    return _Layout(tuple(found), inputs, outputs)


def _is_uniform(definition: OpDefinition) -> bool:
    """Returns True if all nodes of an op have the same layout: it has no lists and no counts."""
    lists = any(a.kind == "list(type)" for a in definition.attributes.values())
    arguments = (*definition.inputs, *definition.outputs)
    return not lists and not any(a.number_attr or a.type_list_attr for a in arguments)


def _add_node(
    units: Units, node: NodeDef, definition: OpDefinition, layouts: dict[str, _Layout]
) -> None:
    """Adds the units of one node."""
    layout = layouts.get(node.op)
    given = node.attr
    if layout is None or any(t.name and t.name not in given for t in layout.attributes):
        layout = _layout(node, definition)
        if _is_uniform(definition):
            layouts[node.op] = layout
    first, position = len(units.node), len(units.definitions)
    count = len(layout.attributes)
    units.definitions.append(definition)
    units.of_node.append(list(range(first, first + count)))
    units.inputs.append([first + i for i in layout.inputs])
    units.outputs.append([first + i for i in layout.outputs])
    units.node += [position] * count
    units.attribute += layout.attributes
    units.dtype += [type_of(node, definition, attribute) for attribute in layout.attributes]
    units.before += [[] for _ in range(count)]
    units.after += [[] for _ in range(count)]
    for name in given:
        if name not in definition.attributes and not name.startswith("_"):
            raise GraphDefError(
                f"node {node.name!r}: the op {node.op} has no attribute {name!r} in TensorFlow "
                "2.21; remove it from the node."
            )


def _length(node: NodeDef, definition: OpDefinition, name: str) -> int:
    """Returns the number of types in a list attribute."""
    if name in node.attr:
        return len(node.attr[name].list.type)
    attribute = definition.attributes.get(name)
    if attribute is None or not attribute.has_default:
        raise _missing(node, name)
    return len(attribute.default or ())


def _missing(node: NodeDef, name: str) -> GraphDefError:
    return GraphDefError(
        f"node {node.name!r} ({node.op}) has no type attribute {name!r}, which its op needs: the "
        "file is damaged, or it was made for another version of the op."
    )


def _types(node: NodeDef, definition: OpDefinition, argument: Argument) -> list[TypeAttribute]:
    """Yields, for each port of an argument, the unit to which it belongs."""
    if argument.type_list_attr:
        name = argument.type_list_attr
        return [TypeAttribute(name, i) for i in range(_length(node, definition, name))]
    repeats = 1
    if argument.number_attr:
        if argument.number_attr in node.attr:
            repeats = node.attr[argument.number_attr].i
        else:
            attribute = definition.attributes.get(argument.number_attr)
            if attribute is not None and attribute.has_default:
                repeats = attribute.default
    if repeats > MOST_REPEATS:
        raise GraphDefError(
            f"node {node.name!r} ({node.op}): attribute {argument.number_attr!r} is {repeats} "
            "tensors, which is impossible; the file is damaged."
        )
    if not argument.type_attr:
        return [TypeAttribute("", -1, argument.type)] * repeats
    attribute = definition.attributes.get(argument.type_attr)
    if argument.type_attr not in node.attr and not (attribute and attribute.has_default):
        raise _missing(node, argument.type_attr)
    return [TypeAttribute(argument.type_attr)] * repeats


def split_input(text: str) -> tuple[str, int]:
    """Returns the node name and output port of a data input, ``"name"`` or ``"name:1"``.

    Example:
        >>> split_input("split:1")
        ('split', 1)
    """
    name, colon, port = text.rpartition(":")
    if colon and port.isdigit():
        return name, int(port)
    return text, 0


def _add_edges(units: Units, position: int) -> None:
    """Joins the data inputs of one node to what they read."""
    node = units.nodes[position]
    given = [text for text in node.input if text[:1] != "^"]
    wanted = units.inputs[position]
    if len(given) != len(wanted):
        raise GraphDefError(
            f"node {node.name!r} ({node.op}) has {len(given)} data inputs and its op takes "
            f"{len(wanted)}: the file is damaged, or it was made for another version of the op."
        )
    sources = units.sources[position]
    for slot, (text, unit) in enumerate(zip(given, wanted, strict=True)):
        source, port = units.index.get(text), 0
        if source is None:
            name, port = split_input(text)
            source = units.index.get(name)
        if source is None or port >= len(units.outputs[source]):
            raise GraphDefError(
                f"node {node.name!r} ({node.op}) reads {text!r}, which does not exist in the graph."
            )
        sources.append((source, port))
        units.readers[source].setdefault(port, []).append(Port(position, slot))
        before = units.outputs[source][port]
        units.before[unit].append(before)
        units.after[before].append(unit)
