"""The road: the stages in order, each by name.

::

    fn, args ─ trace ─► Traced ─ build ─► Graph ─ classify, KEEPS ─► Classes
             ─ find_ranges ─► Ranges ─ keep_places, refine, decline ─► Classes
             ─ paint, hand_on_full ─► Painting
             ─ cast_beforehand ─► Graph, Painting ─ plan_trilinear, unrounded ─► Painting
             ─ plan_casts ─► CastPlan ─ plan_epilogues, plan_residuals, plan_factors, plan_picks
             ─► Plans ─ rewrite ─► jaxpr ─ run ─► results

Each stage takes earlier values and returns a new one; graphs, classes and paintings are checked.
Who calls this: :mod:`duotone.api`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

from duotone import _jax, dumps
from duotone.calibration import Calibration
from duotone.errors import RewriteError
from duotone.graph.beforehand import cast_beforehand
from duotone.graph.carries import keep_carries
from duotone.graph.casts import CastPlan, Hold, plan_casts
from duotone.graph.classes import Classes, Pins, check_classes, classify
from duotone.graph.distances import keep_distances
from duotone.graph.epilogues import plan_epilogues
from duotone.graph.factors import plan_factors
from duotone.graph.forms import NOTHING_GAINS, decline, hand_on_full
from duotone.graph.graph import HALF_TYPES, Boundary, Graph, HalfType, Paint, check_graph
from duotone.graph.iterations import keep_iterations
from duotone.graph.lists import Kind, OpLists
from duotone.graph.painters import PAINTERS
from duotone.graph.painting import Painting, check_painting
from duotone.graph.picks import plan_picks
from duotone.graph.places import keep_places
from duotone.graph.plans import Plans
from duotone.graph.ranges import (
    Assumptions,
    assume,
    check_fingerprint,
    find_ranges,
    fingerprint,
    nearest,
    path_of,
    paths_of,
    refine,
)
from duotone.graph.residuals import plan_residuals
from duotone.graph.solves import keep_solves
from duotone.graph.trilinear import Trilinears, plan_trilinear, unrounded
from duotone.jaxpr import custom, half_rules, nested  # noqa: F401  (register the forms)
from duotone.jaxpr.build import build
from duotone.jaxpr.lists import ENTRIES
from duotone.jaxpr.program import Built
from duotone.jaxpr.rewrite import Rewriter
from duotone.policy import LISTS, PATTERN_FIELDS, Policy
from duotone.targets.forms import DeviceForms, current_forms

logger = logging.getLogger("duotone")

KEEPS = (keep_iterations, keep_solves, keep_distances, keep_carries)
"""What stays full for what the program does with it, before anything is known of ranges."""


@dataclasses.dataclass(frozen=True, slots=True)
class Painted:
    """The values of all stages of one program, up to the cast plan."""

    built: Built
    classes: Classes
    painting: Painting
    plan: CastPlan
    plans: Plans
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
    static: int = 0,
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
        static: how many of the first arguments are the same at every call; those that are read in
            half only are to be handed over in half, see :attr:`Painted.given`.
    """
    forms = forms or current_forms(half.name)
    built = build(jaxpr, given, boundaries)
    graph = check_graph(built.graph)
    policy.check_names(_known_names() | {node.op for node in graph.nodes})
    lists = _lists(policy, half)
    pins = Pins(policy.keep_full, policy.keep_half)
    force_all = policy.level == "UNSAFE_FORCE_ALL"
    classes = check_classes(classify(graph, lists, half, pins, force_all=force_all), graph)
    # TensorFlow's rules know no ranges; what the user says of values holds for them all the same.
    by_rules = policy.painter != "tensorflow" and policy.level is None
    ranges = None
    if by_rules:
        for keep in KEEPS:
            classes = check_classes(keep(classes, graph), graph)
    if by_rules or policy.ranges or policy.calibration is not None:
        ranges = find_ranges(graph, _assumptions(policy, graph, arguments))
        if by_rules:
            classes = check_classes(keep_places(classes, graph, ranges.of), graph)
        classes = check_classes(refine(classes, graph, ranges, half), graph)
    classes = check_classes(decline(classes, graph, forms.worth), graph)
    painting = hand_on_full(PAINTERS[policy.painter](graph, classes), classes, forms.worth)
    painting = check_painting(painting, graph)
    if static:
        graph, painting = cast_beforehand(graph, classes, painting, graph.inputs[:static])
        built = Built(check_graph(graph), built.program)
        painting = check_painting(painting, graph)
    anew = policy.painter != "tensorflow" and not forms.worth.only_allow
    trilinear = Trilinears()
    if anew and forms.finishes and ranges is not None:
        trilinear = plan_trilinear(graph, painting, ranges.of)
        painting = check_painting(unrounded(painting, trilinear), graph)
    plan = plan_casts(graph, classes, painting, hold=forms.holds)
    plans = _plans(graph, classes, painting, forms, trilinear) if anew else Plans()
    if policy.log_decisions:
        dumps.log_decisions(graph, classes, painting)
    return Painted(built, classes, painting, plan, plans, half, forms)


def _plans(
    graph: Graph, classes: Classes, painting: Painting, forms: DeviceForms, trilinear: Trilinears
) -> Plans:
    """What a device gains from carrying out in another form."""
    joined = plan_epilogues(graph, classes, painting) if forms.joins else frozenset()
    return Plans(
        plan_residuals(
            graph,
            classes,
            painting,
            joined,
            kept=forms.kept,
            firm=forms.holds is Hold.NOTHING,
        ),
        plan_factors(graph, classes, painting, forms.factors),
        trilinear,
        plan_picks(graph, painting) if forms.picks else {},
        joined,
    )


