"""Helpers of the trap tests: small programs, rewritten and checked."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import duotone
from duotone import _jax
from tests.catalogue.evaluate import jaxprs_in

FORCED = duotone.Policy(ignore_performance=True)
HALVES = ["float16", "bfloat16"]
W = (np.eye(8) + np.arange(64).reshape(8, 8) / 512).astype(np.float32)
X = (np.arange(96).reshape(12, 8) / 64 - 0.5).astype(np.float32)


def mixed(function: Any, half: str = "float16", **edits: Any) -> Any:
    return duotone.autocast(function, dtype=half, policy=FORCED.replace(**edits))


def rewritten(function: Any, *args: Any, half: str = "float16", **edits: Any) -> Any:
    """The rewritten jaxpr, checked."""
    jaxpr = jax.make_jaxpr(mixed(function, half, **edits))(*args)
    _jax.check_jaxpr(_jax.open_jaxpr(jaxpr))
    return jaxpr


def equations(jaxpr: Any, name: str) -> list[Any]:
    return [
        eqn
        for inner in jaxprs_in(jaxpr)
        for eqn in _jax.open_jaxpr(inner).eqns
        if eqn.primitive.name == name
    ]


def dtypes_of(eqn: Any) -> list[str]:
    return [str(a.aval.dtype) for a in (*eqn.invars, *eqn.outvars)]


def close(got: Any, wanted: Any, half: str = "float16", ulp: float = 8.0) -> None:
    epsilon = float(jnp.finfo(half).eps)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        limit = ulp * epsilon * max(float(jnp.max(jnp.abs(w))), 2.0**-10)
        np.testing.assert_allclose(g, w, rtol=0, atol=limit)
