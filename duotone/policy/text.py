"""A policy in words, for logs. Called by :meth:`duotone.Policy.describe`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from duotone.errors import plural

if TYPE_CHECKING:
    from duotone.policy.policy import Policy


VARIABLE, FILE = "environment variable ", "policy file "
"""Beginnings of the sources of settings that come from outside."""


def described(policy: Policy, lists: Sequence[str], sources: Iterable[str]) -> str:
    """All that differs from the defaults, on one line.

    Args:
        policy: the policy.
        lists: the names of its lists.
        sources: where its settings come from.
    """
    text = f"policy: {'; '.join(_phrases(policy, lists)) or 'all defaults'}"
    outside = [source for source in sources if source.startswith((VARIABLE, FILE))]
    names = dict.fromkeys(source.removeprefix(VARIABLE) for source in outside)
    return f"{text} (partly from {', '.join(names)})" if names else text


def _phrases(policy: Policy, lists: Sequence[str]) -> list[str]:
    """A phrase for each field that differs from its default."""
    phrases = []
    if policy.painter != "duotone":
        phrases.append(f"painter {policy.painter}")
    if policy.level is not None:
        phrases.append(f"level {policy.level}")
    if policy.ignore_performance:
        phrases.append("rewrites also where half is not faster")
    for which in lists:
        added, removed = getattr(policy, f"{which}_add"), getattr(policy, f"{which}_remove")
        if added or removed:
            edits = [f"+ {', '.join(sorted(added))}"] if added else []
            edits += [f"- {', '.join(sorted(removed))}"] if removed else []
            phrases.append(f"{which} list {' '.join(edits)}")
    for field in ("keep_full", "keep_half"):
        if patterns := getattr(policy, field):
            phrases.append(f"keeps {field.removeprefix('keep_')} {', '.join(patterns)}")
    if off := sorted(policy.rules_remove) + sorted(policy.optimizations_remove):
        phrases.append(f"without {', '.join(off)}")
    for field in ("float32_math", "convolution_math"):
        if (math := getattr(policy, field)) is not None:
            phrases.append(f"{field.replace('_', ' ')} {math}")
    if policy.reduce_dtype is not None:
        phrases.append(f"adds up gradients over devices in {policy.reduce_dtype}")
    if policy.ranges:
        shown = (f"{name} in [{low:g}, {high:g}]" for name, (low, high) in policy.ranges)
        phrases.append(f"assumes {', '.join(shown)}")
    phrases += [f"uses the {measured.title}" for measured in policy.calibrations]
    if policy.log_path is not None:
        phrases.append(f"writes graphs to {policy.log_path}")
    if policy.log_decisions:
        phrases.append("logs decisions")
    if policy.heal:
        phrases.append(f"heals what overflows in {plural(policy.heal, 'step')} in a row")
    return phrases
