"""The table of devices: how dots are bound there, and what is worth painting."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.devices import AssumedDevice, assuming
from duotone.devices.half_choice import FAST_CPU_FLAGS, choose_half, cpu_flags
from duotone.devices.table import TABLE, current_forms, forms_of
from duotone.jaxpr.rules.dots import takes_rows
from duotone.precision.classify.profitability import EVERYTHING

FAST = frozenset({"avx512_bf16"})
FAST_HERE = bool(FAST_CPU_FLAGS & cpu_flags())
BIG, SMALL = (256, 256), (32, 32)


@pytest.mark.parametrize(
    ("platform", "half", "flags", "row"),
    [
        ("gpu", "float16", frozenset(), "gpu"),
        ("cuda", "bfloat16", FAST, "gpu"),
        ("rocm", "bfloat16", frozenset(), "gpu-other"),
        ("tpu", "bfloat16", frozenset(), "tpu"),
        ("cpu", "bfloat16", FAST, "cpu-bfloat16"),
        ("cpu", "bfloat16", frozenset({"amx_bf16"}), "cpu-bfloat16"),
        ("cpu", "bfloat16", frozenset({"avx2"}), "cpu"),
        ("cpu", "float16", FAST, "cpu-float16"),
        ("abacus", "float16", FAST, "other"),
    ],
)
def test_each_kind_of_device_has_its_row(
    platform: str, half: str, flags: frozenset[str], row: str
) -> None:
    assert forms_of(platform, half, flags) is TABLE[row]


@pytest.mark.parametrize(
    ("capability", "row"),
    [
        ("", "gpu"),
        ("7.0", "gpu-other"),
        ("7.5", "gpu-other"),
        ("8.0", "gpu"),
        ("8.9", "gpu"),
        ("9.0", "gpu"),
        ("10.0", "gpu-blackwell"),
        ("12.0", "gpu-blackwell"),
        ("gfx942", "gpu-other"),
    ],
)
def test_gpus_of_different_generations(capability: str, row: str) -> None:
    assert forms_of("cuda", "bfloat16", capability=capability) is TABLE[row]
    with assuming(AssumedDevice("any", "cuda", capability)):
        assert current_forms("bfloat16", declines=True) is TABLE[row]


def test_every_row_says_what_it_rests_on() -> None:
    assert all(row.source for row in TABLE.values())
    assert {row.dots for row in TABLE.values()} == {"plain", "rows", "widened"}


def test_a_cpu_with_fast_bfloat16_is_chosen_and_has_the_fast_form() -> None:
    """The two tables agree: where duotone chooses bfloat16, dots have the fast form."""
    for flags in (FAST, frozenset({"amx_bf16"}), frozenset({"avx2"}), frozenset({"bf16"})):
        chosen = choose_half("cpu", cpu_flags=flags).dtype == "bfloat16"
        assert chosen is (forms_of("cpu", "bfloat16", flags).dots == "rows")


def test_an_assumed_device_has_its_own_forms() -> None:
    with assuming(AssumedDevice("h200", "cuda", "9.0")):
        assert current_forms("bfloat16", declines=True) is TABLE["gpu"]
    with assuming(AssumedDevice("v5e", "tpu")):
        assert current_forms("bfloat16", declines=True) is TABLE["tpu"]


def test_only_who_lets_duotone_choose_has_things_declined() -> None:
    assert current_forms("bfloat16").profitability == EVERYTHING
    expected = TABLE["cpu-bfloat16" if FAST_HERE else "cpu"]
    found = current_forms("bfloat16", declines=True)
    gains = dataclasses.replace(found.profitability, missing="")
    assert dataclasses.replace(found, profitability=gains) == expected


def _fast_cpu(half: str, *, declines: bool = False, **_: object) -> object:
    row = TABLE["cpu-bfloat16"]
    return row if declines else dataclasses.replace(row, profitability=EVERYTHING)


@pytest.fixture
def fast_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with bfloat16 instructions, whatever this machine has."""
    monkeypatch.setattr("duotone.jaxpr.pipeline.current_forms", _fast_cpu)
    monkeypatch.setattr(
        "duotone.transforms.mixed_function.current_choice",
        lambda: choose_half("cpu", cpu_flags=FAST),
    )


def _step(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def _rules(shape: tuple[int, int], **kwargs: object) -> list[str]:
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    seen = duotone.explain(_step, x, x, **kwargs)  # type: ignore[arg-type]
    return [operation.rule for operation in seen.operations]


@pytest.mark.usefixtures("fast_cpu")
def test_explain_says_what_is_declined() -> None:
    assert _rules(BIG) == ["wide", "device", "wide", "device"]
    assert _rules(SMALL) == ["small", "device", "small", "device"]


@pytest.mark.usefixtures("fast_cpu")
@pytest.mark.parametrize(
    "kwargs",
    [
        {"dtype": "bfloat16"},
        {"policy": duotone.Policy(ignore_performance=True)},
        {"policy": duotone.Policy(painter="tensorflow")},
        {"policy": duotone.Policy(level="UNSAFE_FORCE_ALL")},
    ],
    ids=["dtype", "ignore_performance", "tensorflow", "level"],
)
def test_who_says_more_than_none_gets_the_same_painting_everywhere(
    kwargs: dict[str, object],
) -> None:
    assert not {"small", "device"} & set(_rules(SMALL, **kwargs))


@pytest.mark.usefixtures("fast_cpu")
def test_a_step_of_small_dots_is_left_bit_for_bit() -> None:
    x = jax.random.normal(jax.random.key(0), SMALL)
    np.testing.assert_array_equal(duotone.autocast(_step)(x, x), jax.jit(_step)(x, x))


@pytest.mark.usefixtures("fast_cpu")
def test_large_dots_calculate_in_half_and_nothing_else_does() -> None:
    x = jax.random.normal(jax.random.key(0), BIG) / 16
    text = str(jax.make_jaxpr(duotone.autocast(_step))(x, x))
    assert "bf16[256,256] = tanh" not in text
    assert "bf16" in text
    np.testing.assert_allclose(duotone.autocast(_step)(x, x), _step(x, x), atol=2e-2)


@pytest.mark.usefixtures("fast_cpu")
def test_a_convolution_is_declined() -> None:
    images, kernel = jnp.ones((2, 32, 32, 64)), jnp.ones((3, 3, 64, 64))

    def conv(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv(x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), (1, 1), "SAME")

    seen = duotone.explain(conv, images, kernel)
    (found,) = [o for o in seen.operations if o.operation == "conv_general_dilated"]
    assert (found.rule, found.paint) == ("device", "full")
    assert "gains nothing" in found.reason


def test_symbolic_dimensions_do_not_take_rows() -> None:
    (size,) = jax.export.symbolic_shape("n")
    seen: list[bool] = []

    def function(x: jax.Array) -> jax.Array:
        seen.append(takes_rows(x))
        return x

    jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct((size, 4), jnp.float32))
    jax.jit(function)(jnp.ones((4, 4)))
    assert seen == [False, True]
