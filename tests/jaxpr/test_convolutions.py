"""Convolutions that XLA's CPU backend computes one product at a time: the same numbers, faster."""

from __future__ import annotations

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
from duotone.jaxpr.rules import convolutions
from duotone.policy.policy import Policy
from tests.jaxpr.test_windows import CPU, NHWC, ORDERS, convolution, in_float64, rewritten

FORMS = [TABLE[name] for name in ("cpu", "cpu-bfloat16", "cpu-bfloat16-options")]


def arrays(
    order: tuple[str, str, str],
    window: tuple[int, int],
    sizes: tuple[int, int] = (7, 6),
    inside: int = 1,
    made: int = 4,
) -> tuple[Any, Any]:
    """An image with 4 features, and filters that read ``inside`` and make ``made``, in float32."""
    letters = {"N": 2, "H": sizes[0], "W": sizes[1], "C": 4}
    filters = {"H": window[0], "W": window[1], "I": inside, "O": made}
    keys = jax.random.split(jax.random.key(0), 2)
    return tuple(
        jax.random.normal(key, [each[letter] for letter in spec])
        for key, each, spec in zip(keys, (letters, filters), order, strict=False)
    )  # type: ignore[return-value]


def check(function: Any, *args: Any, forms: Any = CPU, removed: tuple[str, ...] = ()) -> str:
    """Compares float32 results with float64's, and returns the program."""
    program, found = rewritten(function, *args, removed=removed, forms=forms)
    exact = jax.tree.leaves(in_float64(function, *args))
    for mine, wanted in zip(found, exact, strict=True):
        assert mine.shape == wanted.shape
        assert mine.dtype == np.float32
        assert np.abs(mine - wanted).max() <= 2e-6 * np.abs(wanted).max()
    return program


def with_gradients(convolve: Any, argnums: Any = (0, 1)) -> Any:
    """Returns a function of the convolution's result and of the gradients of its sines."""
    gradients = jax.grad(lambda x, w: jnp.sin(convolve(x, w)).sum(), argnums)
    return lambda x, w: (convolve(x, w), gradients(x, w))


SETTINGS: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((3, 3), {"padding": "SAME"}),
    ((3, 2), {}),
    ((1, 1), {"window_strides": (2, 2)}),
    ((3, 3), {"window_strides": (2, 3), "padding": ((1, 2), (0, 3))}),
    ((2, 3), {"rhs_dilation": (3, 2), "padding": ((2, 1), (1, 0))}),
    ((3, 4), {"lhs_dilation": (2, 3), "padding": ((-1, 2), (2, -2))}),
    ((2, 2), {"lhs_dilation": (2, 1), "window_strides": (3, 1), "padding": ((0, 1), (1, 0))}),
    ((9, 8), {"padding": ((5, 4), (4, 4))}),
]


IN_ORDERS = [
    *[(NHWC, *each) for each in SETTINGS],
    *[(order, *SETTINGS[3]) for order in ORDERS[1:]],
]


@pytest.mark.parametrize(("order", "window", "settings"), IN_ORDERS)
def test_one_feature_per_group_is_a_sum_of_products(
    order: tuple[str, str, str], window: tuple[int, int], settings: dict[str, Any]
) -> None:
    convolve = convolution(order, feature_group_count=4, **settings)
    program = check(with_gradients(convolve), *arrays(order, window))
    assert "conv_general_dilated" not in program


@pytest.mark.parametrize("order", ORDERS, ids="/".join)
def test_a_group_makes_several_features(order: tuple[str, str, str]) -> None:
    convolve = convolution(order, feature_group_count=4, **SETTINGS[3][1])
    program = check(with_gradients(convolve, 1), *arrays(order, (3, 3), made=12))
    assert "conv_general_dilated" not in program


