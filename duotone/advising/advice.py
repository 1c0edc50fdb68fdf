"""The record of ``duotone.advise``: the findings of the checks."""

from __future__ import annotations

import dataclasses
import json
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A problem that makes a step slower, with its cost and remedy.

    Attributes:
        kind: the name of the check, see ``docs/advise.md``: ``"tiles"``, ``"casts"``, ….
        what: describes the problem.
        remedy: what the user should do.
        operation: the most expensive operation with the problem; empty for the whole step.
        scope: its name scope.
        source: the user's source line; empty if not known.
        count: how many operations of the program have the problem; 0 for the whole step.
        seconds: its roofline cost in one call on the target; 0 if the target's speed or the cost is
            not known.
        bytes: the bytes that one call moves because of the problem; 0 if not known.
        share: the cost as a share of the step's seconds, or of its bytes if the target's speed is
            not known. For ``"sharding"`` it is a share of one device's part of the step. It is
            ``None`` if the cost is not known.
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

    @property
    def named(self) -> tuple[str, str]:
        """The name scope and name of the operation, and how many more have the problem."""
        name = f"{self.scope}/{self.operation}" if self.scope else self.operation
        return name, f" and {self.count - 1} more" if self.count > 1 else ""


@dataclasses.dataclass(frozen=True)
class AdviceRecord:
    """The result of :func:`duotone.advise`.

    Attributes:
        function: the name of the step.
        target: the name of the target.
        device: its maker's name of the device.
        half: the half type of the step there; empty for none.
        seconds: the roofline time of one call; 0 if the target's speed is not known, or if only a
            compiler could tell.
        bytes: the bytes that one call moves; 0 if only a compiler could tell.
        findings: the findings, most expensive first.
        notes: lines that explain the figures and their limits.
        compiled: whether ``seconds`` and ``bytes`` are those of the compiled step.
    """

    function: str
    target: str
    device: str
    half: str
    seconds: float
    bytes: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    compiled: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each finding."""
        return tuple(finding.kind for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data, one entry for each attribute."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["findings"] = [dataclasses.asdict(finding) for finding in self.findings]
        data["notes"] = list(self.notes)
        return data

    def to_json(self, *, indent: int | None = None) -> str:
        """Returns :meth:`to_dict` as JSON.

        Args:
            indent: spaces of each level, as for ``json.dumps``; ``None`` for one line.
        """
        return json.dumps(self.to_dict(), indent=indent)

    def page_section(self) -> dict[str, Any]:
        """Returns the record as a section of the report page."""
        from duotone.advising.advice_page import advice_section

        return advice_section(self)
