"""Which half type a device gets."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone import Policy
from duotone.devices import choose_half, current_choice


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ("10.0", "bfloat16"),
        ("9.0", "bfloat16"),
        ("8.9", "bfloat16"),
        ("8.0", "bfloat16"),
        ("7.5", "float16"),
        ("7.0", "float16"),
        ("6.1", None),
        ("6.0", None),
        ("gfx942", "bfloat16"),
        ("gfx90a", "bfloat16"),
        ("gfx906", None),
        ("", None),
        ("unknown", None),
    ],
)
@pytest.mark.parametrize("backend", ["gpu", "cuda"])
def test_gpus(backend: str, capability: str, expected: str | None) -> None:
    choice = choose_half(backend, compute_capability=capability)
    assert choice.dtype == expected
    assert capability in choice.reason


def test_tpus() -> None:
    assert choose_half("tpu").dtype == "bfloat16"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx512_bf16"}, "bfloat16"),
        ({"amx_bf16", "avx2"}, "bfloat16"),
        ({"bf16", "asimd"}, None),
        ({"avx2", "avx512f"}, None),
        (set(), None),
    ],
)
def test_cpus(flags: set[str], expected: str | None) -> None:
    choice = choose_half("cpu", cpu_flags=flags)
    assert choice.dtype == expected
    assert choice.reason


def test_what_nobody_knows_gets_none() -> None:
    choice = choose_half("abacus")
    assert choice.dtype is None
    assert "'abacus'" in choice.reason


def test_this_device() -> None:
    choice = current_choice()
    assert choice.dtype in (None, "float16", "bfloat16")
    with jax.default_device(jax.devices()[0]):
        assert current_choice() == choice


def _dtypes(function: object) -> str:
    x = np.ones((8, 8), np.float32)
    return str(jax.make_jaxpr(function)(x))  # type: ignore[arg-type]


def _no_half(_: object = None) -> object:
    return choose_half("cpu")


def test_where_half_is_not_faster_the_function_stays_and_one_line_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("duotone.transforms.mixed_function.current_choice", _no_half)

    def square(x: object) -> object:
        return jnp.dot(x, x)  # type: ignore[arg-type]

    with caplog.at_level(logging.WARNING, "duotone"):
        wrapped = duotone.autocast(square)
        text = _dtypes(wrapped)
        assert _dtypes(wrapped) == text
    assert "f16" not in text
    (record,) = caplog.records
    message = record.getMessage()
    for part in ("square", "no bfloat16 instructions", "ignore_performance=True", "dtype="):
        assert part in message
    # The advice works, both ways.
    forced = duotone.autocast(square, policy=Policy(ignore_performance=True))
    assert "bf16" in _dtypes(forced)
    assert "f16" in _dtypes(duotone.autocast(square, dtype="float16"))


def test_the_device_s_type_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "duotone.transforms.mixed_function.current_choice",
        lambda: choose_half("gpu", compute_capability="7.5"),
    )
    text = _dtypes(duotone.autocast(lambda x: jnp.tanh(x @ x)))
    assert ":f16[" in text
    assert "bf16" not in text
