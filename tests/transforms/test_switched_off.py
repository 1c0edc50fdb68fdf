"""A part that is switched off, inside a program that is rewritten: it stays as it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax import lax

import duotone
import duotone.nnx
from duotone.errors import ArgumentTypeError

HALVES = ["float16", "bfloat16"]
POLICY = duotone.Policy(ignore_performance=True)
Function = Callable[..., Any]

random = np.random.default_rng(0)
X = jnp.asarray(1 + 1e-3 * random.normal(size=(8, 16)), jnp.float32)
V = jnp.asarray(random.normal(size=(16, 16)), jnp.float32)
W = jnp.asarray(4 + 1e-2 * random.normal(size=(16, 24)), jnp.float32)
COLUMNS = W.shape[1]
"""Only arrays of the parts below have a side of this length."""


def dots(x: Any, w: Any) -> Any:
    """Rows of about 0 after a difference, which no half type keeps."""
    return jnp.tanh(x @ w - 64.0) @ w.T


@jax.custom_vjp
def custom(x: Any, w: Any) -> Any:
    return dots(x, w)


def _backward(residuals: Any, g: Any) -> Any:
    x, w = residuals
    turned = (1.0 - jnp.tanh(x @ w - 64.0) ** 2) * (g @ w)
    return turned @ w.T, x.T @ turned


custom.defvjp(lambda x, w: (dots(x, w), (x, w)), _backward)


@jax.custom_jvp
def custom_forward(x: Any, w: Any) -> Any:
    return dots(x, w)


custom_forward.defjvp(lambda primals, tangents: jax.jvp(dots, primals, tangents))

PARTS: dict[str, Function] = {
    "dots": dots,
    "jit": jax.jit(dots),
    "scan": lambda x, w: lax.scan(lambda c, _: (jnp.tanh(dots(c, w)), None), x, None, 2)[0],
    "checkpoint": jax.checkpoint(dots),
    "vmap": jax.vmap(lambda x, w: dots(x[None], w)[0], (0, None)),
    "custom_vjp": custom,
    "custom_vjp in checkpoint": jax.checkpoint(custom),
    "custom_vjp in scan": lambda x, w: lax.scan(lambda c, _: (custom(c, w), None), x, None, 2)[0],
    "custom_vjp in cond": lambda x, w: lax.cond(x[0, 0] > 0, custom, dots, x, w),
    "custom_jvp in checkpoint": jax.checkpoint(custom_forward),
}
AROUND: dict[str, Callable[[Function], Function]] = {
    "nothing": lambda f: f,
    "jit": jax.jit,
    "scan": lambda f: lambda x, w: lax.scan(lambda c, _: (f(c, w), None), x, None, 2)[0],
    "vmap": lambda f: jax.vmap(lambda x, w: f(x[None], w)[0], (0, None)),
    "checkpoint": jax.checkpoint,
}


def network(part: Function) -> Function:
    """A loss with dots around the part, which are to be half."""
    return lambda x, w, v: jnp.mean((part(jnp.tanh(x @ v), w) @ v) ** 2)


def closing_over(loss: Function, dtype: str) -> Function:
    """JAX derives the backward pass here, from the rewritten forward pass."""

    def of_all(x: Any, w: Any, v: Any) -> Any:
        return duotone.autocast(lambda x: loss(x, w, v), dtype=dtype, policy=POLICY)(x)

    return jax.grad(of_all, (0, 1, 2))


PASSES: dict[str, Callable[[Function, str], Function]] = {
    "autocast": lambda f, dtype: duotone.autocast(f, dtype=dtype, policy=POLICY),
    "grad": lambda f, dtype: duotone.grad(f, (0, 1, 2), dtype=dtype, policy=POLICY),
    "value_and_grad": lambda f, dtype: duotone.value_and_grad(
        f, (0, 1, 2), dtype=dtype, policy=POLICY, scale=duotone.DynamicLossScale()
    ),
    "grad(autocast)": lambda f, dtype: jax.grad(
        duotone.autocast(f, dtype=dtype, policy=POLICY), (0, 1, 2)
    ),
    "grad(autocast), by JAX": closing_over,
    "jvp": lambda f, dtype: (
        lambda *args: jax.jvp(duotone.autocast(f, dtype=dtype, policy=POLICY), args, args)
    ),
}
OFF: dict[str, Callable[[Function], Function]] = {
    "enabled=False": lambda f: duotone.autocast(f, enabled=False),
    "dtype=float32": lambda f: duotone.autocast(f, dtype="float32"),
    "decorator": lambda f: duotone.autocast(enabled=False)(f),
    "nnx": lambda f: duotone.nnx.autocast(f, enabled=False),
    "nnx, float32": lambda f: duotone.nnx.autocast(f, dtype=jnp.float32),
}


def equations(program: Any) -> Iterator[Any]:
    """All equations of a jaxpr, those of nested programs included."""
    for eqn in getattr(program, "jaxpr", program).eqns:
        yield eqn
        for param in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_program):
            if _is_program(param):
                yield from equations(param)


def _is_program(param: Any) -> bool:
    return hasattr(param, "eqns") or hasattr(param, "jaxpr")


def operands_of_dots(function: Function, *args: Any) -> tuple[set[str], set[str]]:
    """The dtypes of the operands of dots: of those of the part, and of all others."""
    found: tuple[set[str], set[str]] = set(), set()
    for eqn in equations(jax.make_jaxpr(function)(*args)):
        if eqn.primitive.name == "dot_general":
            shapes = [atom.aval.shape for atom in (*eqn.invars, *eqn.outvars)]
            outside = not any(COLUMNS in shape for shape in shapes)
            found[outside].update(atom.aval.dtype.name for atom in eqn.invars)
    return found


def error(got: Any, want: Any) -> float:
    """The largest error of all arrays, relative to the largest element of each."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return max(float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) for a, b in pairs)


