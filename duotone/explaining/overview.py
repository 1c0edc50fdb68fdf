"""Prints a record as an overview: totals, the rules that keep operations full, a tree of scopes.

Branches that differ only in a number (the layers of a transformer) share a line. The tree expands
the branches that move the most bytes, up to :data:`MOST_LINES` lines.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from duotone.errors import plural
from duotone.explaining.summary_line import ASKED
from duotone.graph.graph import HALF_TYPES, PRECISION
from duotone.precision.record import OperationRecord, Record
from duotone.precision.rules import WORDS
from duotone.text.columns import columns
from duotone.text.lines import Lines
from duotone.text.numbers import amount
from duotone.text.source_lines import short_function

MOST_LINES = 30
"""The most lines of the tree."""
_MOST_REASONS = 6
_NUMBER = re.compile(r"\d+")
_UNNAMED = "(no scope)"
HINT = ".rows(), .rows('*/attention/*'), .rows(rule='taint')"
"""The calls that show operations one by one in Python."""


@dataclasses.dataclass
class Branch:
    """A name scope and its contents.

    Attributes:
        name: its last part; merged branches have a common name: ``layer_[0-11]``.
        copies: how many branches were merged. The figures are sums over all of them.
        operations: all operations inside.
        branches: the scopes directly inside, merged if they are alike.
    """

    name: str
    copies: int
    operations: list[OperationRecord]
    branches: list[Branch]

    @property
    def bytes_full(self) -> int:
        """The bytes that its operations move in float32."""
        return sum(o.bytes_full for o in self.operations)


class Overview(Lines):
    """A record as a rich renderable."""

    def __init__(self, record: Record, lines: int = MOST_LINES, hint: str = HINT) -> None:
        self._record, self._most, self._hint = record, lines, hint

    def _lines(self, width: int) -> Iterator[str]:
        yield from _totals(self._record)
        yield ""
        yield from _reasons(self._record, width)
        yield from _tree(self._record, self._most, width)
        yield ""
        yield f"To list single operations: {self._hint}"


def _totals(record: Record) -> Iterator[str]:
    s = record.summary
    every = s.operations_half + s.operations_full
    yield (
        f"{s.half_dtype}: {s.operations_half:,} of {every:,} operations in half, "
        f"{s.allow_half} of {s.allow_total} on the allow list"
    )
    moved = s.bytes_half + s.bytes_full
    yield (
        f"FLOPs in half: {s.flops_half_share:.1%} of {amount(s.flops_half + s.flops_full)}; bytes "
        f"{amount(moved, 'B')}, {amount(s.bytes_original, 'B')} in float32"
    )
    yield f"{plural(s.casts_inserted, 'cast')} inserted"
    if s.optimizations:
        named = ", ".join(f"{count} {name}" for name, count in sorted(s.optimizations.items()))
        yield f"optimizations: {named}"
    yield from notes_of(record)


def notes_of(record: Record) -> Iterator[str]:
    """Yields lines about the operations that duotone left alone or had rewritten before."""
    s = record.summary
    asked = sum(o.list == "allow" and PRECISION in o.reason for o in record.operations)
    if asked and 2 * asked >= s.allow_total:
        yield f"{asked} of {s.allow_total} on the allow list are left alone: {ASKED}"
    written = [o for o in record.operations if o.dtype in HALF_TYPES and not o.rewritten]
    if written:
        allowed = sum(o.list == "allow" for o in written)
        yield (
            f"half as written: {len(written):,} operations, {allowed} of {s.allow_total} on the "
            "allow list"
        )
    if s.rewritten:
        of = plural(s.rewritten, "operation")
        yield f"{of} in functions that duotone had already rewritten: gradients, autocast functions"
    if s.backward:
        yield f"backward pass in jax.grad left to JAX: {s.backward}"
    if s.unlisted:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(s.unlisted.items()))
        yield f"left alone, on no list: {names}"


@dataclasses.dataclass(frozen=True, slots=True)
class FullReason:
    """A rule that keeps operations full.

    Attributes:
        rule: its name.
        words: its description; empty for a rule of another version.
        share: the share of its operations in the bytes that the program moves in float32.
        operations: the operations that it keeps full.
    """

    rule: str
    words: str
    share: float
    operations: tuple[OperationRecord, ...]


def reasons_of(record: Record) -> list[FullReason]:
    """Returns the rules that keep operations full, the one with the most bytes first.

    Example:
        >>> from duotone.precision.record import Record, summarize
        >>> reasons_of(Record((), (), summarize((), (), "float16")))
        []
    """
    by_rule: dict[str, list[OperationRecord]] = {}
    for o in record.operations:
        if o.paint == "full" and o.bytes_full:
            by_rule.setdefault(o.rule, []).append(o)
    every = _bytes(record.operations) or 1
    reasons = [
        FullReason(rule, WORDS.get(rule, ""), _bytes(found) / every, tuple(found))
        for rule, found in by_rule.items()
    ]
    return sorted(reasons, key=lambda reason: -reason.share)


def _reasons(record: Record, width: int) -> Iterator[str]:
    """Yields the table of the rules that keep operations full."""
    reasons = reasons_of(record)
    if not reasons:
        return
    shown, rest = reasons[:_MOST_REASONS], reasons[_MOST_REASONS:]
    name = max(len(rule) for rule in ("full by", *(r.rule for r in shown)))
    yield columns(
        width, ("full by", name), ("bytes", -5), ("because", 0), ("mostly", 22), is_head=True
    )
    for r in shown:
        share, mostly = f"{r.share:.0%}", counted(r.operations)
        yield columns(width, (r.rule, name), (share, -5), (r.words, 0), (mostly, 22))
    if rest:
        share = f"{sum(r.share for r in rest):.0%}"
        names = ", ".join(r.rule for r in rest)
        yield columns(width, ("others", name), (share, -5), (names, 0), ("", 22))
    yield ""


def _bytes(operations: Iterable[OperationRecord]) -> int:
    return sum(o.bytes_full for o in operations)


def counted(operations: Iterable[OperationRecord]) -> str:
    """Names the three most frequent operations with their counts: ``12 exp, 3 log``."""
    counts = Counter(o.operation for o in operations)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common(3))


def _tree(record: Record, lines: int, width: int) -> Iterator[str]:
    """Yields the tree of name scopes."""
    shown = [
        (depth, b, _main_rule(b)) for depth, b in _opened(branches_of(record.operations), lines)
    ]
    last = max(len(rule) for rule in ("full by", *(rule for _, _, rule in shown)))
    heads = ("scope", 0), ("half", -13), ("FLOPs", -6), ("bytes", -16), ("full by", last)
    yield columns(width, *heads, is_head=True)
    for depth, branch, rule in shown:
        operations = branch.operations
        half = [o for o in operations if o.paint == "half"]
        flops = sum(o.flops for o in operations)
        before = branch.bytes_full
        ratio = sum(o.bytes for o in operations) / before if before else 1.0
        yield columns(
            width,
            ("  " * depth + branch.name + (f" x{branch.copies}" if branch.copies > 1 else ""), 0),
            (f"{len(half):,} of {len(operations):,}", -13),
            (f"{sum(o.flops for o in half) / flops:.0%}" if flops else "", -6),
            (f"{ratio:.2f} x {amount(before, 'B')}", -16),
            (rule, last),
        )


def _main_rule(branch: Branch) -> str:
    """Returns the rule that keeps the most bytes full; empty if none does."""
    kept = Counter[str]()
    for o in branch.operations:
        if o.paint == "full":
            kept[o.rule] += o.bytes_full
    return next((rule for rule, weight in kept.most_common(1) if weight), "")


def branches_of(operations: Sequence[OperationRecord]) -> list[Branch]:
    """Builds the tree of name scopes and merges branches that are alike.

    An operation without a scope goes under the function that calls it.

    Example:
        >>> branches_of([])
        []
    """
    grown = _grown(list(zip(scope_paths(operations), operations, strict=True)))
    return sorted(grown, key=lambda branch: branch.name == _UNNAMED)


def scope_paths(operations: Sequence[OperationRecord]) -> list[tuple[str, ...]]:
    """Returns the path of each operation in the tree: its name scope or its Python function."""
    scoped = any(o.scope for o in operations)
    first = (_UNNAMED,) if scoped else ()
    functions = {source: short_function(source) for source in {o.source for o in operations}}
    return [
        tuple(o.scope.split("/")) if o.scope else (*first, functions[o.source]) for o in operations
    ]


def _grown(parts: Sequence[tuple[tuple[str, ...], OperationRecord]]) -> list[Branch]:
    named: dict[str, list[tuple[tuple[str, ...], OperationRecord]]] = {}
    for path, operation in parts:
        if path:
            named.setdefault(path[0], []).append((path[1:], operation))
    alike: dict[tuple[str, int, int], list[str]] = {}
    for name, inside in named.items():
        half = sum(o.paint == "half" for _, o in inside)
        key = _NUMBER.sub("#", name), len(inside), half
        alike.setdefault(key, []).append(name)
    branches = []
    for names in alike.values():
        inside = [part for name in names for part in named[name]]
        operations = [o for _, o in inside]
        branches.append(Branch(_joined(names), len(names), operations, _grown(inside)))
    return branches


def _joined(names: Sequence[str]) -> str:
    """Merges names that differ in numbers: ``layer_[0-11]``."""
    if len(names) == 1:
        return names[0]
    numbers = [_NUMBER.findall(name) for name in names]
    differ = [i for i, found in enumerate(zip(*numbers, strict=True)) if len(set(found)) > 1]
    if len(differ) != 1:
        return _NUMBER.sub("*", names[0])
    pieces = _NUMBER.split(names[0])
    kept = numbers[0][:]
    kept[differ[0]] = f"[{_spans(sorted(int(found[differ[0]]) for found in numbers))}]"
    return "".join(itertools.chain(*itertools.zip_longest(pieces, kept, fillvalue="")))


def _spans(numbers: Sequence[int]) -> str:
    """Formats sorted numbers as spans.

    Example:
        >>> _spans([0, 1, 2, 5])
        '0-2,5'
    """
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in spans)


def _opened(roots: list[Branch], lines: int) -> list[tuple[int, Branch]]:
    """Returns the branches to show, with depths; expands those with the most bytes first."""
    opened: set[int] = set()
    left = lines - len(roots)
    count = itertools.count()
    waiting = [(-branch.bytes_full, next(count), branch) for branch in roots]
    heapq.heapify(waiting)
    while waiting:
        _, _, branch = heapq.heappop(waiting)
        if not branch.branches or len(branch.branches) > left:
            continue
        left -= len(branch.branches)
        opened.add(id(branch))
        for inner in branch.branches:
            heapq.heappush(waiting, (-inner.bytes_full, next(count), inner))
    shown: list[tuple[int, Branch]] = []

    def show(branches: Iterable[Branch], depth: int) -> None:
        for branch in branches:
            shown.append((depth, branch))
            if id(branch) in opened:
                show(branch.branches, depth + 1)

    show(roots, 0)
    if len(shown) > lines:  # more roots than lines
        shown = shown[:lines]
    return shown
