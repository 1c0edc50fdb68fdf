"""Compiler options: when duotone sets them, and what it paints for them."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import duotone
from duotone.devices import AssumedDevice, assuming, options
from duotone.devices.half_choice import HalfChoice
from duotone.devices.table import TABLE, forms_of
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.pipeline import paint_jaxpr
from duotone.policy.policy import Policy

AVX = frozenset({"avx512_bf16"})
AMX = frozenset({"avx512_bf16", "amx_bf16"})
ORDER = ("NHWC", "HWIO", "NHWC")
IMAGES, KERNEL = (4, 16, 16, 32), (3, 3, 32, 32)


def convolve(x: Any, w: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=ORDER)


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


@pytest.mark.usefixtures("on_fast_cpu")
def test_options_are_for_cpus_with_bfloat16_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert duotone.compiler_options() == {options.ONEDNN: True}
    with assuming(AssumedDevice("h200", "cuda", "9.0")):
        assert duotone.compiler_options() == {}
    monkeypatch.setattr(options, "cpu_flags", lambda: frozenset({"avx2"}))
    assert duotone.compiler_options() == {}


@pytest.mark.usefixtures("on_fast_cpu")
def test_options_are_for_the_versions_in_which_they_were_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options.version, "__version__", "99.1.0")
    assert duotone.compiler_options() == {}


@pytest.mark.usefixtures("on_fast_cpu")
@pytest.mark.parametrize(
    ("asked", "own", "expected"),
    [
        (None, None, None),
        (True, None, True),
        (False, None, False),
        (None, True, True),
        (None, False, False),
        (True, False, False),
        (False, True, False),
    ],
)
def test_who_compiles_decides_about_options_unless_the_policy_says_no(
    asked: bool | None, own: bool | None, expected: bool | None
) -> None:
    with options.painting_for(own) if own is not None else contextlib.nullcontext():
        assert options.options_of(asked) is expected
        with assuming(AssumedDevice("h200", "cuda", "9.0")):
            assert options.options_of(asked) is False


def test_each_class_of_processor_has_its_row() -> None:
    assert forms_of("cpu", "bfloat16", AVX, options=True) is TABLE["cpu-bfloat16-options"]
    assert forms_of("cpu", "bfloat16", AMX, options=True) is TABLE["cpu-amx-options"]
    assert forms_of("cpu", "bfloat16", frozenset({"avx2"}), options=True) is TABLE["cpu"]
    assert forms_of("cuda", "bfloat16", AVX, options=True) is TABLE["gpu"]


def painting(function: Any, *args: Any, removed: tuple[str, ...] = ()) -> list[str]:
    """The precisions of dots and convolutions in the row with options, as compute > store."""
    painted = paint_jaxpr(
        jax.make_jaxpr(function)(*args),
        Policy(optimizations_remove=removed),
        HALF_TYPES["bfloat16"],
        forms=TABLE["cpu-bfloat16-options"],
    )
    pairs = zip(painted.painting.compute, painted.painting.store, strict=True)
    nodes = zip(painted.built.graph.nodes, pairs, strict=True)
    return [
        f"{compute.name}>{store.name}".lower()
        for node, (compute, store) in nodes
        if node.op in ("dot_general", "conv_general_dilated")
    ]


def test_a_large_convolution_and_its_gradients_are_half() -> None:
    def gradients(x: Any, w: Any) -> Any:
        result, pull = jax.vjp(convolve, x, w)
        return pull(result)

    images, kernel = arrays(IMAGES, KERNEL)
    assert painting(gradients, images, kernel) == ["half>half"] * 3


def test_the_optimization_is_switched_off_by_name() -> None:
    removed = ("library_convolutions",)
    assert painting(convolve, *arrays(IMAGES, KERNEL), removed=removed) == ["full>full"]


def test_a_small_convolution_is_full() -> None:
    assert painting(convolve, *arrays((1, 4, 4, 8), (3, 3, 8, 8))) == ["full>full"]


def strided_gradient(x: Any, kernel: Any) -> Any:
    result, pull = jax.vjp(lambda x: convolve(x, kernel, 2), x)
    return pull(result)[0]


def test_the_gradient_of_a_large_strided_convolution_is_half() -> None:
    """It is four convolutions of the library; XLA's float32 one is as fast for small images."""
    images, kernel = arrays((8, 32, 32, 64), (3, 3, 64, 64))
    assert painting(strided_gradient, images, kernel) == ["half>half"] * 2
    removed = ("phases",)
    assert painting(strided_gradient, images, kernel, removed=removed) == ["half>half", "full>full"]
    images, kernel = arrays((1, 32, 32, 64), (3, 3, 64, 64))
    assert painting(strided_gradient, images, kernel) == ["half>half", "full>full"]


def test_dots_are_rounded_since_float32_sums_are_slow() -> None:
    """Planted fault: without the check of ``float32_sums``, the dot stores full."""
    x, w = arrays((512, 512), (512, 512))
    assert painting(lambda x, w: jnp.tanh(x @ w), x, w) == ["half>half"]
    assert painting(lambda x, w, v: v - x @ w, x, w, w) == ["half>half"]


@pytest.mark.usefixtures("on_fast_cpu")
def test_a_policy_says_that_a_jit_of_the_user_has_the_options() -> None:
    images, kernel = arrays(IMAGES, KERNEL)
    step = duotone.autocast(convolve, policy=Policy(compiler_options=True))
    fast = jax.jit(step, compiler_options=duotone.compiler_options())
    assert "bf16" in str(jax.make_jaxpr(step)(images, kernel))
    np.testing.assert_allclose(fast(images, kernel), convolve(images, kernel), atol=0.3)


@pytest.mark.usefixtures("on_fast_cpu")
def test_explain_shows_a_call_of_its_own() -> None:
    images, kernel = arrays(IMAGES, KERNEL)
    alone = duotone.explain(convolve, images, kernel)
    assert [o.paint for o in alone.operations] == ["half"]
    inside = duotone.explain(jax.jit(duotone.autocast(convolve)), images, kernel)
    (found,) = [o for o in inside.operations if o.operation == "conv_general_dilated"]
    assert found.paint == "full"
    assert found.reason.endswith("gains nothing from half without duotone.compiler_options()")


@pytest.mark.usefixtures("on_fast_cpu")
def test_the_first_line_names_the_options_inside_a_jit(caplog: pytest.LogCaptureFixture) -> None:
    images, kernel = arrays((4, 16, 16, 48), (3, 3, 48, 48))
    with caplog.at_level("INFO", logger="duotone"):
        jax.jit(duotone.autocast(convolve))(images, kernel)
    assert "compiler_options=duotone.compiler_options()" in caplog.text


def test_nothing_is_offered_where_no_half_type_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = HalfChoice(None, "no instructions")
    monkeypatch.setattr("duotone.transforms.mixed_function.current_choice", lambda: choice)
    monkeypatch.setattr(options, "cpu_flags", frozenset[str])
    assert duotone.compiler_options() == {}
    images, kernel = arrays(IMAGES, KERNEL)
    np.testing.assert_array_equal(
        duotone.autocast(convolve)(images, kernel), convolve(images, kernel)
    )
