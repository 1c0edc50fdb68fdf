"""Values recomputed: the same numbers, after a barrier, and the first one is not kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.xla_metadata import set_xla_metadata

from duotone import _jax
from duotone.devices.table import TABLE
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr import pipeline
from duotone.ops.entries import Pointwise
from duotone.ops.jax import ENTRIES
from duotone.policy.policy import Policy
from duotone.precision.optimize.residuals import Recompute
from tests.jaxpr.programs import equations, half, named, traced

HALVES = ("float16", "bfloat16")
KEYS = jax.random.split(jax.random.key(0), 8)
X = jax.random.normal(KEYS[0], (16, 32))
PARAMS = {
    "up": jax.random.normal(KEYS[1], (32, 64)) / 6,
    "bias": jax.random.normal(KEYS[2], (64,)) / 4,
    "down": jax.random.normal(KEYS[3], (64, 32)) / 8,
}

Model = Callable[[Any, Any], Any]


def perceptron(activation: Callable[[Any], Any]) -> Model:
    def model(params: Any, x: Any) -> Any:
        return activation(x @ params["up"] + params["bias"]) @ params["down"]

    return model


def scores(params: Any, x: Any) -> Any:
    return x @ params["up"] @ params["up"].T @ x.T / 8


def attention(params: Any, x: Any) -> Any:
    return jax.nn.softmax(scores(params, x)) @ x


MODELS = {
    "gelu": perceptron(jax.nn.gelu),
    "exact gelu": perceptron(lambda x: jax.nn.gelu(x, approximate=False)),
    "silu": perceptron(jax.nn.silu),
    "softmax": attention,
}
EXPENSIVE = {"gelu": "tanh", "exact gelu": "erfc", "silu": "logistic"}


def step(model: Model) -> Callable[[Any, Any], Any]:
    """Gradients of all parameters and of the input."""
    return jax.value_and_grad(lambda params, x: (model(params, x) ** 2).mean(), argnums=(0, 1))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, nothing is recomputed."""
    return lambda: monkeypatch.setenv("DUOTONE_OPTIMIZATIONS_REMOVE", "recompute")


def same(got: Any, wanted: Any, tolerance: float = 0.0) -> None:
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
        np.testing.assert_allclose(g, w, rtol=0, atol=tolerance * max(np.abs(w).max(), 1e-3))


def op_by_op(function: Any, *args: Any) -> Any:
    """The rewritten program, each equation compiled by itself."""
    jaxpr = traced(function, *args)
    return _jax.jaxpr_as_fun(jaxpr)(*jax.tree.leaves(args))


def plan(model: Model, dtype: str, device: str = "gpu") -> Recompute:
    """What a step recomputes on a device."""
    jaxpr = jax.make_jaxpr(step(model))(PARAMS, X)
    painted = pipeline.paint_jaxpr(jaxpr, Policy(), HALF_TYPES[dtype], forms=TABLE[device])
    return painted.optimizations.recompute


