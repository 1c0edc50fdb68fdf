"""The paintings of the small models stay what they are, or change where a person looks."""

from __future__ import annotations

import difflib

import pytest

from tests.golden.paintings import CASES, golden, own_file, render


@pytest.mark.parametrize(("model", "program"), CASES)
def test_painting(model: str, program: str) -> None:
    old, new = golden(model, program), render(model, program)
    if old != new:
        lines = difflib.unified_diff(
            old.splitlines(), new.splitlines(), "golden", "now", lineterm="", n=1
        )
        pytest.fail(
            f"the painting of {model} ({program}) has changed; if that is meant, run "
            "python scripts/update_goldens.py under each version of JAX and read the diff\n"
            + "\n".join(lines),
            pytrace=False,
        )


def test_a_version_keeps_only_what_differs() -> None:
    for case in CASES:
        if own_file(*case).exists():
            assert own_file(*case).read_text() != golden(*case, own=False)


def test_the_text_shows_every_colour() -> None:
    """A golden file that could not tell colours apart would guard nothing."""
    text = render("transformer", "value_and_grad")
    for colour in (
        "half allow",
        "half>full wide",
        "full deny",
        "full taint",
        "full state",
        " again",
    ):
        assert colour in text
    assert ".py" not in text.replace("scripts/update_goldens.py", "")
