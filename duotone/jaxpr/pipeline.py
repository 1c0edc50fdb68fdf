"""Paints a jaxpr, and rewrites it as painted.

::

    fn, args ─ trace ─► Traced ─ build ─► Graph
             ─ resolve ─► Resolved ─ decide ─► Decisions
             ─ rewrite ─► jaxpr ─ run ─► results

:func:`duotone.precision.pipeline.decide` calls the stages that decide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from duotone import _jax
from duotone.devices.options import compiler_options, options_of, painting_for
from duotone.devices.table import DeviceForms, current_forms
from duotone.errors import RewriteError
from duotone.graph.graph import HALF_TYPES, Boundary, HalfType, Paint
from duotone.jaxpr import dumps
from duotone.jaxpr.decision_cache import decide_once
from duotone.jaxpr.nesting import custom, nested
from duotone.jaxpr.painted import ALONE, CallSite, PaintedProgram
from duotone.jaxpr.policy_of_program import check_names, resolved_for, warn_of_patterns
from duotone.jaxpr.reading.build import build
from duotone.jaxpr.reading.program import BuiltGraph
from duotone.jaxpr.rules import half_rules
from duotone.jaxpr.running.inside import collection_now
from duotone.jaxpr.running.jaxprs import same_type
from duotone.jaxpr.running.own_jit import decided
from duotone.jaxpr.running.rewrite import Rewriter
from duotone.policy.policy import Policy
from duotone.policy.resolve import without
from duotone.precision.classify.profitability import NOTHING_GAINS
from duotone.precision.pipeline import Capabilities, Decisions, leave_full
from duotone.precision.ranges.intervals import INTERVAL_RULES
from duotone.precision.ranges.measurements import assumptions_of
from duotone.precision.resolved import Resolved

CAPABILITIES = Capabilities(
    painters=frozenset({"duotone", "tensorflow"}),
    two_precisions=True,
    fuses_casts=True,
    takes_optimizations=True,
    trained_constants=False,
    ranges_for_all_painters=False,
    interval_rules=INTERVAL_RULES,
)
"""JAX programs: XLA fuses casts, and the author wrote the constants."""

_HANDLERS = {**half_rules.HANDLERS, **nested.HANDLERS, **custom.HANDLERS}
"""By ``Step.kind``: what rewrites a painted step."""


def paint_jaxpr(
    jaxpr: _jax.ClosedJaxpr,
    policy: Policy,
    half: HalfType,
    forms: DeviceForms | None = None,
    site: CallSite = ALONE,
) -> PaintedProgram:
    """Paints a jaxpr, up to the cast plan.

    Args:
        jaxpr: the program.
        policy: merged with the environment.
        half: the half type.
        forms: how half is used on the device; if omitted, every operation that may be half is
            painted.
        site: how it is called.
    """
    forms = forms or current_forms(half.name)
    built = build(jaxpr, site.given, site.boundaries, site.scopes)
    check_names(policy, built.graph)
    return _paint_built(built, resolved_for(policy, half, forms), forms, site)


def _paint_built(
    built: BuiltGraph, resolved: Resolved, forms: DeviceForms, site: CallSite
) -> PaintedProgram:
    graph = built.graph
    known = assumptions_of(graph, resolved.ranges, resolved.measurements, site.arguments)
    weights = graph.inputs[: site.weights]
    found = decide_once(graph, resolved, CAPABILITIES, assumptions=known, weights=weights)
    if resolved.log_decisions:
        dumps.log_decisions(found.graph, found.classes, found.painting)
    return _painted(built, found, resolved, forms)


def _painted(
    built: BuiltGraph, found: Decisions, resolved: Resolved, forms: DeviceForms
) -> PaintedProgram:
    return PaintedProgram(
        BuiltGraph(found.graph, built.program),
        found.classes,
        found.painting,
        found.plan,
        found.optimizations,
        resolved,
        forms,
    )


def rewriter_of(painted: PaintedProgram, *, derives: bool = True) -> Rewriter:
    """Returns the rewriter of a painted program; its policy also paints derivative rules.

    Args:
        painted: the program.
        derives: whether its dots have derivatives of their own.
    """

    def repaint(
        jaxpr: _jax.ClosedJaxpr,
        given: Sequence[Paint],
        boundaries: Sequence[Boundary],
        scopes: tuple[str, ...],
    ) -> Rewriter:
        site = CallSite(given, boundaries, scopes=scopes)
        inner = build(jaxpr, given, boundaries, scopes)
        repainted = _paint_built(inner, painted.resolved, painted.forms, site)
        return rewriter_of(repainted, derives=derives)

    collection = collection_now()
    mark = None if collection is None else collection.marker_of(painted)
    return Rewriter(painted, _HANDLERS, repaint, mark, derives=derives)


def paint_for_device(
    jaxpr: _jax.ClosedJaxpr,
    policy: Policy,
    half: HalfType | None,
    *,
    chosen: bool = False,
    site: CallSite = ALONE,
) -> PaintedProgram:
    """Paints a program in the forms of the device.

    Args:
        jaxpr: the program.
        policy: merged with the environment.
        half: the half type; ``None`` if only the policy's float32 math is to be applied.
        chosen: whether duotone chose it; operations that do not gain on the device then stay as
            they are.
        site: how it is called.
    """
    forms = device_forms(policy, half or HALF_TYPES["bfloat16"], chosen)
    if half is None:
        half, forms = (
            HALF_TYPES["bfloat16"],
            dataclasses.replace(forms, profitability=NOTHING_GAINS),
        )
        policy = without(policy, ["reduce_dtype"])
    painted = paint_jaxpr(jaxpr, policy, half, forms, site)
    warn_of_patterns(painted.resolved.pins, painted.built.graph)
    return painted


def resolved_for_device(
    policy: Policy, half: HalfType, *, chosen: bool
) -> tuple[Resolved, DeviceForms]:
    """Resolves a policy as :func:`paint_for_device` does, without a program."""
    forms = device_forms(policy, half, chosen)
    return resolved_for(policy, half, forms), forms


def paint_alone(
    jaxpr: _jax.ClosedJaxpr,
    policy: Policy,
    half: HalfType,
    *,
    chosen: bool = False,
    site: CallSite = ALONE,
) -> PaintedProgram:
    """Paints a program as for a call outside of ``jit``, with compiler options if they gain."""
    if not (declines(policy, chosen) and compiler_options()):
        return paint_for_device(jaxpr, policy, half, chosen=chosen, site=site)

    def paint(options: bool | None) -> tuple[PaintedProgram, Callable[[], _jax.ClosedJaxpr]]:
        with painting_for(options):
            painted = paint_for_device(jaxpr, policy, half, chosen=chosen, site=site)
        return painted, lambda: _traced(_rewritten(jaxpr, painted), jaxpr, painted)

    return decided(paint, (), rewritten=True)


def paint_full(jaxpr: _jax.ClosedJaxpr, policy: Policy) -> PaintedProgram:
    """Returns a program in which nothing is half, since mixed precision is switched off.

    The list edits of the policy show in its record.
    """
    half, built = HALF_TYPES["bfloat16"], build(jaxpr)
    forms = device_forms(policy, half, False)
    resolved = resolved_for(without(policy, ["reduce_dtype"]), half, forms)
    return _painted(built, leave_full(built.graph, resolved), resolved, forms)


def lower(jaxpr: _jax.ClosedJaxpr, painted: PaintedProgram) -> Callable[..., list[Any]]:
    """Returns the rewritten program as a function; tracing it gives the jaxpr.

    Returns:
        A function of arrays in the precisions of
        :attr:`~duotone.jaxpr.painted.PaintedProgram.given`. It raises
        :class:`~duotone.errors.RewriteError` if its results do not have the types of those of
        ``jaxpr``.
    """
    run = _rewritten(jaxpr, painted)
    if painted.resolved.log_path is not None:
        after = _traced(run, jaxpr, painted)
        folder, graph = painted.resolved.log_path, painted.built.graph
        dumps.write(folder, jaxpr, after, graph, painted.classes, painted.painting)
    return run


def lower_for_values(jaxpr: _jax.ClosedJaxpr, painted: PaintedProgram) -> Callable[..., list[Any]]:
    """Returns the rewritten program for calls that JAX does not differentiate.

    It is :func:`lower` without derivatives of single dots: a third less to trace and lower for each
    shape of dot.

    Args:
        jaxpr: the program.
        painted: its precisions.
    """
    return _rewritten(jaxpr, painted, derives=False)


def _rewritten(
    jaxpr: _jax.ClosedJaxpr, painted: PaintedProgram, *, derives: bool = True
) -> Callable[..., list[Any]]:
    if not painted.changed:
        return _jax.jaxpr_as_fun(jaxpr)
    rewriter = rewriter_of(painted, derives=derives)
    avals = [atom.aval for atom in _jax.open_jaxpr(jaxpr).outvars]

    def run(*leaves: Any) -> list[Any]:
        pairs = zip(rewriter(*leaves), avals, strict=True)
        results = [rewriter.match(array, aval, Paint.FULL) for array, aval in pairs]
        _check_results(results, avals)
        return results

    return run


def _traced(
    run: Callable[..., list[Any]], jaxpr: _jax.ClosedJaxpr, painted: PaintedProgram
) -> _jax.ClosedJaxpr:
    given = zip(_jax.open_jaxpr(jaxpr).in_avals, painted.given, strict=True)
    half = jax.numpy.dtype(painted.half.name)
    return jax.make_jaxpr(run)(
        *[aval.update(dtype=half) if paint is Paint.HALF else aval for aval, paint in given]
    )


def declines(policy: Policy, chosen: bool) -> bool:
    """Checks if operations that do not gain stay full, as they do if the user named no dtype."""
    reference = policy.painter == "tensorflow" or policy.level == "UNSAFE_FORCE_ALL"
    return chosen and not policy.ignore_performance and not reference


def device_forms(policy: Policy, half: HalfType, chosen: bool) -> DeviceForms:
    """Returns the forms of half on the device."""
    may_decline = declines(policy, chosen)
    return current_forms(
        half.name,
        declines=may_decline,
        options=may_decline and options_of(policy.compiler_options),
        float32_math=policy.float32_math,
        convolution_math=policy.convolution_math,
    )


def _check_results(results: Sequence[Any], avals: Sequence[Any]) -> None:
    """Checks that a rewrite keeps the types of results."""
    for position, (result, aval) in enumerate(zip(results, avals, strict=True)):
        if not same_type(jax.typeof(result), aval):
            raise RewriteError(
                f"result {position} was {aval} and became {jax.typeof(result)}; this is a bug in "
                "duotone, please report the program"
            )