def barriers(jaxpr: Any) -> int:
    return len(named(jaxpr, "optimization_barrier"))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[] if (i + j) % 2 == 0 else pytest.mark.slow)
        for i, name in enumerate(MODELS)
        for j, dtype in enumerate(HALVES)
    ],
)
def test_the_numbers_are_those_without(name: str, dtype: str, kept: Callable[[], None]) -> None:
    train = step(MODELS[name])
    again, compiled = op_by_op(half(train, dtype), PARAMS, X), half(train, dtype)(PARAMS, X)
    # Exponentials that are computed from their quotient are as exact as that is.
    rounding = float(jnp.finfo(dtype).eps) if name == "softmax" else 0.0
    kept()
    same(again, op_by_op(half(train, dtype), PARAMS, X), rounding)
    same(compiled, half(train, dtype)(PARAMS, X), 2 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("name", MODELS)
def test_on_tpus_only_what_their_compiler_keeps_is_recomputed(name: str) -> None:
    """Of a complementary error function; all else it recomputes unasked."""
    assert plan(MODELS[name], "bfloat16").reads
    assert bool(plan(MODELS[name], "bfloat16", "tpu").reads) == (name == "exact gelu")


@pytest.mark.parametrize("dtype", HALVES)
def test_exponentials_of_a_softmax_are_computed_from_the_quotient(
    dtype: str, kept: Callable[[], None]
) -> None:
    """So neither they nor the scores live on: in the backward pass there is no second ``exp``."""

    def logged(params: Any, x: Any) -> Any:
        weights = jnp.exp(scores(params, x) - scores(params, x).max(1, keepdims=True))
        total = weights.sum(1, keepdims=True)
        return (weights / total) @ x + jnp.log(total)

    def read_once(params: Any, x: Any) -> Any:
        return jax.nn.softmax(scores(params, x)) * x[:, :1]

    found = plan(attention, dtype)
    assert len(found.products) == 1
    assert {made.normalized for made in found.products.values()} == found.halved
    assert not plan(read_once, dtype).products
    assert not plan(logged, dtype).products
    assert len(named(traced(half(step(attention), dtype), PARAMS, X), "exp")) == 1


@pytest.mark.parametrize("dtype", HALVES)
def test_a_softmax_of_which_little_is_left_keeps_its_gradient(
    dtype: str, kept: Callable[[], None]
) -> None:
    """Values with an offset: a mean of 10 and a variation of 0.1, all of it in the mean."""
    x = X / 10 + 10
    function = step(attention)
    exact = jax.tree.leaves(function(PARAMS, x)[1])

    def error() -> float:
        found = jax.tree.leaves(half(function, dtype)(PARAMS, x)[1])
        pairs = zip(found, exact, strict=True)
        return float(sum(jnp.sum((f - e) ** 2) for f, e in pairs)) ** 0.5

    with_products = error()
    kept()
    assert with_products < 1.5 * error()


@pytest.mark.parametrize("name", EXPENSIVE)
def test_the_program_shows_the_barrier_and_the_second_calculation(
    name: str, kept: Callable[[], None]
) -> None:
    again = traced(half(step(MODELS[name])), PARAMS, X)
    kept()
    once = traced(half(step(MODELS[name])), PARAMS, X)
    assert barriers(again) > barriers(once)
    assert [len(named(jaxpr, EXPENSIVE[name])) for jaxpr in (again, once)] == [2, 1]


def residual_bytes(jaxpr: Any, name: str) -> int:
    """Bytes of large values that live across the first dot after the first ``name``."""
    eqns = list(equations(_jax.open_jaxpr(jaxpr)))
    last: dict[Any, int] = {}
    for position, eqn in enumerate(eqns):
        for atom in eqn.invars:
            if not _jax.is_literal(atom):
                last[atom] = position
    first = next(i for i, eqn in enumerate(eqns) if eqn.primitive.name == name)
    cut = next(i for i, eqn in enumerate(eqns) if i > first and eqn.primitive.name == "dot_general")
    alive = {
        var
        for eqn in eqns[:cut]
        for var in eqn.outvars
        if last.get(var, -1) > cut and var.aval.size >= X.size
    }
    return sum(var.aval.size * var.aval.dtype.itemsize for var in alive)


@pytest.mark.parametrize("name", EXPENSIVE)
def test_the_first_result_is_not_kept(name: str, kept: Callable[[], None]) -> None:
    def flat(function: Any) -> Any:
        """Without inner jits, so that what lives can be told from the equations."""
        return jax.make_jaxpr(
            lambda *leaves: _jax.jaxpr_as_fun(traced(function, PARAMS, X))(*leaves)
        )(*jax.tree.leaves((PARAMS, X)))

    less = residual_bytes(flat(half(step(MODELS[name]))), EXPENSIVE[name])
    kept()
    more = residual_bytes(flat(half(step(MODELS[name]))), EXPENSIVE[name])
    assert less < more


def test_the_compiled_program_holds_less(kept: Callable[[], None]) -> None:
    """Eight layers: what is kept of each counts."""

    def deep(params: Any, x: Any) -> Any:
        for _ in range(8):
            x = x + MODELS["gelu"](params, x)
        return x

    x = jnp.concatenate([X] * 16)

    def temporaries() -> int:
        lowered = jax.jit(half(step(deep), "bfloat16")).lower(PARAMS, x)
        memory: Any = lowered.compile().memory_analysis()
        return memory.temp_size_in_bytes

    less = temporaries()
    kept()
    assert less < temporaries()


# Under transformations, and inside nested programs


def doubled(function: Any) -> Any:
    return lambda params, x: jax.vmap(function, in_axes=(None, 0))(params, jnp.stack([x, 2 * x]))


TRANSFORMATIONS = {
    "jit": jax.jit,
    "jit of jit": lambda f: jax.jit(lambda params, x: jax.jit(f)(params, x)),
    "vmap": doubled,
    "grad": lambda f: jax.grad(lambda p, x: sum(jnp.vdot(g, g) for g in jax.tree.leaves(f(p, x)))),
    "jvp": lambda f: lambda p, x: jax.jvp(f, (p, x), (p, x)),
    "scan": lambda f: lambda p, x: jax.lax.scan(lambda c, _: (c, f(p, c)), x, None, length=2),
    "remat": lambda f: jax.checkpoint(f),
    "cond": lambda f: lambda p, x: jax.lax.cond(x[0, 0] > 9, f, lambda p, x: f(p, 2 * x), p, x),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformed_from_outside(name: str, kept: Callable[[], None]) -> None:
    transform = TRANSFORMATIONS[name]
    train = step(MODELS["gelu"])
    assert barriers(jax.make_jaxpr(transform(half(train)))(PARAMS, X))
    got = transform(half(train))(PARAMS, X)
    kept()
    same(got, transform(half(train))(PARAMS, X), 2.0**-8)


@pytest.mark.parametrize("name", [n for n in TRANSFORMATIONS if n != "grad"])
def test_inside_a_nested_program(name: str, kept: Callable[[], None]) -> None:
    inner = TRANSFORMATIONS[name](step(MODELS["gelu"]))
    assert barriers(traced(half(inner), PARAMS, X))
    assert len(named(traced(half(inner), PARAMS, X), "tanh")) >= 2
    got = half(inner)(PARAMS, X)
    kept()
    same(got, half(inner)(PARAMS, X), 2.0**-8)


def test_a_step_of_which_the_layers_are_a_scan(kept: Callable[[], None]) -> None:
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), PARAMS)
    for layer in (MODELS["gelu"], jax.checkpoint(MODELS["gelu"])):

        def deep(params: Any, x: Any, layer: Any = layer) -> Any:
            return jax.lax.scan(lambda c, p: (c + layer(p, c), None), x, params)[0]

        got = half(step(deep))(stacked, X)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DUOTONE_OPTIMIZATIONS_REMOVE", "recompute")
            same(got, half(step(deep))(stacked, X), 2.0**-8)
    del kept


