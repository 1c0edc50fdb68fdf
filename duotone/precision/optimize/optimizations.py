"""The registry: every optimization by name, and the stage that finds those of a program.

An entry without ``match`` is decided in the file that its ``elsewhere`` names. Policies, views and
``docs/optimizations.md``, which is generated from this registry, treat it like the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from duotone.graph.graph import Graph, Paint
from duotone.ops.traits import Trait
from duotone.precision.casts.cast_plan import CastPlan
from duotone.precision.casts.reductions import NO_REDUCTIONS, Reductions
from duotone.precision.optimize import convolutions, factors, loop_sums, picks, scatters, trilinear
from duotone.precision.optimize import dot_orders as dots
from duotone.precision.optimize import weight_gradients as weights
from duotone.precision.optimize.optimization import Layer, Match, Optimization
from duotone.precision.optimize.painted_view import View
from duotone.precision.optimize.residuals import NOTHING, Recompute
from duotone.precision.painters.painting import Painting
from duotone.precision.rules import Rule


@dataclasses.dataclass(frozen=True, slots=True)
class RegistryRow:
    """One row of the registry.

    Attributes:
        name: the name in the table of devices and in policies.
        identity: the formula, or what the optimization does instead.
        why: the gain, in one sentence.
        match: finds it at one node; ``None`` if a plan of the whole program contains it.
        of: the trait of the nodes for which ``match`` is called.
        layer: the part of an operation that it changes.
        elsewhere: the file of an entry without a match.
        in_float32: whether a program in which nothing is half gains from it too.
    """

    name: str
    identity: str
    why: str
    match: Match | None = None
    of: Trait | None = None
    layer: Layer = Layer.RESULT
    elsewhere: str = ""
    in_float32: bool = False

    @property
    def file(self) -> str:
        """The path of its file in ``duotone/``."""
        module = "" if self.match is None else self.match.__module__
        return self.elsewhere or f"{module.partition('.')[2].replace('.', '/')}.py"


REGISTRY = (
    RegistryRow(
        "trilinear",
        "sum over k of p[q,k] * dot(g, v)[q,k] = sum over d of g[q,d] * dot(p, v)[q,d]",
        "the kernel of dot(g, v) also computes the gradient of an attention's scores",
        trilinear.match,
        Trait.SUMS_AXES,
    ),
    RegistryRow(
        "factors",
        "sum(-(g * s)) = -(s * sum(g))",
        "the gradients of a mean and of a bias become one sum, so g is read once less",
        factors.match,
        Trait.SUMS_AXES,
    ),
    RegistryRow(
        "passing_factors",
        "sum(-(g * s)) = -(s * sum(g)), where no other sum and nothing after a dot reads g",
        "as factors; where a shortcut reads g too, one sum less made the schedule worse",
        factors.match_passing,
        Trait.SUMS_AXES,
    ),
    RegistryRow(
        "picks",
        "gather(x - m - s, at) = gather(x, at) - m - s",
        "if one word per token is picked, the log-probabilities of all words are never written",
        picks.match,
        Trait.GATHERS,
    ),
    RegistryRow(
        "one_hot",
        "zeros + update at index = select(iota == index, zeros + update, zeros)",
        "the gradient of picked logits fuses into the kernel that reads it",
        scatters.match,
        Trait.ADDS_INTO,
    ),
    RegistryRow(
        "loop_sums",
        "c = c + dot(a[t], b[t]) for every t = c + dot(a, b), contracted over t too",
        "the loop does not read and write the gradient of a recurrent weight in every iteration",
        loop_sums.match,
        Trait.CARRIES,
    ),
    RegistryRow(
        "dot_orders",
        "transpose(dot(a, b)) = dot(b', a'); dot(transpose(x), b) = transpose(dot(x, b))",
        "all dots of one large array use one layout of it, so it is written once",
        dots.match_orders,
        Trait.EINSUM,
        layer=Layer.BINDING,
    ),
    RegistryRow(
        "swapped_rows",
        "transpose(dot(a, b)) = dot(b, a), for dots in the form rows",
        "the gradient of a weight has the layout of the weight and is not copied",
        dots.match_swapped,
        Trait.EINSUM,
        layer=Layer.BINDING,
    ),
    RegistryRow(
        "window_dots",
        "convolution whose windows do not overlap = dot(image reshaped to windows, filters)",
        "XLA has a bfloat16 kernel for dots and none for convolutions",
        convolutions.match_windows,
        Trait.CONTRACTS,
        layer=Layer.BINDING,
    ),
    RegistryRow(
        "phases",
        "convolution of an image with zeros between its elements = convolutions of the image, one "
        "for each phase of the zeros",
        "oneDNN's half kernels take an image without such zeros, and most products were by zero",
        convolutions.match_phases,
        Trait.CONTRACTS,
        layer=Layer.BINDING,
    ),
    RegistryRow(
        "library_convolutions",
        "convolution = half kernel of oneDNN, with duotone.compiler_options()",
        "XLA computes other half convolutions in float32",
        convolutions.match_library,
        Trait.CONTRACTS,
        layer=Layer.BINDING,
    ),
    RegistryRow(
        "channelwise_sums",
        "convolution with one feature per group = sum over k of image moved by k * filters[k]; "
        "the gradient of filters[k] = sum of image moved by k * cotangent",
        "XLA's CPU backend computes such a convolution one product at a time, in float32 too",
        convolutions.match_channelwise,
        Trait.CONTRACTS,
        in_float32=True,
    ),
    RegistryRow(
        "padded_images",
        "convolution(x, padding) = convolution(x with its padding), for windows larger than x",
        "XLA exchanges image and filters of such a convolution, and its library takes no result of "
        "that",
        convolutions.match_padded,
        Trait.CONTRACTS,
        in_float32=True,
    ),
    RegistryRow(
        "transposed_convolutions",
        "convolution of an image with zeros between its elements = gradient of a strided "
        "convolution, with respect to its image or to its filters",
        "cuDNN has kernels for these, where XLA would write the zeros and multiply by them",
        convolutions.match_spread,
        Trait.CONTRACTS,
        in_float32=True,
    ),
    RegistryRow(
        "dilated_filters",
        "convolution(x, padding) = convolution(x with its padding), for dilated filters",
        "XLA fills dilated filters with zeros where padding is uneven: 513 elements in place of 2",
        convolutions.match_uneven,
        Trait.CONTRACTS,
        in_float32=True,
    ),
    RegistryRow(
        "dilated_gradients",
        "gradient of filters with dilation d = gradient of filters without, of every d-th element "
        "of the image and the cotangent, summed over the d places to begin",
        "XLA has cuDNN compute it as a convolution whose window is as large as the image",
        convolutions.match_dilated_gradient,
        Trait.CONTRACTS,
        in_float32=True,
    ),
    RegistryRow(
        "pooling",
        "reduction of windows of x = reduction over k of x moved by k; its gradient, for each k, = "
        "select(the window's maximum is at k, cotangent, 0), moved back",
        "XLA's CPU backend reduces one window at a time",
        convolutions.match_pooling,
        Trait.POOLS,
        in_float32=True,
    ),
    RegistryRow(
        "weight_gradients",
        "d/dw of dot(x, half(w)) = dot(x', cotangent) in float32",
        "the gradient of a weight is not rounded to half, also where JAX derives it",
        weights.match_weight,
        Trait.EINSUM,
        layer=Layer.DERIVATIVE,
    ),
    RegistryRow(
        "recompute",
        "f(x) read later = f(x) recomputed later, from an x that is in memory",
        "results of transcendental functions are not stored for the backward pass",
        elsewhere="precision/optimize/residuals.py",
    ),
    RegistryRow(
        "recompute_very_expensive",
        "as recompute, for an f that contains a complementary error function (erfc)",
        "as recompute; the compiler recomputes all other functions by itself",
        elsewhere="precision/optimize/residuals.py",
    ),
    RegistryRow(
        "normalized_softmax",
        "e read later = (e / s) * (s / sum(e / s)), for s = sum(e)",
        "a softmax stores neither exponentials nor scores: dots read its normalized result anyway",
        elsewhere="precision/optimize/residuals.py",
    ),
    RegistryRow(
        "free_scales",
        "f(e, s) read later = f(e / s, 1), where f(c * e, c * s) = f(e, s)",
        "the sum of a softmax is not stored, so that the softmax is one kernel",
        elsewhere="precision/optimize/free_scales.py",
    ),
    RegistryRow(
        "row_statistics",
        "m, s read later = max(x), sum(exp(x - m)) recomputed, from an x in memory",
        "a kernel that recomputes exponentials has whole rows, so the gradient is one kernel",
        elsewhere="precision/optimize/row_statistics.py",
    ),
    RegistryRow(
        "rounded_once",
        "all readers of a rounded x from which exponentials are recomputed read the rounded x",
        "a compiler that drops roundings would compare exponentials of two different numbers",
        elsewhere="precision/optimize/residuals.py",
    ),
    RegistryRow(
        "materialize_widened",
        "float32(x) = float32(half x in memory), for several readers of the result x of a dot",
        "the compiler would write a float32 copy of x for all of them",
        elsewhere="precision/casts/cast_plan.py",
    ),
    RegistryRow(
        "materialize_parts",
        "as materialize_widened, for an x that is concatenated, or a sum of several dots",
        "the compiler would concatenate the parts twice, or write their sum in float32",
        elsewhere="precision/casts/cast_plan.py",
    ),
    RegistryRow(
        "materialize_rows",
        "as materialize_widened, for the result x of a kernel of whole rows (see row_statistics)",
        "the compiler would write x in float32 for dots and sums",
        elsewhere="precision/optimize/row_statistics.py",
    ),
)
"""Every optimization. The stage tries each ``match`` in this order; the first match wins."""

BY_NAME = MappingProxyType({entry.name: entry for entry in REGISTRY})
OPTIMIZATIONS = tuple(BY_NAME)
"""The names of all optimizations."""
OF_ANY_PAINTER = frozenset(
    "one_hot loop_sums dot_orders swapped_rows window_dots phases library_convolutions "
    "channelwise_sums padded_images transposed_convolutions dilated_filters dilated_gradients "
    "pooling weight_gradients materialize_widened materialize_parts".split()
)
"""The optimizations that do not depend on duotone's own painter."""
IN_FLOAT32 = frozenset(entry.name for entry in REGISTRY if entry.in_float32)
"""The optimizations of a program in which nothing is half. A backward pass gains from them as well,
so it is painted together with its forward pass."""


