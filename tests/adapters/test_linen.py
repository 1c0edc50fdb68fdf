"""Flax Linen: the plain transform around ``apply``, and ``duotone.linen.TrainState``."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization
from flax.core import FrozenDict
from flax.errors import CallCompactUnboundModuleError
from flax.training import train_state

import duotone
from duotone.adapters.optax import wrap
from duotone.errors import ArgumentError, ArgumentTypeError, LeakedTracerError
from duotone.linen import TrainState
from tests.adapters.training import bits, digits, half_dots, heavy_tails, relative_error


class Net(nn.Module):
    sizes: tuple[int, int] = (16, 8)

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        x = nn.Dense(self.sizes[0])(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = nn.Dropout(0.1, deterministic=not train)(x)
        return nn.Dense(self.sizes[1])(x)


class State(TrainState):
    """With batch statistics, as in Flax's own guides."""

    batch_stats: Any


X: Any
Y: Any
X, Y = heavy_tails()
BLOW_UP = np.float32(1e12)
MODEL = Net()
VARIABLES = MODEL.init(jax.random.key(0), X, train=False)


def loss_fn(params: Any, batch_stats: Any, x: Any, y: Any, blow_up: Any = 1.0, key: int = 0) -> Any:
    out, new = MODEL.apply(
        {"params": params, "batch_stats": batch_stats},
        x,
        mutable=["batch_stats"],
        rngs={"dropout": jax.random.key(key)},
    )
    return jnp.mean((out - y) ** 2) * blow_up, new["batch_stats"]


# One optimizer for most tests: it is part of the key under which a step is compiled.
TX = wrap(optax.adam(optax.linear_schedule(1e-2, 1e-3, 10)), dtype="float16")


def made(tx: Any = TX, **settings: Any) -> Any:
    return State.create(
        apply_fn=MODEL.apply,
        params=VARIABLES["params"],
        tx=tx,
        batch_stats=VARIABLES["batch_stats"],
        **settings,
    )


@jax.jit
def step(state: State, x: Any, y: Any, blow_up: Any) -> tuple[State, Any]:
    out = state.compute_gradients(loss_fn, state.batch_stats, x, y, blow_up, has_aux=True)
    return state.apply_gradients(grads=out, batch_stats=out.aux), out.value


def kept(state: Any) -> list[bytes]:
    """What a skipped step leaves as it was."""
    return bits((state.params, state.opt_state.inner, state.batch_stats, state.step))


# TrainState


def test_a_skipped_step_changes_nothing_and_is_not_counted():
    """Catches step counters that count skipped steps, and batch statistics of an overflow."""
    state = made()
    for _ in range(2):
        state, _ = step(state, X, Y, 1.0)
    after, loss = step(state, X, Y, BLOW_UP)
    assert np.isfinite(loss)
    assert kept(after) == kept(state)
    assert int(after.step) == 2
    assert after.metrics() == {
        "loss_scale": 2.0**14,
        "good_steps": 0,
        "skipped_steps": 1,
        "last_finite": False,
        "dtype": "float16",
    }
    again, _ = step(after, X, Y, 1.0)
    assert kept(again) != kept(after)
    assert int(again.step) == 3


def test_flax_own_state_counts_skipped_steps():
    """The fault that the reference is for."""
    state = train_state.TrainState.create(
        apply_fn=MODEL.apply, params={"w": jnp.ones(3)}, tx=wrap(optax.sgd(0.1), dtype="float16")
    )
    after = state.apply_gradients(grads={"w": jnp.full(3, np.inf)})
    assert bits(after.params) == bits(state.params)
    assert int(after.step) == 1


def test_the_step_is_compiled_once():
    """A Python number as the first ``step`` would compile it again."""
    compiled: Any = step
    state, count = made(), compiled._cache_size()
    for _ in range(3):
        state, _ = step(state, X, Y, 1.0)
    assert compiled._cache_size() <= count + 1


def test_gradients_are_close_to_float32_and_of_half_dots():
    state = made()
    out = state.compute_gradients(loss_fn, state.batch_stats, X, Y, has_aux=True)
    reference = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
    (value, stats), true = reference(state.params, state.batch_stats, X, Y)
    assert float(out.value) == pytest.approx(float(value), rel=2e-3)
    assert relative_error(out.grads, true) < 5e-3
    assert relative_error(out.aux, stats) < 2e-3
    assert half_dots(step.lower(state, X, Y, 1.0).as_text()) == 5
    full = made(optax.adam(1e-2), dtype="float16", policy=duotone.Policy(keep_full=["*"]))
    assert half_dots(step.lower(full, X, Y, 1.0).as_text()) == 0


