"""How values enter and leave nested programs: one function for each primitive that has them.

Each function adds the nodes of an equation's nested programs to the graph and returns its step. The
``kind`` of the step names the function of :mod:`duotone.jaxpr.nesting.nested` that rewrites it. The
docstring of each function gives the order of ``Step.nodes``, so read the two files side by side.

To support another primitive with nested programs, add a function here and a handler there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE, BodyKind
from duotone.jaxpr.reading.builder import Builder, Call, NestedBuilder
from duotone.jaxpr.reading.program import Program, Step

MARKER = "duotone_autocast"
"""The name of the ``jit`` around a rewritten program, whose inside is painted already. A number may
follow, see :mod:`duotone.jaxpr.running.inside`."""


def is_rewritten(eqn: _jax.Eqn) -> bool:
    """Returns True if an equation is a program that duotone has rewritten."""
    return eqn.primitive.name == "jit" and eqn.params["name"].partition(".")[0] == MARKER


def _jit(b: Builder, call: Call) -> Step | None:
    """Inlines a ``jit``, unless it has shardings, layouts or compiler options."""
    if is_rewritten(call.eqn):
        return None
    options = _jax.jit_options(call.eqn)
    if "layouts" in options:
        return None
    if options:
        return _barrier(b, call, "jit", "jaxpr")
    with b.called(call.eqn):
        return _inlined(b, call, "jaxpr")


def _inlined(b: Builder, call: Call, parameter: str) -> Step:
    """Reads a nested program as a part of the program around it."""
    nested = call.eqn.params[parameter]
    program = b.program(nested, call.inputs, body=call.body, scopes=call.scopes)
    return _step(b, call, "inline", (), program.outputs, program)


def _step(
    b: Builder,
    call: Call,
    kind: str,
    nodes: Iterable[int],
    outputs: Iterable[int],
    *programs: Program,
) -> Step:
    """Returns the step of an equation whose nodes are all added."""
    made = tuple(nodes), call.first, len(b.nodes), programs
    return Step(call.eqn, kind, call.inputs, tuple(outputs), *made)


def _barrier(b: Builder, call: Call, kind: str, parameter: str) -> Step:
    """Reads a nested program that runs once, on operands in their stored precisions.

    Nodes: one for each result. The result is a new value even if the program returns an operand: a
    gradient clip is the identity, and its derivative rule must stay.
    """
    inner = b.add_body(call.body, BodyKind.BARRIER, 1)
    with b.called(call.eqn):
        nested = call.eqn.params[parameter]
        program = b.program(nested, call.inputs, body=inner, scopes=call.scopes)
    nodes, outputs = _pass(b, call, "call.result", program.outputs, (inner, call.body))
    return _step(b, call, kind, nodes, outputs, program)


def _pass(
    b: Builder,
    call: Call,
    op: str,
    values: Sequence[int],
    bodies: tuple[int, int],
    made: Sequence[Any] | None = None,
) -> tuple[range, list[int]]:
    """Adds one node for each value that enters or leaves a nested program.

    ``bodies`` are the body of the nodes and that of their results. ``made`` are the variables of
    the results, which are those of the equation by default. Returns the nodes and the results.
    """
    first, (body, outside) = len(b.nodes), bodies
    outputs: list[int] = []
    for value, var in zip(values, call.eqn.outvars if made is None else made, strict=True):
        outputs += b.node(
            call.eqn, op, (value,), [var.aval], body=body, scopes=call.around, out_bodies=[outside]
        )
    return range(first, len(b.nodes)), outputs


def _each(b: Builder, call: Call) -> Step:
    """Adds one node for each operand, so that each operand keeps its own precision."""
    nodes, outputs = _pass(b, call, call.eqn.primitive.name, call.inputs, (call.body, call.body))
    return _step(b, call, "each", nodes, outputs)


def _scan(b: Builder, call: Call) -> Step:
    """Adds one node for each carry, each sliced operand and each stacked result."""
    eqn, inputs, body = call.eqn, call.inputs, call.body
    jaxpr, length = eqn.params["jaxpr"], eqn.params["length"]
    opened = _jax.open_jaxpr(jaxpr)
    consts, carries = _jax.scan_layout(eqn)
    split = consts + carries
    inner = b.add_body(body, BodyKind.LOOP, length if isinstance(length, int) else 1)
    nodes, carried, after = _carries(b, call, opened, consts, inputs[consts:split], inner)
    into, sliced = _pass(
        b, call, "loop.slice", inputs[split:], (inner, inner), opened.invars[split:]
    )
    arguments = (*inputs[:consts], *carried, *sliced)
    program = b.program(jaxpr, arguments, body=inner, scopes=call.scopes)
    _close(b, nodes, program.outputs[:carries])
    rest = program.outputs[carries:], (inner, body), eqn.outvars[carries:]
    out, stacked = _pass(b, call, "loop.stack", *rest)
    return _step(b, call, "scan", (*nodes, *into, *out), (*after, *stacked), program)


def _while(b: Builder, call: Call) -> Step:
    """Adds one node for each carry; the programs are condition and body."""
    params, inputs, scopes = call.eqn.params, call.inputs, call.scopes
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    split = of_cond + of_body
    inner = b.add_body(call.body, BodyKind.LOOP, 1)
    opened = _jax.open_jaxpr(params["body_jaxpr"])
    nodes, carried, after = _carries(b, call, opened, of_body, inputs[split:], inner)
    consts = inputs[:of_cond], inputs[of_cond:split]
    cond, loop = (
        b.program(params[name], (*own, *carried), body=inner, scopes=scopes)
        for name, own in zip(("cond_jaxpr", "body_jaxpr"), consts, strict=True)
    )
    _close(b, nodes, loop.outputs)
    b.bodies[inner] = dataclasses.replace(b.bodies[inner], until=cond.outputs[0])
    return _step(b, call, "while", nodes, after, cond, loop)


def _carries(
    b: Builder, call: Call, jaxpr: Any, consts: int, initial: Sequence[int], inner: int
) -> tuple[range, list[int], list[int]]:
    """Adds carry nodes without the body's results.

    Carries are the first results of ``jaxpr``, and its arguments after ``consts`` constants. The
    nodes come with the carries inside the loop and those after it.
    """
    first = len(b.nodes)
    count = len(initial)
    sums = _summing(jaxpr, jaxpr.invars[consts : consts + count], jaxpr.outvars[:count])
    made = [
        b.node(
            call.eqn,
            "loop.accumulator" if is_sum else "loop.carry",
            (value,),
            [var.aval, var.aval],
            body=inner,
            scopes=call.around,
            out_bodies=[inner, call.body],
        )
        for value, var, is_sum in zip(initial, call.eqn.outvars[:count], sums, strict=True)
    ]
    nodes = range(first, len(b.nodes))
    return nodes, [inside for inside, _ in made], [after for _, after in made]


def _close(b: Builder, nodes: Iterable[int], results: Sequence[int]) -> None:
    """Adds the body's results as operands of the carry nodes, which exist before the body."""
    for index, result in zip(nodes, results, strict=True):
        node = b.nodes[index]
        b.nodes[index] = dataclasses.replace(
            node,
            inputs=(*node.inputs, result),
            half_inputs=(*node.half_inputs, b.values[result].dtype == FULL_DTYPE),
        )


