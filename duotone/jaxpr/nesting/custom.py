"""How painted functions with custom derivative rules are rebuilt.

Inlining such a function would lose its rule, and with it a gradient that is finite where the naive
one is not. The rewritten function is a new ``jax.custom_jvp`` or ``jax.custom_vjp``. Its rules
are JAX's own derivatives of the *original* equation, traced in full precision and then painted like
any program. Their arguments arrive and their results leave in the precisions of the painting.
Residuals pass from a forward to a backward rule in the precision in which they are stored.

JAX traces the rules when it needs them, so a function that is never differentiated costs nothing
more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from duotone import _jax
from duotone.graph.graph import Boundary, Paint
from duotone.jaxpr.nesting.nested import Results, transparent
from duotone.jaxpr.reading.program import Step
from duotone.jaxpr.running.env import Env
from duotone.jaxpr.running.jaxprs import function_name
from duotone.jaxpr.running.passes import is_float, no_tangent
from duotone.jaxpr.running.rewrite import Handler, Rewriter
from duotone.policy.regions import marker_of, without_regions

_T = TypeVar("_T")
_LEAVE = {Paint.FULL: Boundary.FULL, Paint.HALF: Boundary.HALF}


def _custom_jvp(r: Rewriter, step: Step, env: Env) -> Results:
    wants, operands, function = transparent(r, step, env)
    given = [r.stored(value) for value in step.inputs]
    eqn = step.eqn
    moving = _differentiable(eqn)

    rewritten: Any = jax.custom_jvp(_as_tuple(function, eqn))

    def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
        count = len(primals)

        def derivative(*arguments: Any) -> list[Any]:
            fixed, moved = arguments[:count], arguments[count:]
            outs, out_tangents = jax.jvp(
                _of_moving(eqn, fixed, moving), [fixed[i] for i in moving], list(moved)
            )
            return [*outs, *_real(eqn, out_tangents)]

        arguments = [*primals, *[tangents[i] for i in moving]]
        paints = [*given, *[given[i] for i in moving]]
        leave = [*wants, *_real(eqn, wants)]
        results = _run_painted(r, step, derivative, arguments, paints, leave)
        return tuple(results[: len(wants)]), tuple(_with_float0(eqn, results[len(wants) :]))

    rewritten.defjvp(rule)
    return zip(wants, rewritten(*operands), strict=True)


def _custom_vjp(r: Rewriter, step: Step, env: Env) -> Results:
    wants, operands, function = transparent(r, step, env)
    given = [r.stored(value) for value in step.inputs]
    eqn = step.eqn
    moving = _differentiable(eqn)

    rewritten: Any = jax.custom_vjp(_as_tuple(function, eqn))

    def forward(*xs: Any) -> tuple[tuple[Any, ...], Any]:
        trees: list[Any] = []

        def primal(*fixed: Any) -> list[Any]:
            outs, pull = jax.vjp(_of_moving(eqn, fixed, moving), *[fixed[i] for i in moving])
            residuals, tree = jax.tree.flatten(pull)
            trees.append(tree)
            return [*outs, *residuals]

        traced = jax.make_jaxpr(primal)(*_full_types(xs, given))
        boundaries = [_LEAVE[want] for want in wants]
        spare = len(_jax.open_jaxpr(traced).outvars) - len(wants)
        leave = [*boundaries, *[Boundary.ANY] * spare]
        painted = r.repaint(traced, given, leave, _scopes_around(r, step))
        results = painted(*xs, wants=[*wants, *[None] * spare])
        kept = tuple(painted.stored(value) for value in painted.program.outputs[len(wants) :])
        residuals = results[len(wants) :]
        return tuple(results[: len(wants)]), (residuals, _Pullback(trees[-1], kept))

    def backward(carried: Any, cotangents: Any) -> tuple[Any, ...]:
        residuals, pullback = carried

        def pull(*arguments: Any) -> list[Any]:
            inner, outer = arguments[: len(residuals)], arguments[len(residuals) :]
            function = jax.tree.unflatten(pullback.tree, inner)
            return list(function(_with_float0(eqn, outer)))

        arguments = [*residuals, *_real(eqn, cotangents)]
        paints = [*pullback.kept, *_real(eqn, wants)]
        leave = [given[i] for i in moving]
        gradients = _run_painted(r, step, pull, arguments, paints, leave)
        found = dict(zip(moving, gradients, strict=True))
        return tuple(found.get(i) for i in range(len(eqn.invars)))

    rewritten.defvjp(forward, backward)
    return zip(wants, rewritten(*operands), strict=True)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class _Pullback:
    """The residuals of a forward rule, for its backward rule: their tree and precisions."""

    tree: Any
    kept: tuple[Paint, ...]


def _as_tuple(function: Callable[..., list[Any]], eqn: _jax.Eqn) -> Callable[..., Any]:
    """Returns ``function`` with a tuple of results, under the name of the equation's function."""
    name = function_name(eqn.params["call_jaxpr"]) or eqn.primitive.name
    return _jax.named(lambda *xs: tuple(function(*xs)), name)