def test_digits_are_learned_in_float16_with_an_overflow_on_the_way():
    images, labels = digits()
    model = Net((32, 10))
    variables = model.init(jax.random.key(0), images, train=False)

    def loss(params: Any, stats: Any, blow_up: Any, key: Any) -> Any:
        logits, new = model.apply(
            {"params": params, "batch_stats": stats},
            images,
            mutable=["batch_stats"],
            rngs={"dropout": key},
        )
        entropy = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return entropy.mean() * blow_up, (new["batch_stats"], logits)

    @jax.jit
    def step(state: State, blow_up: Any, key: Any) -> Any:
        out = state.compute_gradients(loss, state.batch_stats, blow_up, key, has_aux=True)
        stats, logits = out.aux
        return state.apply_gradients(grads=out, batch_stats=stats), out.value, logits

    state = State.create(apply_fn=model.apply, tx=optax.adam(1e-2), dtype="float16", **variables)
    losses: list[float] = []
    logits: Any = None
    for i in range(40):
        blow_up = jnp.float32(BLOW_UP if i == 7 else 1.0)
        state, value, logits = step(state, blow_up, jax.random.key(i))
        losses.append(float(value))
    assert losses[-1] < losses[0] / 10
    assert np.mean(np.argmax(logits, -1) == labels) > 0.98
    assert int(state.step) == 39
    assert state.metrics()["skipped_steps"] == 1


def test_bytes_and_orbax_give_the_same_state_back(tmp_path):
    import orbax.checkpoint as ocp

    state = made()
    for blow_up in (1.0, BLOW_UP, 1.0):
        state, _ = step(state, X, Y, blow_up)
    target = made()
    restored: list[Any] = [serialization.from_bytes(target, serialization.to_bytes(state))]
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "c", state)
        checkpointer.wait_until_finished()
        restored.append(checkpointer.restore(tmp_path / "c", target))
    for each in restored:
        assert bits(each) == bits(state)
        assert jax.tree.structure(each) == jax.tree.structure(state)
        assert each.metrics() == state.metrics()
        assert kept(step(each, X, Y, 1.0)[0]) == kept(step(state, X, Y, 1.0)[0])


def test_a_loss_scale_of_another_class_is_not_restored_into():
    saved = serialization.to_bytes(made(optax.sgd(0.1), dtype="float16"))
    fixed = made(optax.sgd(0.1), dtype="float16", loss_scale=128)
    with pytest.raises(ArgumentError, match=r"saved loss scale has \['good_steps'.*FixedLossScale"):
        serialization.from_bytes(fixed, saved)
    restored: Any = serialization.from_bytes(fixed, serialization.to_bytes(fixed))
    assert restored.loss_scale == fixed.loss_scale


def test_gradients_by_hand_and_frozen_parameters():
    params = FrozenDict({"w": jnp.ones(3)})
    state = TrainState.create(
        apply_fn=MODEL.apply, params=params, tx=optax.sgd(1.0), dtype="float16"
    )
    grads = jax.tree.map(jnp.ones_like, params)
    after = state.apply_gradients(grads=grads)
    assert int(after.step) == 1
    moved = jax.tree.map(lambda old, new: old - new, params, after.params)
    assert relative_error(moved, grads) < 1e-6
    assert float(state.replace(step=7).apply_gradients(grads=grads).step) == 8


def test_bad_arguments():
    state = made()
    with pytest.raises(ArgumentTypeError, match=r"'stats' is not a field.*batch_stats.*Subclass"):
        state.apply_gradients(grads=state.params, stats={})
    with pytest.raises(ArgumentTypeError, match="'step' is not a field"):
        state.apply_gradients(grads=state.params, step=3)
    with pytest.raises(ArgumentError, match="same structure"):
        state.apply_gradients(grads=state.params, batch_stats={})
    with pytest.raises(ArgumentTypeError, match="must have init and update"):
        made(tx=3)
    tx = wrap(optax.sgd(0.1), dtype="float16")
    with pytest.raises(ArgumentError, match="has its own dtype"):
        made(tx, dtype="float16")
    assert made(tx).tx is tx
    with pytest.raises(ArgumentError, match="fp8 scales"):
        TrainState.create(
            apply_fn=MODEL.apply,
            params={"params": {}, "_overwrite_with_gradient": {}},
            tx=optax.sgd(0.1),
        )


# The plain transform


