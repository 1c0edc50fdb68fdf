"""The four lists: what an operation is to a painter, why, and who says so.

The lists of a framework's operations are data of its front end (for JAX:
``duotone/jaxpr/reading/lists.py``); this file says what an entry means and how a user's edits
change them.

An operation on no list is *unlisted*: it stays float32, passes nothing on and is reported.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping

from duotone.graph.graph import STRUCTURAL


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
    """The cost of calculating each element of a result again, from the operands' elements."""

    NO = "no"
    """Results depend on more than one element, or move them."""
    CHEAP = "cheap"
    """Compilers calculate it again wherever that saves a read."""
    DEAR = "dear"
    """Transcendental: compilers of GPUs rather keep the result, though reading it takes longer. One
    for a TPU calculates it again unasked."""
    DEAREST = "dearest"
    """Several long series, of which each element takes one: every compiler rather keeps it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One operation on one list.

    Attributes:
        op: its name.
        kind: the list.
        reason: one sentence, for people.
        source: where the judgement comes from.
        taint: for deny, how far it reaches.
        commutes: a cast before gives bit for bit the same as a cast after: data movement and
            monotone selection. Only then may a cast move through the operation.
        parts: operands are parts of the result (``concatenate``): the largest one dominates even
            though it is smaller than the result.
        additive: an addition or subtraction, along which an ``ADDITIVE`` taint spreads.
        repeats: uses an element many times, so that its transpose is a sum; a cast moved before it
            would make that sum one in half.
        selects: compares the elements of its operand; what reads the operand in full must see the
            same rounded numbers.
        wide: can hand on its float32 accumulator at no cost.
        pointwise: whether a result follows element by element from the operands.
        only: half types for which the entry holds; empty for all.
        compares: asks whether two calculated values are equal (``x == max(x)``): must see both as
            they were calculated first, since a second calculation may differ by a bit.
        adds_up: its results are sums of its operand's elements, in which roundings even out.
        divides: divides by its second operand: a large one makes the result small, a small one
            makes it large.
        bounds: compares with a constant or picks it: one just inside of a number that is to be kept
            out must not become that number.
        solves: factorises or solves: magnifies errors of its operands, and gives large terms that
            cancel in what reads its result; see :mod:`duotone.graph.classify.solves`.
    """

    op: str
    kind: Kind
    reason: str
    source: str
    taint: Taint = Taint.DOMINANT
    commutes: bool = False
    parts: bool = False
    additive: bool = False
    repeats: bool = False
    selects: bool = False
    wide: bool = False
    pointwise: Pointwise = Pointwise.NO
    only: tuple[str, ...] = ()
    compares: bool = False
    adds_up: bool = False
    divides: bool = False
    bounds: bool = False
    solves: bool = False


_DESIGN = "duotone: nested programs are part of one graph"
STRUCTURAL_ENTRIES = (
    Entry("loop.carry", Kind.CLEAR, "a loop carry has one storage dtype", _DESIGN),
    Entry("loop.slice", Kind.CLEAR, "a slice keeps its values", _DESIGN, commutes=True),
    Entry("loop.stack", Kind.CLEAR, "stacking keeps values", _DESIGN, commutes=True, parts=True),
    Entry("loop.accumulator", Kind.DENY, "a sum over iterations is a large sum", _DESIGN),
    Entry("branch.join", Kind.CLEAR, "a result has one storage dtype", _DESIGN, commutes=True),
    Entry("call.result", Kind.CLEAR, "a result keeps its value", _DESIGN, commutes=True),
    Entry("shard.enter", Kind.CLEAR, "a shard keeps its values", _DESIGN, commutes=True),
    Entry("shard.exit", Kind.CLEAR, "gathering keeps values", _DESIGN, commutes=True, parts=True),
)
assert {entry.op for entry in STRUCTURAL_ENTRIES} == STRUCTURAL

_NO_ENTRY = Entry("", Kind.UNLISTED, "on no list", "", taint=Taint.NONE)


@dataclasses.dataclass(frozen=True)
class OpLists:
    """The lists for one half type.

    Attributes:
        entries: by operation name.
        moved: names that a user's edit moved; the edit holds for all that goes by this name.
    """

    entries: Mapping[str, Entry]
    moved: frozenset[str] = frozenset()

    @classmethod
    def for_half(cls, entries: Iterable[Entry], half: str) -> OpLists:
        """The entries that hold for the half type named ``half``, structural ones included."""
        chosen = [entry for entry in entries if not entry.only or half in entry.only]
        return cls({entry.op: entry for entry in (*STRUCTURAL_ENTRIES, *chosen)})

    def get(self, op: str, listed_as: str) -> Entry:
        """The entry of an operation, or one that says it is on no list.

        Args:
            op: its name, which decides if the user edited it.
            listed_as: the name under which it stands otherwise.
        """
        return self.entries.get(op if op in self.moved else listed_as, _NO_ENTRY)

    def edited(
        self, added: Mapping[Kind, Collection[str]], removed: Mapping[Kind, Collection[str]]
    ) -> OpLists:
        """These lists after a user's edits.

        Args:
            added: operations to put on a list; they leave the list they were on.
            removed: operations to take off a list; one that is not on it is left alone.

        Returns:
            New lists.
        """
        entries = dict(self.entries)
        moved = set(self.moved)
        for kind, ops in removed.items():
            for op in ops:
                if op in entries and entries[op].kind is kind:
                    del entries[op]
                    moved.add(op)
        for kind, ops in added.items():
            for op in ops:
                old = entries.get(op, _NO_ENTRY)
                moved.add(op)
                entries[op] = dataclasses.replace(
                    old,
                    op=op,
                    kind=kind,
                    reason=f"put on the {kind.value} list by the policy",
                    source="policy",
                    taint=max(old.taint, Taint.DOMINANT),
                )
        return OpLists(entries, frozenset(moved))

    def leveled(self, level: str | None) -> OpLists:
        """These lists at one of TensorFlow's optimization levels.

        Args:
            level: ``None``, ``"TENSOR_CORES_ONLY"`` (infer, deny and clear lists are empty) or
                ``"TREAT_INFER_AS_DENY"``. ``"UNSAFE_FORCE_ALL"`` concerns operations on no list as
                well and is :func:`duotone.graph.classify.classes.classify`'s.
        """
        if level == "TENSOR_CORES_ONLY":
            return OpLists({op: e for op, e in self.entries.items() if e.kind is Kind.ALLOW})
        if level == "TREAT_INFER_AS_DENY":
            reason = "infer treated as deny (level TREAT_INFER_AS_DENY)"
            return OpLists(
                {
                    op: dataclasses.replace(e, kind=Kind.DENY, reason=reason)
                    if e.kind is Kind.INFER
                    else e
                    for op, e in self.entries.items()
                }
            )
        return self
