"""Describes a policy in words, for logs and for :meth:`duotone.Policy.describe`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from duotone.errors import plural

VARIABLE, FILE = "environment variable ", "policy file "
"""The prefixes of sources outside the code: the environment and policy files."""


def described(fields: Mapping[str, Any], lists: Sequence[str], sources: Iterable[str]) -> str:
    """Returns all that differs from the defaults, on one line.

    Takes the fields that differ, the names of lists, and where the settings come from.
    """
    text = f"policy: {'; '.join(_phrases(fields, lists)) or 'all defaults'}"
    outside = [source for source in sources if source.startswith((VARIABLE, FILE))]
    names = dict.fromkeys(source.removeprefix(VARIABLE) for source in outside)
    return f"{text} (partly from {', '.join(names)})" if names else text


def _phrases(fields: Mapping[str, Any], lists: Sequence[str]) -> list[str]:
    """Returns a phrase for each field."""
    phrases = [f"{name} {fields[name]}" for name in ("painter", "level") if name in fields]
    if "ignore_performance" in fields:
        phrases.append("rewrites also where half is not faster")
    for which in lists:
        added, removed = fields.get(f"{which}_add"), fields.get(f"{which}_remove")
        if added or removed:
            edits = [f"+ {', '.join(sorted(added))}"] if added else []
            edits += [f"- {', '.join(sorted(removed))}"] if removed else []
            phrases.append(f"{which} list {' '.join(edits)}")
    for field in ("keep_full", "keep_half"):
        if field in fields:
            phrases.append(f"keeps {field.removeprefix('keep_')} {', '.join(fields[field])}")
    if off := [
        n for f in ("rules_remove", "optimizations_remove") for n in sorted(fields.get(f, ()))
    ]:
        phrases.append(f"without {', '.join(off)}")
    for field in ("float32_math", "convolution_math"):
        if field in fields:
            phrases.append(f"{field.replace('_', ' ')} {fields[field]}")
    if "reduce_dtype" in fields:
        phrases.append(f"adds up gradients over devices in {fields['reduce_dtype']}")
    if "segment_sums" in fields:
        phrases.append(f"adds up segments in {fields['segment_sums']}")
    if "ranges" in fields:
        shown = (f"{name} in [{low:g}, {high:g}]" for name, (low, high) in fields["ranges"])
        phrases.append(f"assumes {', '.join(shown)}")
    given = fields.get("calibration", ())
    several = given if isinstance(given, tuple) else (given,)
    phrases += [f"uses the {measured.title}" for measured in several]
    if "compiler_options" in fields:
        with_or_without = "with" if fields["compiler_options"] else "without"
        phrases.append(f"for a program compiled {with_or_without} duotone.compiler_options()")
    if "log_path" in fields:
        phrases.append(f"writes graphs to {fields['log_path']}")
    if "log_decisions" in fields:
        phrases.append("logs decisions")
    if "heal" in fields:
        phrases.append(f"heals what overflows in {plural(fields['heal'], 'step')} in a row")
    return phrases
