"""How first-order equations are bound in half.

The default binds the primitive to half operands and changes every dtype parameter from float32 to
half. ``_BINDING_RULES`` has the other primitives: those with a sub-program that was built for one
dtype (they are rebuilt through ``jax.lax``), and dots that keep their float32 accumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from duotone import _jax
from duotone.errors import RewriteError
from duotone.graph.forms import ROWS, WIDENED
from duotone.graph.graph import FULL_DTYPE, SWITCHED_OFF, Paint
from duotone.jaxpr.reading.program import Step
from duotone.jaxpr.rules.dots import Dims, precision, rows_dot, rows_dot_for_values, takes_rows
from duotone.jaxpr.rules.optimizations import apply_optimization
from duotone.jaxpr.rules.phases import in_phases
from duotone.jaxpr.rules.weight_dots import DotForm, of_weight, rows_dot_of_weight
from duotone.jaxpr.rules.windows import window_dot
from duotone.jaxpr.running.env import Env
from duotone.jaxpr.running.rewrite import Handler, Rewriter, is_host_array
from duotone.ops.registry import registering
from duotone.ops.traits import Trait
from duotone.precision.optimize.optimization import Layer

_DTYPE_PARAMETERS = ("preferred_element_type", "new_dtype", "out_dtype", "dtype")

_FULL = Paint.FULL  # bound once: this is hot


def _leaf(r: Rewriter, step: Step, env: Env) -> Iterable[tuple[Paint, Any]]:
    """Binds one node."""
    (node,) = step.nodes
    optimization = r.optimizations.at(node)
    if optimization is None:
        results = _own(r, step, env, r.operands_of(step, env))
    else:

        def own(operands: Sequence[Any]) -> Any:
            return _own(r, step, env, operands)[0]

        results = [apply_optimization(r, step, env, optimization, own)]
    half, store = r.graph.nodes[node].half_outputs, r.painting.store[node]
    kept = [store if may_be_half else _FULL for may_be_half in half]
    return [
        (paint, r.match(array, var.aval, paint))
        for paint, array, var in zip(kept, results, step.eqn.outvars, strict=True)
    ]


def _own(r: Rewriter, step: Step, env: Env, operands: Sequence[Any]) -> list[Any]:
    """Binds one node in its own form."""
    (node,) = step.nodes
    reductions = r.optimizations.reductions
    if node in reductions.nodes and Trait.SUMS_DEVICES in r.graph.nodes[node].traits:
        return _reduced(step.eqn, operands, np.dtype(reductions.dtype))
    computes_full = r.painting.compute[node] is _FULL
    return (_in_full if computes_full else _in_half)(r, step, env, operands)


def _reduced(eqn: _jax.Eqn, operands: Sequence[Any], dtype: np.dtype) -> list[Any]:
    """Returns the results of a sum over devices whose float32 operands are cast to ``dtype``."""
    cast = [
        _jax.convert(array, dtype) if atom.aval.dtype == FULL_DTYPE else array
        for array, atom in zip(operands, eqn.invars, strict=True)
    ]
    return _jax.bind(eqn, cast)


def _in_full(r: Rewriter, step: Step, env: Env, operands: Sequence[Any]) -> list[Any]:
    """Returns the results of a node that computes full, by the policy's float32 algorithm."""
    (node,) = step.nodes
    asked, made = r.math.get(step.eqn.primitive.name), r.graph.nodes[node]
    if asked is None or made.fixed or made.region == SWITCHED_OFF or not all(made.half_inputs):
        return _jax.bind(step.eqn, operands)
    return _jax.bind(step.eqn, operands, {**step.eqn.params, "precision": precision(asked)})


def _in_half(r: Rewriter, step: Step, env: Env, operands: Sequence[Any]) -> list[Any]:
    """Returns the results of a node that computes half.

    Raises:
        RewriteError: the primitive does not take half operands.
    """
    rule = _BINDING_RULES.get(step.eqn.primitive.name, _bind)
    try:
        return rule(r, step, env, operands)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise RewriteError(
            f"{step.eqn.primitive.name} at {_jax.source_line(step.eqn)} was painted half and does "
            f"not take {r.half.name} operands; remove it from its list in the policy, or keep it "
            "full with `with duotone.keep_full():`"
        ) from error


def _each(r: Rewriter, step: Step, env: Env) -> Iterable[tuple[Paint, Any]]:
    """Binds an equation that has one node for each operand."""
    operands = [
        r.read(r.source(env, node, value), value, r.wanted(node, 0))
        for value, node in zip(step.inputs, step.nodes, strict=True)
    ]
    results = _jax.bind(step.eqn, operands)
    return [(r.kept(node, 0), array) for node, array in zip(step.nodes, results, strict=True)]


