"""Finds the operation to blame in the rows of a run and its float32 reference.

::

    first     the earliest site with an element that is not finite while its reference is
    cause     overflow in the forward or backward pass, if the reference does not fit half;
              otherwise an earlier value became 0
    pins      operations that make or read a half value whose reference does not fit
    otherwise find the first NaN of float32 and follow its operands back to their origin
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from duotone import _jax
from duotone.blaming import ranking
from duotone.blaming.findings import BlameRecord, Suspect, Verdict
from duotone.blaming.reference_run import Names, ValueSite
from duotone.blaming.reference_statistics import (
    BAD,
    COUNT,
    ERROR,
    FULL_TICK,
    HIGH,
    ITERATION,
    LOW,
    SIZE,
    TICK,
    UNDERFLOW,
    ZERO,
)
from duotone.graph.graph import HALF_TYPES, Node
from duotone.jaxpr.reading.operations import OWN_DOT
from duotone.jaxpr.running.inside import node_marked, without_marks
from duotone.ops.traits import Trait
from duotone.policy.regions import LOSS_SCALE, without_regions
from duotone.precision.ranges import path_of

_MATTERS = 0.01
"""The share of elements that became 0 from which on a site is pinned."""


@dataclasses.dataclass(frozen=True)
class StepRun:
    """One run of a step and its reference.

    Attributes:
        sites: the sites that make values.
        rows: one row of statistics for each site.
        readers: name stacks of the equations that read a site.
        marked: painted programs, by the number in the marks.
        arguments: name of each argument.
        results: sites of the results.
    """

    sites: Sequence[ValueSite]
    rows: np.ndarray
    readers: dict[int, set[Names]]
    marked: Sequence[Any]
    arguments: Sequence[str]
    results: Sequence[int]

    def node(self, names: Names) -> tuple[Any, Node] | None:
        """Returns the painted program and the node that a name stack marks."""
        found = node_marked(name for name, _ in names)
        if found is None:
            return None
        painted = self.marked[found[0]]
        return painted, painted.built.graph.nodes[found[1]]

    def reference(self, site: int) -> float:
        """Returns the greatest magnitude of a reference, 0 if that is not finite."""
        low, high = self.rows[site, [LOW, HIGH]]
        return float(max(abs(low), abs(high))) if np.isfinite([low, high]).all() else 0.0

    def largest(self, site: int) -> float:
        """Returns the largest number of a site's dtype if that is half, else infinity."""
        half = HALF_TYPES.get(self.sites[site].dtype)
        return math.inf if half is None else half.largest

    def emptied(self, site: int) -> float:
        """Returns the share of elements that became 0."""
        return float(self.rows[site, ZERO] / max(self.rows[site, COUNT], 1))

    def error(self, site: int) -> float:
        """Returns the root mean square of the error, relative to that of the reference."""
        error, size = self.rows[site, [ERROR, SIZE]]
        relative = math.sqrt(error / size) if 0 < size < math.inf and error >= 0 else 0.0
        return relative if math.isfinite(relative) else 0.0

    def backward(self, site: int) -> bool:
        """Returns True if a site is in a backward pass."""
        return any(name == "transpose" and by for name, by in self.sites[site].names)

    def maker(self, site: int) -> int:
        """Returns the site whose value a cast to half rounds; for another site, itself."""
        found = self.sites[site]
        if found.eqn is None or found.eqn.primitive.name != "convert_element_type":
            return site
        if found.dtype not in HALF_TYPES or len(found.reads) != 1:
            return site
        return found.reads[0]


