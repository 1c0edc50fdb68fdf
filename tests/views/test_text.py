"""The table in the terminal."""

from __future__ import annotations

import dataclasses

import pytest
from rich.console import Console

from duotone.graph.record import Record, make_record
from duotone.views import text
from tests.graph.tiny import FLOAT16, Tiny


def _record() -> Record:
    t = Tiny()
    with t.scope("block/layer"):
        h = t.op("dot", t.input(6400), t.input(640), size=6400, flops=2.5e9)
    t.returns(t.op("mystery", t.op("exp", h, flops=64.0)), t.dot(h, t.input(64)))
    p = t.paint()
    return make_record(p.graph, p.classes, p.painting, p.plan, FLOAT16)


def test_a_row_says_everything_of_an_operation() -> None:
    rows = text.render(_record()).splitlines()
    assert rows[0].split() == [
        *"operation result paint rule scope source runs FLOPs bytes casts".split()
    ]
    row = next(r for r in rows if "block/layer" in r)
    for cell in ("dot", "float32[6400]", "half", "allow", "line 0", "2.5 G", "26.9 kB"):
        assert cell in row


@pytest.mark.parametrize("scope", ["block[relu]", "block[/b]", "a:warning:b"])
def test_names_are_shown_as_they_are(scope: str) -> None:
    """Catches: a scope or a symbolic shape that Rich reads as markup, or refuses."""
    t = Tiny()
    with t.scope(scope):
        t.returns(t.dot(t.input(64), t.input(64)))
    p = t.paint()
    record = make_record(p.graph, p.classes, p.painting, p.plan, FLOAT16)
    rows = tuple(dataclasses.replace(o, shape=("b",)) for o in record.operations)
    shown = text.render(dataclasses.replace(record, operations=rows))
    assert scope in shown
    assert "float32[b]" in shown


def test_an_operation_that_stores_otherwise_shows_both() -> None:
    assert "half>full" in text.render(_record())


def test_the_totals() -> None:
    record = _record()
    summary = text.summary(record)
    s = record.summary
    assert f"{s.operations_half} operations half, {s.operations_full} full" in summary
    assert f"{s.casts_inserted} casts" in summary
    assert f"{s.allow_half} of {s.allow_total} allow operations half" in summary
    assert "left alone, on no list: mystery (1)" in summary
    assert text.render(record).endswith(summary.splitlines()[-1])


def test_what_is_calculated_again_is_marked_and_counted() -> None:
    record = _record()
    assert "calculated again" not in text.summary(record)
    marked = [dataclasses.replace(o, recomputed=o.operation == "exp") for o in record.operations]
    record = dataclasses.replace(
        record,
        operations=tuple(marked),
        summary=dataclasses.replace(record.summary, recomputed=1),
    )
    rows = text.render(record).splitlines()
    assert [row.split()[0] for row in rows[:-3] if " again " in row] == ["exp"]
    assert 'calculated again for later readers ("again"): 1 operations' in text.summary(record)


def test_a_long_table_can_be_cut() -> None:
    record = _record()
    few = text.table(record, most=2)
    shown = Console(width=160)
    with shown.capture() as captured:
        shown.print(few)
    assert "… and 2 operations with fewer bytes" in captured.get()
    assert captured.get().index("dot") < captured.get().index("exp")


def test_plain_text_has_no_escapes_and_is_wide_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rendered = text.render(_record())
    assert "\x1b" not in rendered
    assert max(map(len, rendered.splitlines())) <= 100


def test_a_record_without_operations() -> None:
    record = dataclasses.replace(_record(), operations=())
    assert "operation" in text.render(record)


@pytest.mark.parametrize(
    ("number", "unit", "expected"),
    [
        (0, "B", "0 B"),
        (999, "B", "999 B"),
        (1000, "B", "1 kB"),
        (1_234_567, "", "1.23 M"),
        (5e9, "FLOPs", "5 GFLOPs"),
        (7.77e12, "B", "7.77 TB"),
        (12, "", "12"),
        (-2500, "B", "-2.5 kB"),
    ],
)
def test_amounts(number: float, unit: str, expected: str) -> None:
    assert text.amount(number, unit) == expected
