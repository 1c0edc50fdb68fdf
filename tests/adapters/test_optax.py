"""The wrapped optimizer among Optax's: a bad step changes nothing, whatever is in or around it."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import duotone.nnx
from duotone.adapters.enable import MixedPrecisionLossScaleOptimizer
from duotone.adapters.enable import enable_mixed_precision_graph_rewrite as enable
from duotone.adapters.optax import Minimized, MixedPrecisionOptimizer
from duotone.scale import DynamicLossScale, FixedLossScale, NoLossScale, ScaledGrad, skip
from duotone.scale.optimizer_state import MixedPrecisionState
from duotone.scale.skip import SkipState, skip_nonfinite
from duotone.transforms import mixed_function
from tests.adapters.optimizers import INSIDE, LABELS, MASK, loss_fn, overflowing, problem


def same_bits(a: Any, b: Any) -> None:
    """Equal trees; tells 0.0 from -0.0."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes(), (x, y)


NEED_MORE = ("plateau", "polyak", "lbfgs", "backtracking")


def by_update(tx: Any, name: str = "") -> Any:
    """A training step through ``update``, as every Optax user writes it."""

    @jax.jit
    def step(params, state, batch):
        value, grads = jax.value_and_grad(loss_fn)(params, batch)
        more = {"value": value, "grad": grads, "value_fn": lambda p: loss_fn(p, batch)}
        updates, state = tx.update(grads, state, params, **(more if name in NEED_MORE else {}))
        return optax.apply_updates(params, updates), state

    return step


_COMMON = set(
    "sgd adam lion muon adafactor clipped masked multi_transform inject_hyperparams accumulated "
    "schedule_free lbfgs".split()
)


def slow_unless_common(name: str) -> Any:
    """Each optimizer is compiled anew: `make test` takes a dozen, `make test-all` all of them."""
    return [] if name in _COMMON else pytest.mark.slow


def train(step: Any, params: Any, state: Any, batches: Any) -> tuple[Any, Any]:
    for batch in batches:
        params, state = step(params, state, batch)
    return params, state


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        *[pytest.param(name, enable, id=name, marks=slow_unless_common(name)) for name in INSIDE],
        *[
            pytest.param(name, skip_nonfinite, id=f"skip_nonfinite {name}")
            for name in ("adam", "accumulated", "lbfgs", "noise")
        ],
    ],
)
def test_training_with_a_bad_step_is_training_without_it(name, wrap):
    """Catches: momenta, counters, schedules, keys or the sum of micro-batches touched by a skip."""
    tx = wrap(INSIDE[name]())
    params, batches = problem()
    step = by_update(tx, name)
    planted = [*batches[:3], overflowing(batches[3]), *batches[3:]]
    with_bad, state = train(step, params, tx.init(params), planted)
    without, expected = train(step, params, tx.init(params), batches)
    same_bits(with_bad, without)
    same_bits(state.inner, expected.inner)
    skipped = state.skipped if isinstance(state, SkipState) else state.loss_scale.skipped
    assert int(skipped) == 1
    assert step._cache_size() == 1  # the state's types do not change from step to step


@pytest.mark.parametrize("name", ["adam", "accumulated", "muon", "inject_hyperparams", "polyak"])
def test_the_same_by_selecting(name, monkeypatch):
    """As on a GPU, where branches would make the host wait."""
    monkeypatch.setattr(skip, "_branching_is_free", lambda: False)
    test_training_with_a_bad_step_is_training_without_it(name, enable)