def test_a_jit_that_holds_nothing_else_to_rewrite_is_opened() -> None:
    """Operations of an inner ``jit`` are bound one by one if one of their values is recomputed."""

    @jax.jit
    def inner(h: Any) -> Any:
        return jnp.exp(jnp.sin(h))

    def model(params: Any, x: Any) -> Any:
        return inner(x @ params["up"]) @ params["down"]

    jaxpr = traced(half(step(model)), PARAMS, X)
    assert barriers(jaxpr)
    same(half(step(model))(PARAMS, X), step(model)(PARAMS, X), 2e-2)


def test_a_function_with_its_own_derivative(kept: Callable[[], None]) -> None:
    @jax.custom_jvp
    def block(x: Any, w: Any) -> Any:
        h = x @ w
        a = jnp.tanh(h)
        return jnp.tanh((a @ w.T) @ w) * a

    @block.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return block(*primals), tangents[0] @ primals[1]

    def inner(params: Any, x: Any) -> Any:
        return block(x, params["up"]) @ params["down"]

    for function in (inner, lambda p, x: jax.grad(lambda p: inner(p, x).sum())(p)):
        got = half(function)(PARAMS, X)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DUOTONE_OPTIMIZATIONS_REMOVE", "recompute")
            same(got, half(function)(PARAMS, X), 2.0**-8)
    del kept


@pytest.mark.parametrize("explicit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sharded_programs(explicit: bool) -> None:
    kinds = jax.sharding.AxisType
    kind = kinds.Explicit if explicit else kinds.Auto
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(kind,))
    rows = jax.sharding.PartitionSpec("rows")
    train = step(MODELS["gelu"])

    def sharded(params: Any, x: Any) -> Any:
        def local(params: Any, x: Any) -> Any:
            (loss, (_, gradient)) = train(params, x)
            return jax.lax.pmean(loss, "rows"), gradient

        specs = (jax.sharding.PartitionSpec(), rows)
        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=specs)(params, x)

    with jax.set_mesh(mesh):
        x = jax.device_put(X, jax.sharding.NamedSharding(mesh, rows))
        params = jax.device_put(PARAMS, jax.sharding.NamedSharding(mesh, specs := type(rows)()))
        del specs
        for function in (train, sharded):
            assert barriers(jax.make_jaxpr(half(function))(params, x))
            same(half(function)(params, x), function(params, x), 2e-2)


def test_symbolic_shapes() -> None:
    (rows,) = export.symbolic_shape("b")
    train = step(MODELS["gelu"])
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), PARAMS)
    exported = export.export(jax.jit(half(train)))(
        shapes, jax.ShapeDtypeStruct((rows, 32), "float32")
    )
    same(exported.call(PARAMS, X), half(train)(PARAMS, X), 2.0**-8)


