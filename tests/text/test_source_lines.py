"""Source lines as people read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from duotone.text.source_lines import short_function, short_source


@pytest.mark.parametrize(
    ("source", "short", "function"),
    [
        ("/a/b/c/train.py:297:11 (step)", "c/train.py:297", "c/train.py step"),
        ("/a/train.py:297 (f.<locals>.<lambda>)", "a/train.py:297", "a/train.py f.<lambda>"),
        ("/a/b/train.py:2:1 (f) > /lib/site-packages/x.py:3 (g)", "b/train.py:2", "b/train.py f"),
        ("<stdin>:2:17 (f)", "<stdin>:2", "<stdin> f"),
        ("line 4", "line 4", "(no source)"),
        ("unknown", "unknown", "(no source)"),
        ("", "", "(no source)"),
    ],
)
def test_file_and_line_are_left(source: str, short: str, function: str) -> None:
    assert short_source(source) == short
    assert short_function(source) == function


def test_a_file_below_the_current_folder_is_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_source(f"{tmp_path}/models/deep/net.py:3:1 (f)") == "models/deep/net.py:3"
    library = f"{tmp_path}/.venv/lib/site-packages/flax/linen/linear.py:3:1 (f)"
    assert short_source(library) == "linen/linear.py:3"


def test_what_is_too_long_is_elided_on_the_left() -> None:
    assert short_source("/a/b/long_name.py:12 (f)", 10) == "…ame.py:12"
