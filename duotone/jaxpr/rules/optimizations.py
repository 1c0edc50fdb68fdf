"""Optimizations, carried out: the one interpreter of their expressions in a program.

Which operations: :mod:`duotone.precision.optimize`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from duotone import _jax
from duotone.graph.graph import Paint
from duotone.jaxpr.reading.program import Step
from duotone.jaxpr.rules.expressions import evaluate
from duotone.jaxpr.rules.scatters import one_hot
from duotone.jaxpr.running.rewrite import Env, Rewriter
from duotone.precision.optimize.optimization import NOBODY, Optimization

Own = Callable[[Sequence[Any]], Any]
"""Carries an operation out, of other operands."""


def carried_out(r: Rewriter, step: Step, env: Env, optimization: Optimization, own: Own) -> Any:
    """The result of an operation in another form.

    Args:
        r: the rewriter.
        step: of the operation.
        env: where what it reads is.
        optimization: the other form.
        own: the operation itself.
    """

    def read(value: int, reader: int, paint: Paint | None) -> Any:
        place = env if reader == NOBODY else r.source(env, reader, value)
        return r.read(place, value, r.stored(value) if paint is None else paint)

    eqn = step.eqn
    return evaluate(
        optimization.steps,
        {
            "read": read,
            "own": lambda *operands: own(operands),
            "made": made_again(r),
            "take": functools.partial(taken, eqn),
            "one_hot": functools.partial(one_hot, eqn),
            "rounded": r.rounded,
        },
    )


def made_again(r: Rewriter) -> Callable[..., Any]:
    """Carries out the operation that makes a value, of other operands."""

    def made(*operands: Any) -> Any:
        *arrays, value = operands
        eqn = r.step_of(value).eqn
        with _jax.EquationContext(eqn):
            return _jax.bind(eqn, arrays)[0]

    return made


def taken(eqn: _jax.Eqn, array: Any, at: Any) -> Any:
    """The gather of an operand that may have size 1 where the original one has more."""
    shape = eqn.invars[0].aval.shape
    there = [mine == size for mine, size in zip(jnp.shape(array), shape, strict=True)]
    params = dict(eqn.params)
    params["slice_sizes"] = tuple(
        size if full else 1 for size, full in zip(params["slice_sizes"], there, strict=True)
    )
    start = [there[axis] for axis in params["dimension_numbers"].start_index_map]
    if not all(start):
        columns = [lax.slice_in_dim(at, i, i + 1, axis=at.ndim - 1) for i in range(len(start))]
        columns = [
            column if full else lax.full_like(column, 0)
            for column, full in zip(columns, start, strict=True)
        ]
        at = lax.concatenate(columns, at.ndim - 1)
        params |= {"unique_indices": False, "indices_are_sorted": False}
    return _jax.bind(eqn, [array, at], params)[0]
