"""Every optimization on every device: found where it gains, explained, and switched off."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import duotone
from duotone.devices.table import TABLE
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.pipeline import paint_jaxpr
from duotone.policy.policy import Policy
from duotone.precision.optimize.optimizations import OPTIMIZATIONS, REGISTRY
from duotone.precision.record import Record, make_record
from tests.jaxpr import test_rows
from tests.jaxpr.test_materialized import BIAS as JOINT
from tests.jaxpr.test_materialized import WEIGHTS as HEADS
from tests.jaxpr.test_materialized import X as TOKENS
from tests.jaxpr.test_materialized import attention
from tests.jaxpr.test_orders import grouped
from tests.jaxpr.test_sums import arguments, recurrent
from tests.precision.test_factors import BIAS, SCALE, WEIGHTS, X, normed
from tests.precision.test_picks import LABELS, loss
from tests.precision.test_picks import WEIGHTS as WORDS
from tests.precision.test_picks import X as STATES
from tests.precision.test_trilinear import ARRAYS, gradient, plain

ROOT = Path(__file__).parents[1]
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def activated(function: Callable[[Any], Any]) -> Callable[..., Any]:
    """The gradient of two dots with a function between."""
    return jax.grad(lambda w, x: ((function(x @ w) @ w.T) ** 2).sum(), argnums=(0, 1))


SQUARE = (jnp.ones((32, 64)), jnp.ones((16, 32)))
GROUPED = (jnp.ones((2, 16, 2, 4, 8)), jnp.ones((2, 16, 2, 8)), jnp.ones((2, 16, 2, 8)))


def grouped_loss(*arrays: Any) -> Any:
    return jnp.sum(jnp.sin(grouped(*arrays)))


ROWS = (test_rows.W, test_rows.BIAS, test_rows.X)


def pointwise(image: Any, filters: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(image, filters, (1, 1), "SAME", dimension_numbers=numbers)


def depthwise(image: Any, filters: Any) -> Any:
    numbers, count = ("NHWC", "HWIO", "NHWC"), image.shape[-1]
    return jax.lax.conv_general_dilated(
        image, filters, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=count
    )


def pooled(image: Any) -> Any:
    window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
    return jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, window, strides, "SAME")


def spread(image: Any, filters: Any) -> Any:
    return jax.lax.conv_transpose(image, filters, (2, 2), "SAME")


def causal(image: Any, filters: Any) -> Any:
    numbers, padding = ("NHWC", "HWIO", "NHWC"), ((4, 0), (4, 0))
    return jax.lax.conv_general_dilated(
        image, filters, (1, 1), padding, rhs_dilation=(2, 2), dimension_numbers=numbers
    )


def causal_loss(image: Any, filters: Any) -> Any:
    return jnp.sum(jnp.sin(causal(image, filters)))


NORM: Program = (jax.grad(normed, argnums=(0, 1, 2)), (WEIGHTS, SCALE, BIAS, X))
PROGRAMS: dict[str, Program] = {
    "trilinear": (gradient(plain), ARRAYS),
    "factors": NORM,
    "passing_factors": NORM,
    "picks": (loss, (WORDS, STATES, LABELS)),
    "one_hot": (jax.grad(loss), (WORDS, STATES, LABELS)),
    "loop_sums": (jax.grad(recurrent), arguments()),
    "dot_orders": (jax.grad(grouped_loss, argnums=(0, 1, 2)), GROUPED),
    "swapped_rows": (jax.grad(lambda w, x: (x @ w).sum()), SQUARE),
    "window_dots": (pointwise, (jnp.ones((2, 4, 4, 8)), jnp.ones((1, 1, 8, 16)))),
    "phases": (spread, (jnp.ones((2, 4, 4, 8)), jnp.ones((3, 3, 8, 16)))),
    "library_convolutions": (pointwise, (jnp.ones((2, 4, 4, 8)), jnp.ones((3, 3, 8, 16)))),
    "channelwise_sums": (depthwise, (jnp.ones((2, 4, 4, 8)), jnp.ones((3, 3, 1, 8)))),
    "padded_images": (pointwise, (jnp.ones((2, 2, 2, 8)), jnp.ones((3, 3, 8, 16)))),
    "transposed_convolutions": (spread, (jnp.ones((2, 4, 4, 8)), jnp.ones((3, 3, 8, 16)))),
    "dilated_filters": (causal, (jnp.ones((2, 4, 4, 8)), jnp.ones((3, 3, 8, 16)))),
    "dilated_gradients": (
        jax.grad(causal_loss, 1),
        (jnp.ones((2, 4, 4, 8)), jnp.ones((3, 3, 8, 16))),
    ),
    "pooling": (pooled, (jnp.ones((2, 4, 4, 8)),)),
    "weight_gradients": (jnp.matmul, SQUARE[::-1]),
    "recompute": (activated(jax.nn.gelu), SQUARE),
    "recompute_very_expensive": (activated(lambda x: jax.nn.gelu(x, approximate=False)), SQUARE),
    "normalized_softmax": (gradient(plain), ARRAYS),
    "free_scales": (gradient(plain), ARRAYS),
    "row_statistics": (test_rows.step(test_rows.dropped), ROWS),
    "rounded_once": (activated(jax.nn.log_softmax), SQUARE),
    "materialize_widened": (gradient(plain), ARRAYS),
    "materialize_rows": (test_rows.step(test_rows.biased), ROWS),
    "materialize_parts": (jax.grad(attention, argnums=(0, 1, 2)), (HEADS, JOINT, TOKENS)),
}
"""By name: a program that a device which has the optimization carries out in its form."""
DEVICES = [device for device in TABLE if device != "other"]


def record_of(program: Program, device: str, removed: tuple[str, ...] = ()) -> Record:
    function, args = program
    policy = Policy(optimizations_remove=removed)
    half = HALF_TYPES["float16" if device == "cpu-float16" else "bfloat16"]
    forms = TABLE[device].__class__(
        **{**_fields(device), "profitability": TABLE["gpu"].profitability}
    )
    painted = paint_jaxpr(jax.make_jaxpr(function)(*args), policy, half, forms=forms)
    return make_record(
        painted.built.graph,
        painted.classes,
        painted.painting,
        painted.plan,
        half,
        painted.optimizations,
    )


def _fields(device: str) -> dict[str, Any]:
    return {name: getattr(TABLE[device], name) for name in TABLE[device].__slots__}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIMIZATIONS)
def test_an_optimization_is_reported_where_a_device_has_it_and_nowhere_else(
    name: str, device: str
) -> None:
    has = name in TABLE[device].optimizations
    record = record_of(PROGRAMS[name], device)
    told = {
        optimization: reason for o in record.operations for optimization, reason in o.optimizations
    }
    assert (name in told) is has
    assert not has or told[name]
    assert record.summary.optimizations.get(name, 0) == sum(
        name == optimization for o in record.operations for optimization, _ in o.optimizations
    )
    if has:
        assert name not in record_of(PROGRAMS[name], device, (name,)).summary.optimizations


def test_every_optimization_is_where_the_registry_says() -> None:
    package = Path(duotone.__file__).parent
    for entry in REGISTRY:
        assert ast.get_docstring(ast.parse((package / entry.file).read_text()))
        assert any(entry.name in row.optimizations for row in TABLE.values()), entry.name
        assert (entry.match is None) == (entry.of is None)


def test_the_catalogue_is_up_to_date() -> None:
    """If not: ``python scripts/optimizations_page.py``."""
    script = runpy.run_path(str(ROOT / "scripts" / "optimizations_page.py"))
    assert script["page"]() == (ROOT / "docs" / "optimizations.md").read_text(encoding="utf-8")


def test_a_switched_off_optimization_is_not_carried_out() -> None:
    """By way of ``autocast``, on this device."""

    def program(policy: Policy) -> str:
        function, args = PROGRAMS["recompute"]
        painted = duotone.autocast(function, dtype="float16", policy=policy)
        return str(jax.make_jaxpr(painted)(*args))

    with_it, without = program(Policy()), program(Policy(optimizations_remove=["recompute"]))
    assert (with_it.count(" tanh "), without.count(" tanh ")) == (2, 1)


def test_the_text_tells_what_each_optimization_gains() -> None:
    function, args = PROGRAMS["recompute"]
    seen = duotone.explain(function, *args, dtype="float16")
    shown = str(seen.rows())
    assert " +recompute" in shown
    assert "+recompute: not kept: recomputed for later readers" in shown
    assert "recompute" in str(seen)
