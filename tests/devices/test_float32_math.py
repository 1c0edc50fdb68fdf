"""``Policy(float32_math=...)``: float32 dots and convolutions by another algorithm."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone import Policy
from duotone.devices import AssumedDevice, assuming, choose_half
from duotone.devices.float32_math import kind_of, math_of
from tests.jaxpr.programs import dtypes, named

H200 = AssumedDevice("h200", "cuda", "9.0")
V5E = AssumedDevice("v5e", "tpu")
X = jnp.ones((16, 16))
IMAGES, KERNEL = jnp.ones((1, 4, 8, 8)), jnp.ones((4, 4, 3, 3))


@pytest.mark.parametrize(
    ("platform", "capability", "kind"),
    [
        ("cuda", "9.0", "cuda 8"),
        ("gpu", "8.0", "cuda 8"),
        ("cuda", "7.5", "cuda 7"),
        ("cuda", "6.1", "cuda"),
        ("cuda", "", "cuda"),
        ("gpu", "gfx942", "rocm"),
        ("rocm", "", "rocm"),
        ("tpu", "", "tpu"),
        ("cpu", "", "cpu"),
    ],
)
def test_kinds_of_devices(platform: str, capability: str, kind: str) -> None:
    assert kind_of(platform, capability) == kind


@pytest.mark.parametrize(
    ("platform", "capability", "asked", "dot", "convolution"),
    [
        ("cuda", "9.0", "tf32", "TF32_TF32_F32", "DEFAULT"),
        ("cuda", "9.0", "float16", "F16_F16_F32", None),
        ("cuda", "9.0", "bfloat16", "BF16_BF16_F32", None),
        ("cuda", "9.0", "exact", "F32_F32_F32", "HIGHEST"),
        ("cuda", "7.5", "float16", "F16_F16_F32", None),
        ("cuda", "7.5", "tf32", None, None),
        ("tpu", "", "exact", "HIGHEST", "HIGHEST"),
        ("tpu", "", "tf32", "HIGH", "HIGH"),
        ("tpu", "", "bfloat16", "DEFAULT", "DEFAULT"),
        ("tpu", "", "float16", None, None),
        ("cpu", "", "exact", "HIGHEST", "HIGHEST"),
        ("cpu", "", "tf32", None, None),
        ("abacus", "", "exact", None, None),
    ],
)
def test_the_table(
    platform: str, capability: str, asked: str, dot: str | None, convolution: str | None
) -> None:
    found = dict(math_of(platform, capability, asked, None))
    assert found.get("dot_general") == dot
    assert found.get("conv_general_dilated") == convolution


def test_convolutions_may_differ() -> None:
    found = dict(math_of("cuda", "9.0", "tf32", "exact"))
    assert found == {"dot_general": "TF32_TF32_F32", "conv_general_dilated": "HIGHEST"}
    assert dict(math_of("cuda", "9.0", None, "exact")) == {"conv_general_dilated": "HIGHEST"}
    assert math_of("cuda", "9.0", None, None) == ()


def test_what_a_device_cannot_do_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "duotone"):
        math_of("cuda", "9.0", "float16", None)
        assert not caplog.records  # convolutions follow as far as they can
        math_of("cpu", "", "tf32", None)
        math_of("cuda", "9.0", None, "float16")
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "float32_math='tf32' has no effect on this cpu; it has exact",
        "convolution_math='float16' has no effect on this cuda 8; it has tf32, exact",
    ]


def _program(x: jax.Array) -> jax.Array:
    with duotone.keep_full():
        full = x @ x
    return jnp.tanh(full) @ x


def _precisions(device: AssumedDevice, policy: Policy, function: object = _program) -> list[str]:
    mixed = duotone.autocast(function, dtype="bfloat16", policy=policy)  # type: ignore[arg-type]
    with assuming(device):
        jaxpr = jax.make_jaxpr(mixed)(X)
    return [
        f"{dtypes(eqn)[0]} {getattr(eqn.params['precision'], 'name', eqn.params['precision'])}"
        for eqn in named(jaxpr, "dot_general")
    ]


def test_full_dots_get_the_algorithm_and_half_ones_do_not() -> None:
    assert _precisions(H200, Policy()) == ["float32 None", "bfloat16 None"]
    assert _precisions(H200, Policy(float32_math="tf32")) == [
        "float32 TF32_TF32_F32",
        "bfloat16 None",
    ]


def test_on_a_tpu_it_is_a_precision() -> None:
    first, second = _precisions(V5E, Policy(float32_math="exact"))
    assert "HIGHEST" in first
    assert second == "bfloat16 None"


def test_no_dtype_changes_and_a_precision_the_user_asked_for_is_kept() -> None:
    def precise(x: jax.Array) -> jax.Array:
        return jnp.matmul(x, x, precision="highest")

    (found,) = _precisions(H200, Policy(float32_math="tf32"), precise)
    assert "HIGHEST" in found


def test_in_loops_and_derivatives_too() -> None:
    def loops(x: jax.Array) -> jax.Array:
        def body(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(c @ x), None

        return jax.lax.scan(body, x, None, 3)[0]

    policy = Policy(float32_math="tf32", deny_add=["dot_general"])
    assert _precisions(H200, policy, loops) == ["float32 TF32_TF32_F32"]
    found = _precisions(H200, policy, jax.grad(lambda x: jnp.sum(loops(x))))
    assert len(found) >= 3
    assert set(found) == {"float32 TF32_TF32_F32"}


def test_convolutions() -> None:
    def conv(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv(x, w, (1, 1), "SAME")

    policy = Policy(convolution_math="exact", deny_add=["conv_general_dilated"])
    mixed = duotone.autocast(conv, dtype="bfloat16", policy=policy)
    with assuming(H200):
        (eqn,) = named(jax.make_jaxpr(mixed)(IMAGES, KERNEL), "conv_general_dilated")
    assert eqn.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2


def test_where_no_half_type_is_fast_the_math_is_carried_out_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "duotone.transforms.mixed_function.current_choice", lambda: choose_half("cpu")
    )
    mixed = duotone.autocast(jnp.matmul, policy=Policy(float32_math="exact"))
    (eqn,) = named(jax.make_jaxpr(mixed)(X, X), "dot_general")
    assert eqn.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2
    assert dtypes(eqn) == ["float32"] * 3
    np.testing.assert_array_equal(mixed(X, X), jnp.matmul(X, X))


def test_here_it_runs() -> None:
    """On any machine: a value that the device does not have must not fail."""
    for math in ("tf32", "float16", "bfloat16", "exact"):
        policy = Policy(float32_math=math, keep_full=["*"])  # type: ignore[arg-type]
        mixed = duotone.autocast(_program, dtype="bfloat16", policy=policy)
        np.testing.assert_allclose(mixed(X), _program(X), rtol=1e-2)
