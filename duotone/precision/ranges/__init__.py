"""Ranges: the intervals of a program's values, and their consequences for a painter.

::

    Graph ─ find_ranges ─► Ranges ─ deny_out_of_range, store_in_half, keep_digits ─► Classes

:func:`find_ranges` gives an interval to each value about which something is known. Its sources are
constants, operations with bounded results, relations between two values (``x - max(x)`` is not
positive), and statements of the user or measurements of calibration, which :func:`assume` looks up
by name. The stages of :mod:`duotone.precision.ranges.refine` put the
consequences into the classes that painters read.
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
