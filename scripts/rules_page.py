"""Writes ``docs/rules.md``, the page that says what each rule means.

python scripts/rules_page.py            # writes it
python scripts/rules_page.py --check    # fails if it is not up to date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from duotone.precision.removable import REMOVABLE  # noqa: E402
from duotone.precision.rules import Rule  # noqa: E402
from duotone.precision.safety.safety_rules import SAFETY_RULES  # noqa: E402

PAGE = ROOT / "docs" / "rules.md"
_HEAD = """\
<!-- written by scripts/rules_page.py from duotone/precision/rules.py; do not edit -->

# Rules

Every operation has one rule, the reason why it is half or full. [`explain`](getting-started.md)
shows the rule of each operation and counts them; `seen.rows(rule="taint")` lists the operations of
one. A [policy](policy.md) overrides rules: `keep_full`, `keep_half`, edits of the lists, ranges.
Lists and rules are the same on every device, except `device` and `small`.

A *dominant* operand has at least as many elements as the result. An *allow operation* is on the
allow list (dots and convolutions). [How it decides](architecture.md#the-words) explains the other
words.

`Policy(rules_remove={"distance"})` or `DUOTONE_RULES_REMOVE=distance` switches a rule off; the
third column has the name to write (removing `mixed` also removes most of `full_readers`). Where it
says "no", the rule has no stage of its own: edit the lists, or use `keep_full` and `keep_half`.
`backward` is not a rule of an operation: removing it leaves the derivatives of a rewritten function
to JAX.

| rule | what it says | switched off by | decided by |
| --- | --- | --- | --- |
"""

_DECIDED_WITH = {Rule.SMALL: Rule.DEVICE, Rule.UNDERFLOW: Rule.OVERFLOW}
"""Rules that the stage of another one sets."""


def page() -> str:
    """The page."""
    rows = []
    for rule in Rule:
        apply = SAFETY_RULES.get(rule)
        by = f"`{apply.__module__.replace('.', '/')}.py`" if apply else _where(rule)
        off = _DECIDED_WITH.get(rule, rule)
        off = f"`{off}`" if off in REMOVABLE["rules_remove"] else "no"
        rows.append(f"| `{rule}` | {rule.words} | {off} | {by} |")
    return _HEAD + "\n".join(rows) + "\n"


def _where(rule: Rule) -> str:
    """The modules that paint or deny by a rule, those that only ask for it left out."""
    name = f"Rule.{rule.name}"
    found = []
    for path in sorted((ROOT / "duotone").rglob("*.py")):
        lines = path.read_text().splitlines()
        asks = (f"is {name}", f"is not {name}", f"== {name}")
        if any(name in line.replace(",", " ").split("#")[0] for line in lines if "Rule." in line):
            text = "\n".join(line for line in lines if not any(a in line for a in asks))
            if f"{name}" in text and not _only_asks(path):
                found.append(f"`{path.relative_to(ROOT)}`")
    return ", ".join(found)


def _only_asks(path: Path) -> bool:
    """True if a module names rules and decides none."""
    readers = {"advising", "explaining", "exporting"}.intersection(path.parts)
    return bool(readers) or path.name in ("rules.py", "safety_rules.py", "removable.py")


def main() -> int:
    """Writes the page, or checks it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    if parser.parse_args().check:
        current = PAGE.exists() and PAGE.read_text() == page()
        print(f"{PAGE.name} is {'up to date' if current else 'not up to date: run this script'}")
        return 0 if current else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