def _run_painted(
    r: Rewriter,
    step: Step,
    function: Callable[..., list[Any]],
    arguments: Sequence[Any],
    given: Sequence[Paint],
    wants: Sequence[Paint],
) -> list[Any]:
    """Traces ``function`` in full precision, paints it, and runs it on stored arguments."""
    traced = jax.make_jaxpr(function)(*_full_types(arguments, given))
    leave = [_LEAVE[want] for want in wants]
    painted = r.repaint(traced, given, leave, _scopes_around(r, step))
    return painted(*arguments, wants=list(wants))


def _scopes_around(r: Rewriter, step: Step) -> tuple[str, ...]:
    """Returns the scopes around a step, so that pins and regions reach its derivative rules.

    The scopes of the equation itself are left out, because equations traced from it have them.
    """
    node = r.graph.nodes[step.nodes[0]]
    own = "/".join(without_regions(_jax.scope_names(step.eqn.source_info.name_stack)))
    return tuple(filter(None, (*marker_of(node.region), node.scope.removesuffix(own).rstrip("/"))))


def _full_types(arguments: Sequence[Any], given: Sequence[Paint]) -> list[Any]:
    """Returns the types that arguments have in the original program."""

    def widen(*xs: Any) -> list[Any]:
        return [
            _jax.convert(x, "float32") if paint is Paint.HALF else x
            for x, paint in zip(xs, given, strict=True)
        ]

    return jax.eval_shape(widen, *arguments)


def _real(eqn: _jax.Eqn, of_results: Sequence[_T]) -> list[_T]:
    """Returns what belongs to the results that have a derivative."""
    pairs = zip(of_results, eqn.outvars, strict=True)
    return [item for item, var in pairs if is_float(var.aval)]


def _with_float0(eqn: _jax.Eqn, real: Sequence[Any]) -> list[Any]:
    """Returns the tangents or cotangents of all results: float0 zeros for integer results."""
    rest = iter(real)
    avals = [var.aval for var in eqn.outvars]
    return [next(rest) if is_float(aval) else no_tangent(aval) for aval in avals]


def _differentiable(eqn: _jax.Eqn) -> list[int]:
    """Returns positions of the operands that have a derivative, without closed-over constants."""
    first = eqn.params.get("num_consts", 0)
    return [i for i, atom in enumerate(eqn.invars) if i >= first and is_float(atom.aval)]


def _of_moving(
    eqn: _jax.Eqn, fixed: Sequence[Any], moving: Sequence[int]
) -> Callable[..., list[Any]]:
    """Returns the original equation as a function of its differentiable operands."""

    def function(*xs: Any) -> list[Any]:
        operands = list(fixed)
        for position, x in zip(moving, xs, strict=True):
            operands[position] = x
        with _jax.EquationContext(eqn):
            return _jax.bind(eqn, operands)

    return function


HANDLERS: Mapping[str, Handler] = {"custom_jvp": _custom_jvp, "custom_vjp": _custom_vjp}
"""By ``Step.kind``."""
