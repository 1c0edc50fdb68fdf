"""``duotone.blame``: planted overflow and underflow is named, told apart, and cured by the pin."""

# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false
# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import contextlib
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import duotone
from duotone.blaming.blame import look
from duotone.errors import ArgumentError, ArgumentTypeError

RNG = np.random.default_rng(0)


def normal(*shape, scale=1.0):
    return jnp.asarray(RNG.normal(size=shape) * scale, jnp.float32)


def scope(function):
    """The function under a name scope of its own name: where the fault is planted."""

    @functools.wraps(function)
    def scoped(*args):
        with jax.named_scope("planted"):
            return function(*args)

    return scoped


@scope
def unscaled_logits(x, w):
    return jax.nn.softmax((x @ w) @ (x @ w).T) @ x


@scope
def variance(x, w):
    h = x @ w
    squares = jnp.square(h - h.mean(-1, keepdims=True))
    return jnp.broadcast_to(jnp.mean(squares, -1, keepdims=True), h.shape) @ w


@scope
def exponential(x, w):
    e = jnp.exp(x @ w)
    return (e @ w) / e.sum(-1, keepdims=True)


@scope
def large_sum(x, w):
    return (jax.nn.relu(x @ w).sum(0, keepdims=True)) @ w


@scope
def product(x, w):
    return ((x @ w) * (x @ w[::-1])) @ w


@scope
def cumulative(x, w):
    return jnp.cumprod(jnp.abs(x @ w), axis=-1) @ w


@scope
def large_weights(x, w):
    return jnp.tanh((x @ w) @ w.T) @ w


@scope
def square(x, w):
    return (jnp.square(x @ w)) @ w * 1e-6


@scope
def no_epsilon(x, w):
    h = x @ w
    square = (h * h) @ jnp.ones((h.shape[-1], 1))
    return (h / square * 1e-3) @ w


@scope
def geometric(x, w):
    h = x @ w
    for _ in range(4):
        h = h * h
    return h @ w


PLANTED = {
    "attention logits": (unscaled_logits, 60.0, 1.0, {"dot_general"}),
    "variance": (variance, 400.0, 1.0, {"reduce_sum", "div"}),
    "exp": (exponential, 3.0, 1.0, {"exp"}),
    "sum": (large_sum, 3000.0, 1.0, {"reduce_sum"}),
    "product": (product, 100.0, 1.0, {"mul"}),
    "cumulative product": (cumulative, 2.0, 1.0, {"cumprod"}),
    "large weights": (large_weights, 3.0, 300.0, {"dot_general"}),
    "square": (square, 120.0, 1.0, {"square", "integer_pow", "mul"}),
    "square without epsilon": (no_epsilon, 1e-5, 1.0, {"div", "mul", "square"}),
    "powers": (geometric, 1.5, 1.0, {"mul", "square"}),
}


def planted(name):
    function, size, weights, operations = PLANTED[name]
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(32, 16)) * size, jnp.float32)
    w = jnp.asarray(rng.normal(size=(16, 16)) * weights, jnp.float32)
    return function, (x, w), operations


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_named_and_its_pin_cures_it(name):
    function, args, operations = planted(name)
    assert bool(jnp.isfinite(function(*args)).all()), "the plant itself is bad"
    found = duotone.blame(function, *args, dtype="float16")
    print(found)
    assert found.verdict == ("underflow" if "epsilon" in name else "overflow")
    assert found.first.operation in operations
    assert found.first.scope == "planted"
    assert "test_blame.py" in found.first.source
    assert not found.first.backward
    assert found.pins
    assert all(len(line) <= 80 for line in str(found).splitlines())
    policy = duotone.Policy(keep_full=found.pins)
    cured = duotone.blame(function, *args, dtype="float16", policy=policy)
    print(cured)
    assert cured.verdict == "finite"


def loss(params, x, y):
    with jax.named_scope("first"):
        h = jax.nn.relu(x @ params["w"])
    with jax.named_scope("second"):
        return jnp.mean((h @ params["v"] - y) ** 2)


def training(size=1.0):
    params = {"w": normal(16, 32, scale=0.3), "v": normal(32, 8, scale=0.3)}
    return params, normal(64, 16, scale=size), normal(64, 8)


