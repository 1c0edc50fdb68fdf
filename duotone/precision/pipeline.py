"""The pipeline: every stage that decides, in order, for each front end.

::

    Graph ─ classify ─► Classes ─ find_ranges ─► Ranges
          ─ SAFETY_RULES, allow_small_addends ─► Classes
          ─ PAINTERS, keep_accumulators, fewer_casts ─► Painting
          ─ cast_beforehand ─► Graph, Painting ─ find_optimizations ─► Optimizations, Painting
          ─ plan_casts ─► CastPlan ─ plan_residuals, with_statistics, without_scale ─► Recompute
          ─ materialize_rows ─► CastPlan ─ find_reductions ─► Reductions

A front end reads its program into a graph, says what its programs can do, and applies the result.
No stage asks which front end it is. Each stage takes earlier values and returns a new one; graphs,
classes and paintings are checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from duotone.errors import PolicyError
from duotone.graph.check import check_graph
from duotone.graph.graph import Graph, Paint
from duotone.precision.casts.beforehand import cast_beforehand
from duotone.precision.casts.cast_plan import CastPlan, plan_casts
from duotone.precision.casts.reductions import find_reductions
from duotone.precision.classify.classes import (
    Classes,
    NodeNames,
    check_classes,
    classify,
    path_alone,
)
from duotone.precision.classify.declining import keep_accumulators
from duotone.precision.context import Background
from duotone.precision.optimize.free_scales import without_scale
from duotone.precision.optimize.optimizations import (
    IN_FLOAT32,
    NO_OPTIMIZATIONS,
    Optimizations,
    find_optimizations,
)
from duotone.precision.optimize.painted_view import View
from duotone.precision.optimize.residuals import Recompute, plan_residuals
from duotone.precision.optimize.row_statistics import materialize_rows, with_statistics
from duotone.precision.painters import PAINTERS
from duotone.precision.painters.fewer import fewer_casts
from duotone.precision.painters.painting import Painting, check_painting
from duotone.precision.ranges.elementwise import IntervalRule
from duotone.precision.ranges.find import (
    NO_ASSUMPTIONS,
    NO_RANGES,
    Assumptions,
    Ranges,
    find_ranges,
)
from duotone.precision.resolved import Resolved
from duotone.precision.rules import Rule
from duotone.precision.safety.safety_rules import SAFETY_RULES
from duotone.precision.safety.small_constants import allow_small_addends


@dataclasses.dataclass(frozen=True, slots=True)
class Capabilities:
    """The properties of a front end's programs that the stages ask for.

    Attributes:
        painters: the names of the painters for its programs.
        two_precisions: whether a node can compute in one precision and store in another.
        fuses_casts: whether a cast is part of the kernels around it; else it is an operation.
        takes_optimizations: whether the front end applies optimizations and a cast plan; else it
            makes casts as it writes the program.
        trained_constants: whether constants may be weights, and not numbers that the author wrote.
        ranges_for_all_painters: whether ranges that are proven, and not stated by the user, hold
            for TensorFlow's painter too.
        interval_rules: the interval rule of each operation.
    """

    painters: frozenset[str]
    two_precisions: bool
    fuses_casts: bool
    takes_optimizations: bool
    trained_constants: bool
    ranges_for_all_painters: bool
    interval_rules: Mapping[str, IntervalRule]


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions:
    """The result of the pipeline.

    Attributes:
        graph: the program; weights that are cast beforehand are given in half.
        classes: the class of each node.
        painting: its precisions.
        plan: its casts; empty if the front end makes casts as it writes.
        optimizations: the operations that are applied in another form.
    """

    graph: Graph
    classes: Classes
    painting: Painting
    plan: CastPlan
    optimizations: Optimizations


def decide(
    graph: Graph,
    resolved: Resolved,
    can: Capabilities,
    *,
    assumptions: Assumptions = NO_ASSUMPTIONS,
    weights: Sequence[int] = (),
    names: NodeNames = path_alone,
) -> Decisions:
    """Decides the precision of each operation and stored value of a program.

    Args:
        graph: the program.
        resolved: the user's policy.
        can: the capabilities of the front end's programs.
        assumptions: the ranges that are stated or were measured.
        weights: values that are the same at every call, to be given in half if read in half only.
        names: the names of a node that the user's patterns may match.

    Returns:
        The decisions of all stages.

    Raises:
        PolicyError: the painter is not for these programs, or a node is pinned to both precisions.
        RangeError: a stated range contradicts the known range of a value.
    """
    graph = check_graph(graph)
    classes = _classify(graph, resolved, names)
    ranges = _find_ranges(graph, resolved, can, assumptions)
    background = Background(
        graph, resolved.half, ranges, resolved.profitability, frozenset(weights)
    )
    classes = _apply_safety_rules(classes, background, resolved)
    classes = _allow_small_addends(classes, background, resolved, can)
    painting = _paint(graph, classes, resolved, can)
    painting = keep_accumulators(painting, background)
    painting = _in_one_precision(painting, can)
    painting = _with_fewer_casts(graph, classes, painting, resolved, can)
    graph, painting = _cast_beforehand(graph, classes, painting, weights)
    if not can.takes_optimizations:
        return Decisions(graph, classes, painting, CastPlan((), {}), NO_OPTIMIZATIONS)
    on = resolved.optimizations if painting.changed else resolved.optimizations & IN_FLOAT32
    optimizations, painting = find_optimizations(View(graph, classes, painting, ranges.of), on)
    view = View(graph, classes, check_painting(painting, graph), ranges.of)
    plan = plan_casts(graph, classes, painting, on)
    recompute = _plan_residuals(view, on)
    plan = materialize_rows(view, plan, recompute, on)
    optimizations = dataclasses.replace(optimizations, recompute=recompute)
    optimizations = _with_reductions(optimizations, view, resolved.reduce_dtype)
    return Decisions(graph, classes, painting, plan, optimizations)


def leave_full(graph: Graph, resolved: Resolved) -> Decisions:
    """Returns the decisions for a program if mixed precision is off: nothing is half.

    Args:
        graph: the program.
        resolved: the user's policy, whose list edits show in the record.
    """
    graph = check_graph(graph)
    classes = classify(graph, resolved.lists, resolved.half)
    full = (Paint.FULL,) * len(graph.nodes)
    painting = check_painting(Painting(full, full, (Rule.OFF,) * len(full), {}), graph)
    plan = plan_casts(graph, classes, painting)
    return Decisions(graph, classes, painting, plan, NO_OPTIMIZATIONS)


def _classify(graph: Graph, resolved: Resolved, names: NodeNames) -> Classes:
    lists, half, pins = resolved.lists, resolved.half, resolved.pins
    classes = classify(graph, lists, half, pins, names=names, force_all=resolved.force_all)
    return check_classes(classes, graph)


def _find_ranges(
    graph: Graph, resolved: Resolved, can: Capabilities, assumptions: Assumptions
) -> Ranges:
    """Returns the ranges that somebody reads: duotone's rules, or a rule for any painter."""
    if resolved.by_rules or resolved.knows_values or can.ranges_for_all_painters:
        return find_ranges(graph, assumptions, can.interval_rules)
    return NO_RANGES


