"""Looks at the built reference for what a reader should not see; ``make docs`` calls it.

python scripts/check_reference.py site/reference/index.html

Raw marks of Sphinx (``:func:``), backticks that stayed, an object or a row of a table without a
description, a section with nothing in it. Says each and fails.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

CODE = re.compile(r"<pre.*?</pre>|<code.*?</code>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
RAW = re.compile(r":(?:func|class|meth|attr|data|mod|exc|obj):|`|>>>|(?<!\w)::(?!\w)|\w::(?!\w)")
EMPTY_CELL = re.compile(r'<div class="doc-md-description">\s*</div>')
OBJECT = re.compile(
    r'<h\d id="(?P<name>[^"]+)" class="doc doc-heading">.*?</h\d>(?P<body>.*?)(?=<h\d id=|$)',
    re.DOTALL,
)
SECTION = re.compile(
    r'<span class="doc-section-title">(?P<name>[^<]+)</span>(?P<body>.{0,2000})', re.DOTALL
)
FULL = re.compile(r"<(?:tbody|li|pre|p|code|div)\b")


def faults(page: str) -> list[str]:
    """Sentences on what is wrong with the page of a reference, none if all is well.

    Args:
        page: the HTML that mkdocs wrote.

    Returns:
        One sentence for each fault, in the order of the page for each kind.
    """
    prose = html.unescape(TAG.sub("", CODE.sub("", page)))
    found = [
        f"raw mark {match[0]!r} in: {_around(prose, match.start())}"
        for match in RAW.finditer(prose)
    ]
    for match in EMPTY_CELL.finditer(page):
        before = html.unescape(TAG.sub(" ", page[max(0, match.start() - 800) : match.start()]))
        found.append(f"a row without a description, after: {' '.join(before.split()[-6:])}")
    for match in OBJECT.finditer(page):
        if len(re.findall(r"\w+", html.unescape(TAG.sub(" ", _text_of(match["body"]))))) < 2:
            found.append(f"{match['name']} has no description")
    found += [
        f"section {match['name']} is empty"
        for match in SECTION.finditer(page)
        if not FULL.search(match["body"].split("doc-section-title")[0])
    ]
    return found


def _text_of(body: str) -> str:
    """Returns the text below a heading, without the signature."""
    return re.sub(r'<div class="doc-signature.*?</div>', "", body, flags=re.DOTALL)


def _around(text: str, at: int) -> str:
    return " ".join(text[max(0, at - 40) : at + 40].split())


def main() -> int:
    """Prints the faults of the page named on the command line."""
    (path,) = sys.argv[1:]
    found = faults(Path(path).read_text(encoding="utf-8"))
    for fault in found:
        print(f"{path}: {fault}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
