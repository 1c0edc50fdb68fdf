"""Operations of a record, one line each."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from typing import overload

from duotone._checks import check_string, check_whole
from duotone.errors import ArgumentError
from duotone.precision.record import OperationRecord, Record
from duotone.precision.rules import WORDS, Rule
from duotone.text.columns import Row, columns
from duotone.text.lines import Lines
from duotone.text.source_lines import short_source
from duotone.text.suggestions import did_you_mean

_STYLES = {"half": "green", "full": ""}
_SHORT = re.compile(r"^(float|int|uint|complex|bfloat)(\d+)$")


class Rows(Lines, Sequence[OperationRecord]):
    """A sequence of operations of a record in program order, printed one line each.

    Attributes:
        operations: the shown operations.
        hidden: how many more match.
        nothing: which rules there are, if no operation has the rule that was asked for; else empty.
    """

    def __init__(
        self,
        record: Record,
        where: str | None = None,
        rule: str | None = None,
        most: int | None = None,
    ) -> None:
        """Selects the operations, as :meth:`Explanation.rows`.

        Raises:
            ArgumentError: there is no such rule, or nothing matches ``where``.
            ArgumentTypeError: ``where`` or ``rule`` is no string, or ``most`` no whole number.
        """
        for name, words in (("where", where), ("rule", rule)):
            if words is not None:
                check_string("rows", name, words)
        if most is not None:
            check_whole("rows", "most", most, 0)
        found = list(record.operations)
        self.nothing = ""
        if rule is not None:
            names = ", ".join(sorted({o.rule for o in found}))
            if rule not in set(Rule):
                meant = did_you_mean(rule, map(str, Rule), f"there are {names}")
                raise ArgumentError(f"rule={rule!r} is not a rule; {meant}")
            found = [o for o in found if o.rule == rule]
            self.nothing = "" if found else f"no operation has the rule {rule}; there are {names}"
        if where is not None and not self.nothing:
            matches = re.compile(fnmatch.translate(where)).match
            found = [o for o in found if matches(o.path)]
            if not found:
                scopes = sorted({o.scope.split("/")[0] for o in record.operations if o.scope})
                begin = (
                    f"scopes begin with {', '.join(scopes)}" if scopes else "there are no scopes"
                )
                raise ArgumentError(
                    f"where={where!r} matches no operation"
                    + (f" of rule {rule!r}" if rule else "")
                    + "; names are scope/operation ('*' shows all), and "
                    + begin
                )
        shown = found
        if most is not None and len(found) > most:
            largest = sorted(found, key=lambda o: o.bytes_full, reverse=True)[:most]
            shown = sorted(largest, key=lambda o: o.index)
        self.operations = tuple(shown)
        self.hidden = len(found) - len(shown)

    def __len__(self) -> int:
        """Returns the number of shown operations."""
        return len(self.operations)

    @overload
    def __getitem__(self, index: int) -> OperationRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[OperationRecord]: ...
    def __getitem__(self, index: int | slice) -> OperationRecord | Sequence[OperationRecord]:
        """Returns a shown operation or a slice of them."""
        return self.operations[index]

    def _lines(self, width: int) -> Iterator[str]:
        """Yields a line for each operation, then the words of its rules and optimizations."""
        if self.nothing:
            yield self.nothing
            return
        scope = None
        names = ("operation", "result", "in", "source", "rule")
        yield _cells(width, names, is_head=True, style="bold")
        for o in self.operations:
            if o.scope != scope:
                scope = o.scope
                yield columns(width, (scope or "(no scope)", 0), style="dim")
            yield _cells(width, _of(o, _sizes(width)[3]), style=_STYLES.get(o.paint, ""))
        if self.hidden:
            yield f"… and {self.hidden} with fewer bytes"
        yield ""
        for rule in dict.fromkeys(o.rule for o in self.operations):
            if rule in WORDS:
                yield f"{rule}: {WORDS[rule]}"
        for name, why in dict(pair for o in self.operations for pair in o.optimizations).items():
            yield f"+{name}: {why}"


def result_of(o: OperationRecord) -> str:
    """Returns the type of an operation's first result: ``f32[8,1024]``."""
    dtype = _SHORT.sub(lambda found: found[1][0] + found[2], o.dtype)
    return f"{dtype}[{','.join(o.shape)}]"


def precision_of(o: OperationRecord) -> str:
    """Returns the precision: ``half``, ``full``, or ``full>half`` if the stored one differs."""
    return o.paint if o.paint == o.stored else f"{o.paint}>{o.stored}"


def because_of(o: OperationRecord) -> str:
    """Returns the rule of an operation, its optimizations, and the details of its reason."""
    detail = detail_of(o)
    return f"{rule_of(o)}: {detail}" if detail else rule_of(o)


def rule_of(o: OperationRecord) -> str:
    """Returns the rule of an operation and its optimizations: ``deny +recompute``."""
    return o.rule + "".join(f" +{name}" for name, _ in o.optimizations)


def detail_of(o: OperationRecord) -> str:
    """Returns the details of an operation's reason, without the words of its rule."""
    detail = o.reason.removeprefix(WORDS.get(o.rule, "")).removeprefix(": ")
    return "" if detail == o.reason else detail


def _of(o: OperationRecord, size: int) -> Sequence[str]:
    file = short_source(o.source).rsplit("/", 1)[-1]
    return o.operation, result_of(o), precision_of(o), short_source(file, size), because_of(o)


def _cells(width: int, cells: Sequence[str], is_head: bool = False, style: str = "") -> Row:
    sizes = _sizes(width)
    first = ("  " + cells[0], sizes[0])
    rest = zip(cells[1:], sizes[1:], strict=True)
    return columns(width, first, *rest, is_head=is_head, style=style)


def _sizes(width: int) -> tuple[int, ...]:
    return (16, 19, 9, 14, 0) if width < 110 else (20, 26, 9, 24, 0)
