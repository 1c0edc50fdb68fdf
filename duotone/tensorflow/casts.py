"""Casts: writes a painting into a GraphDef, with one Cast per output port where precisions meet.

::

    for each float32 unit, in the order of the nodes:
        half: its type attribute becomes half
        for each output port: if a reader has the other precision, one Cast for all such readers,
            on the device of the node, named
            <node>-<port>-CastTo{Fp16,Bf16,Fp32}-0-AutoMixedPrecision
"""

from __future__ import annotations

from collections.abc import Collection

from duotone.errors import GraphDefError
from duotone.tensorflow.protos import FLOAT, HALF, GraphDef, NodeDef
from duotone.tensorflow.rewrite_record import CastNodeRecord
from duotone.tensorflow.tensors import halve_const
from duotone.tensorflow.unit_facts import Facts
from duotone.tensorflow.units import Port, Units

BYTES_PER_ELEMENT = 6
"""A cast reads one of the two types and writes the other: 4 bytes and 2."""


def apply(graph: GraphDef, facts: Facts, allow: Collection[int]) -> tuple[CastNodeRecord, ...]:
    """Changes the types of a graph and adds casts.

    Returns:
        The casts that were added.

    Raises:
        GraphDefError: a unit that is to become half has a fixed type, or a constant is damaged.
    """
    units = facts.units
    names = set(units.index)
    casts: list[CastNodeRecord] = []
    for position, node in enumerate(units.nodes):
        for unit in units.of_node[position]:
            if units.dtype[unit] != FLOAT:
                continue
            half = unit in allow
            if half:
                _make_half(units, unit, facts)
            for port, owner in enumerate(units.outputs[position]):
                if owner != unit:
                    continue
                readers = [
                    reader
                    for reader in units.readers[position].get(port, ())
                    if (units.inputs[reader.node][reader.slot] in allow) != half
                ]
                if readers:
                    cast = _add_cast(graph, node, port, facts.half, not half, names)
                    casts.append(_connect(facts, cast, (position, port), readers))
    return tuple(casts)


def _make_half(units: Units, unit: int, facts: Facts) -> None:
    """Sets the type attribute of a unit; the elements of a ``Const`` become half too."""
    half = facts.half
    node = units.nodes[units.node[unit]]
    attribute = units.attribute[unit]
    if not attribute.name:
        raise GraphDefError(
            f"node {node.name!r}: its op {node.op} has a fixed float32 type, which cannot be made "
            "half; take the op off with Policy(allow_remove=...) or leave level UNSAFE_FORCE_ALL."
        )
    if attribute.position < 0:
        node.attr[attribute.name].type = half
        if node.op == "Const":
            halve_const(node, facts.resolved.half)
        return
    definition = units.definitions[units.node[unit]]
    if attribute.name not in node.attr:  # the op's default, written out
        node.attr[attribute.name].list.type.extend(definition.attributes[attribute.name].default)
    node.attr[attribute.name].list.type[attribute.position] = half


def _add_cast(
    graph: GraphDef, source: NodeDef, port: int, half: int, to_half: bool, names: set[str]
) -> NodeDef:
    """Adds a Cast node without readers."""
    target = "Fp32" if not to_half else "Fp16" if half == HALF else "Bf16"
    number = 0
    while (name := f"{source.name}-{port}-CastTo{target}-{number}-AutoMixedPrecision") in names:
        number += 1
    names.add(name)
    cast = graph.node.add(name=name, op="Cast", device=source.device)
    cast.input.append(f"{source.name}:{port}" if port else source.name)
    cast.attr["SrcT"].type = FLOAT if to_half else half
    cast.attr["DstT"].type = half if to_half else FLOAT
    cast.attr["Truncate"].b = False
    return cast


def _connect(
    facts: Facts, cast: NodeDef, source: tuple[int, int], readers: list[Port]
) -> CastNodeRecord:
    """Makes readers read a cast."""
    units = facts.units
    for reader in readers:
        units.nodes[reader.node].input[reader.slot] = cast.name
    count = facts.shapes.elements(*source)
    target = cast.attr["DstT"].type
    return CastNodeRecord(
        name=cast.name,
        source=f"{units.nodes[source[0]].name}:{source[1]}",
        to="f32" if target == FLOAT else "f16" if target == HALF else "bf16",
        consumers=tuple(f"{units.nodes[r.node].name}#{r.slot}" for r in readers),
        bytes=None if count is None else count * BYTES_PER_ELEMENT,
    )