PLACES = [(part, "nothing") for part in PARTS]
PLACES += [(part, around) for part in ("dots", "custom_vjp in checkpoint") for around in AROUND]


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize(("part", "around"), dict.fromkeys(PLACES))
def test_the_part_is_float32_and_what_is_around_it_half(
    part: str, around: str, passes: str
) -> None:
    off = duotone.autocast(PARTS[part], enabled=False)
    function = PASSES[passes](network(AROUND[around](off)), "float16")
    inside, outside = operands_of_dots(function, X, W, V)
    assert inside == {"float32"}
    assert "float16" in outside


@pytest.mark.parametrize("pinned", ["region", "name"])
def test_what_is_kept_full_is_so_in_the_derivative_rules_inside(pinned: str) -> None:
    """Where JAX asks for a rule it is traced and painted by itself, without what is around it."""
    part = PARTS["custom_vjp in checkpoint"]
    policy = POLICY.replace(keep_full=["part/*"])

    def kept(x: Any, w: Any) -> Any:
        with duotone.keep_full() if pinned == "region" else jax.named_scope("part"):
            return part(x, w)

    def of_all(x: Any, w: Any, v: Any) -> Any:
        loss = network(kept)
        return duotone.autocast(lambda x: loss(x, w, v), dtype="float16", policy=policy)(x)

    inside, outside = operands_of_dots(jax.grad(of_all, (0, 1, 2)), X, W, V)
    assert inside == {"float32"}
    assert "float16" in outside


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("off", OFF)
def test_numbers_are_those_of_float32(off: str, dtype: str) -> None:
    def loss(part: Function) -> Function:
        return lambda x, w: jnp.mean(jnp.sin(jnp.sum(part(x, w), axis=1)))

    def both(f: Function, **settings: Any) -> Function:
        return duotone.value_and_grad(f, (0, 1), dtype=dtype, policy=POLICY, **settings)

    want = jax.value_and_grad(loss(dots), (0, 1))(X, W)
    assert error(both(loss(dots))(X, W), want) > 0.05
    assert error(both(loss(OFF[off](dots)))(X, W), want) < 1e-4
    fast = duotone.autocast(loss(OFF[off](dots)), dtype=dtype, policy=POLICY)
    assert error(fast(X, W), want[0]) < 1e-4
    assert error(jax.jit(jax.grad(fast, (0, 1)))(X, W), want[1]) < 1e-4


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("around", ["scan", "vmap", "checkpoint"])
def test_numbers_are_those_of_float32_inside(around: str, dtype: str) -> None:
    def loss(part: Function) -> Function:
        return lambda x, w: jnp.mean(jnp.sin(AROUND[around](part)(x, w)))

    want = jax.value_and_grad(loss(custom), (0, 1))(X, W)
    function = loss(duotone.autocast(custom, enabled=False))
    got = duotone.value_and_grad(function, (0, 1), dtype=dtype, policy=POLICY)(X, W)
    assert error(got, want) < 1e-4


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("off", [{"enabled": False}, {"dtype": "float32"}])
def test_a_gradient_switched_off(off: dict[str, Any], dtype: str) -> None:
    def energy(x: Any, w: Any) -> Any:
        return jnp.sum(jnp.sin(dots(x, w)))

    def forces(gradient: Function) -> Any:
        return lambda x, w: jnp.sum(gradient(x, w) ** 2)

    want = jax.grad(forces(jax.grad(energy)))(X, W)
    scale = duotone.DynamicLossScale()
    for gradient in (
        duotone.grad(energy, **off),
        duotone.grad(energy, scale=scale, **off),
        lambda x, w: duotone.value_and_grad(energy, **off)(x, w)[1],
    ):
        inside, _ = operands_of_dots(
            duotone.grad(forces(gradient), dtype=dtype, policy=POLICY), X, W
        )
        assert inside == {"float32"}
        got = duotone.grad(forces(gradient), dtype=dtype, policy=POLICY)(X, W)
        assert error(got, want) < 1e-3


