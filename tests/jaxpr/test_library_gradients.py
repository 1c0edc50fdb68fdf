"""Convolutions as gradients of other convolutions: the same numbers, in forms that cuDNN has."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from duotone.devices.table import TABLE
from duotone.jaxpr.rules import library_gradients
from tests.jaxpr import test_convolutions as others
from tests.jaxpr.test_windows import NHWC, ORDERS, convolution, in_float64, rewritten
from tests.quick import in_turns

GPU = TABLE["gpu"]
NAMES = ("transposed_convolutions", "dilated_filters", "dilated_gradients")
SPREAD: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((3, 3), {"lhs_dilation": (2, 2), "padding": ((1, 2), (2, 1))}),
    ((2, 4), {"lhs_dilation": (2, 3), "padding": ((1, 1), (3, 3))}),
    ((5, 5), {"lhs_dilation": (3, 1), "padding": ((4, 1), (0, 3))}),
    ((2, 2), {"lhs_dilation": (3, 4), "padding": ((-1, 0), (0, -3))}),
    ((1, 1), {"lhs_dilation": (2, 2), "padding": ((1, 0), (0, 0))}),
]
DILATED: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((2, 3), {"rhs_dilation": (3, 2), "padding": ((3, 0), (4, 0))}),
    ((3, 3), {"rhs_dilation": (2, 2), "padding": "SAME"}),
    ((2, 2), {"rhs_dilation": (1, 4), "padding": ((0, 0), (1, 5))}),
    ((3, 2), {"rhs_dilation": (2, 5), "padding": ((5, -1), (0, 4))}),
    ((2, 2), {"rhs_dilation": (6, 5), "padding": "VALID"}),
]


def arrays(order: tuple[str, str, str], window: tuple[int, int]) -> tuple[Any, Any]:
    """An image of 7 by 6 with 4 features, and filters that make 5."""
    return others.arrays(order, window, inside=4, made=5)


def check(function: Any, *args: Any, removed: tuple[str, ...] = (), half: bool = False) -> str:
    """Compares results with float64's, and returns the program."""
    if half:
        args = tuple(x.astype("bfloat16").astype("float32") for x in args)
    off = {"forms": GPU, "removed": removed}
    program, found = rewritten(function if half else in_float32(function), *args, **off)
    exact = jax.tree.leaves(in_float64(function, *args))
    for mine, wanted in zip(jax.tree.leaves(found), exact, strict=True):
        assert mine.shape == wanted.shape
        assert np.abs(mine - wanted).max() <= (2**-6 if half else 2e-6) * np.abs(wanted).max()
    return program


def in_float32(function: Any) -> Any:
    """A function whose convolutions stay float32, since the user asked for precision."""

    def called(*args: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*args)

    return called


def gradients(convolve: Any) -> Any:
    return jax.grad(lambda x, w: jnp.sin(convolve(x, w)).sum(), (0, 1))


CASES = [
    *[(NHWC, *each) for each in (*SPREAD, *DILATED)],
    *[(order, *each) for order in ORDERS[1:] for each in (SPREAD[0], DILATED[0])],
]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("case", "order", "groups"),
    in_turns([SPREAD[0], SPREAD[1], DILATED[0], DILATED[3]], ORDERS, [2, 4]),
)
def test_same_numbers_in_groups(
    case: tuple[tuple[int, int], dict[str, Any]],
    order: tuple[str, str, str],
    groups: int,
    half: bool,
) -> None:
    window, settings = case
    convolve = convolution(order, feature_group_count=groups, **settings)
    args = others.arrays(order, window, inside=4 // groups, made=12)
    program = check(gradients(convolve), *args, half=half)
    if order in ORDERS[:2]:  # the others count as convolutions of images
        assert gaps_of_filters(program) == set()
        off = check(gradients(convolve), *args, half=half, removed=NAMES)
        gaps = "window_strides" if "rhs_dilation" in settings else "lhs_dilation"
        assert gaps_of_filters(off) == {gaps}


def gaps_of_filters(program: str) -> set[str]:
    """What is not 1 of the image in the gradients of filters in groups, which must be some."""
    found = re.findall(r"conv_general_dilated\[[^]]*batch_group_count=[24][^]]*", program)
    assert found
    return {
        name
        for name in ("window_strides", "lhs_dilation")
        if any(re.search(rf"{name}=\((?!1, 1)", each) for each in found)
    }


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("order", "window", "settings"), CASES)
def test_same_numbers_forward_and_backward(
    order: tuple[str, str, str], window: tuple[int, int], settings: dict[str, Any], half: bool
) -> None:
    convolve = convolution(order, **settings)

    def both(x: Any, w: Any) -> Any:
        return convolve(x, w), gradients(convolve)(x, w)

    check(both, *arrays(order, window), half=half)


