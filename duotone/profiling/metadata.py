"""Stats of a plane of a trace, and the compiled programs of the metadata plane."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jax.profiler import ProfileData

from duotone.profiling import wire

PROGRAM = re.compile(r"(.*)\((\d+)\)$")
"""How a program is called, by its module and its number."""


def stats_of(plane: wire.Plane) -> dict[str, Any]:
    """The stats of a plane itself, by name."""
    space = wire.message(1, plane.head)
    return {
        name: value
        for part in ProfileData.from_serialized_xspace(space).planes
        for name, value in part.stats
    }


def programs_in(data: wire.Buffer, plane: wire.Plane) -> Iterator[tuple[int, bytes]]:
    """The compiled programs of the metadata plane, by number.

    Each stands as a stat of bytes (an ``HloProto``, whose field 1 is the module) in metadata of an
    event that is called ``module(number)``.
    """
    for place in plane.metadata:
        name, module = "", b""
        for entry in _inside(data, place.inside, place.end, 2):
            for field in wire.fields(data, entry.inside, entry.end):
                if field.number == 2:
                    name = data[field.inside : field.end].decode(errors="replace")
                elif field.number == 5:
                    for proto in _inside(data, field.inside, field.end, 6):
                        for part in _inside(data, proto.inside, proto.end, 1):
                            module = data[part.inside : part.end]
        found = PROGRAM.match(name)
        if found and module:
            yield int(found[2]), bytes(module)


def _inside(data: wire.Buffer, start: int, end: int, number: int) -> Iterator[wire.Field]:
    """The messages of one number between two places."""
    for field in wire.fields(data, start, end):
        if field.number == number and field.is_message:
            yield field