@pytest.mark.parametrize("free", [True, False])
def test_a_branch_only_where_it_is_free(free, monkeypatch):
    monkeypatch.setattr(skip, "_branching_is_free", lambda: free)
    tx, (params, _) = enable(optax.adam(0.05)), problem()
    program = str(jax.make_jaxpr(tx.update)(params, tx.init(params), params))
    assert ("cond[" in program) == free


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=slow_unless_common(name))
        for name in INSIDE
        if name not in ("lbfgs", "backtracking")
    ],
)
def test_good_steps_are_those_of_the_bare_optimizer(name):
    """Catches: a wrapper that changes gradients, arguments or updates on their way."""
    bare = INSIDE[name]()
    tx = enable(INSIDE[name]())
    params, batches = problem()
    expected, _ = train(
        by_update(optax.with_extra_args_support(as_pair(bare)), name),
        params,
        bare.init(params),
        batches,
    )
    found, _ = train(by_update(tx, name), params, tx.init(params), batches)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-7)


def as_pair(optimizer: Any) -> Any:
    if isinstance(optimizer, optax.GradientTransformation):
        return optimizer
    return optax.GradientTransformationExtraArgs(optimizer.init, optimizer.update)


OUTSIDE = {
    "chain": lambda tx: optax.chain(optax.add_decayed_weights(0.1), tx),
    "chain, then more": lambda tx: optax.chain(tx, optax.scale(0.5)),
    "named_chain": lambda tx: optax.named_chain(("inner", tx), ("scale", optax.scale(0.5))),
    "masked": lambda tx: optax.chain(optax.masked(tx, MASK)),
    "multi_transform": lambda tx: optax.multi_transform({"one": tx, "two": optax.sgd(0.1)}, LABELS),
    "inject_hyperparams": lambda tx: optax.inject_hyperparams(
        lambda learning_rate: optax.chain(tx, optax.scale(learning_rate))
    )(learning_rate=0.1),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 3),
    "schedule_free": lambda tx: optax.contrib.schedule_free(tx, 0.1),
    "sam": lambda tx: optax.contrib.sam(tx, optax.sgd(0.01), sync_period=2, opaque_mode=False),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_wrapped_optimizer_goes_where_an_optimizer_goes(name):
    def inner():
        return optax.sgd(0.1, momentum=0.9)

    params, batches = problem()
    tx, bare = OUTSIDE[name](enable(inner())), OUTSIDE[name](inner())
    found, _ = train(by_update(tx, name), params, tx.init(params), batches)
    expected, _ = train(
        by_update(optax.with_extra_args_support(bare)), params, bare.init(params), batches
    )
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-7)


def test_it_is_an_optax_optimizer():
    tx = enable(optax.sgd(0.1))
    assert isinstance(tx, optax.GradientTransformationExtraArgs)
    assert isinstance(tx, MixedPrecisionOptimizer)
    assert MixedPrecisionLossScaleOptimizer is enable
    kept = optax.tree_utils.tree_get(tx.init(jnp.ones(2)), "loss_scale")
    assert isinstance(kept, DynamicLossScale)
    init, update = tx
    assert (init, update) == (tx.init, tx.update)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda tx: tx._replace()])
def test_a_copy_works(again):
    tx = again(enable(optax.sgd(0.5), 8, dtype="float16"))
    params = jnp.zeros(2)
    done = tx.minimize(lambda p: jnp.sum((p - 1) ** 2), params, tx.init(params))
    assert done.params.tolist() == [1.0, 1.0]
    assert float(done.state.loss_scale.value) == 8


def test_it_comes_through_being_taken_apart_as_a_pytree():
    """Catches: an optimizer whose settings live next to the tuple; Equinox modules lose them."""
    tx = enable(optax.sgd(0.5), 8)
    leaves, structure = jax.tree.flatten(tx)
    again = jax.tree.unflatten(structure, leaves)
    assert float(again.init(jnp.ones(2)).loss_scale.value) == 8
    assert again.metrics(again.init(jnp.ones(2)))["loss_scale"] == 8
    empty = jax.tree.map(lambda leaf: None, tx)
    assert empty.init is None


