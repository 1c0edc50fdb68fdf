"""Program: carries a plan out, equation by equation and loop by loop.

A loop is one ``lax.scan``. What it carries are *registers*: the value that a copy hands to the next
one, and behind it those handed on before, where a copy reads from further back. Bodies of loops,
and programs inside of ``jit``, ``scan``, ``while`` and ``cond``, are planned and carried out alike.

Who calls this: :mod:`duotone.compiling.reroll`, inside of a trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from duotone import _jax
from duotone.compiling.copies import slots_of
from duotone.compiling.listing import LITERALS, list_program
from duotone.compiling.plan import Join, Line, Loop, Plan, make_plan
from duotone.compiling.sources import Piece, Source, StackKey

Lines = list[Line]
_LEAST_INSIDE = 128
"""Equations from which on a nested program is looked at."""


def rolled(jaxpr: _jax.ClosedJaxpr, lines: Lines, depth: int = 0) -> Callable[..., list[Any]]:
    """A program whose repeated parts are loops.

    Args:
        jaxpr: the program.
        lines: what became of each run is added here while the program runs.
        depth: how many loops of ours it stands in.

    Returns:
        Takes the arguments of the program as arrays; returns its results.
    """
    plan = make_plan(list_program(jaxpr))

    def run(*arguments: Any) -> list[Any]:
        lines.extend(dataclasses.replace(line, depth=depth) for line in plan.lines)
        return _Run(plan, lines, depth)(arguments)

    return run


class _Run:
    """One run through a plan: values by number, and stacks."""

    def __init__(self, plan: Plan, lines: Lines, depth: int) -> None:
        self.plan, self.listing = plan, plan.listing
        self.lines, self.depth = lines, depth
        self.values: dict[int, Any] = {}
        self.stacks: dict[StackKey, Any] = {}

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        jaxpr = self.listing.jaxpr
        known = (*_jax.consts_of(jaxpr), *arguments)
        self.values.update({-1 - place: array for place, array in enumerate(known)})
        for step in self.plan.steps:
            if isinstance(step, Loop):
                _LoopRun(self, step)()
            elif isinstance(step, Join):
                self._join(step)
            else:
                self._bind(step)
        return [self.read(value) for value in self.listing.outputs]

    def read(self, value: int) -> Any:
        """A value, taken from a stack if it stands in none but that."""
        if value <= LITERALS:
            return self.listing.atoms[value].val
        if value not in self.values:
            for stack, index in self.plan.places.get(value, ()):
                if stack in self.stacks:
                    self.values[value] = lax.index_in_dim(self.stacks[stack], index, keepdims=False)
                    break
        return self.values[value]

    def _bind(self, position: int) -> None:
        eqn = self.listing.eqns[position]
        operands = [self.read(value) for value in self.listing.reads(position)]
        results = bind_rolled(eqn, operands, self.lines, self.depth)
        self.values.update(zip(self.listing.results(position), results, strict=True))
        key = (position, "split", 0)
        if key in self.plan.wanted:
            self.stacks[key] = jnp.moveaxis(operands[0], eqn.params["axis"], 0)

    def _join(self, join: Join) -> None:
        eqn = self.listing.eqns[join.position]
        stack = self.stacked(join.source)
        if eqn.primitive.name == "stack":
            result = jnp.moveaxis(stack, 0, eqn.params["axis"])
        else:
            axis, shape = eqn.params["dimension"], eqn.outvars[0].aval.shape
            result = jnp.moveaxis(stack, 0, axis).reshape(shape)
        self.values[self.listing.results(join.position)[0]] = result

    def stacked(self, source: Source) -> Any:
        """The stacked array of a source."""
        if not source.pieces:
            atoms = [self.listing.atoms[value] for value in source.values]
            numbers = np.stack([np.asarray(atom.val, atom.aval.dtype) for atom in atoms])
            return _jax.convert(numbers, numbers.dtype, atoms[0].aval.weak_type)
        pieces = [self._piece(piece) for piece in source.pieces]
        return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)

    def _piece(self, piece: Piece) -> Any:
        if piece.stack is None:
            aval = self.listing.atoms[piece.start].aval
            value = self.read(piece.start)
            if isinstance(value, np.ndarray | np.generic | float | int | complex):
                value = jnp.asarray(value, aval.dtype)
            return lax.expand_dims(value, (0,))
        stack = self.stacks[piece.stack]
        low = piece.start if piece.step > 0 else piece.start - piece.length + 1
        if piece.length < stack.shape[0]:
            stack = lax.slice_in_dim(stack, low, low + piece.length)
        return stack if piece.step > 0 else lax.rev(stack, (0,))


class _LoopRun:
    """One loop."""

    def __init__(self, run: _Run, loop: Loop) -> None:
        self.run, self.loop, self.listing = run, loop, run.listing
        copies = loop.copies
        self.slots = list(slots_of(self.listing, copies))
        self.base = int(self.listing.first[copies.start])
        self.model = int(self.listing.first[copies.model])
        self.made = int(self.listing.first[copies.start + copies.period]) - self.base
        self.chains: dict[tuple[int, ...], int] = {}  # offset, first values: place among registers
        self.reads: dict[int, int] = {}  # slot: register
        self.registers: list[tuple[int, int]] = []  # offset, the register before or -1
        self.first: list[Any] = []
        self._find_registers()
        self.lasting = [
            offset
            for offset, used in loop.kept.items()
            if used == (copies.count - 1,)
            and not any(made == offset for made, _ in self.registers)
            and (loop.number, "out", offset) not in run.plan.wanted
            and (loop.number, "early", offset) not in run.plan.wanted
        ]

    def _find_registers(self) -> None:
        place = 0
        for _, slots in self.slots:
            for slot in slots:
                if slot.kind == "carried":
                    self.reads[place] = self._chain(slot.offset, slot.values)
                place += 1

    def _chain(self, offset: int, values: tuple[int, ...]) -> int:
        """The register that holds what was made ``len(values)`` copies ago."""
        before = -1
        for depth in range(1, len(values) + 1):
            key = (offset, depth, *values[len(values) - depth :])
            if key not in self.chains:
                self.chains[key] = len(self.registers)
                self.registers.append((offset, before))
                self.first.append(self.run.read(values[len(values) - depth]))
            before = self.chains[key]
        return before

    def __call__(self) -> None:
        loop, wanted = self.loop, self.run.plan.wanted
        each = {place: self.run.stacked(source) for place, source in loop.sources.items()}
        self.fixed: dict[int, Any] = {}
        early = self._early(each)
        outs = [key[2] for key in sorted(wanted) if key[:2] == (loop.number, "out")]
        ins = [key[2] for key in sorted(wanted) if key[:2] == (loop.number, "in")]
        for offset in early:
            self.run.stacks[loop.number, "early", offset] = early[offset]
        if len(loop.early) == loop.copies.period:
            return
        self._hoist()
        moving = self._moving()
        carry, stacks = self._scan(each, early, moving, outs, ins)
        for kind, offsets in (("out", outs), ("in", ins)):
            for offset in offsets:
                self.run.stacks[loop.number, kind, offset] = stacks.pop(0)
        self._hand_on(carry)

    def _early(self, each: dict[int, Any]) -> dict[int, Any]:
        """The stacks of what is made for all copies before the loop, by offset."""
        stacks: dict[int, Any] = {}
        place = 0
        for position, slots in self.slots:
            if position in self.loop.early:
                eqn = self.listing.eqns[self.loop.copies.model + position]
                offset = self.listing.results(self.loop.copies.model + position)[0] - self.model
                if position in self.loop.windows:
                    array = self.run.read(slots[0].values[0])
                    stacks[offset] = _windows(array, self.loop, position)
                else:
                    slot = slots[0]
                    stack = each[place] if slot.kind == "each" else stacks[slot.offset]
                    stacks[offset] = jax.vmap(lambda x, eqn=eqn: _jax.bind_again(eqn, [x])[0])(stack)
            place += len(slots)
        return stacks

    def _hoist(self) -> None:
        """Makes what is the same in all copies once, where that takes no memory."""
        for position, slots in self.slots:
            eqn = self.listing.eqns[self.loop.copies.model + position]
            known = all(s.kind == "same" or (s.kind == "inside" and s.offset in self.fixed) for s in slots)
            if not known or eqn.effects or position in self.loop.early or position in self.loop.copies.moving:
                continue
            if sum(v.aval.size for v in eqn.outvars) > sum(a.aval.size for a in eqn.invars):
                continue
            operands = [
                self.run.read(s.values[0]) if s.kind == "same" else self.fixed[s.offset] for s in slots
            ]
            results = self.listing.results(self.loop.copies.model + position)
            made = _jax.bind_again(eqn, operands)
            self.fixed.update(zip([value - self.model for value in results], made, strict=True))

    def _moving(self) -> dict[int, Any]:
        order = slice(None, None, -1 if self.loop.reverse else 1)
        return {
            position: np.ascontiguousarray(rows[order]).astype(np.int32)
            for position, rows in self.loop.copies.moving.items()
            if position not in self.loop.early
        }

    def _scan(
        self,
        each: dict[int, Any],
        early: dict[int, Any],
        moving: dict[int, Any],
        outs: list[int],
        ins: list[int],
    ) -> tuple[list[Any], list[Any]]:
        loop = self.loop
        read_early = self._offsets_read() & set(early)
        early = {offset: early[offset] for offset in sorted(read_early)}
        used = self._slots_bound()
        xs = ({place: each[place] for place in each if place in used}, early, moving)
        avals = {offset: self.listing.atoms[self.model + offset].aval for offset in self.lasting}
        unset = [jnp.zeros(avals[offset].shape, avals[offset].dtype) for offset in self.lasting]
        init = [*self.first, *unset]

        def body(carry: list[Any], x: Any) -> tuple[list[Any], list[Any]]:
            made = self._copy(carry, *x)
            after = [
                made[offset] if before < 0 else carry[before] for offset, before in self.registers
            ]
            after += [made[offset] for offset in self.lasting]
            ys = [made[offset] for offset in outs] + [carry[self.reads[place]] for place in ins]
            return after, ys

        return lax.scan(
            _rolled_body(body, self.run, loop, init, xs),
            init,
            xs,
            length=loop.copies.count,
            reverse=loop.reverse,
        )

    def _offsets_read(self) -> set[int]:
        found = {offset for offset, _ in self.registers} | set(self.lasting)
        for position, slots in self.slots:
            if position not in self.loop.early:
                found |= {slot.offset for slot in slots if slot.kind == "inside"}
        return found

    def _slots_bound(self) -> set[int]:
        found, place = set(), 0
        for position, slots in self.slots:
            if position not in self.loop.early:
                found |= set(range(place, place + len(slots)))
            place += len(slots)
        return found

    def _copy(self, carry: list[Any], each: Any, early: Any, moving: Any) -> dict[int, Any]:
        """The results of one copy, by offset."""
        made = {**self.fixed, **early}
        place = 0
        for position, slots in self.slots:
            places = range(place, place + len(slots))
            place += len(slots)
            results = self.listing.results(self.loop.copies.model + position)
            offsets = [value - self.model for value in results]
            if position in self.loop.early or all(offset in made for offset in offsets):
                continue
            operands = []
            for at, slot in zip(places, slots, strict=True):
                if slot.kind == "inside":
                    operands.append(made[slot.offset])
                elif slot.kind == "carried":
                    operands.append(carry[self.reads[at]])
                else:
                    operands.append(each[at] if slot.kind == "each" else self.run.read(slot.values[0]))
            eqn = self.listing.eqns[self.loop.copies.model + position]
            if position in moving:
                outs = [_moved(eqn, operands, moving[position])]
            else:
                outs = _jax.bind_again(eqn, operands)
            made.update(zip(offsets, outs, strict=True))
        return made

    def _hand_on(self, carry: list[Any]) -> None:
        """Writes what the last copies made and the loop carried out."""
        last = self.base + (self.loop.copies.count - 1) * self.made
        depths: dict[int, int] = {}
        for place, (offset, before) in enumerate(self.registers):
            depths[place] = depths[before] + 1 if before >= 0 else 0
            self.run.values[last - depths[place] * self.made + offset] = carry[place]
        for offset, array in zip(self.lasting, carry[len(self.registers) :], strict=True):
            self.run.values[last + offset] = array


def _windows(array: Any, loop: Loop, position: int) -> Any:
    """Slices of one index each along an axis, stacked."""
    axis, start, step = loop.windows[position]
    count = loop.copies.count
    low, high = sorted((start, start + step * (count - 1)))
    stack = lax.slice_in_dim(array, low, high + 1, stride=abs(step), axis=axis)
    stack = lax.expand_dims(jnp.moveaxis(stack, axis, 0), (axis + 1,))
    return stack if step > 0 else lax.rev(stack, (0,))


def _moved(eqn: _jax.Eqn, operands: list[Any], start: Any) -> Any:
    """A ``slice`` or ``pad`` at an index that is only known in the loop."""
    indices = [start[axis] for axis in range(start.shape[0])]
    shape = eqn.outvars[0].aval.shape
    if eqn.primitive.name == "slice":
        return lax.dynamic_slice(operands[0], indices, shape)
    array, around = operands
    return lax.dynamic_update_slice(lax.broadcast(lax.convert_element_type(around, array.dtype), shape), array, indices)


def _rolled_body(body: Callable[..., Any], run: _Run, loop: Loop, init: Any, xs: Any) -> Callable[..., Any]:
    """The body of a loop, its own repeated parts loops as well."""
    if loop.copies.period < _LEAST_INSIDE:
        return body
    one = jax.tree.map(lambda x: jax.typeof(x[0]) if isinstance(x, np.ndarray) else lax.index_in_dim(x, 0, keepdims=False), xs)
    jaxpr, shape = jax.make_jaxpr(body, return_shape=True)(init, one)
    again = rolled(jaxpr, run.lines, run.depth + 1)
    tree = jax.tree.structure(shape)
    return lambda carry, x: jax.tree.unflatten(tree, again(*jax.tree.leaves((carry, x))))


def bind_rolled(eqn: _jax.Eqn, operands: list[Any], lines: Lines, depth: int) -> list[Any]:
    """Binds an equation; programs inside of it are rolled."""
    names = _INSIDE.get(eqn.primitive.name)
    if names is None:
        return _jax.bind_again(eqn, operands)
    params = dict(eqn.params)
    for name in names:
        programs = params[name]
        if isinstance(programs, (tuple, list)):
            params[name] = type(programs)([_rolled_inside(p, lines, depth) for p in programs])
        else:
            params[name] = _rolled_inside(programs, lines, depth)
    if all(params[name] is eqn.params[name] for name in names):
        return _jax.bind_again(eqn, operands)
    with _jax.EquationContext(eqn):
        return _jax.bind(eqn, operands, params)


_INSIDE = {"jit": ("jaxpr",), "pjit": ("jaxpr",), "scan": ("jaxpr",), "cond": ("branches",),
           "while": ("cond_jaxpr", "body_jaxpr")}


def _rolled_inside(jaxpr: _jax.ClosedJaxpr, lines: Lines, depth: int) -> _jax.ClosedJaxpr:
    """A nested program, rolled; the same object if nothing becomes a loop."""
    opened = _jax.open_jaxpr(jaxpr)
    mine: Lines = []
    new = jax.make_jaxpr(rolled(jaxpr, mine, depth))(*[var.aval for var in opened.invars])
    lines += mine
    same = all(
        _jax.same_type(a.aval, b.aval)
        for a, b in zip(opened.outvars, _jax.open_jaxpr(new).outvars, strict=True)
    )
    return new if same and any(line.rolled for line in mine) else jaxpr

