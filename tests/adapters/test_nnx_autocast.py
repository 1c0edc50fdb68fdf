"""``duotone.nnx.autocast``: what a function changes in its NNX arguments is changed."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import duotone
import duotone.nnx
from duotone.errors import ArgumentError, ArgumentTypeError, MissingExtraError
from tests.adapters.training import half_dots, heavy_tails, notes, relative_error


class Net(nnx.Module):
    """Everything that a step changes: parameters, batch statistics, random counters."""

    def __init__(self, rngs: nnx.Rngs, width: int = 16) -> None:
        self.first = nnx.Linear(8, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.25, rngs=rngs)
        self.last = nnx.Linear(width, 8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


def loss_fn(model: Net, x: Any, y: Any) -> Any:
    return jnp.mean((model(x) - y) ** 2)


def step(model: Net, optimizer: nnx.Optimizer, metric: nnx.Metric, x: Any, y: Any) -> Any:
    loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
    optimizer.update(model, grads)
    metric.update(values=loss)
    return loss


class Convolutions(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(32, 32, (3, 3), rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return jnp.mean(self.first(x), (1, 2))


def test_a_step_that_nnx_jit_does_not_surround_has_the_compiler_options(
    on_fast_cpu: None, caplog: pytest.LogCaptureFixture
) -> None:
    def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
        optimizer.update(model, grads)
        return loss

    images, targets = jnp.ones((4, 16, 16, 32)), jnp.zeros((4, 32))
    ways = {
        "alone": duotone.nnx.autocast(train),
        "jit inside": duotone.nnx.autocast(nnx.jit(train)),
        "jit outside": nnx.jit(duotone.nnx.autocast(train)),
    }
    lacks = []
    for way, run in ways.items():
        model = Convolutions(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(1e-2), wrt=nnx.Param)
        train.__qualname__ = way  # each line is logged once
        with caplog.at_level("INFO", logger="duotone"):
            assert run(model, optimizer, images, targets) > 0
        lacks.append("compiler_options=duotone.compiler_options()" in caplog.messages[-1])
    assert lacks == [False, False, True]


def made() -> tuple[Any, Any, Any]:
    model = Net(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param), nnx.metrics.Average()


def variables(tree: Any) -> dict[Any, nnx.Variable]:
    return {
        path: thing
        for path, thing in nnx.iter_graph(tree, graph=True)
        if isinstance(thing, nnx.Variable)
    }


mixed = duotone.nnx.autocast(step, dtype="float16")
plain_step, mixed_step = nnx.jit(step), nnx.jit(mixed)
X: Any
Y: Any
X, Y = heavy_tails()


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_a_step_changes_what_it_changes_without_autocast(jit):
    """Catches the lost mutations of the raw transform: a whole step that does nothing."""
    plain, lifted = made(), made()
    run = mixed_step if jit else mixed
    objects = {path: id(thing) for path, thing in variables(lifted).items()}
    for _ in range(3):
        reference = plain_step(*plain, X, Y)
        assert float(run(*lifted, X, Y)) == pytest.approx(float(reference), rel=2e-3)
    assert {path: id(thing) for path, thing in variables(lifted).items()} == objects
    model, optimizer, metric = lifted
    assert int(optimizer.step[...]) == 3
    assert int(model.dropout.rngs.count[...]) == 3
    assert float(metric.compute()) == pytest.approx(float(plain[2].compute()), rel=2e-3)
    for kind, bar in ((nnx.Param, 2e-2), (nnx.BatchStat, 2e-3)):
        found, true, before = (nnx.state(m, kind) for m in (model, plain[0], made()[0]))
        assert relative_error(found, true) < bar
        assert relative_error(before, true) > 2 * bar, "the bar is too wide to see a lost step"


def test_the_step_is_rewritten():
    """A planted no-op (the step without autocast) has no half dots."""
    for run, expected in ((mixed_step, 5), (plain_step, 0)):
        assert half_dots(run.lower(*made(), X, Y).as_text()) == expected


def test_a_step_is_traced_once():
    count = 0

    @duotone.nnx.autocast(dtype="float16")
    def counted(*args: Any) -> Any:
        nonlocal count
        count += 1
        return step(*args)

    objects = made()
    for _ in range(3):
        counted(*objects, X, Y)
    assert count == 1


def test_gradients_of_a_rewritten_loss():
    half = duotone.nnx.autocast(loss_fn, dtype="float16")
    model = made()[0]
    true = nnx.jit(nnx.grad(loss_fn))(made()[0], X, Y)
    assert relative_error(nnx.grad(half)(model, X, Y), true) < 5e-3
    assert int(model.dropout.rngs.count[...]) == 1
    assert np.any(np.asarray(model.norm.mean[...]))


# Shared and new objects


class Scale(nnx.Module):
    def __init__(self, w: nnx.Param) -> None:
        self.w = w


def test_what_is_shared_stays_shared():
    w = nnx.Param(jnp.ones(()))
    a, b = Scale(w), Scale(w)

    @duotone.nnx.autocast(dtype="float16")
    def add(a: Scale, other: dict[str, Scale]) -> Any:
        assert a.w is other["b"].w
        a.w[...] += 1.0
        return other["b"].w[...] * 10

    assert float(add(a, {"b": b})) == 20
    assert a.w is w
    assert b.w is w
    assert float(w[...]) == 2


def test_what_is_made_inside_appears_outside():
    model: Any = nnx.Linear(8, 2, rngs=nnx.Rngs(0))

    @duotone.nnx.autocast(dtype="float16")
    def call(model: Any, x: Any) -> Any:
        out = model(x)
        model.hidden = nnx.Intermediate(out)
        model.seen = "yes"
        model.more = nnx.Linear(2, 1, rngs=nnx.Rngs(1))
        return model.more(out), model, nnx.Param(out.sum())

    out, same, made_inside = call(model, X)
    assert same is model
    assert model.seen == "yes"
    assert model.hidden[...].shape == (64, 2)
    assert out.shape == model.more(jnp.ones((64, 2))).shape
    assert isinstance(made_inside, nnx.Param)
    nnx.pop(model, nnx.Intermediate)
    assert not hasattr(model, "hidden")


def test_variables_rngs_and_modules_anywhere_in_the_arguments():
    counter, rngs = nnx.Variable(jnp.zeros(())), nnx.Rngs(dropout=0)
    layers = [nnx.Linear(8, 8, rngs=nnx.Rngs(i)) for i in range(2)]

    @duotone.nnx.autocast(dtype="float16")
    def call(x: Any, *, parts: dict[str, Any], name: str) -> Any:
        assert name == "static"
        parts["counter"][...] += 1.0
        for layer in parts["layers"]:
            x = layer(x)
        return x + jax.random.normal(parts["rngs"].dropout(), x.shape)

    parts = {"counter": counter, "layers": layers, "rngs": rngs}
    first, second = (call(X, parts=parts, name="static") for _ in range(2))
    assert float(counter[...]) == 2
    assert int(rngs.dropout.count[...]) == 2
    assert np.any(first != second)


def test_a_number_in_a_variable_is_state():
    """As a static value it would compile a program for each value."""
    counter, traces = nnx.Variable(0), 0

    @duotone.nnx.autocast(dtype="float16")
    def count(counter: nnx.Variable, x: Any) -> Any:
        nonlocal traces
        traces += 1
        counter.set_value(counter.get_value() + 1)
        return x @ x.T

    for _ in range(4):
        count(counter, X)
    assert int(counter.get_value()) == 4
    assert traces <= 2  # weakly typed the first time


def test_a_variable_that_is_a_mutable_array():
    """Catches a hang: the constants of the program were read, and a reference never ends."""
    variable = nnx.Variable(jnp.ones((8, 8)), ref=True)

    @duotone.nnx.autocast(dtype="float16")
    def call(variable: nnx.Variable, x: Any) -> Any:
        variable[...] = variable[...] + 1.0
        return x @ variable[...]

    eye = np.eye(8, dtype=np.float32)
    for times in (2, 3):
        np.testing.assert_allclose(call(variable, eye), np.full((8, 8), times))
    np.testing.assert_array_equal(variable[...], np.full((8, 8), 3))


def test_an_error_inside_leaves_the_objects_as_they_were():
    model = made()[0]
    before = {path: thing.get_raw_value() for path, thing in variables(model).items()}

    @duotone.nnx.autocast(dtype="float16")
    def fails(model: Net, x: Any) -> Any:
        model(x)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails(model, X)
    assert all(thing.get_raw_value() is before[path] for path, thing in variables(model).items())
    assert duotone.nnx.autocast(model, dtype="float16")(X).shape == (64, 8)


# NNX transformations inside and outside


class Stack(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, remat: bool = False) -> None:
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs: nnx.Rngs) -> nnx.Linear:
            return nnx.Linear(8, 8, rngs=rngs)

        self.layers = make(rngs)
        self.remat = remat

    def __call__(self, x: Any) -> Any:
        def layer(carry: Any, linear: nnx.Linear) -> Any:
            return jnp.tanh(linear(carry)) + carry

        layer = nnx.remat(layer) if self.remat else layer
        return nnx.scan(layer, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.layers)


@pytest.mark.parametrize("remat", [False, True])
def test_scan_and_remat_inside(remat):
    def loss(model: Stack, x: Any) -> Any:
        return jnp.mean(model(x) ** 2)

    model = Stack(nnx.Rngs(0), remat)
    found = duotone.nnx.autocast(nnx.grad(loss), dtype="float16")(model, X)
    assert relative_error(found, nnx.jit(nnx.grad(loss))(model, X)) < 5e-3
    rewritten = nnx.jit(duotone.nnx.autocast(loss, dtype="float16")).lower(model, X).as_text()
    assert half_dots(rewritten) == 1


def test_vmap_and_scan_outside():
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def make(key: Any) -> nnx.Linear:
        return nnx.Linear(8, 4, rngs=nnx.Rngs(key))

    models = make(jax.random.split(jax.random.key(0), 3))
    call = duotone.nnx.autocast(lambda model, x: model(x), dtype="float16")
    found = nnx.vmap(call, in_axes=(0, None))(models, X)
    assert relative_error(found, nnx.vmap(lambda m, x: m(x), in_axes=(0, None))(models, X)) < 2e-3

    counter = nnx.Variable(jnp.zeros(()))

    @nnx.scan(in_axes=(None, 0), out_axes=0)
    @duotone.nnx.autocast(dtype="float16")
    def body(counter: nnx.Variable, row: Any) -> Any:
        return row @ row + 0 * counter[...]

    assert body(counter, X).shape == (64,)


def test_a_step_that_nnx_jit_donates():
    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    model = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    before = jax.tree.leaves((nnx.state(model), nnx.state(optimizer)))
    donating = nnx.jit(step, donate_argnames=("optimizer",))
    duotone.nnx.autocast(donating, dtype="float16")(model, optimizer, X)
    deleted = [array.is_deleted() for array in before]
    assert sum(deleted) == len(jax.tree.leaves(nnx.state(optimizer)))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(nnx.state(optimizer)))


@pytest.mark.parametrize(("graph", "updates"), [(False, False), (True, False)])
def test_the_other_modes_of_flax(graph, updates):
    """Tree mode, and graph mode without updates; all other tests run in the default mode."""

    @duotone.nnx.autocast(dtype="float16")
    def step(model: Any, optimizer: nnx.Optimizer, counter: nnx.Variable, x: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(model, grads)
        counter[...] += 1
        return loss

    with nnx.set_graph_mode(graph), nnx.set_graph_updates(updates):
        model, counter = nnx.Linear(8, 4, rngs=nnx.Rngs(0)), nnx.Variable(jnp.zeros(()))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
        losses = [
            float(run(model, optimizer, counter, X)) for run in (step, nnx.jit(step), step, step)
        ]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
    assert int(optimizer.step[...]) == int(counter[...]) == 4


def test_autocast_inside_autocast_and_nnx_jit_inside():
    @duotone.nnx.autocast(dtype="float16")
    def outer(*args: Any) -> Any:
        return nnx.jit(mixed)(*args)

    objects = made()
    outer(*objects, X, Y)
    assert int(objects[1].step[...]) == 1
    assert int(objects[0].dropout.rngs.count[...]) == 1


def test_where_half_is_not_faster_the_function_runs_as_it_is(monkeypatch):
    slow = types.SimpleNamespace(dtype=None, reason="slow")
    monkeypatch.setattr("duotone.transforms.mixed_function.current_choice", lambda: slow)

    @duotone.nnx.autocast
    def call(model: Any, x: Any) -> Any:
        model.bias[...] += 1.0
        return model(x)

    model: Any = nnx.Linear(8, 2, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(call(model, X), model(X))
    np.testing.assert_array_equal(model.bias[...], np.ones(2))


# What the function may be


def test_a_module_or_its_method_is_lifted_too():
    """Closed over, its parameters would be frozen into the program."""
    model = made()[0]
    for call in (model, model.__call__):
        fast = duotone.nnx.autocast(call, dtype="float16")
        count = int(model.dropout.rngs.count[...])
        before = fast(X)
        model.last.bias[...] += 100.0
        assert float(jnp.mean(fast(X) - before)) == pytest.approx(100, abs=1)
        assert int(model.dropout.rngs.count[...]) == count + 2


def test_a_module_that_the_function_closes_over_cannot_be_changed():
    model = made()[0]
    for autocast in (duotone.autocast, duotone.nnx.autocast):
        with pytest.raises(Exception, match="Cannot mutate BatchStat") as caught:
            autocast(lambda x: model(x), dtype="float16")(X)
        assert "pass the object, and use duotone.nnx.autocast" in notes(caught)
    fast = duotone.nnx.autocast(lambda model, x: model(x), dtype="float16")
    assert fast(model, X).shape == (64, 8)


def test_bad_arguments():
    with pytest.raises(ArgumentTypeError, match="not callable"):
        duotone.nnx.autocast(3)  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(ArgumentError, match="not a half type"):
        duotone.nnx.autocast(step, dtype="float64")
    with pytest.raises(ArgumentTypeError, match="not callable"):
        duotone.nnx.explain(3)  # pyright: ignore[reportArgumentType]


def test_the_function_keeps_its_name_and_signature():
    assert mixed.__name__ == "step"
    assert mixed.__wrapped__ is step  # pyright: ignore[reportFunctionMemberAccess]


def test_explain_says_what_is_done_and_changes_nothing():
    objects = made()
    seen = duotone.nnx.explain(step, *objects, X, Y, dtype="float16")
    assert sum(o.operation == "dot_general" and o.paint == "half" for o in seen.operations) == 5
    assert int(objects[1].step[...]) == 0
    assert int(objects[0].dropout.rngs.count[...]) == 0


def test_what_autocast_returned_is_explained_and_the_model_stays_whole():
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    for fn, args in ((model, ()), (lambda m, x: m(x), (model,))):
        mixed = duotone.nnx.autocast(fn, dtype="bfloat16")
        seen = duotone.nnx.explain(mixed, *args, X)
        assert (seen.summary.half_dtype, seen.summary.operations_half) == ("bfloat16", 1)
        assert duotone.nnx.blame(mixed, *args, X).half_dtype == "bfloat16"
        assert duotone.nnx.explain(mixed, *args, X, dtype="float16").summary.half_dtype == "float16"
    assert model.kernel.shape == (8, 8)


def test_without_flax_the_doorway_names_the_extra(monkeypatch):
    import importlib
    import sys

    for name in list(sys.modules):
        if name.startswith("duotone.adapters.nnx") or name == "duotone.nnx":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'duotone\[flax\]'"):
        importlib.import_module("duotone.nnx")