_BindingRule = Callable[[Rewriter, Step, Env, Sequence[Any]], list[Any]]
_BINDING_RULES: dict[str, _BindingRule] = {}
"""By primitive name: takes the operands in the node's precision, returns the results."""


_binding_rule = registering(_BINDING_RULES)


def _half_parameters(r: Rewriter, params: dict[str, Any]) -> dict[str, Any]:
    """Returns ``params`` with half instead of float32."""
    changed = {
        name: r.half
        for name in _DTYPE_PARAMETERS
        if params.get(name) is not None and params[name] == np.float32
    }
    return {**params, **changed}


def _bind(r: Rewriter, step: Step, env: Env, operands: Sequence[Any]) -> list[Any]:
    """Binds a primitive that has no rule of its own.

    Raises:
        TypeError: the primitive has a nested program that was traced for float32.
    """
    if any(_jax.holds_jaxpr(param) for param in step.eqn.params.values()):
        raise TypeError(f"{step.eqn.primitive.name} has a nested program traced for {FULL_DTYPE}")
    params = _half_parameters(r, step.eqn.params)
    if step.eqn.primitive.multiple_results or step.eqn.effects:
        return _jax.bind(step.eqn, operands, params)
    return [r.bound_once(_bind_alone, operands, step.eqn.primitive, tuple(params.items()))]


def _bind_alone(*given: Any) -> Any:
    """Binds a primitive with one result; takes operands, the primitive, and its parameters."""
    *operands, primitive, params = given
    return primitive.bind(*operands, **primitive.get_bind_params(dict(params)))


@_binding_rule("gather")
def _gather(r: Rewriter, step: Step, env: Env, operands: Sequence[Any]) -> list[Any]:
    """Binds a gather; saturates a fill value that is too large for half."""
    (node,) = step.nodes
    fill, limit = r.graph.nodes[node].attributes.get("fill"), r.largest
    params = dict(step.eqn.params)
    if isinstance(fill, float) and limit < abs(fill) < np.inf:
        params["fill_value"] = float(np.copysign(limit, fill))
    return _jax.bind(step.eqn, operands, params)


@_binding_rule("reduce_precision")
def _reduce_precision(r: Rewriter, step: Step, env: Env, operands: Sequence[Any]) -> list[Any]:
    """Rounds to at most the digits of half, so that no compiler keeps more of them."""
    info, params = jnp.finfo(r.half), step.eqn.params
    exponent = min(params["exponent_bits"], info.nexp)
    mantissa = min(params["mantissa_bits"], info.nmant)
    return [lax.reduce_precision(operands[0], exponent, mantissa)]


@_binding_rule("convert_element_type")
def _convert(r: Rewriter, step: Step, env: Env, operands: Sequence[Any]) -> list[Any]:
    """Converts to half where the program converts to float32; the user's conversions stay."""
    (node,) = step.nodes
    target = step.eqn.params["new_dtype"]
    if r.kept(node, 0) is Paint.HALF:
        target = r.half
    return [_jax.convert(operands[0], target)]


@_binding_rule("dot_general")
def _dot_general(r: Rewriter, step: Step, env: Env, operands: Sequence[Any]) -> list[Any]:
    """Binds a dot of half operands; returns half, or the float32 accumulator (rule ``wide``).

    The form is the one that the device runs fast, see :mod:`duotone.jaxpr.rules.dots`. A dot with a
    weight has its own derivative, see :mod:`duotone.jaxpr.rules.weight_dots`.
    """
    (node,) = step.nodes
    arrays = takes_rows(*operands)
    in_float32 = r.kept(node, 0) is Paint.FULL and node not in r.optimizations.reductions.nodes
    how = _dot_form(r, step, FULL_DTYPE if in_float32 else r.half.name, arrays)
    slot = _weight_slot(r, step, env) if arrays and r.derives else None
    if slot is None:
        return [_bound(r, how, operands)]
    return [_bound_of_weight(r, how, operands, slot, _full_weight(r, env, step.inputs[slot]))]


@_binding_rule("conv_general_dilated")
def _convolution(r: Rewriter, step: Step, env: Env, operands: Sequence[Any]) -> list[Any]:
    """Binds a convolution of half operands, in the form of its optimization if it has one."""
    (node,) = step.nodes
    found = r.optimizations.at(node, Layer.BINDING)
    name = "" if found is None or not takes_rows(*operands) else found.name
    shape, (image, filters) = step.eqn.outvars[0].aval.shape, operands
    if name == "window_dots":
        dot = _dot_of_windows(r, step, env)
        return [window_dot(step.eqn.params, image, filters, shape, dot)]
    if name == "phases":

        def convolve(lhs: Any, rhs: Any, params: dict[str, Any]) -> Any:
            return _jax.bind(step.eqn, [lhs, rhs], params)[0]

        params = _half_parameters(r, step.eqn.params)
        return [in_phases(params, image, filters, shape, convolve)]
    return _bind(r, step, env, operands)


