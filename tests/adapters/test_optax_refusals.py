"""Every refusal of the Optax adapter: it names the thing, and following its advice works."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from duotone.adapters.enable import enable_mixed_precision_graph_rewrite as enable
from duotone.adapters.gradient_functions import GradientFunctions
from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.scale import DynamicLossScale, scaled_value_and_grad
from duotone.scale.skip import skip_nonfinite
from tests.adapters.optimizers import LABELS, loss_fn, problem

PARAMS, BATCHES = problem()


def adam(loss_scale: Any = 2.0**10, **settings: Any) -> Any:
    return enable(optax.adam(0.1), loss_scale, dtype="float16", **settings)


def works(tx: Any, params: Any = PARAMS, loss: Any = loss_fn) -> None:
    done = tx.minimize(loss, params, tx.init(params), BATCHES[0])
    assert tx.metrics(done.state)["last_finite"]


# What is wrapped.


@pytest.mark.parametrize(
    ("thing", "kind", "says"),
    [
        (
            optax.adam,
            ArgumentTypeError,
            r"got the function adam. Call it first, as in adam\(1e-3\)",
        ),
        ("adam", ArgumentTypeError, r"such as optax.adam\(1e-3\)"),
        (None, ArgumentTypeError, "got a NoneType. Pass an optimizer"),
        (optax.MultiSteps, ArgumentTypeError, "got the function MultiSteps|got the class"),
    ],
)
@pytest.mark.parametrize("wrap", [enable, skip_nonfinite])
def test_what_is_no_optimizer(thing, kind, says, wrap):
    with pytest.raises(kind, match=says):
        wrap(thing)


def test_a_flax_train_state_is_no_optimizer():
    class TrainState:
        tx = optax.adam(0.1)

    with pytest.raises(ArgumentTypeError, match="Wrap the Optax optimizer that you make it of"):
        enable(TrainState())
    works(enable(TrainState().tx, dtype="float16"))


def test_wrapped_twice():
    with pytest.raises(ArgumentError, match="wrapped already"):
        enable(adam())


@pytest.mark.parametrize(
    "around",
    [
        lambda tx: optax.chain(optax.clip(1.0), tx),
        lambda tx: optax.masked(tx, True),
        lambda tx: optax.MultiSteps(tx, 2),
        lambda tx: optax.multi_transform({"one": tx, "two": optax.sgd(0.1)}, LABELS),
        lambda tx: optax.inject_hyperparams(lambda rate: tx)(rate=0.1),
    ],
)
def test_wrapped_twice_with_something_between(around):
    with pytest.raises(ArgumentError, match=r"wrapped already, at state\.inner.*outermost"):
        enable(around(adam())).init(PARAMS)
    works(enable(around(optax.adam(0.1)), 8, dtype="float16"))


@pytest.mark.parametrize("loss_scale", [1e-40, 0, -1, float("nan"), float("inf"), 1e300])
def test_a_loss_scale_out_of_range(loss_scale):
    with pytest.raises(ArgumentError, match=r"loss_scale must be from 2\*\*-126 to"):
        adam(loss_scale)


@pytest.mark.parametrize(
    ("loss_scale", "kind", "says"),
    [
        ("fixed", ArgumentError, 'the only string accepted is "dynamic"'),
        (True, ArgumentTypeError, "got True"),
        (DynamicLossScale, ArgumentTypeError, r"Make an instance of it: DynamicLossScale\(...\)"),
        (np.array([8.0]), ArgumentTypeError, r"array of float64\[1\]. Convert the array"),
        ([8], ArgumentTypeError, "got a list"),
    ],
)
def test_a_loss_scale_of_another_kind(loss_scale, kind, says):
    with pytest.raises(kind, match=says):
        adam(loss_scale)


def test_other_settings_are_checked_where_they_are_given():
    with pytest.raises(ArgumentError, match="float64, which is not a half type"):
        enable(optax.adam(0.1), dtype="float64")
    with pytest.raises(ArgumentTypeError, match=r"policy is 'O1'.*duotone.Policy"):
        enable(optax.adam(0.1), policy=cast("Any", "O1"))
    with pytest.raises(ArgumentTypeError, match='axis_name="data"'):
        enable(optax.adam(0.1), axis_name=cast("Any", 3))


# Parameters and losses.


@pytest.mark.parametrize(
    ("leaf", "says"),
    [
        (jnp.arange(3), r"params\['n'\] is of dtype int32"),
        (3, r"params\['n'\] is an int"),
        ("relu", r"params\['n'\] is a str"),
        (jax.random.key(0), r"params\['n'\] is of dtype key"),
    ],
)
def test_parameters_without_a_gradient(leaf, says):
    tx = adam()
    params = {"n": leaf, "w": jnp.ones(3)}
    state = tx.init({"w": params["w"]})
    with pytest.raises(ArgumentTypeError, match=says):
        tx.compute_gradients(lambda p: jnp.sum(p["w"]), params, state)

    def loss(trained, rest):
        return jnp.sum(trained["w"]) + (0 if isinstance(rest, str) else 1)

    out = tx.compute_gradients(loss, {"w": params["w"]}, state, leaf)
    assert out.grads["w"].tolist() == [1, 1, 1]


def test_init_of_a_function_names_the_leaf():
    with pytest.raises(ArgumentTypeError, match=r"init: leaf params\['f'\] is .*eqx.partition"):
        adam().init({"f": jnp.tanh, "w": jnp.ones(3)})
    assert adam().init({"n": jnp.arange(3), "w": jnp.ones(3)})  # optax.masked may exclude it


def test_a_loss_that_is_no_scalar():
    tx = adam()
    with pytest.raises(ArgumentError, match=r"loss_fn '<lambda>' .*scalar loss.*jnp.mean"):
        tx.minimize(lambda p: p["b"], PARAMS, tx.init(PARAMS))
    with pytest.raises(ArgumentTypeError, match="must be a function"):
        tx.minimize(3, PARAMS, tx.init(PARAMS))


# Gradients.


def test_gradients_of_another_tree():
    tx = adam()
    state = tx.init(PARAMS)
    grads = {"w1": PARAMS["w1"], "other": jnp.ones(2)}
    with pytest.raises(ArgumentError, match=r"leaf grads\['other'\], which the parameters"):
        tx.update(grads, state, PARAMS)
    with pytest.raises(ArgumentError, match=r"leaf params\['b'\].*no gradient"):
        tx.apply_gradients({"w1": PARAMS["w1"]}, PARAMS, state)


def test_a_gradient_of_another_shape():
    tx = adam()
    grads = {**PARAMS, "b": jnp.ones((3, 2))}
    with pytest.raises(ArgumentError, match=r"grads\['b'\] has shape \(3, 2\).*\(8,\)"):
        tx.apply_gradients(grads, PARAMS, tx.init(PARAMS))


@pytest.mark.parametrize("inner", [optax.sgd(0.1), optax.adam(0.1)])
@pytest.mark.parametrize("method", ["update", "apply_gradients"])
def test_gradients_of_each_example_that_nothing_reduces(inner, method):
    tx = enable(inner, dtype="float16")
    grads = jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), PARAMS)
    state = tx.init(PARAMS)
    steps = {
        "update": lambda grads: tx.update(grads, state, PARAMS),
        "apply_gradients": lambda grads: tx.apply_gradients(grads, PARAMS, state),
    }
    with pytest.raises(ArgumentError, match=r"first axis of 5.*updates\['.*Take the mean"):
        steps[method](grads)
    steps[method](jax.tree.map(lambda leaf: jnp.mean(leaf, 0), grads))


def test_gradients_of_each_example_on_every_leaf_and_of_one_number():
    tx = enable(
        optax.contrib.differentially_private_aggregate(1.0, 0.1, jax.random.key(0)), dtype="float16"
    )
    state = tx.init(PARAMS)
    grads = jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), PARAMS)
    tx.update(grads, state, PARAMS)
    for wrong in (PARAMS["b"], grads["b"][:4], grads["b"][None]):
        with pytest.raises(ArgumentError, match=r"has shape .* and the parameter"):
            tx.update({**grads, "b": wrong}, state, PARAMS)


def test_gradients_of_none_are_of_leaves_that_are_not_trained():
    tx = adam()
    params = {"w": jnp.ones(2), "static": None}
    updates, _ = tx.update({"w": jnp.ones(2), "static": None}, tx.init(params), params)
    assert updates["static"] is None


# States.


@pytest.mark.parametrize("method", ["minimize", "compute_gradients", "metrics", "check_state"])
def test_the_state_of_the_bare_optimizer(method):
    tx, bare = adam(), optax.adam(0.1).init(PARAMS)
    calls = {
        "minimize": lambda state: tx.minimize(loss_fn, PARAMS, state, BATCHES[0]),
        "compute_gradients": lambda state: tx.compute_gradients(loss_fn, PARAMS, state, BATCHES[0]),
    }
    call: Any = calls.get(method, getattr(tx, method))
    with pytest.raises(ArgumentTypeError, match=r"_replace\(inner=state\)"):
        call(bare)
    call(tx.init(PARAMS)._replace(inner=bare))


def test_the_state_before_the_parameters():
    tx, params = enable(optax.sgd(0.1)), {"w": jnp.ones(3)}
    state = tx.init(params)
    with pytest.raises(ArgumentTypeError, match=r"first: minimize\(loss_fn, params, state"):
        tx.minimize(lambda p: jnp.sum(p["w"]), state, params)
    with pytest.raises(ArgumentTypeError, match=r"apply_gradients\(grads, params, state\)"):
        tx.apply_gradients(params, state, params)


def test_the_state_of_another_optimizer():
    tx = adam()
    other = enable(optax.sgd(0.1, momentum=0.9), dtype="float16").init(PARAMS)
    with pytest.raises(ArgumentError, match=r"another optimizer: .*state\.inner\[0\]\.count"):
        tx.minimize(loss_fn, PARAMS, other, BATCHES[0])
    begun = tx.init(PARAMS)._replace(loss_scale=other.loss_scale)
    tx.minimize(loss_fn, PARAMS, begun, BATCHES[0])


def test_the_state_of_the_same_optimizer_made_elsewhere():
    """A restored state: the optimizer of this process has seen no state yet."""
    state = adam().init(PARAMS)
    adam().minimize(loss_fn, PARAMS, state, BATCHES[0])


def test_the_state_of_an_optimizer_around():
    tx = adam()
    around = optax.chain(optax.clip(1.0), tx)
    state = around.init(PARAMS)
    out = tx.compute_gradients(loss_fn, PARAMS, state, BATCHES[0])
    with pytest.raises(ArgumentTypeError, match="call update of that one"):
        tx.apply_gradients(out, PARAMS, state)
    with pytest.raises(ArgumentTypeError, match="call update of that one"):
        tx.minimize(loss_fn, PARAMS, state, BATCHES[0])
    _, state = around.update(out.grads, state, PARAMS)
    assert tx.metrics(state)["last_finite"]


@pytest.mark.parametrize("other", [8, 2.0])
def test_several_loss_scales(other):
    tx = adam()
    both = optax.multi_transform({"one": tx, "two": adam(other)}, LABELS)
    with pytest.raises(ArgumentError, match=r"2 loss scales, at state.*'one'.*'two'"):
        tx.compute_gradients(loss_fn, PARAMS, both.init(PARAMS), BATCHES[0])
    works(enable(optax.multi_transform({"one": optax.adam(0.1), "two": optax.sgd(0.1)}, LABELS)))


@pytest.mark.parametrize("method", ["minimize", "compute_gradients", "metrics", "update"])
def test_accumulation_around_it(method):
    tx = adam()
    state = optax.MultiSteps(tx, 2).init(PARAMS)
    calls = {
        "update": lambda: jax.jit(optax.MultiSteps(tx, 2).update)(PARAMS, state, PARAMS),
        "minimize": lambda: tx.minimize(loss_fn, PARAMS, state, BATCHES[0]),
        "compute_gradients": lambda: tx.compute_gradients(loss_fn, PARAMS, state, BATCHES[0]),
        "metrics": lambda: tx.metrics(state),
    }
    with pytest.raises(ArgumentError, match=r"Wrap it instead: .*optax.MultiSteps\(tx, k\)"):
        calls[method]()
    works(enable(optax.MultiSteps(optax.adam(0.1), 2), dtype="float16"))


@pytest.mark.parametrize(
    ("around", "named"),
    [
        (lambda tx: optax.multi_transform({"one": tx, "two": optax.sgd(0.1)}, LABELS), "'two'"),
        (lambda tx: optax.chain(optax.trace(0.9), tx), "TraceState"),
        (
            lambda tx: optax.named_chain(("trace", optax.trace(0.9)), ("inner", tx)),
            "TraceState",
        ),
        (lambda tx: optax.chain(optax.clip(1.0), optax.chain(optax.ema(0.9), tx)), "EmaState"),
    ],
)
def test_what_an_overflow_would_ruin_outside_of_it(around, named):
    """Its gradients are not those of the wrapped optimizer, which skips them."""
    tx = adam("dynamic")
    with pytest.raises(ArgumentError, match=f"{named}.*Wrap the outermost optimizer once"):
        tx.compute_gradients(loss_fn, PARAMS, around(tx).init(PARAMS), BATCHES[0])
    works(enable(around(optax.adam(0.1)), dtype="float16"))
    unscaled = enable(optax.adam(0.1), dtype="bfloat16")
    unscaled.compute_gradients(loss_fn, PARAMS, around(unscaled).init(PARAMS), BATCHES[0])


@pytest.mark.parametrize(
    "around",
    [
        lambda tx: optax.multi_transform({"one": tx, "two": optax.set_to_zero()}, LABELS),
        lambda tx: optax.chain(optax.clip(1.0), optax.scale_by_schedule(lambda _: 1.0), tx),
        lambda tx: optax.chain(tx, optax.trace(0.9)),
        lambda tx: optax.apply_if_finite(tx, 3),
    ],
)
def test_what_no_overflow_ruins_may_stand_around_it(around):
    tx = adam("dynamic")
    tx.compute_gradients(loss_fn, PARAMS, around(tx).init(PARAMS), BATCHES[0])


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 0.5, 2.0**25, -8.0])
@pytest.mark.parametrize("method", ["minimize", "compute_gradients", "apply", "metrics", "check"])
def test_a_damaged_scale(value, method):
    tx = adam("dynamic")
    state = tx.init(PARAMS)
    damaged = jax.block_until_ready(
        state._replace(
            loss_scale=DynamicLossScale(
                value=jnp.float32(value), good_steps=jnp.int32(0), skipped=jnp.int32(0)
            )
        )
    )
    calls = {
        "minimize": lambda state: tx.minimize(loss_fn, PARAMS, state, BATCHES[0]),
        "compute_gradients": lambda state: tx.compute_gradients(loss_fn, PARAMS, state, BATCHES[0]),
        "apply": lambda state: tx.apply_gradients(PARAMS, PARAMS, state),
        "metrics": tx.metrics,
        "check": tx.check_state,
    }
    with pytest.raises(ArgumentError, match=r"loss scale of the state is .*_replace\(loss_scale="):
        calls[method](damaged)
    calls[method](damaged._replace(loss_scale=tx.init(PARAMS).loss_scale))


def test_a_damaged_count():
    tx = adam()
    state = tx.init(PARAMS)
    with pytest.raises(ArgumentError, match="stuck of the state is -1"):
        tx.check_state(state._replace(stuck=jnp.int32(-1)))


@pytest.mark.parametrize(
    ("value", "next_value"),
    [(np.nan, 1.0), (0.0, 1.0), (-0.0, 1.0), (-8.0, 1.0), (np.inf, 2.0**24), (2.0**30, 2.0**24)],
)
def test_a_damaged_scale_heals_in_a_compiled_step(value, next_value):
    """Catches: a NaN scale that skips every step to come, a scale of 0 that makes NaN weights."""
    tx = adam("dynamic")
    state = tx.init(PARAMS)
    damaged = state._replace(
        loss_scale=DynamicLossScale(
            value=jnp.float32(value), good_steps=jnp.int32(0), skipped=jnp.int32(0)
        )
    )
    step = jax.jit(lambda p, s: tx.minimize(loss_fn, p, s, BATCHES[0]))
    done = step(PARAMS, damaged)
    assert float(done.state.loss_scale.value) == next_value
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(done.params))
    for _ in range(25):
        done = step(done.params, done.state)
    assert tx.metrics(done.state)["last_finite"]


def test_metrics_of_a_traced_state():
    tx = adam()
    with pytest.raises(ArgumentTypeError, match="state is traced"):
        jax.jit(tx.metrics)(tx.init(PARAMS))


def test_metrics_of_several_models():
    tx = adam()
    states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), tx.init(PARAMS))
    with pytest.raises(ArgumentTypeError, match="one loss scale for each of several models"):
        tx.metrics(states)
    assert tx.metrics(jax.tree.map(lambda x: x[0], states))["skipped_steps"] == 0


# Scaled gradients that were not unscaled.


def scaled_gradients(tx: Any, state: Any) -> Any:
    return jax.grad(lambda p: tx.scale_loss(loss_fn(p, BATCHES[0]), state))(PARAMS)


@pytest.mark.parametrize("jitted", [False, True])
def test_gradients_that_are_still_scaled(jitted):
    tx = adam()
    state = tx.init(PARAMS)

    def step(params, state):
        return tx.apply_gradients(scaled_gradients(tx, state), params, state)

    with pytest.raises(ArgumentError, match=r"still scaled.*opt\.unscale"):
        (jax.jit(step) if jitted else step)(PARAMS, state)
    with pytest.raises(ArgumentError, match="still scaled"):
        tx.update(PARAMS, state, PARAMS)
    grads = tx.unscale(scaled_gradients(tx, state), state)
    expected = jax.grad(loss_fn)(PARAMS, BATCHES[0])
    for found, right in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(found, right)
    tx.apply_gradients(grads, PARAMS, state)


def test_a_step_given_up_does_not_haunt_the_next_ones():
    tx = adam()
    state = tx.init(PARAMS)

    def broken(params):
        tx.scale_loss(loss_fn(params, BATCHES[0]), state)
        raise KeyError("the user's own")

    def give_up():
        with pytest.raises(KeyError, match="own"):
            jax.grad(broken)(PARAMS)

    give_up()
    works(tx)  # compute_gradients takes its own
    give_up()
    tx.apply_gradients(tx.unscale(scaled_gradients(tx, state), state), PARAMS, state)
    give_up()
    out = scaled_value_and_grad(loss_fn)(state.loss_scale, PARAMS, BATCHES[0])
    tx.apply_gradients(out, PARAMS, state)
    tx.update(out.grads, state, PARAMS)


def test_cached_programs_are_no_scaled_gradients():
    """Scaling and unscaling in two compiled functions, of which one is traced again."""
    tx = adam()
    state = tx.init(PARAMS)
    gradient = jax.jit(lambda p, b: jax.grad(lambda p: tx.scale_loss(loss_fn(p, b), state))(p))
    apply = jax.jit(lambda g, p: tx.apply_gradients(tx.unscale(g, state), p, state))
    for batch in (BATCHES[0], BATCHES[1], jax.tree.map(lambda x: x[:3], BATCHES[2])):
        apply(gradient(PARAMS, batch), PARAMS)
    apply(gradient(PARAMS, BATCHES[0]), jax.tree.map(lambda p: p + 0, PARAMS))


def test_looking_at_a_scaled_loss_is_no_gradient():
    tx = adam()
    state = tx.init(PARAMS)
    assert float(tx.scale_loss(jnp.float32(2.0), state)) == 2.0**11
    tx.update(PARAMS, state, PARAMS)


def test_another_thread_is_another_training():
    tx = adam()
    state = tx.init(PARAMS)
    thread = threading.Thread(target=lambda: scaled_gradients(tx, state))
    thread.start()
    thread.join()
    tx.update(PARAMS, state, PARAMS)


def test_without_scaling_nothing_is_scaled():
    tx = enable(optax.adam(0.1), dtype="bfloat16")
    state = tx.init(PARAMS)
    tx.apply_gradients(scaled_gradients(tx, state), PARAMS, state)


def test_unscaled_twice():
    tx = adam()
    state = tx.init(PARAMS)
    out = tx.compute_gradients(loss_fn, PARAMS, state, BATCHES[0])
    with pytest.raises(ArgumentTypeError, match="unscaled already"):
        tx.unscale(out, state)
    tx.apply_gradients(out, PARAMS, state)


# Compiled loss functions.


def compiled(tx: Any) -> GradientFunctions:
    return tx.init.__self__.functions


def test_a_loss_function_is_compiled_once_and_forgotten_with_its_owner():
    tx = adam()
    state = tx.init(PARAMS)
    traces = []

    class Model:
        def loss(self, params, batch):
            traces.append(1)
            return loss_fn(params, batch)

    model = Model()
    for _ in range(3):
        tx.compute_gradients(model.loss, PARAMS, state, BATCHES[0])
    assert len(traces) == 1
    assert len(compiled(tx)._kept) == 1
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert not compiled(tx)._kept


def test_a_closure_is_not_kept_alive():
    """Catches: a cache whose values hold its weak keys, so that no batch is ever freed."""
    tx = adam()
    state = tx.init(PARAMS)

    def make():
        big = jnp.ones(7)
        return (lambda params: jnp.sum(params["b"]) * jnp.sum(big)), weakref.ref(big)

    loss, gone = make()
    tx.compute_gradients(loss, PARAMS, state)
    assert gone() is not None
    del loss
    gc.collect()
    assert gone() is None


class Slotted:
    """A loss function to which Python makes no weak reference."""

    __slots__ = ()
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __call__(self, params, batch):
        return loss_fn(params, batch)


def test_a_loss_function_that_cannot_be_held_weakly_or_hashed():
    tx = adam()
    state = tx.init(PARAMS)
    loss = Slotted()
    first = tx.compute_gradients(loss, PARAMS, state, BATCHES[0])
    second = tx.compute_gradients(loss, PARAMS, state, BATCHES[0])
    assert float(first.value) == float(second.value)
    assert compiled(tx)._compiled == 1


def test_a_lambda_in_the_loop_is_warned_of_once(caplog):
    tx = enable(optax.sgd(0.1), 8, dtype="float16")
    w = jnp.ones(2)
    state = tx.init(w)
    with caplog.at_level(logging.WARNING, "duotone"):
        for _ in range(17):
            tx.compute_gradients(lambda p: jnp.sum(p), w, state)
        once = jax.jit(lambda w: tx.compute_gradients(lambda p: jnp.sum(p), w, state).value)
        once(w)
    assert [r.message for r in caplog.records if "different loss functions" in r.message] == [
        caplog.messages[0]
    ]
    assert "16 different loss functions, the last one <lambda>" in caplog.messages[0]
    assert "define it once outside" in caplog.messages[0]
