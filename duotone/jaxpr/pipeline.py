"""The road: the stages in order, each by name.

::

    fn, args ─ trace ─► Traced ─ build ─► Graph ─ classify ─► Classes
             ─ find_ranges ─► Ranges ─ SAFETY_RULES ─► Classes
             ─ paint, keep_accumulators ─► Painting
             ─ cast_beforehand ─► Graph, Painting ─ find_optimizations ─► Optimizations, Painting
             ─ plan_casts ─► CastPlan ─ plan_residuals, with_statistics, without_scale ─► Recompute
             ─ materialize_rows ─► CastPlan ─ rewrite ─► jaxpr
             ─ run ─► results

Each stage takes earlier values and returns a new one; graphs, classes and paintings are checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from duotone import _jax
from duotone.devices.table import DeviceForms, current_forms
from duotone.errors import RewriteError
from duotone.graph.graph import HALF_TYPES, Boundary, HalfType, Paint, check_graph
from duotone.jaxpr import dumps
from duotone.jaxpr.nesting import custom, nested  # noqa: F401  (register the forms)
from duotone.jaxpr.policy_of_program import (
    assumptions,
    known_names,
    lists_of,
    painter_of,
    reduce_dtype,
    warn_of_idle_patterns,
)
from duotone.jaxpr.reading.build import build
from duotone.jaxpr.reading.program import Built
from duotone.jaxpr.rules import half_rules  # noqa: F401  (likewise)
from duotone.jaxpr.running.inside import collection_now
from duotone.jaxpr.running.rewrite import Rewriter
from duotone.policy.policy import Policy
from duotone.precision.casts.beforehand import cast_beforehand
from duotone.precision.casts.cast_plan import CastPlan, plan_casts
from duotone.precision.casts.reductions import NO_REDUCTIONS, find_reductions
from duotone.precision.classify.classes import Classes, Pins, check_classes, classify
from duotone.precision.classify.declining import keep_accumulators
from duotone.precision.classify.profitability import NOTHING_GAINS
from duotone.precision.context import Background
from duotone.precision.optimize.free_scales import without_scale
from duotone.precision.optimize.optimizations import Optimizations, find_optimizations, switched_on
from duotone.precision.optimize.painted_view import View
from duotone.precision.optimize.residuals import plan_residuals
from duotone.precision.optimize.row_statistics import materialize_rows, with_statistics
from duotone.precision.painters.painting import Painting, check_painting
from duotone.precision.ranges import NO_RANGES, find_ranges
from duotone.precision.rules import Rule
from duotone.precision.safety.safety_rules import OF_ANY_PAINTER, SAFETY_RULES


@dataclasses.dataclass(frozen=True, slots=True)
class Painted:
    """The values of all stages of one program, up to the cast plan."""

    built: Built
    classes: Classes
    painting: Painting
    plan: CastPlan
    optimizations: Optimizations
    half: HalfType
    forms: DeviceForms

    @property
    def given(self) -> tuple[Paint, ...]:
        """How each argument is to be handed over."""
        graph = self.built.graph
        return tuple(graph.values[value].given for value in graph.inputs)


def paint_jaxpr(
    jaxpr: _jax.ClosedJaxpr,
    policy: Policy,
    half: HalfType,
    given: Sequence[Paint] | None = None,
    boundaries: Sequence[Boundary] | None = None,
    forms: DeviceForms | None = None,
    arguments: Sequence[str] | None = None,
    weights: int = 0,
    scopes: tuple[str, ...] = (),
) -> Painted:
    """Calls the stages in order, from a jaxpr to the cast plan.

    Args:
        jaxpr: the program.
        policy: merged with the environment.
        half: the half type.
        given: how each argument arrives; all full if omitted.
        boundaries: how each result must leave; all full if omitted.
        forms: how half is used on the device; all is painted that may be if omitted.
        arguments: the user's name of each argument, by which the policy states ranges; ``None`` for
            a program that is only part of the user's function, or a policy that says nothing of
            values.
        weights: how many of the first arguments are the same at every call; those that are read in
            half only are to be handed over in half, see :attr:`Painted.given`.
        scopes: the name scopes around the program, outermost first.
    """
    forms = forms or current_forms(half.name)
    built = build(jaxpr, given, boundaries, scopes)
    graph = check_graph(built.graph)
    policy.check_names(known_names() | {node.op for node in graph.nodes})
    lists = lists_of(policy, half)
    pins = Pins(policy.keep_full, policy.keep_half)
    force_all = policy.level == "UNSAFE_FORCE_ALL"
    classes = check_classes(classify(graph, lists, half, pins, force_all=force_all), graph)
    by_rules = policy.painter != "tensorflow" and policy.level is None
    knows = by_rules or policy.ranges or policy.calibration is not None
    ranges = find_ranges(graph, assumptions(policy, graph, arguments)) if knows else NO_RANGES
    profitability = forms.profitability.without(policy.optimizations_remove)
    background = Background(graph, half, ranges, profitability)
    for rule, safety_rule in SAFETY_RULES.items():
        if (by_rules or rule in OF_ANY_PAINTER) and rule not in policy.rules_remove:
            classes = check_classes(safety_rule(classes, background), graph)
    painting = painter_of(policy)(graph, classes, policy.rules_remove)
    painting = check_painting(keep_accumulators(painting, classes, background), graph)
    if weights:
        graph, painting = cast_beforehand(graph, classes, painting, graph.inputs[:weights])
        built = Built(check_graph(graph), built.program)
        painting = check_painting(painting, graph)
    any_painter = policy.painter == "tensorflow" or forms.profitability.only_allow
    on = switched_on(forms.optimizations, policy.optimizations_remove, any_painter=any_painter)
    optimizations, painting = find_optimizations(View(graph, classes, painting, ranges.of), on)
    view = View(graph, classes, check_painting(painting, graph), ranges.of)
    plan = plan_casts(graph, classes, painting, on)
    recompute = with_statistics(view, plan_residuals(view, on), on)
    recompute = without_scale(view, recompute, on)
    plan = materialize_rows(view, plan, recompute, on)
    asked = reduce_dtype(policy, half)
    reductions = find_reductions(graph, classes, painting, asked) if asked else NO_REDUCTIONS
    optimizations = dataclasses.replace(optimizations, recompute=recompute, reductions=reductions)
    if policy.log_decisions:
        dumps.log_decisions(graph, classes, painting)
    return Painted(built, classes, painting, plan, optimizations, half, forms)


def rewriter_of(painted: Painted, policy: Policy) -> Rewriter:
    """The rewriter of a painted program; derivative rules inside are painted by the same policy."""

    def repaint(
        jaxpr: _jax.ClosedJaxpr,
        given: Sequence[Paint],
        boundaries: Sequence[Boundary],
        scopes: tuple[str, ...],
    ) -> Rewriter:
        half, forms = painted.half, painted.forms
        inner = paint_jaxpr(jaxpr, policy, half, given, boundaries, forms, scopes=scopes)
        return rewriter_of(inner, policy)

    collection = collection_now()
    return Rewriter(
        painted.built,
        painted.painting,
        painted.plan,
        painted.half.name,
        repaint,
        painted.optimizations,
        painted.forms.dots,
        dict(painted.forms.math),
        None if collection is None else collection.marker_of(painted),
    )


def paint_for_device(
    jaxpr: _jax.ClosedJaxpr,
    policy: Policy,
    half: HalfType | None,
    *,
    chosen: bool = False,
    arguments: Sequence[str] | None = None,
    weights: int = 0,
    given: Sequence[Paint] | None = None,
) -> Painted:
    """Paints a program in the forms of the device.

    Args:
        jaxpr: the program.
        policy: merged with the environment.
        half: the half type; ``None`` where only the policy's float32 math is to be carried out.
        chosen: whether duotone chose it; what does not gain on the device then stays as it is.
        arguments: as for :func:`paint_jaxpr`.
        weights: likewise.
        given: likewise.
    """
    forms = device_forms(policy, half or HALF_TYPES["bfloat16"], chosen)
    if half is None:
        half, forms = (
            HALF_TYPES["bfloat16"],
            dataclasses.replace(forms, profitability=NOTHING_GAINS),
        )
        policy = dataclasses.replace(policy, reduce_dtype=None)
    painted = paint_jaxpr(jaxpr, policy, half, given, None, forms, arguments, weights)
    warn_of_idle_patterns(policy, painted.built.graph)
    return painted


def paint_full(jaxpr: _jax.ClosedJaxpr, policy: Policy) -> Painted:
    """A program in which nothing is half, since mixed precision is switched off.

    Args:
        jaxpr: the program.
        policy: merged with the environment; its list edits show in the record.
    """
    half = HALF_TYPES["bfloat16"]
    built = build(jaxpr)
    graph = check_graph(built.graph)
    classes = classify(graph, lists_of(policy, half), half, Pins((), ()))
    full = (Paint.FULL,) * len(graph.nodes)
    painting = check_painting(Painting(full, full, (Rule.OFF,) * len(full), {}), graph)
    plan = plan_casts(graph, classes, painting)
    forms = device_forms(policy, half, False)
    return Painted(built, classes, painting, plan, Optimizations(), half, forms)


def lower(jaxpr: _jax.ClosedJaxpr, painted: Painted, policy: Policy) -> Callable[..., list[Any]]:
    """The rewritten program; whoever traces it has its jaxpr.

    Args:
        jaxpr: the program.
        painted: its precisions.
        policy: that painted it.

    Returns:
        A function of arrays as they are to be given, which returns what ``jaxpr`` returns, types
        included. It raises :class:`~duotone.errors.RewriteError` where it does not.
    """
    run = _jax.jaxpr_as_fun(jaxpr)
    opened = _jax.open_jaxpr(jaxpr)
    if painted.painting.changed or painted.forms.math or painted.optimizations.reductions.nodes:
        rewriter = rewriter_of(painted, policy)
        avals = [atom.aval for atom in opened.outvars]

        def run(*leaves: Any) -> list[Any]:
            pairs = zip(rewriter(*leaves), avals, strict=True)
            results = [rewriter.match(array, aval, Paint.FULL) for array, aval in pairs]
            _check_results(results, avals)
            return results

    if policy.log_path is not None:
        given = zip(opened.in_avals, painted.given, strict=True)
        half = jax.numpy.dtype(painted.half.name)
        after = jax.make_jaxpr(run)(
            *[aval.update(dtype=half) if paint is Paint.HALF else aval for aval, paint in given]
        )
        dumps.write(
            policy.log_path, jaxpr, after, painted.built.graph, painted.classes, painted.painting
        )
    return run


def device_forms(policy: Policy, half: HalfType, chosen: bool) -> DeviceForms:
    """How half is used on the device; declining is for who left the choice to duotone."""
    reference = policy.painter == "tensorflow" or policy.level == "UNSAFE_FORCE_ALL"
    declines = chosen and not policy.ignore_performance and not reference
    return current_forms(
        half.name,
        declines=declines,
        float32_math=policy.float32_math,
        convolution_math=policy.convolution_math,
    )


def _check_results(results: Sequence[Any], avals: Sequence[Any]) -> None:
    """A rewrite keeps the types of results."""
    for position, (result, aval) in enumerate(zip(results, avals, strict=True)):
        if not _jax.same_type(jax.typeof(result), aval):
            raise RewriteError(
                f"result {position} was {aval} and became {jax.typeof(result)}; this is a fault of "
                "duotone, please report the program"
            )
