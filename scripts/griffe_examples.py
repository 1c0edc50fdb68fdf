"""Lets the reference show ``Example:`` sections as code.

mkdocstrings knows Google's section by the name ``Examples:`` only, and takes doctests under any
other heading for prose. Named in ``mkdocs.yml``.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section in every docstring as it is read."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        del kwargs
        if obj.docstring is not None:
            value = obj.docstring.value
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", value, flags=re.M)
