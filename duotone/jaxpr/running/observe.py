"""Observe: runs a program in full precision, equation by equation, and shows every value it makes.

Loops and branches run in Python, so the values inside a loop are shown for each iteration, and
only the taken branch is shown. A ``shard_map`` runs as one equation, and its inner values are not
shown. Each equation is compiled on its own, so this is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from duotone import _jax
from duotone.jaxpr.nesting.nested import is_mapped, keep_finished
from duotone.jaxpr.reading.program import BuiltGraph, Program, Step

Show = Callable[[int, Any], None]
"""Takes a graph value and its array; called each time the value is computed."""


def observe(built: BuiltGraph, arguments: Sequence[Any], show: Show) -> list[Any]:
    """Runs a program, shows the result of each equation, and returns its own results."""
    observer = _Observer(show)
    observer.arrays.update(zip(built.program.inputs, arguments, strict=True))
    return observer.run(built.program)


class _Observer:
    """The arrays so far, by graph value; an array that enters a body unchanged is one value."""

    def __init__(self, show: Show) -> None:
        self.arrays: dict[int, Any] = {}
        self._show = show

    def read(self, values: Iterable[int]) -> list[Any]:
        """Returns the arrays of values."""
        return [self.arrays[value] for value in values]

    def write(self, value: int, array: Any) -> None:
        """Keeps an array and shows it."""
        self.arrays[value] = array
        self._show(value, array)

    def run(self, program: Program) -> list[Any]:
        """Runs the steps of a program whose arguments are written."""
        self.arrays.update(program.constants)
        for step in program.steps:
            results = _HANDLERS.get(step.kind, _bound)(self, step)
            if step.kind == "inline":
                continue  # its results are values of the nested program, which were shown
            for value, array in zip(step.outputs, results, strict=True):
                self.write(value, array)
        return self.read(program.outputs)


def _bound(o: _Observer, step: Step) -> list[Any]:
    """Binds one equation unchanged."""
    with _jax.EquationContext(step.eqn):
        return _jax.bind(step.eqn, o.read(step.inputs))


def _once(o: _Observer, step: Step) -> list[Any]:
    return o.run(step.bodies[0])


def _cond(o: _Observer, step: Step) -> list[Any]:
    index = int(o.arrays[step.inputs[0]])
    return o.run(step.bodies[min(max(index, 0), len(step.bodies) - 1)])


def _while(o: _Observer, step: Step) -> list[Any]:
    condition, body = step.bodies
    count = len(step.outputs)
    carried = body.inputs[len(body.inputs) - count :]
    carry = o.read(step.inputs[len(step.inputs) - count :])
    while True:
        for value, array in zip(carried, carry, strict=True):
            o.write(value, array)
        (goes_on,) = o.run(condition)
        if not jax.numpy.any(goes_on):
            return carry
        new = o.run(body)
        carry = keep_finished(goes_on, carry, new) if is_mapped(step.eqn) else new


def _scan(o: _Observer, step: Step) -> list[Any]:
    (body,) = step.bodies
    length, reverse = step.eqn.params["length"], step.eqn.params["reverse"]
    num_consts, num_carry = _jax.scan_layout(step.eqn)
    split = num_consts + num_carry
    if not length:
        return _bound(o, step)
    carry, stacked = o.read(step.inputs[num_consts:split]), o.read(step.inputs[split:])
    rows: list[list[Any]] = []
    for i in reversed(range(length)) if reverse else range(length):
        row = [jax.lax.dynamic_index_in_dim(x, np.int32(i), keepdims=False) for x in stacked]
        for value, array in zip(body.inputs[num_consts:], [*carry, *row], strict=True):
            o.write(value, array)
        results = o.run(body)
        carry = results[:num_carry]
        rows.append(results[num_carry:])
    if reverse:
        rows.reverse()
    return [*carry, *[jax.numpy.stack(column) for column in zip(*rows, strict=True)]]


_HANDLERS: dict[str, Callable[[_Observer, Step], list[Any]]] = {
    **dict.fromkeys(("inline", "remat", "jit", "custom_jvp", "custom_vjp"), _once),
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}
"""By kind of step; every other kind is bound unchanged."""
