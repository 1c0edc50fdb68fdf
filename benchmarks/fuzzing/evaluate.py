"""Evaluates a traced program equation by equation, in the precision one asks for.

Nothing is compiled but what NumPy has no operation for, so that a program costs milliseconds and
every rounding that the program names takes place: a compiler may leave out the one between two
operations that it fuses. Loops are carried out turn by turn, functions in place.

Three arithmetics: :class:`AsWritten` keeps the program's own dtypes (a painted program), with sums
of half numbers rounded at every term; :class:`Wide` is float64 throughout; :class:`Naive` is half
by hand: every input, constant and result is rounded to half, while a single operation (a dot, a
sum, a factorisation) computes in float32.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.fuzzing.arithmetic import HALF, MOVES, RULES, sum_in_steps
from duotone import _jax

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_HALVES = frozenset(HALF.values())
_MOST_TURNS = 10_000


class AsWritten:
    """The dtypes of the program."""

    x64 = False

    def stored(self, dtype: np.dtype) -> np.dtype:
        """The dtype in which a value of the program's ``dtype`` is kept."""
        return dtype

    def operand(self, x: np.ndarray) -> np.ndarray:
        """As an operation reads it: halves are computed with in float32."""
        return x.astype(np.float32) if x.dtype in _HALVES else x

    def result(self, x: np.ndarray, dtype: np.dtype, moved: bool) -> np.ndarray:
        """Returns the result of an operation in the dtype in which it is stored."""
        del moved
        return x if x.dtype == dtype else x.astype(dtype)


class Wide(AsWritten):
    """float64 for every floating point number."""

    x64 = True

    def stored(self, dtype: np.dtype) -> np.dtype:
        """float64 for float32."""
        return _FLOAT64 if dtype == _FLOAT32 else dtype


class Naive(AsWritten):
    """Half by hand: what is kept is rounded, and computed with in float32."""

    def __init__(self, half: str) -> None:
        self._half = HALF[half]

    def result(self, x: np.ndarray, dtype: np.dtype, moved: bool) -> np.ndarray:
        """Rounded to half and widened again."""
        x = x if x.dtype == dtype else x.astype(dtype)
        if dtype != _FLOAT32 or moved:
            return x
        return x.astype(self._half).astype(np.float32)


def evaluate(jaxpr: Any, arguments: Sequence[Any], arithmetic: AsWritten) -> list[np.ndarray]:
    """The results of a closed jaxpr, computed in an arithmetic from arrays."""
    scope = jax.enable_x64(True) if arithmetic.x64 else contextlib.nullcontext()
    with np.errstate(all="ignore"), scope:
        return _Evaluation(arithmetic).program(jaxpr, [np.asarray(x) for x in arguments])


