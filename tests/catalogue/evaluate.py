"""Evaluates a jaxpr equation by equation, so that compiled operations are shared by all cases.

Compiling each variation of each case would take most of the time of the whole test run. Here each
operation is compiled once for its types, and nothing is fused or computed with excess precision: a
half value really is rounded where the rewritten program says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
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
        if inner is not None:
            results = evaluate(inner, operands)
        elif eqn.primitive.name in _LOOPS and not _is_left_to_jax(eqn):
            results = _LOOPS[eqn.primitive.name](eqn, operands)
        else:
            with _context(eqn):
                results = _jax.bind(eqn, operands)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _context(eqn: Any) -> AbstractContextManager[Any]:
    """The context of an equation; none for one of a mesh alone, which JAX cannot run by itself."""
    is_of_mesh = not eqn.ctx.cur_abstract_mesh.empty and eqn.primitive.name != "shard_map"
    return contextlib.nullcontext() if is_of_mesh else eqn.ctx.manager


def _scan(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """The loop, in Python."""
    num_consts, num_carry = _jax.scan_layout(eqn)
    split = num_consts + num_carry
    constants, carry = list(operands[:num_consts]), list(operands[num_consts:split])
    sliced = [np.asarray(x) for x in operands[split:]]
    length = eqn.params["length"]
    rows: list[list[Any]] = []
    for i in range(length):
        place = length - 1 - i if eqn.params["reverse"] else i
        row = [jnp.asarray(x[place]) for x in sliced]
        results = evaluate(eqn.params["jaxpr"], [*constants, *carry, *row])
        carry = results[:num_carry]
        rows.append([np.asarray(y) for y in results[num_carry:]])
    if eqn.params["reverse"]:
        rows.reverse()
    avals = [var.aval for var in eqn.outvars[num_carry:]]
    empty = [np.zeros(aval.shape, aval.dtype) for aval in avals]
    stacked = [np.stack(column) for column in zip(*rows, strict=True)] if rows else empty
    return [*carry, *[jnp.asarray(y) for y in stacked]]


def _while(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """The loop, in Python."""
    params = eqn.params
    of_cond = list(operands[: params["cond_nconsts"]])
    operands = operands[params["cond_nconsts"] :]
    of_body = list(operands[: params["body_nconsts"]])
    carry = list(operands[params["body_nconsts"] :])
    while bool(evaluate(params["cond_jaxpr"], [*of_cond, *carry])[0]):
        carry = evaluate(params["body_jaxpr"], [*of_body, *carry])
    return carry


def _cond(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """The branch that is taken."""
    branches = eqn.params["branches"]
    taken = min(max(int(operands[0]), 0), len(branches) - 1)
    return evaluate(branches[taken], operands[1:])


_LOOPS: dict[str, Callable[[Any, Sequence[Any]], list[Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
"""Control flow run by Python: its inside consists of operations that are compiled already."""


def _is_left_to_jax(eqn: Any) -> bool:
    """Loops over keys, which NumPy cannot stack, and loops whose condition is mapped."""
    dtypes = [getattr(atom.aval, "dtype", None) for atom in (*eqn.invars, *eqn.outvars)]
    if any(d is not None and jnp.issubdtype(d, jax.dtypes.extended) for d in dtypes):
        return True
    condition = eqn.params.get("cond_jaxpr")
    return condition is not None and condition.out_avals[0].shape != ()


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
        statics: position and value of each result that is not an array.
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
    """Traces a function; leaves of ``args`` that are not arrays stay as they are."""
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
