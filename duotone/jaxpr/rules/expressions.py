"""Evaluates expressions: the steps of an optimization, in order.

The names of operations are independent of a framework
(:mod:`duotone.precision.optimize.optimization`); this module maps them to JAX. The caller gives the
operations that depend on a program (reads, the optimized operation itself).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE
from duotone.jaxpr.rules.instead import instead
from duotone.precision.optimize.optimization import ExpressionStep

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": jnp.sum,
    "add": lax.add,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "negate": lax.neg,
    "transpose": lax.transpose,
    "expand": lax.expand_dims,
    "squeeze": lax.squeeze,
    "widen": lambda x: _jax.convert(x, FULL_DTYPE),
    "instead": instead,
}
"""The operations that do not depend on a program."""


def evaluate(steps: Sequence[ExpressionStep], given: Mapping[str, Callable[..., Any]]) -> Any:
    """Returns the result of the last step; ``given`` are operations of the program, by name."""
    made: list[Any] = []
    for name, operands, parameters in steps:
        operation = given[name] if name in given else _OPERATIONS[name]
        made.append(operation(*[made[position] for position in operands], *parameters))
    return made[-1]
