"""How values enter and leave nested programs: one function for each primitive that has them.

Each function adds the nodes of an equation's nested programs to the graph and returns its step. The
``kind`` of the step names the function of :mod:`duotone.jaxpr.nesting.nested` that rewrites it. The
docstring of each function gives the order of ``Step.nodes``, so read the two files side by side.

To support another primitive with nested programs, add a function here and a handler there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE, BodyKind
from duotone.jaxpr.reading.builder import Builder, NestedBuilder
from duotone.jaxpr.reading.program import Program, Step

MARKER = "duotone_autocast"
"""The name of the ``jit`` around a rewritten program, whose inside is painted already. A number may
follow, see :mod:`duotone.jaxpr.running.inside`."""


def is_rewritten(eqn: _jax.Eqn) -> bool:
    """Returns True if an equation is a program that duotone has rewritten."""
    return eqn.primitive.name == "jit" and eqn.params["name"].partition(".")[0] == MARKER


def _jit(
    b: Builder, eqn: _jax.Eqn, inputs: tuple[int, ...], body: int, scopes: tuple[str, ...]
) -> Step | None:
    """Inlines a ``jit``, unless it has shardings, layouts or compiler options."""
    if is_rewritten(eqn):
        return None
    options = _jax.jit_options(eqn)
    if "layouts" in options:
        return None
    if options:
        return _barrier(b, eqn, inputs, body, scopes, "jit", eqn.params["jaxpr"])
    first = len(b.nodes)
    names = b.scope(scopes, eqn)[2]
    with b.called(eqn):
        program = b.program(eqn.params["jaxpr"], inputs, body=body, scopes=names)
    return Step(eqn, "inline", inputs, program.outputs, (), first, len(b.nodes), (program,))


def _call(
    b: Builder, eqn: _jax.Eqn, inputs: tuple[int, ...], body: int, scopes: tuple[str, ...]
) -> Step | None:
    first = len(b.nodes)
    names = b.scope(scopes, eqn)[2]
    program = b.program(eqn.params["call_jaxpr"], inputs, body=body, scopes=names)
    return Step(eqn, "inline", inputs, program.outputs, (), first, len(b.nodes), (program,))


def _barrier(
    b: Builder,
    eqn: _jax.Eqn,
    inputs: tuple[int, ...],
    body: int,
    scopes: tuple[str, ...],
    kind: str,
    jaxpr: _jax.ClosedJaxpr,
) -> Step:
    """Reads a nested program that runs once, on operands in their stored precisions.

    Nodes: one for each result. The result is a new value even if the program returns an operand: a
    gradient clip is the identity, and its derivative rule must stay.
    """
    first = len(b.nodes)
    names = b.scope(scopes, eqn)[2]
    inner = b.add_body(body, BodyKind.BARRIER, 1)
    with b.called(eqn):
        program = b.program(jaxpr, inputs, body=inner, scopes=names)
    nodes, outputs = _leave(b, eqn, "call.result", program, (inner, body), names)
    return Step(eqn, kind, inputs, outputs, nodes, first, len(b.nodes), (program,))


def _leave(
    b: Builder,
    eqn: _jax.Eqn,
    op: str,
    program: Program,
    bodies: tuple[int, int],
    scopes: tuple[str, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Adds one node for each result of a nested program; returns the nodes and outer values."""
    start = len(b.nodes)
    inside, outside = bodies
    outputs: tuple[int, ...] = ()
    for value, var in zip(program.outputs, eqn.outvars, strict=True):
        outputs += b.node(
            eqn, op, (value,), [var.aval], body=inside, scopes=scopes, out_bodies=[outside]
        )
    return tuple(range(start, len(b.nodes))), outputs


def _barrier_of(kind: str, parameter: str) -> NestedBuilder:
    """Returns the builder of equations whose nested program is in ``parameter``."""

    def build(
        b: Builder, eqn: _jax.Eqn, inputs: tuple[int, ...], body: int, scopes: tuple[str, ...]
    ) -> Step:
        return _barrier(b, eqn, inputs, body, scopes, kind, eqn.params[parameter])

    return build


def _each(
    b: Builder, eqn: _jax.Eqn, inputs: tuple[int, ...], body: int, scopes: tuple[str, ...]
) -> Step | None:
    """Adds one node for each operand, so that each operand keeps its own precision."""
    first = len(b.nodes)
    outputs: tuple[int, ...] = ()
    for value, var in zip(inputs, eqn.outvars, strict=True):
        outputs += b.node(eqn, eqn.primitive.name, (value,), [var.aval], body=body, scopes=scopes)
    nodes = tuple(range(first, len(b.nodes)))
    return Step(eqn, "each", inputs, outputs, nodes, first, len(b.nodes))


def _scan(
    b: Builder, eqn: _jax.Eqn, inputs: tuple[int, ...], body: int, scopes: tuple[str, ...]
) -> Step | None:
    """Adds one node for each carry, each sliced operand and each stacked result."""
    first = len(b.nodes)
    names = b.scope(scopes, eqn)[2]
    jaxpr = eqn.params["jaxpr"]
    opened = _jax.open_jaxpr(jaxpr)
    num_consts, num_carry = _jax.scan_layout(eqn)
    split = num_consts + num_carry
    length = eqn.params["length"]
    inner = b.add_body(body, BodyKind.LOOP, length if isinstance(length, int) else 1)
    carried, nodes = _carries(
        b,
        eqn,
        inputs[num_consts:split],
        eqn.outvars[:num_carry],
        _summing(opened, opened.invars[num_consts:split], opened.outvars[:num_carry]),
        (body, inner),
        names,
    )
    sliced: list[int] = []
    for value, var in zip(inputs[split:], opened.invars[split:], strict=True):
        nodes.append(len(b.nodes))
        sliced += b.node(eqn, "loop.slice", (value,), [var.aval], body=inner, scopes=names)
    arguments = (*inputs[:num_consts], *[inside for inside, _ in carried], *sliced)
    program = b.program(jaxpr, arguments, body=inner, scopes=names)
    _close(b, nodes[:num_carry], program.outputs[:num_carry])
    outputs = [after for _, after in carried]
    for value, var in zip(program.outputs[num_carry:], eqn.outvars[num_carry:], strict=True):
        nodes.append(len(b.nodes))
        outputs += b.node(
            eqn, "loop.stack", (value,), [var.aval], body=inner, scopes=names, out_bodies=[body]
        )
    return Step(eqn, "scan", inputs, tuple(outputs), tuple(nodes), first, len(b.nodes), (program,))


