"""Selects the measurements of a program from those of the user, as ranges of its values."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence

from duotone.graph.graph import Graph
from duotone.precision.ranges.assume import assume, check_fingerprint, fingerprint
from duotone.precision.ranges.find import Assumptions, Measured
from duotone.precision.ranges.interval import Interval

logger = logging.getLogger("duotone")


@dataclasses.dataclass(frozen=True, slots=True)
class Measurements:
    """The values of one function as calibration measured them.

    Attributes:
        function: its name, for people.
        fingerprint: the fingerprint of its graph.
        values: the measurement of each value, by its index in the graph.
    """

    function: str
    fingerprint: str
    values: Mapping[int, Measured]


def assumptions_of(
    graph: Graph,
    stated: Sequence[tuple[str, Interval]],
    measurements: Measurements | tuple[Measurements, ...] | None,
    arguments: Sequence[str] | None,
) -> Assumptions:
    """Returns the ranges of a program's values that a user states or calibration measured.

    Args:
        graph: the program.
        stated: name patterns and intervals.
        measurements: the measurements of this program, or of several that may include it.
        arguments: the user's name of each argument; ``None`` if the program is only a part of the
            user's function, which was not measured by itself.

    Raises:
        CalibrationError: measurements that are given alone are those of another function.
        RangeError: as :func:`~duotone.precision.ranges.assume.assume`.
    """
    found = _of_program(measurements, graph) if arguments is not None else None
    return assume(graph, stated, arguments, {} if found is None else found.values)


def _of_program(
    given: Measurements | tuple[Measurements, ...] | None, graph: Graph
) -> Measurements | None:
    """Returns the measurements of a program; those that are given alone must be its own."""
    if not isinstance(given, tuple):
        if given is not None:
            check_fingerprint(given.fingerprint, graph, given.function)
        return given
    own = fingerprint(graph)
    for measured in given:
        if measured.fingerprint == own:
            return measured
    if given and own not in _UNMEASURED:
        _UNMEASURED.add(own)
        logger.warning(
            "no calibration is for this program (%d operations), so it is painted without one. "
            "There are those of %s; measure this one too, or leave it if it needs none.",
            len(graph.nodes),
            ", ".join(measured.function for measured in given),
        )
    return None


_UNMEASURED: set[str] = set()
"""Fingerprints of the programs that were already logged."""