def test_nothing_wrong_says_so_and_ranks_what_is_lost():
    found = duotone.blame(duotone.grad(loss, dtype="float16"), *training())
    print(found)
    assert found.verdict == "finite"
    assert found.first is None
    assert not found.pins
    assert found.errors[0].error >= found.errors[-1].error > 0
    assert all(s.error < 0.1 for s in found.errors)


def test_underflow_is_ranked():
    """Gradients of a loss that is not scaled, of a large batch: 0 in float16."""

    def small(params, x, y):
        return loss(params, x, y) * 1e-6

    found = duotone.blame(duotone.grad(small, dtype="float16"), *training())
    print(found)
    assert found.verdict == "finite"
    assert found.underflows[0].underflow > 0.9
    assert found.underflows[0].backward
    scaled = duotone.blame(duotone.grad(small, scale=2.0**15, dtype="float16"), *training())
    assert scaled.underflows[0].underflow < found.underflows[0].underflow


@pytest.mark.parametrize("jitted", [False, True])
def test_overflow_by_the_loss_scale_is_reported_apart(jitted):
    step = duotone.value_and_grad(loss, scale=2.0**24, dtype="float16")
    step = jax.jit(step) if jitted else step
    arguments = training()
    found = duotone.blame(step, *arguments)
    print(found)
    assert found.verdict == "loss scale"
    assert found.first.backward
    assert found.loss_scale == 2.0**24
    assert 1 <= found.fitting_scale < 2.0**24
    assert not found.pins
    lower = duotone.value_and_grad(loss, scale=found.fitting_scale, dtype="float16")
    assert duotone.blame(lower, *arguments).verdict == "finite"


def test_a_loss_that_is_multiplied_by_hand_overflows_in_the_backward_pass():
    def multiplied(params, x, y, size):
        return loss(params, x, y) * size

    arguments = *training(), jnp.float32(1e8)
    found = duotone.blame(duotone.grad(multiplied, dtype="float16"), *arguments)
    print(found)
    assert found.verdict == "backward"
    assert found.first.backward
    assert found.loss_scale is None
    policy = duotone.Policy(keep_full=found.pins)
    cured = duotone.grad(multiplied, dtype="float16", policy=policy)
    assert duotone.blame(cured, *arguments).verdict == "finite"


@pytest.mark.parametrize("scale", [None, 2.0**10])
def test_overflow_of_the_forward_pass_of_a_training_step(scale):
    params, x, y = training(3000.0)
    step = duotone.value_and_grad(loss, scale=scale, dtype="float16")
    found = duotone.blame(step, {**params, "w": params["w"] * 20}, x, y)
    print(found)
    assert found.verdict == "overflow"
    assert not found.first.backward
    assert found.first.scope == "first"


def test_a_scan_names_the_iteration():
    def grows(x, w):
        def layer(h, w):
            with jax.named_scope("layer"):
                return (h @ w) * 4.0, h.sum()

        h, sums = jax.lax.scan(layer, x, w)
        return h @ w[0] * 1e-20, sums

    args = jnp.ones((8, 16)), jnp.ones((9, 16, 16)) / 4
    found = duotone.blame(grows, *args, dtype="float16")
    print(found)
    assert found.verdict == "overflow"
    assert found.first.scope == "layer"
    assert found.first.iteration == 3  # 16 ** 4 is 65536
    cured = duotone.blame(
        grows, *args, dtype="float16", policy=duotone.Policy(keep_full=found.pins)
    )
    print(cured)
    assert cured.verdict == "finite"


def overflowing(x, w):
    with jax.named_scope("planted"):
        return ((x @ w) * (x @ w)) @ w


