"""The operations that two records of one program paint differently, and why."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from duotone.errors import ArgumentError
from duotone.explaining.operation_rows import detail_of, precision_of, result_of, rule_of
from duotone.precision.record import OperationRecord, Record
from duotone.text.columns import columns
from duotone.text.lines import Lines, Viewed
from duotone.text.source_lines import short_source

_Pair = tuple[OperationRecord, OperationRecord]


@dataclasses.dataclass(frozen=True, slots=True)
class OperationDifference:
    """One operation that two records paint differently.

    Attributes:
        here: the operation in the first record.
        there: the same operation in the second.
    """

    here: OperationRecord
    there: OperationRecord


@dataclasses.dataclass(frozen=True, repr=False)
class RecordDifference(Viewed):
    """The difference between two records of one program; ``print`` shows it.

    Attributes:
        names: names of the two records, such as devices or dtypes.
        half_dtypes: half types of the two records.
        operations: operations whose precision, rule or optimizations differ, in program order.
        total: how many operations both programs have.
        only: for each record, the operations that the other program does not have. Programs that
            hold rewritten functions have such operations, since a device may recompute values.
    """

    names: tuple[str, str]
    half_dtypes: tuple[str, str]
    operations: tuple[OperationDifference, ...]
    total: int
    only: tuple[tuple[OperationRecord, ...], tuple[OperationRecord, ...]] = ((), ())

    def to_json(self, *, indent: int | None = None) -> str:
        """Returns the difference as JSON."""
        data: dict[str, Any] = dataclasses.asdict(self)
        return json.dumps(data, indent=indent)

    def __rich__(self) -> _View:
        return _View(self)


def difference(here: Record, there: Record, names: tuple[str, str]) -> RecordDifference:
    """Compares two records of one program, operation by operation.

    Args:
        here: the first record.
        there: the second record.
        names: names of the two records, for the text.

    Returns:
        The operations whose precision, rule or optimizations differ.

    Raises:
        ArgumentError: the records are of two programs.
    """
    pairs, only = _aligned(here.operations, there.operations)
    most = max(len(here.operations), len(there.operations))
    if len(pairs) < _ALIKE * most:
        counts = f"{len(here.operations)} and {len(there.operations)} operations"
        raise ArgumentError(
            f"difference: the records are of two programs, with {counts} of which {len(pairs)} are "
            "in both. Explain the same function with arguments of the same shapes and dtypes."
        )
    changed = (OperationDifference(*pair) for pair in pairs if _choice(pair[0]) != _choice(pair[1]))
    dtypes = (here.summary.half_dtype, there.summary.half_dtype)
    return RecordDifference(names, dtypes, tuple(changed), len(pairs), only)


_ALIKE = 0.75
"""The share of the operations of one program that another must have to be the same for a device."""


def _aligned(
    here: Sequence[OperationRecord], there: Sequence[OperationRecord]
) -> tuple[list[_Pair], tuple[tuple[OperationRecord, ...], tuple[OperationRecord, ...]]]:
    """Returns the operations of both programs in pairs, and those of one only."""
    mine, theirs = [_operation(o) for o in here], [_operation(o) for o in there]
    if mine == theirs:
        return list(zip(here, there, strict=True)), ((), ())
    matcher = difflib.SequenceMatcher(None, mine, theirs, autojunk=False)
    pairs, left, right = list[_Pair](), list[OperationRecord](), list[OperationRecord]()
    for tag, start, stop, other_start, other_stop in matcher.get_opcodes():
        if tag == "equal":
            pairs += zip(here[start:stop], there[other_start:other_stop], strict=True)
        else:
            left += here[start:stop]
            right += there[other_start:other_stop]
    return pairs, (tuple(left), tuple(right))


def _operation(o: OperationRecord) -> tuple[Any, ...]:
    return o.operation, o.scope, o.shape, o.dtype


def _choice(o: OperationRecord) -> tuple[Any, ...]:
    return o.paint, o.stored, o.rule, tuple(name for name, _ in o.optimizations)


class _View(Lines):
    """Prints one line for each operation; groups operations with the same reasons."""

    def __init__(self, seen: RecordDifference) -> None:
        self.seen = seen

    def _lines(self, width: int) -> Iterator[str]:
        seen, (here, there) = self.seen, self.seen.names
        dtypes = "" if len(set(seen.half_dtypes)) == 1 else f" ({' and '.join(seen.half_dtypes)})"
        count = len(seen.operations)
        if not count and not any(seen.only):
            yield f"All {seen.total:,} operations are the same on {here} and {there}{dtypes}."
            return
        differ = "1 operation differs" if count == 1 else f"{count:,} operations differ"
        yield f"{differ} of {seen.total:,} between {here} and {there}{dtypes}"
        for group in _groups(seen.operations):
            yield ""
            details = [_shared([detail_of(o) for o in side]) for side in zip(*group, strict=True)]
            for name, o, detail in zip(seen.names, group[0], details, strict=True):
                yield f"{name}: {_choice_in_words(o)}{f': {detail}' if detail else ''}"
            for pair in group:
                own = [detail_of(o) for o, d in zip(pair, details, strict=True) if d is None]
                yield _row(width, pair[0], "; ".join(filter(None, own)))
        for name, alone in zip(seen.names, seen.only, strict=True):
            if alone:
                yield ""
                yield f"only in the rewritten program of {name}: {len(alone):,}"
                yield from (_row(width, o, _choice_in_words(o)) for o in alone)


def _groups(operations: Sequence[OperationDifference]) -> Iterable[list[_Pair]]:
    """Groups operations whose precisions, rules and optimizations are the same on both sides."""
    groups: dict[tuple[str, str], list[_Pair]] = {}
    for o in operations:
        key = _choice_in_words(o.here), _choice_in_words(o.there)
        groups.setdefault(key, []).append((o.here, o.there))
    return groups.values()


def _shared(details: Sequence[str]) -> str | None:
    """Returns the details that all operations of a group share; ``None`` if they differ."""
    return details[0] if len(set(details)) == 1 else None


def _row(width: int, o: OperationRecord, details: str) -> str:
    file = short_source(o.source).rsplit("/", 1)[-1]
    last = (details, max(width // 2 - 10, 24)) if details else (short_source(file, 24), 24)
    return columns(width, (f"  {o.path}", 0), (result_of(o), 20), last)


def _choice_in_words(o: OperationRecord) -> str:
    return f"{precision_of(o)}, {rule_of(o)}"
