"""The report page in a browser: what it draws, and that sorting, searching and zooming work.

Chromium opens the page with a script more at its end, which uses it as a person would and writes
what it sees into the page; time is Chromium's own, so no clock decides.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from duotone.explaining.page.assemble import make_page
from tests.explaining.page.pages import HOSTILE, record

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f"no browser here: {', '.join(NAMES)}")

USE = """
const seen = {errors: window.errors};
const cells = (i) => [...get("operations").tBodies[0].rows].map((row) => row.cells[i].textContent);
const press = (key) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
const set = (id, value, event) => {
  get(id).value = value;
  get(id).dispatchEvent(new Event(event));
};
const heads = () => [...get("operations").tHead.rows[0].cells];
const trail = () => [...get("trail").children].map((part) => part.textContent);
seen.title = document.title;
seen.heading = get("title").textContent;
seen.broken = window.broken ?? null;
seen.bold = document.querySelectorAll("#main td b, h1 b").length;
seen.loaded = performance.getEntriesByType("resource").length;
seen.sections = [...document.querySelectorAll("main > section")].map((section) => section.id);
seen.curves = [...document.querySelectorAll(".curve path")].map((p) => p.getAttribute("d").length);
seen.lost = document.querySelectorAll(".curve .lost").length;
seen.all = cells(1);
seen.nodes = [...get("graph").querySelectorAll("[role=treeitem]")].map((node) => node.ariaLabel);

const bytes = heads().findIndex((head) => head.textContent.startsWith("bytes"));
heads()[bytes].firstChild.click();
seen.down = [heads()[bytes].getAttribute("aria-sort"), cells(0)];
heads()[bytes].firstChild.click();
seen.up = [heads()[bytes].getAttribute("aria-sort"), cells(0)];

set("search", "EXP block_b", "input");
seen.search = [cells(1), cells(cells(0).length ? heads().length - 1 : 0), get("found").textContent];
seen.dim = get("graph").querySelectorAll(".dim").length;
set("search", "", "input");
set("rule", "deny", "change");
seen.rule = cells(4);
set("rule", "", "change");
set("kind", "0", "change");
seen.half = cells(3);
get("clear").click();
seen.cleared = cells(1).length;

get("graph").querySelector("[tabindex='0']").focus();
press("ArrowRight");
seen.focused = document.activeElement.getAttribute("aria-label");
press("Enter");
seen.zoomed = [trail(), cells(1), document.activeElement.getAttribute("role")];
press("Escape");
seen.back = [trail(), cells(1).length];
get("operations").tBodies[0].querySelector("button").click();
seen.detail = get("detail").textContent;
"""
MORE = """
const rows = () => get("operations").tBodies[0].rows.length;
const seen = {errors: window.errors, first: rows(), told: get("found").textContent};
get("more").click();
seen.second = rows();
seen.hidden = get("more").hidden;
seen.over = document.documentElement.scrollWidth - innerWidth;
"""
WAIT = """
const use = () => {USE};
const wait = (tries) => tries && document.querySelector(".curve:not(:has(path))")
  ? setTimeout(() => requestAnimationFrame(() => wait(tries - 1)), 50) : use();
setTimeout(() => wait(1000), 200);
"""
"""Curves are drawn when the page is laid out, which a busy machine does late."""
SHOW = """
document.body.replaceChildren(Object.assign(document.createElement("pre"),
  {id: "seen", textContent: JSON.stringify(seen)}));
"""


def used(page: str, folder: Path, script: str, width: int = 1280) -> dict[str, Any]:
    """What a script that uses the page has seen."""
    file = folder / "report.html"
    catch = "<script>window.errors = []; onerror = (what) => errors.push(what)</script></head>"
    use = f"<script>{WAIT.replace('USE', script + SHOW)}</script></body>"
    file.write_text(page.replace("</head>", catch, 1).replace("</body>", use), "utf-8")
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        *(
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--window-size={width},900",
        ),
        f"--user-data-dir={folder / 'profile'}",
        *("--virtual-time-budget=60000", "--dump-dom", file.as_uri()),
    ]
    written = ""
    for _ in range(3):  # where all is busy, Chromium may write the page before the script has run
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300)
        found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
        if found is not None:
            return json.loads(html.unescape(found[1]))
        written = done.stdout[-2000:] + done.stderr[-2000:]
    raise AssertionError(written)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    page = make_page(
        record("block_a", f"block_b/{HOSTILE}"),
        title=HOSTILE,
        advice=[{"title": HOSTILE}],
        history={"loss": [3.0, float("nan"), 2.0, 1.0], "scale": [1.0, 2.0]},
    )
    return used(page, tmp_path_factory.mktemp("page"), USE)


def test_it_draws_everything_and_loads_nothing(seen: dict[str, Any]) -> None:
    assert seen["errors"] == []
    assert seen["loaded"] == 0
    assert seen["sections"] == ["overview", "advice", "curves", "program", "rules"]
    assert seen["all"] == ["dot", "exp", "dot", "exp", "mystery"]
    assert len(seen["curves"]) == 2
    assert min(seen["curves"]) > 4
    assert seen["lost"] == 1


def test_names_are_texts_in_a_browser_too(seen: dict[str, Any]) -> None:
    assert seen["heading"] == HOSTILE
    assert (seen["broken"], seen["bold"]) == (None, 0)


def test_the_table_sorts(seen: dict[str, Any]) -> None:
    operations = record("block_a", f"block_b/{HOSTILE}").operations
    by_bytes = sorted(operations, key=lambda o: (-o.bytes, o.index))
    assert seen["down"] == ["descending", [str(o.index) for o in by_bytes]]
    by_bytes = sorted(operations, key=lambda o: (o.bytes, o.index))
    assert seen["up"] == ["ascending", [str(o.index) for o in by_bytes]]


def test_the_search_finds_words_in_scope_and_operation(seen: dict[str, Any]) -> None:
    names, scopes, told = seen["search"]
    assert names == ["exp"]
    assert scopes == [f"block_b/{HOSTILE}"]
    assert re.fullmatch(r"1 of 5 operations in all; the table shows 1, of [\d.]+ kB", told)
    assert seen["dim"] > 0


def test_filters_and_clear(seen: dict[str, Any]) -> None:
    assert seen["rule"] == ["deny", "deny"]
    assert seen["half"] == ["■ half", "■ half"]
    assert seen["cleared"] == 5


def test_the_graph_zooms_by_the_keyboard(seen: dict[str, Any]) -> None:
    assert any(label.startswith("block_a: ") for label in seen["nodes"])
    assert seen["focused"].startswith("block_a: ")
    trail, names, role = seen["zoomed"]
    assert trail[:2] == [HOSTILE, "block_a"]
    assert names == ["dot", "exp"]
    assert role == "treeitem"
    assert seen["back"][1] == 5
    assert "rule" in seen["detail"]


def test_a_long_table_grows_and_a_narrow_window_does_not_scroll_sideways(tmp_path: Path) -> None:
    page = make_page(record(*(f"layer_{i}/attention" for i in range(110))), title="x" * 60)
    seen = used(page, tmp_path, MORE, width=500)
    assert seen["errors"] == []
    assert (seen["first"], seen["second"], seen["hidden"]) == (200, 221, True)
    assert seen["told"].startswith("221 of 221 operations in all; the table shows 200, of ")
    assert seen["over"] <= 0
