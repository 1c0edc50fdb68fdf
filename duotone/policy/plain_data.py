"""Policies as plain data: strings, numbers and lists, for the config of a saved model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from duotone.policy.policy import Policy


def policy_data(policy: Policy | None) -> dict[str, Any] | None:
    """Returns the fields of a policy that are not defaults, as plain data; without ``log_path``.

    The model may be loaded on another machine, where a policy with a folder of this one is refused.
    """
    if policy is None:
        return None
    data = {}
    for field in dataclasses.fields(policy):
        content = getattr(policy, field.name)
        if field.name.startswith("_") or field.name == "log_path" or content == field.default:
            continue
        if isinstance(content, frozenset):
            content = sorted(content)
        data[field.name] = list(content) if isinstance(content, tuple) else content
    return data


def policy_of(data: Any) -> Any:
    """Returns the policy that :func:`policy_data` described, and other arguments unchanged."""
    return Policy(**data) if isinstance(data, Mapping) else data
