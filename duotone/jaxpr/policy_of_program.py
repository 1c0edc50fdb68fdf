"""A policy applied to one program: lists, assumptions, and patterns that match nothing."""

from __future__ import annotations

import fnmatch
import functools
import logging
import re
from collections.abc import Sequence

from duotone import _jax
from duotone.errors import PolicyError
from duotone.graph.graph import FULL_DTYPE, Graph, HalfType
from duotone.ops.entries import Kind
from duotone.ops.jax import ENTRIES
from duotone.ops.traits import Trait
from duotone.policy.calibration import Calibration
from duotone.policy.policy import LISTS, PATTERN_FIELDS, Policy
from duotone.precision.classify.lists import OpLists
from duotone.precision.painters import PAINTERS
from duotone.precision.painters.painting import Painter
from duotone.precision.ranges import (
    Assumptions,
    assume,
    check_fingerprint,
    fingerprint,
    nearest,
    path_of,
    paths_of,
)

logger = logging.getLogger("duotone")


def painter_of(policy: Policy) -> Painter:
    """The painter that a policy names.

    Raises:
        PolicyError: it paints saved graphs only.
    """
    if policy.painter not in PAINTERS:
        raise PolicyError(
            f"the painter is {policy.painter!r}, which is for saved graphs (duotone rewrite): of "
            "JAX programs it moved no fewer bytes. Leave Policy(painter=...) and DUOTONE_PAINTER "
            "at 'duotone'."
        )
    return PAINTERS[policy.painter]


def reduce_dtype(policy: Policy, half: HalfType) -> str | None:
    """The dtype in which devices add up gradients, if the policy names one.

    Raises:
        PolicyError: it is the other half type.
    """
    asked = policy.reduce_dtype
    if asked not in (None, FULL_DTYPE, half.name):
        raise PolicyError(
            f"the policy's reduce_dtype is {asked!r}, and this program is painted in {half.name}: "
            "a compiler adds up what a dot hands on, which is float32 or the half type. Take "
            f"reduce_dtype={half.name!r} or 'float32', or dtype={asked!r}."
        )
    return asked


def assumptions(policy: Policy, graph: Graph, arguments: Sequence[str] | None) -> Assumptions:
    """The ranges of a program's values that a policy states or calibration measured.

    Args:
        policy: merged with the environment.
        graph: the program.
        arguments: the user's name of each argument; ``None`` where the program is only a part of
            the user's function, of which nothing was measured.
    """
    calibration = _calibration(policy, graph) if arguments is not None else None
    measured = {} if calibration is None else calibration.measured
    return assume(graph, policy.ranges, arguments, measured)


def _calibration(policy: Policy, graph: Graph) -> Calibration | None:
    """The calibration of a program; one that is given alone must be that."""
    if not isinstance(policy.calibration, tuple):
        if policy.calibration is not None:
            check_fingerprint(policy.calibration.fingerprint, graph, policy.calibration.function)
        return policy.calibration
    own = fingerprint(graph)
    for measured in policy.calibration:
        if measured.fingerprint == own:
            return measured
    if policy.calibration and own not in _UNMEASURED:
        _UNMEASURED.add(own)
        logger.warning(
            "no calibration is of this program (%d operations): it is painted without. There are "
            "those of %s; measure this one too, or leave it if it needs none.",
            len(graph.nodes),
            ", ".join(measured.function for measured in policy.calibration),
        )
    return None


_UNMEASURED: set[str] = set()
"""Programs of which it was said."""


def warn_of_idle_patterns(policy: Policy, graph: Graph) -> None:
    """Says once of each name-scope pattern that no operation has such a name.

    No error, since one policy may be for several functions.
    """
    for field in PATTERN_FIELDS:
        for pattern in getattr(policy, field):
            matches = re.compile(fnmatch.translate(pattern)).match
            if (field, pattern) in _IDLE or any(matches(path_of(node)) for node in graph.nodes):
                continue
            _IDLE.add((field, pattern))
            near = nearest(pattern, paths_of(graph))
            logger.warning(
                "Policy(%s=[%r]): no operation of this function is called so%s. Names are name "
                "scopes and the operation, joined by /; duotone.explain lists them.",
                field,
                pattern,
                f"; the nearest is {near!r}" if near else "",
            )


_IDLE: set[tuple[str, str]] = set()
"""Field and pattern of which it was said."""


@functools.cache
def known_names() -> frozenset[str]:
    """The names that list edits may use, whatever the program is.

    Names on the lists that JAX does not export are known too: primitives that JAX keeps to itself
    (``tile``), or has in another version only (``log2``), and meanings (``eq_calculated``).
    """
    return _jax.known_primitives() | {entry.op for entry in ENTRIES}


@functools.lru_cache(maxsize=64)
def lists_of(policy: Policy, half: HalfType) -> OpLists:
    """The lists for a half type, with a policy's edits and level."""
    lists = OpLists.for_half(ENTRIES, half.name)
    added = {Kind(name): getattr(policy, f"{name}_add") for name in LISTS}
    removed = {Kind(name): getattr(policy, f"{name}_remove") for name in LISTS}
    if policy.reduce_dtype == FULL_DTYPE:  # so that its derivative adds up what is not cast yet
        removed[Kind.CLEAR] |= {entry.op for entry in ENTRIES if Trait.VARIES in entry.traits}
    return lists.leveled(policy.level).edited(added, removed)
