"""Convolutions whose windows tile the image, bound as dots: which, and the same numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import duotone
from duotone.devices.table import TABLE
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.pipeline import paint_jaxpr, rewriter_of
from duotone.jaxpr.rules import windows
from duotone.policy.policy import Policy
from duotone.precision.rules import Rule
from tests.quick import in_turns

NHWC = ("NHWC", "HWIO", "NHWC")
ORDERS = [NHWC, ("NCHW", "OIHW", "NCHW"), ("HWCN", "HWOI", "CNHW"), ("CHWN", "IHWO", "HWNC")]
CPU = TABLE["cpu-bfloat16"]
CPU_OF_ALL = dataclasses.replace(CPU, profitability=TABLE["gpu"].profitability)
"""Who names a half type has small arrays painted too."""


def arrays(order: tuple[str, str, str], window: tuple[int, int]) -> tuple[Any, Any]:
    """An image of 8 by 6 with 16 features, and filters, in float32 numbers that bfloat16 holds."""
    sizes = {"N": 4, "H": 8, "W": 6, "C": 16}, {"H": window[0], "W": window[1], "I": 16, "O": 12}
    keys = jax.random.split(jax.random.key(0), 2)
    return tuple(
        jax.random.normal(key, [each[letter] for letter in spec])
        .astype("bfloat16")
        .astype("float32")
        for key, each, spec in zip(keys, sizes, order, strict=False)
    )  # type: ignore[return-value]


def convolution(order: tuple[str, str, str] = NHWC, **settings: Any) -> Any:
    settings = {"window_strides": (1, 1), "padding": "VALID", **settings}

    def convolve(image: Any, filters: Any) -> Any:
        return lax.conv_general_dilated(image, filters, dimension_numbers=order, **settings)

    return convolve


def rewritten(
    function: Any, *args: Any, removed: tuple[str, ...] = (), forms: Any = CPU_OF_ALL
) -> Any:
    """The program that runs, and its results."""
    policy = Policy(optimizations_remove=removed)
    jaxpr = jax.make_jaxpr(function)(*args)
    rewriter = rewriter_of(paint_jaxpr(jaxpr, policy, HALF_TYPES["bfloat16"], forms=forms))
    return running(jax.make_jaxpr(rewriter)(*args)), jax.jit(rewriter)(*args)


def running(program: Any) -> str:
    """The equations that a compiler keeps: it drops values that only derivatives need."""
    needed, found = set(program.jaxpr.outvars), list[str]()
    for eqn in reversed(program.jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            only_derivative = eqn.primitive.name == "duotone_instead"
            used = eqn.invars[1:] if only_derivative else eqn.invars
            needed.update(var for var in used if not hasattr(var, "val"))
            found.append(str(eqn))
    return "\n".join(reversed(found))


def in_float64(function: Any, *args: Any) -> Any:
    """The results as NumPy arrays."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(function)(*map(np.float64, args)))


TILING = [
    ((1, 1), {}),
    ((1, 1), {"padding": "SAME"}),
    ((2, 3), {"window_strides": (2, 3)}),
    ((2, 1), {"window_strides": (2, 1)}),
    ((8, 6), {}),
    ((8, 1), {"window_strides": (5, 1)}),
    ((2, 3), {"rhs_dilation": (4, 2)}),
    ((2, 3), {"window_strides": (1, 3), "rhs_dilation": (4, 1)}),
    ((1, 1), {"window_strides": (2, 2)}),
    ((1, 1), {"window_strides": (3, 5)}),
    ((1, 1), {"window_strides": (3, 2), "padding": ((-1, 0), (0, -3))}),
    ((3, 4), {"window_strides": (3, 4)}),
    ((4, 2), {"rhs_dilation": (2, 5)}),
    ((3, 6), {"rhs_dilation": (2, 1), "padding": ((-1, -2), (0, 0))}),
    ((1, 1), {"lhs_dilation": (2, 2), "padding": ((0, 0), (0, 0))}),
    ((1, 1), {"lhs_dilation": (2, 3), "padding": ((1, 0), (0, 2))}),
    ((1, 6), {"lhs_dilation": (4, 1), "padding": ((0, 3), (0, 0))}),
]


