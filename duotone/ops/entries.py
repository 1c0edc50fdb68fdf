"""Entries: the content of an operation's row.

A row holds the operation's list, the reason, its source, and the operation's traits. An operation
on no list is *unlisted*: it stays float32, passes no precision on, and reports show it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from duotone.ops.traits import UNDESCRIBED, Trait, Traits

TF = "TensorFlow 2.21"
NVIDIA = "NVIDIA DU-08617"
TORCH = "PyTorch AMP"
OWN = "duotone"
"""Sources of judgements; the docstrings of the tables name the documents."""


class Kind(enum.Enum):
    """Which list an operation is on. The names are TensorFlow's."""

    ALLOW = "allow"
    INFER = "infer"
    DENY = "deny"
    CLEAR = "clear"
    UNLISTED = "unlisted"


PASSIVE = (Kind.INFER, Kind.CLEAR)
"""The lists whose operations take the precision of their operands."""


class Taint(enum.IntEnum):
    """How far the taint of a denied operation reaches. A larger number reaches further."""

    NONE = 0
    DOMINANT = 1
    """Along operands at least as large as the result: a statistic that is broadcast into a big
    activation does not taint it."""
    ADDITIVE = 2
    """Also through additions and subtractions of any size: programs subtract values of the log
    domain, so their absolute error counts (``x - log(sum(exp(x)))``)."""
    EVERYWHERE = 3
    """Through everything: the value may exceed what half can hold."""


class Pointwise(enum.Enum):
    """The cost of recomputing each element of a result from the operands' elements."""

    NO = "no"
    """Results depend on more than one element, or move them."""
    CHEAP = "cheap"
    """Compilers recompute it wherever that saves a read."""
    EXPENSIVE = "expensive"
    """Transcendental: compilers for GPUs keep the result, even where recomputing it is faster. A
    TPU's compiler recomputes it without being asked."""
    VERY_EXPENSIVE = "very expensive"
    """Several long series, of which each element needs one: every compiler keeps the result."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """The row of one operation.

    Attributes:
        op: the operation's name.
        kind: the list.
        reason: one sentence, for people.
        source: the document that the judgement comes from.
        taint: for the deny list, how far its taint reaches.
        pointwise: whether each result element follows from the operands' elements, and its cost.
        only: half types for which the entry holds; empty for all.
        traits: the properties that rules may ask for.
        interval: the name of the function that computes the interval of its results
            (:mod:`duotone.precision.ranges.intervals`), if a function of that name exists.
        fixed: why it stays as it is whatever a list says; empty for most.
    """

    op: str
    kind: Kind
    reason: str
    source: str
    taint: Taint = Taint.DOMINANT
    pointwise: Pointwise = Pointwise.NO
    only: tuple[str, ...] = ()
    traits: Traits = frozenset()
    interval: str = ""
    fixed: str = ""


def rows(
    kind: Kind,
    ops: str,
    traits: str,
    reason: str,
    source: str,
    *,
    cost: Pointwise = Pointwise.NO,
    taint: Taint = Taint.DOMINANT,
    only: tuple[str, ...] = (),
    interval: str = "",
    fixed: str = "",
) -> list[Entry]:
    """Makes one row for each operation of a family.

    Args:
        kind: the list.
        ops: names of operations, separated by spaces; one written ``name+trait+trait`` has these
            traits in addition to those of the family.
        traits: names of traits, separated by spaces.
        reason: one sentence, for people.
        source: the document that the judgement comes from.
        cost: the cost of recomputing an element.
        taint: for the deny list, how far the taint reaches.
        only: half types for which the rows hold; empty for all.
        interval: names of the interval functions, one for all operations or one for each; the
            operations' own names if omitted.
        fixed: why the operations stay as they are whatever a list says.

    Returns:
        The rows, in the order of ``ops``.

    Example:
        >>> for row in rows(Kind.INFER, "add sub+subtracts", "adds", "safe", "tests"):
        ...     print(row.op, *sorted(row.traits))
        add adds
        sub adds subtracts
    """
    named = [text.split("+") for text in ops.split()]
    intervals = interval.split() or [op for op, *_ in named]
    if len(intervals) == 1:
        intervals *= len(named)
    found = []
    for (op, *own), function in zip(named, intervals, strict=True):
        having = frozenset(map(Trait, (*traits.split(), *own)))
        found.append(Entry(op, kind, reason, source, taint, cost, only, having, function, fixed))
    return found


def traits_by_name(entries: Iterable[Entry]) -> Mapping[str, Traits]:
    """Returns the traits of each operation that has a row, by name.

    Args:
        entries: the rows; rows of one operation for several half types have the same traits.
    """
    return MappingProxyType({entry.op: entry.traits for entry in entries})


def intervals_by_name(entries: Iterable[Entry]) -> Mapping[str, str]:
    """Returns the name of the interval function of each operation that has a row.

    Args:
        entries: the rows.
    """
    return MappingProxyType({entry.op: entry.interval for entry in entries})


def names_with(table: Mapping[str, Traits], *traits: Trait) -> frozenset[str]:
    """Returns the names of the operations that have at least one of the given traits.

    Example:
        >>> names_with({"neg": frozenset({Trait.NEGATES}), "add": frozenset()}, Trait.NEGATES)
        frozenset({'neg'})
    """
    return frozenset(name for name, found in table.items() if not found.isdisjoint(traits))


def traits_of(table: Mapping[str, Traits], name: str) -> Traits:
    """Returns the traits of an operation; :data:`~duotone.ops.traits.UNDESCRIBED` if it has no row.

    Example:
        >>> sorted(traits_of({"neg": frozenset({Trait.NEGATES})}, "neg"))
        [<Trait.NEGATES: 'negates'>]
        >>> traits_of({}, "mystery") == UNDESCRIBED
        True
    """
    return table.get(name, UNDESCRIBED)


_DESIGN = "duotone: one graph contains nested programs"


STRUCTURAL_ENTRIES = (
    *rows(
        Kind.CLEAR,
        "loop.carry",
        "structural carries",
        "a loop carry has one storage dtype",
        _DESIGN,
        interval="joins",
    ),
    *rows(
        Kind.CLEAR,
        "loop.slice",
        "structural commutes iterates",
        "a slice keeps its values",
        _DESIGN,
        interval="moves",
    ),
    *rows(
        Kind.CLEAR,
        "loop.stack",
        "structural commutes parts stacks",
        "stacking keeps values",
        _DESIGN,
        interval="moves",
    ),
    *rows(
        Kind.DENY,
        "loop.accumulator",
        "structural carries sums",
        "a sum over iterations is a large sum",
        _DESIGN,
        interval="joins",
    ),
    *rows(
        Kind.CLEAR,
        "branch.join",
        "structural commutes joins",
        "a result has one storage dtype",
        _DESIGN,
        interval="joins",
    ),
    *rows(
        Kind.CLEAR,
        "call.result",
        "structural commutes",
        "a result keeps its value",
        _DESIGN,
        interval="same",
    ),
    *rows(
        Kind.CLEAR,
        "shard.enter",
        "structural commutes shards",
        "a shard keeps its values",
        _DESIGN,
        interval="moves",
    ),
    *rows(
        Kind.CLEAR,
        "shard.exit",
        "structural commutes parts",
        "gathering keeps values",
        _DESIGN,
        interval="moves",
    ),
)
"""The nodes that every front end uses for nested programs, see :mod:`duotone.graph.graph`."""
