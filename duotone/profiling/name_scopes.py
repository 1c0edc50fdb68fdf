"""Parses scopes, primitives and source lines from the metadata of compiled operations.

JAX names each operation by its name stack, in which transformations enclose scopes::

    jit(step)/transpose(jvp(encoder))/layer_0/while/body/dot_general
              scope: encoder/layer_0                     primitive: dot_general
"""

from __future__ import annotations

import re
from collections.abc import Callable

_WRAPPED = re.compile(r"([\w.]+)\((.*)\)$")
_CALLS = frozenset({"jit", "pjit", "xla_call", "core_call", "shard_map", "pmap", "jit_call"})
"""Calls: the name in brackets is a function, not a scope."""
_STRUCTURE = re.compile(
    r"while|body|cond|scan|closed_call|core_call|checkpoint|remat2?|rematted_computation|shard_map"
    r"|custom_(?:jvp|vjp)_call|branch_\d+_fun"
)
"""JAX's own names for loops, branches and calls."""
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_FILE = re.compile(r'^(\d+) "(.*)"$')
_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)")
_STACK = re.compile(r"^(\d+) \{file_location_id=(\d+)")


def scope_and_primitive(name: str) -> tuple[str, str]:
    """Returns the user's scopes, joined by ``/``, and the primitive.

    Args:
        name: JAX's name of an operation; if there are several, joined by ``;``, uses the first.

    Example:
        >>> scope_and_primitive("jit(step)/transpose(jvp(encoder))/layer_0/while/body/mul")
        ('encoder/layer_0', 'mul')
        >>> scope_and_primitive("jit(step)/jvp()/jit(relu)/max")
        ('', 'max')
    """
    *around, last = name.partition(";")[0].split("/")
    scopes = [scope for part in around if (scope := _scope(part))]
    return "/".join(scopes), _scope(last.partition("[")[0]) or last


def _scope(part: str) -> str:
    while found := _WRAPPED.match(part):
        if found[1] in _CALLS:
            return ""
        part = found[2]
    return "" if _STRUCTURE.fullmatch(part) else part


def source_lines(text: str) -> Callable[[str], str]:
    """Returns a function from an operation's attributes to its source line or ``""``.

    Args:
        text: the compiled program. Newer compilers write a table of lines before the operations.
    """
    head = text.partition("\n%")[0].partition("\nENTRY")[0].splitlines()
    named = text.partition("\nFileNames\n")[2].partition("\n\n")[0].splitlines()
    files = {f[1]: f[2] for line in named if (f := _FILE.match(line))}
    locations = {
        f[1]: f"{files.get(f[2], '')}:{f[3]}" for line in head if (f := _LOCATION.match(line))
    }
    frames = {f[1]: locations.get(f[2], "") for line in head if (f := _STACK.match(line))}

    def source(attributes: str) -> str:
        if found := _SOURCE.search(attributes):
            return f"{found[1]}:{found[2]}"
        found = _FRAME.search(attributes)
        return frames.get(found[1], "") if found else ""

    return source
