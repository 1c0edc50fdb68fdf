"""Edits: reorders, adds and removes equations of a listing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from duotone import _jax
from duotone.compiling.listing import Listing, last_uses


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Added:
    """An equation that is added to a program.

    Attributes:
        eqn: the equation.
        like: the position of the equation that it repeats; ``None`` for a new one.
        reads: its operands: numbers of values, or results of added equations.
    """

    eqn: _jax.Eqn
    like: int | None
    reads: tuple[Read, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class AddedResult:
    """A result of an added equation."""

    of: Added
    index: int = 0


Read = int | AddedResult


def makers(listing: Listing) -> np.ndarray:
    """Returns the position of the equation that makes each value, int64[values]."""
    return np.repeat(np.arange(len(listing.eqns)), np.diff(listing.first))


def edited(
    listing: Listing,
    order: Sequence[int | Added],
    changed: Mapping[int, Read],
    literals: Mapping[int, _jax.Atom] | None = None,
) -> Listing:
    """Returns a program with the equations of ``order``.

    Args:
        listing: the program.
        order: positions of its equations, and added equations. If an equation is removed,
            ``changed`` must replace the operands that read it.
        changed: new operands, by their index in ``listing.operands``.
        literals: new literals, by number.
    """
    counts = [
        len(step.eqn.outvars) if isinstance(step, Added) else len(listing.results(step))
        for step in order
    ]
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    renumbered = np.full(int(listing.first[-1]), np.iinfo(np.int64).min, np.int64)
    begins: dict[Added, int] = {}
    atoms = {n: atom for n, atom in listing.atoms.items() if n < 0} | dict(literals or {})
    for step, at in zip(order, first.tolist(), strict=False):
        variables = step.eqn.outvars if isinstance(step, Added) else listing.eqns[step].outvars
        atoms.update(zip(itertools.count(at), variables, strict=False))
        if isinstance(step, Added):
            begins[step] = at
        else:
            old = listing.results(step)
            renumbered[old.start : old.stop] = np.arange(at, at + len(old))

    def number(read: Read) -> int:
        if isinstance(read, AddedResult):
            return begins[read.of] + read.index
        return int(renumbered[read]) if read >= 0 else read

    operands: list[int] = []
    slots = [0]
    for step in order:
        if isinstance(step, Added):
            operands += [number(read) for read in step.reads]
        else:
            low, high = int(listing.slots[step]), int(listing.slots[step + 1])
            old = listing.operands[low:high].tolist()
            operands += [
                number(changed.get(at, read))
                for at, read in zip(range(low, high), old, strict=True)
            ]
        slots.append(len(operands))
    like = [step.like if isinstance(step, Added) else step for step in order]
    outputs = [number(value) for value in listing.outputs]
    read, borders = np.asarray(operands, np.int64), np.asarray(slots, np.int64)
    return Listing(
        listing.jaxpr,
        [step.eqn if isinstance(step, Added) else listing.eqns[step] for step in order],
        np.array(  # a new equation has a unique key
            [-1 - i if at is None else listing.keys[at] for i, at in enumerate(like)], np.int64
        ),
        np.array([1 if at is None else listing.weights[at] for at in like], np.int64),
        first,
        borders,
        read,
        atoms,
        outputs,
        last_uses(first, borders, read, outputs),
        {
            position: listing.offsets[at]
            for position, at in enumerate(like)
            if at is not None and at in listing.offsets
        },
    )
