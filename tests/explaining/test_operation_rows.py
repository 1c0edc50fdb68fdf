"""Operations one by one."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

import duotone
from duotone.errors import ArgumentError
from duotone.explaining.operation_rows import Rows


def net(x: jax.Array) -> jax.Array:
    with jax.named_scope("net/attention"):
        y = jax.nn.softmax(x @ x)
    with jax.named_scope("net/head"):
        return y @ x + 1


@pytest.fixture(scope="module")
def seen() -> duotone.Explanation:
    return duotone.explain(net, jnp.ones((16, 16)), dtype="float16")


def shown(rows: Rows, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(rows)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_rows_are_also_data(seen: duotone.Explanation) -> None:
    """A loop over them gives the records that are shown."""
    denied = seen.rows(rule="deny", most=1)
    assert [o.rule for o in denied] == ["deny"]
    assert tuple(denied) == denied.operations


def test_a_line_says_operation_result_precision_place_and_rule(seen: duotone.Explanation) -> None:
    lines = shown(seen.rows())
    assert lines[0].split() == ["operation", "result", "in", "source", "rule"]
    assert lines[1] == "net/attention"
    assert lines[2].split()[:3] == ["dot_general", "f32[16,16]", "half"]
    assert "rows.py:2" in lines[2].split()[3]
    assert lines[2].split()[4] == "allow"
    exp = next(line for line in lines if line.strip().startswith("exp "))
    assert "full" in exp
    assert "deny" in exp


def test_each_rule_is_reported_in_words_below(seen: duotone.Explanation) -> None:
    lines = shown(seen.rows())
    assert "allow: on the allow list: takes half operands and accumulates in float32" in lines


def test_a_pattern_picks_scopes_and_operations(seen: duotone.Explanation) -> None:
    assert {o.scope for o in seen.rows("*/attention/*").operations} == {"net/attention"}
    assert [o.operation for o in seen.rows("*dot_general").operations] == ["dot_general"] * 2


def test_a_rule_picks(seen: duotone.Explanation) -> None:
    assert {o.rule for o in seen.rows(rule="deny").operations} == {"deny"}
    one = seen.rows("net/head/*", rule="wide").operations
    assert [o.operation for o in one] == ["dot_general"]


def test_the_largest_are_kept_in_program_order(seen: duotone.Explanation) -> None:
    rows = seen.rows(most=2)
    assert [o.operation for o in rows.operations] == ["dot_general", "dot_general"]
    assert rows.hidden == len(seen.operations) - 2
    assert f"… and {rows.hidden} with fewer bytes" in shown(rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "tained"}, "not a rule; did you mean 'taint'\\?$"),
        ({"rule": "zzz"}, "rule='zzz' is not a rule; there are allow, "),
        ({"where": "*/atention/*"}, "matches no operation; .* scopes begin with net"),
        ({"where": "*/atention/*"}, r"'\*' shows all"),
        ({"where": "net/head/*", "rule": "deny"}, "matches no operation of rule 'deny'"),
    ],
)
def test_what_is_not_there_is_reported(
    seen: duotone.Explanation, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        seen.rows(**arguments)


def test_a_rule_that_no_operation_has_is_told(seen: duotone.Explanation) -> None:
    rows = seen.rows(rule="solve", where="*/atention/*")
    assert not rows
    assert shown(rows)[0].startswith("no operation has the rule solve; there are allow")


def test_no_line_is_longer_than_the_console(seen: duotone.Explanation) -> None:
    operations = tuple(
        dataclasses.replace(o, scope="scope" * 40, operation="operation" * 9)
        for o in seen.operations
    )
    rows = Rows(dataclasses.replace(seen, operations=operations))
    lines = shown(rows)
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line.startswith("  operationo")]) == len(operations)


def test_an_optimization_is_marked_and_explained_below(seen: duotone.Explanation) -> None:
    told = (("residuals", "recomputed"),)
    operations = tuple(
        dataclasses.replace(o, optimizations=told if o.operation == "exp" else ())
        for o in seen.operations
    )
    lines = shown(Rows(dataclasses.replace(seen, operations=operations)), 100)
    (marked,) = (line for line in lines if "+residuals" in line and not line.startswith("+"))
    assert marked.split()[0] == "exp"
    assert lines[-1] == "+residuals: recomputed"


def test_str_is_what_is_printed(seen: duotone.Explanation) -> None:
    assert "dot_general" in str(seen.rows())
    assert "\x1b" not in str(seen.rows())
