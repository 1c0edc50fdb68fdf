"""``duotone.grad`` and ``duotone.value_and_grad`` in the place of JAX's."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import duotone
from duotone.errors import ArgumentError, ArgumentTypeError

KEYS = jax.random.split(jax.random.key(0), 4)
PARAMS = {
    "in": jax.random.normal(KEYS[0], (16, 32)) / 4,
    "out": [jax.random.normal(KEYS[1], (32, 8)) / 6, jnp.zeros(8)],
}
X, Y = jax.random.normal(KEYS[2], (64, 16)), jax.random.normal(KEYS[3], (64, 8))


def loss_fn(params: Any, x: Any, y: Any) -> jax.Array:
    hidden = jnp.tanh(x @ params["in"])
    return jnp.mean((hidden @ params["out"][0] + params["out"][1] - y) ** 2)


def with_aux(params: Any, x: Any, y: Any) -> Any:
    loss = loss_fn(params, x, y)
    return loss, {"loss": loss, "rows": x[:2], "name": "aux", "none": None}


def same(got: Any, want: Any) -> None:
    """Bit for bit, in structure, shapes and dtypes."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if not hasattr(other, "dtype"):
            assert one == other
            continue
        assert (one.dtype, one.shape, one.weak_type) == (other.dtype, other.shape, other.weak_type)
        np.testing.assert_array_equal(one, other)


def close(got: Any, want: Any, rtol: float) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        scale = float(jnp.max(jnp.abs(other)))
        np.testing.assert_allclose(one, other, rtol=0, atol=rtol * scale)


PAIRS = [
    pytest.param(duotone.grad, jax.grad, id="grad"),
    pytest.param(duotone.value_and_grad, jax.value_and_grad, id="value_and_grad"),
]


# ---- without a loss scale


@pytest.mark.parametrize("has_aux", [False, True], ids=["plain", "aux"])
@pytest.mark.parametrize("argnums", [0, (0, 1), [1], -1])
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_it_is_autocast_of_the_gradient_of_jax(ours: Any, theirs: Any, argnums: Any, has_aux: bool):
    fn = with_aux if has_aux else loss_fn
    got = ours(fn, argnums, has_aux, dtype="float16")(PARAMS, X, Y)
    same(got, duotone.autocast(theirs(fn, argnums, has_aux), dtype="float16")(PARAMS, X, Y))
    if not has_aux:
        close(got, theirs(fn, argnums)(PARAMS, X, Y), 0.01)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_it_takes_what_jax_takes(ours: Any, theirs: Any):
    mine, jaxs = (list(inspect.signature(f).parameters.values()) for f in (ours, theirs))
    assert [(p.name, p.default, p.kind) for p in mine[: len(jaxs)]] == [
        (p.name, p.default, p.kind) for p in jaxs
    ]
    cast = set(inspect.signature(duotone.autocast).parameters) - {"fn", "weights"}
    assert {p.name for p in mine[len(jaxs) :]} == cast | {"scale"}


def test_forward_and_backward_pass_are_one_program():
    """In the other order JAX keeps what the forward pass computed: nothing is recomputed."""
    seen = duotone.explain(duotone.grad(loss_fn, dtype="bfloat16"), PARAMS, X, Y)
    dots = [o for o in seen.operations if o.operation == "dot_general"]
    assert [o.paint for o in dots] == ["half"] * 5  # two, their weights' gradients, one between
    assert seen.summary.rewritten == 0  # painted here, not in a program inside
    wide = [(o.stored, o.shape) for o in dots if o.rule == "wide"]
    assert wide == [("full", ("8", "32")), ("full", ("32", "16"))]  # the weights' gradients

    def perceptron(w: Any, x: Any) -> Any:
        return jnp.mean((jax.nn.gelu(x @ w) @ w.T) ** 2)

    w, x = PARAMS["in"], X
    one = duotone.explain(duotone.grad(perceptron, dtype="bfloat16"), w, x)
    assert one.summary.optimizations["recompute"] > 0
    fast = duotone.autocast(perceptron, dtype="bfloat16")
    other = duotone.explain(jax.grad(fast), w, x)
    assert "recompute" not in other.summary.optimizations