def _apply_safety_rules(classes: Classes, background: Background, resolved: Resolved) -> Classes:
    for rule in resolved.safety_rules:
        classes = check_classes(SAFETY_RULES[rule](classes, background), background.graph)
    return classes


def _allow_small_addends(
    classes: Classes, background: Background, resolved: Resolved, can: Capabilities
) -> Classes:
    """Lets small weights be added in half; small numbers that the author wrote still deny."""
    if not (can.trained_constants and resolved.by_rules):
        return classes
    graph, ranges = background.graph, background.ranges
    return check_classes(allow_small_addends(graph, classes, ranges, resolved.lists), graph)


def _paint(graph: Graph, classes: Classes, resolved: Resolved, can: Capabilities) -> Painting:
    if resolved.painter not in can.painters:
        raise PolicyError(
            f"the painter is {resolved.painter!r}, which is for saved graphs (duotone rewrite) and "
            "ONNX models. Leave Policy(painter=...) and DUOTONE_PAINTER at 'duotone'."
        )
    off = resolved.rules_off
    if not can.two_precisions:
        off |= {Rule.MIXED.value, Rule.OPERAND.value, Rule.WIDE.value}  # compute full, store half
    return PAINTERS[resolved.painter](graph, classes, off)


def _in_one_precision(painting: Painting, can: Capabilities) -> Painting:
    """Returns the painting in which nodes that cannot differ store what they compute."""
    return painting if can.two_precisions else dataclasses.replace(painting, store=painting.compute)


def _with_fewer_casts(
    graph: Graph, classes: Classes, painting: Painting, resolved: Resolved, can: Capabilities
) -> Painting:
    """Returns a painting with fewer casts, if each cast is an operation."""
    if can.fuses_casts or not resolved.by_rules or Rule.CUT in resolved.rules_off:
        return check_painting(painting, graph)
    return check_painting(fewer_casts(graph, classes, painting), graph)


def _cast_beforehand(
    graph: Graph, classes: Classes, painting: Painting, weights: Sequence[int]
) -> tuple[Graph, Painting]:
    if not weights:
        return graph, painting
    graph, painting = cast_beforehand(graph, classes, painting, tuple(weights))
    return check_graph(graph), check_painting(painting, graph)


def _plan_residuals(view: View, on: frozenset[str]) -> Recompute:
    recompute = with_statistics(view, plan_residuals(view, on), on)
    return without_scale(view, recompute, on)


def _with_reductions(optimizations: Optimizations, view: View, dtype: str | None) -> Optimizations:
    if dtype is None:
        return optimizations
    found = find_reductions(view.graph, view.classes, view.painting, dtype)
    return dataclasses.replace(optimizations, reductions=found)
