"""The report page as a file: complete, closed to the network, and safe for any name."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.explaining.page.assemble import make_page
from duotone.precision.record import Record
from tests.explaining.page.pages import HOSTILE, data_of, record


class Tags(HTMLParser):
    """Counts the elements of a page as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action")]


def test_names_of_the_user_stay_texts() -> None:
    page = make_page(
        record(HOSTILE),
        title=HOSTILE,
        advice=[{"title": HOSTILE, "where": HOSTILE}],
        history={HOSTILE: [1.0]},
    )
    plain = make_page(record("block"))
    assert Tags(page).found == Tags(plain).found
    data = data_of(page)
    assert data["title"] == data["curves"][0]["name"] == HOSTILE
    assert data["sections"][0]["tables"][0]["rows"][0] == ["1", HOSTILE, HOSTILE, "", ""]
    scopes = {"/".join(data["texts"][part] for part in path) for path in data["paths"]}
    assert HOSTILE in scopes


def test_the_json_is_ascii_and_holds_nothing_that_html_reads() -> None:
    page = make_page(record(HOSTILE), title="$script ${data} \ud800")
    found = re.search(r'application/json">(.*?)</script', page, re.DOTALL)
    assert found is not None
    assert found[1].isascii()
    assert not set(found[1]) & set("<>&")
    assert data_of(page)["title"] == "$script ${data} \ud800"
    page.encode()


def test_the_page_loads_nothing() -> None:
    page = make_page(record("block"))
    assert "default-src 'none'" in page
    assert Tags(page).links == ["#main"]
    assert "link" not in Tags(page).found
    assert set(re.findall(r"https?://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(
        r"innerHTML|outerHTML|document\.write|\bfetch\b|XMLHttp|@import|eval", page
    )


def test_equal_arguments_give_equal_pages() -> None:
    assert make_page(record("block")) == make_page(record("block"))


def test_the_files_of_the_page_stay_short() -> None:
    """The view of the graph with table and curves is small enough to be read."""
    scripts = [
        f for f in resources.files("duotone.explaining.page").iterdir() if f.name.endswith(".js")
    ]
    assert {f.name for f in scripts} == {"data.js", "sections.js", "graph.js", "operations.js"}
    assert max(len(f.read_text().splitlines()) for f in scripts) <= 300


def test_a_program_without_operations_has_a_page() -> None:
    empty = record("block")
    empty = Record((), (), empty.summary)
    assert data_of(make_page(empty))["operations"] == {"index": []}


def test_a_large_program_gives_a_small_page() -> None:
    seen = record(*(f"model/layer_{i}/attention" for i in range(1500)))
    assert len(seen.operations) > 2700
    assert len(make_page(seen)) < 1_000_000


@pytest.mark.parametrize(
    ("sections", "error", "message"),
    [
        ({"finding": []}, ArgumentError, "there is no finding; there are title"),
        ({"comparison": {}}, ArgumentTypeError, "a dict; pass what duotone.compare returned"),
        ({"blame": 3}, ArgumentTypeError, "pass what duotone.blame returned"),
        ({"advice": 3}, ArgumentTypeError, "advice is 3; pass what duotone.advise returned"),
        ({"advice": ["slow"]}, ArgumentTypeError, "finding 1 is 'slow'; pass a dict"),
        ({"advice": [{"where": "x"}]}, ArgumentError, "finding 1 has no title"),
        ({"advice": [{"title": "a", "line": "x"}]}, ArgumentError, "finding 1 has line; keys are"),
        ({"history": [1.0]}, ArgumentTypeError, "pass a dict of numbers by name"),
    ],
)
def test_what_is_wrong_is_reported(
    sections: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make_page(record("block"), **sections)  # pyright: ignore[reportArgumentType]