@pytest.mark.parametrize("scale", [None, duotone.DynamicLossScale()])
def test_the_gradient_of_a_function_that_is_switched_off(scale: Any) -> None:
    def loss(x: Any, w: Any) -> Any:
        return jnp.mean(dots(x, w))

    got = duotone.grad(
        duotone.autocast(loss, enabled=False), dtype="float16", policy=POLICY, scale=scale
    )(X, W)
    np.testing.assert_array_equal(got, jax.grad(loss)(X, W))


@pytest.mark.parametrize("dtype", HALVES)
def test_the_one_line(dtype: str) -> None:
    def loss(part: Function) -> Function:
        return lambda w, x: jnp.mean(jnp.sin(part(x, w)))

    def trained(part: Function) -> Any:
        opt = duotone.enable_mixed_precision_graph_rewrite(
            optax.sgd(1e-3), dtype=dtype, policy=POLICY
        )
        return opt.minimize(loss(part), W, opt.init(W), X)

    value, grads = jax.value_and_grad(loss(dots))(W, X)
    done = trained(duotone.autocast(dots, enabled=False))
    assert error(done.loss, value) < 1e-4
    assert error(W - done.params, 1e-3 * grads) < 1e-3
    assert error(trained(dots).loss, value) > 0.01


def test_an_optimizer_that_is_switched_off() -> None:
    """With its update: the steps of Muon are dots too."""

    def step(opt: Any, w: Any, state: Any, x: Any) -> Any:
        return opt.minimize(lambda w, x: jnp.mean(dots(x, w)), w, state, x).params

    def outside(opt: Any) -> set[str]:
        state = opt.init(W)
        whole = duotone.autocast(lambda w, s, x: step(opt, w, s, x), dtype="float16", policy=POLICY)
        found = operands_of_dots(whole, W, state, X)
        return found[0] | found[1]

    muon = optax.contrib.muon(1e-3)
    assert outside(duotone.enable_mixed_precision_graph_rewrite(muon, enabled=False)) == {"float32"}
    assert "float16" in outside(duotone.optimizer_from_environment(muon))


def test_no_other_region_and_no_policy_of_the_outer_one_reaches_inside() -> None:
    def part(x: Any, w: Any) -> Any:
        with duotone.keep_half(), jax.named_scope("part"):
            return dots(x, w)

    off = duotone.autocast(part, enabled=False)
    for policy in (
        POLICY,
        POLICY.replace(keep_half=["*/part/*", "part/*"]),
        POLICY.replace(level="UNSAFE_FORCE_ALL"),
        POLICY.replace(painter="tensorflow"),
    ):
        for inner in (off, lambda x, w: _in_half(off, x, w)):
            fast = duotone.autocast(network(inner), dtype="float16", policy=policy)
            assert operands_of_dots(fast, X, W, V)[0] == {"float32"}


def _in_half(function: Function, *args: Any) -> Any:
    with duotone.keep_half():
        return function(*args)


def test_float32_math_of_the_outer_one_does_not_reach_inside() -> None:
    policy = POLICY.replace(float32_math="exact", deny_add=["dot_general"])
    off = duotone.autocast(dots, enabled=False)
    fast = duotone.autocast(network(off), dtype="float16", policy=policy)
    found = {True: set(), False: set()}
    for eqn in equations(jax.make_jaxpr(fast)(X, W, V)):
        if eqn.primitive.name == "dot_general":
            inside = any(COLUMNS in atom.aval.shape for atom in eqn.invars)
            found[inside].add(eqn.params["precision"])
    assert found[True] == {None}
    assert None not in found[False]


