"""Scientific programs: what ``benchmarks.sciences`` measures.

Each file has a table of :class:`Program` cases. Libraries are imported when a program of theirs is
made: none is a dependency.
"""

from benchmarks.science import algebra, dynamics, regression, sampling, solving
from benchmarks.science.case import Program

PROGRAMS: tuple[Program, ...] = (
    *regression.PROGRAMS,
    *solving.PROGRAMS,
    *sampling.PROGRAMS,
    *dynamics.PROGRAMS,
    *algebra.PROGRAMS,
)
"""All of them, in the order of the table."""
