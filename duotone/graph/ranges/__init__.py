"""Ranges: what the values of a program can be, and what that changes for a painter.

::

    Graph ─ find_ranges ─► Ranges ─ refine ─► Classes

:func:`find_ranges` gives an interval to each value of which anything is known: from constants, from
operations with bounded results, from relations between two values (``x - max(x)`` is not
positive), and from what the user states or calibration measured, which :func:`assume` looks up by
name. :func:`refine` writes what follows from them into the classes that painters read.
"""

from duotone.graph.ranges.assume import (
    assume,
    check_fingerprint,
    fingerprint,
    nearest,
    path_of,
    paths_of,
)
from duotone.graph.ranges.find import (
    NO_ASSUMPTIONS,
    Assumptions,
    Measured,
    Ranges,
    find_ranges,
)
from duotone.graph.ranges.interval import Interval
from duotone.graph.ranges.refine import refine

__all__ = [
    "NO_ASSUMPTIONS",
    "Assumptions",
    "Interval",
    "Measured",
    "Ranges",
    "assume",
    "check_fingerprint",
    "find_ranges",
    "fingerprint",
    "nearest",
    "path_of",
    "paths_of",
    "refine",
]
