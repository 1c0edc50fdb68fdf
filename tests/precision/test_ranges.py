"""What ranges find, and what they change in the classes: one small function for each fact."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.errors import CalibrationError, RangeError
from duotone.graph.graph import HALF_TYPES, Graph
from duotone.jaxpr.reading.build import build
from duotone.ops.entries import Kind, Taint
from duotone.ops.jax import ENTRIES
from duotone.precision.classify.classes import Pins, classify
from duotone.precision.classify.lists import OpLists
from duotone.precision.context import Background
from duotone.precision.ranges import (
    Assumptions,
    Interval,
    Measured,
    Ranges,
    assume,
    check_fingerprint,
    find_ranges,
    fingerprint,
)
from duotone.precision.ranges.interval import hull, meet, outward, widened, within, words
from duotone.precision.ranges.refine import deny_out_of_range, keep_digits, store_in_half
from duotone.precision.safety.safety_rules import SAFETY_RULES

lax = jax.lax
X = np.zeros((8, 16), np.float32)
W = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)


def graph_of(function: Callable[..., Any], *arguments: Any) -> Graph:
    return build(jax.make_jaxpr(function)(*(arguments or (X,)))).graph


def found(function: Callable[..., Any], *stated: Interval) -> Interval | None:
    """The interval of the result of a function of arrays with stated ranges."""
    graph = graph_of(function, *[X] * max(len(stated), 1))
    ranges = find_ranges(graph, Assumptions(stated=dict(zip(graph.inputs, stated, strict=False))))
    return ranges.of(graph.outputs[0][0])


def about(low: float, high: float) -> Any:
    """An interval with these bounds, rounded outward by little."""
    return pytest.approx((low, high), rel=1e-3, abs=1e-5)


def refined(
    function: Callable[..., Any],
    *arguments: Any,
    half: str = "float16",
    stated: dict[int, Interval] | None = None,
    measured: dict[int, Measured] | None = None,
    pins: Pins | None = None,
) -> dict[str, Any]:
    """The class of each operation (the last of its name), what is stated given by argument."""
    graph = graph_of(function, *arguments)
    given = {graph.inputs[i]: interval for i, interval in (stated or {}).items()}
    ranges = find_ranges(graph, Assumptions(given, measured or {}))
    lists = OpLists.for_half(ENTRIES, half)
    classes = classify(graph, lists, HALF_TYPES[half], pins or Pins())
    background = Background(graph, HALF_TYPES[half], ranges)
    for safety_rule in (deny_out_of_range, store_in_half, keep_digits):
        classes = safety_rule(classes, background)
    return {node.op: classes.nodes[node.index] for node in graph.nodes}


# ----------------------------------------- intervals


def test_outward_leaves_room_overflows_and_flushes() -> None:
    assert outward(1.0, 2.0) == (pytest.approx(1.0, rel=1e-5), pytest.approx(2.0, rel=1e-5))
    low, high = outward(1.0, 2.0) or (0, 0)
    assert low < 1.0 < 2.0 < high
    assert outward(1.0, 1e39) == (pytest.approx(1.0, rel=1e-5), math.inf)
    assert outward(1e-40, 1.0) == (0.0, pytest.approx(1.0, rel=1e-5))
    assert outward(math.nan, math.nan) is None


def test_hull_meet_within_widened() -> None:
    assert hull([(0, 1), (3, 4)]) == (0, 4)
    assert hull([(0, 1), None]) is None
    assert meet((0, 5), (3, 9)) == (3, 5)
    assert meet((0, 1), (3, 9)) == (0, 1)
    assert within((0, 1), None)
    assert not within(None, (0, 1))
    assert not within((0, 2), (0, 1))
    assert widened((0, 1), (0, 2)) == (0, math.inf)
    assert widened((0, 1), (-1, 1)) == (-math.inf, 1)
    assert widened((-1, 0), (-3, 0)) == (-math.inf, 0)


def test_words() -> None:
    assert words(None) == "unknown"
    assert words((-math.inf, 0)) == "at most 0"
    assert words((0, math.inf)) == "at least 0"
    assert words((-1, 2.5)) == "between -1 and 2.5"


# ----------------------------------------- rules


CASES: dict[str, tuple[Callable[..., Any], tuple[Interval, ...], Any]] = {
    "add": (lambda x, y: x + y, ((-1, 2), (3, 4)), about(2, 6)),
    "sub": (lambda x, y: x - y, ((-1, 2), (3, 4)), about(-5, -1)),
    "mul": (lambda x, y: x * y, ((-1, 2), (-3, 4)), about(-6, 8)),
    "div": (lambda x, y: x / y, ((-1, 2), (2, 4)), about(-0.5, 1)),
    "div by what may be zero": (lambda x, y: x / y, ((-1, 2), (0, 4)), None),
    "unknown operand": (lambda x, y: x + y, ((-1, 2), (-math.inf, math.inf)), None),
    "self": (lambda x: x * x, ((-3, 2),), about(0, 9)),
    "square of an unknown": (lambda x: jnp.square(x), (), (0, math.inf)),
    "odd power": (lambda x: x**3, ((-2, 1),), about(-8, 1)),
    "negative power": (lambda x: lax.integer_pow(x, -2), ((2, 4),), about(1 / 16, 1 / 4)),
    "exp": (lambda x: jnp.exp(x), ((-1, 2),), about(math.exp(-1), math.exp(2))),
    "exp overflows": (lambda x: jnp.exp(x), ((0, 100),), (pytest.approx(1, rel=1e-5), math.inf)),
    "log": (lambda x: jnp.log(x), ((1, math.e),), about(0, 1)),
    "tanh of an unknown": (lambda x: jnp.tanh(x), (), about(-1, 1)),
    "rsqrt with an epsilon": (lambda x: lax.rsqrt(x * x + 1e-4), (), about(0, 100)),
    "rsqrt of what may be zero": (lambda x: lax.rsqrt(x * x), (), None),
    "clip": (lambda x: jnp.clip(x, -2, 3), (), (-2, 3)),
    "where": (lambda x: jnp.where(x > 0, 1.0, 0.0), (), (0, 1)),
    "one hot": (lambda x: jax.nn.one_hot(jnp.argmax(x, 1), 5), (), about(0, 1)),
    "counter": (lambda x: jnp.arange(7) + 0.0 * jnp.ones(7), (), about(0, 6)),
    "bytes": (lambda x: jnp.floor(x).astype(jnp.int8).astype(jnp.float32), (), (-128, 127)),
    "counter in a float that rounds": (
        lambda x: lax.iota(jnp.bfloat16, 300).astype(jnp.float32),
        (),
        None,
    ),
    "fill": (lambda x: take(x, 9.0), ((-1, 2),), about(-1, 9)),
    "fill that float32 rounds": (lambda x: take(x, 0.1), ((0, 0),), (0, float(np.float32(0.1)))),
    "fill that float32 does not hold": (lambda x: take(x, 1e300), ((0, 0),), (0, math.inf)),
    "fill of a constant": (lambda x: take(jnp.zeros((3, 3)), 7.0), (), (0, 7)),
    "subnormal constant": (lambda x: jnp.maximum(x, 1e-40), ((0, 1),), (0, pytest.approx(1))),
    "root next to 0": (
        lambda x: jnp.cbrt(x),
        ((0, 8),),
        (pytest.approx(-(2.0**-42), rel=1e-3), pytest.approx(2, rel=1e-3)),
    ),
    "power of 2": (lambda x: jnp.exp2(x), ((-100, -100),), pytest.approx((2**-100, 2**-100), 1e-4)),
    "power that underflows": (lambda x: lax.integer_pow(x, -3), ((1e-13, 1),), None),
    "even power that underflows": (
        lambda x: lax.integer_pow(x, -2),
        ((1e-20, 1),),
        (0, math.inf),
    ),
    "by a huge number": (lambda x: x / 3e38, ((1e38, 2e38),), about(0, 2 / 3)),
    "mean": (lambda x: jnp.mean(x), ((-1, 3),), pytest.approx((-1, 3), abs=0.05)),
    "sum": (lambda x: jnp.sum(x, 1), ((0, 1),), pytest.approx((0, 16), abs=0.2)),
    "dot": (lambda x: x @ jnp.eye(16), ((-1, 1),), pytest.approx((-16, 16), rel=0.1)),
    "dot of an unknown": (lambda x: x @ W, (), None),
    "dot of two": (lambda x: x @ x.T, ((0, 2),), pytest.approx((0, 64), abs=1)),
}


def take(x: Any, fill: Any) -> Any:
    """Rows, one of them from outside."""
    return jnp.take(x, jnp.array([0, 99]), 0, mode="fill", fill_value=fill)


INTEGERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "counter": (lambda: lax.broadcasted_iota(jnp.int8, (128, 3), 0), (0, 127)),
    "counter that wraps": (lambda: lax.broadcasted_iota(jnp.int8, (300,), 0), None),
    "negated": (lambda: -jnp.int8(5), (-5, -5)),
    "negated, unsigned": (lambda: -jnp.uint32(5), None),
    "negated, unsigned array": (lambda: lax.neg(jnp.full((3,), 5, jnp.uint8)), None),
    "least magnitude": (lambda: jnp.abs(jnp.int8(-128)), None),
    "converted": (lambda: jnp.full((3,), 5).astype(jnp.uint8), (5, 5)),
    "converted to fewer bits": (lambda: jnp.full((3,), 300).astype(jnp.uint8), None),
    "fill": (lambda: take(jnp.arange(3), 7), (0, 7)),
    "fill that wraps": (lambda: take(jnp.arange(3, dtype=jnp.uint8), 300), None),
}


@pytest.mark.parametrize("case", INTEGERS)
def test_integers_that_wrap_around_are_unknown(case: str) -> None:
    function, expected = INTEGERS[case]
    graph = graph_of(lambda x: (x, function()))
    value = graph.outputs[1][0]
    assert find_ranges(graph).of(value) == expected
    if expected is None:
        assert graph.values[value].constant is None


def test_shares_of_integers_are_unknown() -> None:
    """Their sum may have wrapped around."""

    def share(x: Any) -> Any:
        x = x.astype(jnp.int32) * 20000
        return lax.div(x, jnp.broadcast_to(jnp.sum(x), x.shape))

    graph = graph_of(share, np.zeros(4, np.uint16))
    assert find_ranges(graph).of(graph.outputs[0][0]) is None


def test_a_counter_along_a_symbolic_dimension_is_not_0() -> None:
    (shape,) = jax.export.symbolic_args_specs((X[0],), "n")
    graph = build(jax.make_jaxpr(lambda x: jnp.arange(x.shape[0]) * 2)(shape)).graph
    assert find_ranges(graph).of(graph.outputs[0][0]) is None


@pytest.mark.parametrize("case", CASES)
def test_rule(case: str) -> None:
    function, stated, expected = CASES[case]
    assert found(function, *stated) == expected


# ----------------------------------------- facts


def test_softmax_is_in_zero_to_one_and_its_sum_at_least_one() -> None:
    assert found(lambda x: jax.nn.softmax(x)) == about(0, 1)
    shifted = found(lambda x: x - jnp.max(x, 1, keepdims=True))
    assert shifted == (-math.inf, 0)
    total = found(lambda x: jnp.sum(jnp.exp(x - jnp.max(x, 1, keepdims=True)), 1))
    assert total == pytest.approx((1, 16), abs=0.2)


@pytest.mark.parametrize(
    ("move", "axis", "whole"),
    [
        (lambda e: e.T, 1, False),
        (lambda e: e.T, 0, True),
        (lambda e: e.reshape(8, 1, 16), 1, False),
        (lambda e: e.reshape(8, 1, 16), 2, True),
        (lambda e: jnp.broadcast_to(e[:, None, :], (8, 3, 16)), 1, False),
        (lambda e: jnp.broadcast_to(e[:, None, :], (8, 3, 16)), 2, True),
    ],
)
def test_a_sum_of_moved_exponentials(move: Callable[[Any], Any], axis: int, whole: bool) -> None:
    """At least 1 where it goes over whole rows."""
    total = found(lambda x: jnp.sum(move(jnp.exp(x - jnp.max(x, 1, keepdims=True))), axis))
    assert total is not None
    assert total[0] == pytest.approx(1.0 if whole else 0.0, abs=1e-5)


def test_the_sum_of_an_empty_row_is_0() -> None:
    def total(x: Any) -> Any:
        return lax.reduce_sum(jnp.exp(x - lax.reduce_max(x, (1,))[:, None]), (1,))

    graph = graph_of(total, np.zeros((3, 0), np.float32))
    assert within((0, 0), find_ranges(graph).of(graph.outputs[0][0]))


@pytest.mark.parametrize(("across", "bounded"), [(0, False), (1, True)])
def test_a_norm_of_moved_squares(across: int, bounded: bool) -> None:
    def normed(x: Any) -> Any:
        squares = jnp.sum(jnp.square(x).T, 0)
        return x / jnp.sqrt(jnp.expand_dims(squares, across) + 1e-6)

    square = graph_of(normed, np.zeros((4, 4), np.float32))
    bounds = find_ranges(square).of(square.outputs[0][0])
    assert bounds == (pytest.approx((-1, 1), rel=1e-2) if bounded else None)


@pytest.mark.parametrize(
    ("scale", "epsilon", "bounded"),
    [(1e-4, 1e-6, True), (1e-40, 1e-6, False), (1e4, 1e-6, True), (1e30, 1e-20, False)],
)
def test_a_norm_with_a_factor(scale: float, epsilon: float, bounded: bool) -> None:
    """The factor may be flushed to 0, or make much of what underflowed before."""
    bounds = found(lambda x: x * lax.rsqrt(jnp.sum(x * x, 1, keepdims=True) * scale + epsilon))
    assert (bounds is not None) == bounded


def test_a_softmax_in_other_orders_of_axes() -> None:
    """Of transposed scores and a transposed maximum, as ``vmap`` gives them."""
    assert found(lambda x: jax.vmap(jax.nn.softmax, in_axes=1, out_axes=1)(x)) == about(0, 1)
    mapped = jax.vmap(jax.vmap(lambda x: x - jnp.max(x), 1, 1), 2, 2)
    assert found(lambda x: mapped(x.reshape(2, -1, 4).transpose(1, 0, 2))) == (-math.inf, 0)


@pytest.mark.parametrize(
    ("axis_kept", "expected"), [(0, None), (1, (-math.inf, 0))], ids=["across", "along"]
)
def test_a_transposed_square(axis_kept: int, expected: Any) -> None:
    """Each row less its own maximum, or less that of another one."""

    def function(x: Any) -> Any:
        square = x[:4, :4]
        return square.T - jnp.expand_dims(jnp.max(square, 1), 1 - axis_kept)

    assert found(function) == expected


def test_a_reshape_in_another_order_is_no_bound() -> None:
    def function(x: Any) -> Any:
        x = x.reshape(4, 4, 8)
        return x - jnp.reshape(jnp.max(x, 2), (4, 4, 1), order="F")

    assert found(function) is None


def test_a_maximum_over_other_axes_is_no_bound() -> None:
    assert found(lambda x: x - jnp.max(x, 0)[None, :]) == (-math.inf, 0)
    square = np.zeros((4, 4), np.float32)
    graph = graph_of(lambda x: x - jnp.max(x, 1)[None, :], square)
    assert find_ranges(graph).of(graph.outputs[0][0]) is None
    assert found(lambda x: x - jnp.max(x[:, :8], 1, keepdims=True)) is None


def test_norms_bound_what_they_divide() -> None:
    rms = found(lambda x: x * lax.rsqrt(jnp.mean(x * x, 1, keepdims=True) + 1e-6))
    assert rms == pytest.approx((-4, 4), rel=1e-2)

    def layer_norm(x: Any) -> Any:
        centred = x - jnp.mean(x, 1, keepdims=True)
        again = x - jnp.mean(x, 1, keepdims=True)
        return centred / jnp.sqrt(jnp.mean(again**2, 1, keepdims=True) + 1e-6)

    assert found(layer_norm) is not None
    unguarded = found(lambda x: x * lax.rsqrt(jnp.mean(x * x, 1, keepdims=True)))
    assert unguarded is None
    anything = (-math.inf, math.inf)
    other = found(
        lambda x, y: x * lax.rsqrt(jnp.mean(y * y, 1, keepdims=True) + 1e-6), anything, anything
    )
    assert other is None


def test_what_is_the_same_is_known_as_the_same_through_a_recomputed_region() -> None:
    def weights(x: Any) -> Any:
        return jax.checkpoint(lambda x: jax.nn.softmax(jnp.tanh(x)))(x)

    assert within(found(weights), (0, 0.5))


# ----------------------------------------- loops


def test_a_carry_that_saturates_keeps_its_bounds() -> None:
    def run(x: Any) -> Any:
        return lax.scan(lambda c, row: (jnp.tanh(c + row), None), jnp.zeros(16), x)[0]

    assert found(run) == about(-1, 1)


def test_a_carry_that_grows_is_given_up_on_one_side() -> None:
    def run(x: Any) -> Any:
        return lax.scan(lambda c, row: (c * 2 + row, None), jnp.ones(16), x)[0]

    assert found(run, (0, 1)) == (1, math.inf)


def test_a_bound_that_the_body_keeps_is_taken_back() -> None:
    def run(x: Any) -> Any:
        return lax.fori_loop(0, 9, lambda _, c: jnp.minimum(c + 1, 5.0), jnp.zeros_like(x))

    assert found(run) == (0, 5)


def test_a_loop_in_a_loop() -> None:
    def run(x: Any) -> Any:
        turn = lambda _, c: lax.fori_loop(0, 3, lambda _, d: jnp.sin(d + 1), c)  # noqa: E731
        return lax.fori_loop(0, 2, turn, jnp.zeros_like(x))

    assert found(run) == about(-1, 1)


def test_a_branch_gives_either() -> None:
    run = lambda x: lax.cond(x[0, 0] > 0, lambda: jnp.tanh(x), lambda: jnp.full_like(x, 7))  # noqa: E731
    assert found(run) == about(-1, 7)


# ----------------------------------------- lifted


def attention(x: Any) -> Any:
    return jax.nn.softmax(x @ W) @ W


def test_softmax_is_lifted_and_keeps_its_list() -> None:
    for half in HALF_TYPES:
        classes = refined(attention, X, half=half)
        exponential = classes["exp"]
        assert exponential.kind is Kind.DENY
        assert exponential.stores_half
        assert exponential.entry.taint is Taint.NONE
        assert classes["div"].stores_half
        assert not classes["reduce_sum"].stores_half, "a statistic is worth its digits"


@pytest.mark.parametrize(
    "use",
    [
        lambda p: jnp.log(p),
        lambda p: jnp.log(jnp.sum(p, 1)),
        lambda p: jnp.ones_like(p) / p,
        lambda p: lax.rsqrt(2.0 * p),
        lambda p: lax.top_k(p, 2)[0],
        lambda p: jnp.sqrt(p.reshape(-1)),
        lambda p: jnp.log(jnp.tile(p, (2, 1))),
        lambda p: jnp.log(jnp.ones_like(p).at[jnp.arange(1)].set(p[:1])),
        lambda p: jnp.log(lax.reduce_window(p, 0.0, lax.max, (1, 2), (1, 2), "VALID")),
        lambda p: jnp.log(lax.cummax(p)),
        lambda p: jnp.log(jax.vmap(lambda row: lax.psum(row, "rows"), axis_name="rows")(p)),
        lambda p: jnp.log(jnp.tanh(p)),
        lambda p: jnp.log(jnp.fft.rfft(p).real),
    ],
)
def test_what_cancels_is_not_lifted(use: Callable[[Any], Any]) -> None:
    classes = refined(lambda x: use(jnp.exp(x - jnp.max(x, 1, keepdims=True)) * 0.5), X)
    assert not classes["exp"].stores_half


def test_a_denominator_that_is_never_small_is_no_close_look() -> None:
    classes = refined(lambda x: 1.0 / (1.75 + jnp.tanh(x)), X)
    assert classes["tanh"].stores_half
    assert not refined(lambda x: 1.0 / (1.0 + jnp.tanh(x)), X)["tanh"].stores_half


def test_a_log_softmax_is_not_lifted() -> None:
    classes = refined(lambda x: jnp.clip(jax.nn.log_softmax(x), -20.0, 0.0), X)
    assert not any(found.stores_half for found in classes.values())


def test_a_saturating_function_stops_a_taint() -> None:
    classes = refined(lambda x: jnp.tanh(x**3) * x, X)
    assert classes["tanh"].stores_half
    assert not classes["integer_pow"].stores_half
    assert not classes["mul"].stores_half


def test_a_square_is_lifted_in_bfloat16_unless_it_is_summed() -> None:
    assert refined(lambda x: jnp.tanh(x**3), X, half="bfloat16")["integer_pow"].stores_half
    assert refined(lambda x: jnp.tanh(x * x), X, half="bfloat16")["mul"].stores_half
    assert not refined(lambda x: jnp.mean(x * x, 1), X, half="bfloat16")["mul"].stores_half
    assert not refined(lambda x: jnp.tanh(x**3), X, half="float16")["integer_pow"].stores_half
    variance = refined(lambda x: jnp.mean(x**2, 1) - jnp.mean(x, 1) ** 2, X, half="bfloat16")
    assert not variance["integer_pow"].stores_half
    masked = refined(lambda x: jnp.sum(x**2 * (x > 0), 1), X, half="bfloat16")
    assert not masked["integer_pow"].stores_half
    gradient = refined(lambda x: jnp.sum(x**2 * (x @ W), 1), X, half="bfloat16")
    assert gradient["integer_pow"].stores_half


def test_what_a_comparison_selects_keeps_to_its_side() -> None:
    assert found(lambda x: jnp.where(x > 2.0, 0.0, x)) == (-math.inf, 2.0)
    assert found(lambda x: jnp.where(x <= 2.0, x, 0.0)) == (-math.inf, 2.0)
    assert found(lambda x: jnp.where(jnp.less(2.0, x), x, 3.0)) == (2.0, math.inf)
    assert found(lambda x: jnp.where(x > 2.0, x, 0.0)) == (0.0, math.inf)
    assert found(lambda x: jnp.where(x > 0.0, 0.0, x)) == (-math.inf, 2.0**-126), "compared as 0"
    assert found(lambda x: jnp.where(x[::-1] > 2.0, 0.0, x)) is None
    assert found(lambda x: jnp.where(x == 2.0, 0.0, x)) is None


def test_the_exponential_of_an_elu_is_stored_half() -> None:
    for activation in (jax.nn.elu, jax.nn.selu, jax.nn.celu):
        classes = refined(lambda x, f=activation: (x @ W + f(x @ W)) @ W, X, half="float16")
        assert classes["expm1"].stores_half
        assert classes["expm1"].entry.taint is Taint.NONE
    assert not refined(lambda x: jnp.expm1(x) @ W, X)["expm1"].stores_half
    logged = refined(lambda x: jnp.log(1.0 + jax.nn.elu(x @ W)) @ W, X)
    assert not logged["expm1"].stores_half


def test_small_scales_and_scalars_of_the_user_are_left_alone() -> None:
    tiny = refined(lambda x: jnp.exp(x - jnp.max(x, 1, keepdims=True)) * 1e-3, X)
    assert tiny["exp"].stores_half
    assert not tiny["mul"].stores_half, "half would hold it with few digits"


def test_a_pinned_node_is_left_to_the_user() -> None:
    assert not refined(attention, X, pins=Pins(full=("exp",)))["exp"].stores_half


# ----------------------------------------- denied


def test_a_square_that_overflows_is_denied() -> None:
    classes = refined(lambda x: x * x + 1.0, X, stated={0: (-1e3, 1e3)})
    assert classes["mul"].kind is Kind.DENY
    assert classes["mul"].rule == "overflow"
    assert classes["mul"].entry.taint is Taint.EVERYWHERE
    assert "1e+06" in classes["mul"].entry.reason
    assert classes["add"].rule == "overflow"
    assert refined(lambda x: x * x + 1.0, X, stated={0: (-200, 200)})["mul"].rule is None


def test_what_reads_too_large_a_value_is_denied_too_even_a_dot() -> None:
    classes = refined(lambda x: x @ W, X, stated={0: (0, 1e6)})
    assert classes["dot_general"].rule == "overflow"
    assert "reads a value that" in classes["dot_general"].entry.reason


def test_an_overflow_that_is_certain_needs_no_statement() -> None:
    classes = refined(lambda x: (jnp.exp(jax.nn.relu(x) + 12.0)) * 0.5, X)
    assert classes["exp"].rule == "overflow"
    assert classes["exp"].entry.taint is Taint.EVERYWHERE
    assert refined(lambda x: jnp.exp(jax.nn.relu(x)) * 0.5, X)["exp"].rule is None
    constant = refined(lambda x: x * jnp.full_like(x, 1e6), X)
    assert constant["mul"].rule == "constant", "rule 8 has spoken already"


def test_a_bound_from_adding_up_denies_nothing() -> None:
    stated = {0: (-100.0, 100.0), 1: (-100.0, 100.0)}
    classes = refined(lambda x, w: jnp.tanh(x @ w), X, W, stated=stated)
    assert classes["dot_general"].rule is None


def test_a_mask_is_saturated_as_before() -> None:
    classes = refined(lambda x: jnp.where(x > 0, x, -1e9), X, stated={0: (-1, 1)})
    assert classes["select_n"].kind is Kind.CLEAR


def test_a_fill_is_saturated_as_a_mask_is() -> None:
    for fill, rule in ((-1e9, None), (1e-9, "constant"), (2.0, None), (-math.inf, None)):
        classes = refined(lambda x, fill=fill: take(x, fill), X, stated={0: (-1, 1)})
        assert classes["gather"].rule == rule, fill


def test_bfloat16_holds_what_float32_holds() -> None:
    classes = refined(lambda x: x * x, X, half="bfloat16", stated={0: (-1e6, 1e6)})
    assert classes["square" if "square" in classes else "mul"].rule is None


# ----------------------------------------- measured


def test_a_measured_range_lifts_and_denies_with_headroom() -> None:
    function = lambda x: jnp.tanh(x**3)  # noqa: E731
    graph = graph_of(function)
    cube = next(n.outputs[0] for n in graph.nodes if n.op == "integer_pow")
    lifted = refined(function, X, measured={cube: Measured(-1e3, 1e3, 0.0)})
    assert lifted["integer_pow"].stores_half
    denied = refined(function, X, measured={cube: Measured(-3e4, 3e4, 0.0)})
    assert denied["integer_pow"].rule == "overflow"
    assert "4 times the measurement" in denied["integer_pow"].entry.reason
    small = refined(function, X, measured={cube: Measured(-1e3, 1e3, 0.2)})
    assert not small["integer_pow"].stores_half
    assert small["integer_pow"].rule is None
    underflow = refined(function, X, measured={cube: Measured(-1e-5, 1e-5, 0.9)})
    assert underflow["integer_pow"].rule == "underflow"
    assert "90%" in underflow["integer_pow"].entry.reason


# ----------------------------------------- assumptions


def test_names_of_arguments_and_of_operations() -> None:
    graph = graph_of(lambda x: jnp.tanh(x) + 1.0)
    given = assume(graph, [("x", (0, 1)), ("ta*", (0, 0.8))], ["x"], {})
    assert given.stated == {graph.inputs[0]: (0, 1), graph.nodes[0].outputs[0]: (0, 0.8)}
    ranges = find_ranges(graph, given)
    assert isinstance(ranges, Ranges)
    assert ranges.of(graph.outputs[0][0]) == about(1, math.tanh(1) + 1)


def test_a_name_that_nothing_bears() -> None:
    graph = graph_of(lambda x: jnp.tanh(x))
    with pytest.raises(RangeError, match="Did you mean 'tanh'"):
        assume(graph, [("tahn", (0, 1))], ["x"], {})
    assert assume(graph, [("tahn", (0, 1))], None, {}).stated == {}


def test_two_patterns_that_contradict_each_other() -> None:
    graph = graph_of(lambda x: jnp.tanh(x))
    with pytest.raises(RangeError, match="contradict each other"):
        assume(graph, [("x", (0, 1)), ("*", (2, 3))], ["x"], {})


def test_a_statement_that_contradicts_the_proof() -> None:
    graph = graph_of(lambda x: jnp.tanh(x))
    given = assume(graph, [("tanh", (2, 3))], ["x"], {})
    with pytest.raises(RangeError, match=r"'tanh' is stated to be between 2 and 3.*between -1 and"):
        find_ranges(graph, given)


def test_the_fingerprint_tells_functions_and_not_sizes() -> None:
    one, wider = graph_of(jnp.tanh, X), graph_of(jnp.tanh, X[:2])
    other = graph_of(jnp.sinh, X)
    assert fingerprint(one) == fingerprint(wider) != fingerprint(other)
    check_fingerprint(fingerprint(one), wider, "f")
    with pytest.raises(CalibrationError, match="another function"):
        check_fingerprint(fingerprint(one), other, "f")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: jnp.sum(x, 0), lambda x: jnp.sum(x, 1)),
        (lambda x: x.reshape(16, 8).T, lambda x: x.reshape(16, 8).transpose(0, 1)),
        (lambda x: jnp.broadcast_to(x[0], (16, 16)), lambda x: jnp.broadcast_to(x[0], (16, 16)).T),
        (lambda x: x * 3, lambda x: x * 4),
        (lambda x: x**3, lambda x: x**4),
        (lambda x: x + 1e-5, lambda x: x + 1e-6),
        (lambda x: x / 0.3, lambda x: x / 0.7),
        (
            lambda x: lax.dot_general(x, W, (((1,), (0,)), ((), ()))),
            lambda x: lax.dot_general(x, W, (((1,), (1,)), ((), ()))),
        ),
    ],
)
def test_the_fingerprint_tells_axes_and_numbers(one: Any, other: Any) -> None:
    assert fingerprint(graph_of(one)) != fingerprint(graph_of(other))
    assert fingerprint(graph_of(one)) == fingerprint(graph_of(one))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.mean(0.5 * x**2),
        lambda x: jnp.var(x, 0, ddof=1),
        lambda x: jnp.std(x),
        lambda x: jnp.sum(x) / x.shape[0],
        lambda x: jnp.sum(x) * (1 / x.shape[0]),
        lambda x: x * jnp.linspace(0.0, 1.0, x.shape[0])[:, None],
        lambda x: jnp.cumsum(x, 0)[-1] + jnp.median(x, 0),
        lambda x: jax.nn.softmax(x @ x.T / x.shape[0]),
        lambda x: jnp.zeros((x.shape[0], 4)).at[jnp.arange(x.shape[0]), 0].add(x[:, 0]),
    ],
)
def test_a_number_that_is_a_size_is_not_part_of_the_fingerprint(function: Any) -> None:
    gradient = jax.grad(lambda x: jnp.sum(function(x)))
    for program in (function, gradient):
        assert len({fingerprint(graph_of(program, np.ones((n, 16)))) for n in (2, 3, 8, 100)}) == 1


def test_a_measured_value_that_the_program_does_not_have() -> None:
    graph = graph_of(jnp.tanh)
    for value in (-1, 2):
        with pytest.raises(
            CalibrationError, match=f"contains value {value} of a program that has 2"
        ):
            assume(graph, (), None, {value: Measured(0.0, 1.0, 0.0)})
    assert assume(graph, (), None, {1: Measured(0.0, 1.0, 0.0)})


def test_nothing_known_changes_nothing() -> None:
    graph = graph_of(lambda x: x + x)
    classes = classify(graph, OpLists.for_half(ENTRIES, "float16"), HALF_TYPES["float16"])
    background = Background(graph, HALF_TYPES["float16"], find_ranges(graph))
    for safety_rule in SAFETY_RULES.values():
        assert safety_rule(classes, background) is classes