def _summing(jaxpr: Any, carries: Sequence[Any], results: Sequence[Any]) -> list[bool]:
    """Finds the carries that the body only adds to; returns a flag for each carry.

    Such a carry is a sum over the iterations (gradient accumulation). A carry with other readers (a
    residual stream) is not.
    """
    readers: dict[Any, list[Any]] = {}
    for eqn in jaxpr.eqns:
        for atom in eqn.invars:
            if not _jax.is_literal(atom):
                readers.setdefault(atom, []).append(eqn)

    def sums(carry: Any, result: Any) -> bool:
        value = carry
        while value is not result:
            eqns = readers.get(value, [])
            if len(eqns) != 1 or value in jaxpr.outvars:
                return False
            (eqn,) = eqns
            subtracts = eqn.primitive.name == "sub" and eqn.invars[0] is value
            if not subtracts and eqn.primitive.name not in ("add", "add_any"):
                return False
            value = eqn.outvars[0]
        return carry is not result

    return [sums(carry, result) for carry, result in zip(carries, results, strict=True)]


def _cond(b: Builder, call: Call) -> Step:
    """Adds one join for each result; the programs are the branches."""
    programs = tuple(
        b.program(
            branch,
            call.inputs[1:],
            body=b.add_body(call.body, BodyKind.BARRIER, 1),
            scopes=call.scopes,
        )
        for branch in call.eqn.params["branches"]
    )
    start = len(b.nodes)
    outputs: list[int] = []
    for position, var in enumerate(call.eqn.outvars):
        results = [program.outputs[position] for program in programs]
        outputs += b.node(
            call.eqn, "branch.join", results, [var.aval], body=call.body, scopes=call.around
        )
    return _step(b, call, "cond", range(start, len(b.nodes)), outputs, *programs)


def _shard_map(b: Builder, call: Call) -> Step:
    """Adds one node for each operand and one for each result."""
    jaxpr = call.eqn.params["jaxpr"]
    inner = b.add_body(call.body, BodyKind.BARRIER, 1)
    arguments = _jax.open_jaxpr(jaxpr).invars
    enters, local = _pass(b, call, "shard.enter", call.inputs, (call.body, inner), arguments)
    program = b.program(jaxpr, local, body=inner, scopes=call.scopes)
    exits, outputs = _pass(b, call, "shard.exit", program.outputs, (inner, call.body))
    return _step(b, call, "shard_map", (*enters, *exits), outputs, program)


NESTED: Mapping[str, NestedBuilder] = {
    "jit": _jit,
    "closed_call": functools.partial(_inlined, parameter="call_jaxpr"),
    "remat2": functools.partial(_barrier, kind="remat", parameter="jaxpr"),
    "custom_jvp_call": functools.partial(_barrier, kind="custom_jvp", parameter="call_jaxpr"),
    "custom_vjp_call": functools.partial(_barrier, kind="custom_vjp", parameter="call_jaxpr"),
    "optimization_barrier": _each,
    "device_put": _each,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
}
"""By primitive name."""
