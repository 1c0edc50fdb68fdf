"""What every test leaves as it was (JAX's store of programs, the logger of duotone); fixtures."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from duotone import _jax

_MOST_MAPPINGS = 30_000
"""Of a process, whose limit is 65,530 on Linux: beyond it what compiles next aborts."""
_MAPPINGS = Path("/proc/self/maps")
_calls = 0
_LONGEST = 4096
"""The elements of the draw that smaller ones are the beginning of."""
_normal = jax.random.normal

# Traces make many small objects and hardly any garbage, and after each collection JAX's own runs.
gc.set_threshold(20_000, 20, 20)


def _beginning_of_a_long_draw(
    key: Any, shape: Any = (), dtype: Any = float, **others: Any
) -> jax.Array:
    """``jax.random.normal``: the same numbers, but one compiled program for all small shapes."""
    alike = dtype in (float, np.float32) and jax.dtypes.canonicalize_dtype(dtype) == np.float32
    small = isinstance(shape, tuple | list) and math.prod(shape) <= _LONGEST
    if others or not (alike and small and _jax.is_outermost([key])):
        return _normal(key, shape, dtype, **others)
    drawn = np.asarray(_normal(key, (_LONGEST,), np.float32))
    return jax.numpy.asarray(drawn[: math.prod(shape)].reshape(shape))


jax.random.normal = _beginning_of_a_long_draw


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
