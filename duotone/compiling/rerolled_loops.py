"""Loops: a run of a plan as one ``lax.scan``.

A loop carries *registers*: the value that a copy passes to the next one, and older such values if a
copy reads from more than one copy back.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from duotone import _jax
from duotone.compiling.copies import slots_of
from duotone.compiling.loop_plan import Loop

if TYPE_CHECKING:
    from duotone.compiling.rerolled_program import ProgramRun


class LoopRun:
    """Runs one loop."""

    def __init__(self, run: ProgramRun, loop: Loop) -> None:
        self.run, self.loop, self.listing = run, loop, run.listing
        self.wanted = run.plan.wanted
        copies, numbers = loop.copies, itertools.count()
        self.slots = [
            (position, [(next(numbers), slot) for slot in slots])
            for position, slots in slots_of(self.listing, copies)
        ]
        self.base = int(self.listing.first[copies.start])
        self.model = int(self.listing.first[copies.model])
        self.made = int(self.listing.first[copies.start + copies.period]) - self.base
        self.chains: dict[tuple[int, ...], int] = {}  # offset, first values: index of the register
        self.reads: dict[int, int] = {}  # slot: register
        self.registers: list[tuple[int, int]] = []  # offset, the register before or -1
        self.first: list[Any] = []
        for _, slots in self.slots:
            for index, slot in slots:
                if slot.kind == "carried":
                    self.reads[index] = self._chain(slot.offset, slot.values)
        self.lasting = [
            offset
            for offset, used in loop.kept.items()
            if used == (copies.count - 1,)
            and not any(made == offset for made, _ in self.registers)
            and (loop.number, "out", offset) not in self.wanted
            and (loop.number, "early", offset) not in self.wanted
        ]

    def _chain(self, offset: int, values: tuple[int, ...]) -> int:
        """Returns the register of a result from ``len(values)`` copies ago."""
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
        """Binds the loop; writes its results to the values and stacks of the program."""
        loop, wanted = self.loop, self.wanted
        each = {slot: self.run.stacked(source) for slot, source in loop.sources.items()}
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
        self._write_carried(carry)

    def _early(self, each: dict[int, Any]) -> dict[int, Any]:
        """Returns the stacks of the results that are computed before the loop, by offset."""
        stacks: dict[int, Any] = {}
        for position, slots in self.slots:
            if position not in self.loop.early:
                continue
            eqn = self.listing.eqns[self.loop.copies.model + position]
            offset = self.listing.results(self.loop.copies.model + position)[0] - self.model
            index, slot = slots[0]
            if position in self.loop.windows:
                stacks[offset] = _windows(self.run.read(slot.values[0]), self.loop, position)
            else:
                stack = each[index] if slot.kind == "each" else stacks[slot.offset]
                stacks[offset] = jax.vmap(lambda x, eqn=eqn: _jax.bind_again(eqn, [x])[0])(stack)
        return stacks

    def _hoist(self) -> None:
        """Computes results that are equal in all copies once, if that takes no more memory."""
        for position, slots in self.slots:
            eqn = self.listing.eqns[self.loop.copies.model + position]
            known = all(
                s.kind == "same" or (s.kind == "inside" and s.offset in self.fixed)
                for _, s in slots
            )
            if (
                not known
                or eqn.effects
                or position in self.loop.early
                or position in self.loop.copies.moving
            ):
                continue
            if sum(v.aval.size for v in eqn.outvars) > sum(a.aval.size for a in eqn.invars):
                continue
            operands = [
                self.run.read(s.values[0]) if s.kind == "same" else self.fixed[s.offset]
                for _, s in slots
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
        bound = [slots for position, slots in self.slots if position not in loop.early]
        used = {index: each[index] for slots in bound for index, _ in slots if index in each}
        xs = (used, early, moving)
        avals = {offset: self.listing.atoms[self.model + offset].aval for offset in self.lasting}
        unset = [jnp.zeros(avals[offset].shape, avals[offset].dtype) for offset in self.lasting]
        init = [*self.first, *unset]

        def body(carry: list[Any], x: Any) -> tuple[list[Any], list[Any]]:
            made = self._copy(carry, *x)
            after = [
                made[offset] if before < 0 else carry[before] for offset, before in self.registers
            ]
            after += [made[offset] for offset in self.lasting]
            ys = [made[offset] for offset in outs] + [carry[self.reads[index]] for index in ins]
            return after, ys

        return lax.scan(
            self.run.finished(body, loop, init, xs),
            init,
            xs,
            length=loop.copies.count,
            reverse=loop.reverse,
        )

    def _offsets_read(self) -> set[int]:
        found = {offset for offset, _ in self.registers} | set(self.lasting)
        for position, slots in self.slots:
            if position not in self.loop.early:
                found |= {slot.offset for _, slot in slots if slot.kind == "inside"}
        return found

    def _copy(self, carry: list[Any], each: Any, early: Any, moving: Any) -> dict[int, Any]:
        """Returns the results of one copy, by offset."""
        made = {**self.fixed, **early}
        for position, slots in self.slots:
            results = self.listing.results(self.loop.copies.model + position)
            offsets = [value - self.model for value in results]
            if position in self.loop.early or (offsets and offsets[0] in made):
                continue
            operands = []
            for index, slot in slots:
                if slot.kind == "inside":
                    operands.append(made[slot.offset])
                elif slot.kind == "carried":
                    operands.append(carry[self.reads[index]])
                else:
                    is_each = slot.kind == "each"
                    operands.append(each[index] if is_each else self.run.read(slot.values[0]))
            eqn = self.listing.eqns[self.loop.copies.model + position]
            if position in moving:
                outs = [_moved(eqn, operands, moving[position])]
            else:
                outs = _jax.bind_again(eqn, operands)
            made.update(zip(offsets, outs, strict=True))
        return made

    def _write_carried(self, carry: list[Any]) -> None:
        """Writes the carried results of the last copies to the values of the program."""
        last = self.base + (self.loop.copies.count - 1) * self.made
        depths: dict[int, int] = {}
        for register, (offset, before) in enumerate(self.registers):
            depths[register] = depths[before] + 1 if before >= 0 else 0
            self.run.values[last - depths[register] * self.made + offset] = carry[register]
        for offset, array in zip(self.lasting, carry[len(self.registers) :], strict=True):
            self.run.values[last + offset] = array


def _windows(array: Any, loop: Loop, position: int) -> Any:
    """Returns stacked slices of size 1 along an axis."""
    axis, start, step = loop.windows[position]
    count = loop.copies.count
    low, high = sorted((start, start + step * (count - 1)))
    stack = lax.slice_in_dim(array, low, high + 1, stride=abs(step), axis=axis)
    stack = lax.expand_dims(jnp.moveaxis(stack, axis, 0), (axis + 1,))
    return stack if step > 0 else lax.rev(stack, (0,))


def _moved(eqn: _jax.Eqn, operands: list[Any], start: Any) -> Any:
    """Returns a ``slice`` or ``pad`` whose start depends on the iteration."""
    indices = [start[axis] for axis in range(start.shape[0])]
    shape = eqn.outvars[0].aval.shape
    if eqn.primitive.name == "slice":
        return lax.dynamic_slice(operands[0], indices, shape)
    array, around = operands
    return lax.dynamic_update_slice(
        lax.broadcast(lax.convert_element_type(around, array.dtype), shape), array, indices
    )
