"""Reading: from the units of a GraphDef to the neutral graph.

=================================  ============================================================
a node                             a graph node, whose results are the node's output ports
``Const``                          a value that no node makes, with its magnitude
a placeholder, argument, variable  an input of the graph
``Merge`` over a NextIteration     a ``loop.carry``, for the ``NextIteration`` too
any other ``Merge``                a ``branch.join``
``IdentityN``                      a graph node for each element
a loop frame                       a body
a writer of a list of tensors      has one more result: the elements that it puts into the list
a reader of a list of tensors      reads the elements that all writers of the list put into it
=================================  ============================================================

What an op without results reads is a result of the graph, and so is what it writes to a variable.
Functions are graphs of their own, so a node that calls one keeps its types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from duotone.graph.graph import (
    FULL_DTYPE,
    NO_ATTRIBUTES,
    Attribute,
    Boundary,
    Graph,
    Magnitude,
    Node,
    Value,
)
from duotone.ops.entries import STRUCTURAL_ENTRIES, traits_by_name, traits_of
from duotone.ops.tensorflow_meanings import FIXED, INTERVALS, TRAITS, WRITERS, operands_of
from duotone.ops.traits import Trait
from duotone.tensorflow.frames import frames_of
from duotone.tensorflow.protos import FLOAT, dtype_of
from duotone.tensorflow.rows import attributes_of, row_of
from duotone.tensorflow.shapes import (
    Shape,
    count_elements,
    element_count,
    find_shapes,
    running_order,
)
from duotone.tensorflow.tensor_lists import READERS, element_unit, find_clusters, hidden_edges
from duotone.tensorflow.tensor_lists import WRITERS as LIST_WRITERS
from duotone.tensorflow.tensors import const_magnitude
from duotone.tensorflow.unit_facts import Facts

INPUTS = frozenset(
    """Placeholder PlaceholderV2 PlaceholderWithDefault _Arg Variable VariableV2 VarHandleOp
    ReadVariableOp""".split()
)
"""Ops whose results are arguments or state: nothing is known of their numbers."""
_ELEMENTWISE = frozenset(
    {Trait.ADDS, Trait.MULTIPLIES, Trait.DIVIDES, Trait.CHOOSES, Trait.BOUNDS, Trait.ACTIVATION}
)
_GIVEN = INPUTS | {"Const"}
_STRUCTURAL = traits_by_name(STRUCTURAL_ENTRIES)
_STRUCTURAL_INTERVALS = {entry.op: entry.interval for entry in STRUCTURAL_ENTRIES}
_CONSTANT_FILLS = {"ZerosLike": 0.0, "OnesLike": 1.0}
_CALLS = "its functions are rewritten one by one"
_KEPT = "it is fetched, fed or kept, or not on the device"
_NO_KERNEL = "no kernel of the device takes half here"
_QUANTIZED = "part of a quantised operation"
_LIST = "other uses of its list of tensors are unknown"

_ELEMENTS = -1
"""The port of what a writer puts into a list of tensors."""

_Slot = tuple[int, int]
"""A value and the unit of the port that reads or makes it; -1 for a unit that is never half."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReadGraph:
    """A GraphDef as a neutral graph.

    Attributes:
        graph: the graph.
        units: by graph node, the units whose precision its painting decides.
        constants: by value, the unit of its ``Const`` node.
        lists: the units of each list of tensors, which have one precision.
    """

    graph: Graph
    units: Sequence[tuple[int, ...]]
    constants: Mapping[int, int]
    lists: Sequence[tuple[int, ...]]


def read(facts: Facts) -> ReadGraph:
    """Reads a graph.

    Args:
        facts: its units.

    Returns:
        The neutral graph, and the units of each of its nodes.
    """
    reader = _Reader(facts)
    for position in running_order(facts.units):
        reader.add(position)
    return reader.close()


