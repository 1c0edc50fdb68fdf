"""The operations that two records of one program paint differently, and why."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from duotone.errors import ArgumentError, ArgumentTypeError, shown
from duotone.explaining.alignment import aligned
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
        """Returns the difference as JSON.

        Args:
            indent: spaces of each level, as for ``json.dumps``; ``None`` for one line.
        """
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
        ArgumentTypeError: ``there`` is no record, or ``names`` is not a pair of strings.
        ArgumentError: the records are of two programs.
    """
    if not isinstance(there, Record):
        raise ArgumentTypeError(
            f"difference: other is {shown(there)}; pass what duotone.explain returned for the same "
            "function"
        )
    if not (
        isinstance(names, tuple | list)
        and len(names) == 2
        and all(isinstance(name, str) for name in names)
    ):
        raise ArgumentTypeError(
            f"difference: names is {shown(names)}; pass a name for each record: ('h200', 'cpu')"
        )
    mine, theirs = ([_operation(o) for o in record.operations] for record in (here, there))
    # Counting is faster than aligning two programs that have little in common.
    _check_alike((Counter(mine) & Counter(theirs)).total(), len(mine), len(theirs))
    same = aligned(mine, theirs)
    _check_alike(len(same), len(mine), len(theirs))
    pairs = [(here.operations[i], there.operations[j]) for i, j in same]
    only = (
        _others(here.operations, {i for i, _ in same}),
        _others(there.operations, {j for _, j in same}),
    )
    changed = (OperationDifference(*pair) for pair in pairs if _choice(pair[0]) != _choice(pair[1]))
    dtypes = (here.summary.half_dtype, there.summary.half_dtype)
    return RecordDifference(names, dtypes, tuple(changed), len(pairs), only)


_ALIKE = 0.75
"""The share of the operations of one program that another must have to be the same for a device."""


def _check_alike(both: int, mine: int, theirs: int) -> None:
    if both < _ALIKE * max(mine, theirs):
        raise ArgumentError(
            f"difference: the records are of two programs, with {mine} and {theirs} operations of "
            f"which {both} are in both. Explain the same function with arguments of the same "
            "shapes and dtypes."
        )


def _others(
    operations: Sequence[OperationRecord], positions: Collection[int]
) -> tuple[OperationRecord, ...]:
    """Returns the operations at all other positions."""
    return tuple(o for index, o in enumerate(operations) if index not in positions)


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
