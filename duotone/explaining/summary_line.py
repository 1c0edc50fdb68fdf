"""Summarizes a painting in one line for the log; :func:`duotone.explain` gives the details."""

from __future__ import annotations

from collections import Counter

from duotone.graph.graph import PRECISION, Graph, Paint
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.painters.painting import Painting
from duotone.precision.rules import Rule

_WHY = {"small": "too small to gain from half here", "device": "gains nothing from half here"}
"""Why an allow operation is full, by rule. Other rules appear by name."""
ASKED = (
    "a precision was asked for, which is kept: half without precision= and without "
    "jax_default_matmul_precision, which some libraries set"
)
"""Why an allow operation with a precision of its own is full, and the remedy."""

OPTIONS = (
    "convolutions gain here too: leave the jax.jit around it out, or give the jit "
    "compiler_options=duotone.compiler_options() and it Policy(compiler_options=True)"
)
"""The remedy for convolutions that a ``jit`` of the user compiles."""


def first_line(
    name: str,
    graph: Graph,
    classes: Classes,
    painting: Painting,
    half: str,
    device: str,
    slow: str = "",
    missing: bool = False,
) -> str:
    """Names the dtype, device, shares in half, and the dots and convolutions that stay float32.

    ``slow`` says why half saves no time on the device, if it does not, and ``missing`` whether
    convolutions would gain with the compiler options of the device.

    Returns:
        The line, such as ``loss: bfloat16 on cuda (NVIDIA H200): 66 of 828 operations and 97.1% of
        FLOPs in half; float32: 2 dot_general (too small to gain from half here)``.
    """
    nodes = [node for node in graph.nodes if Trait.STRUCTURAL not in node.traits]
    flops = [node.flops * graph.trips(node) for node in nodes]
    halves = [painting.compute[node.index] is Paint.HALF for node in nodes]
    share = sum(f for f, is_half in zip(flops, halves, strict=True) if is_half)
    unpainted = [
        node
        for node, is_half in zip(nodes, halves, strict=True)
        if not is_half and classes.nodes[node.index].listed is Kind.ALLOW
    ]
    given = [node.op for node in unpainted if painting.rules[node.index] == Rule.INTEGER]
    full = Counter(
        (node.op, ASKED if node.fixed.startswith(PRECISION) else painting.rules[node.index])
        for node in unpainted
        if painting.rules[node.index] != Rule.INTEGER
    )
    line = f"{name}: {half} on {device}: {sum(halves)} of {len(nodes)} operations"
    line += f" and {share / (sum(flops) or 1.0):.1%} of FLOPs in half"
    stays = [
        f"{count} {op} ({rule if rule == ASKED else _WHY.get(rule, f'rule {rule}')})"
        for (op, rule), count in full.most_common()
    ]
    if stays:
        line += f"; float32: {', '.join(stays)}"
    if given:
        counts = ", ".join(f"{count} {op}" for op, count in Counter(given).most_common())
        line += f"; unchanged: {counts} (of half, float64 or integers in the program itself)"
    elif not stays and not any(halves):
        line += "; it has no dot and no convolution, so there is nothing to gain"
    if missing:
        line += f"; {OPTIONS}"
    return f"{line}; saves no time here: {slow}" if slow else line
