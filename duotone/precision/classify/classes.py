"""Classify: the list and the pin of each node, before any painting.

This stage gives each node its list, and a forced precision if the user asked for one. A
constant that half cannot represent denies the operation that computes with it.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Callable, Mapping, Sequence

from duotone.errors import PolicyError
from duotone.graph.graph import SWITCHED_OFF, UPDATE, Graph, HalfType, Node, Paint
from duotone.graph.magnitude import Magnitude
from duotone.ops.entries import Entry, Kind, Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.lists import OpLists
from duotone.precision.ranges.assume import path_of
from duotone.precision.rules import Rule


@dataclasses.dataclass(frozen=True, slots=True)
class NodeClass:
    """The class of one node: the facts about it that a painter uses.

    Attributes:
        entry: the list entry that applies to it, after its constants were considered.
        pin: a precision that the user forces, or ``None``.
        pinned_by: the pattern or region that forces it, in words.
        rule: the rule that denied it for more than its name; ``None`` if only the lists decide.
        stores_half: True if its result, computed in full, may be stored and read in half, since it
            provably fits and loses nothing that matters. Such a node passes no taint on.
        origin: its own list, if a constant, its range or the device denied it.
        lacks_options: True if it would gain on this device with other compiler options.
    """

    entry: Entry
    pin: Paint | None = None
    pinned_by: str = ""
    rule: Rule | None = None
    stores_half: bool = False
    origin: Kind | None = None
    lacks_options: bool = False

    @property
    def kind(self) -> Kind:
        """The list whose rules apply to it."""
        return self.entry.kind

    @property
    def listed(self) -> Kind:
        """Its own list, on which people look it up."""
        return self.origin or self.kind

    @property
    def is_users(self) -> bool:
        """True if the user decided, by a pin or by an edit of the lists."""
        return self.pin is not None or self.entry.source == "policy"

    def denied(self, reason: str, taint: Taint, rule: Rule) -> NodeClass:
        """Returns this class on the deny list; :attr:`listed` stays."""
        entry = dataclasses.replace(self.entry, kind=Kind.DENY, reason=reason, taint=taint)
        return NodeClass(entry, rule=rule, origin=self.listed)


_ALLOW, _CONTRACTS = Kind.ALLOW, Trait.CONTRACTS  # bound once: these are hot


@dataclasses.dataclass(frozen=True)  # without slots: cached properties need a ``__dict__``
class Classes:
    """The class of each node, and the half type for which it holds."""

    nodes: tuple[NodeClass, ...]
    half: HalfType

    @functools.cached_property
    def allowed(self) -> frozenset[int]:
        """The indices of the allow operations."""
        allow = (i for i, found in enumerate(self.nodes) if found.entry.kind is _ALLOW)
        return frozenset(allow)

    def is_dot(self, node: Node) -> bool:
        """Returns True for allow operations, and for dots that are too short to be one."""
        return node.index in self.allowed or _CONTRACTS in node.traits

    def dots(self, graph: Graph) -> frozenset[int]:
        """Returns the indices of the nodes of the program for which :meth:`is_dot` is true."""
        return self.allowed.union(node.index for node in graph.having(_CONTRACTS))

    def with_changed(self, changed: Mapping[int, NodeClass]) -> Classes:
        """Returns these classes, some replaced by index; the same object if none is."""
        if not changed:
            return self
        nodes = (changed.get(index, found) for index, found in enumerate(self.nodes))
        return Classes(tuple(nodes), self.half)

    def with_denied(
        self, reasons: Mapping[int, str], rule: Rule, taint: Taint = Taint.NONE
    ) -> Classes:
        """Returns these classes with some nodes denied.

        Nodes that the user decided on, that a rule denied before, or that are on no list stay. A
        node on the deny list keeps its own taint and gets the rule.

        Args:
            reasons: the reasons in words, by index of the node.
            rule: the rule that denies.
            taint: the taint of nodes that were not on the deny list.
        """
        changed: dict[int, NodeClass] = {}
        for index, reason in reasons.items():
            found = self.nodes[index]
            if found.is_users or found.rule is not None or found.kind is Kind.UNLISTED:
                continue
            listed = found.kind is Kind.DENY
            changed[index] = found.denied(reason, found.entry.taint if listed else taint, rule)
        return self.with_changed(changed)


@dataclasses.dataclass(frozen=True, slots=True)
class Pins:
    """Name-scope patterns (``fnmatch``) of operations that the user forces to a precision."""

    full: tuple[str, ...] = ()
    half: tuple[str, ...] = ()


NodeNames = Callable[[Node], tuple[str, ...]]
"""The names of a node that a pattern may match."""


def path_alone(node: Node) -> tuple[str, ...]:
    """Returns the path of a node, as its only name."""
    return (path_of(node),)


def classify(
    graph: Graph,
    lists: OpLists,
    half: HalfType,
    pins: Pins = Pins(),
    *,
    names: NodeNames = path_alone,
    force_all: bool = False,
) -> Classes:
    """Gives each node its class.

    Args:
        graph: the program.
        lists: the lists for ``half``, the user's edits applied.
        half: the half type.
        pins: name patterns.
        names: the names of a node that a pattern may match.
        force_all: whether to put every operation that can be half on the allow list, which is
            TensorFlow's level ``UNSAFE_FORCE_ALL``.

    Returns:
        One class for each node.

    Raises:
        PolicyError: a node is pinned to both precisions.
    """
    pinned = _pin_finder(pins, names)
    cache: dict[tuple[str, str, tuple[str, ...], str], NodeClass] = {}
    found: list[NodeClass] = []
    for node in graph.nodes:
        key = (node.op, node.list_key, names(node) if pins.full or pins.half else (), node.region)
        if key not in cache:
            cache[key] = _class_by_name(node, lists, pinned, force_all)
        by_name, constants = cache[key], graph.constants.get(node.index)
        found.append(_with_constants(node, by_name, constants, half) if constants else by_name)
    return Classes(tuple(found), half)


def _class_by_name(
    node: Node, lists: OpLists, pinned: Callable[[Node], tuple[Paint, str] | None], force_all: bool
) -> NodeClass:
    """Returns the class of a node by its names alone."""
    entry = lists.get(node.op, node.list_key)
    if force_all and Trait.STRUCTURAL not in node.traits:
        entry = dataclasses.replace(
            entry, kind=Kind.ALLOW, reason="every operation forced (level UNSAFE_FORCE_ALL)"
        )
    pin = pinned(node)
    return NodeClass(entry) if pin is None else NodeClass(entry, pin[0], pin[1])


def _pin_finder(pins: Pins, names: NodeNames) -> Callable[[Node], tuple[Paint, str] | None]:
    """Makes a function that returns the precision to which a node is pinned, and the reason."""
    compiled = [
        (re.compile(fnmatch.translate(pattern)), pattern, paint)
        for paint, patterns in ((Paint.FULL, pins.full), (Paint.HALF, pins.half))
        for pattern in patterns
    ]

    def pinned(node: Node) -> tuple[Paint, str] | None:
        if node.region == SWITCHED_OFF:
            return Paint.FULL, "inside an autocast or gradient that is switched off"
        own = names(node) if compiled else ()
        hits = [
            (paint, f"pattern {text!r}")
            for rule, text, paint in compiled
            if any(map(rule.match, own))
        ]
        if node.region == UPDATE:
            hits.append((Paint.FULL, "duotone (an optimizer or a loss scale)"))
        elif node.region:
            hits.append((Paint[node.region.upper()], f"region keep_{node.region}()"))
        if len({paint for paint, _ in hits}) > 1:
            full = next(reason for paint, reason in hits if paint is Paint.FULL)
            half = next(reason for paint, reason in hits if paint is Paint.HALF)
            raise PolicyError(
                f"{node.op} in scope {node.scope!r} at {node.source} is kept full by {full} and "
                f"kept half by {half}; remove one of the two, or make the pattern narrower."
            )
        return hits[0] if hits else None

    return pinned


_DECIDED = (Kind.DENY, Kind.UNLISTED)


def _with_constants(
    node: Node, found: NodeClass, constants: Sequence[tuple[int, Magnitude]], half: HalfType
) -> NodeClass:
    """Denies a node that computes with a constant that half cannot represent.

    A constant that is too large denies, since the result may not fit either. A clear operation
    saturates a bound and a single number instead: a mask of -1e9 stays a mask. An addition is
    denied if the constant exceeds half of the range, since the other operand adds to it. A
    constant that is too small for full relative precision denies. One that would round to 0 taints
    everything, since its purpose is to keep a value from being 0 (the guard of a division).
    Division by a constant too large for half, such as the number of elements of a mean over a
    batch of images, only makes a value smaller. Division by one that is too small makes it larger.
    """
    if found.pin is not None or found.kind in _DECIDED:
        return found
    for slot, magnitude in constants:
        divisor = Trait.DIVIDES in node.traits and slot == 1
        if _is_too_large(node, found.kind, magnitude, half):
            taint = Taint.DOMINANT if divisor else Taint.EVERYWHERE
            return _denied(found, magnitude.largest, half, taint)
        moved_only = Trait.COMMUTES in node.traits and len(node.inputs) == 1
        if magnitude.smallest < half.smallest_normal and not moved_only:
            lost = divisor or magnitude.smallest <= half.smallest / 2
            taint = Taint.EVERYWHERE if lost else Taint.DOMINANT
            return _denied(found, magnitude.smallest, half, taint)
        if Trait.BOUNDS in node.traits and magnitude.low == magnitude.high:
            number = magnitude.low
            if _is_edge(number, half):
                reason = f"{half.name} rounds the bound {number:.9g} to {half.rounded(number):.9g}"
                return _denied(found, number, half, Taint.NONE, reason)
    return found


def computes_with_large(node: Node, kind: Kind, graph: Graph, half: HalfType) -> bool:
    """Returns True if a node computes with a constant too large for half, other than as a divisor.

    Args:
        node: the node.
        kind: its own list.
        graph: the program.
        half: the half type.
    """
    return any(
        _is_too_large(node, kind, magnitude, half)
        for slot, magnitude in graph.constants.get(node.index, ())
        if Trait.DIVIDES not in node.traits or slot != 1
    )


def _is_too_large(node: Node, kind: Kind, constant: Magnitude, half: HalfType) -> bool:
    """Checks if half cannot represent a constant that a node reads, and must not saturate it."""
    largest = half.largest / 2 if Trait.ADDS in node.traits else half.largest
    if constant.largest <= largest:
        return False
    if kind is not Kind.CLEAR or Trait.JOINS in node.traits:
        return True
    is_mask = constant.low == constant.high or Trait.BOUNDS in node.traits
    return len(node.inputs) > 1 and not is_mask


def _is_edge(bound: float, half: HalfType) -> bool:
    """Checks if half rounds a bound to another number, possibly the number that it must exclude.

    ``clip(p, 1e-7, 1 - 1e-7)`` keeps a logarithm finite and an arc cosine on its branch, and
    ``clip(x, 0, 7.999)`` keeps an index inside its table. Three kinds of bounds need not be exact:
    an integer, the small guard of a division, and a large number that does not round to an integer.
    """
    if not _SMALL_BOUND <= abs(bound) <= half.largest or bound.is_integer():
        return False
    rounded = half.rounded(bound)
    return rounded != bound and (abs(bound) < _LARGE_BOUND or rounded.is_integer())


_SMALL_BOUND, _LARGE_BOUND = 2.0**-4, 2.0
"""A bound between them may limit the domain of a function: 1, and half of pi."""


def _denied(
    found: NodeClass, number: float, half: HalfType, taint: Taint, reason: str = ""
) -> NodeClass:
    reason = reason or f"the constant {number:.4g} is out of the range of {half.name}"
    return found.denied(reason, taint, Rule.CONSTANT)


def check_classes(classes: Classes, graph: Graph) -> Classes:
    """Returns ``classes`` if there is one for each node."""
    sizes: Sequence[int] = (len(classes.nodes), len(graph.nodes))
    if sizes[0] != sizes[1]:
        raise PolicyError(f"{sizes[0]} classes for {sizes[1]} nodes")
    return classes