def each(tx: Any, params: Any, state: Any, batch: Any, *, halves: bool) -> Any:
    """A gradient for each example, as plain ones or as duotone takes them."""
    alone = jax.tree.map(lambda leaf: leaf[:, None], batch)
    if halves:
        one = lambda batch: tx.compute_gradients(loss_fn, params, state, batch)  # noqa: E731
        return jax.vmap(one)(alone)
    return jax.vmap(jax.grad(loss_fn), (None, 0))(params, alone)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("free", [True, False])
def test_gradients_of_each_example(halves, free, monkeypatch):
    """Differential privacy: the optimizer clips each gradient and gives one update of them all."""
    monkeypatch.setattr(skip, "_branching_is_free", lambda: free)
    private = optax.contrib.differentially_private_aggregate(1.0, 0.1, jax.random.key(0))
    bare = optax.chain(private, optax.sgd(0.1, momentum=0.9))
    params, batches = problem()
    tx = enable(bare, 64.0, dtype="float16")
    state = tx.init(params)
    grads = each(tx, params, state, batches[0], halves=halves)
    updates, after = tx.update(grads, state, params)
    true = each(tx, params, state, batches[0], halves=False)
    expected, _ = bare.update(true, bare.init(params), params)
    for found, right in zip(jax.tree.leaves(updates), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, right, atol=1e-4)
    assert tx.metrics(after)["last_finite"]
    added, _ = tx.apply_gradients(grads, params, state)
    same_bits(added, optax.apply_updates(params, updates))

    worse = jax.tree.map(lambda leaf: leaf.at[0].mul(np.inf), batches[0])
    bad = each(tx, params, state, worse, halves=halves)
    unchanged, skipped = jax.jit(tx.apply_gradients)(bad, params, after)
    same_bits(unchanged, params)
    same_bits(skipped.inner, after.inner)
    assert tx.metrics(skipped)["skipped_steps"] == 1


def test_lookahead():
    """Its updates have another structure than its gradients."""
    tx = enable(optax.lookahead(optax.sgd(0.1), sync_period=2, slow_step_size=0.5))
    fast, batches = problem()
    params = optax.LookaheadParams.init_synced(fast)

    @jax.jit
    def step(params, state, batch):
        grads = jax.grad(loss_fn)(params.fast, batch)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    planted = [*batches[:3], overflowing(batches[3]), *batches[3:]]
    found, state = train(step, params, tx.init(params), planted)
    expected, other = train(step, params, tx.init(params), batches)
    same_bits(found, expected)
    same_bits(state.inner, other.inner)


def test_minimize_with_lookahead_gives_the_loss_its_fast_parameters():
    tx = enable(optax.lookahead(optax.sgd(0.1), sync_period=2, slow_step_size=0.5), dtype="float32")
    fast, batches = problem()
    params = optax.LookaheadParams.init_synced(fast)
    done = tx.minimize(loss_fn, params, tx.init(params), batches[0])
    out = tx.compute_gradients(loss_fn, fast, tx.init(params), batches[0])
    new, _ = tx.apply_gradients(out, params, tx.init(params))
    same_bits(done.params, new)
    assert isinstance(done.params, optax.LookaheadParams)


@pytest.mark.parametrize("half", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["momentum", "adam", "muon", "sam", "accumulated", "lbfgs", "plateau"]
)
def test_minimize_in_half_skips_and_learns(name, half):
    tx = enable(INSIDE[name](), 2.0**10, dtype=half)
    params, batches = problem()
    batch = batches[0]

    @jax.jit
    def step(params, state, batch):
        return tx.minimize(loss_fn, params, state, batch)

    state = tx.init(params)
    first = done = step(params, state, batch)
    for _ in range(8):
        done = step(params, state, batch)
        params, state = done.params, done.state
    assert isinstance(done, Minimized)
    assert done.loss < first.loss
    skipped = step(params, state, overflowing(batch))
    same_bits(skipped.params, params)
    same_bits(skipped.state.inner, state.inner)
    assert not skipped.state.last_finite
    assert int(skipped.state.loss_scale.skipped) == 1


