"""Resolves a policy into a :class:`~duotone.precision.resolved.Resolved`, once for each program.

The stages take the result and never ask a policy. A front end checks names against its own
operations first (:meth:`~duotone.policy.policy.Policy.check_names`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from duotone.errors import PolicyError
from duotone.graph.graph import FULL_DTYPE, HalfType
from duotone.ops.entries import OWN, Entry, Kind
from duotone.ops.traits import Trait
from duotone.policy.policy import LISTS, Policy
from duotone.precision.classify.classes import Pins
from duotone.precision.classify.lists import OpLists
from duotone.precision.classify.profitability import EVERYTHING, Profitability
from duotone.precision.optimize.optimizations import switched_on
from duotone.precision.ranges.measurements import Measurements
from duotone.precision.resolved import Resolved

Rename = Callable[[frozenset[str]], Iterable[str]]
"""Converts the names in a list edit to the names in a front end's table."""


def resolve(
    policy: Policy,
    half: HalfType,
    lists: OpLists,
    *,
    profitability: Profitability = EVERYTHING,
    optimizations: frozenset[str] = frozenset(),
) -> Resolved:
    """Resolves a policy for one half type and device.

    The policy is merged with the environment, and ``lists`` has its level and edits already.

    Raises:
        PolicyError: ``reduce_dtype`` is the other half type.
    """
    return Resolved(
        half,
        lists,
        pins=Pins(policy.keep_full, policy.keep_half),
        painter=policy.painter,
        level=policy.level,
        rules_off=policy.rules_remove,
        optimizations=switched_on(
            optimizations,
            policy.optimizations_remove,
            any_painter=policy.painter == "tensorflow" or profitability.only_allow,
        ),
        profitability=profitability.without(policy.optimizations_remove),
        ranges=policy.ranges,
        measurements=_measurements(policy),
        reduce_dtype=_reduce_dtype(policy, half),
        log_path=policy.log_path,
        log_decisions=policy.log_decisions,
    )


def without(policy: Policy, fields: Iterable[str]) -> Policy:
    """Returns a policy without the fields that have no meaning for a front end."""
    return dataclasses.replace(policy, **{field: getattr(_DEFAULT, field) for field in fields})


_DEFAULT = Policy()


def edited_lists(
    policy: Policy, half: HalfType, entries: tuple[Entry, ...], rename: Rename = frozenset
) -> OpLists:
    """Returns the lists for a half type, with a policy's level and edits.

    Names in list edits are converted by ``rename`` to those of the front end's table, ``entries``.
    """
    added = {Kind(name): frozenset(rename(getattr(policy, f"{name}_add"))) for name in LISTS}
    removed = {Kind(name): frozenset(rename(getattr(policy, f"{name}_remove"))) for name in LISTS}
    if policy.segment_sums == "half":
        entries = tuple(map(_added_in_half, entries))
    if policy.reduce_dtype == FULL_DTYPE:  # so that its derivative adds up what is not cast yet
        removed[Kind.CLEAR] |= {entry.op for entry in entries if Trait.VARIES in entry.traits}
    return OpLists.for_half(entries, half.name).leveled(policy.level).edited(added, removed)


_IN_HALF = "adds up segments in half, as the policy asks (segment_sums='half')"


def _added_in_half(entry: Entry) -> Entry:
    """Returns the row of an operation that adds into positions, which follows its operands.

    This is not an edit by the user, so safety rules may still deny the operation.
    """
    if entry.kind is not Kind.DENY or Trait.ADDS_INTO not in entry.traits:
        return entry
    return dataclasses.replace(entry, kind=Kind.INFER, reason=_IN_HALF, source=OWN)


def _measurements(policy: Policy) -> Measurements | tuple[Measurements, ...] | None:
    found = [Measurements(c.function, c.fingerprint, c.measured) for c in policy.calibrations]
    return tuple(found) if isinstance(policy.calibration, tuple) else next(iter(found), None)


def _reduce_dtype(policy: Policy, half: HalfType) -> str | None:
    """Returns the dtype in which devices add up gradients, if the policy names one.

    Raises:
        PolicyError: it is the other half type.
    """
    asked = policy.reduce_dtype
    if asked not in (None, FULL_DTYPE, half.name):
        raise PolicyError(
            f"the policy's reduce_dtype is {asked!r}, and this program is painted in {half.name}: "
            "a compiler adds up the result of a dot, which is float32 or the half type. Take "
            f"reduce_dtype={half.name!r} or 'float32', or dtype={asked!r}."
        )
    return asked