AROUND = {
    "jit": lambda f: jax.jit(f),
    "sum of grad": lambda f: jax.grad(lambda x, w: f(x, w).sum() * 1e-9),
    "grad of jit": lambda f: jax.grad(jax.jit(lambda x, w: f(x, w).sum() * 1e-9)),
    "vmap": lambda f: lambda x, w: jax.vmap(f, (0, None))(x[None], w),
    "remat": lambda f: jax.grad(lambda x, w: jax.checkpoint(f)(x, w).sum() * 1e-9),
    "cond": lambda f: lambda x, w: jax.lax.cond(x.sum() > -1e9, f, lambda x, w: x, x, w),
    "while": lambda f: (
        lambda x, w: jax.lax.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(f(s[1], w)) * 100.0), (0, x)
        )
    ),
    "scan": lambda f: lambda x, w: jax.lax.scan(lambda h, _: (f(x, w), h), x, None, length=3),
    "fori": lambda f: lambda x, w: jax.lax.fori_loop(0, 3, lambda i, h: f(x, w) * 1e-9, x),
    "nested": lambda f: (
        lambda x, w: jax.lax.map(
            lambda r: jax.lax.scan(lambda h, _: (f(x, w) * 1e-9, None), x, None, length=2)[0], x
        )
    ),
}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", AROUND)
def test_through_transformations(name, inside):
    """Rewritten inside of the transformation, and around it."""
    args = normal(16, 16, scale=200.0), normal(16, 16)
    if inside:
        step = AROUND[name](duotone.autocast(overflowing, dtype="float16"))
        found = duotone.blame(step, *args)
    else:
        found = duotone.blame(AROUND[name](overflowing), *args, dtype="float16")
    print(found)
    assert found.verdict == "overflow"
    assert found.first.scope == "planted"
    assert found.first.operation == "mul"
    assert "planted/mul" in found.pins


def test_what_float32_cannot_do_either_is_reported():
    def bad(x, w):
        with jax.named_scope("bad"):
            return jnp.log((x @ w) * 0 - 1.0)

    found = duotone.blame(bad, normal(8, 8), normal(8, 8), dtype="float16")
    print(found)
    assert found.verdict == "float32"
    assert found.first.operation == "log"
    assert not found.pins


def test_an_argument_that_is_not_finite_is_named():
    params, x, y = training()
    params["w"] = params["w"].at[0, 0].set(jnp.nan)
    found = duotone.blame(duotone.grad(loss, dtype="float16"), params, x, y)
    print(found)
    assert found.verdict == "input"
    assert found.inputs == ("params/w",)
    assert "params/w" in str(found)


def test_infinities_that_belong_there_are_no_fault():
    def masked(x, w):
        scores = jnp.where(jnp.tri(16, dtype=bool), (x @ w) @ (x @ w).T * 0.1, -jnp.inf)
        return jax.nn.softmax(scores) @ x

    found = duotone.blame(masked, normal(16, 16), normal(16, 16), dtype="float16")
    print(found)
    assert found.verdict == "finite"


def test_bad_input():
    x = jnp.ones((8, 8))
    with pytest.raises(ArgumentTypeError, match=r"blame: fn is 3, which is not callable"):
        duotone.blame(3, x)
    with pytest.raises(ArgumentError, match=r"float32, which switches mixed precision off"):
        duotone.blame(lambda x: x @ x, x, dtype="float32")
    with pytest.raises(ArgumentError, match=r"switches mixed precision off"):
        duotone.blame(duotone.autocast(lambda x: x @ x, enabled=False), x)
    with pytest.raises(ArgumentTypeError, match=r"x is a ShapeDtypeStruct, which has no data"):
        duotone.blame(lambda x: x @ x, jax.ShapeDtypeStruct((8, 8), "float32"), dtype="float16")
    with pytest.raises(ArgumentError, match="int8"):
        duotone.blame(lambda x: x @ x, x, dtype="int8")


def test_a_notebook_shows_it():
    found = duotone.blame(overflowing, *[normal(16, 16, scale=200.0)] * 2, dtype="float16")
    assert "planted/mul" in found._repr_html_()


@contextlib.contextmanager
def compilations():
    compiled = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_a_second_look_compiles_nothing():
    params = {"w": normal(16, 32, scale=0.05), "v": normal(32, 16, scale=0.05)}
    x, y = normal(8, 16), normal(8, 16)
    step = duotone.value_and_grad(loss, dtype="float16")
    with compilations() as compiled:
        first = duotone.blame(step, params, x, y)
        assert compiled
        compiled.clear()
        second = duotone.blame(step, params, y, x)
    assert first.verdict == second.verdict == "finite"
    assert not compiled


