"""Derivatives and recomputation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from tests.catalogue.case import Case, cases_of, integers, limits, reals, units

X, W = reals(8, 8), units(8, 8, seed=1)


def _network(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) @ w


_case = cases_of(X, W)


def _total(x: Any, w: Any) -> Any:
    return jnp.sum(_network(x, w) * jnp.arange(1.0, 9.0) / 2)


def _derivatives() -> list[Case]:
    return [
        _case("grad", jax.grad(_total), "grad"),
        _case("value_and_grad", jax.value_and_grad(_total, (0, 1)), "grad"),
        _case("vjp", lambda x, w: jax.vjp(_network, x, w)[1](x), "vjp"),
        _case("jvp", lambda x, w: jax.jvp(_network, (x, w), (x, w)), "jvp"),
        _case("linearize", lambda x, w: jax.linearize(_network, x, w)[1](x, w), "linearize"),
        _case("linear_transpose", lambda x, w: jax.linear_transpose(lambda y: y @ w, x)(x), "vjp"),
        _case("jacfwd", jax.jacfwd(lambda x, w: _network(x, w)[0], 1), "jacfwd"),
        _case("jacrev", jax.jacrev(lambda x, w: _network(x, w)[0], 1), "jacrev"),
        _case(
            "hessian",
            jax.hessian(lambda x, w: _total(x, w)),
            "hessian",
            reals(2, 8),
            W,
            limits=limits(grad="the case takes two derivatives itself"),
        ),
        _case(
            "grad of grad",
            lambda x, w: jax.grad(lambda x: jnp.sum(jax.grad(_total)(x, w) ** 2))(x),
            "grad",
        ),
        _case(
            "value_and_grad with aux",
            lambda x, w: jax.value_and_grad(lambda x: (_total(x, w), x), has_aux=True)(x),
            "grad",
        ),
        _case(
            "grad with integers",
            lambda x, i: jax.grad(lambda x, i: jnp.sum(x[i] ** 2), allow_int=False)(x, i),
            "grad",
            X,
            integers(2, high=3),
        ),
        _case(
            "float0 cotangents",
            lambda x, i: jax.vjp(lambda x, i: x * i, x, i)[1](x)[0],
            "float0 leaves",
            X,
            integers(8, 8),
        ),
        _case("stop_gradient of weights", lambda x, w: _network(x, lax.stop_gradient(w)), "grad"),
        _case("closure_convert", lambda x, w: _closure_converted(x, w), "custom_vjp"),
    ]


def _closure_converted(x: Any, w: Any) -> Any:
    converted, constants = jax.closure_convert(lambda y: jnp.tanh(y @ w), x)
    return converted(x, *constants)


def _checkpoints() -> list[Case]:
    policies = jax.checkpoint_policies

    def block(x: Any, w: Any) -> Any:
        return checkpoint_name(jnp.sin(checkpoint_name(x @ w, "dot")), "sin") @ w

    names = {
        "checkpoint": None,
        "checkpoint everything_saveable": policies.everything_saveable,
        "checkpoint nothing_saveable": policies.nothing_saveable,
        "checkpoint dots_saveable": policies.dots_saveable,
        "checkpoint dots_with_no_batch_dims_saveable": policies.dots_with_no_batch_dims_saveable,
        "checkpoint save_only_these_names": policies.save_only_these_names("dot"),
        "checkpoint save_anything_except_these_names": policies.save_anything_except_these_names(
            "sin"
        ),
    }
    cases = [
        _case(
            name,
            jax.checkpoint(block, policy=policy),
            "checkpoint",
            primitives=("remat2",),
            limits=_STRUCTURAL,
        )
        for name, policy in names.items()
    ]
    rematted = jax.checkpoint(block)
    cases += [
        _case("grad of checkpoint", jax.grad(lambda x, w: jnp.sum(rematted(x, w))), "checkpoint"),
        _case(
            "checkpoint of a static argument",
            jax.checkpoint(lambda x, w, flag: block(x, w) if flag else x, static_argnums=2),
            "checkpoint",
            X,
            W,
            True,
        ),
        _case(
            "checkpoint without prevent_cse", jax.checkpoint(block, prevent_cse=False), "checkpoint"
        ),
        _case("checkpoint in scan", lambda x, w: _scanned(rematted, x, w), "checkpoint in scan"),
        _case(
            "checkpoint in scan with a policy",
            lambda x, w: _scanned(jax.checkpoint(block, policy=policies.dots_saveable), x, w),
            "checkpoint in scan",
        ),
        _case(
            "nested checkpoint",
            lambda x, w: jax.checkpoint(lambda x: rematted(jnp.tanh(x), w))(x),
            "checkpoint",
        ),
        _case(
            "checkpoint of a scan",
            jax.checkpoint(lambda x, w: _scanned(block, x, w)),
            "checkpoint",
        ),
        _case(
            "checkpoint of closed over arrays",
            lambda x, w: jax.checkpoint(lambda x: block(x, w) + W[0])(x),
            "checkpoint",
        ),
    ]
    return cases


_STRUCTURAL = limits(forced="not an operation: a nested program")


def _scanned(block: Any, x: Any, w: Any) -> Any:
    return lax.scan(lambda x, _: (block(x, w), jnp.sum(x)), x, None, length=3)


CASES = [*_derivatives(), *_checkpoints()]
