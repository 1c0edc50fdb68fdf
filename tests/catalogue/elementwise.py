"""Elementwise primitives: one case each, with a domain on which they are well conditioned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from tests.catalogue.case import (
    NO_FLOAT,
    NOT_DIFFERENTIABLE,
    Case,
    above_one,
    booleans,
    integers,
    limits,
    positives,
    reals,
    units,
)

_Sample = Callable[..., np.ndarray]
_FLAT = limits(grad=NOT_DIFFERENTIABLE)
_NONE = limits(grad=NOT_DIFFERENTIABLE, sandwich=NO_FLOAT, forced=NO_FLOAT)
_TWO = np.full((3, 4), 2, np.float32)

_UNARY: list[tuple[str, _Sample, dict[str, Any]]] = [
    ("abs", reals, {}),
    ("acos", units, {}),
    ("acosh", above_one, {}),
    ("asin", units, {}),
    ("asinh", reals, {}),
    ("atan", reals, {}),
    ("atanh", units, {}),
    ("bessel_i0e", reals, {}),
    ("bessel_i1e", reals, {}),
    ("cbrt", positives, {}),
    ("ceil", reals, {}),
    ("cos", reals, {}),
    ("cosh", reals, {}),
    ("digamma", positives, {}),
    ("erf", units, {}),
    ("erf_inv", units, {}),
    ("erfc", units, {}),
    ("exp", units, {}),
    ("exp2", units, {}),
    ("expm1", units, {}),
    ("floor", reals, {}),
    ("is_finite", reals, {"limits": _FLAT}),
    ("lgamma", positives, {}),
    ("log", positives, {}),
    ("log1p", positives, {}),
    ("log2", positives, {}),
    ("logistic", reals, {}),
    ("neg", reals, {}),
    ("one_minus_square", units, {}),
    ("round", reals, {}),
    ("rsqrt", positives, {}),
    ("sign", reals, {}),
    ("sin", reals, {}),
    ("sinh", reals, {}),
    ("sqrt", positives, {}),
    ("square", reals, {}),
    ("stop_gradient", reals, {"primitives": ()}),
    ("tan", units, {}),
    ("tanh", reals, {}),
]

_BINARY: list[tuple[str, _Sample, dict[str, Any]]] = [
    ("add", reals, {}),
    ("atan2", positives, {}),
    ("div", positives, {}),
    ("eq", reals, {"limits": _FLAT}),
    ("ge", reals, {"limits": _FLAT}),
    ("gt", reals, {"limits": _FLAT}),
    ("igamma", positives, {}),
    ("igammac", positives, {}),
    ("le", reals, {"limits": _FLAT}),
    ("lt", reals, {"limits": _FLAT}),
    ("max", reals, {}),
    ("min", reals, {}),
    ("mul", reals, {}),
    ("ne", reals, {"limits": _FLAT}),
    ("nextafter", reals, {"limits": _FLAT}),
    ("pow", positives, {}),
    ("rem", positives, {}),
    ("sub", reals, {}),
]

_INTEGER: list[tuple[str, str, Callable[..., Any], int]] = [
    ("and", "and", lax.bitwise_and, 2),
    ("clz", "clz", lax.clz, 1),
    ("mulhi", "mulhi", lax.mulhi, 2),
    ("not", "not", lax.bitwise_not, 1),
    ("or", "or", lax.bitwise_or, 2),
    ("population_count", "population_count", lax.population_count, 1),
    ("shift_left", "shift_left", lax.shift_left, 2),
    ("shift_right_arithmetic", "shift_right_arithmetic", lax.shift_right_arithmetic, 2),
    ("shift_right_logical", "shift_right_logical", lax.shift_right_logical, 2),
    ("xor", "xor", lax.bitwise_xor, 2),
]


_polynomial: Any = getattr(lax, "polynomial", None)
_WITH_FULL = ("add", "div", "max", "mul", "pow", "sub")
"""Operations that are also tested with one operand that no dot has made half."""


def _plain() -> list[Case]:
    cases = []
    for name, sample, extra in _UNARY:
        if hasattr(lax, name):  # some exist from a later JAX on
            fields = {"primitives": (name,), **extra}
            cases.append(
                Case(name=name, function=getattr(lax, name), args=(sample(3, 4),), **fields)
            )
    for name, sample, extra in _BINARY:
        args = (sample(3, 4), sample(3, 4, seed=1))
        fields = {"primitives": (name,), "args": args, **extra}
        cases.append(Case(name=name, function=getattr(lax, name), all_operands=True, **fields))
        if name in _WITH_FULL:
            named = f"{name} of half and float32"
            cases.append(Case(name=named, function=getattr(lax, name), **fields))
    for name, primitive, function, count in _INTEGER:
        args = tuple(integers(3, 4, low=1, seed=i) for i in range(count))
        cases.append(
            Case(
                name=name,
                function=function,
                args=args,
                primitives=(primitive,),
                through=None,
                limits=_NONE,
            )
        )
    return cases


def _particular() -> list[Case]:
    x, y = reals(3, 4), reals(3, 4, seed=1)
    many = [
        Case(
            name="clamp",
            function=lambda x: lax.clamp(-1.0, x, 1.0),
            args=(x,),
            primitives=("clamp",),
        ),
        Case(
            name="clamp array bounds",
            all_operands=True,
            function=lax.clamp,
            args=(units(3, 4) - 1, x, units(3, 4) + 1),
            primitives=("clamp",),
            through=1,
        ),
        Case(
            name="select_n",
            all_operands=True,
            function=lax.select_n,
            args=(booleans(3, 4), x, y),
            primitives=("select_n",),
            through=1,
        ),
        Case(
            name="select_n of three",
            all_operands=True,
            function=lambda i, a, b: lax.select_n(i, a, b, a + b),
            args=(integers(3, 4, high=3), x, y),
            primitives=("select_n",),
            through=1,
        ),
        Case(
            name="polygamma",
            function=lambda x: lax.polygamma(np.ones((3, 4), np.float32), x),
            args=(positives(3, 4),),
            primitives=("polygamma",),
        ),
        Case(
            name="zeta",
            function=lambda x: lax.zeta(x + 1, np.full((3, 4), 2, np.float32)),
            args=(above_one(3, 4),),
            primitives=("zeta",),
            limits=limits(grad="JAX has no derivative of zeta for its first operand"),
        ),
        Case(
            name="betainc",
            function=lambda x: lax.betainc(_TWO, 1.5 * _TWO, x),
            args=(_grid_inside(),),
            primitives=("regularized_incomplete_beta",),
        ),
        Case(
            name="igamma_grad_a",
            function=lambda x: lax.igamma_grad_a(x, x),
            args=(positives(3, 4),),
            primitives=("igamma_grad_a",),
            limits=limits(grad="JAX has no derivative of igamma_grad_a"),
        ),
        Case(
            name="random_gamma_grad",
            function=lambda x: lax.random_gamma_grad(x, x),  # pyright: ignore[reportCallIssue]
            args=(positives(3, 4),),
            limits=limits(grad="JAX has no derivative of random_gamma_grad"),
        ),
        Case(
            name="convert_element_type to int",
            function=lambda x: lax.convert_element_type(x, np.int32),
            args=(x,),
            primitives=("convert_element_type",),
            limits=_FLAT,
        ),
        Case(
            name="convert_element_type from int",
            function=lambda i, x: lax.convert_element_type(i, np.float32) * x,
            args=(integers(3, 4), x),
            primitives=("convert_element_type",),
            through=1,
        ),
        Case(
            name="convert_element_type to float16 and back",
            function=lambda x: lax.convert_element_type(
                lax.convert_element_type(x, np.float16), np.float32
            ),
            args=(x,),
            primitives=("convert_element_type",),
        ),
        Case(
            name="bitcast_convert_type",
            function=lambda x: lax.bitcast_convert_type(x, np.int32),
            args=(x,),
            primitives=("bitcast_convert_type",),
            limits=_FLAT,
            forced="fixed",
        ),
        Case(
            name="reduce_precision",
            function=lambda x: lax.reduce_precision(x, 8, 10),
            args=(x,),
            primitives=("reduce_precision",),
        ),
        Case(
            name="reduce_precision to float32",
            function=lambda x: lax.reduce_precision(x, 8, 23),
            args=(x,),
            primitives=("reduce_precision",),
        ),
        Case(
            name="add of size-one dimensions",
            function=lambda x, y: x[:, :1] + y,
            args=(x, y),
            primitives=("add",),
        ),
        Case(name="add to a scalar literal", function=lambda x: x + 0.5, args=(x,)),
        Case(
            name="eq_to of total order",
            function=lambda x, y: (lax.sort(x), x == y),
            args=(x, y),
            primitives=("sort", "eq"),
            limits=_FLAT,
        ),
        Case(
            name="add_any",
            function=lambda x: _grad_of_sum_of_two_uses(x),
            args=(x,),
            primitives=("add_any",),
            ulp=4.0,  # of a derivative: both terms are rounded before their sum
            limits=limits(grad="the case takes a derivative itself"),
        ),
    ]
    for power in (-2, -1, 0, 1, 2, 3):
        many.append(
            Case(
                name=f"integer_pow {power}",
                function=lambda x, power=power: lax.integer_pow(x, power),
                args=(positives(3, 4),),
                primitives=("integer_pow",),
            )
        )
    if _polynomial is not None:
        many.append(
            Case(
                name="polynomial",
                function=lambda x: _polynomial(x, [0.5, 0.25, 1.0]),
                args=(units(3, 4),),
                primitives=("polynomial",),
            )
        )
    return many


def _grid_inside() -> np.ndarray:
    """Numbers inside (0, 1)."""
    return (units(3, 4) / 2 + 0.5).astype(np.float32)


def _grad_of_sum_of_two_uses(x: Any) -> Any:
    import jax

    return jax.vjp(lambda x: lax.logistic(x) * lax.tanh(x), x)[1](x)[0]


CASES = [*_plain(), *_particular()]
