"""The neutral graph: the form in which painters see a numerical program.

A front end (jaxpr, GraphDef, ONNX) produces a :class:`Graph`; the stages after it (classify, paint,
casts) read it and know no framework. The graph is flat: one list holds all operations in program
order, those of nested programs (loop bodies, branches, recomputed regions) included. Each node
names the :class:`Body` in which it runs. A value that enters a body unchanged (a loop constant, an
operand of a branch) is the *same* value inside. Where the value changes on the way in or out, a
structural node connects the two:

======================  ==================================================================
``loop.carry``          initial value and the body's result in, carried value out (inside the
                        body and after the loop): one node, therefore one storage dtype
``loop.slice``          one iteration's slice of a stacked operand
``loop.stack``          the stacked results of all iterations
``loop.accumulator``    a ``loop.carry`` that only adds up the results of the iterations
``branch.join``         one result of a conditional, from every branch
``call.result``         a result of a program with rules of its own (recomputed, custom derivative)
``shard.enter/exit``    the local shard of an operand, the global value of a result
======================  ==================================================================
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from duotone.graph.frozen import frozen
from duotone.graph.magnitude import Magnitude
from duotone.ops.traits import UNDESCRIBED, Trait, Traits

FULL_DTYPE = "float32"
"""The dtype that a painter may change; all other dtypes are left alone."""

SMALL = 8
"""A value is small next to another one that has this many times its elements."""
_BYTES = {"bool": 1, "none": 0, "float0": 0}


@functools.cache
def bytes_of(dtype: str) -> int:
    """Returns the bytes of one element, from the digits in a dtype's name; 0 without digits."""
    if dtype in _BYTES:
        return _BYTES[dtype]
    digits = "".join(c if c.isdigit() else " " for c in dtype).split()
    return max(int(digits[0]) // 8, 1) if digits else 0


class Paint(enum.IntEnum):
    """One of the two precisions."""

    FULL = 0
    HALF = 1

    def __str__(self) -> str:
        return self.name.lower()


class Boundary(enum.Enum):
    """How a value must be stored where it leaves the graph."""

    FULL = "full"
    """Full, as in the original program. The values that lead to it are state, computed full."""
    HALF = "half"
    """Half, because the painting of the caller decided so."""
    ANY = "any"
    """Either, as painted: a residual between a forward and a backward program."""


@dataclasses.dataclass(frozen=True, slots=True)
class HalfType:
    """The properties of a half precision type on which decisions depend.

    Attributes:
        name: the dtype name.
        largest: the largest finite number.
        smallest_normal: the smallest positive number with full precision.
        smallest: the smallest positive number.
        epsilon: the distance from 1 to the next number.
        bits: the size of one number in storage.
    """

    name: str
    largest: float
    smallest_normal: float
    smallest: float
    epsilon: float
    bits: int = 16

    def rounded(self, number: float) -> float:
        """Returns a number of the normal range, rounded to this type: to nearest, ties to even."""
        step = 2.0 ** math.floor(math.log2(abs(number))) * self.epsilon if number else 1.0
        return round(number / step) * step


HALF_TYPES = {
    "float16": HalfType("float16", 65504.0, 2.0**-14, 2.0**-24, 2.0**-10),
    "bfloat16": HalfType("bfloat16", (2.0 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133, 2.0**-7),
}
"""The half types, from IEEE 754-2008 (binary16) and the bfloat16 layout (1, 8, 7 bits)."""


@frozen
class Value:
    """A typed array.

    Attributes:
        index: position in :attr:`Graph.values`.
        size: number of elements (1 for a scalar; a symbolic dimension counts as 1).
        shape: the dimensions, for people to read; painters use ``size``.
        dtype: dtype name in the original program.
        producer: index of the node that makes it, or -1 for inputs and constants.
        body: index of the body in which it is defined.
        constant: its magnitude if its value is known.
        given: the precision in which an input arrives: half only if a caller's painting stores it
            in half.
    """

    index: int
    size: int
    shape: tuple[object, ...]
    dtype: str
    producer: int = -1
    body: int = 0
    constant: Magnitude | None = None
    given: Paint = Paint.FULL

    @property
    def paintable(self) -> bool:
        """True if its dtype is one that a painter may change."""
        return self.dtype == FULL_DTYPE

    @property
    def is_one(self) -> bool:
        """True if it is known to be a single number; a value of unknown shape is an array."""
        return self.size == 1 and all(isinstance(side, int) for side in self.shape)

    def bytes(self, *, half: bool) -> int:
        """Returns the bytes of all elements, in half or as in the original program."""
        return self.size * (2 if half else bytes_of(self.dtype))


Attribute = float | tuple[int, ...]
"""The type of a node's attribute."""

NO_ATTRIBUTES: Mapping[str, Attribute] = MappingProxyType({})
"""The attributes of most nodes."""


SWITCHED_OFF = "off"  # the region in which the program stays as the user wrote it
UPDATE = "update"  # the region of loss scales and optimizers, which stay float32
PRECISION = "the user asked for precision"
"""How :attr:`Node.fixed` begins where the user asked for a precision other than JAX's default."""


@frozen
class Node:
    """An operation.

    ``attributes`` holds facts that rules need besides the operands; an unknown one is absent:

    ======================  ========================================================================
    ``exponent``            the exponent of a power with a constant integer exponent
    ``terms``               how many products or elements one result adds up, also in a window
    ``axes``                the axes of the operand that a reduction removes
    ``places``              for each axis of the operand of a broadcast, its axis in the result
    ``permutation``         the permutation of a transposition, or of a reshape in Fortran's order
    ``length``              the length of the axis along which a counter counts
    ``updates``             how many updates of a scatter one element gets at most
    ``once``                1 for a scatter that adds at most one update to each element
    ``fill``                the real number, not NaN, that a gather gives for indices outside
    ``paired``              axes that the operand of a gather shares with its indices
    ``labels``              for a dot: a number for each axis of the operands and the result, equal
                            where an Einstein sum has the same letter; absent for sharded types
    ``positions``           the operands that hold the positions at which the node reads another
    ``subtracts``           1 for a dot that subtracts its products from the third operand
    ``tiles``               1 for a convolution whose windows do not overlap, which is a dot
    ``phases``              1 for a convolution of a dilated image: one convolution for each phase
    ``spread``              1 for a convolution of an image with zeros between its elements
    ``uneven``              1 for a convolution with dilated filters and uneven or earlier padding
    ``dilated_gradient``    1 for the gradient of dilated filters
    ``apart``               one product in this many of a convolution of dilated operands has no 0
    ``filled``              products of such a convolution with all zeros, over those without
    ``slides``              1 for a convolution for which a CPU's library has a half kernel
    ``channelwise``         1 for a convolution with one feature per group, or of its filters
    ``overhangs``           1 for a convolution with a window of more elements than its image
    ``pools``               1 for a reduction of small windows, or the gradient of one
    ``sizes``               for a dot: the number of matrix products, and rows, terms and columns of
                            each; for a convolution: its groups, images, positions in a result,
                            elements of a window, and features that each group reads and makes
    ======================  ========================================================================

    Attributes:
        index: position in :attr:`Graph.nodes`.
        op: name in the framework (``dot_general``), or a structural name.
        list_key: name of its row in the table; differs from ``op`` where the framework has one
            operation for several meanings (``mul`` of a value with itself is a ``square``).
        inputs: value indices.
        outputs: value indices.
        half_inputs: for each input, whether the node may read it in half.
        half_outputs: for each output, whether the node may return it in half.
        body: index of the body in which it runs.
        scope: name scope, components joined by ``/``; empty outside any.
        region: the region of the user's code: ``"full"``, ``"half"``, :data:`UPDATE`,
            :data:`SWITCHED_OFF` or empty.
        source: an object whose ``str`` is the user's source line.
        flops: floating point operations of one execution.
        fixed: why it cannot be half, or an empty string.
        attributes: see above; empty for most operations.
        traits: the properties that rules may ask for, from its row in the table.
        interval: the name of its interval function, from the same row; empty without one.
    """

    index: int
    op: str
    list_key: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    half_inputs: tuple[bool, ...]
    half_outputs: tuple[bool, ...]
    body: int
    scope: str
    region: str
    source: object
    flops: float
    fixed: str = ""
    attributes: Mapping[str, Attribute] = dataclasses.field(
        default_factory=lambda: NO_ATTRIBUTES, hash=False
    )
    traits: Traits = UNDESCRIBED
    interval: str = ""

    @property
    def paintable(self) -> bool:
        """True if half is possible at all."""
        return not self.fixed and (any(self.half_inputs) or any(self.half_outputs))


class BodyKind(enum.Enum):
    """The role of a nested program for the values that enter it."""

    ROOT = "root"
    LOOP = "loop"
    """Runs many times: a cast of a value that does not change belongs outside."""
    BARRIER = "barrier"
    """Takes its operands as they are stored and casts inside: a branch that may not run, a
    recomputed region (a cast outside would be one more residual), a program with its own rules."""


@dataclasses.dataclass(frozen=True, slots=True)
class Body:
    """A nested program.

    Attributes:
        index: position in :attr:`Graph.bodies`; 0 is the whole program.
        parent: index of the body around it; -1 for the root.
        kind: its role; see :class:`BodyKind`.
        trips: how often it runs per run of the program, all loops around it included; a loop of
            unknown length counts once.
        until: for a loop of unknown length, the value that decides whether it goes on; else -1.
    """

    index: int
    parent: int
    kind: BodyKind
    trips: int
    until: int = -1


@dataclasses.dataclass(frozen=True)  # without slots: cached properties need a ``__dict__``
class Graph:
    """A program: nodes in program order, values, nested bodies.

    Attributes:
        nodes: every operation, nested ones in program order.
        values: every array.
        bodies: every nested program.
        inputs: value indices of the program's arguments.
        outputs: value index and boundary of each result.
    """

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    bodies: tuple[Body, ...]
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, Boundary], ...]

    @functools.cached_property
    def consumers(self) -> Sequence[Sequence[tuple[int, int]]]:
        """For each value, the (node, slot) pairs that read it, in program order."""
        readers: list[list[tuple[int, int]]] = [[] for _ in self.values]
        for node in self.nodes:
            for slot, value in enumerate(node.inputs):
                readers[value].append((node.index, slot))
        return readers

    def maker(self, value: int) -> Node | None:
        """Returns the node that makes a value; ``None`` for arguments and constants."""
        producer = self.values[value].producer
        return self.nodes[producer] if producer >= 0 else None

    def having(self, *traits: Trait) -> Sequence[Node]:
        """Returns the nodes that have at least one of some traits, in program order."""
        groups = (nodes for own, nodes in self._alike.items() if not own.isdisjoint(traits))
        return sorted(itertools.chain(*groups), key=operator.attrgetter("index"))

    @functools.cached_property
    def _alike(self) -> Mapping[Traits, Sequence[Node]]:
        """The nodes by all their traits: a program has few combinations."""
        groups: dict[Traits, list[Node]] = {}
        for node in self.nodes:
            groups.setdefault(node.traits, []).append(node)
        return groups

    @functools.cached_property
    def starts(self) -> dict[Callable[[Graph, Node], int | None], dict[int, int]]:
        """By step and value, what :func:`duotone.graph.reach.start` found."""
        return {}

    @functools.cached_property
    def moved_from(self) -> Sequence[int]:
        """For each value, the value from which it was moved; its own index if no node moves it."""
        found = list(range(len(self.values)))
        for node in self.having(Trait.COMMUTES):
            if len(node.inputs) == 1 and Trait.ITERATES not in node.traits:
                for value in node.outputs:
                    found[value] = found[node.inputs[0]]
        return found

    @functools.cached_property
    def known(self) -> frozenset[int]:
        """The values that follow from constants and counters alone: known before any call."""
        found = {value.index for value in self.values if value.constant is not None}
        for node in self.nodes:
            if found.issuperset(node.inputs):
                found.update(node.outputs)
        return frozenset(found)

    @functools.cached_property
    def constants(self) -> Mapping[int, Sequence[tuple[int, Magnitude]]]:
        """By index, the nodes that may have constants in half: the slot and magnitude of each.

        The fill value of a gather counts as one more slot after its operands.
        """
        known = {v.index: v.constant for v in self.values if v.constant is not None}
        found: dict[int, list[tuple[int, Magnitude]]] = {}
        for node in self.nodes:
            if not known.keys().isdisjoint(node.inputs):
                slots = zip(node.inputs, node.half_inputs, strict=True)
                read = [(i, known[v]) for i, (v, half) in enumerate(slots) if half and v in known]
                found[node.index] = read
            fill = node.attributes.get("fill")
            if isinstance(fill, float) and node.half_outputs[0]:
                found.setdefault(node.index, []).append((len(node.inputs), Magnitude.of(fill)))
        return found

    @functools.cached_property
    def fixed_storage(self) -> Sequence[Paint | None]:
        """For each value, its fixed storage; ``None`` if its producer's painting decides."""
        found: list[Paint | None] = [v.given if v.paintable else Paint.FULL for v in self.values]
        for node in self.nodes:
            for value, half in zip(node.outputs, node.half_outputs, strict=True):
                found[value] = None if half and self.values[value].paintable else Paint.FULL
        return found

    def stored(self, store: Sequence[Paint], value: Value) -> Paint:
        """Returns the storage of ``value``, given the storage paint of each node."""
        fixed = self.fixed_storage[value.index]
        return store[value.producer] if fixed is None else fixed

    def bodies_in(self, body: int) -> set[int]:
        """Returns the indices of a body and of all bodies nested in it."""
        found = {body}
        # A body comes after its parent, and the bodies nested in it follow it directly.
        for inner in itertools.islice(self.bodies, body + 1, None):
            if inner.parent not in found:
                break
            found.add(inner.index)
        return found

    def nodes_in(self, body: int) -> list[Node]:
        """Returns the nodes of a body and of all bodies nested in it, in program order."""
        groups = (self._by_body.get(index, ()) for index in self.bodies_in(body))
        return sorted(itertools.chain(*groups), key=operator.attrgetter("index"))

    @functools.cached_property
    def _by_body(self) -> Mapping[int, Sequence[Node]]:
        found: dict[int, list[Node]] = {}
        for node in self.nodes:
            found.setdefault(node.body, []).append(node)
        return found

    def trips(self, node: Node) -> int:
        """Returns how often ``node`` runs in one run of the program."""
        return self.bodies[node.body].trips