def test_settings_reach_the_painter(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("duotone.transforms.mixed_function.fast_half", lambda policy: None)
    plain = jax.value_and_grad(loss_fn)(PARAMS, X, Y)
    switches: list[dict[str, Any]] = [{"enabled": False}, {"dtype": "float32"}]
    for off in switches:
        same(duotone.value_and_grad(loss_fn, **off)(PARAMS, X, Y), plain)
    full = duotone.Policy(keep_full=["*"])
    seen = duotone.explain(duotone.grad(loss_fn, dtype="float16", policy=full), PARAMS, X, Y)
    assert seen.summary.operations_half == 0
    measured = duotone.calibrate(jax.grad(loss_fn), [(PARAMS, X * 1e6, Y)])
    cautious = duotone.grad(loss_fn, dtype="float16", calibration=measured)
    rules = [o.rule for o in duotone.explain(cautious, PARAMS, X, Y).operations]
    assert "overflow" in rules


def test_allow_int_and_holomorphic_are_passed_on():
    params = {"w": jnp.ones((8, 8)), "step": jnp.asarray(3)}

    def quadratic(p: Any) -> Any:
        return jnp.sum((p["w"] @ p["w"]) ** 2)

    grads = duotone.grad(quadratic, allow_int=True, dtype="float16")(params)
    assert grads["step"].dtype == jax.dtypes.float0
    with pytest.raises(TypeError, match="allow_int"):
        duotone.grad(quadratic, dtype="float16")(params)
    z = jnp.asarray([1 + 2j, -3j])
    got = duotone.grad(lambda z: jnp.sum(z**2), holomorphic=True, dtype="float16")(z)
    same(got, jax.jit(jax.grad(lambda z: jnp.sum(z**2), holomorphic=True))(z))
    with pytest.raises(NotImplementedError, match="reduce_axes"):
        duotone.grad(loss_fn, reduce_axes=("i",))


def test_of_an_autocast_function_the_one_inside_is_differentiated():
    """Else JAX would derive the backward pass of a program that is painted already."""
    policy = duotone.Policy(keep_full=["*"])
    fast = jax.jit(duotone.autocast(loss_fn, dtype="float16", policy=policy))
    seen = duotone.explain(duotone.grad(fast), PARAMS, X, Y)
    assert (seen.summary.half_dtype, seen.summary.rewritten) == ("float16", 0)
    assert seen.summary.operations_half == 0
    seen = duotone.explain(
        duotone.grad(fast, dtype="bfloat16", policy=duotone.Policy()), PARAMS, X, Y
    )
    assert (seen.summary.half_dtype, seen.summary.allow_half) == ("bfloat16", 5)


# ---- under transformations, with and without a loss scale


SCALES = [None, 2.0**10, duotone.DynamicLossScale(2**12), duotone.NoLossScale()]


@pytest.mark.parametrize("scale", SCALES, ids=["plain", "number", "dynamic", "none"])
def test_jit_vmap_scan_and_grad_of_grad(scale: Any):
    gradient = duotone.value_and_grad(loss_fn, scale=scale, dtype="float16")
    want = jax.value_and_grad(loss_fn)(PARAMS, X, Y)
    same(jax.jit(gradient)(PARAMS, X, Y), gradient(PARAMS, X, Y))
    close(gradient(PARAMS, x=X, y=Y), want, 0.01)
    rows = jax.vmap(gradient, (None, 0, 0))(PARAMS, X[:, None], Y[:, None])
    close(jax.tree.map(lambda leaf: jnp.mean(leaf, 0), rows), want, 0.01)
    last, _ = jax.lax.scan(lambda _, xy: (gradient(PARAMS, *xy), None), want, (X[None], Y[None]))
    close(last, want, 0.01)

    def size(f: Any) -> Any:
        return lambda p: sum(jnp.sum(g**2) for g in jax.tree.leaves(f(p, X, Y)))

    second = jax.grad(size(duotone.grad(loss_fn, scale=scale, dtype="float16")))(PARAMS)
    close(second, jax.grad(size(jax.grad(loss_fn)))(PARAMS), 0.05)


@pytest.mark.parametrize("scale", SCALES[:3], ids=["plain", "number", "dynamic"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(scale: Any, check_vma: bool):
    mesh = jax.make_mesh(
        (2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2]
    )
    specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": P(), "check_vma": check_vma}

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, **specs)
    def gradient(params: Any, x: Any, y: Any) -> Any:
        def mean(*args: Any) -> Any:
            return jax.lax.pmean(loss_fn(*args), "data")

        local = duotone.grad(mean if check_vma else loss_fn, scale=scale, dtype="float16")
        grads = local(params, x, y)
        return grads if check_vma else jax.lax.pmean(grads, "data")

    close(gradient(PARAMS, X, Y), jax.grad(loss_fn)(PARAMS, X, Y), 0.01)


@pytest.mark.parametrize("scale", [None, 8.0], ids=["plain", "scaled"])
def test_arguments_may_be_python_objects(scale: Any):
    def fn(w: Any, kind: str, *, options: dict[str, Any]) -> Any:
        y = options["act"](w @ w)
        return jnp.sum(y) if kind == "sum" else jnp.max(y)

    gradient = duotone.grad(fn, scale=scale, dtype="float16")
    options = {"act": jnp.tanh, "none": None}
    w = jnp.linspace(0, 0.5, 64).reshape(8, 8)
    for kind in ("sum", "max"):
        close(gradient(w, kind, options=options), jax.grad(fn)(w, kind, options=options), 0.01)
    jitted = jax.jit(
        duotone.grad(lambda w, kind: fn(w, kind, options=options), scale=scale, dtype="float16"),
        static_argnames="kind",
    )
    close(jitted(w, kind="sum"), gradient(w, "sum", options=options), 1e-6)
    assert list(inspect.signature(gradient).parameters) == ["w", "kind", "options"]
    assert gradient.__name__ == "fn"


# ---- with a loss scale


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("has_aux", [False, True], ids=["plain", "aux"])
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_scaled_results_are_unscaled(ours: Any, theirs: Any, has_aux: bool, dtype: str):
    """A power of two changes no bit where nothing leaves the range of the half type."""
    fn = with_aux if has_aux else loss_fn
    got = ours(fn, (0, 2), has_aux, scale=duotone.DynamicLossScale(2**12), dtype=dtype)
    want = ours(fn, (0, 2), has_aux, scale=duotone.FixedLossScale(2**13), dtype=dtype)
    same(got(PARAMS, X, Y), want(PARAMS, X, Y))
    plain = theirs(fn, (0, 2), has_aux)(PARAMS, X, Y)
    assert jax.tree.structure(got(PARAMS, X, Y)) == jax.tree.structure(plain)
    if not has_aux:
        close(got(PARAMS, X, Y), plain, 0.03)


def test_scaling_saves_what_float16_loses():
    tiny = (X * 1e-4, Y * 1e-4)
    want = jax.grad(loss_fn)(PARAMS, *tiny)["in"]
    errors = []
    for scale in (None, duotone.DynamicLossScale(2.0**20)):
        got = duotone.grad(loss_fn, scale=scale, dtype="float16")(PARAMS, *tiny)["in"]
        errors.append(float(jnp.linalg.norm(got - want) / jnp.linalg.norm(want)))
    assert 10 * errors[1] < errors[0], errors


def test_a_whole_loop_skips_and_recovers():
    @jax.jit
    def step(scale: Any, params: Any, y: Any) -> Any:
        gradient = duotone.value_and_grad(loss_fn, scale=scale, dtype="float16")
        loss, grads = gradient(params, X, y)
        finite = duotone.all_finite(grads)
        new = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return scale.adjust(finite), duotone.select_tree(finite, new, params), loss, finite

    scale, params, seen = duotone.DynamicLossScale(2.0**24), PARAMS, []
    for _ in range(25):
        scale, params, loss, finite = step(scale, params, Y * 50)
        seen.append(bool(finite))
        assert bool(jnp.isfinite(loss))  # the loss is not the scaled one
    assert not seen[0]
    assert seen[-1]
    assert int(scale.skipped) == seen.count(False)


def test_gradients_of_half_arguments_are_float32_with_a_scale_only():
    w, x = jnp.full(2, 1e-4, jnp.float16), jnp.full(2, 5e-8, jnp.float16)

    def fn(w: Any, x: Any) -> Any:
        return jnp.sum(w * x)

    got = duotone.grad(fn, scale=2.0**10, dtype="float16")(w, x)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, x.astype(jnp.float32))
    assert duotone.grad(fn, dtype="float16")(w, x).dtype == jnp.float16


def test_explain_looks_through_the_scale():
    seen = duotone.explain(duotone.grad(loss_fn, scale=8.0, dtype="float16"), PARAMS, X, Y)
    assert (seen.summary.allow_half, seen.summary.half_dtype) == (5, "float16")
    own = [o.source for o in seen.operations if o.rule == "update"]  # scaling and unscaling
    assert own
    assert not any("duotone/" in source for source in own)
    others = [o.source for o in seen.operations if o.rule != "update"]
    assert all("test_grad.py" in source for source in others)


# ---- bad input


@pytest.mark.parametrize("make", [duotone.grad, duotone.value_and_grad])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fun": 3}, ArgumentTypeError, "fn is 3, which is not callable"),
        ({"argnums": "0"}, ArgumentTypeError, "argnums must be an integer"),
        ({"argnums": ()}, ArgumentError, "argnums is empty"),
        ({"dtype": "int8"}, ArgumentError, "dtype is int8"),
        ({"policy": 3}, ArgumentTypeError, "policy is 3"),
        ({"calibration": 3}, ArgumentTypeError, "calibration is 3"),
        ({"scale": "dynamic"}, ArgumentTypeError, r"scale must be .*DynamicLossScale\(\) first"),
        ({"scale": duotone.DynamicLossScale}, ArgumentTypeError, r"DynamicLossScale\(\.\.\.\)"),
        ({"scale": jnp.float32(8)}, ArgumentTypeError, r"DynamicLossScale\(value=scale\)"),
        ({"scale": True}, ArgumentTypeError, "got True"),
        ({"scale": 0.0}, ArgumentError, r"scale must be from 2\*\*-126"),
        ({"scale": 8, "holomorphic": True}, ArgumentError, "leave scale out"),
    ],
)
def test_what_is_refused_when_it_is_made(make: Any, arguments: Any, error: Any, message: str):
    name = rf"^duotone\.{make.__name__}: "
    if message.startswith("scale must be from"):
        name = ""  # the check of every loss scale
    with pytest.raises(error, match=f"{name}.*{message}"):
        make(**{"fun": loss_fn, **arguments})


