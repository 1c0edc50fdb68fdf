"""Reading rewritten programs: small helpers shared by the tests of this room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

import duotone
from duotone import _jax

FORCED = duotone.Policy(ignore_performance=True)


def half(function: Callable[..., Any], dtype: Any = "float16", **changes: Any) -> Any:
    """``function``, rewritten whatever the device."""
    return duotone.autocast(function, dtype=dtype, policy=FORCED.replace(**changes))


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr, nested ones in place."""
    for eqn in _jax.open_jaxpr(jaxpr).eqns:
        yield eqn
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                if hasattr(_jax.open_jaxpr(inner), "eqns"):
                    yield from equations(inner)


def traced(function: Callable[..., Any], *args: Any) -> Any:
    """The jaxpr of a rewritten function, its own ``jit`` opened."""
    (eqn,) = jax.make_jaxpr(function)(*args).jaxpr.eqns
    return eqn.params["jaxpr"]


def named(jaxpr: Any, name: str) -> list[Any]:
    """All equations of a primitive."""
    return [eqn for eqn in equations(jaxpr) if eqn.primitive.name == name]


def dtypes(eqn: Any) -> list[str]:
    """Dtypes of operands and results of an equation."""
    return [atom.aval.dtype.name for atom in (*eqn.invars, *eqn.outvars)]