def test_donated_arguments() -> None:
    train = step(MODELS["silu"])
    wanted = half(train)(PARAMS, X)
    donating = half(jax.jit(train, donate_argnums=(1,)))
    same(donating(PARAMS, X + 0), wanted, 2.0**-8)


@pytest.mark.parametrize("policy", ["dots_saveable", "nothing_saveable"])
def test_checkpoint_policies(policy: str) -> None:
    """Around the rewritten function and inside it."""

    def loss(params: Any, x: Any) -> Any:
        return (MODELS["gelu"](params, x) ** 2).mean()

    keep = getattr(jax.checkpoint_policies, policy)
    for gradient in (
        jax.grad(jax.checkpoint(half(loss), policy=keep)),
        half(jax.grad(jax.checkpoint(loss, policy=keep))),
    ):
        same(gradient(PARAMS, X), jax.grad(loss)(PARAMS, X), 2e-2)


@pytest.mark.parametrize("outside", [False, True])
def test_dots_that_a_checkpoint_policy_saves_are_half(outside: bool) -> None:
    """JAX rounds saved residuals to their own digits, which no longer keeps the layer float32."""

    def loss(params: Any, x: Any) -> Any:
        def layer(x: Any, _: Any) -> Any:
            return x + jnp.tanh(jax.nn.silu(x @ params["up"]) @ params["down"]), None

        keep = jax.checkpoint_policies.dots_saveable
        return jnp.mean(jax.lax.scan(jax.checkpoint(layer, policy=keep), x, None, 3)[0] ** 2)

    gradient = jax.grad(loss)
    rewritten = half(gradient) if outside else jax.grad(half(loss))
    program = jax.make_jaxpr(rewritten)(PARAMS, X)
    saved = [eqn.invars[0].aval for eqn in named(program, "reduce_precision")]
    assert "float16" in {aval.dtype.name for aval in saved if aval.shape == (16, 64)}
    assert "float32" not in {aval.dtype.name for aval in saved if aval.shape == (16, 64)}
    same(rewritten(PARAMS, X), gradient(PARAMS, X), 2e-2)


@pytest.mark.parametrize("name", ["waves", "other"])
def test_a_named_residual_is_kept(name: str) -> None:
    """A policy that saves a name gets what it asked for."""

    def loss(params: Any, x: Any) -> Any:
        gate = checkpoint_name(jnp.sin(x @ params["up"]), "waves")
        return ((x @ params["up"] * gate) @ params["down"]).sum() ** 2

    keep = jax.checkpoint_policies.save_only_these_names(name)
    program = traced(half(jax.grad(jax.checkpoint(loss, policy=keep))), PARAMS, X)
    assert len(named(program, "sin")) == (1 if name == "waves" else 2)


def test_whole_numbers_and_masks_among_the_roots() -> None:
    def loss(params: Any, x: Any) -> Any:
        steps = jnp.arange(16 * 64).reshape(16, 64) % 7 + jnp.int32(x[0, 0])
        h = x @ params["up"]
        a = jnp.tanh(h * jnp.where(steps > 3, 1.0, 2.0))
        y = (a * h) @ params["down"]
        return (((y @ params["up"]) * a @ params["down"]) * y**2).mean()

    wanted = jax.grad(loss)(PARAMS, X)
    assert barriers(traced(half(jax.grad(loss)), PARAMS, X))
    same(half(jax.grad(loss))(PARAMS, X), wanted, 2e-2)
    same(jax.grad(half(loss))(PARAMS, X), wanted, 2e-2)


def test_a_second_calculation_is_no_part_of_what_reads_it() -> None:
    """Metadata and the device of an equation are those of the first computation."""

    def model(params: Any, x: Any) -> Any:
        h = x @ params["up"]
        a = jnp.tanh(h)
        y = (a * h) @ params["down"]
        with set_xla_metadata(late="yes"):
            z = (y @ params["up"]) * a
        return z @ params["down"]

    tanhs = named(traced(half(model), PARAMS, X), "tanh")
    assert len(tanhs) == 2
    assert not any(eqn.ctx.xla_metadata for eqn in tanhs)


# What must happen once


