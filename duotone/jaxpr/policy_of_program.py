"""A policy for one JAX program: names are checked, and patterns that match nothing are logged."""

from __future__ import annotations

import functools

from duotone import _jax
from duotone.devices.table import DeviceForms
from duotone.graph.graph import Graph, HalfType
from duotone.ops.jax import ENTRIES
from duotone.policy.policy import Policy
from duotone.policy.resolve import edited_lists, resolve
from duotone.precision.classify.classes import Pins
from duotone.precision.classify.unmatched import warn_of_unmatched
from duotone.precision.ranges import path_of
from duotone.precision.resolved import Resolved


@functools.lru_cache(maxsize=64)
def resolved_for(policy: Policy, half: HalfType, forms: DeviceForms) -> Resolved:
    """Returns a policy as the stages take it, for the operations of JAX.

    Raises:
        PolicyError: as :func:`~duotone.policy.resolve.resolve`.
    """
    return resolve(
        policy,
        half,
        edited_lists(policy, half, ENTRIES),
        profitability=forms.profitability,
        optimizations=forms.optimizations,
    )


def check_names(policy: Policy, graph: Graph) -> None:
    """Raises if a list edit names an operation that neither JAX nor the program has.

    Raises:
        UnknownOperationError: it does.
    """
    policy.check_names(known_names() | {node.op for node in graph.nodes})


def warn_of_patterns(pins: Pins, graph: Graph) -> None:
    """Logs once for each name pattern that no operation has such a name."""
    remedy = (
        "A name is its name scopes and the operation, joined by /; duotone.explain lists the names."
    )
    names = map(path_of, graph.nodes)
    warn_of_unmatched(pins, names, "operation of this function", remedy, _LOGGED)


_LOGGED: set[tuple[str, str]] = set()
"""The fields and patterns that were already logged."""


@functools.cache
def known_names() -> frozenset[str]:
    """Returns the names that list edits may use, whatever the program is.

    Names on the lists that JAX does not export are known too: primitives that JAX keeps to itself
    (``tile``), or has in another version only (``log2``), and meanings (``eq_calculated``).
    """
    return _jax.known_primitives() | {entry.op for entry in ENTRIES}
