"""Descriptions of equations for the painter: which slots may be half, and the cost.

The builder calls :func:`describe` once for each first-order equation. The default suits most
primitives: every float32 operand and result may be half. ``_DESCRIPTION_RULES`` has the
primitives that differ. The row of a primitive (:mod:`duotone.ops.jax`) tells if it has no half
form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray

from duotone import _jax
from duotone.graph.frozen import frozen
from duotone.graph.graph import FULL_DTYPE, PRECISION, Value
from duotone.graph.products import meaning_of_dot
from duotone.ops.jax import FIXED, TRAITS
from duotone.ops.registry import registering
from duotone.ops.traits import UNDESCRIBED, Trait, Traits


@frozen
class EquationDescription:
    """The description of an equation for a painter.

    Attributes:
        list_key: the name by which the operation is on a list.
        half_inputs: for each operand, whether it may be half.
        half_outputs: for each result, whether it may be half.
        flops: floating point operations.
        fixed: why it cannot be half, or empty.
        traits: the traits of its row.
    """

    list_key: str
    half_inputs: tuple[bool, ...]
    half_outputs: tuple[bool, ...]
    flops: float
    fixed: str
    traits: Traits


OWN_DOT = "duotone_dot"
"""duotone's own dot, in derivatives of rewritten programs: :mod:`duotone.jaxpr.rules.dots`."""


@functools.cache
def _name_of(dtype: Any) -> str:
    return str(dtype.name)


def dtype_name(aval: Any) -> str:
    """Returns the dtype name of an aval; ``"none"`` for tokens and references."""
    if type(aval) is not ShapedArray:
        return "none"
    return _name_of(aval.dtype)


def size_of(aval: Any) -> int:
    """Returns the number of elements; symbolic dimensions count as 1."""
    size = 1
    for dimension in getattr(aval, "shape", ()):
        size *= dimension if type(dimension) is int else 1
    return size


@functools.cache
def _mixture(dtypes: frozenset[str]) -> str:
    """Returns why duotone does not change an operation with these dtypes, or empty."""
    if FULL_DTYPE not in dtypes:
        return ""
    for dtype in sorted(dtypes - {FULL_DTYPE, "float0"}):
        if dtype.startswith(("float", "bfloat", "complex")):
            return f"mixes float32 with {dtype}: the user chose these dtypes"
    return ""


def describe(eqn: _jax.Eqn, operands: Sequence[Value]) -> EquationDescription:
    """Describes a first-order equation and the graph values that it reads."""
    name = eqn.primitive.name
    ins = [value.dtype for value in operands]
    outs = [dtype_name(var.aval) for var in eqn.outvars]
    rule = _DESCRIPTION_RULES.get(name)
    list_key, fixed = rule(eqn) if rule else (name, "")
    traits = TRAITS.get(list_key, UNDESCRIBED)
    fixed = FIXED.get(name, "") or fixed
    if not fixed and name != "convert_element_type":
        fixed = _mixture(frozenset(ins + outs))
    return EquationDescription(
        list_key,
        tuple([dtype == FULL_DTYPE for dtype in ins]),  # a list is faster, and this code is hot
        tuple([dtype == FULL_DTYPE for dtype in outs]),
        _flops(eqn, operands, traits),
        fixed,
        traits,
    )


_MOVES = Trait.MOVES  # looked up once: this code is hot


def _flops(eqn: _jax.Eqn, operands: Sequence[Value], traits: Traits) -> float:
    """Returns the FLOPs of one execution, two for a multiply-add."""
    if _MOVES in traits or not eqn.outvars:
        return 0.0
    if eqn.primitive.name in _TERMS:
        return product_flops(eqn)
    return float(max([size_of(eqn.outvars[0].aval), *[value.size for value in operands]]))


def product_flops(eqn: _jax.Eqn) -> float:
    """Returns the FLOPs of one execution of a dot or a convolution; 0 for other operations."""
    terms = _TERMS.get(eqn.primitive.name)
    return 0.0 if terms is None else 2.0 * size_of(eqn.outvars[0].aval) * terms(eqn)


def _terms_of_dot(eqn: _jax.Eqn) -> float:
    numbers = eqn.params.get("dimension_numbers") or eqn.params["numbers"]
    shape = eqn.invars[0].aval.shape
    return math.prod(_known(shape[axis]) for axis in numbers[0][0])


def _terms_of_convolution(eqn: _jax.Eqn) -> float:
    kernel = eqn.invars[1].aval
    out_features = kernel.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
    return size_of(kernel) / max(_known(out_features), 1)


_TERMS: dict[str, Callable[[_jax.Eqn], float]] = {
    "dot_general": _terms_of_dot,
    OWN_DOT: _terms_of_dot,
    "conv_general_dilated": _terms_of_convolution,
}
"""By primitive: the number of products that are added up to each element of the result."""


def _known(dimension: Any) -> int:
    return dimension if isinstance(dimension, int) else 1


_DescriptionRule = Callable[[_jax.Eqn], tuple[str, str]]
_DESCRIPTION_RULES: dict[str, _DescriptionRule] = {}
"""By primitive: the name by which an equation is on a list, and why it is fixed (or empty)."""


