"""Lets the reference show docstrings of this project as mkdocstrings understands them.

Three things differ. mkdocstrings knows Google's section by the name ``Examples:`` only, and takes
doctests under ``Example:`` for prose. A docstring names other objects as Sphinx does
(``:func:`autocast```) and opens a block of code with ``::``, both of which Markdown shows as they
stand: a name becomes a link where the reference has the object, else code. Named in ``mkdocs.yml``;
``scripts/check_reference.py`` looks at the page that comes out.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|attr|data|mod|exc|obj):`(~?)([\w.]+)`")


class Docstrings(griffe.Extension):
    """Renames sections and turns roles into links, in every docstring of the package."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called by griffe when a package is loaded, so that names in it can be looked up."""
        del kwargs
        _mend(pkg)


def _mend(obj: griffe.Object) -> None:
    if obj.docstring is not None:
        text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
        text = re.sub(r"^ *::$", "", text, flags=re.M)
        text = re.sub(r"(?<=[\w`)])::$", ":", text, flags=re.M)
        obj.docstring.value = ROLE.sub(lambda role: _link(obj, role), text)
    for member in obj.members.values():
        if isinstance(member, griffe.Object):  # an alias is mended where it is defined
            _mend(member)


def _link(obj: griffe.Object, role: re.Match[str]) -> str:
    """A link if some page shows the object; autorefs leaves the code alone otherwise."""
    short, name = role.groups()
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref identifier="{_path(obj, name)}" optional><code>{shown}</code></autoref>'


def _path(obj: griffe.Object, name: str) -> str:
    """The full name that a docstring's short one stands for."""
    first, dot, rest = name.partition(".")
    try:
        found = obj.resolve(first)
    except griffe.NameResolutionError:  # a public name, which docstrings use anywhere
        found = first if first == obj.package.name else f"{obj.package.name}.{first}"
    return f"{found}{dot}{rest}"
