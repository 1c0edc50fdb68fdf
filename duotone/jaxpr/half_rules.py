"""How first-order equations are bound in half.

The default binds the primitive to half operands, with every parameter that names float32 as a dtype
naming half instead. Primitives that need more have a rule in ``_RULES``: those that carry a
sub-program built for one dtype (rebuilt through ``jax.lax``), and dots that keep their accumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from duotone import _jax
from duotone.errors import RewriteError
from duotone.graph.factors import Factored
from duotone.graph.graph import FULL_DTYPE, Node, Paint
from duotone.jaxpr.dots import precision, rows_dot, takes_rows
from duotone.jaxpr.exact_forms import exact_form
from duotone.jaxpr.orders import operand_in_order, result_in_order
from duotone.jaxpr.picks import picked
from duotone.jaxpr.program import Step
from duotone.jaxpr.rewrite import Env, Rewriter, form

_DTYPE_PARAMETERS = ("preferred_element_type", "new_dtype", "out_dtype", "dtype")


@form("leaf")
def _leaf(r: Rewriter, step: Step, env: Env) -> Iterable[tuple[Paint, Any]]:
    """One node."""
    (node,) = step.nodes
    if node in r.plans.factored:
        results = [_factored(r, step, env, r.plans.factored[node])]
    elif node in r.plans.picked:
        results = [picked(r, step, env, r.plans.picked[node])]
    else:
        operands = [
            r.read(r.source(env, node, value), value, _asked(r, node, slot, value))
            for slot, value in enumerate(step.inputs)
        ]
        results = exact_form(r.graph, step, operands)
        if results is None:
            computes_full = r.painting.compute[node] is Paint.FULL
            how = _joined if node in r.plans.joined else _in_full if computes_full else _in_half
            results = how(r, step, operands)
    kept = [r.kept(node, slot) for slot in range(len(step.outputs))]
    return [
        (paint, r.match(array, var.aval, paint))
        for paint, array, var in zip(kept, results, step.eqn.outvars, strict=True)
    ]


def _asked(r: Rewriter, node: int, slot: int, value: int) -> Paint:
    """The precision in which a node reads an operand."""
    return r.stored(value) if node in r.plans.joined else r.wanted(node, slot)


def _factored(r: Rewriter, step: Step, env: Env, plan: Factored) -> Any:
    """A sum, multiplied afterwards with what all of its terms have in common."""
    pairs = ((plan.value, plan.reader), *plan.factors)
    operand, *factors = [r.read(r.source(env, n, value), value, Paint.FULL) for value, n in pairs]
    (result,) = _jax.bind(step.eqn, [operand])
    for factor in factors:
        each = lax.squeeze(factor, step.eqn.params["axes"]) if jax.numpy.ndim(factor) else factor
        result = jax.numpy.multiply(result, each)
    return lax.neg(result) if plan.negative else result


def _joined(r: Rewriter, step: Step, operands: Sequence[Any]) -> list[Any]:
    """A sum in half, which the convolution before it adds up; its derivative is in full."""
    shape = step.eqn.outvars[0].aval.shape
    wide = [jax.numpy.broadcast_to(operand, shape) for operand in operands]
    return _jax.bind(step.eqn, [lax.convert_element_type(x, r.half) for x in wide])


def _in_full(r: Rewriter, step: Step, operands: Sequence[Any]) -> list[Any]:
    """The results of a node that computes full, by the algorithm that the policy asks for."""
    (node,) = step.nodes
    asked = r.math.get(step.eqn.primitive.name)
    if asked is None or r.graph.nodes[node].fixed or not all(r.graph.nodes[node].half_inputs):
        return _jax.bind(step.eqn, operands)
    return _jax.bind(step.eqn, operands, {**step.eqn.params, "precision": precision(asked)})


def _in_half(r: Rewriter, step: Step, operands: Sequence[Any]) -> list[Any]:
    """The results of a node that computes half.

    Raises:
        RewriteError: the primitive does not take half operands.
    """
    rule = _RULES.get(step.eqn.primitive.name, _bind)
    try:
        return rule(r, step, operands)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise RewriteError(
            f"{step.eqn.primitive.name} at {_jax.source_line(step.eqn)} was painted half and does "
            f"not take {r.half.name} operands; take it off the list it is on, or keep it full with "
            "`with duotone.keep_full():`"
        ) from error


@form("each")
def _each(r: Rewriter, step: Step, env: Env) -> Iterable[tuple[Paint, Any]]:
    """One node for each operand."""
    operands = [
        r.read(r.source(env, node, value), value, r.wanted(node, 0))
        for value, node in zip(step.inputs, step.nodes, strict=True)
    ]
    results = _jax.bind(step.eqn, operands)
    return [(r.kept(node, 0), array) for node, array in zip(step.nodes, results, strict=True)]


_Rule = Callable[[Rewriter, Step, Sequence[Any]], list[Any]]
_RULES: dict[str, _Rule] = {}
"""By primitive name: takes the operands as the node wants them, returns the results."""


def _rule(*names: str) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _half_parameters(r: Rewriter, params: dict[str, Any]) -> dict[str, Any]:
    """``params`` with half where they name float32."""
    changed = {
        name: r.half
        for name in _DTYPE_PARAMETERS
        if params.get(name) is not None and params[name] == np.float32
    }
    return {**params, **changed}


def _bind(r: Rewriter, step: Step, operands: Sequence[Any]) -> list[Any]:
    """The default.

    Raises:
        TypeError: the primitive carries a program that was traced for float32.
    """
    if any(_jax.holds_jaxpr(param) for param in step.eqn.params.values()):
        raise TypeError(f"{step.eqn.primitive.name} carries a program traced for {FULL_DTYPE}")
    return _jax.bind(step.eqn, operands, _half_parameters(r, step.eqn.params))


@_rule("convert_element_type")
def _convert(r: Rewriter, step: Step, operands: Sequence[Any]) -> list[Any]:
    """A conversion to float32 becomes one to half; the user's own conversions stay."""
    (node,) = step.nodes
    target = step.eqn.params["new_dtype"]
    if r.kept(node, 0) is Paint.HALF:
        target = r.half
    return [_jax.convert(operands[0], target)]


