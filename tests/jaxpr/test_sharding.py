"""Several devices: shardings of results, constraints and nested programs survive."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.jaxpr import programs
from tests.jaxpr.programs import dtypes, named

X = jax.random.normal(jax.random.key(0), (8, 16))
W = jax.random.normal(jax.random.key(1), (16, 16)) / 4


@dataclasses.dataclass(frozen=True)
class Half:
    """A half type: rewrites a function, and knows how exact it is."""

    dtype: str
    tolerance: float

    def __call__(self, function: Any) -> Any:
        return programs.half(function, self.dtype)

    def close(self, got: Any, want: Any) -> None:
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(g, w, rtol=self.tolerance, atol=self.tolerance)


@pytest.fixture(
    params=[
        Half("float16", 2e-2),
        pytest.param(Half("bfloat16", 2e-1), marks=pytest.mark.slow),
    ],
    ids=lambda half: half.dtype,
)
def half(request):
    return request.param


def mesh(kind: AxisType) -> Any:
    return jax.make_mesh((4,), ("data",), axis_types=(kind,), devices=jax.devices()[:4])


def network(x, w):
    h = jax.nn.relu(x @ w + w[0])
    return h @ w, (h @ w).sum(0), jnp.mean(h)


def same_shardings(got, want):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.sharding.is_equivalent_to(w.sharding, g.ndim), (g.sharding, w.sharding)


def test_auto(half):
    """Shardings of arguments, results and constraints are those of the plain program."""
    place = NamedSharding(mesh(AxisType.Auto), PartitionSpec("data"))
    x = jax.device_put(X, place)

    def constrained(x, w):
        h = jax.lax.with_sharding_constraint(x @ w, place)
        return network(h, w)

    for function in (network, constrained):
        want = jax.jit(function)(x, W)
        for rewritten in (half(function), jax.jit(half(function))):
            got = rewritten(x, W)
            half.close(got, want)
            same_shardings(got, want)


def test_explicit(half):
    """Explicit axes: the types of the results say where they are."""
    explicit_mesh = mesh(AxisType.Explicit)
    place = NamedSharding(explicit_mesh, PartitionSpec("data"))
    with jax.set_mesh(explicit_mesh):
        x = jax.device_put(X, place)
        half.close(half(network)(x, W), network(x, W))
        got = jax.make_jaxpr(half(network))(x, W).out_avals
        want = jax.make_jaxpr(network)(x, W).out_avals
        assert [a.sharding for a in got] == [a.sharding for a in want]
        gradient = jax.jit(jax.grad(lambda w: half(network)(x, w)[2]))(W)
        half.close(gradient, jax.grad(lambda w: network(x, w)[2])(W))


def test_inner_jit(half):
    """A nested ``jit`` with shardings keeps them."""
    place = NamedSharding(mesh(AxisType.Auto), PartitionSpec(None, "data"))
    inner = jax.jit(lambda x, w: jnp.tanh(x @ w), out_shardings=place)

    def function(x, w):
        return inner(x, w) @ w

    program = jax.make_jaxpr(half(function))(X, W)
    (kept,) = [e for e in named(program, "jit") if place in e.params["out_shardings"]]
    assert dtypes(kept)[-1] == half.dtype
    half.close(half(function)(X, W), function(X, W))


def test_shard_map(half):
    """Collectives stay as they are; gradients agree."""
    data, whole = PartitionSpec("data"), PartitionSpec()
    for check in (True, False):
        mapped: Any = jax.shard_map(
            lambda x, w: jax.lax.psum(jnp.tanh(x @ w).T @ (x @ w), "data"),
            mesh=mesh(AxisType.Auto),
            in_specs=(data, whole),
            out_specs=whole,
            check_vma=check,
        )
        rewritten = half(mapped)
        half.close(rewritten(X, W), mapped(X, W))
        want = jax.grad(lambda w, f=mapped: f(X, w).sum())(W)
        half.close(half(jax.grad(lambda w, f=mapped: f(X, w).sum()))(W), want)
        half.close(jax.grad(lambda w, f=rewritten: f(X, w).sum())(W), want)


def test_inside_shard_map(half):
    """Autocast inside a manual region, custom rules and loops included."""
    data, whole = PartitionSpec("data"), PartitionSpec()

    def local(x, w):
        def step(carry, _):
            # Smooth: bfloat16 flips a few ReLUs here, dtypes set by hand do so as well.
            return jax.nn.softplus(carry @ w + w[0]), None

        return jax.lax.scan(step, x, None, length=3)[0] @ w

    def mapped(function):
        return jax.shard_map(
            function, mesh=mesh(AxisType.Auto), in_specs=(data, whole), out_specs=data
        )

    half.close(mapped(half(local))(X, W), mapped(local)(X, W))
    got = jax.grad(lambda w: mapped(half(local))(X, w).sum())(W)
    half.close(got, jax.grad(lambda w: mapped(local)(X, w).sum())(W))