class _Reader:
    """Reads nodes in the order in which they can run."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.source = facts, facts.units
        self.shapes = find_shapes(self.source)
        self.sizes = element_count(self.source, guess=True)
        self.frames = frames_of(self.source)
        self.nodes: list[Node] = []
        self.values: list[Value] = []
        self.units: list[tuple[int, ...]] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.constants: dict[int, int] = {}
        self.found: dict[tuple[int, int], int] = {}
        self.carries: list[tuple[int, int]] = []
        clusters = find_clusters(facts)
        self.lists = [cluster.members for cluster in clusters if not cluster.unsafe]
        self.unsafe = {unit for c in clusters if c.unsafe for unit in c.members}
        self.writers: dict[int, list[int]] = {}
        for writer, reader in hidden_edges(facts, clusters):
            self.writers.setdefault(reader, []).append(writer)

    def close(self) -> ReadGraph:
        """Returns the graph, in which carries read the results of their loops' bodies."""
        for index, position in self.carries:
            carry = self.nodes[index]
            value, unit = self._read(position, 0)
            half = not carry.fixed and self._may(unit)
            self.nodes[index] = dataclasses.replace(
                carry, inputs=(*carry.inputs, value), half_inputs=(*carry.half_inputs, half)
            )
        bodies = list(self.frames.bodies)
        for position, node in enumerate(self.source.nodes):
            if node.op == "LoopCond":
                body = self.frames.body[position]
                until = self._operand(self.source.sources[position][0])
                bodies[body] = dataclasses.replace(bodies[body], until=until)
        self._grow_unknown()
        results = tuple((v, Boundary.FULL) for v in dict.fromkeys(self.outputs))
        graph = Graph(
            tuple(self.nodes), tuple(self.values), tuple(bodies), tuple(self.inputs), results
        )
        return ReadGraph(graph, self.units, self.constants, self.lists)

    def add(self, position: int) -> None:
        """Reads one node."""
        op, ports = self.source.nodes[position].op, range(len(self.source.outputs[position]))
        if op == "Const":
            self._constant(position)
        elif op in INPUTS:
            self.inputs += [self._value(position, port) for port in ports]
        elif op in ("Merge", "RefMerge"):
            self._merge(position)
        elif op == "IdentityN":
            for port in ports:
                self._plain(position, [port], [port])
        elif not ports or op in WRITERS:
            self.outputs += map(self._operand, self.source.sources[position])
            for port in ports:
                self._value(position, port)
        elif op not in ("NextIteration", "RefNextIteration"):  # a part of its carry
            slots = operands_of(op, len(self.source.sources[position]))
            self._plain(position, slots, ports)
        if not self.facts.processed[position] and op not in _GIVEN:
            self.outputs += [self.found[position, p] for p in ports if (position, p) in self.found]

    # ------------------------------------------------------- values

    def _value(
        self, position: int, port: int, producer: int = -1, constant: Magnitude | None = None
    ) -> int:
        """Adds the value of an output port; a reader that came first may have added it."""
        index = self.found.get((position, port), len(self.values))
        dtype, shape, size = self._known_of(position, port)
        sides = ("?",) if shape is None else tuple("?" if d is None else d for d in shape)
        body = self.frames.body[position]
        value = Value(index, size, sides, dtype, producer, body, constant)
        if index == len(self.values):
            self.values.append(value)
            self.found[position, port] = index
        else:
            self.values[index] = value
        return index

    def _known_of(self, position: int, port: int) -> tuple[str, Shape, int]:
        """Returns dtype, shape and size of an output port, or of what a writer puts into a list."""
        if port == _ELEMENTS:
            return FULL_DTYPE, None, 1
        known = self.shapes[position]
        shape = known[port] if port < len(known) else None
        dtype = dtype_of(self.source.dtype[self.source.outputs[position][port]])
        return dtype, shape, self._size(position, port, shape)

    def _size(self, position: int, port: int, shape: Shape) -> int:
        """Returns the number of elements, guessed where a side is unknown."""
        known = count_elements(shape)
        if known is None or shape is None or None in shape:
            return self.sizes(position, port) or 1
        return known

    def _grow_unknown(self) -> None:
        """Makes operands with unknown sides as large as results of the same rank.

        The sides of a result may follow from another operand: a convolution by a filter of unknown
        shape has as many features as the bias that is added.
        """
        for node in reversed(self.nodes):
            if node.traits.isdisjoint(_ELEMENTWISE):
                continue
            result = self.values[node.outputs[0]]
            for operand in map(self.values.__getitem__, node.inputs):
                same_rank = len(operand.shape) == len(result.shape) > 1
                if same_rank and "?" in operand.shape and operand.size < result.size:
                    self.values[operand.index] = dataclasses.replace(operand, size=result.size)

    def _operand(self, source: tuple[int, int]) -> int:
        """Returns the value of an output port, which may not have been read yet."""
        found = self.found.get(source)
        return self._value(*source) if found is None else found

    def _constant(self, position: int) -> None:
        unit = self.source.outputs[position][0]
        is_float = self.source.dtype[unit] == FLOAT
        magnitude = const_magnitude(self.source.nodes[position]) if is_float else None
        value = self._value(position, 0, constant=magnitude)
        if self._may(unit):
            self.constants[value] = unit

    def _kept_constant(self, op: str, operands: Sequence[int]) -> Magnitude | None:
        """Returns the magnitude of a result that has the elements of a constant."""
        if op in _CONSTANT_FILLS:
            return Magnitude.of(_CONSTANT_FILLS[op])
        traits = traits_of(TRAITS, op)
        if Trait.KEEPS not in traits or Trait.CONVERTS in traits or not operands:
            return None
        found = self.values[operands[0]].constant
        if found is not None and Trait.NEGATES in traits:
            return Magnitude(found.smallest, found.largest)
        return found

    # ------------------------------------------------------- nodes

    def _may(self, unit: int) -> bool:
        """True if a unit may be half."""
        facts = self.facts
        return facts.is_processed(unit) and facts.is_float(unit) and facts.can_be_half(unit)

    def _read(self, position: int, slot: int) -> _Slot:
        """Returns the value that an input reads, and the unit of the input."""
        value = self._operand(self.source.sources[position][slot])
        return value, self.source.inputs[position][slot]

    def _plain(self, position: int, slots: Sequence[int], ports: Sequence[int]) -> None:
        node = self.source.nodes[position]
        reads = [self._read(position, slot) for slot in slots]
        if node.op in READERS:
            reads = [*self._read_elements(position), *reads]
        operands = [value for value, _ in reads]
        constant = self._kept_constant(node.op, operands)
        element = element_unit(self.source, position) if node.op in LIST_WRITERS else None
        if element is not None:
            for port in ports:
                self._value(position, port)  # the handle
            makes = [(self._value(position, _ELEMENTS, len(self.nodes)), element)]
        else:
            made = [self._value(position, p, len(self.nodes), constant) for p in ports]
            units = (self.source.outputs[position][p] for p in ports)
            makes = list(zip(made, units, strict=True))
        results = [self.values[value] for value, _ in makes]
        row = row_of(node, [self.values[v] for v in operands], results)
        self._append(position, node.op, row, reads, makes, attributes_of(node, slots))

    def _read_elements(self, position: int) -> Iterable[_Slot]:
        """Returns what the writers of a list put into it, as operands of a reader."""
        for unit in self.source.of_node[position]:
            for writer in self.writers.get(unit, ()):
                yield self._operand((self.source.node[writer], _ELEMENTS)), unit

    def _merge(self, position: int) -> None:
        """A carry if a ``NextIteration`` comes in, else a join of branches."""
        sources = self.source.sources[position]
        names = [self.source.nodes[node].op for node, _ in sources]
        back = [node for (node, _), op in zip(sources, names, strict=True) if "NextIter" in op]
        first = [slot for slot, op in enumerate(names) if "NextIter" not in op]
        op = "branch.join"
        if back and len(first) == len(back) == 1:
            op = "loop.carry"
            self.carries.append((len(self.nodes), back[0]))
        reads = [self._read(position, slot) for slot in first]
        made = self._value(position, 0, len(self.nodes))
        self._value(position, 1)  # the number of the input that came
        makes = [(made, self.source.outputs[position][0])]
        self._append(position, op, op, reads, makes, NO_ATTRIBUTES, tuple(back))

    def _append(
        self,
        position: int,
        op: str,
        row: str,
        reads: Sequence[_Slot],
        makes: Sequence[_Slot],
        attributes: Mapping[str, Attribute],
        back: Sequence[int] = (),
    ) -> None:
        """Adds a node; the precision of ``back`` is its own."""
        name = self.source.nodes[position].name
        used = [unit for _, unit in (*reads, *makes)]
        used += [self.source.inputs[node][0] for node in back]
        may = tuple(unit for unit in dict.fromkeys(used) if self._may(unit))
        fixed = self._fixed(position, used, may)
        halves = [
            tuple(
                not fixed and unit in may and self.values[value].paintable for value, unit in side
            )
            for side in (reads, makes)
        ]
        structural = _STRUCTURAL.get(op)
        node = Node(
            len(self.nodes),
            op,
            row,
            inputs=tuple(value for value, _ in reads),
            outputs=tuple(value for value, _ in makes),
            half_inputs=halves[0],
            half_outputs=halves[1],
            body=self.frames.body[position],
            scope=name.rpartition("/")[0],
            region="",
            source=name,
            flops=0.0,
            fixed=fixed,
            attributes=attributes,
            traits=traits_of(TRAITS, row) if structural is None else structural,
            interval=INTERVALS.get(row, "") or _STRUCTURAL_INTERVALS.get(op, ""),
        )
        self.nodes.append(node)
        self.units.append(() if fixed else may)

    def _fixed(self, position: int, used: Sequence[int], may: Sequence[int]) -> str:
        """Returns why a node stays as it is whatever a list says, or empty."""
        op = self.source.nodes[position].op
        if not any(self.facts.is_float(unit) for unit in used):
            return ""
        if not self.facts.processed[position]:
            return _KEPT
        if op in FIXED:
            return FIXED[op]
        if any(map(self.facts.is_quantized, used)):
            return _QUANTIZED
        if not self.unsafe.isdisjoint(self.source.of_node[position]):
            return _LIST
        if self.source.definitions[position].function or self._calls(position):
            return _CALLS
        return "" if may else _NO_KERNEL

    def _calls(self, position: int) -> bool:
        """True if an attribute names a function."""
        attributes = self.source.definitions[position].attributes.values()
        return any(a.kind in ("func", "list(func)") for a in attributes)
