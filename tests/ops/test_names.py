"""What decides is neutral: no module of it compares an operation's name with a string."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import duotone

FOLDERS = [Path(duotone.__file__).parent / name for name in ("graph", "precision")]
FILES = sorted(path for folder in FOLDERS for path in folder.rglob("*.py"))
_NAMES = ("op", "list_key")


def compared_names(text: str) -> list[str]:
    """The comparisons of an operation's name with strings, or with a collection of them."""
    tree = ast.parse(text)
    collections = {
        ast.unparse(target)
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
        for target in (
            statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        )
        if _has_strings(statement.value) or ast.unparse(target) == "STRUCTURAL"
    }
    collections |= {
        alias.asname or alias.name
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if alias.name == "STRUCTURAL"
    }
    return [ast.unparse(found) for found in _comparisons(tree, collections)]


def _comparisons(tree: ast.AST, collections: set[str]) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(_is_name, sides)) and any(
                _has_strings(side) or ast.unparse(side) in collections for side in sides
            ):
                yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method = node.func.attr in ("startswith", "endswith")
            if method and _is_name(node.func.value):
                yield node
        elif isinstance(node, ast.Match) and _is_name(node.subject):
            yield node


def _is_name(node: ast.expr) -> bool:
    """True for ``x.op``, ``x.list_key`` and a variable of that name."""
    if isinstance(node, ast.Attribute):
        return node.attr in _NAMES
    return isinstance(node, ast.Name) and node.id in _NAMES


def _has_strings(node: ast.expr) -> bool:
    """True for a string, and for a collection of or call with some; not for a lookup by name."""
    if isinstance(node, ast.Attribute | ast.Name | ast.Subscript):
        return False
    return any(
        isinstance(inner, ast.Constant) and isinstance(inner.value, str) for inner in ast.walk(node)
    )


@pytest.mark.parametrize(
    "file", FILES, ids=lambda file: file.relative_to(FOLDERS[0].parent).as_posix()
)
def test_a_module_of_the_graph_compares_no_names(file: Path) -> None:
    found = compared_names(file.read_text(encoding="utf-8"))
    assert not found, "ask for a trait (duotone/ops/traits.py)"


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ('node.op == "mul"', True),
        ('"mul" != node.list_key', True),
        ('node.op in ("mul", "div")', True),
        ("node.op not in _SUMS", True),
        ("node.op in STRUCTURAL", True),
        ('op in {"mul"} | _SUMS', True),
        ('node.op.startswith("loop.")', True),
        ("node.op == other.op", False),
        ("Trait.ADDS in node.traits", False),
        ('node.scope == "decoder"', False),
        ('node.attributes.get("exponent") == 2.0', False),
        ("rules.get(node.interval) is None", False),
    ],
)
def test_a_comparison_is_found(line: str, is_found: bool) -> None:
    text = f'_SUMS = frozenset("add sub".split())\nfrom x import STRUCTURAL\nfound = {line}\n'
    assert bool(compared_names(text)) is is_found