_description_rule = registering(_DESCRIPTION_RULES)


@_description_rule("dot_general", "conv_general_dilated", "ragged_dot_general")
def _contraction(eqn: _jax.Eqn) -> tuple[str, str]:
    """Keeps a precision that the user asked for; a dot may have another row than matmul."""
    name = eqn.primitive.name
    list_key = (_meaning(eqn) if name == "dot_general" else "") or name
    precision = eqn.params.get("precision")
    asked = precision if isinstance(precision, tuple) else (precision,)
    if any(p is not None and p is not jax.lax.Precision.DEFAULT for p in asked):
        shown = "/".join(str(getattr(p, "name", p)) for p in asked)
        return name, f"{PRECISION} {shown}"
    return list_key, ""


def _meaning(eqn: _jax.Eqn) -> str:
    """Returns the row of a dot that is not a matrix product; else empty."""
    numbers, shape = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    left, right = kept_sizes(eqn, numbers)
    return meaning_of_dot(left, right, [shape[axis] for axis in numbers[0][0]])


def kept_sizes(eqn: _jax.Eqn, numbers: Any) -> list[list[Any]]:
    """Returns the sizes of the axes of each operand that a dot neither contracts nor batches."""
    contracted, batch = numbers
    return [
        [size for axis, size in enumerate(atom.aval.shape) if axis not in (*summed, *shared)]
        for atom, summed, shared in zip(eqn.invars[:2], contracted, batch, strict=True)
    ]


@_description_rule("call_hi_primitive")
def _call(eqn: _jax.Eqn) -> tuple[str, str]:
    """Tells ``custom_root``, which is a solve, from the other calls of this primitive."""
    if type(eqn.params.get("_prim")).__name__ == "CustomRoot":  # from JAX 0.12
        return "custom_root", "linear algebra has no half form"
    return eqn.primitive.name, ""


@_description_rule("mul")
def _mul(eqn: _jax.Eqn) -> tuple[str, str]:
    """``x * x`` is a square."""
    lhs, rhs = eqn.invars
    return ("square" if lhs is rhs else "mul"), ""


@_description_rule("eq")
def _eq(eqn: _jax.Eqn) -> tuple[str, str]:
    """Tells a comparison of two computed values (``x == max(x)``) from one with a literal."""
    computed = not any(_jax.is_literal(atom) for atom in eqn.invars)
    return ("eq_calculated" if computed and "float" in dtype_name(eqn.invars[0].aval) else "eq"), ""


@_description_rule("reduce_sum")
def _reduce_sum(eqn: _jax.Eqn) -> tuple[str, str]:
    """Tells a sum of two terms, which is an addition, from longer ones."""
    shape = eqn.invars[0].aval.shape
    sizes = [shape[axis] for axis in eqn.params["axes"]]
    two = all(type(size) is int for size in sizes) and math.prod(sizes) == 2
    return ("sum_of_two" if two else "reduce_sum"), ""


@_description_rule("integer_pow")
def _integer_pow(eqn: _jax.Eqn) -> tuple[str, str]:
    return ("exact_power" if abs(eqn.params["y"]) <= 1 else "integer_pow"), ""


@_description_rule("reduce_precision")
def _reduce_precision(eqn: _jax.Eqn) -> tuple[str, str]:
    """Tells a rounding to all digits of float32, as JAX adds to saved residuals, from others."""
    full = np.finfo(np.float32)
    keeps = eqn.params["exponent_bits"] >= full.nexp and eqn.params["mantissa_bits"] >= full.nmant
    return ("keep_precision" if keeps else "reduce_precision"), ""


@_description_rule("scatter")
def _scatter(eqn: _jax.Eqn) -> tuple[str, str]:
    """``x.at[i].apply(f)`` is a scatter too, whose region is the user's function."""
    region = eqn.params["update_jaxpr"]
    if region is not None and _jax.open_jaxpr(region).eqns:
        return "scatter", "applies the user's function, which was traced for float32"
    return "scatter", ""


_EXACT_IN_HALF = ("bool", "int8", "uint8", "int4", "uint4", "int2", "uint2")


@_description_rule("convert_element_type")
def _convert(eqn: _jax.Eqn) -> tuple[str, str]:
    """Tells an exact conversion, whose narrower side is no wider than half, from others."""
    source, target = dtype_name(eqn.invars[0].aval), dtype_name(eqn.outvars[0].aval)
    exact = (*_EXACT_IN_HALF, FULL_DTYPE, "float16", "bfloat16")
    if source in exact and target == FULL_DTYPE:
        return "convert_exact", ""
    if source == FULL_DTYPE and target.startswith(("float64", "complex", "float8", "float4")):
        return "convert_element_type", f"converts to {target}"
    if source == FULL_DTYPE or np.issubdtype(_numpy(source), np.integer):
        return "convert_element_type", ""
    return "convert_element_type", f"converts from {source}"


def _numpy(name: str) -> Any:
    """Returns the NumPy scalar type of a dtype name; ``object`` if NumPy does not know it."""
    try:
        return np.dtype(name).type
    except TypeError:
        return object