@dataclasses.dataclass(frozen=True, slots=True)
class Optimizations:
    """The optimizations of one program.

    Attributes:
        on: the names of the optimizations that the device gains from and nobody switched off.
        found: the optimizations of single nodes, by layer and node.
        recompute: the reads that take a recomputed value.
        reductions: the sums over devices in another dtype; views list them with optimizations.
    """

    on: frozenset[str] = frozenset()
    found: Mapping[tuple[Layer, int], Optimization] = dataclasses.field(default_factory=dict)
    recompute: Recompute = NOTHING
    reductions: Reductions = NO_REDUCTIONS

    def named(self, name: str) -> dict[int, Optimization]:
        """Returns the optimizations with a given name, by node."""
        return {found.node: found for found in self.found.values() if found.name == name}

    def at(self, node: int, layer: Layer = Layer.RESULT) -> Optimization | None:
        """Returns the optimization of a node, if it has one."""
        return self.found.get((layer, node))

    def nodes(self, graph: Graph) -> set[int]:
        """Returns the nodes that must be applied one by one, whatever their precision.

        Includes the makers of the values that an optimization reads; they may be in a nested call.
        """
        results = [found for (layer, _), found in self.found.items() if layer is Layer.RESULT]
        makers = (found.makers(graph) for found in results)
        others = self.recompute.nodes(graph) | self.reductions.nodes
        return others.union((found.node for found in results), *makers)