class _Evaluation:
    def __init__(self, arithmetic: AsWritten) -> None:
        self.arithmetic = arithmetic

    def kept(self, x: Any) -> np.ndarray:
        """An argument or a constant as the arithmetic keeps it."""
        x = np.asarray(x)
        return self.arithmetic.result(x, self.arithmetic.stored(x.dtype), False)

    def program(self, jaxpr: Any, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        inner = _jax.open_jaxpr(jaxpr)
        values: dict[Any, np.ndarray] = {}
        values.update(zip(inner.constvars, map(self.kept, _jax.consts_of(jaxpr)), strict=True))
        values.update(zip(inner.invars, map(self.kept, arguments), strict=True))

        def read(atom: Any) -> np.ndarray:
            if _jax.is_literal(atom):
                return self.kept(np.asarray(atom.val, atom.aval.dtype))
            return values[atom]

        for eqn in inner.eqns:
            results = self.equation(eqn, [read(atom) for atom in eqn.invars])
            values.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in inner.outvars]

    def equation(self, eqn: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
        name, params = eqn.primitive.name, eqn.params
        nested = _NESTED.get(name)
        if nested is not None:
            return nested(self, eqn, operands)
        if name in ("reduce_sum", "cumsum") and operands[0].dtype in _HALVES:
            return [_half_sum(name, params, operands[0])]
        wanted = [self.arithmetic.stored(var.aval.dtype) for var in eqn.outvars]
        rule = RULES.get(name)
        if name in ("empty", "empty2"):
            found: Any = [np.zeros(eqn.outvars[0].aval.shape)]
        elif rule is None:
            found = self.bound(eqn, operands)
        else:
            found = rule(params, *[self.arithmetic.operand(x) for x in operands])
            found = found if isinstance(found, list) else [found]
        moved = name in MOVES
        return [
            self.arithmetic.result(np.asarray(x), dtype, moved)
            for x, dtype in zip(found, wanted, strict=True)
        ]

    def bound(self, eqn: Any, operands: list[np.ndarray]) -> list[Any]:
        """By JAX: what NumPy has no operation for."""
        params = dict(eqn.params)
        if self.arithmetic.x64:
            params = {k: _widened(v) for k, v in params.items()}
        found = eqn.primitive.bind(*[jax.numpy.asarray(x) for x in operands], **params)
        return list(found) if eqn.primitive.multiple_results else [found]


def _widened(value: Any) -> Any:
    is_float32 = isinstance(value, (np.dtype, type)) and value in (np.float32, _FLOAT32)
    return _FLOAT64 if is_float32 else value


def _half_sum(name: str, params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    if name == "reduce_sum":
        return sum_in_steps(params, x)
    turned = np.flip(x, params["axis"]) if params["reverse"] else x
    slices = np.moveaxis(turned, params["axis"], 0)
    sums = np.stack(list(itertools.accumulate(slices, lambda a, b: (a + b).astype(x.dtype))))
    sums = np.moveaxis(sums, 0, params["axis"])
    return np.flip(sums, params["axis"]) if params["reverse"] else sums


def _call(parameter: str) -> Any:
    def rule(self: _Evaluation, eqn: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
        return self.program(eqn.params[parameter], operands)

    return rule


def _cond(self: _Evaluation, eqn: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
    branches = eqn.params["branches"]
    which = int(np.clip(int(operands[0]), 0, len(branches) - 1))
    return self.program(branches[which], operands[1:])


def _while(self: _Evaluation, eqn: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
    params = eqn.params
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    test, body, carry = operands[:first], operands[first:second], operands[second:]
    for _ in range(_MOST_TURNS):
        if not bool(self.program(params["cond_jaxpr"], [*test, *carry])[0]):
            return carry
        carry = self.program(params["body_jaxpr"], [*body, *carry])
    raise RuntimeError(f"a while loop did not end after {_MOST_TURNS} turns")


def _scan(self: _Evaluation, eqn: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
    params = eqn.params
    constants, carries = _jax.scan_layout(eqn)
    fixed, carry = operands[:constants], operands[constants : constants + carries]
    sliced = operands[constants + carries :]
    turns = range(params["length"])
    rows: list[list[np.ndarray]] = []
    for turn in reversed(turns) if params["reverse"] else turns:
        found = self.program(params["jaxpr"], [*fixed, *carry, *[x[turn] for x in sliced]])
        carry = found[:carries]
        rows.append(found[carries:])
    if params["reverse"]:
        rows.reverse()
    if rows:
        return [*carry, *[np.stack(column) for column in zip(*rows, strict=True)]]
    empty = eqn.outvars[carries:]
    return [*carry, *[np.zeros(v.aval.shape, self.arithmetic.stored(v.aval.dtype)) for v in empty]]


def _linear_solve(self: _Evaluation, eqn: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    start = lengths.matvec + lengths.vecmat
    constants = operands[start : start + lengths.solve]
    right = operands[sum(lengths) :]
    return self.program(jaxprs.solve, [*constants, *right])


_NESTED: dict[str, Any] = {
    **dict.fromkeys("jit pjit remat2 checkpoint".split(), _call("jaxpr")),
    **dict.fromkeys(
        "closed_call core_call custom_jvp_call custom_vjp_call custom_lin".split(),
        _call("call_jaxpr"),
    ),
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    "custom_linear_solve": _linear_solve,
}
