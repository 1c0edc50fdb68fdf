"""Views of lines: text is wrapped, names stay whole, rows are cut."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from duotone.text.columns import columns
from duotone.text.lines import Lines

NAME = "encoder/" + "/".join(f"a_block_with_a_long_name_{i}" for i in range(6)) + "/dot_general"


class View(Lines):
    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def _lines(self, width: int) -> Iterator[str]:
        yield from self.lines
        yield columns(width, ("scope", 0), ("deny", 10))


def printed(view: Lines, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(view, crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 80])
def test_no_character_of_a_name_is_lost(width: int) -> None:
    """Catches: a pin that ends in an ellipsis, so that the policy to copy is no Python."""
    line = f"      {NAME!r},"
    assert line in printed(View(line), width)


@pytest.mark.parametrize("width", [30, 50, 80])
def test_text_is_wrapped_below_its_marker(width: int) -> None:
    words = "raise the batch, or run several steps in one call with lax.scan; half does not help"
    *shown, _ = printed(View(f"   -> {words}"), width)
    assert shown[0].startswith("   -> raise")
    assert all(line.startswith("      ") for line in shown[1:])
    assert " ".join(" ".join(shown).split()) == f"-> {words}"
    assert max(map(len, shown)) <= width


def test_a_row_keeps_its_last_column_in_a_narrow_terminal() -> None:
    assert printed(View(), 40)[-1].endswith("deny")


def test_an_empty_line_stays() -> None:
    assert printed(View("a", "", "b"), 80)[:3] == ["a", "", "b"]
