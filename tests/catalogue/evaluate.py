"""Evaluates a jaxpr equation by equation, so that compiled operations are shared by all cases.

Compiling each variation of each case would take most of the time of the whole test run. Here each
operation is compiled once for its types, and nothing is fused or computed with excess precision: a
half value really is rounded where the rewritten program says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from duotone import _jax

_INLINED = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
"""Primitives whose nested program is evaluated in their place, and the parameter that holds it."""


def evaluate(jaxpr: Any, arguments: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr (with its constants)."""
    return _evaluate(_jax.open_jaxpr(jaxpr), _jax.consts_of(jaxpr), arguments)


def _evaluate(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    env.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if _jax.is_literal(atom) else env[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        inner = eqn.params.get(_INLINED.get(eqn.primitive.name, ""))
        if inner is None:
            with eqn.ctx.manager:
                results = _jax.bind(eqn, operands)
        else:
            results = evaluate(inner, operands)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def jaxprs_in(jaxpr: Any) -> list[Any]:
    """A jaxpr and every program nested in it."""
    found = [jaxpr]
    for eqn in _jax.open_jaxpr(jaxpr).eqns:
        for parameter in jax.tree.leaves(eqn.params, is_leaf=_is_jaxpr):
            if _is_jaxpr(parameter):
                found += jaxprs_in(parameter)
    return found


def _is_jaxpr(x: Any) -> bool:
    return hasattr(_jax.open_jaxpr(x), "eqns")


def primitives_in(jaxpr: Any) -> set[str]:
    """The names of all primitives in a jaxpr, nested programs included."""
    return {e.primitive.name for j in jaxprs_in(jaxpr) for e in _jax.open_jaxpr(j).eqns}


def as_arrays(arguments: Sequence[Any]) -> list[Any]:
    """Arguments as committed JAX arrays, so that equal types compile once."""
    return [jnp.asarray(a) for a in arguments]
