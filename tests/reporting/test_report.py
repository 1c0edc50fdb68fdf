"""``duotone.report`` and ``Explanation.to_html``: the page of a step, and the file it is in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import duotone
from duotone.errors import ArgumentError, ArgumentTypeError, UnknownTargetError, WriteError
from tests.explaining.page.pages import data_of


def step(w: jax.Array, x: jax.Array) -> jax.Array:
    with jax.named_scope("block"):
        return jax.nn.softmax(x @ w)


W = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)


def section(data: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in data["sections"] if one["id"] == name)
    return found


def test_a_page_of_a_step(tmp_path: Path) -> None:
    out = tmp_path / "step.html"
    assert duotone.report(step, W, W, out=out, dtype="float16") == out
    data = data_of(out.read_text())
    seen = duotone.explain(step, W, W, dtype="float16")
    assert (data["title"], data["about"]) == ("step", "float16")
    assert data["operations"]["index"] == [o.index for o in seen.operations]
    assert data["sections"] == data["curves"] == []
    page = seen.to_html(title="step", about="float16")
    assert page == out.read_text()


def test_painted_for_a_target_that_is_not_here(tmp_path: Path) -> None:
    fast = duotone.autocast(lambda x: step(x, x))
    out = duotone.report(fast, W, out=tmp_path / "a.html", target="v100")
    assert data_of(out.read_text())["title"] == "<lambda>"
    assert "float16, painted for Tesla V100" in data_of(out.read_text())["about"]
    with pytest.raises(UnknownTargetError, match="h100"):
        duotone.report(step, W, W, out=tmp_path / "b.html", target="h1000")
    assert not (tmp_path / "b.html").exists()


def test_what_else_is_known_is_shown(tmp_path: Path) -> None:
    w = jnp.full((64, 64), 100.0)
    blame = duotone.blame(lambda w: jnp.sqrt((w @ w) @ w), w, dtype="float16")
    comparison = duotone.compare(step, W, W, targets=["h100", "v5e"], exact=False)
    big = jax.ShapeDtypeStruct((8192, 2048), jnp.float32)
    wide = jax.ShapeDtypeStruct((2048, 4099), jnp.float32)
    advice = duotone.advise(lambda x, w: jax.nn.relu(x @ w), big, wide, target="h100")
    history = {"loss": [2.0, 1.0]}
    out = duotone.report(
        *(step, W, W),
        out=tmp_path / "all.html",
        blame=blame,
        comparison=comparison,
        advice=advice,
        history=history,
    )
    data = data_of(out.read_text())
    assert section(data, "blame")["lines"][0] == f"overflow: {blame.verdict.words}"
    assert blame.first is not None
    assert ["operation", blame.first.path] in section(data, "blame")["tables"][0]["rows"]
    assert repr(blame.pins[0]) in section(data, "blame")["code"]
    tables = section(data, "comparison")["tables"]
    assert [t["title"].split()[0] for t in tables if t["title"]] == ["h100", "v5e"]
    row = comparison.row("h100")
    speed_up = tables[0]["rows"][-1][tables[0]["columns"].index("speed-up")]
    assert speed_up == f"{row.speedup:.2f}x"
    (first, *_) = section(data, "advice")["tables"][0]["rows"]
    assert first[1] == f"tiles: {advice.findings[0].what}"
    assert "dot_general" in first[2]
    assert first[4] == advice.findings[0].remedy
    assert data["curves"][0]["values"] == [2, 1]


def test_nothing_to_advise_is_reported(tmp_path: Path) -> None:
    w = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    advice = duotone.advise(lambda x: x @ x, w, target="h100")
    assert not advice.findings
    page = duotone.explain(step, W, W).to_html(advice=advice)
    assert section(data_of(page), "advice")["lines"][1] == "Nothing to advise."


def test_another_file_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "notes.html"
    out.write_text("mine")
    with pytest.raises(ArgumentError, match=r"notes\.html exists\..*--force.*overwrite=True"):
        duotone.report(step, W, W, out=out)
    assert out.read_text() == "mine"
    duotone.report(step, W, W, out=out, overwrite=True)
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_what_is_wrong_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    call: Any = duotone.report
    with pytest.raises(WriteError, match="mkdir"):
        call(step, W, W, out=tmp_path / "no" / "report.html")
    with pytest.raises(ArgumentTypeError, match="out is 3; pass a path"):
        call(step, W, W, out=3)
    with pytest.raises(ArgumentTypeError, match=re.escape("pass what duotone.compare returned")):
        call(step, W, W, out=out, comparison="h100")
    with pytest.raises(ArgumentTypeError, match="explain"):
        call(3, W, out=out)
    with pytest.raises(ArgumentError, match=r"none\.csv: No such file.*Name a CSV file"):
        call(step, W, W, out=out, history=tmp_path / "none.csv")
    assert list(tmp_path.iterdir()) == []