@pytest.mark.parametrize(("case", "order"), in_turns(TILING, ORDERS))
def test_windows_that_tile_the_image_give_a_dot_with_the_same_sums(
    case: tuple[tuple[int, int], dict[str, Any]], order: tuple[str, str, str]
) -> None:
    window, settings = case
    image, filters = arrays(order, window)
    convolve = convolution(order, **settings)
    program, (result,) = rewritten(convolve, image, filters)
    assert "dot_general" in program
    assert "conv_general_dilated" not in program
    exact = in_float64(convolve, image, filters)
    terms = filters.size // 12
    assert result.shape == exact.shape
    assert np.abs(result - exact).max() <= (2**-8 + terms * 2**-24) * np.abs(exact).max()


OTHERS = [
    ((3, 3), {"padding": "SAME"}, "they overlap"),
    ((2, 3), {"window_strides": (3, 3)}, "some elements between windows are left out"),
    ((2, 2), {"window_strides": (2, 2), "padding": ((1, 1), (0, 0))}, "they reach beyond"),
    ((2, 3), {"lhs_dilation": (2, 2), "padding": ((0, 0), (0, 0))}, "windows cover several phases"),
    (
        (1, 1),
        {"lhs_dilation": (2, 2), "window_strides": (2, 2), "padding": ((0, 0), (0, 0))},
        "it takes positions apart again",
    ),
    ((1, 1), {"lhs_dilation": (2, 2), "padding": ((-1, 0), (0, 0))}, "zeros are cut off"),
    ((2, 3), {"rhs_dilation": (2, 2)}, "they overlap, being thin"),
]


@pytest.mark.parametrize(("window", "settings", "why"), OTHERS)
def test_other_convolutions_stay(
    window: tuple[int, int], settings: dict[str, Any], why: str
) -> None:
    image, filters = arrays(NHWC, window)
    program, (result,) = rewritten(convolution(**settings), image, filters)
    assert "conv_general_dilated" in program, why
    exact = convolution(**settings)(image, filters)
    assert np.abs(result - exact).max() <= 2**-7 * np.abs(exact).max()


def test_groups_stay() -> None:
    image = jnp.ones((4, 8, 6, 16))
    groups: list[dict[str, Any]] = [{"feature_group_count": 4}, {"batch_group_count": 2}]
    for settings in groups:
        inside = 16 // settings.get("feature_group_count", 1)
        filters = jnp.ones((1, 1, inside, 12))
        program, _ = rewritten(convolution(**settings), image, filters)
        assert "conv_general_dilated" in program


@pytest.mark.parametrize("order", ORDERS, ids="/".join)
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 4), (7, 5)])
def test_gradients_of_a_one_by_one_convolution_are_dots(
    strides: tuple[int, int], order: tuple[str, str, str]
) -> None:
    image, filters = arrays(order, (1, 1))
    convolve = convolution(order, window_strides=strides, padding="SAME")
    gradient = jax.grad(lambda x, w: (convolve(x, w) ** 2).sum(), argnums=(0, 1))
    program, found = rewritten(gradient, image, filters)
    assert program.count("dot_general") == 3
    assert "conv_general_dilated" not in program
    exact = in_float64(gradient, image, filters)
    for mine, wanted in zip(found, exact, strict=True):
        assert np.abs(mine - wanted).max() <= 2**-7 * np.abs(wanted).max()