def test_apply_gradients_keeps_every_bit_of_a_skipped_step():
    """The smallest numbers too, which an addition of anything may flush to 0."""
    tx = enable(optax.adam(0.1), 8, dtype="float16")
    params = jnp.array([0.0, -0.0, 1e-45, -1e-45, 1.5, jnp.inf, jnp.nan])
    kept, state = tx.apply_gradients(jnp.full(7, jnp.nan), params, tx.init(params))
    same_bits(kept, params)
    assert int(state.loss_scale.skipped) == 1  # pyright: ignore[reportAttributeAccessIssue]


def test_minimize_is_compute_and_apply_and_has_aux():
    tx = enable(optax.adam(0.1), dtype="float16")
    params, batches = problem()

    def with_aux(params, batch, *, scale):
        loss = scale * loss_fn(params, batch)
        return loss, {"twice": 2 * loss}

    state = tx.init(params)
    done = tx.minimize(with_aux, params, state, batches[0], has_aux=True, scale=0.5)
    out = tx.compute_gradients(with_aux, params, state, batches[0], has_aux=True, scale=0.5)
    by_parts, _ = tx.apply_gradients(out, params, state)
    same_bits(done.params, by_parts)
    assert isinstance(out, ScaledGrad)
    np.testing.assert_allclose(done.loss, 0.5 * loss_fn(params, batches[0]), rtol=1e-2)
    np.testing.assert_allclose(done.aux["twice"], 2 * done.loss, rtol=1e-2)


def test_forward_and_backward_are_rewritten():
    tx = enable(optax.sgd(0.1), dtype="float16")
    params, batches = problem()
    jaxpr = jax.make_jaxpr(lambda p, s, b: tx.minimize(loss_fn, p, s, b))(
        params, tx.init(params), batches[0]
    )
    text = str(jaxpr)
    dots = [line for line in text.splitlines() if "dot_general[" in line or "= dot_general" in line]
    assert len(dots) >= 4  # two forward, the weights' gradients, and the hidden layer's
    assert "f16[12,10]" in text
    assert "f16[8,10]" in text


def test_gradients_of_a_float32_loss_are_named_once(monkeypatch, caplog):
    def loss(w):
        return jnp.sum((jnp.ones((8, 8)) @ w) ** 2)

    def warnings(rewrites):
        monkeypatch.setattr(mixed_function, "_PAINTED", threading.Event())
        caplog.clear()
        opt = enable(optax.sgd(0.1), dtype="bfloat16")
        state = opt.init(params)
        if rewrites:
            duotone.grad(loss, dtype="bfloat16")(params)
        for _ in range(2):
            opt.update(jax.grad(loss)(params), state, params)
        return [line for line in caplog.messages if "duotone did not rewrite" in line]

    params = jnp.ones((8, 8))
    assert len(warnings(rewrites=False)) == 1
    assert not warnings(rewrites=True)
    monkeypatch.setattr(mixed_function, "_PAINTED", threading.Event())
    caplog.clear()
    inside = enable(optax.sgd(0.1), dtype="bfloat16")
    step = duotone.autocast(
        lambda w: inside.update(jax.grad(loss)(w), inside.init(w), w)[0], dtype="bfloat16"
    )
    step(params)
    assert not [line for line in caplog.messages if "duotone did not rewrite" in line]
    plain = enable(optax.sgd(0.1), dtype="float32")
    monkeypatch.setattr(mixed_function, "_PAINTED", threading.Event())
    caplog.clear()
    plain.update(jax.grad(loss)(params), plain.init(params), params)
    assert not caplog.messages


