"""Advice on a step, as data: what ``duotone.advise`` returns.

Made by :mod:`duotone.advising.advise` from what :mod:`duotone.advising.checks` finds, shown by
:mod:`duotone.advising.advice_view`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something of a step that costs time and can be mended.

    Attributes:
        kind: name of the check, a word of ``docs/advise.md``: ``"tiles"``, ``"casts"``, ….
        what: what is found, in words.
        remedy: what to do, in words.
        operation: the operation that it concerns, of several the most expensive; empty for the
            whole step.
        scope: its name scope.
        source: the user's source line; empty if none is known.
        count: how many operations of the program it concerns; 0 for the whole step.
        seconds: what it costs in one call on the target, by the roofline; 0 where nothing is known
            of the target's speed, or of the cost.
        bytes: what it moves in one call between kernels and memory for nothing; 0 where that is not
            known.
        share: of the step: of its seconds, where nothing is known of the target's speed of its
            bytes; of ``"sharding"`` that of one device's part of the step. ``None`` where the cost
            is not known.
    """

    kind: str
    what: str
    remedy: str
    operation: str = ""
    scope: str = ""
    source: str = ""
    count: int = 0
    seconds: float = 0.0
    bytes: int = 0
    share: float | None = None


@dataclasses.dataclass(frozen=True)
class AdviceRecord:
    """The result of :func:`duotone.advise`.

    Attributes:
        function: name of the step.
        target: name of the target.
        device: in its maker's words.
        half: the half type in which the step calculates there; empty for none.
        seconds: what one call takes there, by the roofline; 0 where nothing is known of its speed.
        bytes: that one call moves.
        findings: what is worth mending, most expensive first.
        notes: what the figures are, and what they leave out, a line each.
    """

    function: str
    target: str
    device: str
    half: str
    seconds: float
    bytes: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each finding."""
        return tuple(finding.kind for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, one entry for each attribute."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["findings"] = [dataclasses.asdict(finding) for finding in self.findings]
        data["notes"] = list(self.notes)
        return data

    def to_json(self, *, indent: int | None = None) -> str:
        """:meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def page_section(self) -> dict[str, Any]:
        """The record as a section of the report page."""
        from duotone.advising.advice_page import advice_section

        return advice_section(self)
