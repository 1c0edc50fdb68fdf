"""Build: from a jaxpr to the neutral graph."""

from __future__ import annotations

from collections.abc import Sequence

from duotone import _jax
from duotone.graph.graph import BodyKind, Boundary, Graph, Paint
from duotone.jaxpr.reading.builder import Builder
from duotone.jaxpr.reading.program import BuiltGraph
from duotone.jaxpr.reading.scopes import NESTED


def build(
    jaxpr: _jax.ClosedJaxpr,
    given: Sequence[Paint] | None = None,
    boundaries: Sequence[Boundary] | None = None,
    scopes: tuple[str, ...] = (),
) -> BuiltGraph:
    """Builds the graph of a jaxpr.

    Args:
        jaxpr: with its constants.
        given: how each argument arrives; all full if omitted.
        boundaries: how each result must leave; all full if omitted.
        scopes: the name scopes around the program, outermost first.

    Returns:
        The graph, and the program that maps equations to nodes.
    """
    builder = Builder(NESTED)
    opened = _jax.open_jaxpr(jaxpr)
    builder.add_body(-1, BodyKind.ROOT, 1)
    given = given or [Paint.FULL] * len(opened.invars)
    inputs = [
        builder.value(var.aval, body=0, given=paint)
        for var, paint in zip(opened.invars, given, strict=True)
    ]
    program = builder.program(jaxpr, inputs, body=0, scopes=scopes)
    boundaries = boundaries or [Boundary.FULL] * len(program.outputs)
    outputs = tuple(zip(program.outputs, boundaries, strict=True))
    graph = Graph(
        tuple(builder.nodes), tuple(builder.values), tuple(builder.bodies), tuple(inputs), outputs
    )
    return BuiltGraph(graph, program)
