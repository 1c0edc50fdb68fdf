"""Maps a jaxpr to the graph: the builder makes this, and the rewriter walks it.

A :class:`Program` belongs to one call of a jaxpr, and a :class:`Step` to one of its equations. They
map variables to graph values and equations to nodes. A program may call the same jaxpr object
several times. Each call has its own :class:`Program`, since each may be painted differently.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from duotone import _jax
from duotone.graph.frozen import frozen
from duotone.graph.graph import Graph


@frozen
class Step:
    """One equation.

    Attributes:
        eqn: the equation.
        kind: how it is rewritten: ``"leaf"`` (one node), ``"each"`` (one node for each operand), or
            the name of a handler in :mod:`duotone.jaxpr.nesting`.
        inputs: graph values of its operands.
        outputs: graph values of its results.
        nodes: its own nodes: one for a leaf, one for each operand (``each``) or one for each carry,
            slice, stack, join or shard (:mod:`duotone.jaxpr.reading.scopes` documents the order).
        first: index of the first node inside the equation.
        last: one past the index of the last node inside.
        bodies: its nested programs.
    """

    eqn: _jax.Eqn
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: tuple[int, ...]
    first: int
    last: int
    bodies: tuple[Program, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """One call of a jaxpr.

    Attributes:
        jaxpr: the (open) jaxpr.
        body: index of the graph body in which it runs.
        inputs: graph values of its arguments.
        constants: graph value and array of each constant, and value and number of each literal.
        outputs: graph values of its results.
        steps: its equations.
    """

    jaxpr: _jax.OpenJaxpr
    body: int
    inputs: tuple[int, ...]
    constants: tuple[tuple[int, Any], ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltGraph:
    """A graph and the program it was built from."""

    graph: Graph
    program: Program
