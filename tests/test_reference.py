"""The page of the reference: every public name is on it, and names in docstrings exist."""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
import runpy
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duotone

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
ROLE = re.compile(r":(?:func|class|meth|attr|data|mod|exc|obj):`~?([\w.]+)`")
# The entry point, which would run, and modules whose library is not in this environment.
SKIPPED = ("duotone.__main__",)
if importlib.util.find_spec("tensorflow") is None:
    SKIPPED += ("duotone.adapters.tensorflow.",)


def test_every_public_name_is_in_the_reference():
    page = set(NAMED.findall((ROOT / "docs" / "reference.md").read_text()))
    missing = {f"duotone.{name}" for name in duotone.__all__} - page - {"duotone.__version__"}
    # Another name of the one line; in duotone.errors, which is shown whole.
    missing -= {"duotone.MixedPrecisionLossScaleOptimizer", "duotone.DuotoneError"}
    assert not missing


def test_every_name_in_the_reference_exists():
    for name in NAMED.findall((ROOT / "docs" / "reference.md").read_text()):
        assert found(name) is not None, name


def test_modules_of_the_reference_list_their_names():
    """The page shows imported names only if ``__all__`` has them."""
    for name in NAMED.findall((ROOT / "docs" / "reference.md").read_text()):
        thing = found(name)
        assert not inspect.ismodule(thing) or name == "duotone.errors" or thing.__all__


def test_arguments_of_public_names_are_described():
    wrong = []
    for name, function in public_functions():
        section = re.search(r"^Args:\n((?:(?: .*)?\n)*)", f"{inspect.getdoc(function)}\n", re.M)
        lines = re.findall(r"^    (\*{0,2}[a-z]\w*): ", section[1] if section else "", re.M)
        if lines != parameters(function):
            wrong.append(f"{name} takes {parameters(function)} and describes {lines}")
    assert not wrong


def test_examples_of_public_names_import_what_they_use():
    """A reader copies an example without the module in which it stands."""
    wrong = []
    for name, public in public_objects():
        members = list(vars(public).values()) if inspect.isclass(public) else []
        for text in [inspect.getdoc(member) or "" for member in (public, *members)]:
            examples = doctest.DocTestParser().get_examples(text)
            if missing := unbound("".join(example.source for example in examples)):
                wrong.append(f"{name}: {sorted(missing)}")
    assert not wrong


def test_names_in_docstrings_exist():
    wrong = []
    for module in modules():
        for holder, text in docstrings(module):
            for name in ROLE.findall(text):
                if found(name) is None and not inside(module, holder, name):
                    wrong.append(f"{module.__name__}: {name}")
    assert not wrong


def test_check_of_the_built_page_finds_what_a_reader_should_not_see():
    faults = runpy.run_path(str(ROOT / "scripts" / "check_reference.py"))["faults"]
    head = '<h3 id="duotone.f" class="doc doc-heading">f</h3>'
    good = head + '<div class="doc-md-description"><p>the thing.</p></div><p>Adds two numbers.</p>'
    assert faults(good) == []
    assert "raw mark" in faults(good + "<p>see :func:<code>g</code></p>")[0]
    assert "raw mark" in faults(good + "<p>as `x`</p>")[0]
    assert (
        "without a description" in faults(good + 'name <div class="doc-md-description"> </div>')[0]
    )
    assert "duotone.f has no description" in faults(head)[0]
    empty = '<span class="doc-section-title">Raises:</span></p> '
    assert "Raises: is empty" in faults(good + empty + "<h4>next</h4>")[0]


def modules() -> Iterator[types.ModuleType]:
    for info in pkgutil.walk_packages(duotone.__path__, "duotone."):
        if not info.name.startswith(SKIPPED):
            yield importlib.import_module(info.name)


def docstrings(module: types.ModuleType) -> Iterator[tuple[type | None, str]]:
    yield None, module.__doc__ or ""
    for thing in list(vars(module).values()):
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(thing):
            yield thing, thing.__doc__ or ""
            for member in list(vars(thing).values()):
                member = getattr(member, "fget", None) or getattr(member, "__func__", member)
                if inspect.isfunction(member):
                    yield thing, member.__doc__ or ""
        elif callable(thing):
            yield None, thing.__doc__ or ""


def found(name: str) -> object | None:
    """The object of a full name, None if there is none."""
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:at]))
        except ImportError:
            continue
        return reached(thing, parts[at:])
    return None


def inside(module: types.ModuleType, holder: type | None, name: str) -> bool:
    """True if a short name is known in the module of the docstring."""
    first, *rest = name.split(".")
    for scope in (holder, module, duotone):  # public names are used anywhere
        if scope is not None and (hasattr(scope, first) or first in annotated(scope)):
            return not rest or reached(getattr(scope, first, None), rest) is not None
    return False


def public_objects() -> Iterator[tuple[str, Any]]:
    """The functions and classes of the reference, with their names."""
    for name in NAMED.findall((ROOT / "docs" / "reference.md").read_text()):
        thing: Any = found(name)
        named = inspect.ismodule(thing) and name != "duotone.errors"
        yield from ((one, getattr(thing, one)) for one in (thing.__all__ if named else ()))
        if not named:
            yield name, thing


def public_functions() -> Iterator[tuple[str, types.FunctionType]]:
    """The functions of the reference, and the methods of duotone's own that its classes have."""
    for name, public in public_objects():
        if inspect.isfunction(public):
            yield name, public
        bases = getattr(public, "__mro__", ())[1:]
        for key, member in vars(public).items() if inspect.isclass(public) else ():
            function = getattr(member, "__func__", member)
            ours = inspect.isfunction(function) and function.__module__.startswith("duotone.")
            inherited = any(hasattr(base, key) for base in bases)
            if ours and not key.startswith("_") and not inherited:
                yield f"{public.__name__}.{key}", function


def parameters(function: types.FunctionType) -> list[str]:
    """The names of arguments as a docstring writes them."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    given = inspect.signature(function).parameters.values()
    return [stars.get(p.kind, "") + p.name for p in given if p.name not in ("self", "cls")]


def unbound(source: str) -> set[str]:
    """Names that a program reads and nowhere sets."""
    nodes = list(ast.walk(ast.parse(source)))
    bound = set(dir(builtins))
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    return {node.id for node in nodes if isinstance(node, ast.Name)} - bound


def annotated(scope: object) -> set[str]:
    """Attributes that only instances have."""
    described = re.findall(r"^ +(\w+): ", scope.__doc__ or "", re.MULTILINE)
    return set(getattr(scope, "__annotations__", {})) | set(described)


def reached(thing: object, path: list[str]) -> object | None:
    for part in path:
        if part in annotated(thing):
            return thing
        thing = getattr(thing, part, None)
    return thing
