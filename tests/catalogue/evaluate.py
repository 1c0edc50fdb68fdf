"""Evaluates a jaxpr equation by equation, so that compiled operations are shared by all cases.

Compiling each variation of each case would take most of the time of the whole test run. Here each
operation is compiled once for its types, and nothing is fused or computed with excess precision: a
half value really is rounded where the rewritten program says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function, traced on arguments of which only the arrays are traced.

    Attributes:
        jaxpr: from arrays to arrays.
        arrays: the arrays among the arguments.
        tree: structure of the results.
        statics: position and value of each result that is no array.
    """

    jaxpr: Any
    arrays: list[Any]
    tree: Any
    statics: list[tuple[int, Any]]

    @property
    def types(self) -> list[tuple[Any, ...]]:
        """Shape, dtype and weak type of each result."""
        return [(a.shape, str(a.dtype), _weak(a)) for a in self.jaxpr.out_avals]

    @property
    def effects(self) -> list[str]:
        """The effects, and the primitives that have them, in program order."""
        inside = [
            e.primitive.name
            for j in jaxprs_in(self.jaxpr)
            for e in _jax.open_jaxpr(j).eqns
            if "callback" in e.primitive.name or "print" in e.primitive.name
        ]
        return [*sorted(str(e) for e in _jax.open_jaxpr(self.jaxpr).effects), *inside]

    def run(self) -> list[Any]:
        """The results, equation by equation."""
        return evaluate(self.jaxpr, as_arrays(self.arrays))


def _weak(aval: Any) -> bool:
    return bool(getattr(aval, "weak_type", False))


def trace(function: Callable[..., Any], args: Sequence[Any]) -> Traced:
    """Traces a function; leaves of ``args`` that are no arrays stay as they are."""
    leaves, tree = jax.tree.flatten(tuple(args))
    places = [i for i, leaf in enumerate(leaves) if _is_traced(leaf)]
    seen: list[Any] = []

    def flat(*arrays: Any) -> list[Any]:
        filled = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        out, out_tree = jax.tree.flatten(function(*jax.tree.unflatten(tree, filled)))
        statics = [(i, y) for i, y in enumerate(out) if not _is_traced(y)]
        seen[:] = [out_tree, statics]
        return [y for y in out if _is_traced(y)]

    arrays = [leaves[i] for i in places]
    jaxpr = jax.make_jaxpr(flat)(*arrays)
    return Traced(jaxpr, arrays, seen[0], seen[1])


def _is_traced(leaf: Any) -> bool:
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype != jax.dtypes.float0
    return isinstance(leaf, jax.Array)