@pytest.mark.parametrize("size", [(9,), (4, 3, 5)])
def test_one_and_three_spatial_axes(size: tuple[int, ...]) -> None:
    letters, keys = "DHW"[-len(size) :], jax.random.split(jax.random.key(1), 2)
    image = jax.random.normal(keys[0], (2, *size, 4))
    filters = jax.random.normal(keys[1], (*(3 for _ in size), 1, 4))

    def convolve(x: Any, w: Any) -> Any:
        order = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
        ones = (1,) * len(size)
        return lax.conv_general_dilated(
            x, w, ones, "SAME", dimension_numbers=order, feature_group_count=4
        )

    assert "conv_general_dilated" not in check(with_gradients(convolve), image, filters)


@pytest.mark.parametrize("forms", FORMS, ids=lambda forms: forms.device)
def test_on_every_cpu(forms: Any) -> None:
    convolve = convolution(feature_group_count=4, padding="SAME")
    if forms.profitability.only_allow:
        assert "conv_general_dilated" not in check(convolve, *arrays(NHWC, (3, 3)), forms=forms)
    overhanging = convolution(padding="SAME")
    program, _ = rewritten(
        overhanging, *arrays(NHWC, (3, 3), (2, 2), inside=4), removed=("window_dots",), forms=forms
    )
    assert "padding=((0, 0), (0, 0))" in program


OVERHANGING: list[tuple[tuple[int, int], tuple[int, int], dict[str, Any]]] = [
    ((3, 3), (2, 2), {"padding": "SAME"}),
    ((3, 3), (2, 4), {"padding": "SAME"}),
    ((3, 4), (2, 3), {"padding": ((1, 1), (1, 2)), "window_strides": (2, 1)}),
    ((3, 3), (2, 2), {"padding": ((2, 1), (1, 2)), "lhs_dilation": (2, 2)}),
    ((3, 3), (2, 3), {"padding": ((2, 3), (2, 2)), "rhs_dilation": (2, 2)}),
    ((5, 5), (4, 4), {"padding": ((2, -1), (3, 3)), "lhs_dilation": (2, 1)}),
]


@pytest.mark.parametrize(
    ("order", "window", "sizes", "settings"),
    [
        *[(NHWC, *each) for each in OVERHANGING],
        *[(order, *OVERHANGING[2]) for order in ORDERS[1:]],
    ],
)
def test_an_image_smaller_than_its_window_is_padded_first(
    order: tuple[str, str, str],
    window: tuple[int, int],
    sizes: tuple[int, int],
    settings: dict[str, Any],
) -> None:
    convolve = convolution(order, **settings)
    program = check(with_gradients(convolve), *arrays(order, window, sizes, inside=4))
    assert "padding=((0, 0), (0, 0))" in program


@pytest.mark.parametrize(
    ("window", "sizes", "settings"),
    [
        ((3, 3), (3, 3), {"padding": "SAME"}),
        ((3, 3), (1, 1), {"padding": ((2, 2), (2, 2))}),
        ((3, 3), (2, 2), {"padding": "SAME", "feature_group_count": 2}),
    ],
    ids=["as many elements", "one element", "groups of two"],
)
def test_other_convolutions_stay(
    window: tuple[int, int], sizes: tuple[int, int], settings: dict[str, Any]
) -> None:
    inside = 4 // settings.get("feature_group_count", 1)
    program = check(convolution(**settings), *arrays(NHWC, window, sizes, inside=inside))
    assert program.count("conv_general_dilated") == 1
    assert "padding=((0, 0), (0, 0))" not in program


def test_a_large_window_and_no_groups_of_the_batch_stay() -> None:
    image, filters = jnp.ones((1, 24, 24, 2)), jnp.ones((12, 11, 1, 2))
    function = convolution(feature_group_count=2)
    assert "conv_general_dilated" in rewritten(function, image, filters, forms=CPU)[0]
    grouped = convolution(batch_group_count=2)
    program, _ = rewritten(grouped, jnp.ones((4, 5, 5, 2)), jnp.ones((3, 3, 2, 4)), forms=CPU)
    assert "conv_general_dilated" in program


