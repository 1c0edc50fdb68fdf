"""The three loss scales as values: configuration, the rule, pytree behaviour."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from duotone.errors import ArgumentError, ArgumentTypeError, DuotoneError
from duotone.scale import DynamicLossScale, FixedLossScale, LossScale, NoLossScale

EVERY_KIND = [
    pytest.param(lambda: DynamicLossScale(), id="dynamic"),
    pytest.param(lambda: FixedLossScale(128), id="fixed"),
    pytest.param(lambda: NoLossScale(), id="none"),
]


def after(state: Any, *finite: bool) -> Any:
    for step in finite:
        state = state.adjust(step)
    return state


# ---- the rule


def test_defaults_are_those_of_the_original():
    state = DynamicLossScale()
    assert float(state.value) == 2.0**15
    assert (state.growth_interval, state.factor, state.floor, state.cap) == (2000, 2, 1, 2**24)


def test_grows_exactly_on_the_last_step_of_the_interval():
    state = DynamicLossScale(8, growth_interval=3)
    values = []
    for _ in range(7):
        state = state.adjust(True)
        values.append(float(state.value))
    assert values == [8, 8, 16, 16, 16, 32, 32]


def test_a_bad_step_starts_the_interval_again():
    state = after(DynamicLossScale(8, growth_interval=3), True, True, False, True, True)
    assert float(state.value) == 4
    assert float(state.adjust(True).value) == 8


def test_a_bad_step_divides_and_is_counted():
    state = after(DynamicLossScale(64, factor=4), False, True, False)
    assert (float(state.value), int(state.skipped), int(state.good_steps)) == (4, 2, 0)


def test_170_bad_steps_leave_the_floor_and_training_goes_on():
    state = after(DynamicLossScale(), *[False] * 170)
    assert float(state.value) == 1
    assert int(state.skipped) == 170
    assert float(state.unscale(jnp.float32(3))) == 3


def test_endless_good_steps_never_pass_the_cap():
    state = after(DynamicLossScale(growth_interval=1), *[True] * 170)
    assert float(state.value) == 2.0**24
    assert float(state.adjust(False).value) == 2.0**23


def test_widest_bounds_neither_overflow_nor_vanish():
    state = DynamicLossScale(2.0**126, growth_interval=1, factor=2.0**126, cap=2.0**126)
    assert float(state.adjust(True).value) == 2.0**126
    assert float(state.adjust(False).value) == 1
    assert float(state.unscale(state.scale(jnp.float32(1)))) == 1


@pytest.mark.parametrize("damaged", [math.nan, math.inf, -math.inf, 0.0, -8.0])
@pytest.mark.parametrize("finite", [True, False])
def test_a_damaged_scale_comes_back_inside_its_bounds(damaged: float, finite: bool):
    state = DynamicLossScale(value=jnp.float32(damaged)).adjust(finite)
    assert state.floor <= float(state.value) <= state.cap


@pytest.mark.parametrize("make", EVERY_KIND)
def test_every_kind_counts_skipped_steps(make: Any):
    assert int(after(make(), True, False, False, True).skipped) == 2


def test_fixed_and_none_keep_their_value():
    assert float(after(FixedLossScale(100), False, *[True] * 5).value) == 100
    assert float(after(NoLossScale(), False, *[True] * 5).value) == 1


@settings(max_examples=60, deadline=None)
@given(
    bounds=st.lists(st.integers(0, 30), min_size=3, max_size=3).map(sorted),
    interval=st.integers(1, 5),
    factor=st.sampled_from([2, 4, 8]),
    steps=st.lists(st.sampled_from([True, True, True, False]), max_size=40),
)
def test_rule_against_a_plain_python_model(
    bounds: list[int], interval: int, factor: int, steps: list[bool]
):
    floor, initial, cap = (2**exponent for exponent in bounds)
    state = DynamicLossScale(initial, growth_interval=interval, factor=factor, floor=floor, cap=cap)
    scale, good = initial, 0
    for finite in steps:
        state = state.adjust(finite)
        good = good + 1 if finite else 0
        if not finite:
            scale = max(scale // factor, floor)
        elif good == interval:
            scale, good = min(scale * factor, cap), 0
        value = float(state.value)
        assert (value, int(state.good_steps)) == (scale, good)
        assert floor <= value <= cap
        assert math.log2(value).is_integer()
    assert int(state.skipped) == steps.count(False)


# ---- scale and unscale


@pytest.mark.parametrize("make", EVERY_KIND)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2", "float32", "complex64"])
def test_unscale_undoes_scale_and_half_becomes_float32(make: Any, dtype: str):
    state = make()
    leaf = jnp.asarray([1.5, -0.25, 3.0]).astype(dtype)
    scaled = state.scale(leaf)
    full = jnp.dtype(dtype if dtype == "complex64" else "float32")
    assert scaled.dtype == full
    np.testing.assert_array_equal(scaled, np.asarray([1.5, -0.25, 3], full) * state.value)
    back = state.unscale(scaled)
    assert back.dtype == full
    np.testing.assert_array_equal(back, np.asarray([1.5, -0.25, 3], full))


@pytest.mark.parametrize("make", EVERY_KIND)
def test_float64_stays_float64(make: Any):
    with jax.enable_x64(True):
        state = make()
        leaf = jnp.asarray([1e-300, 1.0 + 1e-15], jnp.float64)
        back = state.unscale(state.scale(leaf))
        assert back.dtype == jnp.float64
        np.testing.assert_array_equal(back, leaf)
        adjusted = state.adjust(False)
        types = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]
        assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(adjusted)] == types


@pytest.mark.parametrize("make", EVERY_KIND)
def test_leaves_without_magnitude_pass_through(make: Any):
    state = make()
    tree = {
        "int": jnp.arange(3),
        "bool": jnp.asarray([True]),
        "python int": 7,
        "none": None,
        "float0": np.zeros(2, jax.dtypes.float0),
        "key": jax.random.key(3),
        "function": jax.nn.relu,
        "text": "relu",
    }
    for out in (state.scale(tree), state.unscale(tree)):
        assert jax.tree.structure(out) == jax.tree.structure(tree)
        assert all(out[name] is tree[name] for name in tree)


def test_unscaling_divides_rightly_by_a_scale_that_is_no_power_of_two():
    state = FixedLossScale(1000.3)
    leaf = np.random.default_rng(0).standard_t(1.5, 5000).astype(np.float32)  # heavy tails
    np.testing.assert_array_equal(state.unscale(leaf), leaf / np.float32(1000.3))


def test_complex_infinity_stays_in_its_part():
    out = FixedLossScale(8).unscale(jnp.asarray([complex(math.inf, 1.0)], jnp.complex64))
    assert math.isinf(out.real[0])
    assert float(out.imag[0]) == 0.125


def test_strict_dtype_promotion_finds_no_implicit_cast():
    with jax.numpy_dtype_promotion("strict"):
        for make in (lambda: DynamicLossScale(growth_interval=1), lambda: FixedLossScale(8)):
            state = make().adjust(jnp.asarray(True))
            state.unscale(state.scale({"h": jnp.ones(2, jnp.bfloat16), "w": jnp.ones(2)}))
            state.limited_to(jnp.float16)


# ---- limits of a half loss


def test_a_float16_loss_gets_a_scale_that_float16_holds():
    for state in (DynamicLossScale(2**24), FixedLossScale(2**24)):
        assert float(state.limited_to(jnp.float16).value) == 2.0**15
        assert float(state.limited_to(jnp.bfloat16).value) == 2.0**24
        assert state.limited_to(jnp.float32) is state
        assert state.limited_to(jnp.float64) is state
    state = NoLossScale()
    assert state.limited_to(jnp.float16) is state


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_the_limited_scale_is_exactly_what_the_half_type_holds(dtype: Any):
    for state in (DynamicLossScale(1000.3), FixedLossScale(1000.3)):
        expected = float(jnp.asarray(1000.3, dtype))
        assert float(jax.jit(lambda s: s.limited_to(dtype).value)(state)) == expected


# ---- a pytree derived from the dataclass


@pytest.mark.parametrize("make", EVERY_KIND)
def test_round_trips_keep_every_field(make: Any):
    state = after(make(), True, False)
    leaves, structure = jax.tree.flatten(state)
    config = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
    assert all(isinstance(leaf, jax.Array) and leaf.shape == () for leaf in leaves)
    copies = [
        jax.tree.unflatten(structure, leaves),
        jax.tree.map(lambda x: x, state),
        jax.jit(lambda s: s)(state),
        pickle.loads(pickle.dumps(state)),
    ]
    for copy in copies:
        assert {f.name: getattr(copy, f.name) for f in dataclasses.fields(copy)} == config


def test_configuration_is_kept_by_tree_map():  # jmp loses min_loss_scale here
    state = DynamicLossScale(64, growth_interval=7, factor=4, floor=16, cap=128)
    mapped = jax.tree.map(jnp.asarray, state)
    assert mapped == state
    assert float(after(mapped, *[False] * 9).value) == 16


@pytest.mark.parametrize("make", EVERY_KIND)
@pytest.mark.parametrize("stand_in", [None, 0, object(), "axis", 1.0])
def test_unflatten_takes_any_leaf_and_leaves_it_alone(make: Any, stand_in: Any):
    state = make()
    structure = jax.tree.structure(state)
    rebuilt = jax.tree.unflatten(structure, [stand_in] * structure.num_leaves)
    assert rebuilt.skipped is stand_in
    assert type(rebuilt) is type(state)


def test_leaf_paths_are_field_names():  # what a checkpoint shows
    paths = [
        jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(DynamicLossScale())
    ]
    assert paths == [".value", ".good_steps", ".skipped"]


def test_integers_and_floats_make_the_same_structure():  # else jit would compile twice
    one, other = (
        DynamicLossScale(2**15, cap=2**24),
        DynamicLossScale(2.0**15, cap=np.float64(2**24)),
    )
    assert jax.tree.structure(one) == jax.tree.structure(other)


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DynamicLossScale().factor = 3.0  # pyright: ignore


def test_replace_checks_the_configuration_again():
    state = dataclasses.replace(DynamicLossScale(), growth_interval=5)
    assert state.growth_interval == 5
    with pytest.raises(ArgumentError, match="growth_interval"):
        dataclasses.replace(state, growth_interval=0)


def test_a_loss_scale_of_ones_own():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Halving(LossScale):
        exponent: jax.Array

        @property
        def value(self) -> jax.Array:
            return jnp.exp2(self.exponent.astype(jnp.float32))

        def adjust(self, grads_finite: Any) -> Halving:
            return Halving(jnp.where(grads_finite, self.exponent, self.exponent - 1))

    state = Halving(jnp.asarray(4))
    assert float(state.unscale(state.scale(jnp.float16(0.5)))) == 0.5
    assert float(state.adjust(False).value) == 8


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"initial": 0}, "initial"),
        ({"initial": 0.5}, "initial must lie between"),
        ({"initial": 2.0**-127}, "initial"),
        ({"initial": -1.0}, "initial"),
        ({"initial": math.nan}, "initial"),
        ({"initial": math.inf}, "initial"),
        ({"initial": 1.0, "floor": 2.0}, "initial must lie between"),
        ({"initial": 64.0, "cap": 32.0}, "initial must lie between"),
        ({"floor": 0.0}, "floor"),
        ({"floor": math.nan}, "floor"),
        ({"cap": 2.0**127}, "cap"),
        ({"cap": 1e300}, "cap"),
        ({"cap": math.inf}, "cap"),
        ({"factor": 1.0}, "factor"),
        ({"factor": 0.5}, "factor"),
        ({"factor": 1.0 + 1e-12}, "factor"),  # one in float32
        ({"factor": math.nan}, "factor"),
        ({"factor": math.inf}, "factor"),
        ({"factor": -1e300}, "factor"),
        ({"growth_interval": 0}, "growth_interval"),
        ({"growth_interval": -3}, "growth_interval"),
        ({"growth_interval": 2**31}, "growth_interval"),
    ],
)
def test_a_configuration_out_of_range_is_refused(arguments: dict[str, Any], name: str):
    with pytest.raises(ArgumentError, match=name) as caught:
        DynamicLossScale(**arguments)
    assert isinstance(caught.value, DuotoneError | ValueError)


@pytest.mark.parametrize("field", ["initial", "factor", "floor", "cap", "growth_interval"])
@pytest.mark.parametrize("wrong", ["8", None, True, [8], np.ones(2), 8j])
def test_a_configuration_of_the_wrong_type_is_refused(field: str, wrong: Any):
    with pytest.raises(ArgumentTypeError, match=field):
        DynamicLossScale(**{field: wrong})


def test_a_fractional_interval_is_refused():
    with pytest.raises(ArgumentTypeError, match="whole number"):
        DynamicLossScale(growth_interval=2.5)  # pyright: ignore


def test_a_traced_initial_scale_is_refused_with_advice():
    with pytest.raises(ArgumentTypeError, match=r"restore its arrays into a new one"):
        jax.jit(lambda x: DynamicLossScale(x).value)(8.0)


def test_the_advice_of_the_error_works():
    with pytest.raises(ArgumentTypeError, match=r"Convert an array with float\(x\)"):
        DynamicLossScale(jnp.float32(64))  # pyright: ignore
    assert float(DynamicLossScale(float(jnp.float32(64))).value) == 64


@pytest.mark.parametrize("constant", [0, 2.0**-127, -1, math.nan, math.inf, 2.0**127])
def test_a_fixed_scale_out_of_range_is_refused(constant: float):
    with pytest.raises(ArgumentError, match=r"constant.*NoLossScale\(\)"):
        FixedLossScale(constant)


def test_a_scale_below_one():
    assert float(after(DynamicLossScale(4, floor=0.25), *[False] * 9).value) == 0.25
    assert float(after(DynamicLossScale(1, floor=2.0**-126), *[False] * 200).value) == 2.0**-126
    state = FixedLossScale(0.5)
    assert float(state.scale(jnp.float32(3))) == 1.5
    assert float(state.unscale(jnp.float32(1.5))) == 3
    for tiny in (DynamicLossScale(2.0**-20, floor=2.0**-20), FixedLossScale(2.0**-20)):
        assert float(tiny.limited_to(jnp.float16).value) == 2.0**-14
        assert float(tiny.limited_to(jnp.bfloat16).value) == 2.0**-20


@pytest.mark.parametrize("wrong", ["dynamic", None, True])
def test_a_fixed_scale_of_the_wrong_type_is_refused(wrong: Any):
    with pytest.raises(ArgumentTypeError, match="constant"):
        FixedLossScale(wrong)


@pytest.mark.parametrize("make", EVERY_KIND)
@pytest.mark.parametrize("wrong", [1, 1.0, None, "True", np.array([True, False]), np.float32(1)])
def test_adjust_takes_one_boolean(make: Any, wrong: Any):
    with pytest.raises(ArgumentTypeError, match="grads_finite must be one boolean"):
        make().adjust(wrong)


@pytest.mark.parametrize("finite", [True, np.True_, np.array(True), jnp.asarray(True)])
def test_adjust_takes_every_kind_of_boolean(finite: Any):
    assert int(DynamicLossScale().adjust(finite).good_steps) == 1
