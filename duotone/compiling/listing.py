"""Listing: a program as numbers, for the search for repeats.

Equations that nothing reads are omitted. Each value has a number. Results of equations count from 0
in order. Arguments, constants and literals have negative numbers; equal literals share a number.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from duotone import _jax
from duotone.compiling.keys import Keys, offsets

LITERALS = -(2**40)
"""Numbers of literals are at most this."""


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """A program as numbers.

    Attributes:
        jaxpr: the program.
        eqns: its equations, without dead ones.
        keys: structural key of each equation, int64[equations].
        weights: the number of equations in each, including nested ones, int64[equations].
        first: number of the first result of each equation and of the end, int64[equations + 1].
        slots: first operand of each equation in ``operands``, int64[equations + 1].
        operands: numbers of the values that equations read, in order, int64[operands].
        atoms: a variable or literal for each number.
        outputs: numbers of the results of the program.
        last_use: the last equation that reads each value that an equation makes; the number of
            equations if the program returns it, -1 if nothing does.
        offsets: the starts of slices and the leading padding of pads, by equation.
    """

    jaxpr: _jax.ClosedJaxpr
    eqns: list[_jax.Eqn]
    keys: np.ndarray
    weights: np.ndarray
    first: np.ndarray
    slots: np.ndarray
    operands: np.ndarray
    atoms: dict[int, _jax.Atom]
    outputs: list[int]
    last_use: np.ndarray
    offsets: dict[int, tuple[int, ...]]

    def results(self, position: int) -> range:
        """Returns numbers of the results of an equation."""
        return range(int(self.first[position]), int(self.first[position + 1]))

    def reads(self, position: int) -> list[int]:
        """Returns numbers of the operands of an equation."""
        return self.operands[self.slots[position] : self.slots[position + 1]].tolist()

    def bytes_of(self, value: int) -> int:
        """Returns the size of a value."""
        return aval_bytes(self.atoms[value].aval)


def aval_bytes(aval: Any) -> int:
    """Returns the bytes of a value of this type; 8 per element if unknown (random keys)."""
    if not hasattr(aval, "shape"):
        return 0
    return int(np.prod(aval.shape, dtype=np.int64)) * getattr(aval.dtype, "itemsize", 8)


def is_reference(aval: Any) -> bool:
    """Returns True for a mutable reference, which no compiled program can take or return."""
    return hasattr(aval, "inner_aval")


def list_program(jaxpr: _jax.ClosedJaxpr) -> Listing:
    """Returns a program as numbers."""
    opened = _jax.open_jaxpr(jaxpr)
    eqns = _live(opened)
    keys = Keys()
    numbers: dict[Any, int] = {}
    literals: dict[Any, int] = {}
    atoms: dict[int, Any] = {}
    for position, var in enumerate((*opened.constvars, *opened.invars)):
        numbers[var] = -1 - position
        atoms[-1 - position] = var

    def number(atom: Any) -> int:
        if not _jax.is_literal(atom):
            return numbers[atom]
        value = np.asarray(atom.val)
        key = (atom.aval, value.dtype, value.tobytes() if value.dtype != object else id(atom.val))
        found = literals.setdefault(key, LITERALS - len(literals))
        atoms.setdefault(found, atom)
        return found

    first, slots, operands = [0], [0], []
    for eqn in eqns:
        operands += [number(atom) for atom in eqn.invars]
        slots.append(len(operands))
        for value, var in enumerate(eqn.outvars, first[-1]):
            numbers[var] = value
            atoms[value] = var
        first.append(first[-1] + len(eqn.outvars))
    outputs = [number(atom) for atom in opened.outvars]
    read = np.asarray(operands, np.int64)
    borders = np.asarray(first, np.int64), np.asarray(slots, np.int64)
    moving = {i: found for i, eqn in enumerate(eqns) if (found := offsets(eqn)) is not None}
    return Listing(
        jaxpr,
        eqns,
        np.array([keys.of(eqn) for eqn in eqns], np.int64),
        np.array([count_equations(eqn) for eqn in eqns], np.int64),
        *borders,
        read,
        atoms,
        outputs,
        last_uses(*borders, read, outputs),
        moving,
    )


def last_uses(
    first: np.ndarray, slots: np.ndarray, operands: np.ndarray, outputs: list[int]
) -> np.ndarray:
    """Returns the last equation that reads each value; see :attr:`Listing.last_use`."""
    count = len(slots) - 1
    readers = np.repeat(np.arange(count), np.diff(slots))
    last = np.full(first[-1], -1, np.int64)
    np.maximum.at(last, operands[operands >= 0], readers[operands >= 0])
    last[[value for value in outputs if value >= 0]] = count
    return last


def _live(opened: _jax.OpenJaxpr) -> list[_jax.Eqn]:
    """Returns the equations that lead to a result or have an effect."""
    needed = {atom for atom in opened.outvars if not _jax.is_literal(atom)}
    live = []
    for eqn in reversed(opened.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            live.append(eqn)
            needed.update(atom for atom in eqn.invars if not _jax.is_literal(atom))
    return live[::-1]


def count_equations(eqn: _jax.Eqn) -> int:
    """Returns the number of equations in an equation, each of a nested program counted once."""
    inside = 0
    for param in eqn.params.values():
        for program in param if isinstance(param, (tuple, list)) else (param,):
            inside += sum(count_equations(e) for e in getattr(_jax.open_jaxpr(program), "eqns", ()))
    return max(inside, 1)
