"""Results kept for each version of JAX in one file: a run replaces its own version's part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax

from benchmarks._common import RESULTS

THIS_VERSION = "JAX " + ".".join(jax.__version__.split(".")[:2])
"""The part of a file that this process measures."""


def parts(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Returns the figures so far, by version; empty if there are none."""
    file = folder / f"{name}.json"
    return json.loads(file.read_text())["figures"] if file.exists() else {}


def with_part(name: str, part: Any, folder: Path = RESULTS) -> dict[str, Any]:
    """Returns the figures so far, sorted by version, with ``part`` for this version."""
    found = {**parts(name, folder), THIS_VERSION: part}
    return dict(sorted(found.items(), key=lambda item: _number(item[0])))


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.removeprefix("JAX ").split("."))
