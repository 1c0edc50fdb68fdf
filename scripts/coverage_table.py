"""Writes ``docs/coverage/primitives.md`` and ``transformations.md`` from the case catalogue.

    python scripts/coverage_table.py            # writes them
    python scripts/coverage_table.py --check    # fails if they are not up to date

The table shows measured precisions: each case of a primitive is painted between two dots, and the
table has the precision that the painter gave it there.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import jax  # noqa: E402

import duotone  # noqa: E402
from tests.catalogue import inventory  # noqa: E402
from tests.catalogue.case import Case  # noqa: E402
from tests.catalogue.cases import CALLS, CASES  # noqa: E402
from tests.catalogue.variations import FORCED, HALF_TYPES, sandwich, variation  # noqa: E402

FOLDER = ROOT / "docs" / "coverage"
DOTS = FORCED.replace(allow_add=["dot_general"])
"""The dots around a case are half however few elements they have."""
_NOTE = "<!-- written by scripts/coverage_table.py from tests/catalogue; do not edit -->"

_PRIMITIVES = """\
Every primitive that JAX {version} exports (`jax.extend.core.primitives`, `jax.lax`,
`jax.lax.linalg`): its list and the reason, the number of catalogue cases that test it, and its
narrowest precision between two dots. That is `half`, `float32, stored half` (it computes in float32
and stores half), or `float32` (unchanged). A dash means that it has no float32 operand, or that
duotone decides about the operations inside it instead."""
_TRANSFORMATIONS = """\
The tests call each case alone, between two dots, as `grad(autocast(f))` and `autocast(grad(f))`,
under `vmap`, and with its primitive forced onto the allow list, in float16 and in bfloat16. The
tolerance of a row is the largest of its cases, in units in the last place of the half type,
relative to the largest element of a result."""


def explained(case: Case, half: str) -> duotone.Explanation:
    """Returns the painting of a case between two dots."""
    _, args = variation(case, "sandwich", lambda f: f)
    wide = jax.enable_x64(True) if case.x64 else contextlib.nullcontext()
    with wide:
        return duotone.explain(sandwich(case), *args, dtype=half, policy=DOTS)


def _paints() -> dict[tuple[str, str], set[str]]:
    """The paints in which each (primitive, half type) was seen, in the cases that name it."""
    seen: dict[tuple[str, str], set[str]] = {}
    for case in CASES:
        for half in HALF_TYPES:
            if not case.primitives:
                continue
            for operation in explained(case, half).operations:
                if operation.operation in case.primitives and operation.rule != "integer":
                    key = (operation.operation, half)
                    seen.setdefault(key, set()).add(_paint_of(operation))
    return seen


def _paint_of(operation: Any) -> str:
    """How one operation computes, and how it keeps its result if that differs."""
    if operation.paint == operation.stored or operation.paint == "half":
        return "half" if operation.paint == "half" else "float32"
    return "float32, stored half"


def _result(paints: set[str] | None) -> str:
    """The narrowest of what was seen."""
    found = [p for p in ("half", "float32, stored half", "float32") if p in (paints or ())]
    return found[0] if found else "-"


def primitives() -> str:
    """The page of primitives."""
    seen = _paints()
    rows = []
    for name in sorted(inventory.exported() | {p for case in CASES for p in case.primitives}):
        place, reason = inventory.place_of(name)
        count = sum(name in case.primitives for case in CASES)
        results = [_result(seen.get((name, half))) for half in HALF_TYPES]
        rows.append((f"`{name}`", place, reason, str(count), *results))
    head = ("primitive", "list", "reason", "cases", *HALF_TYPES)
    return "\n".join(
        [
            _NOTE,
            "",
            "# Primitives",
            "",
            _PRIMITIVES.format(version=_version()),
            "",
            *_table(head, rows),
        ]
    )


def transformations() -> str:
    """The page of transformations, and the limits."""
    names = sorted({t for case in CASES for t in case.transformations}, key=str.lower)
    rows = []
    for name in names:
        cases = [case for case in CASES if name in case.transformations]
        calls = sum(case in cases for case, _ in CALLS) * len(HALF_TYPES)
        tolerance = max(case.tolerance("sandwich") for case in cases)
        rows.append(
            (name, str(len(cases)), str(calls), f"{tolerance:g}", ", ".join(c.name for c in cases))
        )
    limits = sorted(
        {(reason, how) for case in CASES for how, reason in case.limits.items()},
    )
    limit_rows = [
        (how, reason, ", ".join(c.name for c in CASES if c.limits.get(how) == reason))
        for reason, how in limits
    ]
    loose_rows = [(c.name, f"{c.loose[0]:g}", c.loose[1]) for c in CASES if c.loose is not None]
    return "\n".join(
        [
            _NOTE,
            "",
            "# Transformations",
            "",
            _TRANSFORMATIONS,
            "",
            *_table(("transformation", "cases", "checks", "ULP", "names"), rows),
            "",
            "## Limits",
            "",
            "What is not checked, and why.",
            "",
            *_table(("variation", "reason", "cases"), limit_rows),
            "",
            "## Wider tolerances",
            "",
            *_table(("case", "ULP", "reason"), loose_rows),
        ]
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _version() -> str:
    return ".".join(jax.__version__.split(".")[:2])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _written_for() -> tuple[int, ...]:
    """The version of JAX for which the committed page of primitives was written."""
    page = FOLDER / "primitives.md"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    found = re.search(r"JAX (\d+\.\d+)", text)
    return _numbers(found[1]) if found else (0,)


PAGES: dict[str, Callable[[], str]] = {
    "primitives.md": primitives,
    "transformations.md": transformations,
}
"""By file name."""


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the pages; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    check = parser.parse_args(arguments).check
    if not check and (newer := _written_for()) > _numbers(_version()):
        print(f"the pages are of JAX {newer[0]}.{newer[1]}; write them under it, not {_version()}")
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, page in PAGES.items():
        path, text = FOLDER / name, page() + "\n"
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{', '.join(stale)} in docs/coverage: not up to date; run scripts/coverage_table.py")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
