"""Puts the versions that a base image has in the place of those in a file of constraints.

python3 keep.py constraints.txt

Called by docker/Dockerfile before anything is installed. A base image that brings JAX for its
device (NVIDIA's) has a build of its own, which pip would replace with the one from PyPI, for CPUs
alone. If duotone cannot run on what the base has, pip says so and the build ends. Where that JAX is
another one than the file's, the file's other versions may not fit it: then pip chooses them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path


def kept(constraints: str, installed: Mapping[str, str]) -> str:
    """The constraints with what is installed pinned as it is.

    Args:
        constraints: lines ``name==version``; lines that begin with ``#`` are comments.
        installed: the version of each distribution that is there, by its name.

    Returns:
        The lines in their order, those of what is installed replaced; only these if JAX is
        installed in another version.
    """
    lines = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    asked = dict(line.split("==") for line in lines)
    there = {_normal(name): version for name, version in installed.items()}
    other_jax = there.get("jax", asked.get("jax")) != asked.get("jax")
    return "".join(
        f"{name}=={there.get(_normal(name), version)}\n"
        for name, version in asked.items()
        if not other_jax or _normal(name) in there
    )


def _normal(name: str) -> str:
    """The name as PyPI compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    installed = {there.metadata["Name"]: there.version for there in metadata.distributions()}
    path.write_text(kept(path.read_text(), installed))