def test_the_plain_transform_around_apply_and_init():
    apply = duotone.autocast(MODEL.apply, dtype="float16")
    out, new = apply(VARIABLES, X, mutable=["batch_stats"], rngs={"dropout": jax.random.key(0)})
    true, new_true = MODEL.apply(
        VARIABLES, X, mutable=["batch_stats"], rngs={"dropout": jax.random.key(0)}
    )
    assert relative_error(out, true) < 5e-3
    assert relative_error(new, new_true) < 2e-3
    in_half = duotone.autocast(MODEL.init, dtype="float16")(jax.random.key(0), X, train=False)
    assert relative_error(in_half, VARIABLES) < 1e-6, "parameters are state: never rounded"
    bound = MODEL.bind(VARIABLES)
    assert duotone.autocast(lambda x: bound(x, train=False), dtype="float16")(X).shape == (64, 8)


def test_a_module_as_the_function_is_refused_with_the_remedy():
    model, x = Net(), jnp.ones((4, 8))
    with pytest.raises(CallCompactUnboundModuleError) as caught:
        duotone.explain(model, x)
    assert any("pass its `apply`" in note for note in caught.value.__notes__)
    variables = model.init(jax.random.key(0), x, train=False)
    assert duotone.explain(model.apply, variables, x, train=False).operations


def test_linen_transformations_inside():
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, carry: Any, _: Any) -> Any:
            return jnp.tanh(nn.Dense(8)(carry)) + carry, None

    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            scanned = nn.scan(
                nn.remat(Layer),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=3,
            )
            return nn.jit(scanned)()(x, None)[0]

    model: Any = Stack()
    variables = model.init(jax.random.key(0), X)

    def loss(variables: Any, x: Any) -> Any:
        return jnp.mean(model.apply(variables, x) ** 2)

    true = jax.grad(loss)(variables, X)
    whole = duotone.autocast(jax.grad(loss), dtype="float16")
    assert relative_error(whole(variables, X), true) < 5e-3
    half = duotone.autocast(loss, dtype="float16")
    assert relative_error(jax.grad(half)(variables, X), true) < 5e-3
    assert half_dots(jax.jit(half).lower(variables, X).as_text()) == 1


# Inside a module


class Submodule(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return duotone.autocast(nn.Dense(3), dtype="float16")(x)


class SetUp(nn.Module):
    def setup(self) -> None:
        self.dense = nn.Dense(3)

    def __call__(self, x: Any) -> Any:
        return duotone.autocast(self.dense, dtype="float16")(x)


class MadeInside(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return duotone.autocast(lambda x: nn.Dense(3)(x), dtype="float16")(x)


@pytest.mark.parametrize("kind", [Submodule, SetUp, MadeInside])
@pytest.mark.parametrize("jit", [False, True])
def test_variables_made_inside_are_reported(kind, jit):
    """Catches parameters that ``init`` returns as traced values, with no error."""
    init = jax.jit(kind().init) if jit else kind().init
    with pytest.raises(LeakedTracerError, match=r"'kernel'.*autocast\(model.apply\)"):
        init(jax.random.key(0), X)


def test_the_advice_helps_and_parts_stay_full():
    class Advised(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(8, name="half")(x)
            with duotone.keep_full():
                return nn.Dense(8, name="full")(x)

    variables = Advised().init(jax.random.key(0), X)
    for apply, dots in (
        (duotone.autocast(Advised().apply, dtype="float16"), 1),
        (
            duotone.autocast(
                Advised().apply,
                dtype="float16",
                policy=duotone.Policy(keep_full=["*/half/*", "*/full/*"]),
            ),
            0,
        ),
    ):
        assert half_dots(jax.jit(apply).lower(variables, X).as_text()) == dots


def test_variables_changed_inside_are_reported():
    class Norm(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            norm = nn.BatchNorm(use_running_average=False)
            return duotone.autocast(norm, dtype="float16")(x)

    stats = {"batch_stats": {"BatchNorm_0": {"mean": jnp.zeros(8), "var": jnp.ones(8)}}}
    params = {"params": {"BatchNorm_0": {"scale": jnp.ones(8), "bias": jnp.zeros(8)}}}
    with pytest.raises(LeakedTracerError, match=r"'mean'"):
        Norm().apply(params | stats, X, mutable=["batch_stats"])


def test_what_makes_no_variable_passes_inside_a_module():
    class Attention(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(8)(x)
            return duotone.autocast(lambda q: jax.nn.softmax(q @ q.T) @ q, dtype="float16")(x)

    attention: Any = Attention()
    variables = jax.jit(attention.init)(jax.random.key(0), X)
    assert attention.apply(variables, X).shape == (64, 8)
    given = {"params": {"Dense_0": {"kernel": jnp.ones((8, 3)), "bias": jnp.zeros(3)}}}
    submodule: Any = Submodule()
    assert submodule.apply(given, X).shape == (64, 3)
