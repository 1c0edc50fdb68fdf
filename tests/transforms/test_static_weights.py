"""Weights of inference: cast once for all, with the same results bit for bit."""

from __future__ import annotations

import dataclasses
import gc
import pickle
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import duotone
from duotone import CastParams, Policy, autocast, cast_params
from duotone.devices import choose_half
from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.transforms import static_weights as module

HALVES = [jnp.float16, jnp.bfloat16]


def numbers(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape) * 0.3


def perceptron(params, x):
    h = jax.nn.gelu(x @ params["w1"] + params["b1"])
    return h @ params["w2"] + params["b2"]


def perceptron_params():
    return {
        "w1": numbers(1, 8, 16),
        "b1": numbers(2, 16),
        "w2": numbers(3, 16, 8),
        "b2": numbers(4, 8),
    }


def language_model(params, tokens, *, scale=1.0):
    """Scan over layers, each recomputed; an embedding that is read in full."""

    @jax.checkpoint
    def layer(x, p):
        centred = x - x.mean(-1, keepdims=True)
        normed = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["gain"]
        return x + jax.nn.gelu(normed @ p["up"]) @ p["down"], None

    x, _ = jax.lax.scan(layer, params["embed"][tokens] * scale, params["layers"])
    return jax.nn.log_softmax(x @ params["head"].T)


def language_model_params():
    return {
        "embed": numbers(1, 12, 8),
        "layers": {
            "gain": jnp.ones((3, 8)),
            "up": numbers(2, 3, 8, 16),
            "down": numbers(3, 3, 16, 8),
        },
        "head": numbers(4, 12, 8),
    }


MODELS = {
    "perceptron": (
        perceptron,
        perceptron_params(),
        (numbers(9, 5, 8),),
        {"['w1']", "['w2']"},
    ),
    "language model": (
        language_model,
        language_model_params(),
        (jnp.arange(7),),
        {"['layers']['up']", "['layers']['down']", "['head']"},
    ),
}