def test_errors_are_compiled_only_where_all_is_finite():
    a, b = normal(16, 16), normal(16, 16)
    with compilations() as compiled:
        bad = duotone.blame(overflowing, a * 200.0, b * 200.0, dtype="float16")
        assert bad.verdict == "overflow"
        assert not bad.errors
        compiled.clear()
        fine = duotone.blame(overflowing, a * 1e-2, b * 1e-2, dtype="float16")
    assert fine.verdict == "finite"
    assert fine.errors
    assert compiled


# Float32 is not finite: said, with the line that it comes from


ROWS = jnp.ones((4, 8)).at[1].set(0.0)
EYE = jnp.eye(8) + 0.1


def root(w, x):
    return jnp.sqrt(jnp.sum((x @ w) ** 2, -1)).mean()


def line_of(function):
    """The lines of a function, as sources name them."""
    code = function.__code__
    return {f"{code.co_filename}:{line}" for _, _, line in code.co_lines() if line}


def in_a_scan(w, x):
    def body(c, _):
        return c - 0.1 * jax.grad(root)(c, x), None

    return jax.lax.scan(body, w, None, length=3)[0]


def in_a_branch(w, x):
    return jax.lax.cond(x[0, 0] > 0, lambda: root(w, x), lambda: 0.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "step",
    [
        jax.grad(root),
        jax.jit(jax.grad(jax.checkpoint(root))),
        jax.grad(in_a_branch),
        in_a_scan,
        lambda w, x: jnp.nan_to_num(jax.grad(root)(w, x)),
    ],
    ids=["grad", "checkpoint", "branch", "scan", "hidden"],
)
def test_a_gradient_that_is_nan_in_float32_too(step, dtype):
    """Catches: naming a residual of the branch that is not taken, or of a later iteration."""
    found = duotone.blame(step, EYE, ROWS, dtype=dtype)
    assert found.verdict == "float32"
    assert found.first.operation == "div"
    assert found.first.source.rpartition(":")[0] in line_of(root)
    assert not found.of_gradient


def test_the_gradient_of_a_loss_is_looked_at():
    found = duotone.blame(root, EYE, ROWS, dtype="float16")
    assert (found.verdict, found.of_gradient, found.half_dtype) == ("float32", True, "float16")
    assert found.first.source.rpartition(":")[0] in line_of(root)
    again = duotone.blame(root, EYE, ROWS + 1.0, dtype="float16")  # other numbers, no new program
    assert again.verdict == "finite"
    assert again.errors


def test_a_number_without_a_gradient_is_finite():
    def counted(w, x):
        return jax.lax.while_loop(lambda v: v < 3, lambda v: v + 1, jnp.abs(x @ w).max())

    assert duotone.blame(counted, EYE, ROWS, dtype="float16").verdict == "finite"


def filled(w, x):
    return jnp.take(x @ w, jnp.array([9]), axis=0)


def selected(w, x):
    return jnp.where(x > 0, x @ w, jnp.nan)


@pytest.mark.parametrize(("step", "operation"), [(filled, "gather"), (selected, "select_n")])
def test_a_result_into_which_nan_is_moved(step, operation):
    for policy in (None, duotone.Policy(keep_full=["*"], ignore_performance=True)):
        found = duotone.blame(step, EYE, ROWS, dtype="float16", policy=policy)
        assert (found.verdict, found.first.operation) == ("float32", operation)
        assert found.first.source.rpartition(":")[0] in line_of(step)


def test_a_saturated_constant_that_is_infinite_in_float32():
    """A row that is all mask is NaN in float32 and finite in half, where the mask is saturated."""

    def masked(w, x):
        return jax.nn.softmax(jnp.where(x > 0, x @ w, -3e38) * 2, axis=-1) @ w

    assert jnp.isnan(masked(EYE, ROWS)).any()
    fast = duotone.autocast(masked, dtype="float16")
    assert jnp.isfinite(fast(EYE, ROWS)).all()
    for step in (masked, fast):
        assert duotone.blame(step, EYE, ROWS, dtype="float16").verdict == "float32"
        assert duotone.blame(step, EYE, ROWS + 1.0, dtype="float16").verdict == "finite"