def test_explain_says_that_it_is_switched_off() -> None:
    off = duotone.autocast(dots, enabled=False)
    seen = duotone.explain(network(off), X, W, V, dtype="float16")
    (inside,) = [o for o in seen.operations if o.operation == "tanh" and o.rule == "pinned"]
    assert (inside.paint, "switched off" in inside.reason) == ("full", True)


@pytest.mark.parametrize("passes", ["autocast", "grad", "grad(autocast)"])
def test_another_half_type_or_policy_inside_is_its_own(passes: str) -> None:
    """The inner one is a program of its own, which the outer one leaves as it is."""
    other = duotone.autocast(dots, dtype="bfloat16", policy=POLICY)
    function = PASSES[passes](network(other), "float16")
    inside, outside = operands_of_dots(function, X, W, V)
    assert inside == {"bfloat16"}
    assert "float16" in outside
    assert "bfloat16" not in outside
    full = POLICY.replace(keep_full=["*"])
    other = duotone.autocast(dots, dtype="float16", policy=full)
    inside, outside = operands_of_dots(PASSES[passes](network(other), "float16"), X, W, V)
    assert inside == {"float32"}
    assert "float16" in outside


def test_what_is_switched_on_inside_is_rewritten() -> None:
    on = duotone.autocast(dots, dtype="bfloat16", policy=POLICY)
    off = duotone.autocast(lambda x, w: on(x, w), enabled=False)
    for function in (off, duotone.autocast(off, dtype="float16", policy=POLICY)):
        assert operands_of_dots(function, X, W)[0] == {"bfloat16"}


def test_weights_that_are_switched_off() -> None:
    off = duotone.autocast(lambda w, x: dots(x, w), weights=W, enabled=False)
    fast = duotone.autocast(lambda x: off(x), dtype="float16", policy=POLICY)
    np.testing.assert_allclose(fast(X), dots(X, W), rtol=1e-5, atol=1e-4)


class Head(nnx.Module):
    """A layer of which every call is to stay float32."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(16, COLUMNS, rngs=rngs)

    @duotone.nnx.autocast(enabled=False)
    def __call__(self, x: Any) -> Any:
        return self.inner(x)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.head = nnx.Linear(16, 16, rngs=rngs), Head(rngs)

    def __call__(self, x: Any) -> Any:
        return jnp.mean(self.head(jnp.tanh(self.first(x))) ** 2)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_layer_of_nnx(dtype: str) -> None:
    model = Net(nnx.Rngs(0))

    def step(model: Net, x: Any) -> Any:
        return nnx.value_and_grad(lambda model, x: model(x))(model, x)

    fast = duotone.nnx.autocast(step, dtype=dtype, policy=POLICY)
    graph, state = nnx.split(model)
    inside, outside = operands_of_dots(lambda state, x: fast(nnx.merge(graph, state), x), state, X)
    assert inside == {"float32"}
    assert dtype in outside
    part = duotone.nnx.autocast(model.head.inner, enabled=False)
    np.testing.assert_array_equal(part(X), model.head.inner(X))
    inside, _ = operands_of_dots(
        duotone.nnx.autocast(lambda x: part(x), dtype=dtype, policy=POLICY), X
    )
    assert inside == {"float32"}


class LinenHead(linen.Module):
    @linen.compact
    @duotone.autocast(enabled=False)
    def __call__(self, x: Any) -> Any:
        return linen.Dense(COLUMNS)(x)


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return jnp.mean(LinenHead()(jnp.tanh(linen.Dense(16)(x))) ** 2)


def test_a_layer_of_linen() -> None:
    model = LinenNet()
    variables = model.init(jax.random.key(0), X)
    fast = duotone.grad(
        lambda variables, x: model.apply(variables, x), dtype="float16", policy=POLICY
    )
    inside, outside = operands_of_dots(fast, variables, X)
    assert inside == {"float32"}
    assert "float16" in outside


@pytest.mark.parametrize("autocast", [duotone.autocast, duotone.nnx.autocast])
@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({}, r"@duotone\.autocast\(dtype=.*keep_full\(\):.*keep_half\(\):"),
        ({"dtype": "float16"}, r"duotone\.autocast\(fn, dtype=\.\.\.\)\(\*args\)"),
        ({"enabled": False}, r"with duotone\.keep_full\(\):"),
        ({"dtype": "float32"}, r"with duotone\.keep_full\(\):"),
    ],
)
def test_a_context_manager_says_what_to_write(
    autocast: Any, settings: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(ArgumentTypeError, match=remedy), autocast(**settings):
        pass