@pytest.mark.parametrize("name", ["channelwise_sums", "padded_images"])
def test_each_is_switched_off_by_name(name: str) -> None:
    grouped, overhanging = convolution(feature_group_count=4), convolution(padding="SAME")
    if name == "channelwise_sums":
        program = check(grouped, *arrays(NHWC, (3, 3)), removed=(name,))
        assert "conv_general_dilated" in program
    else:
        program = check(overhanging, *arrays(NHWC, (3, 3), (2, 2), inside=4), removed=(name,))
        assert "padding=((1, 1), (1, 1))" in program


def test_a_region_that_is_switched_off_stays() -> None:
    convolve = duotone.autocast(convolution(feature_group_count=4), enabled=False)
    assert "conv_general_dilated" in check(lambda x, w: convolve(x, w), *arrays(NHWC, (3, 3)))


def test_derivatives_and_batches_of_the_rewritten_program() -> None:
    image, filters = arrays(NHWC, (3, 3))
    convolve = convolution(feature_group_count=4, padding="SAME")
    rewriter = duotone.autocast(convolve, dtype="bfloat16")

    def loss(x: Any, w: Any) -> Any:
        return jnp.sin(rewriter(x, w)).sum()

    exact = in_float64(
        jax.grad(lambda x, w: jnp.sin(convolve(x, w)).sum(), argnums=(0, 1)), image, filters
    )
    for mine, wanted in zip(jax.grad(loss, argnums=(0, 1))(image, filters), exact, strict=True):
        assert np.abs(mine - wanted).max() <= 2**-6 * np.abs(wanted).max()
    batch = jnp.stack([image, 2 * image])
    batched = jax.vmap(rewriter, in_axes=(0, None))(batch, filters)
    np.testing.assert_array_equal(batched[1], 2 * rewriter(image, filters))


@pytest.mark.parametrize("name", ["convolution", "pooling"])
def test_derivatives_by_jax_keep_no_parts(name: str) -> None:
    """Planted fault: without ``with_plain_derivative`` each part is a residual."""

    def pooled(x: Any, w: Any) -> Any:
        window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "SAME") * w.sum()

    function = {"convolution": convolution(feature_group_count=4), "pooling": pooled}[name]
    image, filters = arrays(NHWC, (3, 3))
    jaxpr = jax.make_jaxpr(function)(image, filters)
    rewriter = rewriter_of(paint_jaxpr(jaxpr, Policy(), HALF_TYPES["bfloat16"], forms=CPU))
    (result,), pull = jax.vjp(rewriter, image, filters)
    assert len(jax.tree.leaves(pull)) <= 4
    _, exact = jax.vjp(function, image, filters)
    found, wanted = pull([jnp.cos(result)]), exact(jnp.cos(result))
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_sums_of_half_operands_are_float32() -> None:
    """Planted fault: added up in bfloat16, 300 products of 1 are 256."""
    image, filters = (jnp.ones(shape, jnp.bfloat16) for shape in ((1, 300, 4), (300, 1, 4)))

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=4
        )

    (eqn,) = jax.make_jaxpr(convolve)(image, filters).jaxpr.eqns
    np.testing.assert_array_equal(convolutions.channelwise(eqn, image, filters), np.float32(300))


def test_a_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements of the window are read in the reverse order: the shapes fit, the numbers do not."""
    right = convolutions.part_of

    def reversed_reads(array: Any, read: Any) -> Any:
        turned = {
            axis: (array.shape[axis] - stop, array.shape[axis] - start, step)
            for axis, (start, stop, step) in read.items()
        }
        return right(array, turned)

    monkeypatch.setattr(convolutions, "part_of", reversed_reads)
    with pytest.raises(AssertionError):
        test_one_feature_per_group_is_a_sum_of_products(NHWC, (3, 2), {})
