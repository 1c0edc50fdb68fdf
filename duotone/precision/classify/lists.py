"""The lists for one program: a table's rows for the half type, with the user's edits.

The rows are data of :mod:`duotone.ops`. An operation on no list is *unlisted*: it stays float32,
passes no precision on, and reports show it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from duotone.ops.entries import STRUCTURAL_ENTRIES, Entry, Kind, Taint

_NO_ENTRY = Entry("", Kind.UNLISTED, "on no list", "", taint=Taint.NONE)


@dataclasses.dataclass(frozen=True)
class OpLists:
    """The lists for one half type.

    Attributes:
        entries: the entries by operation name.
        moved: names that a user's edit moved; the edit applies to all operations of this name.
    """

    entries: Mapping[str, Entry]
    moved: frozenset[str] = frozenset()

    @classmethod
    def for_half(cls, entries: Iterable[Entry], half: str) -> OpLists:
        """Returns the entries for the half type named ``half``, structural ones included."""
        chosen = [entry for entry in entries if not entry.only or half in entry.only]
        return cls({entry.op: entry for entry in (*STRUCTURAL_ENTRIES, *chosen)})

    def get(self, op: str, list_key: str) -> Entry:
        """Returns the entry of an operation, or an unlisted one.

        Args:
            op: the operation's name, which decides if the user edited it.
            list_key: the name of its row otherwise.
        """
        return self.entries.get(op if op in self.moved else list_key, _NO_ENTRY)

    def ops(self, kind: Kind) -> frozenset[str]:
        """Returns the names of the operations on one list."""
        return frozenset(op for op, entry in self.entries.items() if entry.kind is kind)

    def edited(
        self, added: Mapping[Kind, Collection[str]], removed: Mapping[Kind, Collection[str]]
    ) -> OpLists:
        """Returns these lists after a user's edits.

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
        """Returns these lists at one of TensorFlow's optimization levels.

        Args:
            level: ``None``, ``"TENSOR_CORES_ONLY"`` (infer, deny and clear lists are empty) or
                ``"TREAT_INFER_AS_DENY"``. ``"UNSAFE_FORCE_ALL"`` also concerns unlisted operations;
                :func:`duotone.precision.classify.classes.classify` handles it.
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
