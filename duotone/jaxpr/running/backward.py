"""Backward: the backward pass of a rewritten function, painted together with its forward pass.

``jax.grad(autocast(f))`` differentiates a program that is rewritten already. JAX would then choose
the residuals, and derive the backward pass from casts. Instead, this module gives the rewritten
program its own derivative::

    f ─ differentiate ─► one program: arguments, cotangents ─► results, gradients
      ─ rewrite, like any whole training step ─► the same program in half
      ─ cut ─► forward: the equations that the results need
               backward: all other equations; they read residuals that forward made

The derivative is a :class:`jax.custom_jvp` rule whose tangents come from one linear equation. The
transpose of that equation is the backward pass. So ``jvp``, ``vmap``, ``checkpoint`` and
``hessian`` accept the function like any other. Forward mode transposes the backward pass once more.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero

from duotone import _jax

logger = logging.getLogger("duotone")

Run = Callable[..., list[Any]]
"""Takes and returns arrays."""
Rewrite = Callable[[_jax.ClosedJaxpr, int], Run]
"""Takes a differentiated program and the number of its cotangents, which are its last arguments;
returns the rewritten program."""


def with_backward(jaxpr: _jax.ClosedJaxpr, run: Run, rewrite: Rewrite) -> Run:
    """Returns a rewritten program whose backward pass is rewritten together with its forward pass.

    Args:
        jaxpr: the program before it was rewritten.
        run: the rewritten program.
        rewrite: rewrites the differentiated program.

    Returns:
        ``run`` with its own derivatives. ``run`` itself if no argument is floating-point, or if
        :func:`leaves_backward` gives a reason.
    """
    opened = _jax.open_jaxpr(jaxpr)
    if leaves_backward(jaxpr) or not any(map(_is_float, opened.in_avals)):
        return run
    passes: dict[tuple[bool, ...], Passes | None] = {}

    @jax.custom_jvp
    def program(*leaves: Any) -> list[Any]:
        return list(run(*leaves))

    def rule(leaves: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        moved = tuple(not isinstance(tangent, SymbolicZero) for tangent in tangents)
        if moved not in passes:
            passes[moved] = _passes(jaxpr, leaves, moved, rewrite)
        found = passes[moved]
        if found is None:
            tangents = tuple(map(_dense, tangents))
            return jax.jvp(lambda *leaves: list(run(*leaves)), leaves, tangents)
        results, residuals = found.forward(*leaves)
        given = [tangent for tangent, nonzero in zip(tangents, moved, strict=True) if nonzero]
        made = iter(_LINEAR.bind(*residuals, *given, passes=found))
        return results, [
            next(made) if nonzero else SymbolicZero(_tangent_type(result))
            for result, nonzero in zip(results, found.reached, strict=True)
        ]

    program.defjvp(rule, symbolic_zeros=True)
    return program


def leaves_backward(jaxpr: _jax.ClosedJaxpr) -> str:
    """Explains why the backward pass is not painted together with the forward pass.

    Args:
        jaxpr: the program before it is rewritten.

    Returns:
        The reason, empty if there is none.
    """
    opened = _jax.open_jaxpr(jaxpr)
    if opened.effects:
        return "its effects must not happen twice"
    if not all(isinstance(aval, _jax.ShapedArray) for aval in opened.in_avals):
        return "an argument is not an array"
    if any(map(_jax.has_sharded_type, opened.in_avals)):
        return "its mesh has explicit or manual axes"
    if any(isinstance(const, Tracer) for const in _jax.consts_of(jaxpr)):
        return "it reads values of an outer trace"
    return ""


@dataclasses.dataclass(frozen=True, eq=False)
class Passes:
    """The two passes of a differentiated program.

    Attributes:
        forward: arguments to results and residuals.
        backward: residuals and cotangents (of the ``reached`` results) to the gradients with
            respect to the differentiated arguments.
        reached: for each result, whether it depends on a differentiated argument.
        count: the number of residuals.
        types: the types of the tangents of the ``reached`` results.
    """

    forward: Callable[..., tuple[list[Any], list[Any]]]
    backward: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    reached: tuple[bool, ...]
    count: int
    types: tuple[Any, ...]

    def tangents(self, residuals: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """Returns the tangents of the results: the backward pass, transposed."""

        def backward(*cotangents: Any) -> list[Any]:
            return self.backward(residuals, cotangents)

        return list(jax.linear_transpose(backward, *self.types)(list(given)))


def _passes(
    jaxpr: _jax.ClosedJaxpr,
    leaves: Sequence[Any],
    moved: tuple[bool, ...],
    rewrite: Rewrite,
) -> Passes | None:
    """Returns the passes of a program; ``None`` if its backward pass cannot be rewritten."""
    types = list(_jax.open_jaxpr(jaxpr).in_avals)
    pairs = zip(leaves, types, moved, strict=True)
    if any(nonzero and jax.typeof(leaf).dtype != aval.dtype for leaf, aval, nonzero in pairs):
        return None  # weights that were cast before the call
    try:
        whole = _differentiated(jaxpr, types, moved)
    except Exception:
        return None  # JAX raises the same error when it differentiates the rewritten program
    outs = _jax.open_jaxpr(jaxpr).outvars
    before = len(types)
    floats = [_is_float(out.aval) for out in outs]
    used = _needed(_jax.open_jaxpr(whole), _jax.open_jaxpr(whole).outvars[len(outs) :])
    cotangents = _jax.open_jaxpr(whole).invars[before:]
    is_used = iter(var in used for var in cotangents)
    reached = tuple(is_float and next(is_used) for is_float in floats)
    given = [jax.typeof(leaf) for leaf in leaves] + [var.aval for var in cotangents]
    try:
        rewritten = jax.make_jaxpr(rewrite(whole, len(cotangents)))(*given)
    except Exception as error:
        logger.warning(
            "%s: JAX derives its backward pass from its forward pass, since the two could not be "
            "rewritten together (%s: %s); this is a bug in duotone, please report the program",
            _jax.function_name(jaxpr) or "a function",
            type(error).__name__,
            error,
        )
        return None
    return _cut(rewritten, len(types), floats, reached)


def _differentiated(
    jaxpr: _jax.ClosedJaxpr, types: Sequence[Any], moved: Sequence[bool]
) -> _jax.ClosedJaxpr:
    """Maps arguments and cotangents of all floating-point results to results and gradients."""
    outs = [out.aval for out in _jax.open_jaxpr(jaxpr).outvars]

    def whole(*operands: Any) -> list[Any]:
        leaves, given = operands[: len(types)], iter(operands[len(types) :])

        def of_moved(*floats: Any) -> list[Any]:
            rest = iter(floats)
            pairs = zip(leaves, moved, strict=True)
            return _jax.jaxpr_as_fun(jaxpr)(
                *[next(rest) if is_moved else leaf for leaf, is_moved in pairs]
            )

        pairs = zip(leaves, moved, strict=True)
        results, pull = jax.vjp(of_moved, *[leaf for leaf, is_moved in pairs if is_moved])
        gradients = pull([next(given) if _is_float(out) else _no_tangent(out) for out in outs])
        return [*results, *gradients]

    cotangents = [aval.update(weak_type=False) for aval in outs if _is_float(aval)]
    return jax.make_jaxpr(whole)(*types, *cotangents)


def _cut(
    whole: _jax.ClosedJaxpr, count: int, floats: Sequence[bool], reached: tuple[bool, ...]
) -> Passes | None:
    """Cuts a rewritten program in two: forward has only the equations that its results need.

    Returns:
        ``None`` if it cannot be cut: it has effects, or its results depend on cotangents.
    """
    opened = _jax.open_jaxpr(whole)
    leaves, cotangents = opened.invars[:count], opened.invars[count:]
    results, gradients = opened.outvars[: len(floats)], opened.outvars[len(floats) :]
    consts = dict(zip(opened.constvars, _jax.consts_of(whole), strict=True))
    in_forward = _needed(opened, results)
    if opened.effects or not in_forward.isdisjoint(cotangents):
        return None
    in_backward = _needed(opened, gradients, known=in_forward)
    first = [eqn for eqn in opened.eqns if any(out in in_forward for out in eqn.outvars)]
    taken = set(map(id, first))
    second = [
        eqn
        for eqn in opened.eqns
        if id(eqn) not in taken and any(out in in_backward for out in eqn.outvars)
    ]
    read = [atom for eqn in second for atom in eqn.invars] + list(gradients)
    made = {*leaves, *(out for eqn in first for out in eqn.outvars)}
    residuals = list(dict.fromkeys(v for v in read if not _jax.is_literal(v) and v in made))
    float_results = [position for position, is_float in enumerate(floats) if is_float]
    positions = [i for i, position in enumerate(float_results) if reached[position]]

    def forward(*arrays: Any) -> tuple[list[Any], list[Any]]:
        env = {**consts, **dict(zip(leaves, arrays, strict=True))}
        _evaluate(first, env)
        return _read(env, results), _read(env, residuals)

    def backward(kept: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        env = {**consts, **dict(zip(residuals, kept, strict=True))}
        env.update(zip(cotangents, cotangents_of(given), strict=True))
        _evaluate(second, env)
        return _read(env, gradients)

    def cotangents_of(given: Sequence[Any]) -> list[Any]:
        """Returns the cotangents of all floating-point results; zeros where not ``reached``."""
        zeros = [_no_tangent(var.aval) for var in cotangents]
        for position, cotangent in zip(positions, given, strict=True):
            zeros[position] = cotangent
        return zeros

    types = tuple(var.aval for var, is_reached in zip(results, reached, strict=True) if is_reached)
    types = tuple(aval.update(weak_type=False) for aval in types)
    return Passes(forward, backward, reached, len(residuals), types)


def _needed(jaxpr: _jax.OpenJaxpr, atoms: Iterable[Any], known: Iterable[Any] = ()) -> set[Any]:
    """Returns the variables that some atoms are computed from, including the atoms.

    Args:
        jaxpr: the program.
        atoms: some atoms of the program.
        known: variables whose own operands are not followed.
    """
    stop = set(known)
    found = {atom for atom in atoms if not _jax.is_literal(atom)}
    for eqn in reversed(jaxpr.eqns):
        if any(out in found and out not in stop for out in eqn.outvars):
            found.update(atom for atom in eqn.invars if not _jax.is_literal(atom))
    return found


def _evaluate(eqns: Iterable[_jax.Eqn], env: dict[Any, Any]) -> None:
    """Binds equations again; reads their operands from ``env`` and writes their results to it."""
    for eqn in eqns:
        env.update(zip(eqn.outvars, _jax.bind_again(eqn, _read(env, eqn.invars)), strict=True))


def _read(env: dict[Any, Any], atoms: Iterable[Any]) -> list[Any]:
    return [atom.val if _jax.is_literal(atom) else env[atom] for atom in atoms]


def _is_float(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jax.numpy.issubdtype(dtype, np.inexact)


def _tangent_type(array: Any) -> Any:
    aval = jax.typeof(array)
    return aval.to_tangent_aval()


def _no_tangent(aval: Any) -> Any:
    """Returns a tangent of zeros."""
    if _is_float(aval):
        return jax.numpy.zeros(aval.shape, aval.dtype)
    return np.zeros(aval.shape, jax.dtypes.float0)


def _dense(tangent: Any) -> Any:
    return _no_tangent(tangent.aval) if isinstance(tangent, SymbolicZero) else tangent


def _abstract(*operands: Any, passes: Passes) -> list[Any]:
    return list(passes.types)


def _calculate(*operands: Any, passes: Passes) -> list[Any]:
    return passes.tangents(operands[: passes.count], operands[passes.count :])


def _jvp(operands: Sequence[Any], tangents: Sequence[Any], passes: Passes) -> Any:
    """Returns the derivative of the tangents, which depend on residuals."""
    pairs = zip(operands, tangents, strict=True)
    dense = [_no_tangent(jax.typeof(x)) if type(t) is _jax.ad.Zero else t for x, t in pairs]
    calculate = functools.partial(_calculate, passes=passes)
    return jax.jvp(calculate, tuple(operands), tuple(dense))


def _transpose(cotangents: Sequence[Any], *operands: Any, passes: Passes) -> list[Any]:
    """Returns the backward pass."""
    pairs = zip(cotangents, passes.types, strict=True)
    given = [_no_tangent(aval) if type(ct) is _jax.ad.Zero else ct for ct, aval in pairs]
    return [None] * passes.count + passes.backward(operands[: passes.count], given)


def _batch(operands: Sequence[Any], dims: Sequence[Any], passes: Passes) -> Any:
    """Batches the passes; an operand that is not mapped gets the sum of its gradients."""
    mapped = tuple(None if type(dim) is not int else dim for dim in dims)
    size = next(x.shape[p] for x, p in zip(operands, mapped, strict=True) if p is not None)
    made = _LINEAR.bind(*operands, passes=_mapped(passes, mapped, size))
    return made, [0] * len(made)


def _mapped(passes: Passes, dims: tuple[int | None, ...], size: int) -> Passes:
    """Returns the passes of a program that is mapped over dimensions of its operands."""
    residuals, linear = dims[: passes.count], dims[passes.count :]

    def backward(kept: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        each = jax.vmap(passes.backward, (list(residuals), 0), 0, axis_size=size)
        made = each(list(kept), list(given))
        return [
            x.sum(0) if dim is None else jax.numpy.moveaxis(x, 0, dim)
            for x, dim in zip(made, linear, strict=True)
        ]

    types = tuple(aval.update(shape=(size, *aval.shape)) for aval in passes.types)
    return dataclasses.replace(passes, backward=backward, types=types)


def _primitive() -> Any:
    """Makes the linear primitive from arguments, residuals and tangents to tangents."""
    primitive = _jax.Primitive("duotone_tangents")
    primitive.multiple_results = True
    primitive.def_impl(
        lambda *operands, passes: jax.jit(functools.partial(_calculate, passes=passes))(*operands)
    )
    primitive.def_abstract_eval(_abstract)
    _jax.ad.primitive_jvps[primitive] = _jvp
    _jax.ad.primitive_transposes[primitive] = _transpose
    _jax.batching.primitive_batchers[primitive] = _batch
    _jax.mlir.register_lowering(primitive, _jax.mlir.lower_fun(_calculate, multiple_results=True))
    return primitive


_LINEAR = _primitive()
