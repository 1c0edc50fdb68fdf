"""Program: applies a plan, equation by equation and loop by loop.

Bodies of loops, and programs inside ``jit``, ``scan``, ``while`` and ``cond``, are planned and
rewritten in the same way.
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
from duotone.compiling.listing import LITERALS, list_program
from duotone.compiling.loop_plan import Join, Line, Loop, LoopPlan
from duotone.compiling.rerolled_loops import LoopRun
from duotone.compiling.sources import IterationSource, Piece, StackKey
from duotone.jaxpr.running.jaxprs import same_type

Lines = list[Line]
_LEAST_INSIDE = 64
"""A nested program is rerolled if it has at least this many equations."""


def rolled(jaxpr: _jax.ClosedJaxpr, lines: Lines, depth: int = 0) -> Callable[..., list[Any]]:
    """Returns a program whose repeated parts are loops, as a function of its arguments.

    While it runs, it appends a line for each run; ``depth`` rerolled loops are around it.
    """
    plan = LoopPlan(list_program(jaxpr))

    def run(*arguments: Any) -> list[Any]:
        lines.extend(dataclasses.replace(line, depth=depth) for line in plan.lines)
        return ProgramRun(plan, lines, depth)(arguments)

    return run


class ProgramRun:
    """One run through a plan: values by number, and stacks."""

    def __init__(self, plan: LoopPlan, lines: Lines, depth: int) -> None:
        self.plan, self.listing = plan, plan.listing
        self.lines, self.depth = lines, depth
        self.values: dict[int, Any] = {}
        self.stacks: dict[StackKey, Any] = {}

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs the program."""
        jaxpr = self.listing.jaxpr
        known = (*_jax.consts_of(jaxpr), *arguments)
        self.values.update({-1 - position: array for position, array in enumerate(known)})
        for step in self.plan.steps:
            if isinstance(step, Loop):
                LoopRun(self, step)()
            elif isinstance(step, Join):
                self._join(step)
            else:
                self._bind(step)
        return [self.read(value) for value in self.listing.outputs]

    def read(self, value: int) -> Any:
        """Returns a value; sliced from a stack if it exists only there."""
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

    def stacked(self, source: IterationSource) -> Any:
        """Returns the stacked array of a source."""
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

    def finished(
        self, body: Callable[..., Any], loop: Loop, init: Any, xs: Any
    ) -> Callable[..., Any]:
        """Returns the body of a loop, with its own repeated parts rerolled."""
        if loop.copies.period < _LEAST_INSIDE:
            return body
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), xs)
        jaxpr, shape = jax.make_jaxpr(body, return_shape=True)(init, one)
        rerolled = rolled(jaxpr, self.lines, self.depth + 1)
        tree = jax.tree.structure(shape)
        return lambda carry, x: jax.tree.unflatten(tree, rerolled(*jax.tree.leaves((carry, x))))


def bind_rolled(eqn: _jax.Eqn, operands: list[Any], lines: Lines, depth: int) -> list[Any]:
    """Binds an equation; rerolls its nested programs."""
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


_INSIDE = {
    "jit": ("jaxpr",),
    "pjit": ("jaxpr",),
    "scan": ("jaxpr",),
    "cond": ("branches",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "custom_jvp_call": ("call_jaxpr",),  # its rule stays, for differentiation
}
"""Primitives that call programs, and the parameters that have these."""


def _rolled_inside(jaxpr: _jax.ClosedJaxpr, lines: Lines, depth: int) -> _jax.ClosedJaxpr:
    """Returns a nested program, rolled; the same object if nothing becomes a loop."""
    opened = _jax.open_jaxpr(jaxpr)
    mine: Lines = []
    new = jax.make_jaxpr(rolled(jaxpr, mine, depth))(*[var.aval for var in opened.invars])
    lines += mine
    same = all(
        same_type(a.aval, b.aval)
        for a, b in zip(opened.outvars, _jax.open_jaxpr(new).outvars, strict=True)
    )
    return new if same and any(line.rolled for line in mine) else jaxpr
