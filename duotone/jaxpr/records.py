"""The record of a painted program, including the rewritten programs that it contains.

::

    trace the function
    if it contains programs that are rewritten already:
        trace again and collect how they were painted
    paint it; make the record
    for each rewritten program inside, insert:
        its own record, if no transformation changed it
        otherwise (it was differentiated, mapped) a record made from its dtypes
"""

from __future__ import annotations

from duotone import _jax
from duotone.graph.graph import Node
from duotone.jaxpr.painted import PaintedProgram
from duotone.jaxpr.reading.build import build
from duotone.jaxpr.reading.operations import OWN_DOT
from duotone.jaxpr.reading.program import BuiltGraph
from duotone.jaxpr.running.inside import Collection, rewritten_steps, same_program
from duotone.ops.jax import ENTRIES
from duotone.precision.classify.lists import OpLists
from duotone.precision.nested_records import Inside, Joined, join, read_record
from duotone.precision.record import Record, make_record

_ALIASES = {OWN_DOT: "dot_general", "duotone_instead": ""}
"""The names of duotone's own primitives in a record; the second only sets a derivative."""


def record_of(painted: PaintedProgram, collection: Collection | None = None) -> Record:
    """Returns the record of a painted program.

    A collection has the records of the rewritten programs that it contains.
    """
    record = make_record(
        painted.built.graph,
        painted.classes,
        painted.painting,
        painted.plan,
        painted.half,
        painted.optimizations,
    )
    return record if collection is None else _joined(record, painted.built, collection).record


def _joined(record: Record, built: BuiltGraph, collection: Collection) -> Joined:
    return join(record, built.graph, _insides(built, collection))


def halves_inside(jaxpr: _jax.ClosedJaxpr, collection: Collection) -> frozenset[str]:
    """Returns the half types of the rewritten programs inside a program."""
    found = (collection.find(step.eqn) for step in rewritten_steps(build(jaxpr).program))
    return frozenset(entry.painted.half.name for entry in found if entry is not None)


def _insides(built: BuiltGraph, collection: Collection) -> dict[int, Inside]:
    """Returns the records of the rewritten programs in a program, by the node that calls each."""
    found: dict[int, Inside] = {}
    for step in rewritten_steps(built.program):
        entry = collection.find(step.eqn)
        if entry is None:
            continue
        node = built.graph.nodes[step.nodes[0]]
        program = _joined(record_of(entry.painted), entry.painted.built, collection)
        if not same_program(step.eqn.params["jaxpr"], entry.jaxpr):
            program = _read(step.eqn.params["jaxpr"], entry.painted, program.record, collection)
        found[node.index] = Inside(program, built.graph.trips(node), node.scope)
    return found


def _read(
    jaxpr: _jax.ClosedJaxpr, painted: PaintedProgram, record: Record, collection: Collection
) -> Joined:
    """Returns the record of a program that a transformation made from a painted one."""
    built, half = build(jaxpr), painted.half.name
    lists = OpLists.for_half(ENTRIES, half)

    def listed(node: Node) -> str:
        return lists.get(node.op, node.list_key).kind.value

    read = read_record(built.graph, half, record, listed, _ALIASES)
    return _joined(read, built, collection)
