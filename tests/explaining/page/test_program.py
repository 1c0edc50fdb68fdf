"""A record as the data of the page: the same numbers, each operation in its place."""

from __future__ import annotations

import dataclasses
from typing import Any

from duotone.explaining.page.program import FULL, HALF, OTHER, STORED, kind_of, program_data
from duotone.precision.record import Record
from tests.explaining.page.pages import record


def rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    columns = data["operations"]
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def test_every_operation_has_its_numbers_and_texts() -> None:
    seen = record("block/a", "block/b")
    data = program_data(seen)
    texts = data["texts"]
    assert len(texts) == len(set(texts))
    for o, row in zip(seen.operations, rows(data), strict=True):
        assert texts[row["name"]] == o.operation
        assert texts[row["rule"]] == o.rule
        assert (row["index"], row["flops"], row["bytes"], row["bytesFull"]) == (
            o.index,
            o.flops,
            o.bytes,
            o.bytes_full,
        )
        assert row["reads"] == list(o.reads)
        if o.scope:
            assert "/".join(texts[part] for part in data["paths"][row["path"]]) == o.scope


def test_totals_are_those_of_the_summary() -> None:
    seen = record("block")
    data, s = program_data(seen), seen.summary
    assert data["summary"]["operations"] == 3
    assert data["summary"]["flopsHalf"] / data["summary"]["flops"] == s.flops_half_share
    assert data["summary"]["bytesFull"] == s.bytes_original
    assert data["notes"] == ["left alone, on no list: mystery (1)"]
    assert data["reasons"][0]["rule"] in {o.rule for o in seen.operations if o.paint == "full"}
    assert sum(rule["count"] for rule in data["rules"]) == 3


def test_kinds_tell_what_is_computed_from_what_is_stored() -> None:
    o = record("block").operations[0]
    kinds = {
        ("half", "half", "allow"): HALF,
        ("half", "full", "wide"): HALF,
        ("full", "half", "mixed"): STORED,
        ("full", "full", "deny"): FULL,
        ("full", "full", "integer"): OTHER,
    }
    for (paint, stored, rule), kind in kinds.items():
        assert kind_of(dataclasses.replace(o, paint=paint, stored=stored, rule=rule)) == kind


def test_optimizations_are_counted_with_what_they_mostly_do() -> None:
    seen = record("block")
    told = [("picks", "first"), ("picks", "second"), ("picks", "first")]
    operations = tuple(
        dataclasses.replace(o, optimizations=(one,))
        for o, one in zip(seen.operations, told, strict=True)
    )
    data = program_data(Record(operations, (), seen.summary))
    assert data["optimizations"] == [{"name": "picks", "count": 3, "words": "first"}]
