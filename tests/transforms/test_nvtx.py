"""NVTX ranges, with a stand-in for the library."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

import duotone
from duotone.errors import EnvironmentVariableError
from duotone.transforms import nvtx as _nvtx

NAMES = ("DUOTONE_NVTX", _nvtx.DISABLE, _nvtx.DETAILED)


class Recorder:
    """Ranges as they were opened and closed."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def module(self) -> types.ModuleType:
        recorder = self

        class Annotate:
            def __init__(self, message: str, domain: str) -> None:
                assert domain == "duotone"
                self.message = message

            def __enter__(self) -> None:
                recorder.seen.append(f"+{self.message}")

            def __exit__(self, *problem: object) -> None:
                recorder.seen.append(f"-{self.message}")

        module = types.ModuleType("nvtx")
        module.annotate = Annotate  # pyright: ignore[reportAttributeAccessIssue]
        return module


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    recorder = Recorder()
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "nvtx", recorder.module())
    _nvtx._annotate.cache_clear()
    yield recorder.seen
    _nvtx._annotate.cache_clear()


def mixed():
    def square(x: jax.Array) -> jax.Array:
        return x @ x

    policy = duotone.Policy(ignore_performance=True)
    return duotone.autocast(square, dtype="bfloat16", policy=policy)


NAME = "mixed.<locals>.square"


def test_a_call_is_a_range_and_its_rewriting_one_inside(seen: list[str]) -> None:
    fn, x = mixed(), jnp.ones((8, 8))
    fn(x)
    assert seen == [f"+{NAME}", f"+rewrite {NAME}", f"-rewrite {NAME}", f"-{NAME}"]
    seen.clear()
    fn(x)
    assert seen == [f"+{NAME}", f"-{NAME}"]


def test_a_range_is_closed_where_the_function_fails(seen: list[str]) -> None:
    def fails(x: jax.Array) -> jax.Array:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        duotone.autocast(fails, dtype="bfloat16")(jnp.ones(2))
    assert len(seen) == 2
    assert seen[1] == f"-{seen[0][1:]}"


def test_a_jitted_step_has_ranges_while_it_is_traced_only(seen: list[str]) -> None:
    fn, x = jax.jit(mixed()), jnp.ones((8, 8))
    fn(x)
    assert seen
    seen.clear()
    fn(x)
    assert seen == []


@pytest.mark.parametrize("environ", [{"DUOTONE_NVTX": "detailed"}, {_nvtx.DETAILED: "1"}], ids=str)
def test_details(environ: dict[str, str], seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    mixed()(jnp.ones((8, 8)))
    assert seen[0] == f"+{NAME}(float32[8,8])"


@pytest.mark.parametrize(
    "environ",
    [
        {"DUOTONE_NVTX": "0"},
        {_nvtx.DISABLE: "1"},
        {_nvtx.DISABLE: "true", _nvtx.DETAILED: "1"},
        {"DUOTONE_NVTX": "0", _nvtx.DETAILED: "1"},
    ],
    ids=str,
)
def test_switched_off(
    environ: dict[str, str], seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    mixed()(jnp.ones((8, 8)))
    assert seen == []


def test_duotones_name_wins(seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOTONE_NVTX", "1")
    monkeypatch.setenv(_nvtx.DISABLE, "1")
    mixed()(jnp.ones((8, 8)))
    assert f"+{NAME}" in seen


def test_without_the_library_there_are_none_and_who_asked_is_reported(
    seen: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with caplog.at_level(logging.WARNING, "duotone"):
        mixed()(jnp.ones((8, 8)))
        assert "nvtx" not in caplog.text
        monkeypatch.setenv("DUOTONE_NVTX", "1")
        _nvtx._annotate.cache_clear()
        mixed()(jnp.ones((8, 8)))
        mixed()(jnp.ones((8, 8)))
    assert caplog.text.count("pip install 'duotone[nvtx]'") == 1
    assert seen == []


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_not_taken(
    name: str, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "maybe")
    with pytest.raises(EnvironmentVariableError, match=f"{name} is 'maybe'"):
        mixed()(jnp.ones((8, 8)))