@pytest.mark.parametrize("scale", [None, 8.0], ids=["plain", "scaled"])
@pytest.mark.parametrize("make", [duotone.grad, duotone.value_and_grad])
def test_what_is_refused_when_it_is_called(make: Any, scale: Any):
    name = rf"^duotone\.{make.__name__}: "
    gradient = make(loss_fn, scale=scale, dtype="float16")
    with pytest.raises(ArgumentTypeError, match=name + "argnums=0 points past the 0 positional"):
        gradient(params=PARAMS, x=X, y=Y)
    with pytest.raises(ArgumentTypeError, match=name + r".*DynamicLossScale.*scale=loss_scale\)\("):
        gradient(duotone.DynamicLossScale(), PARAMS, X, Y)


@pytest.mark.parametrize("scale", [None, 8.0], ids=["plain", "scaled"])
def test_a_loss_that_is_no_scalar(scale: Any):
    with pytest.raises((TypeError, ValueError), match="scalar") as caught:
        duotone.grad(lambda w: w @ w, scale=scale, dtype="float16")(jnp.ones((2, 2)))
    if scale is not None:
        assert str(caught.value).startswith("duotone.grad: fun '<lambda>' (")


def test_the_remedies_work():
    scale = duotone.DynamicLossScale(value=jnp.float32(8))
    got = duotone.grad(loss_fn, scale=scale, dtype="float16")(PARAMS, X, Y)
    same(got, duotone.grad(loss_fn, scale=8, dtype="float16")(PARAMS, X, Y))
