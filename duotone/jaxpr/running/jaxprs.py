"""Builds, calls and names programs of equations that were traced already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from duotone import _jax


def program_of(
    like: _jax.ClosedJaxpr,
    invars: Sequence[Any],
    outvars: Sequence[_jax.Atom],
    eqns: Sequence[_jax.Eqn],
    constants: Mapping[Any, Any],
) -> _jax.ClosedJaxpr:
    """Returns a program of equations that were traced already; it states no effects.

    The program ``like`` names the function; ``constants`` are arrays by variable.
    """
    info = _jax.open_jaxpr(like).debug_info.with_unknown_names()
    opened = _jax.open_program(
        list(constants), invars, outvars, eqns, debug_info=info, is_high=_are_high(eqns)
    )
    return _jax.closed_program(opened, list(constants.values()))


def effects_of(jaxpr: _jax.OpenJaxpr) -> set[Any]:
    """Returns the effects of a jaxpr, without the names of mesh axes over which it communicates."""
    return {effect for effect in jaxpr.effects if not isinstance(effect, _jax.NamedAxisEffect)}


def programs_in(eqn: _jax.Eqn) -> Iterator[_jax.ClosedJaxpr]:
    """Yields the jaxprs among the parameters of an equation, also of tuples with other objects."""
    return _programs(tuple(eqn.params.values()))


def _programs(param: Any) -> Iterator[_jax.ClosedJaxpr]:
    if isinstance(param, (tuple, list)):
        for element in param:
            yield from _programs(element)
    elif _jax.holds_jaxpr(param):
        yield param


def _are_high(eqns: Sequence[_jax.Eqn]) -> bool:
    """Checks if one of some equations has to be lowered to JAX's older primitives first.

    ``jit`` does so in a program that says it has such an equation. JAX 0.12 writes the linear maps
    of ``jax.lax.custom_root`` as one.
    """
    return any(e.primitive.is_high(*[v.aval for v in e.invars], **e.params) for e in eqns)


def call_of(jaxpr: _jax.ClosedJaxpr, name: str) -> Callable[..., list[Any]]:
    """Returns a function that calls a program without effects by a ``jit`` equation.

    ``jax.jit`` would bind each equation of the program once more.
    """
    with jax.disable_jit(False):
        (eqn,) = _jax.open_jaxpr(jax.make_jaxpr(jax.jit(lambda x: x + 1))(0)).eqns
    count = {"in": len(_jax.open_jaxpr(jaxpr).invars), "out": len(_jax.open_jaxpr(jaxpr).outvars)}
    count["donated"] = count["in"]
    of_each = {
        key: value * count[key.partition("_")[0]]
        for key, value in eqn.params.items()
        if isinstance(value, tuple) and len(value) == 1
    }
    params = {**eqn.params, **of_each, "jaxpr": jaxpr, "name": name}

    def call(*operands: Any) -> list[Any]:
        try:
            return eqn.primitive.bind(*operands, **params)
        except _jax.InvalidNumberError as error:  # of `jax_debug_nans`; `jax.jit` alone handles it
            _jax.eval_jaxpr(_jax.open_jaxpr(jaxpr), _jax.consts_of(jaxpr), *operands)
            raise FloatingPointError(str(error)) from None  # no operation alone makes the number

    return call


def add_note_once(error: FloatingPointError, note: str) -> None:
    """Adds a note and :func:`duotone.blame` to an error of ``jax_debug_nans``, the first time."""
    remedy = "duotone.blame compares every value with float32 and says what to keep full"
    if not any(remedy in added for added in getattr(error, "__notes__", ())):
        error.add_note(f"{note}; {remedy}" if note else remedy)


def function_name(jaxpr: _jax.ClosedJaxpr) -> str:
    """Returns the name of the function that a jaxpr was traced from; empty if unknown."""
    info = getattr(_jax.open_jaxpr(jaxpr), "debug_info", None)
    name = getattr(info, "func_name", "") or ""
    return name if name.isidentifier() else ""


def same_type(a: Any, b: Any) -> bool:
    """Returns True if two avals agree in shape, dtype and weak type."""
    return all(getattr(a, n, None) == getattr(b, n, None) for n in ("shape", "dtype", "weak_type"))
