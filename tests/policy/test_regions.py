"""``keep_full`` and ``keep_half``: through transformations, nested, in conflict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import duotone
from duotone import Policy, keep_full, keep_half
from duotone.errors import PolicyError
from duotone.policy.regions import LOSS_SCALE, marker_of, region_of, without_regions

X, W = np.ones((4, 8), np.float32), np.ones((8, 8), np.float32)
_REGIONS = {"full": keep_full, "half": keep_half}


def _paints(function: Callable[..., Any], operation: str, **policy: Any) -> set[str]:
    """Paint and rule of every such operation."""
    seen = duotone.explain(function, X, W, dtype="float16", policy=Policy(**policy))
    return {f"{o.paint} {o.rule}" for o in seen.operations if o.operation == operation}


def _pinned(region: str) -> Callable[..., Any]:
    """A dot and an exponential, the other way round than the rules have them."""

    def model(x: Any, w: Any) -> Any:
        with _REGIONS[region]():
            return jnp.exp(x @ w)

    return model


_WRAPPERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "grad": lambda f: jax.grad(lambda x, w: jnp.sum(f(x, w))),
    "jvp": lambda f: lambda x, w: jax.jvp(f, (x, w), (x, w))[1],
    "vmap": lambda f: lambda x, w: jax.vmap(f, (0, None))(x[:, None], w),
    "scan": lambda f: lambda x, w: jax.lax.scan(lambda c, _: (f(c, w), None), x, None, 3)[0],
    "checkpoint": jax.checkpoint,
    "cond": lambda f: lambda x, w: jax.lax.cond(x[0, 0] > 0, f, lambda x, w: x, x, w),
    "grad of jit of scan": lambda f: jax.grad(
        jax.jit(lambda x, w: jnp.sum(jax.lax.scan(lambda c, _: (f(c, w), None), x, None, 3)[0]))
    ),
}


@pytest.mark.parametrize("region", _REGIONS)
@pytest.mark.parametrize("wrapper", _WRAPPERS)
def test_a_region_holds_through(wrapper: str, region: str) -> None:
    function = _WRAPPERS[wrapper](_pinned(region))
    assert _paints(function, "dot_general") == {f"{region} pinned"}
    assert _paints(function, "exp") <= {f"{region} pinned"}


@pytest.mark.parametrize("region", _REGIONS)
def test_what_runs_agrees(region: str) -> None:
    text = str(jax.make_jaxpr(duotone.autocast(_pinned(region), dtype="float16"))(X, W))
    assert ("f16" in text) is (region == "half")


def test_outside_of_a_region_the_rules_decide() -> None:
    def model(x: Any, w: Any) -> Any:
        with keep_full():
            x = x @ w
        return jnp.exp(x @ w)

    assert _paints(model, "dot_general") == {"full pinned", "half allow"}
    assert _paints(model, "exp") == {"full deny"}


def test_the_innermost_region_decides() -> None:
    def model(x: Any, w: Any) -> Any:
        with keep_full():
            with keep_half():
                h = jnp.exp(x)
            return jnp.tanh(h)

    assert _paints(model, "exp") == {"half pinned"}
    assert _paints(model, "tanh") == {"full pinned"}


def test_regions_and_name_scopes_do_not_disturb_each_other() -> None:
    def model(x: Any, w: Any) -> Any:
        with jax.named_scope("outer"), keep_full(), jax.named_scope("inner"):
            return x @ w

    seen = duotone.explain(model, X, W, dtype="float16")
    assert [(o.scope, o.rule) for o in seen.operations] == [("outer/inner", "pinned")]
    assert _paints(model, "dot_general", keep_full=["outer/inner/*"]) == {"full pinned"}


def test_outside_of_autocast_a_region_does_nothing() -> None:
    plain = str(jax.make_jaxpr(lambda x, w: jnp.exp(x @ w))(X, W))
    assert str(jax.make_jaxpr(_pinned("half"))(X, W)) == plain
    np.testing.assert_array_equal(_pinned("half")(X, W), np.exp(X @ W))


def test_a_region_and_a_pattern_that_disagree_are_an_error() -> None:
    with pytest.raises(PolicyError, match=r"region keep_full\(\).*pattern '\*'.*narrower"):
        _paints(_pinned("full"), "exp", keep_half=["*"])


def test_what_has_no_half_form_stays_as_it_is() -> None:
    def model(x: Any, w: Any) -> Any:
        with keep_half():
            return jnp.linalg.cholesky(w + 8 * jnp.eye(8)), jnp.argsort(x)

    assert _paints(model, "cholesky") == {"full fixed"}
    for result in duotone.autocast(model, dtype="float16")(X, W):
        assert np.isfinite(result).all()


def test_a_region_ends_with_an_error_inside() -> None:
    def model(x: Any, w: Any) -> Any:
        try:
            with keep_full():
                _ = jnp.ones(2) + jnp.ones(3)
        except TypeError:
            return x @ w

    assert _paints(model, "dot_general") == {"half wide"}


def test_regions_among_scopes() -> None:
    scopes = ("a", "duotone.keep_full", "b", "duotone.keep_half", "c")
    assert region_of(scopes) == "half"
    assert region_of(scopes[:3]) == "full"
    assert region_of(("a", "keep_full")) == ""
    assert without_regions(scopes) == ("a", "b", "c")


def test_duotones_own_code_is_not_called_the_users() -> None:
    """Catches: an optimizer's update that is full "because the user decided"."""
    opt = duotone.enable_mixed_precision_graph_rewrite(optax.adam(1e-3), dtype="float16")
    params = jnp.ones((8, 8))

    def step(params: Any, state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            with keep_full():
                return jnp.tanh(x @ params).sum()

        return opt.minimize(loss, params, state)

    seen = duotone.explain(step, params, opt.init(params), X)
    assert {o.operation for o in seen.rows(rule="pinned")} >= {"dot_general", "tanh"}
    own = {o.operation for o in seen.rows(rule="update")}
    assert {"mul", "sqrt", "is_finite"} <= own
    assert "the optimizer's update, the loss scale" in str(seen)
    assert region_of(("a", "duotone.update", "b")) == region_of((LOSS_SCALE,)) == "update"
    (marker,) = marker_of("update")
    assert region_of((marker,)) == "update"
