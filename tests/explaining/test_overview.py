"""The overview of an explanation: totals, reasons, the tree by name scope."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

import duotone
from duotone.explaining.overview import MOST_LINES, Overview, _opened, branches_of
from duotone.precision.record import OperationRecord, Record, make_record
from duotone.text.columns import columns, plain
from duotone.text.lines import MOST_LINES as MOST_REPR_LINES
from tests.graph.tiny import FLOAT16, Tiny


def record(*scopes: str) -> Record:
    t = Tiny()
    h = t.input(6400)
    for scope in scopes:
        with t.scope(scope):
            h = t.op("exp", t.op("dot", h, t.input(640), size=6400, flops=2.5e9), flops=64.0)
    t.returns(t.op("mystery", h))
    p = t.paint()
    return make_record(p.graph, p.classes, p.painting, p.plan, FLOAT16)


def shown(seen: Record, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(Overview(seen))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def line_of(lines: list[str], start: str) -> str:
    (found,) = (line for line in lines if line.strip().startswith(start))
    return found


def test_totals_come_first() -> None:
    seen = record("block")
    lines = shown(seen)
    s = seen.summary
    assert (
        lines[0]
        == f"float16: {s.operations_half} of 3 operations in half, 1 of 1 on the allow list"
    )
    assert lines[1].startswith("FLOPs in half: 100.0% of 2.5 G; bytes ")
    assert lines[2] == f"{s.casts_inserted} casts inserted"
    assert lines[3] == "left alone, on no list: mystery (1)"


def test_reasons_have_words_and_shares_and_what_they_concern() -> None:
    lines = shown(record("block"), 120)
    row = line_of(lines, "deny ")
    assert "on the deny list: computes in float32" in row
    assert "1 exp" in row
    assert "%" in row


def test_names_of_rules_are_whole() -> None:
    """A user types them after ``--rule``."""
    seen = record("block")
    operations = tuple(dataclasses.replace(o, rule="no_half_operand") for o in seen.operations)
    lines = shown(dataclasses.replace(seen, operations=operations), 60)
    rows = [line for line in lines if "no_half_operand" in line]
    assert len(rows) == 4  # a reason and three scopes


def test_optimizations_are_counted() -> None:
    seen = record("block")
    assert not any("in another form" in line for line in shown(seen))
    counted = {"residuals": 3, "held": 1}
    other = dataclasses.replace(
        seen, summary=dataclasses.replace(seen.summary, optimizations=counted)
    )
    assert shown(other)[3] == "optimizations: 1 held, 3 residuals"
    assert "1 held, 3 residuals" in " ".join(shown(other, 60)[3:5])  # on two lines, not cut off


def test_alike_scopes_are_one_line_with_their_numbers() -> None:
    lines = shown(record("net/layer_0", "net/layer_1", "net/layer_2", "net/layer_5", "net/head"))
    row = line_of(lines, "layer_")
    assert row.split()[:5] == ["layer_[0-2,5]", "x4", "4", "of", "8"]
    assert line_of(lines, "net").split()[:4] == ["net", "5", "of", "10"]
    assert line_of(lines, "head").split()[1:4] == ["1", "of", "2"]


def test_scopes_that_differ_are_apart() -> None:
    seen = record("layer_0", "layer_1")
    first = dataclasses.replace(seen.operations[0], scope="layer_1")
    moved = dataclasses.replace(seen, operations=(first, *seen.operations[1:]))
    assert len([line for line in shown(moved) if line.startswith("layer_")]) == 2


def test_the_tree_opens_where_most_bytes_are_and_ends() -> None:
    scopes = [f"big/part{chr(97 + i)}/inner{chr(97 + j)}" for i in range(9) for j in range(9)]
    lines = shown(record(*scopes))
    tree = lines[next(i for i, line in enumerate(lines) if line.startswith("scope")) + 1 :]
    assert "" in tree
    assert tree.index("") <= MOST_LINES
    assert tree[0].startswith("big ")
    assert tree[1].startswith("  part")


def test_what_has_no_scope_stands_last_under_its_function() -> None:
    def step(x: jax.Array) -> jax.Array:
        with jax.named_scope("net"):
            y = x @ x
        return y * 2

    seen = duotone.explain(step, jnp.ones((8, 8)), dtype="bfloat16")
    named, unnamed = branches_of(seen.operations)
    assert named.name == "net"
    assert unnamed.name == "(no scope)"
    assert unnamed.branches[0].name.endswith(
        "test_overview.py " + step.__qualname__.replace("<locals>.", "")
    )


@pytest.mark.parametrize("width", [60, 80, 133])
def test_no_row_is_wrapped_and_no_line_too_long(width: int) -> None:
    long = "/".join(["a_scope_with_a_long_name"] * 6)
    seen = record(long, "layer[relu]", "layer[/b]", "a:warning:b")
    lines = shown(seen, width)
    assert max(map(len, lines)) <= width
    head = [line.startswith("scope") for line in lines].index(True)
    assert lines[head:].index("") == 1 + len(_opened(branches_of(seen.operations), MOST_LINES))
    # Rich reads these as markup otherwise.
    assert any("layer[relu]" in line for line in lines)
    assert any("  b]" in line for line in lines)


def test_a_whole_step_of_a_deep_network_is_sixty_lines_of_eighty() -> None:
    def loss(layers: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        for i, layer in enumerate(layers):
            with jax.named_scope(f"layer_{i}"):
                x = jax.nn.softmax(x @ layer["a"]) @ layer["b"] + x
        return (x**2).mean()

    layers = [{"a": jnp.ones((8, 8)), "b": jnp.ones((8, 8))}] * 24
    lines = str(duotone.explain(jax.grad(loss), layers, jnp.ones((12, 8)), dtype="bfloat16"))
    assert len(lines.splitlines()) <= 60
    assert max(map(len, lines.splitlines())) <= 80


def test_a_rule_that_this_version_does_not_know_is_shown(tmp_path: Path) -> None:
    seen = record("block")
    operations = tuple(dataclasses.replace(o, rule="newer") for o in seen.operations)
    (tmp_path / "seen.json").write_text(dataclasses.replace(seen, operations=operations).to_json())
    read = Record.from_json((tmp_path / "seen.json").read_text())
    assert line_of(shown(read), "newer")


def test_nothing_at_all() -> None:
    empty: tuple[OperationRecord, ...] = ()
    lines = shown(dataclasses.replace(record("block"), operations=empty))
    assert not any(line.startswith("full by") for line in lines)


def test_a_notebook_shows_it_too() -> None:
    seen = duotone.explain(lambda x: jnp.exp(x @ x), jnp.ones((8, 8)), dtype="float16")
    fragment = seen._repr_html_()
    assert "operations in half" in fragment
    heads = re.findall(r"<th [^>]*>([^<]*)</th>", fragment)
    assert heads[:4] == ["full by", "bytes", "because", "mostly"]
    assert heads[4:] == ["scope", "half", "FLOPs", "bytes", "full by"]
    assert fragment.count("<tr>") >= 2 + 2
    rows = seen.rows()._repr_html_()
    assert '<tr style="color: green"><td style="text-align: left; padding-left: 2em">dot' in rows


def test_a_notebook_shows_names_as_they_are() -> None:
    assert "a&lt;b&gt;" in Overview(record("a<b>"))._repr_html_()
    long = "/".join(["a_scope_with_a_long_name"] * 6)
    assert long.split("/")[0] in Overview(record(long))._repr_html_()


def deep(layers: list[jax.Array], x: jax.Array) -> jax.Array:
    for number, layer in enumerate(layers):
        with jax.named_scope("abcdefgh"[number % 8] + f"_{number // 8}" + "x" * number):
            x = jax.nn.softmax(x @ layer) + jnp.tanh(x)
    return (x**2).mean()


def test_the_repr_is_short() -> None:
    """Catches: the repr of a dataclass, 800,000 characters of it for a small language model."""
    layers = [jnp.ones((8, 8))] * 40
    seen = duotone.explain(jax.grad(deep), layers, jnp.ones((12, 8)), dtype="bfloat16")
    lines = repr(seen).splitlines()
    assert len(lines) <= MOST_REPR_LINES
    assert "operations in half" in lines[0]
    assert ".rows(" in lines[-1]
    assert len(str(seen).splitlines()) > len(lines)
    bare = repr(Record(seen.operations, seen.casts, seen.summary))
    assert len(bare) < 2000
    assert bare.startswith("Record(summary=")


def test_rows_are_a_sequence_that_shows_itself() -> None:
    layers = [jnp.ones((8, 8))] * 40
    seen = duotone.explain(jax.grad(deep), layers, jnp.ones((12, 8)), dtype="bfloat16")
    rows = seen.rows()
    assert len(rows) == len(seen.operations)
    assert rows[0] == seen.operations[0]
    assert list(rows[-2:]) == list(seen.operations[-2:])
    lines = repr(rows).splitlines()
    assert len(lines) == MOST_REPR_LINES
    assert "operation" in lines[0]
    left = len(str(rows).splitlines()) - MOST_REPR_LINES + 1
    assert lines[-1] == f"… {left} more lines: print(…) shows all of them"


def test_text_has_no_escapes() -> None:
    assert "\x1b" not in plain(Overview(record("block")))


def test_columns_fill_a_line() -> None:
    assert columns(20, ("ab", 5), ("1", -3), ("rest", 0)) == "ab      1 rest"
    assert columns(20, ("abcdefgh", 5), ("12345", -3), ("rest", 0)) == "abcd… 12… rest"