def of_biases(params, x):
    """Of a bias before a mean is subtracted, the gradient is 0; of one after it, it is not."""
    with jax.named_scope("centred"):
        h = x @ params["w"] + params["useless"][:, None]
        h = h - h.mean(1, keepdims=True)
    with jax.named_scope("head"):
        return jnp.mean(jnp.tanh(h) ** 2)


def test_a_sum_that_is_0_is_judged_by_its_terms():
    """Catches: an error of 1e6 for the gradient of a bias that changes nothing, and all of Adam
    after it, in front of the user's own operations."""
    opt = duotone.enable_mixed_precision_graph_rewrite(optax.adam(1e-3), dtype="bfloat16")
    params = {"w": normal(16, 32, scale=0.3), "useless": normal(64)}

    def step(params, state, x):
        return opt.minimize(of_biases, params, state, x)

    told = []
    arguments = (params, opt.init(params), normal(64, 16))
    found = look(step, arguments, {}, None, None, told.append)
    print(found)
    assert found.verdict == "finite"
    assert told == ["tracing", "the step next to float32", "errors against float32"]
    assert found.errors[0].error < 0.5
    users = ["optax" not in s.source and s.operation != "cond" for s in found.errors]
    assert sorted(users, reverse=True) == users
    assert users.count(True) >= 5
    assert any("optax" in s.source for s in found.errors)
    assert all(s.error < 1.0 for s in found.errors)


def test_a_difference_that_half_loses_is_not_forgiven():
    """What cancels, but not to float32's rounding: the error is all of the result, and said so."""

    def difference(a, w, b):
        with jax.named_scope("products"):
            return a @ w - b

    a, w = normal(16, 16), jnp.eye(16) * (1 + 2.0**-9)
    found = duotone.blame(difference, a, w, a, dtype="bfloat16")
    assert found.verdict == "finite"
    assert max(s.error for s in found.errors if s.operation == "sub") > 0.5


def test_the_record_is_data():
    found = duotone.blame(overflowing, *[normal(16, 16, scale=200.0)] * 2, dtype="float16")
    data = json.loads(found.to_json())
    assert data["verdict"] == "overflow"
    assert data["first"]["operation"] == found.first.operation
    assert data["first"]["shape"] == [16, 16]
    bad = duotone.blame(lambda x: jnp.log(x) @ x, -jnp.ones((8, 8)), dtype="float16")
    assert json.loads(bad.to_json())["first"]["low"] == "NaN"


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_a_step_without_half_operations_names_the_asked_dtype(half: str) -> None:
    """Catches: a record that says bfloat16 where ``dtype="float16"`` finds nothing to make half."""
    assert duotone.blame(jnp.exp, jnp.ones(4), dtype=half).half_dtype == half


@pytest.mark.parametrize(("pattern", "half"), [("dot_general", False), ("none_of_them", True)])
def test_a_step_in_which_nothing_is_half_says_so(pattern: str, half: bool) -> None:
    """Catches: "finite" about a step that duotone does not rewrite, read as a proof."""
    policy = duotone.Policy(keep_full=[pattern], ignore_performance=True)
    found = duotone.blame(lambda x: x @ x, jnp.eye(16), dtype="float16", policy=policy)
    assert found.verdict == "finite"
    assert bool(found.in_half) == half
    assert ("no value of the step is half" in str(found)) != half


def test_a_long_pin_can_be_copied() -> None:
    """Catches: a pin cut to the width of the terminal, which is no Python and matches nothing."""
    name = "a_scope_with_a_long_name/" * 5

    def step(x: jax.Array) -> jax.Array:
        with jax.named_scope(name.strip("/")):
            return (x @ x * 200.0) @ x

    found = duotone.blame(step, jnp.full((8, 8), 9.0), dtype="float16")
    assert found.verdict == "overflow"
    code = str(found).partition("policy = ")[2]
    policy = eval(code, {"duotone": duotone})
    assert policy.keep_full == found.pins