def test_the_gradient_of_a_transposed_convolution_is_one_of_strided_filters() -> None:
    convolve = convolution(**SPREAD[0][1])
    args = arrays(NHWC, (3, 3))
    program = check(gradients(convolve), *args)
    assert "window_strides=(2, 2)" in program  # of the image, which is a strided convolution
    assert program.count("rhs_dilation=(2, 2)") == 1  # of the filters, without a dilated image
    assert "lhs_dilation=(2, 2)" not in re.findall(r"conv_general_dilated\[[^]]*", program)[-1]
    off = check(gradients(convolve), *args, removed=NAMES)
    assert off.count("rhs_dilation=(2, 2)") == 0


def test_filters_of_a_transposed_convolution_are_reversed() -> None:
    convolve = convolution(**SPREAD[0][1])
    args = arrays(NHWC, (3, 3))
    assert check(convolve, *args).count("rev[") == 2
    assert "rev[" not in check(convolve, *args, removed=NAMES)


def test_the_gradient_of_dilated_filters_has_no_strides() -> None:
    convolve = convolution(**DILATED[0][1])
    args = arrays(NHWC, (2, 3))

    def of_filters(x: Any, w: Any) -> Any:
        return jax.grad(lambda w: jnp.sin(convolve(x, w)).sum())(w)

    assert "window_strides=(3, 2)" not in check(of_filters, *args)
    assert "window_strides=(3, 2)" in check(of_filters, *args, removed=NAMES)


@pytest.mark.parametrize("before", [False, True], ids=["padding", "pad"])
def test_dilated_filters_find_a_padded_image(before: bool) -> None:
    padding: Any = "VALID" if before else ((0, 0), (4, 0))
    convolve = convolution(rhs_dilation=(1, 4), padding=padding)

    def causal(x: Any, w: Any) -> Any:
        return convolve(jnp.pad(x, ((0, 0), (0, 0), (4, 0), (0, 0))) if before else x, w)

    args = arrays(NHWC, (1, 2))
    program = check(causal, *args)
    assert "optimization_barrier" in program
    assert "padding=((0, 0), (0, 0))" in program
    assert "optimization_barrier" not in check(causal, *args, removed=NAMES)


def test_even_padding_and_strides_stay() -> None:
    args = arrays(NHWC, (3, 3))
    settings: list[dict[str, Any]] = [{}, {"window_strides": (2, 2)}, {"rhs_dilation": (2, 2)}]
    for each in settings:
        assert "barrier" not in check(convolution(padding="SAME", **each), *args)


def test_a_fault_in_a_form_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_gradients.lax, "rev", lambda array, axes: array)
    with pytest.raises(AssertionError):
        test_same_numbers_forward_and_backward(NHWC, *SPREAD[0], half=False)


def test_the_users_accumulators_stay() -> None:
    def convolve(x: Any, w: Any) -> Any:
        half = (x.astype("bfloat16"), w.astype("bfloat16"))
        settings = {"dimension_numbers": NHWC, **SPREAD[0][1]}
        return lax.conv_general_dilated(
            *half, (1, 1), preferred_element_type=jnp.float32, **settings
        )

    check(convolve, *(x.astype("bfloat16").astype("float32") for x in arrays(NHWC, (3, 3))))


def test_second_derivatives_and_batches() -> None:
    for window, settings in (SPREAD[0], DILATED[0]):
        convolve = convolution(**settings)

        def twice(x: Any, w: Any, convolve: Any = convolve) -> Any:
            def slope(w: Any) -> Any:
                first = jax.grad(lambda x, w: (convolve(x, w) ** 2).sum(), (0, 1))(x, w)
                return first[0].sum() + first[1].sum()

            return jax.grad(slope)(w), jax.vmap(convolve, (0, None))(jnp.stack([x, -x]), w)

        check(twice, *arrays(NHWC, window))
