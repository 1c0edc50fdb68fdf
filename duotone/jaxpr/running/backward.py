"""Backward: the backward pass of a rewritten function, painted together with its forward pass.

``jax.grad(autocast(f))`` differentiates a program that is rewritten already. JAX would then choose
the residuals, and derive the backward pass from casts. Instead, this module gives the rewritten
program its own derivative::

    f ─ differentiate ─► one program: arguments, cotangents ─► results, gradients
      ─ rewrite, like any whole training step ─► the same program in half
      ─ cut ─► forward: the equations that the results need
               backward: all other equations; they read residuals that forward made

The derivative is a :class:`jax.custom_jvp` rule whose tangents come from one linear equation
(:mod:`duotone.jaxpr.running.passes`). So ``jvp``, ``vmap``, ``checkpoint`` and ``hessian`` accept
the function like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero

from duotone import _jax
from duotone.errors import DuotoneError, RewriteError
from duotone.jaxpr.reading.attributes import has_sharded_type
from duotone.jaxpr.running.jaxprs import call_of, function_name, program_of
from duotone.jaxpr.running.passes import LINEAR, Passes, is_float, no_tangent

logger = logging.getLogger("duotone")

Run = Callable[..., list[Any]]
"""Takes and returns arrays."""
Rewrite = Callable[[_jax.ClosedJaxpr, int], Run]
"""Takes a differentiated program and the number of its cotangents, which are its last arguments;
returns the rewritten program."""


def with_backward(jaxpr: _jax.ClosedJaxpr, run: Run, run_for_values: Run, rewrite: Rewrite) -> Run:
    """Returns a rewritten program whose backward pass is rewritten together with its forward pass.

    Args:
        jaxpr: the program before it was rewritten.
        run: the rewritten program, whose dots have derivatives of their own.
        run_for_values: the same without such derivatives, for calls that are not differentiated.
        rewrite: rewrites the differentiated program.

    Returns:
        ``run`` with its own derivatives. ``run`` itself if no argument is floating-point, or if
        :func:`leaves_backward` gives a reason.
    """
    opened = _jax.open_jaxpr(jaxpr)
    if leaves_backward(jaxpr) or not any(map(is_float, opened.in_avals)):
        return run
    function = _jax.jaxpr_as_fun(jaxpr)
    found: dict[tuple[bool, ...], Passes | None] = {}

    def forward(leaves: Sequence[Any], moved: tuple[bool, ...]) -> Forward | None:
        if moved not in found:
            found[moved] = passes_of(function, opened.in_avals, leaves, moved, rewrite)
        passes = found[moved]
        if passes is None:
            return None
        results, made = passes.forward(*leaves)
        return results, passes.residuals(leaves, results, made), passes

    return with_rule(
        lambda *leaves: list(run_for_values(*leaves)), forward, lambda *leaves: list(run(*leaves))
    )


Forward = tuple[Any, list[Any], Passes]
"""The results of the forward pass, its residuals, and the passes."""


def with_rule(
    program: Callable[..., Any],
    forward: Callable[[Sequence[Any], tuple[bool, ...]], Forward | None],
    derivable: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Returns a program that JAX differentiates by two passes of its own.

    Args:
        program: the program as it is called if JAX does not differentiate it; its results are a
            pytree.
        forward: takes the arguments, and for each whether the program is differentiated with
            respect to it. It runs the forward pass, and returns the same pytree. ``None`` leaves
            the derivative of ``derivable`` to JAX.
        derivable: the program as JAX can differentiate it; ``program`` if omitted.
    """
    derived = jax.custom_jvp(program)

    def rule(leaves: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        moved = tuple(not isinstance(tangent, SymbolicZero) for tangent in tangents)
        found = _jax.on_known(lambda *leaves: forward(leaves, moved), leaves)
        if found is None:
            return jax.jvp(derivable or program, leaves, tuple(map(_dense, tangents)))
        results, residuals, passes = found
        given = [tangent for tangent, nonzero in zip(tangents, moved, strict=True) if nonzero]
        made = iter(LINEAR.bind(*residuals, *given, passes=passes))
        arrays, tree = jax.tree.flatten(results)
        return results, tree.unflatten(
            next(made) if nonzero else SymbolicZero(jax.typeof(array).to_tangent_aval())
            for array, nonzero in zip(arrays, passes.reached, strict=True)
        )

    derived.defjvp(rule, symbolic_zeros=True)
    return derived


def leaves_backward(jaxpr: _jax.ClosedJaxpr) -> str:
    """Explains why the backward pass is not painted together with the forward pass.

    Returns:
        The reason, empty if there is none.
    """
    opened = _jax.open_jaxpr(jaxpr)
    if opened.effects:
        return "its effects must not happen twice"
    if not all(isinstance(aval, _jax.ShapedArray) for aval in opened.in_avals):
        return "an argument is not an array"
    if any(map(has_sharded_type, opened.in_avals)):
        return "its mesh has explicit or manual axes"
    if any(isinstance(const, Tracer) for const in _jax.consts_of(jaxpr)):
        return "it reads values of an outer trace"
    return ""


def passes_of(
    function: Run,
    types: Sequence[Any],
    leaves: Sequence[Any],
    moved: tuple[bool, ...],
    rewrite: Rewrite,
    name: str = "backward",
) -> Passes | None:
    """Returns the passes of a program; ``None`` if its backward pass cannot be rewritten.

    Args:
        function: the program before it was rewritten.
        types: the types of its arguments.
        leaves: the arguments of the rewritten program.
        moved: for each argument, whether the program is differentiated with respect to it.
        rewrite: rewrites the differentiated program.
        name: the name of the ``jit`` equation that is the backward pass.

    Raises:
        DuotoneError: the policy does not fit the program.
    """
    pairs = zip(leaves, types, moved, strict=True)
    if any(nonzero and jax.typeof(leaf).dtype != aval.dtype for leaf, aval, nonzero in pairs):
        return None  # weights that were cast before the call
    try:
        found = _differentiated(function, types, moved)
    except Exception:
        return None  # JAX raises the same error when it differentiates the rewritten program
    if found is None:
        return None
    whole, outs = found
    before = len(types)
    floats = [is_float(out.aval) for out in outs]
    used = _needed(_jax.open_jaxpr(whole), _jax.open_jaxpr(whole).outvars[len(outs) :])
    cotangents = _jax.open_jaxpr(whole).invars[before:]
    is_used = iter(var in used for var in cotangents)
    reached = tuple(floating and next(is_used) for floating in floats)
    given = [jax.typeof(leaf) for leaf in leaves] + [var.aval for var in cotangents]
    try:
        rewritten = jax.make_jaxpr(rewrite(whole, len(cotangents)))(*given)
    except Exception as error:
        if isinstance(error, DuotoneError) and not isinstance(error, RewriteError):
            raise
        logger.warning(
            "%s: JAX derives its backward pass from its forward pass, since the two could not be "
            "rewritten together (%s: %s); this is a bug in duotone, please report the program",
            function_name(whole) or "a function",
            type(error).__name__,
            error,
        )
        return None
    return _cut(rewritten, len(types), floats, reached, name)


def _differentiated(
    function: Run, types: Sequence[Any], moved: Sequence[bool]
) -> tuple[_jax.ClosedJaxpr, list[_jax.Atom]] | None:
    """Differentiates a program.

    Returns:
        A program from arguments and cotangents of all floating-point results to results and
        gradients; and the atoms of its results. ``None`` if :func:`leaves_backward` gives a reason.
    """

    def forward(*leaves: Any) -> Any:
        def of_moved(*floats: Any) -> list[Any]:
            rest = iter(floats)
            pairs = zip(leaves, moved, strict=True)
            return function(*[next(rest) if is_moved else leaf for leaf, is_moved in pairs])

        pairs = zip(leaves, moved, strict=True)
        return jax.vjp(of_moved, *[leaf for leaf, is_moved in pairs if is_moved])

    vars(forward)["__wrapped__"] = function  # JAX's errors then name the user's function
    first, (results, pull) = jax.make_jaxpr(forward, return_shape=True)(*types)
    if leaves_backward(first):
        return None
    atoms, tree = _jax.open_jaxpr(first).outvars, jax.tree.structure(pull)
    outs, residuals = atoms[: len(results)], atoms[len(results) :]

    def backward(kept: Sequence[Any], given: Sequence[Any]) -> Any:
        rest = iter(given)
        return tree.unflatten(kept)(
            [next(rest) if is_float(out.aval) else no_tangent(out.aval) for out in outs]
        )

    cotangents = [out.aval.update(weak_type=False) for out in outs if is_float(out.aval)]
    second = jax.make_jaxpr(backward)([atom.aval for atom in residuals], cotangents)
    return _joined(first, outs, second, residuals), outs


def _joined(
    first: _jax.ClosedJaxpr,
    outs: Sequence[_jax.Atom],
    second: _jax.ClosedJaxpr,
    residuals: Sequence[_jax.Atom],
) -> _jax.ClosedJaxpr:
    """Joins two programs; the residuals of the first are the first arguments of the second."""
    before, after = _jax.open_jaxpr(first), _jax.open_jaxpr(second)
    count = len(residuals)
    source = dict(zip(after.invars[:count], residuals, strict=True))

    def sources(atoms: Sequence[_jax.Atom]) -> list[_jax.Atom]:
        return [atom if _jax.is_literal(atom) else source.get(atom, atom) for atom in atoms]

    eqns = [*before.eqns, *[eqn.replace(invars=sources(eqn.invars)) for eqn in after.eqns]]
    constants = dict(zip(before.constvars, _jax.consts_of(first), strict=True))
    constants.update(zip(after.constvars, _jax.consts_of(second), strict=True))
    invars, outvars = [*before.invars, *after.invars[count:]], [*outs, *sources(after.outvars)]
    return program_of(first, invars, outvars, eqns, constants)


def _cut(
    whole: _jax.ClosedJaxpr,
    count: int,
    floats: Sequence[bool],
    reached: tuple[bool, ...],
    name: str,
) -> Passes | None:
    """Cuts a rewritten program in two: forward has only the equations that its results need.

    Returns:
        ``None`` if it cannot be cut: it has effects, or its results depend on cotangents.
    """
    opened = _jax.open_jaxpr(whole)
    leaves, cotangents = opened.invars[:count], opened.invars[count:]
    results, gradients = opened.outvars[: len(floats)], opened.outvars[len(floats) :]
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
    read = dict.fromkeys(atom for atom in read if not _jax.is_literal(atom))
    known = {var: i for i, var in enumerate([*leaves, *results]) if not _jax.is_literal(var)}
    computed = {out for eqn in first for out in eqn.outvars}
    made = [var for var in read if var in computed and var not in known]
    known.update((var, len(leaves) + len(results) + i) for i, var in enumerate(made))
    residuals = [var for var in read if var in known]
    float_results = [position for position, floating in enumerate(floats) if floating]
    positions = [i for i, position in enumerate(float_results) if reached[position]]

    run = call_of(_part(whole, leaves, [*results, *made], first), "forward")
    transpose = call_of(_part(whole, [*residuals, *cotangents], gradients, second), name)

    def forward(*arrays: Any) -> tuple[list[Any], list[Any]]:
        out = run(*arrays)
        return out[: len(results)], out[len(results) :]

    def backward(kept: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        every = [no_tangent(var.aval) for var in cotangents]  # zeros where not `reached`
        for position, cotangent in zip(positions, given, strict=True):
            every[position] = cotangent
        return transpose(*kept, *every)

    types = tuple(var.aval for var, is_reached in zip(results, reached, strict=True) if is_reached)
    types = tuple(aval.update(weak_type=False) for aval in types)
    return Passes(forward, tuple(known[var] for var in residuals), backward, reached, types)


def _needed(jaxpr: _jax.OpenJaxpr, atoms: Iterable[Any], known: Iterable[Any] = ()) -> set[Any]:
    """Returns the variables that some atoms are computed from, including the atoms.

    The operands of ``known`` variables are not followed.
    """
    stop = set(known)
    found = {atom for atom in atoms if not _jax.is_literal(atom)}
    for eqn in reversed(jaxpr.eqns):
        if any(out in found and out not in stop for out in eqn.outvars):
            found.update(atom for atom in eqn.invars if not _jax.is_literal(atom))
    return found


def _part(
    whole: _jax.ClosedJaxpr, invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]
) -> _jax.ClosedJaxpr:
    """Returns a part of a program."""
    read = {atom for eqn in eqns for atom in eqn.invars if not _jax.is_literal(atom)}
    read.update(atom for atom in outvars if not _jax.is_literal(atom))
    read.difference_update(invars)
    consts = zip(_jax.open_jaxpr(whole).constvars, _jax.consts_of(whole), strict=True)
    used = {var: array for var, array in consts if var in read}
    return program_of(whole, invars, outvars, eqns, used)


def _dense(tangent: Any) -> Any:
    return no_tangent(tangent.aval) if isinstance(tangent, SymbolicZero) else tangent