def blamed(run: StepRun, half: str) -> BlameRecord:
    """Finds the operation to blame in a run, and the cause."""
    inputs = _bad_inputs(run)
    scale, fitting = _scales(run)
    first, culprit, pins = _first_bad(run), None, ()
    if first is not None:
        verdict = _cause(run, first, scale, fitting)
        if verdict is Verdict.UNDERFLOW:
            culprit = _emptied(run, first)
        if verdict is not Verdict.LOSS_SCALE:
            scale_helps = scale is not None and fitting is not None and fitting >= 1
            pins = _pins(run, first, culprit, scale_helps=scale_helps)
    else:
        verdict, first = _of_float32(run, inputs)
    return BlameRecord(
        verdict,
        None if first is None else suspect(run, first),
        None if culprit is None else suspect(run, culprit),
        tuple(pins),
        scale,
        fitting,
        inputs,
        _ranked(run, ranking.shares_lost(run), is_error=False),
        _ranked(run, ranking.errors(run), is_error=True),
        half,
        HALF_TYPES[half].largest,
        sum(site.eqn is not None for site in run.sites),
        in_half=sum(site.dtype in HALF_TYPES for site in run.sites),
    )


def _bad_inputs(run: StepRun) -> tuple[str, ...]:
    """Returns the names of arguments that are not finite."""
    found = (k for k, site in enumerate(run.sites) if site.eqn is None)
    return tuple(
        site.names[0][0]
        for k in found
        if (site := run.sites[k]) and not np.isfinite(run.rows[k, [LOW, HIGH]]).all()
    )


def _first_bad(run: StepRun) -> int | None:
    """Returns the earliest site with an element that is not finite while its reference is."""
    bad = np.flatnonzero(run.rows[:, BAD] > 0)
    return min(bad.tolist(), key=lambda k: (run.rows[k, TICK], k), default=None)


def _scales(run: StepRun) -> tuple[float | None, float | None]:
    """Returns the loss scale and the greatest power of two at which the backward pass fits."""
    backward = [k for k in range(len(run.sites)) if run.backward(k)]
    scaled = [k for k in backward if (LOSS_SCALE, False) in run.sites[k].names]
    scale = max((run.reference(k) for k in scaled), default=0.0)
    if not scale:
        return None, None
    over = max((run.reference(k) / run.largest(k) for k in backward), default=0.0)
    fitting = scale if over <= 1 else 2.0 ** math.floor(math.log2(scale / over))
    return scale, fitting


def _cause(run: StepRun, first: int, scale: float | None, fitting: float | None) -> Verdict:
    if run.reference(first) <= run.largest(first) and not _overflows_before(run, first):
        return Verdict.UNDERFLOW if _emptied(run, first) is not None else Verdict.OVERFLOW
    if not run.backward(first):
        return Verdict.OVERFLOW
    if scale is not None and fitting is not None and fitting >= 1:
        return Verdict.LOSS_SCALE
    return Verdict.BACKWARD


def _overflows_before(run: StepRun, first: int) -> bool:
    """Checks if the first operation is float32 and reads numbers that are too large for half."""
    return run.sites[first].dtype not in HALF_TYPES and any(
        run.reference(k) > run.largest(k) for k in run.sites[first].reads
    )


def _emptied(run: StepRun, site: int) -> int | None:
    """Returns the nearest ancestor of a site at which numbers became 0."""
    seen, layer = {site}, [site]
    while layer:
        lost = [k for k in layer if run.rows[k, ZERO] > 0]
        if lost:
            return max(lost, key=run.emptied)
        layer = [k for s in layer for k in run.sites[s].reads if k not in seen]
        seen.update(layer)
    return None


def _emptied_before(run: StepRun, site: int) -> set[int]:
    """Returns a site and its ancestors along paths on which numbers became 0 at every site."""
    found, stack = {site}, [site]
    while stack:
        for k in run.sites[stack.pop()].reads:
            if k not in found and run.emptied(k) > _MATTERS:
                found.add(k)
                stack.append(k)
    return found


def _pins(run: StepRun, first: int, culprit: int | None, *, scale_helps: bool) -> list[str]:
    """Returns patterns of the operations that make or read a half value that does not fit."""
    sites = [] if culprit is not None else [first]
    sites += [] if culprit is None else sorted(_emptied_before(run, culprit))
    for k in range(len(run.sites)):
        if run.reference(k) > run.largest(k) and not (scale_helps and run.backward(k)):
            sites.append(k)
    paths: dict[str, None] = {}
    for k in sites:
        for names in (run.sites[k].names, *sorted(run.readers.get(k, ()))):
            found = run.node(names)
            if found is not None and Trait.STRUCTURAL not in found[1].traits:
                paths[path_of(found[1])] = None
    return [_escaped(path) for path in paths]


