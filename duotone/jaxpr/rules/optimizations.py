"""Applies optimizations: the interpreter of their expressions.

:mod:`duotone.precision.optimize` decides which operations have an optimization.
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
from duotone.jaxpr.rules.convolutions import channelwise, padded_image
from duotone.jaxpr.rules.expressions import evaluate
from duotone.jaxpr.rules.instead import instead
from duotone.jaxpr.rules.library_gradients import dilated_gradient, transposed
from duotone.jaxpr.rules.pooling import pooled
from duotone.jaxpr.rules.scatters import one_hot
from duotone.jaxpr.running.env import Env
from duotone.jaxpr.running.rewrite import Rewriter
from duotone.precision.optimize.optimization import NOBODY, Optimization

Own = Callable[[Sequence[Any]], Any]
"""Binds the operation of a step to other operands."""


def apply_optimization(
    r: Rewriter, step: Step, env: Env, optimization: Optimization, own: Own
) -> Any:
    """Returns the result of an operation in another form; ``own`` binds the operation itself."""

    def read(value: int, reader: int, paint: Paint | None) -> Any:
        source = env if reader == NOBODY else r.source(env, reader, value)
        return r.read(source, value, r.stored(value) if paint is None else paint)

    eqn = step.eqn
    return evaluate(
        optimization.steps,
        {
            "read": read,
            "own": lambda *operands: own(operands),
            "made": bind_maker(r),
            "take": functools.partial(taken, eqn),
            "one_hot": functools.partial(one_hot, eqn),
            "channelwise_sums": with_plain_derivative(eqn, channelwise),
            "padded_images": functools.partial(padded_image, eqn),
            "transposed_convolutions": with_plain_derivative(eqn, transposed),
            "dilated_filters": functools.partial(padded_image, eqn),
            "dilated_gradients": with_plain_derivative(eqn, dilated_gradient),
            "pooling": with_plain_derivative(eqn, pooled),
            "rounded": r.rounded,
        },
    )


def with_plain_derivative(eqn: _jax.Eqn, form: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a form of an operation, with the derivative of the operation itself.

    JAX would keep a residual for each part of the form.
    """
    return lambda *operands: instead(_jax.bind(eqn, operands)[0], form(eqn, *operands))


def bind_maker(r: Rewriter) -> Callable[..., Any]:
    """Returns a function that binds the operation that makes a value to other operands."""

    def made(*operands: Any) -> Any:
        *arrays, value = operands
        eqn = r.step_of(value).eqn
        result = r.graph.nodes[r.graph.values[value].producer].outputs.index(value)
        with _jax.EquationContext(eqn):
            return _jax.bind(eqn, arrays)[result]

    return made


def taken(eqn: _jax.Eqn, array: Any, at: Any) -> Any:
    """Returns the gather of an operand whose axes may have size 1 instead of the original size."""
    shape = eqn.invars[0].aval.shape
    has_axis = [mine == size for mine, size in zip(jnp.shape(array), shape, strict=True)]
    params = dict(eqn.params)
    params["slice_sizes"] = tuple(
        size if full else 1 for size, full in zip(params["slice_sizes"], has_axis, strict=True)
    )
    start = [has_axis[axis] for axis in params["dimension_numbers"].start_index_map]
    if not all(start):
        columns = [lax.slice_in_dim(at, i, i + 1, axis=at.ndim - 1) for i in range(len(start))]
        columns = [
            column if full else lax.full_like(column, 0)
            for column, full in zip(columns, start, strict=True)
        ]
        at = lax.concatenate(columns, at.ndim - 1)
        params |= {"unique_indices": False, "indices_are_sorted": False}
    return _jax.bind(eqn, [array, at], params)[0]
