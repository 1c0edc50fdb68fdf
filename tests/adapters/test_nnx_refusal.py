"""The plain transform refuses NNX objects, instead of losing what the function changes in them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import duotone
import duotone.nnx
from duotone.adapters.optax import wrap
from duotone.errors import ArgumentTypeError
from duotone.jaxpr.reading import trace as trace_module
from tests.adapters.training import bits

X: Any = np.ones((2, 8), np.float32)


class Leaf(nnx.Module, pytree=False):
    """A module that JAX does not take apart."""

    def __init__(self) -> None:
        self.w = nnx.Param(jnp.ones((8, 8)))


def linear() -> Any:
    return nnx.Linear(8, 8, rngs=nnx.Rngs(0))


OBJECTS = {
    "Linear": linear,
    "Optimizer": lambda: nnx.Optimizer(linear(), optax.adam(1e-2), wrt=nnx.Param),
    "Rngs": lambda: nnx.Rngs(0),
    "Param": lambda: nnx.Param(jnp.ones((8, 8))),
    "Average": nnx.metrics.Average,
    "List": lambda: nnx.List([linear()]),
    "Leaf": Leaf,
}


def touch(*args: Any, **kwargs: Any) -> Any:
    return jnp.ones((8, 8)) @ jnp.ones((8, 8))


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_refused_and_the_advice_helps(name):
    thing = OBJECTS[name]()
    match = rf"argument 0 is a Flax NNX object \({name}\).*would be lost.*duotone.nnx.autocast"
    with pytest.raises(ArgumentTypeError, match=match):
        duotone.autocast(touch, dtype="float16")(thing)
    with pytest.raises(ArgumentTypeError, match=match + ".*duotone.nnx.explain"):
        duotone.explain(touch, thing, dtype="float16")
    assert duotone.nnx.autocast(touch, dtype="float16")(thing).shape == (8, 8)


def test_the_advice_for_gradients_helps():
    def loss(model, x):
        return jnp.mean(model(x) ** 2)

    with pytest.raises(ArgumentTypeError, match=r"nnx\.value_and_grad\(\.\.\.\)\) instead"):
        duotone.value_and_grad(loss, dtype="bfloat16")(linear(), X)
    _, grads = duotone.nnx.autocast(nnx.value_and_grad(loss), dtype="bfloat16")(linear(), X)
    assert grads["kernel"].dtype == jnp.float32


def test_the_message_says_where_it_is():
    fast = duotone.autocast(touch, dtype="float16")
    with pytest.raises(ArgumentTypeError, match=r"touch\): argument 1\['models'\]\[0\] is a Flax"):
        fast(X, {"models": [linear()]})
    with pytest.raises(ArgumentTypeError, match=r"argument model\[1\] is a Flax NNX object"):
        fast(model=(X, linear()))


def test_a_module_as_the_function_is_refused_and_the_advice_helps():
    model = linear()
    for call in (model, model.__call__):
        with pytest.raises(ArgumentTypeError, match=r"the function is a Flax NNX object.*frozen"):
            duotone.autocast(call, dtype="float16")(X)
        assert duotone.nnx.autocast(call, dtype="float16")(X).shape == (2, 8)


CALLS = {
    "explain": lambda fast: duotone.explain(fast, X),
    "blame": lambda fast: duotone.blame(fast, X),
    "compare": lambda fast: duotone.compare(fast, X, targets=["h100"]),
    "advise": lambda fast: duotone.advise(fast, X),
    "calibrate": lambda fast: duotone.calibrate(fast, [X]),
    "jit": lambda fast: jax.jit(fast)(X),
    "a closure": lambda fast: duotone.explain(lambda x: fast(x), X),
    "an argument": lambda fast: jax.jit(
        lambda x: duotone.nnx.autocast(touch, dtype="float16")(fast.__wrapped__, x)
    )(X),
    "an optimizer": lambda fast: jax.jit(
        lambda x: duotone.nnx.Optimizer(fast.__wrapped__, optax.sgd(0.1)).compute_gradients(
            lambda model: jnp.sum(model(x)), fast.__wrapped__
        )
    )(X),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_model_from_outside_of_a_trace_is_refused_and_stays_whole(call):
    """Flax noticed while the model was changed, and left it without its parameters."""
    model = linear()
    before = bits(nnx.state(model))
    fast = duotone.nnx.autocast(model, dtype="float16")
    with pytest.raises(ArgumentTypeError, match=r"Linear is from outside.*duotone\.nnx\.explain"):
        CALLS[call](fast)
    assert bits(nnx.state(model)) == before
    step = nnx.jit(duotone.nnx.autocast(lambda model, x: model(x), dtype="float16"))
    assert step(model, X).shape == fast(X).shape == (2, 8)  # the advice


def test_an_optimizer_of_duotone_refuses_them_too():
    tx = wrap(optax.sgd(0.1), dtype="float16")
    params = linear()
    with pytest.raises(ArgumentTypeError, match=r"Flax NNX object \(Linear\)"):
        tx.compute_gradients(lambda m: jnp.sum(m(X)), params, tx.init(params))


def step(model: Any, optimizer: Any, x: Any) -> Any:
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def test_without_the_refusal_a_whole_step_does_nothing(monkeypatch):
    """The fault that is refused: no error, and every mutation is lost."""
    monkeypatch.setattr(trace_module, "refuse_nnx_objects", lambda *_: None)
    model = linear()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    before = bits(nnx.state((model, optimizer)))
    duotone.autocast(step, dtype="float16")(model, optimizer, X)
    assert bits(nnx.state((model, optimizer))) == before
    duotone.nnx.autocast(step, dtype="float16")(model, optimizer, X)
    assert bits(nnx.state((model, optimizer))) != before


def test_without_the_refusal_a_module_as_the_function_is_frozen(monkeypatch):
    monkeypatch.setattr(trace_module, "refuse_nnx_objects", lambda *_: None)
    model = linear()
    fast = duotone.autocast(model, dtype="float16")
    before = fast(X)
    model.bias[...] += 1
    np.testing.assert_array_equal(fast(X), before)


def test_it_looks_when_it_traces_and_not_again(monkeypatch):
    calls = []
    refuse = trace_module.refuse_nnx_objects
    monkeypatch.setattr(
        trace_module, "refuse_nnx_objects", lambda *args: (calls.append(1), refuse(*args))
    )
    fast = duotone.autocast(lambda x: x @ x.T, dtype="float16")
    for _ in range(3):
        fast(X)
    assert len(calls) == 1


# What nnx.split gives is pure


def test_split_objects_pass():
    model = linear()
    definition, state = nnx.split(model)

    @duotone.autocast(dtype="float16")
    def call(definition: Any, state: nnx.State, x: Any) -> Any:
        model = nnx.merge(definition, state)
        model.bias[...] += 1.0
        return model(x), nnx.state(model)

    out, new = call(definition, state, X)
    np.testing.assert_allclose(out, model(X) + 1, rtol=2e-3)
    nnx.update(model, new)
    np.testing.assert_array_equal(model.bias[...], np.ones(8))


def test_pure_training_passes():
    """State, its gradients, its optimizer state, its plain dictionary."""
    definition, params = nnx.split(linear())
    tx = optax.adam(1e-2)

    @duotone.autocast(dtype="float16")
    def step(params: Any, opt_state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean(nnx.merge(definition, params)(x) ** 2)

        updates, opt_state = tx.update(jax.grad(loss)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    new, opt_state = step(params, tx.init(params), X)
    new, _ = step(new, opt_state, X)
    assert bits(new) != bits(params)
    plain = duotone.autocast(lambda p, x: x @ p["kernel"], dtype="float16")
    assert plain(nnx.to_pure_dict(new), X).shape == (2, 8)
    flat = duotone.autocast(
        lambda flat: jax.tree.leaves(flat)[1] @ jnp.ones((8, 8)), dtype="float16"
    )
    assert flat(nnx.to_flat_state(new)).shape == (8, 8)
