"""Ranges: what the values of a program can be, and what that changes for a painter.

::

    Graph ─ find_ranges ─► Ranges ─ deny_out_of_range, store_in_half, keep_digits ─► Classes

:func:`find_ranges` gives an interval to each value of which anything is known: from constants, from
operations with bounded results, from relations between two values (``x - max(x)`` is not
positive), and from what the user states or calibration measured, which :func:`assume` looks up by
name. The stages of :mod:`duotone.precision.ranges.refine` write what follows from them into the
classes that painters read.
"""

from duotone.precision.ranges.assume import (
    assume,
    check_fingerprint,
    fingerprint,
    nearest,
    path_of,
    paths_of,
)
from duotone.precision.ranges.find import (
    NO_ASSUMPTIONS,
    NO_RANGES,
    Assumptions,
    Measured,
    Ranges,
    find_ranges,
)
from duotone.precision.ranges.interval import Interval

__all__ = [
    "NO_ASSUMPTIONS",
    "NO_RANGES",
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
]