def _escaped(path: str) -> str:
    """Returns a pattern that matches exactly a path."""
    return (
        path
        if fnmatch.fnmatchcase(path, path)
        else "".join(f"[{c}]" if c in "[" else c for c in path)
    )


def _of_float32(run: StepRun, inputs: Sequence[str]) -> tuple[Verdict, int | None]:
    """Returns the verdict on a run that half does not break, and the site if there is one."""
    bad = np.isfinite(run.rows[:, FULL_TICK])
    nan = np.flatnonzero(np.isnan(run.rows[:, LOW])).tolist()
    starts = nan or [k for k in run.results if k >= 0 and bad[k]]
    if not starts:
        return Verdict.FINITE, None
    if inputs:
        return Verdict.INPUT, next(k for k, s in enumerate(run.sites) if s.eqn is None and bad[k])
    return Verdict.FLOAT32, _origin(run, bad, starts)


def _origin(run: StepRun, bad: np.ndarray, starts: Sequence[int]) -> int:
    """Follows the earliest of some sites back to the first ancestor that is not finite."""

    def moment(k: int) -> tuple[float, int]:
        return float(run.rows[k, FULL_TICK]), k

    found, seen = min(starts, key=moment), set[int]()
    while True:
        seen.add(found)
        latest = moment(found)[0]
        reads = set(run.sites[found].reads) - seen
        before = [k for k in reads if bad[k] and moment(k)[0] <= latest]
        if not before:
            return found
        found = min(before, key=moment)


def suspect(run: StepRun, site: int) -> Suspect:
    """Returns the operation at a site with its statistics."""
    made, row = run.maker(site), run.rows[site]
    at = run.sites[made]
    reader = ""
    if made != site and (reads := run.node(run.sites[site].names)) is not None:
        maker = run.node(at.names)
        same = maker is not None and maker[1] is reads[1]
        reader = "" if same else reads[1].op
    operation, scope, source, rule = _described(run, at)
    count = max(float(row[COUNT]), 1.0)
    return Suspect(
        operation,
        scope,
        source,
        rule,
        run.sites[site].dtype,
        tuple(at.shape),
        reader,
        float(row[LOW]),
        float(row[HIGH]),
        int(row[BAD]),
        int(row[ITERATION]) if run.sites[site].loop and row[BAD] else None,
        float(row[UNDERFLOW]) / count,
        run.error(site),
        run.backward(site),
    )


def _described(run: StepRun, at: ValueSite) -> tuple[str, str, str, str]:
    """Returns the operation, scope, source line and rule of a site."""
    if at.eqn is None:
        return "argument", at.names[0][0], "", ""
    found = run.node(at.names)
    if found is not None:
        painted, node = found
        rule = str(painted.painting.rules[node.index])
        return node.op, node.scope, at.first_known(str(node.source)), rule
    own = str(at.eqn.primitive.name)
    name = "dot_general" if own == OWN_DOT else own
    scopes = without_regions(without_marks(name for name, by in at.names if not by))
    return name, "/".join(scopes), at.first_known(_jax.source_line(at.eqn)), ""


def _ranked(run: StepRun, sizes: np.ndarray, *, is_error: bool) -> tuple[Suspect, ...]:
    """Ranks operations by a figure of their sites, each once, the user's own lines first."""
    ranked: list[Suspect] = []
    for group in ranking.order(run, sizes):
        found: dict[Any, Suspect] = {}
        for k in group:
            if len(found) == ranking.MOST:
                break
            one = suspect(run, k)
            if is_error:
                one = dataclasses.replace(one, error=float(sizes[k]))
            found.setdefault((one.path, one.source, one.reader, one.backward), one)
        ranked += found.values()
    return tuple(ranked)
