"""How painted equations with nested programs are rebuilt.

This is the counterpart of :mod:`duotone.jaxpr.reading.scopes`. It has one function for each kind of
step, which knows the order of ``Step.nodes`` documented there. Loops are built through ``jax.lax``,
so that JAX finds outer values (and their casts) as constants. The others are bound with a new
sub-program, so that parameters such as a checkpoint policy stay.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax import lax

from duotone import _jax
from duotone.graph.graph import Paint
from duotone.jaxpr.nesting.sums import stacked_operands, with_sums
from duotone.jaxpr.reading.program import Program, Step
from duotone.jaxpr.running.env import Env
from duotone.jaxpr.running.rewrite import Handler, Rewriter

Results = Iterable[tuple[Paint, Any]]


def stored_function(
    r: Rewriter, program: Program, wants: Sequence[Paint], avals: Sequence[Any]
) -> Callable[..., list[Any]]:
    """Returns the rewritten program as a function of stored operands.

    Results have the precisions ``wants``; ``avals`` are theirs in the original program.
    """

    def run(*operands: Any) -> list[Any]:
        env = Env()
        for value, array in zip(program.inputs, operands, strict=True):
            env.write(value, r.stored(value), array)
        r.run(program, env)
        return r.results(env, program.outputs, wants, avals)

    return run


def _as_stored(r: Rewriter, values: Sequence[int], env: Env) -> list[Any]:
    return [r.read(env, value, r.stored(value)) for value in values]


def _avals(eqn: _jax.Eqn) -> list[Any]:
    return [var.aval for var in eqn.outvars]


def transparent(
    r: Rewriter, step: Step, env: Env
) -> tuple[list[Paint], list[Any], Callable[..., list[Any]]]:
    """Returns the parts of an equation whose results are the results of its one nested program.

    Returns:
        The precision of each result, the operands, and the program as a function of them.
    """
    (program,) = step.bodies
    wants = [r.wanted(node, 0) for node in step.nodes]
    operands = _as_stored(r, step.inputs, env)
    return wants, operands, stored_function(r, program, wants, _avals(step.eqn))


def _remat(r: Rewriter, step: Step, env: Env) -> Results:
    """Binds the equation directly: ``jax.checkpoint`` would lose its ``differentiated`` flag."""
    wants, operands, function = transparent(r, step, env)
    # A remat equation takes no constants, so constants of an inlined `jit` become arguments.
    new, consts = _jax.with_consts_as_arguments(jax.make_jaxpr(function)(*operands))
    params = {**step.eqn.params, "jaxpr": new}
    if isinstance(params["prevent_cse"], tuple):
        params["prevent_cse"] = (False,) * len(consts) + params["prevent_cse"]
    return zip(wants, _jax.bind(step.eqn, [*consts, *operands], params), strict=True)


def _jit(r: Rewriter, step: Step, env: Env) -> Results:
    """Returns a nested ``jit`` with shardings."""
    wants, operands, function = transparent(r, step, env)
    jitted = jax.jit(
        _jax.named(lambda *xs: tuple(function(*xs)), step.eqn.params["name"]),
        **_jax.jit_options(step.eqn),
    )
    return zip(wants, jitted(*operands), strict=True)


def _cond(r: Rewriter, step: Step, env: Env) -> Results:
    """Binds a ``cond``; each branch casts its operands, and its results as the joins store them."""
    wants = [r.wanted(node, 0) for node in step.nodes]
    index = r.read(env, step.inputs[0], Paint.FULL)
    operands = _as_stored(r, step.inputs[1:], env)
    branches = tuple(
        jax.make_jaxpr(stored_function(r, program, wants, _avals(step.eqn)))(*operands)
        for program in step.bodies
    )
    results = _jax.bind(step.eqn, [index, *operands], {**step.eqn.params, "branches": branches})
    return zip(wants, results, strict=True)


def _scan(r: Rewriter, step: Step, env: Env) -> Results:
    """Binds a ``scan``; its body finds constants outside, where they are cast before the loop."""
    (program,) = step.bodies
    num_consts, num_carry = _jax.scan_layout(step.eqn)
    num_xs = len(step.inputs) - num_consts - num_carry
    carries, rest = step.nodes[:num_carry], step.nodes[num_carry:]
    slices, stacks = rest[:num_xs], rest[num_xs:]
    avals = _avals(step.eqn)
    local = [var.aval for var in program.jaxpr.outvars]
    r.hoist(program.body, env)
    split = num_consts + num_carry
    starts = [r.wanted(node, 0) for node in carries]
    first = r.results(env, step.inputs[num_consts:split], starts, avals[:num_carry])
    xs = r.operands(env, slices, step.inputs[split:])
    found = {position: r.optimizations.at(node) for position, node in enumerate(carries)}
    known = isinstance(step.eqn.params["length"], int)
    sums = {
        position: optimization
        for position, optimization in found.items()
        if known and optimization is not None
    }
    sliced = dict(zip(program.inputs[split:], step.inputs[split:], strict=True))

    def body(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        inner = r.enter_loop(program.body, env)
        carried = iter(carry)
        # A sum that moves after the loop is zero here, and only dead additions read it.
        whole = [
            jax.numpy.zeros_like(array) if position in sums else next(carried)
            for position, array in enumerate(first)
        ]
        arguments = zip(program.inputs[num_consts:], (*carries, *slices), [*whole, *x], strict=True)
        for value, node, array in arguments:
            inner.write(value, r.kept(node, 0), array)
        r.run(program, inner)
        wants = [r.wanted(node, 1) for node in carries] + [r.wanted(node, 0) for node in stacks]
        results = r.results(inner, program.outputs, wants, local)
        carry = [array for k, array in enumerate(results[:num_carry]) if k not in sums]
        return carry, [*results[num_carry:], *stacked_operands(r, sums.values(), inner, sliced)]

    params = step.eqn.params
    last, stacked = lax.scan(
        body,
        [array for position, array in enumerate(first) if position not in sums],
        xs,
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
        _split_transpose=params.get("_split_transpose", False),
    )
    paints = [r.kept(node, 1) for node in carries] + [r.kept(node, 0) for node in stacks]
    stack = functools.partial(r.read, env)
    after, stacked = with_sums(r, sums, first, last, stacked, stack, sliced)
    return zip(paints, [*after, *stacked], strict=True)


def _while(r: Rewriter, step: Step, env: Env) -> Results:
    """Binds a ``while``; condition and body read each carry in its storage dtype."""
    cond, loop = step.bodies
    of_cond = step.eqn.params["cond_nconsts"]
    of_body = step.eqn.params["body_nconsts"]
    avals = _avals(step.eqn)
    r.hoist(loop.body, env)
    starts = [r.wanted(node, 0) for node in step.nodes]
    first = r.results(env, step.inputs[of_cond + of_body :], starts, avals)

    def enter(program: Program, count: int, carry: Sequence[Any]) -> Env:
        inner = r.enter_loop(program.body, env)
        for value, node, array in zip(program.inputs[count:], step.nodes, carry, strict=True):
            inner.write(value, r.kept(node, 0), array)
        r.run(program, inner)
        return inner

    def go_on(carry: Sequence[Any]) -> Any:
        return r.read(enter(cond, of_cond, carry), cond.outputs[0], Paint.FULL)

    def body(carry: Sequence[Any]) -> list[Any]:
        inner = enter(loop, of_body, carry)
        wants = [r.wanted(node, 1) for node in step.nodes]
        new = r.results(inner, loop.outputs, wants, avals)
        return keep_finished(go_on(carry), carry, new) if mapped else new

    mapped = is_mapped(step.eqn)
    any_goes_on = (lambda carry: jax.numpy.any(go_on(carry))) if mapped else go_on
    results = lax.while_loop(any_goes_on, body, first)
    return zip([r.kept(node, 1) for node in step.nodes], results, strict=True)


def is_mapped(eqn: _jax.Eqn) -> bool:
    """Checks if a ``while`` has one condition for each element of a batch, as ``vmap`` makes it."""
    (goes_on,) = _jax.open_jaxpr(eqn.params["cond_jaxpr"]).outvars
    return bool(goes_on.aval.shape)


def keep_finished(goes_on: Any, old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """Returns the carries after an iteration; finished batch elements keep their old values."""
    axes = range(goes_on.ndim)
    return [
        lax.select_n(lax.broadcast_in_dim(goes_on, after.shape, axes), before, after)
        for before, after in zip(old, new, strict=True)
    ]


def _shard_map(r: Rewriter, step: Step, env: Env) -> Results:
    """Binds a ``shard_map``; operands and results have the precisions of their nodes."""
    (program,) = step.bodies
    enters, exits = step.nodes[: len(step.inputs)], step.nodes[len(step.inputs) :]
    wants = [r.wanted(node, 0) for node in exits]
    operands = r.operands(env, enters, step.inputs)
    local = [getattr(atom, "aval", None) for atom in program.jaxpr.outvars]
    function = stored_function(r, program, wants, local)
    sharded = jax.shard_map(
        lambda *shards: tuple(function(*shards)), **_jax.shard_map_arguments(step.eqn)
    )
    return zip([r.kept(node, 0) for node in exits], sharded(*operands), strict=True)


HANDLERS: Mapping[str, Handler] = {
    "remat": _remat,
    "jit": _jit,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "shard_map": _shard_map,
}
"""By ``Step.kind``."""