def _assumptions(policy: Policy, graph: Graph, arguments: Sequence[str] | None) -> Assumptions:
    """What the policy says of the values of a program."""
    calibration = _calibration(policy, graph) if arguments is not None else None
    measured = {} if calibration is None else calibration.measured
    return assume(graph, policy.ranges, arguments, measured)


def _calibration(policy: Policy, graph: Graph) -> Calibration | None:
    """The calibration of a program; one that is given alone must be that."""
    if not isinstance(policy.calibration, tuple):
        if policy.calibration is not None:
            check_fingerprint(policy.calibration.fingerprint, graph, policy.calibration.function)
        return policy.calibration
    own = fingerprint(graph)
    for measured in policy.calibration:
        if measured.fingerprint == own:
            return measured
    if policy.calibration and own not in _UNMEASURED:
        _UNMEASURED.add(own)
        logger.warning(
            "no calibration is of this program (%d operations): it is painted without. There are "
            "those of %s; measure this one too, or leave it if it needs none.",
            len(graph.nodes),
            ", ".join(measured.function for measured in policy.calibration),
        )
    return None


_UNMEASURED: set[str] = set()
"""Programs of which it was said."""


def rewriter_of(painted: Painted, policy: Policy) -> Rewriter:
    """The rewriter of a painted program; derivative rules inside are painted by the same policy."""

    def repaint(
        jaxpr: _jax.ClosedJaxpr, given: Sequence[Paint], boundaries: Sequence[Boundary]
    ) -> Rewriter:
        inner = paint_jaxpr(jaxpr, policy, painted.half, given, boundaries, painted.forms)
        return rewriter_of(inner, policy)

    return Rewriter(
        painted.built,
        painted.painting,
        painted.plan,
        painted.half.name,
        repaint,
        painted.plans,
        painted.forms.dots,
        dict(painted.forms.math),
    )


def paint_for_device(
    jaxpr: _jax.ClosedJaxpr,
    policy: Policy,
    half: HalfType | None,
    *,
    chosen: bool = False,
    arguments: Sequence[str] | None = None,
    static: int = 0,
) -> Painted:
    """Paints a program in the forms of the device.

    Args:
        jaxpr: the program.
        policy: merged with the environment.
        half: the half type; ``None`` where only the policy's float32 math is to be carried out.
        chosen: whether duotone chose it; what does not gain on the device then stays as it is.
        arguments: as for :func:`paint_jaxpr`.
        static: likewise.
    """
    forms = device_forms(policy, half or HALF_TYPES["bfloat16"], chosen)
    if half is None:
        half, forms = HALF_TYPES["bfloat16"], dataclasses.replace(forms, worth=NOTHING_GAINS)
    painted = paint_jaxpr(jaxpr, policy, half, forms=forms, arguments=arguments, static=static)
    _warn_of_idle_patterns(policy, painted.built.graph)
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
    classes = classify(graph, _lists(policy, half), half, Pins((), ()))
    full = (Paint.FULL,) * len(graph.nodes)
    painting = check_painting(Painting(full, full, ("off",) * len(full), {}), graph)
    plan = plan_casts(graph, classes, painting, hold=Hold.NOTHING)
    return Painted(built, classes, painting, plan, Plans(), half, device_forms(policy, half, False))


def _warn_of_idle_patterns(policy: Policy, graph: Graph) -> None:
    """Says once of each name-scope pattern that no operation has such a name.

    No error, since one policy may be for several functions.
    """
    for field in PATTERN_FIELDS:
        for pattern in getattr(policy, field):
            matches = re.compile(fnmatch.translate(pattern)).match
            if (field, pattern) in _IDLE or any(matches(path_of(node)) for node in graph.nodes):
                continue
            _IDLE.add((field, pattern))
            near = nearest(pattern, paths_of(graph))
            logger.warning(
                "Policy(%s=[%r]): no operation of this function is called so%s. Names are name "
                "scopes and the operation, joined by /; duotone.explain lists them.",
                field,
                pattern,
                f"; the nearest is {near!r}" if near else "",
            )


_IDLE: set[tuple[str, str]] = set()
"""Field and pattern of which it was said."""


def carry_out(
    jaxpr: _jax.ClosedJaxpr, painted: Painted, policy: Policy
) -> Callable[..., list[Any]]:
    """The rewritten program; whoever traces it has its jaxpr.

    Args:
        jaxpr: the program.
        painted: its colours.
        policy: that painted it.

    Returns:
        A function of arrays as they are to be given, which returns what ``jaxpr`` returns, types
        included. It raises :class:`~duotone.errors.RewriteError` where it does not.
    """
    run = _jax.jaxpr_as_fun(jaxpr)
    opened = _jax.open_jaxpr(jaxpr)
    if painted.painting.changed or painted.forms.math:
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


@functools.cache
def _known_names() -> frozenset[str]:
    """What list edits may name, whatever the program is.

    Names on the lists that JAX does not export are known too: primitives that JAX keeps to itself
    (``tile``), or has in another version only (``log2``), and meanings (``eq_calculated``).
    """
    return _jax.known_primitives() | {entry.op for entry in ENTRIES}


@functools.lru_cache(maxsize=64)
def _lists(policy: Policy, half: HalfType) -> OpLists:
    """The lists for a half type, with a policy's edits and level."""
    lists = OpLists.for_half(ENTRIES, half.name)
    added = {Kind(name): getattr(policy, f"{name}_add") for name in LISTS}
    removed = {Kind(name): getattr(policy, f"{name}_remove") for name in LISTS}
    return lists.leveled(policy.level).edited(added, removed)