def _while(
    b: Builder, eqn: _jax.Eqn, inputs: tuple[int, ...], body: int, scopes: tuple[str, ...]
) -> Step | None:
    """Adds one node for each carry; the programs are condition and body."""
    first = len(b.nodes)
    names = b.scope(scopes, eqn)[2]
    of_cond, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond_consts, body_consts = inputs[:of_cond], inputs[of_cond : of_cond + of_body]
    opened = _jax.open_jaxpr(eqn.params["body_jaxpr"])
    inner = b.add_body(body, BodyKind.LOOP, 1)
    carried, nodes = _carries(
        b,
        eqn,
        inputs[of_cond + of_body :],
        eqn.outvars,
        _summing(opened, opened.invars[of_body:], opened.outvars),
        (body, inner),
        names,
    )
    inside = tuple(value for value, _ in carried)
    cond = b.program(eqn.params["cond_jaxpr"], (*cond_consts, *inside), body=inner, scopes=names)
    loop = b.program(eqn.params["body_jaxpr"], (*body_consts, *inside), body=inner, scopes=names)
    _close(b, nodes, loop.outputs)
    b.set_condition(inner, cond.outputs[0])
    outputs = tuple(after for _, after in carried)
    return Step(eqn, "while", inputs, outputs, tuple(nodes), first, len(b.nodes), (cond, loop))


def _carries(
    b: Builder,
    eqn: _jax.Eqn,
    initial: Sequence[int],
    outvars: Sequence[Any],
    summing: Sequence[bool],
    bodies: tuple[int, int],
    scopes: tuple[str, ...],
) -> tuple[list[tuple[int, int]], list[int]]:
    """Adds carry nodes without the body's results.

    Returns:
        For each carry the value inside the loop and the value after it, and the node indices.
    """
    carried, nodes = [], []
    outside, inside = bodies
    for value, var, sums in zip(initial, outvars, summing, strict=True):
        nodes.append(len(b.nodes))
        op = "loop.accumulator" if sums else "loop.carry"
        within, after = b.node(
            eqn,
            op,
            (value,),
            [var.aval, var.aval],
            body=inside,
            scopes=scopes,
            out_bodies=[inside, outside],
        )
        carried.append((within, after))
    return carried, nodes


def _close(b: Builder, nodes: Sequence[int], results: Sequence[int]) -> None:
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


def _cond(
    b: Builder, eqn: _jax.Eqn, inputs: tuple[int, ...], body: int, scopes: tuple[str, ...]
) -> Step | None:
    """Adds one join for each result; the programs are the branches."""
    first = len(b.nodes)
    names = b.scope(scopes, eqn)[2]
    programs = tuple(
        b.program(branch, inputs[1:], body=b.add_body(body, BodyKind.BARRIER, 1), scopes=names)
        for branch in eqn.params["branches"]
    )
    start = len(b.nodes)
    outputs: tuple[int, ...] = ()
    for position, var in enumerate(eqn.outvars):
        results = tuple(program.outputs[position] for program in programs)
        outputs += b.node(eqn, "branch.join", results, [var.aval], body=body, scopes=names)
    nodes = tuple(range(start, len(b.nodes)))
    return Step(eqn, "cond", inputs, outputs, nodes, first, len(b.nodes), programs)


def _shard_map(
    b: Builder, eqn: _jax.Eqn, inputs: tuple[int, ...], body: int, scopes: tuple[str, ...]
) -> Step | None:
    """Adds one node for each operand and one for each result."""
    first = len(b.nodes)
    names = b.scope(scopes, eqn)[2]
    jaxpr = eqn.params["jaxpr"]
    inner = b.add_body(body, BodyKind.BARRIER, 1)
    local: list[int] = []
    nodes: list[int] = []
    for value, var in zip(inputs, _jax.open_jaxpr(jaxpr).invars, strict=True):
        nodes.append(len(b.nodes))
        local += b.node(
            eqn, "shard.enter", (value,), [var.aval], body=body, scopes=names, out_bodies=[inner]
        )
    program = b.program(jaxpr, local, body=inner, scopes=names)
    exits, outputs = _leave(b, eqn, "shard.exit", program, (inner, body), names)
    nodes += exits
    return Step(
        eqn, "shard_map", inputs, tuple(outputs), tuple(nodes), first, len(b.nodes), (program,)
    )


NESTED: Mapping[str, NestedBuilder] = {
    "jit": _jit,
    "closed_call": _call,
    "remat2": _barrier_of("remat", "jaxpr"),
    "custom_jvp_call": _barrier_of("custom_jvp", "call_jaxpr"),
    "custom_vjp_call": _barrier_of("custom_vjp", "call_jaxpr"),
    "optimization_barrier": _each,
    "device_put": _each,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
}
"""By primitive name."""
