"""Reading: from the units of a GraphDef to the neutral graph.

=================================  ============================================================
a node                             a graph node, whose results are the node's output ports
``Const``                          a value that no node makes, with its magnitude
a placeholder, argument, variable  an input of the graph
``Merge`` over a NextIteration     a ``loop.carry``, for the ``NextIteration`` too
any other ``Merge``                a ``branch.join``
an argument of a While's body      a ``loop.carry``, which reads what an iteration returns
``IdentityN``                      a graph node for each element
a loop frame                       a body
a writer of a list of tensors      has one more result: the elements that it puts into the list
a reader of a list of tensors      reads the elements that all writers of the list put into it
=================================  ============================================================

The operands of an op without results are results of the graph, and so is a value that it writes to
a variable. Functions are graphs of their own, so a node that calls one keeps its types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from duotone.graph.elements import kept_constant
from duotone.graph.graph import (
    NO_ATTRIBUTES,
    Attribute,
    Body,
    Boundary,
    Graph,
    Node,
)
from duotone.graph.magnitude import Magnitude
from duotone.ops.entries import traits_of
from duotone.ops.tensorflow_kinds import GIVEN, LIST_READERS, LIST_WRITERS
from duotone.ops.tensorflow_meanings import FIXED, INTERVALS, TRAITS, operands_of
from duotone.tensorflow.frames import frames_of
from duotone.tensorflow.ports import ELEMENTS, INITIAL, Ports
from duotone.tensorflow.protos import FLOAT, QUANTIZED
from duotone.tensorflow.rows import attributes_of, flops_of, row_of
from duotone.tensorflow.tensor_lists import (
    element_unit,
    find_clusters,
    hidden_edges,
)
from duotone.tensorflow.tensors import const_magnitude
from duotone.tensorflow.unit_facts import Facts

_GIVEN_OR_CONST = GIVEN | {"Const"}
_CONSTANT_FILLS = {"ZerosLike": 0.0, "OnesLike": 1.0}
_CALLS = "its functions are rewritten one by one"
_KEPT = "it is fetched, fed or kept, or not on the device"
_NO_KERNEL = "no kernel of the device takes half here"
_QUANTIZED = "part of a quantised operation"
_LIST = "other uses of its list of tensors are unknown"

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
        ports: the value of each output port, by the position of its node and its number.
    """

    graph: Graph
    units: Sequence[tuple[int, ...]]
    constants: Mapping[int, int]
    lists: Sequence[tuple[int, ...]]
    ports: Mapping[tuple[int, int], int]


def read(facts: Facts) -> ReadGraph:
    """Reads a graph."""
    reader = _Reader(facts)
    for position in facts.units.order:
        reader.add(position)
    return reader.close()


