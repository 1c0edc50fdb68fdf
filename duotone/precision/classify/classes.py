"""Classify: what each node is to the painter, before any painting.

Takes a graph, the lists and the user's pins; gives each node its list, and forces a precision where
the user asked for one. Constants count here too, since that needs nothing but the
node: a constant that half cannot represent denies the operation that calculates with it.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence

from duotone.errors import PolicyError
from duotone.graph.graph import SWITCHED_OFF, UPDATE, Graph, HalfType, Node, Paint
from duotone.ops.entries import Entry, Kind, Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.lists import OpLists
from duotone.precision.ranges.assume import path_of
from duotone.precision.rules import Rule


@dataclasses.dataclass(frozen=True, slots=True)
class NodeClass:
    """The class of one node: what a painter knows of it.

    Attributes:
        entry: the list entry that holds for it, constants considered.
        pin: a precision that the user forces, or ``None``.
        pinned_by: the pattern or region that forces it, in words.
        rule: what denied it for more than its name; ``None`` where only the lists speak.
        stores_half: its result, computed in full, may be stored in half and read in half: it
            provably fits and loses nothing that matters. No taint leaves such a node.
        range: what is known of its result, in words; for people, where ranges decided something.
        origin: the list it stands on, where a constant, its range or the device denied it.
    """

    entry: Entry
    pin: Paint | None = None
    pinned_by: str = ""
    rule: Rule | None = None
    stores_half: bool = False
    range: str = ""
    origin: Kind | None = None

    @property
    def kind(self) -> Kind:
        """The list whose rules hold for it."""
        return self.entry.kind

    @property
    def listed(self) -> Kind:
        """The list on which people find it."""
        return self.origin or self.kind

    @property
    def is_users(self) -> bool:
        """True if the user decided, by a pin or by an edit of the lists."""
        return self.pin is not None or self.entry.source == "policy"

    def denied(self, reason: str, taint: Taint, rule: Rule) -> NodeClass:
        """This class on the deny list, found on the list on which it was."""
        entry = dataclasses.replace(self.entry, kind=Kind.DENY, reason=reason, taint=taint)
        return NodeClass(entry, rule=rule, origin=self.listed)


@dataclasses.dataclass(frozen=True, slots=True)
class Classes:
    """The class of each node, and the half type for which it holds."""

    nodes: tuple[NodeClass, ...]
    half: HalfType

    def with_changed(self, changed: Mapping[int, NodeClass]) -> Classes:
        """These classes with others for some nodes, by index; the same if there are none."""
        if not changed:
            return self
        nodes = (changed.get(index, found) for index, found in enumerate(self.nodes))
        return Classes(tuple(nodes), self.half)

    def with_denied(
        self, reasons: Mapping[int, str], rule: Rule, taint: Taint = Taint.NONE
    ) -> Classes:
        """These classes with some nodes denied.

        What the user decided, what a rule denied before, and what is on no list stays. What the
        deny list names stays there, with its own taint and the rule.

        Args:
            reasons: why, in words, by index.
            rule: that denies.
            taint: of what was on no deny list.
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
    """Name-scope patterns (``fnmatch``) whose operations get a precision whatever the rules say."""

    full: tuple[str, ...] = ()
    half: tuple[str, ...] = ()


NodeNames = Callable[[Node], tuple[str, ...]]
"""The names of a node that a pattern may match."""


def path_alone(node: Node) -> tuple[str, ...]:
    """The path of a node, as its only name."""
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
        force_all: TensorFlow's level ``UNSAFE_FORCE_ALL``: every operation that can be half is on
            the allow list.

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
        found.append(_with_constants(node, cache[key], graph, half))
    return Classes(tuple(found), half)


def _class_by_name(
    node: Node, lists: OpLists, pinned: Callable[[Node], tuple[Paint, str] | None], force_all: bool
) -> NodeClass:
    """The class that follows from names alone."""
    entry = lists.get(node.op, node.list_key)
    if force_all and Trait.STRUCTURAL not in node.traits:
        entry = dataclasses.replace(
            entry, kind=Kind.ALLOW, reason="every operation forced (level UNSAFE_FORCE_ALL)"
        )
    pin = pinned(node)
    return NodeClass(entry) if pin is None else NodeClass(entry, pin[0], pin[1])


def _pin_finder(pins: Pins, names: NodeNames) -> Callable[[Node], tuple[Paint, str] | None]:
    """A function that tells to which precision a node is pinned, and by what."""
    compiled = [
        (re.compile(fnmatch.translate(pattern)), pattern, paint)
        for paint, patterns in ((Paint.FULL, pins.full), (Paint.HALF, pins.half))
        for pattern in patterns
    ]

    def pinned(node: Node) -> tuple[Paint, str] | None:
        if node.region == SWITCHED_OFF:
            return Paint.FULL, "an autocast or gradient inside that is switched off"
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


def _with_constants(node: Node, found: NodeClass, graph: Graph, half: HalfType) -> NodeClass:
    """Denies a node that calculates with a constant half cannot represent.

    Too large a constant is saturated for a clear operation (a mask of -1e9 stays a mask) and denies
    any other; what is computed from it may not fit either. An addition is denied from half of the
    range on, since its other operand counts too. A constant too small for full relative precision
    denies; one that would round to 0 taints everything, since it is there to keep something from
    being 0 (the guard of a division). By a constant that is too large for half, such as the count
    of a mean over a batch of images, a value is only made smaller; by one too small, larger.
    """
    if found.pin is not None or found.kind in (Kind.DENY, Kind.UNLISTED):
        return found
    largest = half.largest / 2 if Trait.ADDS in node.traits else half.largest
    moved_only = Trait.COMMUTES in node.traits and len(node.inputs) == 1
    for slot, magnitude in graph.constants(node):
        divisor = Trait.DIVIDES in node.traits and slot == 1
        if magnitude.largest > largest and found.kind is not Kind.CLEAR:
            taint = Taint.DOMINANT if divisor else Taint.EVERYWHERE
            return _denied(found, magnitude.largest, half, taint)
        if magnitude.smallest < half.smallest_normal and not moved_only:
            lost = divisor or magnitude.smallest <= half.smallest / 2
            taint = Taint.EVERYWHERE if lost else Taint.DOMINANT
            return _denied(found, magnitude.smallest, half, taint)
        if Trait.BOUNDS in node.traits and magnitude.low == magnitude.high:
            number = magnitude.low
            if _is_edge(number, half):
                held = f"{half.name} makes {half.rounded(number):.9g} of the bound {number:.9g}"
                return _denied(found, number, half, Taint.NONE, held)
    return found


def _is_edge(bound: float, half: HalfType) -> bool:
    """True if half makes another number of a bound, one that it may be there to keep out.

    ``clip(p, 1e-7, 1 - 1e-7)`` keeps a logarithm finite and an arc cosine on its branch,
    ``clip(x, 0, 7.999)`` an index in its table. A whole number, the small guard of a division, and
    a larger number that does not become a whole one are limits that need not be met exactly.
    """
    if not _SMALL_BOUND <= abs(bound) <= half.largest or bound.is_integer():
        return False
    held = half.rounded(bound)
    return held != bound and (abs(bound) < _LARGE_BOUND or held.is_integer())


_SMALL_BOUND, _LARGE_BOUND = 2.0**-4, 2.0
"""Between them lie the edges of functions: 1, and half of pi."""


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