def same_bits(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


def casts(jaxpr) -> list[tuple[int, ...]]:
    """Shapes of what a program casts to half, nested programs included."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "convert_element_type" and eqn.params["new_dtype"] in HALVES:
            found.append(eqn.outvars[0].aval.shape)
        for param in eqn.params.values():
            inner = getattr(param, "jaxpr", param)
            if hasattr(inner, "eqns"):
                found += casts(inner)
    return found


@pytest.mark.parametrize("painter", ["duotone", "tensorflow"])
@pytest.mark.parametrize("half", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("model", MODELS)
def test_results_are_those_of_autocast_bit_for_bit(model, half, painter):
    fn, params, args, _ = MODELS[model]
    policy = Policy(painter=painter)
    want = autocast(fn, dtype=half, policy=policy)(params, *args)
    assert same_bits(autocast(fn, dtype=half, policy=policy, weights=params)(*args), want)
    record = cast_params(fn, params, *args, dtype=half, policy=policy)
    assert same_bits(autocast(fn, weights=record)(*args), want)


@pytest.mark.parametrize("model", MODELS)
def test_weights_that_are_read_in_half_only_are_cast_and_no_others(model):
    fn, params, args, names = MODELS[model]
    record = cast_params(fn, params, *args, dtype=jnp.float16)
    assert record.cast == names
    assert jax.tree.structure(record.params) == jax.tree.structure(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(record.params):
        assert leaf.dtype == (jnp.float16 if jax.tree_util.keystr(path) in names else jnp.float32)


def test_nothing_of_the_weights_is_cast_when_called():
    fn, params, args, _ = MODELS["language model"]
    fast = autocast(fn, dtype=jnp.float16, weights=params)
    shapes = casts(jax.make_jaxpr(fast)(*args).jaxpr)
    weights = {leaf.shape[-2:] for leaf in jax.tree.leaves(params)}
    assert shapes
    assert weights.isdisjoint(shapes)


def test_keyword_arguments_and_python_numbers():
    params = language_model_params()
    fast = autocast(language_model, dtype=jnp.float16, weights=params)
    for scale in (1.0, 2.0):
        want = autocast(language_model, dtype=jnp.float16)(params, jnp.arange(3), scale=scale)
        assert same_bits(fast(jnp.arange(3), scale=scale), want)


def count_casts(monkeypatch) -> list[tuple[int, ...]]:
    made = []
    cast = module._cast

    def counted(array, half):
        made.append(array.shape)
        return cast(array, half)

    monkeypatch.setattr(module, "_cast", counted)
    return made


def test_signatures_share_what_was_cast(monkeypatch):
    made = count_casts(monkeypatch)
    fast = autocast(perceptron, dtype=jnp.float16, weights=perceptron_params())
    assert made == []
    for rows in (2, 3, 2):
        fast(numbers(0, rows, 8))
    assert sorted(made) == [(8, 16), (16, 8)]


def either(params, x, add):
    return x @ params["w"] + (jnp.sin(params["w"]).sum() if add else 0.0)


def test_a_leaf_that_one_signature_needs_in_full():
    params, x = {"w": numbers(0, 8, 8)}, numbers(1, 2, 8)
    fast = autocast(either, dtype=jnp.float16, weights=params)
    for add in (False, True, False):
        want = autocast(either, dtype=jnp.float16)(params, x, add)
        assert same_bits(fast(x, add), want)
    assert cast_params(either, params, x, True, dtype=jnp.float16).cast == frozenset()
    only_half = autocast(either, weights=cast_params(either, params, x, False, dtype=jnp.float16))
    only_half(x, False)
    with pytest.raises(
        ArgumentError, match=r"weights\['w'\] was cast to float16 .*float32 weights"
    ):
        only_half(x, True)


def moved(params, x, index):
    """Weights downstream of operations that only move them."""
    stacked = jnp.concatenate([params["a"].T, params["b"]], 1)
    chosen = jax.lax.dynamic_index_in_dim(params["experts"], index, keepdims=False)
    x = jax.lax.cond(index > 0, lambda x: x @ params["c"], lambda x: x @ -params["c"], x)
    x = jax.lax.fori_loop(0, 2, lambda i, x: jnp.tanh(x @ params["experts"][i]), x)
    return x @ stacked[:, :8] @ chosen + params["returned"], params["returned"]


def test_what_only_moves_weights_moves_them_in_half():
    params = {
        "a": numbers(0, 8, 8),
        "b": numbers(1, 8, 8),
        "c": numbers(2, 8, 8),
        "experts": numbers(3, 3, 8, 8),
        "returned": numbers(4, 8),
    }
    x = numbers(5, 2, 8)
    record = cast_params(moved, params, x, jnp.int32(1), dtype=jnp.float16)
    assert record.cast == {"['a']", "['b']", "['c']", "['experts']"}
    want = autocast(moved, dtype=jnp.float16)(params, x, jnp.int32(1))
    assert same_bits(autocast(moved, weights=record)(x, jnp.int32(1)), want)
    fast = autocast(moved, weights=record)
    rules = {o.operation: o.rule for o in duotone.explain(fast, x, jnp.int32(1)).operations}
    assert rules["dynamic_slice"] == rules["concatenate"] == "weights"


def test_one_reader_in_full_keeps_a_weight_and_what_is_moved_with_it_full():
    def tied(params, tokens):
        return jnp.sin(params["table"][tokens]) @ params["table"].T

    def joined(params, x, index):
        both = jnp.concatenate([params["a"], params["b"]])
        return x @ jax.lax.dynamic_index_in_dim(both, index, keepdims=False) + jnp.exp(
            params["b"][0, 0]
        )

    assert not cast_params(tied, {"table": numbers(0, 6, 8)}, jnp.arange(2), dtype="float16").cast
    params = {"a": numbers(0, 3, 8, 8), "b": numbers(1, 1, 8, 8)}
    assert not cast_params(joined, params, numbers(2, 2, 8), 1, dtype="float16").cast


def test_weights_that_the_policy_keeps_full():
    def named(params, x):
        with jax.named_scope("head"):
            return x @ params["w"]

    policy = Policy(keep_full=["head/*"])
    x, params = numbers(0, 2, 8), {"w": numbers(1, 8, 8)}
    assert not cast_params(named, params, x, dtype="float16", policy=policy).cast
    assert cast_params(named, params, x, dtype="float16").cast


def test_a_function_with_a_derivative_of_its_own():
    @jax.custom_vjp
    def dense(x, w):
        return x @ w

    dense.defvjp(lambda x, w: (x @ w, (x, w)), lambda r, g: (g @ r[1].T, r[0].T @ g))

    def fn(params, x):
        return jnp.tanh(dense(x, params["w"])).sum()

    params, x = {"w": numbers(0, 8, 8)}, numbers(1, 8, 8)
    fast, plain = autocast(fn, dtype="float16", weights=params), autocast(fn, dtype="float16")
    assert cast_params(fn, params, x, dtype="float16").cast
    want = jax.value_and_grad(plain, 1)(params, x)
    assert same_bits(jax.value_and_grad(fast)(x), want)


def test_the_first_call_may_be_inside_jit():
    fn, params, args, _ = MODELS["language model"]
    want = autocast(fn, dtype=jnp.float16)(params, *args)
    fast = autocast(fn, dtype=jnp.float16, weights=params)
    # Weights that are constants of a larger program are folded and fused otherwise.
    np.testing.assert_array_max_ulp(np.asarray(jax.jit(fast)(*args)), np.asarray(want), maxulp=4)
    assert same_bits(fast(*args), want)


def test_vmap_and_derivatives_around_it():
    params, x = perceptron_params(), numbers(0, 3, 5, 8)
    fast = autocast(perceptron, dtype=jnp.float16, weights=params)
    plain = autocast(perceptron, dtype=jnp.float16)
    assert same_bits(jax.vmap(fast)(x), jax.vmap(plain, (None, 0))(params, x))
    slope = jax.grad(lambda x: fast(x).sum())
    assert same_bits(slope(x[0]), jax.grad(lambda x: plain(params, x).sum())(x[0]))


def test_weights_that_are_traced_are_cast_inside_the_program():
    params, x = perceptron_params(), numbers(0, 5, 8)

    @jax.jit
    def predict(params, x):
        fast = autocast(perceptron, dtype=jnp.float16, weights=params)
        return fast(x) + fast(x)

    assert same_bits(predict(params, x), 2 * autocast(perceptron, dtype="float16")(params, x))


def test_a_record_is_an_argument_of_a_jitted_function():
    params, x = perceptron_params(), numbers(0, 5, 8)
    record = cast_params(perceptron, params, x, dtype=jnp.float16)
    predict = jax.jit(lambda record, x: autocast(perceptron, weights=record)(x))
    assert same_bits(predict(record, x), autocast(perceptron, dtype="float16")(params, x))


def test_the_weights_are_never_donated():
    params, x = perceptron_params(), numbers(0, 5, 8)
    want = autocast(perceptron, dtype=jnp.float16)(params, x)
    fn = jax.jit(lambda params, x: (perceptron(params, x), x + 1), donate_argnums=(0, 1))
    fast = autocast(fn, dtype=jnp.float16, weights=params)
    for _ in range(2):
        given = x + 0
        assert same_bits(fast(given)[0], want)
        assert given.is_deleted()
    assert not any(leaf.is_deleted() for leaf in params.values())


def test_a_cast_keeps_the_sharding():
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    params = jax.device_put(perceptron_params(), sharding)
    record = cast_params(perceptron, params, numbers(0, 5, 8), dtype=jnp.float16)
    assert record.params["w1"].dtype == jnp.float16
    assert all(leaf.sharding == sharding for leaf in record.params.values())


def test_the_first_call_may_be_inside_a_shard_map():
    params, x = perceptron_params(), numbers(0, 5, 8)
    want = autocast(perceptron, dtype=jnp.float16)(params, x)
    fast = autocast(perceptron, dtype=jnp.float16, weights=params)
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    rows = PartitionSpec("data")
    sharded = jax.shard_map(fast, mesh=mesh, in_specs=rows, out_specs=rows)
    np.testing.assert_array_equal(sharded(x), want)
    assert same_bits(fast(x), want)


def test_an_equinox_module_with_leaves_that_are_no_arrays():
    model = eqx.nn.MLP(8, 2, 8, 2, activation=jax.nn.relu, key=jax.random.key(0))
    x = numbers(0, 8)
    plain = autocast(lambda model, x: model(x), dtype=jnp.float16)
    record = cast_params(type(model).__call__, model, x, dtype=jnp.float16)
    assert isinstance(record.params, eqx.nn.MLP)
    assert record.params.activation is model.activation
    assert record.cast == {f".layers[{i}].weight" for i in range(3)}
    assert same_bits(autocast(lambda m, x: m(x), weights=record)(x), plain(model, x))


def test_leaves_of_every_kind():
    def fn(params, x):
        scale = params["scale"] if params["on"] else 1.0
        return (x @ params["numpy"] @ params["half"].astype(jnp.float32)) * scale, params["count"]

    params = {
        "numpy": np.asarray(numbers(0, 8, 8)),
        "half": numbers(1, 8, 8).astype(jnp.float16),
        "count": jnp.int32(3),
        "scale": 0.5,
        "on": True,
        "none": None,
    }
    x = numbers(2, 3, 8)
    record = cast_params(fn, params, x, dtype=jnp.float16)
    assert record.cast == {"['numpy']"}
    assert record.params["scale"] == 0.5
    want = autocast(fn, dtype=jnp.float16)(params, x)
    assert same_bits(autocast(fn, dtype=jnp.float16, weights=params)(x), want)


def test_a_record_says_what_was_saved_and_can_be_stored(tmp_path):
    params, x = perceptron_params(), numbers(0, 5, 8)
    record = cast_params(perceptron, params, x, dtype=jnp.bfloat16)
    assert record.bytes_before == sum(leaf.nbytes for leaf in params.values()) == 1120
    assert record.bytes_after == sum(leaf.nbytes for leaf in record.params.values()) == 608
    shown = "CastParams(2 of 4 arrays in bfloat16, 1,120 bytes before, 608 after)"
    assert repr(record) == shown
    path = tmp_path / "record.pickle"
    path.write_bytes(pickle.dumps(jax.device_get(record)))
    loaded = pickle.loads(path.read_bytes())
    assert repr(loaded) == shown
    want = autocast(perceptron, weights=record)(x)
    assert same_bits(autocast(perceptron, weights=loaded)(x), want)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, record)
    assert isinstance(doubled, CastParams)
    assert doubled.cast == record.cast
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.dtype = None  # type: ignore[misc]


def test_a_record_keeps_no_master():
    params, x = {"w": numbers(0, 8, 8)}, numbers(1, 2, 8)
    master = weakref.ref(params["w"])
    fast = autocast(either, weights=cast_params(either, params, x, False, dtype=jnp.float16))
    fast(x, False)
    del params
    gc.collect()
    assert master() is None


def test_an_autocast_function_is_taken_with_its_settings():
    params, x = perceptron_params(), numbers(0, 5, 8)
    plain = autocast(perceptron, dtype=jnp.float16)
    assert cast_params(plain, params, x).dtype == "float16"
    assert same_bits(autocast(plain, weights=params)(x), plain(params, x))


def test_the_signature_has_no_weights():
    fast = autocast(language_model, dtype=jnp.float16, weights=language_model_params())
    jitted = jax.jit(fast, static_argnames="scale")
    want = fast(jnp.arange(3), scale=2.0)
    np.testing.assert_array_equal(jitted(jnp.arange(3), scale=2.0), want)


def test_ranges_and_calibration_know_the_weights_by_name():
    params, x = perceptron_params(), numbers(0, 5, 8)
    measured = duotone.calibrate(perceptron, [(params, x)])
    for policy in (Policy(calibration=measured), Policy(ranges={"params/w1": (-2, 2)})):
        want = autocast(perceptron, dtype=jnp.float16, policy=policy)(params, x)
        fast = autocast(perceptron, dtype=jnp.float16, policy=policy, weights=params)
        assert same_bits(fast(x), want)


def test_explain_shows_the_program_that_runs():
    fn, params, args, names = MODELS["language model"]
    plain = duotone.explain(autocast(fn, dtype=jnp.float16), params, *args)
    fast = duotone.explain(autocast(fn, dtype=jnp.float16, weights=params), *args)
    assert len(fast.operations) == len(plain.operations)
    assert fast.summary.casts_inserted == plain.summary.casts_inserted - len(names)


def test_files_of_the_pass(tmp_path):
    policy = Policy(log_path=tmp_path)
    params, x = perceptron_params(), numbers(0, 5, 8)
    autocast(perceptron, dtype=jnp.float16, policy=policy, weights=params)(x)
    assert list(tmp_path.iterdir())


def test_compile_for_has_the_weights_as_arguments():
    params, x = perceptron_params(), jax.ShapeDtypeStruct((5, 8), jnp.float32)
    plain = duotone.compile_for(autocast(perceptron, dtype="bfloat16"), params, x, target="cpu")
    fast = autocast(perceptron, dtype="bfloat16", weights=params)
    assert duotone.compile_for(fast, x, target="cpu").argument_bytes == (
        plain.argument_bytes - 2 * (8 * 16 + 16 * 8)
    )


def test_where_no_half_type_is_fast_all_stays(monkeypatch):
    monkeypatch.setattr(
        "duotone.transforms.mixed_function.current_choice", lambda: choose_half("cpu")
    )
    params, x = perceptron_params(), numbers(0, 5, 8)
    record = cast_params(perceptron, params, x)
    assert record.cast == frozenset()
    assert record.dtype is None
    assert same_bits(record.params, params)
    for given in (params, record):
        np.testing.assert_array_equal(
            autocast(perceptron, weights=given)(x), jax.jit(perceptron)(params, x)
        )


def test_switched_off_it_is_compiled_too():
    traces = []

    def counted(params, x):
        traces.append(type(x))
        return perceptron(params, x)

    params, x = perceptron_params(), numbers(0, 5, 8)
    off = autocast(counted, weights=params, dtype="float32")
    for _ in range(3):
        np.testing.assert_array_equal(off(x), jax.jit(perceptron)(params, x))
    assert len(traces) == 1
    assert "duotone" not in str(jax.make_jaxpr(off)(x))
    assert "tanh" in str(duotone.explain(off, x).rows())


def test_another_precision_of_dots_is_another_program():
    params, x = perceptron_params(), numbers(0, 5, 8)
    fast = autocast(perceptron, dtype=jnp.float16, weights=params)
    assert casts(jax.make_jaxpr(fast)(x).jaxpr)
    with jax.default_matmul_precision("highest"):
        assert not casts(jax.make_jaxpr(fast)(x).jaxpr)


def test_shapes_cannot_be_cast():
    shapes = jax.eval_shape(perceptron_params)
    with pytest.raises(
        ArgumentTypeError, match=r"weights\['b1'\] is a ShapeDtypeStruct.*jnp.zeros"
    ):
        autocast(perceptron, dtype=jnp.float16, weights=shapes)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    autocast(perceptron, dtype=jnp.float16, weights=zeros)(numbers(0, 5, 8))


def test_weights_without_arrays():
    with pytest.raises(ArgumentError, match="holds no array; pass what it takes"):
        autocast(perceptron, dtype=jnp.float16, weights=perceptron_params)


def test_a_function_that_takes_no_weights():
    with pytest.raises(ArgumentTypeError, match="takes the weights as its first argument"):
        autocast(lambda: 1, dtype=jnp.float16, weights={"w": jnp.ones(2)})  # type: ignore[call-overload]


def test_weights_passed_again():
    params, x = perceptron_params(), numbers(0, 5, 8)
    fast = autocast(perceptron, dtype=jnp.float16, weights=params)
    with pytest.raises(ArgumentTypeError, match="pass the others only"):
        fast(params, x)  # type: ignore[call-arg]
    fast(x)


def test_weights_that_do_not_fit():
    fast = autocast(perceptron, dtype=jnp.float16, weights={"kernel": numbers(0, 8, 4)})
    with pytest.raises(KeyError) as raised:
        fast(numbers(1, 5, 8))
    assert any("must be the weights" in note for note in raised.value.__notes__)


def test_a_record_of_another_half_type():
    x = numbers(0, 5, 8)
    record = cast_params(perceptron, perceptron_params(), x, dtype=jnp.float16)
    with pytest.raises(ArgumentError, match="dtype is bfloat16 and weights were cast to float16"):
        autocast(perceptron, dtype=jnp.bfloat16, weights=record)
    autocast(perceptron, dtype=jnp.float16, weights=record)(x)


def casts_of(jaxpr, var, runs: int = 1) -> list[int]:
    """How often each cast of an argument to half runs."""
    found: list[int] = []
    for eqn in jaxpr.eqns:
        for place in (i for i, atom in enumerate(eqn.invars) if atom is var):
            if eqn.primitive.name == "convert_element_type":
                found += [runs] * (eqn.params["new_dtype"] in HALVES)
            for param in eqn.params.values():
                inner = getattr(param, "jaxpr", param)
                if hasattr(inner, "eqns") and len(inner.invars) == len(eqn.invars):
                    length = eqn.params.get("length", 1)
                    found += casts_of(inner, inner.invars[place], runs * length)
    return found


@pytest.mark.parametrize("order", ["autocast(grad)", "grad(autocast)"])
def test_in_training_a_master_is_cast_once_a_step(order):
    """Twice read by dots of the forward pass, and by those of the backward pass, loops included.

    A stacked weight is cast slice by slice, so that there never is a second copy of the stack: each
    slice at most once in the forward and once in the backward loop.
    """

    def loss(params, x):
        x = jnp.tanh(x @ params["twice"]) @ params["twice"]
        x, _ = jax.lax.scan(
            lambda x, w: (jnp.tanh(x @ w @ params["every"]), None), x, params["stacked"]
        )
        return jnp.mean(x**2)

    params = {
        "every": numbers(0, 8, 8),
        "stacked": numbers(1, 3, 8, 8),
        "twice": numbers(2, 8, 8),
    }
    step = (
        autocast(jax.value_and_grad(loss), dtype=jnp.float16)
        if order == "autocast(grad)"
        else jax.value_and_grad(autocast(loss, dtype=jnp.float16))
    )
    jaxpr = jax.make_jaxpr(step)(params, numbers(3, 8, 8)).jaxpr
    every, stacked, twice = (casts_of(jaxpr, var) for var in jaxpr.invars[:3])
    assert every == twice == [1]
    assert set(stacked) == {3}
    assert len(stacked) <= 2


@pytest.mark.parametrize("called_before", [True, False])
def test_a_numpy_array_that_is_changed_afterwards_changes_nothing(called_before):
    weight, bias = np.ones((8, 8), np.float32), np.ones(8, np.float32)
    fast = autocast(lambda p, x: x @ p[0] + p[1], dtype="bfloat16", weights=(weight, bias))
    x = jnp.ones((2, 8))
    if called_before:
        fast(x)
    weight[:], bias[:] = 100, 100
    np.testing.assert_array_equal(fast(x), np.full((2, 8), 9.0))


def test_nor_does_it_where_nothing_is_rewritten(monkeypatch):
    weight = np.ones((8, 8), np.float32)
    monkeypatch.setattr(
        "duotone.transforms.mixed_function.current_choice", lambda: choose_half("cpu")
    )
    fast = autocast(lambda p, x: x @ p["w"], weights={"w": weight})
    weight[:] = 100
    np.testing.assert_array_equal(fast(jnp.ones((2, 8))), np.full((2, 8), 8.0))