def test_the_update_is_not_rewritten_by_an_autocast_around_the_step():
    """Catches: muon's matrix products, and an update between two dots, painted half."""
    from duotone import autocast

    tx = enable(optax.contrib.muon(0.05), 8, dtype="float16")
    params, batches = problem()

    def update(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    grads = jax.grad(loss_fn)(params, batches[0])
    painted = jax.make_jaxpr(autocast(update, dtype="float16"))(params, tx.init(params), grads)
    assert "f16" not in str(painted).replace("bf16", "")


def test_parameters_and_state_keep_their_dtypes():
    """Catches: float32 gradients of half parameters that turn momenta into float32."""
    tx = enable(optax.sgd(0.1, momentum=0.9), dtype="bfloat16")
    params = {"w": jnp.ones((2, 2), jnp.bfloat16), "v": jnp.ones(2)}
    state = tx.init(params)

    traces = []

    @jax.jit
    def step(params, state):
        traces.append(1)
        done = tx.minimize(lambda p: jnp.sum(p["w"] @ p["v"]) ** 2, params, state)
        return done.params, done.state

    for _ in range(3):
        params, state = step(params, state)
    assert params["w"].dtype == jnp.bfloat16
    assert params["v"].dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(state.inner)} == {
        jnp.dtype(jnp.bfloat16),
        jnp.dtype(jnp.float32),
    }
    assert len(traces) == 1


def test_the_state_may_be_donated_and_the_loss_scale_used_again():
    """Catches: arrays of the user's loss scale inside the state, deleted by the first step."""
    loss_scale = DynamicLossScale(2**8)
    tx = enable(optax.adam(0.1), loss_scale, dtype="float16")
    params, batches = problem()
    step = jax.jit(lambda s, p, b: tx.minimize(loss_fn, p, s, b).state, donate_argnums=0)
    state = step(step(tx.init(params), params, batches[0]), params, batches[1])
    assert float(tx.init(params).loss_scale.value) == float(loss_scale.value) == 2**8
    assert int(state.loss_scale.good_steps) == 2


@pytest.mark.parametrize(
    ("loss_scale", "half", "kind"),
    [
        ("dynamic", "float16", DynamicLossScale),
        ("dynamic", "bfloat16", NoLossScale),
        (128, "bfloat16", FixedLossScale),
        (DynamicLossScale(64), "bfloat16", DynamicLossScale),
        (None, "float16", NoLossScale),
    ],
)
def test_the_loss_scale_that_an_argument_means(loss_scale, half, kind):
    tx = enable(optax.sgd(0.1), loss_scale, dtype=half)
    state = tx.init(jnp.ones(2))
    assert isinstance(state, MixedPrecisionState)
    assert type(tx.find_state(state).loss_scale) is kind


def test_inside_vmap_each_model_has_its_own_scale():
    tx = enable(optax.adam(0.1), DynamicLossScale(2**8), dtype="float16")
    params, batches = problem()
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), params)
    batch = jax.tree.map(lambda a, b: jnp.stack([a, b]), batches[0], overflowing(batches[0]))
    done = jax.vmap(lambda p, s, b: tx.minimize(loss_fn, p, s, b))(
        both, jax.vmap(tx.init)(both), batch
    )
    assert done.state.last_finite.tolist() == [True, False]
    assert done.state.loss_scale.value.tolist() == [2**8, 2**7]
    same_bits(jax.tree.map(lambda leaf: leaf[1], done.params), params)


def test_inside_scan():
    tx = enable(optax.adam(0.1), DynamicLossScale(2**8), dtype="float16")
    params, batches = problem()
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches, overflowing(batches[0]))

    def body(carry, batch):
        done = tx.minimize(loss_fn, *carry, batch)
        return (done.params, done.state), done.loss

    (_, state), losses = jax.lax.scan(body, (params, tx.init(params)), stacked)
    assert losses.shape == (7,)
    assert int(state.loss_scale.skipped) == 1  # pyright: ignore[reportAttributeAccessIssue]
    assert float(state.loss_scale.value) == 2**7


def test_a_pickled_optimizer_of_plain_parts():
    """The optimizer that is wrapped must be one that pickle takes; the wrapper takes no part."""
    tx = enable(PlainSgd(), 8)
    again = pickle.loads(pickle.dumps(tx))
    assert float(again.init(jnp.ones(2)).loss_scale.value) == 8