NO_OPTIMIZATIONS = Optimizations()


def switched_on(
    device: frozenset[str], removed: frozenset[str], *, any_painter: bool = False
) -> frozenset[str]:
    """Returns the names of the optimizations in effect.

    Args:
        device: the names of those that the device gains from.
        removed: the names of those that the policy switches off.
        any_painter: whether to keep only those that hold for every painter.
    """
    on = device - removed
    return on & OF_ANY_PAINTER if any_painter else on


def find_optimizations(view: View, on: frozenset[str]) -> tuple[Optimizations, Painting]:
    """Finds the optimizations of a painted program.

    Args:
        view: the program.
        on: the names of the optimizations to look for.

    Returns:
        The optimizations, and the painting, in which dots that they need unrounded store full, and
        those that they let fill a matrix instruction compute half.
    """
    found: dict[tuple[Layer, int], Optimization] = {}
    for entry in REGISTRY:
        if entry.match is None or entry.of is None or entry.name not in on:
            continue
        matched = [
            optimization
            for node in view.graph.having(entry.of)
            if (entry.layer, node.index) not in found
            and (optimization := entry.match(node, view)) is not None
        ]
        for optimization in matched:
            found.update(
                ((entry.layer, each.node), each) for each in (optimization, *optimization.also)
            )
        if any(optimization.full or optimization.half for optimization in matched):
            view = view.repainted(_repainted(view.painting, matched))
    return Optimizations(on, found), view.painting