def test_nothing_random_and_nothing_with_effects_happens_twice() -> None:
    seen: list[int] = []

    def spy(x: Any) -> Any:
        seen.append(1)
        return np.asarray(x)

    def model(params: Any, x: Any) -> Any:
        x0, params0 = jax.lax.stop_gradient((x, params["up"]))
        h = jax.nn.gelu(x @ params["up"])
        h = h * jax.random.bernoulli(jax.random.key(3), 0.5, h.shape)
        jax.debug.callback(spy, h[0, 0])
        drawn = jax.pure_callback(spy, jax.ShapeDtypeStruct(h.shape, h.dtype), x0 @ params0)
        return (h + jnp.tanh(drawn)) @ params["down"]

    def gradient(params: Any, x: Any) -> Any:
        return jax.grad(lambda p: (model(p, x) ** 2).sum())(params)

    before, after = jax.make_jaxpr(gradient)(PARAMS, X), traced(half(gradient), PARAMS, X)
    assert len(named(after, "tanh")) > len(named(before, "tanh"))
    for jaxpr in (before, after):
        names = [eqn.primitive.name for eqn in equations(jaxpr)]
        once = ("random_bits", "threefry2x32", "pure_callback", "debug_callback")
        assert [names.count(name) for name in once] == [1, 0, 1, 1], names
    jax.block_until_ready(half(gradient)(PARAMS, X))
    jax.effects_barrier()
    assert len(seen) == 2


def test_a_reference_is_read_once() -> None:
    def model(params: Any, x: Any) -> Any:
        memory = jax.new_ref(x)
        h = jnp.tanh(memory[...] @ params["up"])
        memory[...] = memory[...] * 3
        a = h @ params["down"] + memory[...]
        return jnp.tanh(a) @ params["up"] * h

    jaxpr = traced(half(model), PARAMS, X)
    before = jax.make_jaxpr(model)(PARAMS, X)
    count = [len(named(j, "get")) + len(named(j, "swap")) for j in (before, jaxpr)]
    assert count[0] == count[1]
    same(half(model)(PARAMS, X), model(PARAMS, X), 2e-2)


def test_a_maximum_is_found_where_it_was_taken() -> None:
    """Its gradient asks where ``x == max(x)``; of a second ``x`` that may hold nowhere: 0 / 0."""

    def model(params: Any, x: Any) -> Any:
        h = x @ params["up"]
        a = jnp.tanh(h)
        return (a.max(axis=1, keepdims=True) * a) @ params["down"] + x * h[:, :32]

    jaxpr = traced(half(step(model)), PARAMS, X)
    makers = {var: eqn for eqn in equations(jaxpr) for var in eqn.outvars}
    (equal,) = [eqn for eqn in named(jaxpr, "eq") if not any(map(_jax.is_literal, eqn.invars))]
    first = next(eqn for eqn in equations(jaxpr) if eqn.primitive.name == "tanh")

    def sources(eqn: Any) -> list[Any]:
        found = [makers[atom] for atom in eqn.invars if atom in makers]
        return [eqn, *[e for maker in found for e in sources(maker)]]

    reached = sources(equal)
    assert any(eqn is first for eqn in reached)
    assert "optimization_barrier" not in {eqn.primitive.name for eqn in reached}
    assert len(named(jaxpr, "tanh")) == 2


def test_listed_pointwise_operations_have_no_effects() -> None:
    one = jnp.ones(3)
    for entry in ENTRIES:
        if entry.pointwise is Pointwise.EXPENSIVE and hasattr(jax.lax, entry.op):
            operands = [one] * (2 if entry.op in ("pow", "atan2") else 1)
            (eqn,) = jax.make_jaxpr(getattr(jax.lax, entry.op))(*operands).eqns
            assert not eqn.effects


def test_what_is_recomputed_does_not_mix_with_the_first() -> None:
    """Every operand of a second computation is after a barrier, small, constant or second too."""
    rewritten = traced(half(step(MODELS["gelu"])), PARAMS, X)
    eqns = list(equations(rewritten))
    first = [eqn for eqn in eqns if eqn.primitive.name == "tanh"]
    makers = {var: eqn for eqn in eqns for var in eqn.outvars}

    def sources(eqn: Any) -> set[str]:
        found: set[str] = set()
        for atom in eqn.invars:
            maker = None if _jax.is_literal(atom) else makers.get(atom)
            if maker is None or atom.aval.size < X.size:
                continue
            name = maker.primitive.name
            ends = name in ("optimization_barrier", "dot_general")
            found |= {name} if ends else sources(maker)
        return found

    assert [sources(eqn) for eqn in first] == [{"dot_general"}, {"optimization_barrier"}]


def test_a_second_calculation_has_the_scope_of_the_first() -> None:
    def model(params: Any, x: Any) -> Any:
        with jax.named_scope("block"):
            return MODELS["silu"](params, x)

    first, second = named(traced(half(step(model)), PARAMS, X), "logistic")
    for eqn in (first, second):
        assert "block" in str(eqn.source_info.name_stack)
    assert _jax.source_line(first) == _jax.source_line(second)
