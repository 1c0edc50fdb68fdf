"""Convolutions of an image with zeros between its elements, bound without the zeros."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from duotone.devices.table import TABLE
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.pipeline import paint_jaxpr, rewriter_of
from duotone.jaxpr.rules import phases
from duotone.policy.policy import Policy
from tests.jaxpr.test_windows import NHWC, ORDERS, arrays, convolution, in_float64
from tests.quick import in_turns

FORMS = dataclasses.replace(TABLE["cpu-bfloat16-options"], profitability=TABLE["gpu"].profitability)
"""The row in which ``phases`` is on, and small arrays are painted too."""


ROUNDED = {"xla_allow_excess_precision": False}
"""Every rounding to half is carried out, as one operation after the other does."""


def rewritten(function: Any, *args: Any, removed: tuple[str, ...] = ()) -> tuple[str, Any]:
    """The program that runs, and its results."""
    policy = Policy(optimizations_remove=removed)
    jaxpr = jax.make_jaxpr(function)(*args)
    rewriter = rewriter_of(paint_jaxpr(jaxpr, policy, HALF_TYPES["bfloat16"], forms=FORMS))
    compiled = jax.jit(rewriter, compiler_options=ROUNDED)
    return str(jax.make_jaxpr(rewriter)(*args)), compiled(*args)


def check(function: Any, *args: Any) -> str:
    """Compares results with float64's, and returns the program."""
    program, found = rewritten(function, *args)
    exact = in_float64(lambda *arrays: jax.tree.leaves(function(*arrays)), *args)
    for mine, wanted in zip(found, exact, strict=True):
        assert mine.shape == wanted.shape
        assert np.abs(mine - wanted).max() <= 2**-7 * np.abs(wanted).max()
    return program


DILATED = [
    ((3, 3), (2, 2), ((1, 2), (2, 1))),
    ((3, 2), (2, 1), ((0, 0), (0, 1))),
    ((4, 4), (2, 3), ((3, 3), (2, 5))),
    ((2, 2), (3, 4), ((1, 0), (0, 3))),
    ((5, 3), (2, 2), ((-1, -2), (4, -1))),
    ((3, 3), (2, 2), ((9, 8), (0, 0))),
    ((1, 2), (2, 2), ((-1, 0), (0, 0))),
]


@pytest.mark.parametrize(("case", "order"), in_turns(DILATED, ORDERS))
def test_dilated_images_give_the_same_sums_without_zeros(
    case: tuple[Any, Any, Any], order: tuple[str, str, str]
) -> None:
    window, apart, padding = case
    image, filters = arrays(order, window)
    program = check(convolution(order, lhs_dilation=apart, padding=padding), image, filters)
    assert "conv_general_dilated" in program
    assert "lhs_dilation=(1, 1)" in program
    assert f"lhs_dilation={apart}" not in program


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((2, 0), (1, 3))])
@pytest.mark.parametrize(
    ("window", "strides"), [((3, 3), (2, 2)), ((4, 2), (3, 2)), ((5, 4), (2, 1))]
)
def test_gradients_of_strided_convolutions(
    window: tuple[int, int], strides: tuple[int, int], padding: Any
) -> None:
    image, filters = arrays(NHWC, window)
    convolve = convolution(window_strides=strides, padding=padding)
    program = check(
        jax.grad(lambda x, w: (convolve(x, w) ** 2).sum(), argnums=(0, 1)), image, filters
    )
    assert f"lhs_dilation={strides}" not in program


def test_one_and_three_spatial_axes() -> None:
    for letters, size in (("H", (9,)), ("HWD", (5, 4, 3))):
        order = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
        keys = jax.random.split(jax.random.key(1), 2)
        ones = (1,) * len(letters)
        image = jax.random.normal(keys[0], (2, *size, 8))
        filters = jax.random.normal(keys[1], (*(3 * one for one in ones), 8, 8))
        twice = tuple(2 * one for one in ones)

        def convolve(x: Any, w: Any, order: Any = order, twice: Any = twice) -> Any:
            return lax.conv_general_dilated(x, w, twice, "SAME", dimension_numbers=order)

        gradient = jax.grad(lambda x, w, f=convolve: (f(x, w) ** 2).sum())
        assert f"lhs_dilation={twice}" not in check(gradient, image, filters)


def test_a_transposed_convolution() -> None:
    image, filters = arrays(NHWC, (4, 4))
    program = check(
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=NHWC),
        image,
        filters,
    )
    assert "lhs_dilation=(2, 2)" not in program


def test_derivatives_of_the_rewritten_program() -> None:
    image, filters = arrays(NHWC, (3, 3))
    convolve = convolution(lhs_dilation=(2, 2), padding=((1, 2), (1, 2)))
    jaxpr = jax.make_jaxpr(convolve)(image, filters)
    rewriter = rewriter_of(paint_jaxpr(jaxpr, Policy(), HALF_TYPES["bfloat16"], forms=FORMS))
    found = jax.grad(lambda x, w: (rewriter(x, w)[0] ** 2).sum(), argnums=(0, 1))(image, filters)
    exact = in_float64(
        jax.grad(lambda x, w: (convolve(x, w) ** 2).sum(), argnums=(0, 1)), image, filters
    )
    for mine, wanted in zip(found, exact, strict=True):
        assert np.abs(mine - wanted).max() <= 2**-6 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "settings",
    [
        {"lhs_dilation": (2, 2), "window_strides": (2, 1)},
        {"lhs_dilation": (2, 2), "rhs_dilation": (1, 2)},
        {"rhs_dilation": (2, 2)},
    ],
)
def test_other_convolutions_stay(settings: dict[str, Any]) -> None:
    image, filters = arrays(NHWC, (3, 2))
    program = check(convolution(padding=((1, 1), (1, 1)), **settings), image, filters)
    assert program.count("conv_general_dilated") == 1


def test_groups_stay_and_the_optimization_can_be_switched_off() -> None:
    dilated: dict[str, Any] = {"lhs_dilation": (2, 2), "padding": ((1, 1), (1, 1))}
    grouped = convolution(feature_group_count=4, **dilated)
    image, filters = arrays(NHWC, (3, 3))
    assert "lhs_dilation=(2, 2)" in rewritten(grouped, image, jnp.ones((3, 3, 4, 12)))[0]
    program, _ = rewritten(convolution(**dilated), image, filters, removed=("phases",))
    assert "lhs_dilation=(2, 2)" in program


def test_a_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The phases are in the wrong order: the shapes fit, the numbers do not."""
    right = phases._phases
    monkeypatch.setattr(phases, "_phases", lambda *args: reversed(list(right(*args))))
    with pytest.raises(AssertionError):
        test_a_transposed_convolution()