class PlainSgd:
    """An optimizer that is an object, with no extra arguments."""

    def init(self, params):
        return ()

    def update(self, updates, state, params=None):
        return jax.tree.map(lambda g: -0.1 * g, updates), state


def test_an_object_with_init_and_update_is_an_optimizer():
    tx = enable(PlainSgd(), dtype="float16")
    params, batches = problem()
    done = tx.minimize(loss_fn, params, tx.init(params), batches[0])
    assert float(loss_fn(done.params, batches[0])) < float(loss_fn(params, batches[0]))


@pytest.mark.parametrize("scale", [2.0**-6, DynamicLossScale(1, floor=2.0**-8)])
def test_a_scale_below_one_fits_gradients_that_overflow_unscaled(scale):
    tx = enable(optax.sgd(1e-8), scale, dtype="float16")
    params, x = jnp.full((8, 8), 0.1), jnp.full((8, 8), 0.1)

    def loss(params: Any, size: Any) -> Any:
        return jnp.sum(((params @ x) @ x) * size)

    state, size = tx.init(params), jnp.float32(1e6)
    for _ in range(8):
        done = tx.minimize(loss, params, state, size)
        params, state = done.params, done.state
    assert tx.metrics(state)["last_finite"]
    assert tx.metrics(state)["loss_scale"] < 1
    found = tx.compute_gradients(loss, params, state, size).grads
    np.testing.assert_allclose(found, jax.grad(loss)(params, size), rtol=2e-3)


class Seen(NamedTuple):
    """What an optimizer was given besides gradients."""

    number: jax.Array


def listening() -> Any:
    def update(updates: Any, state: Any, params: Any = None, *, number: Any, **extra: Any) -> Any:
        assert {"value", "grad"} <= set(extra)
        return updates, Seen(jnp.asarray(number) + extra["value_fn"](params))

    made: Any = optax.GradientTransformationExtraArgs
    return made(lambda params: Seen(jnp.zeros(())), update)


def test_minimize_passes_extra_arguments_to_the_optimizer():
    tx = enable(listening(), dtype="float16")
    params = jnp.ones(2)

    def loss(params: Any, number: Any) -> Any:  # a name that both have
        return jnp.sum(params) * number

    def number(**extra: Any) -> float:
        def step(params: Any, state: Any) -> Any:
            return tx.minimize(loss, params, state, number=5.0, extra_args=extra)

        done = jax.jit(step)(params, tx.init(params))
        assert float(done.loss) == 10
        return float(done.state.inner.number)

    assert number(number=3.0) == 13
    assert number(number=3.0, value_fn=lambda params: jnp.float32(20)) == 23


def test_sophia_gets_its_objective():
    tx = enable(optax.contrib.sophia(0.1, update_interval=1), dtype="float16")
    params, batches = problem()

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        extra = {"obj_fn": lambda params: loss_fn(params, batches[0])}
        return tx.minimize(loss_fn, params, state, batches[0], extra_args=extra)

    state, losses = tx.init(params), []
    for _ in range(4):
        done = step(params, state)
        params, state = done.params, done.state
        losses.append(float(done.loss))
    assert losses[-1] < losses[0]


def test_minimize_of_an_nnx_optimizer_passes_extra_arguments():
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))

    def update(updates: Any, state: Any, params: Any = None, *, times: Any, **extra: Any) -> Any:
        return jax.tree.map(lambda u: u * times, updates), state

    made: Any = optax.GradientTransformationExtraArgs
    scaled = made(lambda params: optax.EmptyState(), update)
    optimizer = duotone.nnx.Optimizer(model, scaled, dtype="float16")
    before = model.kernel[...]

    def loss(model: Any) -> Any:
        return jnp.mean(model(jnp.ones((2, 2))))

    optimizer.minimize(loss, model, extra_args={"times": 2.0})
    np.testing.assert_allclose(model.kernel[...] - before, 2.0)
