"""Entries: what the row of an operation holds.

A row says on which list the operation is, why, who says so, and which traits it has. An operation
on no list is *unlisted*: it stays float32, passes nothing on and is reported.
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
"""Sources of judgements; the docstrings of the tables say what they are."""


class Kind(enum.Enum):
    """Which list an operation is on. The names are TensorFlow's."""

    ALLOW = "allow"
    INFER = "infer"
    DENY = "deny"
    CLEAR = "clear"
    UNLISTED = "unlisted"


PASSIVE = (Kind.INFER, Kind.CLEAR)
"""The lists whose operations take the precision of what they read."""


class Taint(enum.IntEnum):
    """How far the taint of a denied operation reaches. A larger number reaches further."""

    NONE = 0
    DOMINANT = 1
    """Along operands at least as large as the result: a statistic broadcast into a big
    activation does not drag it along."""
    ADDITIVE = 2
    """Also through additions and subtractions of any size: a value in the log domain is used by
    difference, where its absolute error counts (``x - log(sum(exp(x)))``)."""
    EVERYWHERE = 3
    """Through everything: the value may exceed what half can hold."""


class Pointwise(enum.Enum):
    """The cost of computing each element of a result again, from the operands' elements."""

    NO = "no"
    """Results depend on more than one element, or move them."""
    CHEAP = "cheap"
    """Compilers recompute it wherever that saves a read."""
    EXPENSIVE = "expensive"
    """Transcendental: compilers of GPUs rather keep the result, though reading it takes longer. One
    for a TPU recomputes it unasked."""
    VERY_EXPENSIVE = "very expensive"
    """Several long series, of which each element takes one: every compiler rather keeps it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """The row of one operation.

    Attributes:
        op: its name.
        kind: the list.
        reason: one sentence, for people.
        source: where the judgement comes from.
        taint: for deny, how far it reaches.
        pointwise: whether a result follows element by element from the operands, and at what cost.
        only: half types for which the entry holds; empty for all.
        traits: what rules may ask of it.
        interval: the name of the function that gives the interval of its results
            (:mod:`duotone.precision.ranges.intervals`), if there is a function of that name.
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
    """One row for each of a family of operations.

    Args:
        kind: the list.
        ops: names of operations, separated by spaces; one written ``name+trait+trait`` has these
            traits besides those of the family.
        traits: names of traits, separated by spaces.
        reason: one sentence, for people.
        source: where the judgement comes from.
        cost: of recomputing an element.
        taint: for deny, how far it reaches.
        only: half types for which the rows hold; empty for all.
        interval: names of the interval functions, one for all operations or one for each; the
            operations' own if omitted.
        fixed: why they stay as they are whatever a list says.

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
    """The traits of each operation that has a row, by name.

    Args:
        entries: the rows. Those of one operation for several half types have the same traits.
    """
    return MappingProxyType({entry.op: entry.traits for entry in entries})


def intervals_by_name(entries: Iterable[Entry]) -> Mapping[str, str]:
    """The name of the interval function of each operation that has a row.

    Args:
        entries: the rows.
    """
    return MappingProxyType({entry.op: entry.interval for entry in entries})


def names_with(table: Mapping[str, Traits], *traits: Trait) -> frozenset[str]:
    """The names of the operations that have one of some traits.

    Example:
        >>> names_with({"neg": frozenset({Trait.NEGATES}), "add": frozenset()}, Trait.NEGATES)
        frozenset({'neg'})
    """
    return frozenset(name for name, found in table.items() if not found.isdisjoint(traits))


def traits_of(table: Mapping[str, Traits], name: str) -> Traits:
    """The traits of an operation; :data:`~duotone.ops.traits.UNDESCRIBED` if it has no row.

    Example:
        >>> sorted(traits_of({"neg": frozenset({Trait.NEGATES})}, "neg"))
        [<Trait.NEGATES: 'negates'>]
        >>> traits_of({}, "mystery") == UNDESCRIBED
        True
    """
    return table.get(name, UNDESCRIBED)


_DESIGN = "duotone: nested programs are part of one graph"


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
