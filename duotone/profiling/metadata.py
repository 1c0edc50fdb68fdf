"""Reads the stats of a plane of a trace, and the compiled programs of the metadata plane."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jax.profiler import ProfileData

from duotone.profiling import wire

PROGRAM = re.compile(r"(.*)\((\d+)\)$")
"""The name of a program: its module and number."""


def stats_of(plane: wire.Plane) -> dict[str, Any]:
    """Returns the stats of a plane by name."""
    space = wire.message(1, plane.head)
    return {
        name: value
        for part in ProfileData.from_serialized_xspace(space).planes
        for name, value in part.stats
    }


def programs_in(data: wire.Buffer, plane: wire.Plane) -> Iterator[tuple[int, bytes]]:
    """Yields the compiled programs of the metadata plane, with their numbers.

    A program is a bytes stat (an ``HloProto``, whose field 1 is the module) in the metadata of an
    event named ``module(number)``.
    """
    for event in plane.metadata:
        name, module = "", b""
        for entry in _inside(data, event.inside, event.end, 2):
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
    """Yields the messages with a field number between two offsets."""
    for field in wire.fields(data, start, end):
        if field.number == number and field.is_message:
            yield field
