"""Converts a record to the JSON that the page draws: columns of numbers, and each text once."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any

from duotone.explaining.operation_rows import result_of
from duotone.explaining.overview import counted, notes_of, reasons_of, scope_paths
from duotone.precision.record import OperationRecord, Record
from duotone.precision.rules import WORDS, Rule
from duotone.text.source_lines import short_source

HALF, STORED, FULL, OTHER = range(4)
"""The kinds of operations: computes in half; full, stored in half; full; not painted."""


_Numbers = defaultdict[Any, int]
"""A number for each different text or path, in the order in which they are asked for."""


def program_data(record: Record) -> dict[str, Any]:
    """Returns the part of the page's data that depends on the record alone."""
    texts = _Numbers(itertools.count().__next__)
    paths = _Numbers(itertools.count().__next__)
    rows = [
        _row(o, path, texts, paths)
        for o, path in zip(record.operations, scope_paths(record.operations), strict=True)
    ]
    return {
        "summary": _summary(record),
        "notes": list(notes_of(record)),
        "reasons": [
            {"rule": r.rule, "words": r.words, "share": r.share, "mostly": counted(r.operations)}
            for r in reasons_of(record)
        ],
        "rules": [
            {"rule": rule, "words": WORDS.get(rule, ""), "count": count}
            for rule, count in Counter(o.rule for o in record.operations).most_common()
        ],
        "optimizations": _optimizations(record),
        "paths": [[texts[part] for part in path] for path in paths],
        "operations": {
            name: [row[name] for row in rows] for name in (rows[0] if rows else {"index": 0})
        },
        "texts": list(texts),
    }


def _summary(record: Record) -> dict[str, Any]:
    s = record.summary
    return {
        "half": s.half_dtype,
        "operationsHalf": s.operations_half,
        "operations": s.operations_half + s.operations_full,
        "allowHalf": s.allow_half,
        "allow": s.allow_total,
        "flopsHalf": s.flops_half,
        "flops": s.flops_half + s.flops_full,
        "bytesHalf": s.bytes_half,
        "bytes": s.bytes_half + s.bytes_full,
        "bytesFull": s.bytes_original,
        "casts": s.casts_inserted,
    }


def _row(
    o: OperationRecord, path: tuple[str, ...], texts: _Numbers, paths: _Numbers
) -> dict[str, Any]:
    detail = o.reason.removeprefix(WORDS.get(o.rule, "")).removeprefix(": ")
    return {
        "index": o.index,
        "name": texts[o.operation],
        "kind": kind_of(o),
        "result": texts[result_of(o)],
        "rule": texts[o.rule],
        "detail": texts[detail],
        "source": texts[short_source(o.source)],
        "path": paths[path],
        "operands": texts[", ".join(o.operands)],
        "optimizations": texts[", ".join(name for name, _ in o.optimizations)],
        "runs": o.runs,
        "casts": o.casts,
        "flops": _whole(o.flops),
        "bytes": o.bytes,
        "bytesFull": o.bytes_full,
        "reads": list(o.reads),
    }


def kind_of(o: OperationRecord) -> int:
    """Returns the kind of an operation: :data:`HALF` or one of its neighbors."""
    if o.paint == "half":
        return HALF
    if o.rule == Rule.INTEGER:
        return OTHER
    return STORED if o.stored == "half" else FULL


def _whole(number: float) -> int | float:
    """Drops ``.0`` from a number to save two characters for each operation."""
    return int(number) if number == int(number) else number


def _optimizations(record: Record) -> list[dict[str, Any]]:
    """Returns the optimizations in effect, each with its most frequent description."""
    words: dict[str, Counter[str]] = {}
    for o in record.operations:
        for name, why in o.optimizations:
            words.setdefault(name, Counter())[why] += 1
    return [
        {"name": name, "count": sum(found.values()), "words": found.most_common(1)[0][0]}
        for name, found in sorted(words.items(), key=lambda entry: -sum(entry[1].values()))
    ]
