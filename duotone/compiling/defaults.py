"""Defaults: the options that ``TF_XLA_FLAGS`` say, and whether JAX compiles at all."""

from __future__ import annotations

import dataclasses

import jax

LEAST = 64
"""Operations of a repeated part by default, so that launching it, some ten microseconds, is little
beside running it."""


def jit_is_disabled() -> bool:
    """True inside of ``jax.disable_jit()``, where no program can be compiled beforehand."""
    return jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]


@dataclasses.dataclass(slots=True)
class ClusterDefaults:
    """Options for calls that do not pass them.

    Attributes:
        min_cluster_size: operations.
        max_cluster_size: operations; ``None``: parts are not cut.
        background: True to compile the whole program meanwhile.
    """

    min_cluster_size: int = LEAST
    max_cluster_size: int | None = None
    background: bool = False


DEFAULTS = ClusterDefaults()
"""Those of this process."""