@_rule("dot_general")
def _dot_general(r: Rewriter, step: Step, operands: Sequence[Any]) -> list[Any]:
    """Half operands; the result half, or the float32 accumulator itself (rule ``wide``).

    Bound in the form that the device runs fast, see :mod:`duotone.jaxpr.dots`.

    JAX transposes a dot with half operands and a float32 result into a dot of a float32 cotangent
    with a half operand, which runs in float32. The derivatives written here and there cast the
    cotangent first, so that the backward dots take half operands as well.
    """
    (node,) = step.nodes
    result = r.half if r.kept(node, 0) is Paint.HALF else np.dtype(FULL_DTYPE)
    if r.dots == "rows" and takes_rows(*operands):
        dims = _hashable(step.eqn.params["dimension_numbers"])
        swapped = _is_transposed_next(r, step, dims)
        return [r.bound_once(rows_dot, operands, dims, result.name, swapped)]
    if result == r.half:
        return [_in_order(r, step, operands, _half_parameters(r, step.eqn.params))]
    eqn, half_params = step.eqn, _half_parameters(r, step.eqn.params)
    wide_params = {**eqn.params, "preferred_element_type": result}

    @jax.custom_jvp
    def dot_half_to_full(lhs: Any, rhs: Any) -> Any:
        pair = (lhs, rhs)
        if r.dots != "plain":
            pair = [_jax.convert(operand, FULL_DTYPE) for operand in pair]
        return _in_order(r, step, pair, wide_params)

    def derivative(primals: Any, tangents: Any) -> tuple[Any, Any]:
        lhs, rhs = primals
        parts = [
            _jax.convert(_jax.bind(eqn, pair, half_params)[0], FULL_DTYPE)
            for pair in ((tangents[0], rhs), (lhs, tangents[1]))
        ]
        return dot_half_to_full(lhs, rhs), parts[0] + parts[1]

    dot_half_to_full.defjvp(derivative)
    return [dot_half_to_full(*operands)]


def _in_order(r: Rewriter, step: Step, operands: Sequence[Any], params: dict[str, Any]) -> Any:
    """A dot whose large operand or result has the order that the program has it in."""

    def dot(lhs: Any, rhs: Any, dims: Any) -> Any:
        changed = {**params, "dimension_numbers": _hashable(dims)}
        return _jax.bind(step.eqn, (lhs, rhs), changed)[0]

    dims = params["dimension_numbers"]
    found = None
    if r.dots == "plain" and params.get("out_sharding") is None and takes_rows(*operands):
        reader = r.only_reader(step.outputs[0])
        if reader is not None and reader.op == "transpose":
            found = result_in_order(dot, operands, dims, _permutation(reader))
        for slot, value in enumerate(step.inputs):
            producer = r.graph.values[value].producer
            if found is None and producer >= 0 and r.graph.nodes[producer].op == "transpose":
                by = _permutation(r.graph.nodes[producer])
                found = operand_in_order(dot, operands, dims, slot, by)
    return dot(operands[0], operands[1], dims) if found is None else found


def _permutation(node: Node) -> tuple[int, ...]:
    found = node.attributes["permutation"]
    assert isinstance(found, tuple)
    return found


def _is_transposed_next(r: Rewriter, step: Step, dims: Any) -> bool:
    """Whether the one reader of a dot moves what the right operand kept before what the left kept.

    JAX writes the gradient of a weight so. Told by shapes: a square result counts as moved.
    """
    (contracted, _), (batch, _) = dims
    reader = r.only_reader(step.outputs[0])
    if batch or reader is None or reader.op != "transpose":
        return False
    shape = step.eqn.outvars[0].aval.shape
    left = step.eqn.invars[0].aval.ndim - len(contracted)
    return r.graph.values[reader.outputs[0]].shape == (*shape[left:], *shape[:left])


def _hashable(dims: Any) -> Any:
    return tuple(tuple(tuple(axes) for axes in pair) for pair in dims)


_SCATTERS: dict[str, Callable[..., Any]] = {
    "scatter": lax.scatter,
    "scatter-add": lax.scatter_add,
    "scatter_add": lax.scatter_add,
    "scatter-sub": lax.scatter_sub,
    "scatter_sub": lax.scatter_sub,
    "scatter-mul": lax.scatter_mul,
    "scatter_mul": lax.scatter_mul,
    "scatter-min": lax.scatter_min,
    "scatter_min": lax.scatter_min,
    "scatter-max": lax.scatter_max,
    "scatter_max": lax.scatter_max,
}


@_rule(*_SCATTERS)
def _scatter(r: Rewriter, step: Step, operands: Sequence[Any]) -> list[Any]:
    """The region that combines old and new is built for one dtype: scatter again."""
    del r
    params = step.eqn.params
    scatter = _SCATTERS[step.eqn.primitive.name]
    return [
        scatter(
            *operands,
            params["dimension_numbers"],
            indices_are_sorted=params["indices_are_sorted"],
            unique_indices=params["unique_indices"],
            mode=params["mode"],
        )
    ]