def _dot_of_windows(r: Rewriter, step: Step, env: Env) -> Callable[[Any, Any, Dims], Any]:
    """Returns a function that binds the dot of a convolution, whose right operand is a weight."""
    dtype = FULL_DTYPE if r.kept(step.nodes[0], 0) is Paint.FULL else r.half.name
    weight = (
        env.find(step.inputs[1], Paint.FULL) if "weight_gradients" in r.optimizations.on else None
    )

    def dot(lhs: Any, rhs: Any, numbers: Dims) -> Any:
        how = DotForm(r.dots, numbers, dtype, r.half.name)
        if weight is None or not r.derives or not _takes_gradient(weight):
            return _bound(r, how, (lhs, rhs))
        return _bound_of_weight(r, how, (lhs, rhs), 1, lax.reshape(weight, rhs.shape))

    return dot


def _bound(r: Rewriter, how: DotForm, operands: Sequence[Any]) -> Any:
    """Binds a dot; in the form ``rows``, its derivative has that form too if it has one."""
    if how.kind == ROWS:
        dot = rows_dot if r.derives else rows_dot_for_values
        return r.bound_once(dot, operands, how.numbers, how.dtype, how.steps)
    lhs, rhs = operands
    return how.dot(lhs, rhs, how.dtype)


def _bound_of_weight(
    r: Rewriter, how: DotForm, operands: Sequence[Any], slot: int, full: Any
) -> Any:
    """Binds the dot of a weight, with the gradient of the full weight."""
    if how.kind == ROWS:
        return r.bound_once(rows_dot_of_weight, [*operands, full], slot, how)
    result = _bound(r, how, operands)
    return r.bound_once(of_weight, [result, *operands, full], slot, how)


def _dot_form(r: Rewriter, step: Step, dtype: str, arrays: bool) -> DotForm:
    """Returns the form in which a dot is bound: the device's, with its optimization's steps.

    ``arrays`` is the result of :func:`~duotone.jaxpr.rules.dots.takes_rows` for its operands.
    """
    params = step.eqn.params
    movable = arrays and params.get("out_sharding") is None
    optimization = r.optimizations.at(step.nodes[0], Layer.BINDING)
    return DotForm(
        WIDENED if r.dots == ROWS and not movable else r.dots,
        _hashable(params["dimension_numbers"]),
        dtype,
        r.half.name,
        () if optimization is None else optimization.steps,
        precision=params["precision"],
        out_sharding=params.get("out_sharding"),
    )


def _weight_slot(r: Rewriter, step: Step, env: Env) -> int | None:
    """Returns the slot of a dot's weight: an operand read in half and computed in full."""
    optimization = r.optimizations.at(step.nodes[0], Layer.DERIVATIVE)
    for candidate in () if optimization is None else optimization.steps:
        slot, root = candidate.to
        if _takes_gradient(env.find(root, Paint.FULL)):
            return slot
    return None


def _takes_gradient(full: Any | None) -> bool:
    """Returns True for a float32 array with respect to which JAX may differentiate."""
    return full is not None and not is_host_array(full) and full.dtype == FULL_DTYPE


def _full_weight(r: Rewriter, env: Env, value: int) -> Any:
    """Returns the full weight from which ``value`` was cast, with the same moves applied."""
    full = env.find(value, Paint.FULL)
    if full is not None:
        return full
    step = r.step_of(value)
    return _jax.bind(step.eqn, [_full_weight(r, env, step.inputs[0])])[0]


def _hashable(dims: Any) -> Any:
    return tuple(tuple(tuple(axes) for axes in pair) for pair in dims)


_SCATTERS: dict[str, Callable[..., Any]] = {
    "scatter": lax.scatter,
    "scatter-add": lax.scatter_add,
    "scatter-sub": lax.scatter_sub,
    "scatter-mul": lax.scatter_mul,
    "scatter-min": lax.scatter_min,
    "scatter-max": lax.scatter_max,
}


@_binding_rule(*_SCATTERS)
def _scatter(r: Rewriter, step: Step, env: Env, operands: Sequence[Any]) -> list[Any]:
    """Binds a scatter through ``jax.lax``: its region is traced for one dtype."""
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


HANDLERS: Mapping[str, Handler] = {"leaf": _leaf, "each": _each}
"""By ``Step.kind``."""
