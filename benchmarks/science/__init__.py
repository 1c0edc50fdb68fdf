"""Scientific programs: what ``benchmarks.sciences`` measures.

Each file has a table of :class:`Program` cases. Libraries are imported when a program of theirs is
made: none is a dependency. Textbook programs without a library are in ``tests/numerics``.
"""

from benchmarks.science import dynamics, sampling, solving
from benchmarks.science.case import Program

PROGRAMS: tuple[Program, ...] = (*solving.PROGRAMS, *sampling.PROGRAMS, *dynamics.PROGRAMS)
"""All of them, in the order of the table."""