class _Reader:
    """Reads nodes in the order in which they can run."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.source = facts, facts.units
        self.bodies, self.body = frames_of(self.source, in_loop=facts.tested is not None)
        self.ports = Ports(self.source, facts.shapes, self.body)
        self.values = self.ports.values
        self.nodes: list[Node] = []
        self.units: list[tuple[int, ...]] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.constants: dict[int, int] = {}
        self.carries: list[tuple[int, int]] = []
        self.tests: list[int] = []
        self.returned = {
            node.attr["index"].i: position
            for position, node in enumerate(self.source.nodes)
            if node.op == "_Retval"
        }
        self.quantized = not QUANTIZED.isdisjoint(self.source.dtype)
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
            half = not carry.fixed and self.facts.may_be_half(unit)
            self.nodes[index] = dataclasses.replace(
                carry, inputs=(*carry.inputs, value), half_inputs=(*carry.half_inputs, half)
            )
        bodies = self._bodies()
        self.ports.grow_unknown(self.nodes)
        results = tuple((v, Boundary.FULL) for v in dict.fromkeys(self.outputs))
        graph = Graph(
            tuple(self.nodes), tuple(self.values), tuple(bodies), tuple(self.inputs), results
        )
        return ReadGraph(graph, self.units, self.constants, self.lists, self.ports.found)

    def _bodies(self) -> list[Body]:
        """Returns the bodies, with the values that decide whether a loop goes on."""
        bodies = self.bodies
        for position, node in enumerate(self.source.nodes):
            if node.op == "LoopCond":
                body = self.body[position]
                until = self.ports.operand(self.source.sources[position][0])
                bodies[body] = dataclasses.replace(bodies[body], until=until)
        if self.facts.tested is not None and self.tests:
            # The condition is another function: a number that it reads decides, a float32 first.
            until = max(self.tests, key=lambda value: self.values[value].paintable)
            bodies[1] = dataclasses.replace(bodies[1], until=until)
        return bodies

    def add(self, position: int) -> None:
        """Reads one node."""
        op, ports = self.source.nodes[position].op, range(len(self.source.outputs[position]))
        if op == "Const":
            self._constant(position)
        elif op == "_Arg" and self._is_carried(position):
            self._carried_argument(position)
        elif op in GIVEN:
            self.inputs += [self.ports.add(position, port) for port in ports]
        elif op in ("Merge", "RefMerge"):
            self._merge(position)
        elif op == "IdentityN":
            for port in ports:
                self._plain(position, (port,), (port,))
        elif not ports or self.source.definitions[position].writes_reference:
            self.outputs += map(self.ports.operand, self.source.sources[position])
            for port in ports:
                self.ports.add(position, port)
        elif op not in ("NextIteration", "RefNextIteration"):  # a part of its carry
            slots = operands_of(op, len(self.source.sources[position]))
            self._plain(position, slots, ports)
        if not self.facts.processed[position] and op not in _GIVEN_OR_CONST:
            self.outputs += [
                self.ports.found[position, p] for p in ports if (position, p) in self.ports.found
            ]

    # ------------------------------------------------------- constants

    def _constant(self, position: int) -> None:
        unit = self.source.outputs[position][0]
        is_float = self.source.dtype[unit] == FLOAT
        magnitude = const_magnitude(self.source.nodes[position]) if is_float else None
        value = self.ports.add(position, 0, constant=magnitude)
        if self.facts.may_be_half(unit):
            self.constants[value] = unit

    # ------------------------------------------------------- nodes

    def _read(self, position: int, slot: int) -> _Slot:
        """Returns the value that an input reads, and the unit of the input."""
        value = self.ports.operand(self.source.sources[position][slot])
        return value, self.source.inputs[position][slot]

    def _plain(self, position: int, slots: Sequence[int], ports: Sequence[int]) -> None:
        node = self.source.nodes[position]
        reads = [self._read(position, slot) for slot in slots]
        if node.op in LIST_READERS:
            reads = [*self._read_elements(position), *reads]
        read = [self.values[value] for value, _ in reads]
        if node.op in _CONSTANT_FILLS:
            constant = Magnitude.of(_CONSTANT_FILLS[node.op])
        else:
            constant = kept_constant(traits_of(TRAITS, node.op), read)
        element = element_unit(self.source, position) if node.op in LIST_WRITERS else None
        if element is not None:
            for port in ports:
                self.ports.add(position, port)  # the handle
            written = next(value for value, unit in reads if unit == element)
            makes = [(self.ports.add_elements(position, written, len(self.nodes)), element)]
        else:
            made = [self.ports.add(position, p, len(self.nodes), constant) for p in ports]
            units = (self.source.outputs[position][p] for p in ports)
            makes = list(zip(made, units, strict=True))
        results = [self.values[v] for v, _ in makes]
        row, flops = row_of(node, read, results), flops_of(node, read, results)
        self._append(position, node.op, row, reads, makes, attributes_of(node.op, slots), flops)

    def _read_elements(self, position: int) -> Iterable[_Slot]:
        """Returns the elements that the writers of a list put into it, as operands of a reader."""
        for unit in self.source.of_node[position]:
            for writer in self.writers.get(unit, ()):
                yield self.ports.operand((self.source.node[writer], ELEMENTS)), unit

    def _merge(self, position: int) -> None:
        """Adds a carry if a ``NextIteration`` comes in, else a join of branches."""
        sources = self.source.sources[position]
        names = [self.source.nodes[node].op for node, _ in sources]
        back = [node for (node, _), op in zip(sources, names, strict=True) if "NextIter" in op]
        first = [slot for slot, op in enumerate(names) if "NextIter" not in op]
        op = row = "branch.join"
        if len(first) == len(back) == 1:
            op = row = "loop.carry"
            self.carries.append((len(self.nodes), back[0]))
        elif back:  # not a loop of TensorFlow's own: nothing is known of what comes back
            op, row = self.source.nodes[position].op, ""
        reads = [self._read(position, slot) for slot in first]
        made = self.ports.add(position, 0, len(self.nodes))
        self.ports.add(position, 1)  # the number of the input that came
        makes = [(made, self.source.outputs[position][0])]
        self._append(position, op, row, reads, makes, NO_ATTRIBUTES, back=tuple(back))

    def _is_carried(self, position: int) -> bool:
        """Returns True for an argument of a loop's body in whose place an iteration returns."""
        number = self.source.nodes[position].attr["index"].i
        return self.facts.tested is not None and number in self.returned

    def _carried_argument(self, position: int) -> None:
        """Adds an argument of a loop's body, to which an iteration returns its next value."""
        number = self.source.nodes[position].attr["index"].i
        unit = self.source.outputs[position][0]
        initial = self.ports.add(position, INITIAL)
        self.values[initial] = dataclasses.replace(self.values[initial], body=0)
        self.inputs.append(initial)
        within = self.ports.add(position, 0, len(self.nodes))
        if number in (self.facts.tested or ()):
            self.tests.append(within)
        self.carries.append((len(self.nodes), self.returned[number]))
        reads, makes = [(initial, unit)], [(within, unit)]
        self._append(position, "loop.carry", "loop.carry", reads, makes, NO_ATTRIBUTES)

    def _append(
        self,
        position: int,
        op: str,
        row: str,
        reads: Sequence[_Slot],
        makes: Sequence[_Slot],
        attributes: Mapping[str, Attribute],
        flops: float = 0.0,
        back: Sequence[int] = (),
    ) -> None:
        """Adds a node; the precision of ``back`` is its own."""
        name = self.source.nodes[position].name
        used = [unit for _, unit in (*reads, *makes)]
        used += [self.source.inputs[node][0] for node in back]
        may = tuple(filter(self.facts.may_be_half, dict.fromkeys(used)))
        fixed = self._fixed(position, used, may)
        halves = [
            (False,) * len(side)
            if fixed
            else tuple(unit in may and self.values[value].paintable for value, unit in side)
            for side in (reads, makes)
        ]
        node = Node(
            len(self.nodes),
            op,
            row,
            inputs=tuple(value for value, _ in reads),
            outputs=tuple(value for value, _ in makes),
            half_inputs=halves[0],
            half_outputs=halves[1],
            body=self.body[position],
            scope=name.rpartition("/")[0],
            region="",
            source=name,
            flops=flops,
            fixed=fixed,
            attributes=attributes,
            traits=traits_of(TRAITS, row),
            interval=INTERVALS.get(row, ""),
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
        if self.quantized and any(map(self.facts.is_quantized, used)):
            return _QUANTIZED
        if not self.unsafe.isdisjoint(self.source.of_node[position]):
            return _LIST
        called = self.source.definitions[position]
        kinds = {attribute.kind for attribute in called.attributes.values()}
        if called.function or not kinds.isdisjoint(("func", "list(func)")):
            return _CALLS
        return "" if may else _NO_KERNEL