def _repainted(painting: Painting, optimizations: list[Optimization]) -> Painting:
    """Returns the painting with the precisions that optimizations need for some dots."""
    compute, store = list(painting.compute), list(painting.store)
    rules, details = list(painting.rules), dict(painting.details)
    for index in {node for optimization in optimizations for node in optimization.full}:
        if store[index] is Paint.HALF:
            store[index], rules[index] = Paint.FULL, Rule.UNROUNDED
    for index in {node for optimization in optimizations for node in optimization.half}:
        compute[index], rules[index] = Paint.HALF, Rule.ITERATIONS
        details.pop(index, None)
    return Painting(tuple(compute), tuple(store), tuple(rules), details)


def reasons_by_operation(
    graph: Graph, plan: CastPlan, optimizations: Optimizations
) -> dict[int, tuple[tuple[str, str], ...]]:
    """Returns, for each operation concerned, name and reason of each of its optimizations.

    Args:
        graph: the program.
        plan: its casts, some of which materialize a value.
        optimizations: the optimizations of the program.
    """
    found: dict[int, list[tuple[str, str]]] = {}
    for optimization in optimizations.found.values():
        stacked = [step.to[0] for step in optimization.steps if step.name == "stacked"]
        for shown in stacked or [optimization.node]:  # a loop's carry is not the user's operation
            found.setdefault(shown, []).append((optimization.name, optimization.reason))
    materialized = (
        (cast.value, cast.materialized, f"widened by each of {len(cast.readers)} readers")
        for cast in plan.casts
    )
    recomputed = optimizations.recompute.reasons(optimizations.on)
    for value, name, reason in (*recomputed, *materialized):
        producer = graph.values[value].producer
        if name and producer >= 0 and (name, reason) not in found.setdefault(producer, []):
            found[producer].append((name, reason))
    for node, reason in optimizations.reductions.reasons().items():
        found.setdefault(node, []).append(reason)
    return {node: tuple(reasons) for node, reasons in found.items() if reasons}
