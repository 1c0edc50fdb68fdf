"""Structural keys: two equations with equal keys differ at most in which values they read.

``key = primitive, parameters, operand and result types``. The key of a nested program is its
structure. The key of a function among the parameters (the rules of ``custom_jvp``) is its code and
its closure. The start of a ``slice`` and the leading padding of a ``pad`` are not in the key, since
they count iterations in unrolled loops; :func:`offsets` returns them.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import numpy as np

from duotone import _jax

_DEEPEST = 12


class Keys:
    """Gives each structural key a number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._programs: dict[int, Any] = {}
        self._types: dict[int, int] = {}
        self._kept: list[Any] = []

    def of(self, eqn: _jax.Eqn) -> int:
        """Returns the number of an equation's key."""
        left_out = () if offsets(eqn) is None else _MOVING[eqn.primitive.name]
        params = tuple(
            (name, self._param(value)) for name, value in eqn.params.items() if name not in left_out
        )
        key = (
            eqn.primitive,
            params,
            tuple([self._type(atom.aval) for atom in eqn.invars]),
            tuple([self._type(var.aval) for var in eqn.outvars]),
            frozenset(map(repr, eqn.effects)) if eqn.effects else None,
            _context(eqn),
        )
        return self._number(key)

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _type(self, aval: Any) -> int:
        found = self._types.get(id(aval))
        if found is None:
            self._kept.append(aval)
            found = self._types[id(aval)] = self._number((type(aval), aval))
        return found

    def _param(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, (str, int, float, bool, bytes, types.NoneType, np.dtype, type)):
            return type(value), value
        if isinstance(value, (tuple, list)):
            return tuple([self._param(element, depth) for element in value])
        if isinstance(value, dict):
            return tuple([(name, self._param(x, depth)) for name, x in value.items()])
        if hasattr(_jax.open_jaxpr(value), "eqns"):
            return self._program(value)
        if depth < _DEEPEST and (callable(value) or type(value).__name__ == "WrappedFun"):
            return self._function(value, depth)
        if isinstance(value, np.ndarray | np.generic):
            return value.dtype, value.shape, value.tobytes()
        try:
            return hash(value), value
        except TypeError:
            return self._identity(value)

    def _identity(self, value: Any) -> Any:
        self._kept.append(value)
        return type(value), id(value)

    def _function(self, value: Any, depth: int) -> Any:
        """Returns the key of a function: its code and its closure."""
        if type(value).__name__ == "WrappedFun":
            parts = (value.f, value.transforms, value.params)
            return "WrappedFun", tuple([self._param(part, depth + 1) for part in parts])
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return "partial", tuple([self._param(part, depth + 1) for part in parts])
        if not isinstance(value, types.FunctionType):
            return self._identity(value)
        of_jax = (value.__module__ or "").startswith("jax.")
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        if of_jax:
            # Types in the closures of JAX's own functions that do not affect the result.
            no_part = ("Store", "EqualStore", "DynamicJaxprTrace", "object", "dict", "list")
            cells = [cell for cell in cells if type(cell).__name__ not in no_part]
        closed = tuple([self._param(cell, depth + 1) for cell in cells])
        defaults = self._param(value.__defaults__ or (), depth + 1)
        named = self._param(value.__kwdefaults__ or {}, depth + 1)
        self._kept.append(value)
        return value.__code__, id(value.__globals__), closed, defaults, named

    def _program(self, program: Any) -> Any:
        """Returns the number of a nested program's structure."""
        if id(program) in self._programs:
            return self._programs[id(program)]
        opened = _jax.open_jaxpr(program)
        names: dict[int, int] = {}

        def atom(a: Any) -> Any:
            if _jax.is_literal(a):
                return self._param(np.asarray(a.val)), self._type(a.aval)
            return names.setdefault(id(a), len(names)), self._type(a.aval)

        head = tuple([atom(var) for var in (*opened.constvars, *opened.invars)])
        body = tuple(
            [
                (
                    eqn.primitive,
                    tuple([(name, self._param(x)) for name, x in eqn.params.items()]),
                    tuple([atom(a) for a in eqn.invars]),
                    tuple([atom(var) for var in eqn.outvars]),
                    _context(eqn),
                )
                for eqn in opened.eqns
            ]
        )
        consts = tuple([self._identity(const) for const in _jax.consts_of(program)])
        key = ("program", head, body, tuple([atom(a) for a in opened.outvars]), consts)
        self._kept.append(program)
        number = self._programs[id(program)] = ("program", self._number(key))
        return number


_MOVING = {"slice": ("start_indices", "limit_indices"), "pad": ("padding_config",)}


def offsets(eqn: _jax.Eqn) -> tuple[int, ...] | None:
    """Returns the start of a ``slice`` or the leading padding of a ``pad``, else ``None``.

    Strides, interior padding and negative padding give ``None`` too.
    """
    params = eqn.params
    if eqn.primitive.name == "slice":
        strides = params["strides"]
        if strides is not None and any(stride != 1 for stride in strides):
            return None
        return tuple(map(int, params["start_indices"]))
    if eqn.primitive.name == "pad":
        config = [tuple(map(int, sizes)) for sizes in params["padding_config"]]
        if any(low < 0 or high < 0 or inside != 0 for low, high, inside in config):
            return None
        return tuple(low for low, _, _ in config)
    return None


def _context(eqn: _jax.Eqn) -> Any:
    context = eqn.ctx
    names = ("compute_type", "threefry_partitionable", "xla_metadata")
    return tuple([repr(getattr(context, name, None)) for name in names])
