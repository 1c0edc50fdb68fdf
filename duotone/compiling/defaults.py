"""Defaults: the options that ``TF_XLA_FLAGS`` set, and whether JAX compiles at all."""

from __future__ import annotations

import dataclasses

import jax

LEAST = 64
"""The default least number of operations of a repeated part, so that its launch (some ten
microseconds) is short compared to its run."""


def jit_is_disabled() -> bool:
    """Returns True in ``jax.disable_jit()``, where no program can be compiled ahead of time."""
    return jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]


@dataclasses.dataclass(slots=True)
class ClusterDefaults:
    """Options for calls that do not pass them."""

    min_cluster_size: int = LEAST
    max_cluster_size: int | None = None
    background: bool = False


DEFAULTS = ClusterDefaults()
"""The defaults of this process."""
