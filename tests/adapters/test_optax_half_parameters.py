"""Half parameters under the one line: an optimizer computes in float32 and stores half."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import duotone

OPTIMIZERS: dict[str, Any] = {
    "novograd": lambda: optax.novograd(1e-2),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(1e-2), 5),
    "mechanize": lambda: optax.contrib.mechanize(optax.adam(1e-2)),
    "adam": lambda: optax.adam(1e-2),
    "half momentum": lambda: optax.apply_if_finite(optax.adam(1e-2, mu_dtype=jnp.bfloat16), 5),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1)),
}
X = jax.random.normal(jax.random.key(0), (32, 8))


def loss(params: Any, x: Any) -> Any:
    # A carry of the parameters' dtype: a call with parameters of another one is an error.
    h, _ = jax.lax.scan(lambda h, w: (h * w, None), params["a"][0], params["a"])
    return jnp.mean(jnp.square((x * h.astype(jnp.float32)) @ params["w"].astype(jnp.float32)))


def half_params(dtype: Any) -> Any:
    w = jax.random.normal(jax.random.key(1), (8, 4)).astype(dtype)
    return {"w": w, "a": jnp.full((2, 8), 1.25, dtype)}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_that_of_float32_stored_in_half(name: str, dtype: str) -> None:
    params = half_params(dtype)
    opt = duotone.enable_mixed_precision_graph_rewrite(OPTIMIZERS[name](), 8, dtype=dtype)
    state = opt.init(params)
    out = opt.compute_gradients(loss, params, state, X)
    new, after = jax.jit(opt.apply_gradients)(out, params, state)
    assert jax.tree.map(jax.typeof, after) == jax.tree.map(jax.typeof, state)

    bare, full = OPTIMIZERS[name](), jax.tree.map(lambda p: p.astype(jnp.float32), params)
    updates, _ = jax.jit(bare.update)(out.grads, bare.init(full), full)
    for key, param in params.items():
        expected = (full[key] + updates[key]).astype(param.dtype)
        assert new[key].dtype == param.dtype
        np.testing.assert_array_equal(new[key].astype("f"), expected.astype("f"))


def test_small_gradients_of_float16_parameters_reach_the_optimizer() -> None:
    """Catches: gradients that are rounded to the dtype of their parameters."""
    opt = duotone.enable_mixed_precision_graph_rewrite(optax.sgd(2.0**23), dtype="float16")
    params = jnp.ones(4, jnp.float16)
    done = opt.minimize(lambda p: jnp.sum(p.astype("f")) * 1e-9, params, opt.init(params))
    assert float(done.params[0]) < 1


def test_half_gradients_of_ones_own_are_left_to_the_optimizer() -> None:
    params = half_params("bfloat16")
    grads = jax.tree.map(lambda p: p * 0.3, params)
    bare = optax.adam(1e-2)
    opt = duotone.enable_mixed_precision_graph_rewrite(bare, dtype="bfloat16")
    got, _ = jax.jit(opt.update)(grads, opt.init(params), params)
    expected, _ = jax.jit(bare.update)(grads, bare.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    assert got["w"].dtype == jnp.bfloat16


def test_a_line_search_calls_the_loss_with_parameters_of_their_own_dtype() -> None:
    params = half_params("bfloat16")
    opt = duotone.enable_mixed_precision_graph_rewrite(optax.lbfgs(), dtype="bfloat16")
    done = opt.minimize(loss, params, opt.init(params), X)
    assert float(loss(done.params, X)) < float(done.loss)
