"""Shortens source lines for display."""

from __future__ import annotations

import re
from pathlib import Path

from duotone.text.columns import ending

_LINE = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::\d+)?(?: \((?P<function>.*)\))?$")
_PARTS = 2
"""How many parts of a path outside of the current folder are shown."""


def short_source(source: str, width: int = 0) -> str:
    """Removes column, function and most folders from a source line.

    Args:
        source: a source line of a record: ``/home/me/train.py:297:11 (step)``, followed by `` > ``
            and the line of a library that it calls.
        width: the most characters; a longer line is cut on the left. 0 for no limit.

    Example:
        >>> short_source("/nowhere/models/blocks/attention.py:297:11 (Attention.__call__)")
        'blocks/attention.py:297'
        >>> short_source("/nowhere/models/blocks/attention.py:297:11 (f)", 15)
        '…tention.py:297'
    """
    found = _LINE.match(source.partition(" > ")[0])
    if found is None:
        short = source
    else:
        file = Path(found["file"])
        if file.is_relative_to(Path.cwd()) and "site-packages" not in file.parts:
            file = file.relative_to(Path.cwd())
        elif file.is_absolute():
            file = Path(*file.parts[-_PARTS:])
        short = f"{file}:{found['line']}"
    return ending(short, width) if width else short


def short_function(source: str) -> str:
    """Returns the file and function of a source line.

    Example:
        >>> short_function("/nowhere/models/train.py:297:11 (step.<locals>.loss)")
        'models/train.py step.loss'
    """
    found = _LINE.match(source.partition(" > ")[0])
    if found is None:
        return "(no source)"
    function = (found["function"] or "").replace("<locals>.", "")
    return f"{short_source(source).rsplit(':', 1)[0]} {function}".rstrip()