def test_the_gradient_of_patches_filters_is_a_dot() -> None:
    image, filters = arrays(NHWC, (2, 3))
    convolve = convolution(window_strides=(2, 3))
    gradient = jax.grad(lambda w: (convolve(image, w) ** 2).sum())
    program, _ = rewritten(gradient, filters)
    assert program.count("dot_general") == 2
    assert "conv_general_dilated" not in program


def test_the_optimization_can_be_switched_off_and_is_of_cpus_only() -> None:
    image, filters = arrays(NHWC, (1, 1))
    for program, _ in (
        rewritten(convolution(), image, filters, removed=("window_dots",)),
        rewritten(convolution(), image, filters, forms=TABLE["gpu"]),
    ):
        assert "conv_general_dilated" in program
        assert "dot_general" not in program


@pytest.mark.parametrize(
    ("removed", "rule"), [((), Rule.WIDE), (("window_dots",), Rule.DEVICE)], ids=["on", "off"]
)
def test_only_such_convolutions_gain_from_half_on_a_cpu(
    removed: tuple[str, ...], rule: Rule
) -> None:
    image, filters = jnp.ones((8, 28, 28, 64)), jnp.ones((1, 1, 64, 256))
    jaxpr = jax.make_jaxpr(convolution())(image, filters)
    policy = Policy(optimizations_remove=removed)
    painted = paint_jaxpr(jaxpr, policy, HALF_TYPES["bfloat16"], forms=CPU)
    assert painted.painting.rules == (rule,)
    wide = jax.make_jaxpr(convolution(padding="SAME"))(image, jnp.ones((3, 3, 64, 64)))
    assert paint_jaxpr(wide, Policy(), HALF_TYPES["bfloat16"], forms=CPU).painting.rules == (
        Rule.DEVICE,
    )


def test_a_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places and windows swapped: the shapes fit, the numbers do not."""
    parts = dict(windows._PARTS)
    parts[windows.Axis.POSITIONS_WINDOW] = parts[windows.Axis.WINDOW_POSITIONS]
    monkeypatch.setattr(windows, "_PARTS", parts)
    with pytest.raises(AssertionError):
        test_windows_that_tile_the_image_give_a_dot_with_the_same_sums(
            ((2, 3), {"window_strides": (2, 3)}), NHWC
        )


def test_vmap_and_derivatives_of_the_rewritten_function() -> None:
    image, filters = arrays(NHWC, (1, 1))
    convolve = convolution()
    painted = duotone.autocast(convolve, dtype="bfloat16")
    mapped = jax.vmap(painted, in_axes=(0, None))(image[:, None], filters)
    np.testing.assert_allclose(mapped[:, 0], painted(image, filters), rtol=2**-7, atol=0.05)
    tangent = jax.jvp(painted, (image, filters), (image, filters))[1]
    np.testing.assert_allclose(tangent, 2 * convolve(image, filters), rtol=2**-5, atol=0.2)


@pytest.mark.parametrize(
    ("removed", "rounded"), [((), False), (("weight_gradients",), True)], ids=["on", "off"]
)
def test_who_differentiates_gets_the_filters_gradient_unrounded(
    removed: tuple[str, ...], rounded: bool
) -> None:
    """As of weights of dots; in bfloat16 it would be a bfloat16 number."""
    image, filters = arrays(NHWC, (1, 1))
    jaxpr = jax.make_jaxpr(convolution())(image, filters)
    policy = Policy(optimizations_remove=removed)
    painted = paint_jaxpr(jaxpr, policy, HALF_TYPES["bfloat16"], forms=CPU_OF_ALL)
    rewriter = rewriter_of(painted)
    gradient = jax.grad(lambda w: (rewriter(image, w)[0] ** 2).sum())(filters)
    assert (gradient == gradient.astype("bfloat16").astype("float32")).all() == rounded
    loss = jax.grad(lambda w, x: (convolution()(x, w) ** 2).sum())
    exact = in_float64(loss, filters, image)
    assert np.abs(gradient - exact).max() <= 2**-7 * np.abs(exact).max()
