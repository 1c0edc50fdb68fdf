"""What every test leaves as it was (JAX's store of programs, the logger of duotone); fixtures."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

_MOST_MAPPINGS = 30_000
"""Of a process, whose limit is 65,530 on Linux: beyond it what compiles next aborts."""
_MAPPINGS = Path("/proc/self/maps")
_calls = 0

# Traces make many small objects and hardly any garbage, and after each collection JAX's own runs.
gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def store_of_programs() -> Iterator[None]:
    """Empties JAX's store now and then: compiled loops take megabytes each, and mappings."""
    global _calls
    yield
    _calls += 1
    if _calls % 700 == 0 or (_calls % 20 == 0 and _mappings() > _MOST_MAPPINGS):
        jax.clear_caches()


@pytest.fixture(autouse=True)
def logger_of_duotone() -> Iterator[None]:
    """Gives the logger its level and handlers back, which `duotone run` and the variables set."""
    logger = logging.getLogger("duotone")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


@pytest.fixture
def on_fast_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with bfloat16 instructions and compiler options, whatever machine and JAX this is."""
    from duotone.devices import options

    major, minor = jax.__version_info__[:2]
    monkeypatch.setattr(options, "_MEASURED", (major, minor))
    for module in ("options", "table", "half_type"):
        monkeypatch.setattr(
            f"duotone.devices.{module}.cpu_flags", lambda: frozenset({"avx512_bf16"})
        )


def _mappings() -> int:
    """Pieces of memory of this process; 0 where nobody says."""
    return _MAPPINGS.read_bytes().count(b"\n") if _MAPPINGS.exists() else 0
