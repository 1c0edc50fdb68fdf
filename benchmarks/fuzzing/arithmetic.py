"""JAX primitives in NumPy: programs of a few elements need no compiler.

A rule takes the operands, the equation's parameters and its first result's type, and gives the
result; no dtype is looked at, since :mod:`benchmarks.fuzzing.evaluate` hands over operands in the
precision in which is computed and rounds what comes back.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import scipy.special

from benchmarks.fuzzing import arithmetic_of_arrays

Rule = Callable[..., Any]
HALF = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def _integer_pow(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    power = functools.reduce(operator.mul, [x] * abs(params["y"]), np.ones_like(x))
    return 1 / power if params["y"] < 0 else power


def _div(params: Mapping[str, Any], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if np.issubdtype(x.dtype, np.integer):
        return np.trunc(x / y).astype(x.dtype)
    return x / y


def _clamp(params: Mapping[str, Any], low: Any, x: Any, high: Any) -> np.ndarray:
    return np.minimum(np.maximum(x, low), high)


def _select(params: Mapping[str, Any], which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    if which.shape != cases[0].shape:
        which = np.broadcast_to(which, cases[0].shape)
    return (
        np.choose(which.astype(np.int32), cases)
        if len(cases) > 2
        else np.where(which, *cases[::-1])
    )


def _broadcast(params: Mapping[str, Any], x: np.ndarray, *_: Any) -> np.ndarray:
    shape = [1] * len(params["shape"])
    for axis, along in enumerate(params["broadcast_dimensions"]):
        shape[along] = x.shape[axis]
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _slice(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    strides = params["strides"] or [1] * x.ndim
    limits = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*limit) for limit in limits)]


def _starts(x: np.ndarray, sizes: Any, indices: Any) -> list[int]:
    return [
        int(np.clip(int(at), 0, whole - size))
        for at, whole, size in zip(indices, x.shape, sizes, strict=True)
    ]


def _dynamic_slice(params: Mapping[str, Any], x: np.ndarray, *indices: Any) -> np.ndarray:
    sizes = params["slice_sizes"]
    starts = _starts(x, sizes, indices)
    return x[tuple(slice(a, a + size) for a, size in zip(starts, sizes, strict=True))]


def _dynamic_update_slice(
    params: Mapping[str, Any], x: np.ndarray, update: np.ndarray, *indices: Any
) -> np.ndarray:
    result = x.copy()
    starts = _starts(x, update.shape, indices)
    result[tuple(slice(a, a + s) for a, s in zip(starts, update.shape, strict=True))] = update
    return result


def _pad(params: Mapping[str, Any], x: np.ndarray, value: np.ndarray) -> np.ndarray:
    for axis, (low, high, inner) in enumerate(params["padding_config"]):
        size = x.shape[axis]
        shape = list(x.shape)
        shape[axis] = size + max(size - 1, 0) * inner
        spread = np.full(shape, value, x.dtype)
        spread[(slice(None),) * axis + (slice(None, None, inner + 1),)] = x
        cut = slice(max(-low, 0), shape[axis] - max(-high, 0))
        spread = spread[(slice(None),) * axis + (cut,)]
        width = [(0, 0)] * x.ndim
        width[axis] = (max(low, 0), max(high, 0))
        x = np.pad(spread, width, constant_values=value)
    return x


def _split(params: Mapping[str, Any], x: np.ndarray) -> list[np.ndarray]:
    return np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"])


def _unstack(params: Mapping[str, Any], x: np.ndarray) -> list[np.ndarray]:
    return [np.take(x, i, params["axis"]) for i in range(x.shape[params["axis"]])]


def _dot(params: Mapping[str, Any], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    (cx, cy), (bx, by) = params["dimension_numbers"]
    fx = [a for a in range(x.ndim) if a not in (*cx, *bx)]
    fy = [a for a in range(y.ndim) if a not in (*cy, *by)]
    batch, rows, columns = (
        [x.shape[a] for a in bx],
        [x.shape[a] for a in fx],
        [y.shape[a] for a in fy],
    )
    inner = int(np.prod([x.shape[a] for a in cx], dtype=int))
    left = x.transpose([*bx, *fx, *cx]).reshape([*batch, int(np.prod(rows, dtype=int)), inner])
    right = y.transpose([*by, *cy, *fy]).reshape([*batch, inner, int(np.prod(columns, dtype=int))])
    return (left @ right).reshape([*batch, *rows, *columns])


def _product(params: Mapping[str, Any], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``duotone_dot``, of operands rounded to half."""
    half = HALF[params["half"]]
    rounded = [a.astype(half).astype(a.dtype) for a in (x, y)]
    return _dot({"dimension_numbers": params["numbers"]}, *rounded)


def _total_less(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.less(x, y) | (np.equal(x, y) & np.signbit(x) & ~np.signbit(y))


def _away(x: np.ndarray) -> np.ndarray:
    return np.trunc(x + np.copysign(0.5, x))


def _reduce_precision(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    bits = (params["exponent_bits"], params["mantissa_bits"])
    kinds = {(5, 10): HALF["float16"], (8, 7): HALF["bfloat16"], (8, 23): np.float32}
    return x.astype(kinds[bits]).astype(x.dtype)


def _iota(params: Mapping[str, Any], *_: Any) -> np.ndarray:
    shape, axis = params["shape"], params["dimension"]
    ones = [1] * len(shape)
    ones[axis] = shape[axis]
    return np.broadcast_to(np.arange(shape[axis]).reshape(ones), shape)


def _cumulative(function: Any) -> Rule:
    def rule(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
        axis = params["axis"]
        turned = np.flip(x, axis) if params["reverse"] else x
        done = function.accumulate(turned, axis, x.dtype)
        return np.flip(done, axis) if params["reverse"] else done

    return rule


def _reduction(function: Any) -> Rule:
    def rule(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
        return np.asarray(function(x, axis=tuple(params["axes"])))

    return rule


def _arg(function: Any) -> Rule:
    return lambda params, x: function(x, axis=params["axes"][0])


def _of(function: Any) -> Rule:
    return lambda params, *operands: function(*operands)


_NUMPY = """
    add add_any:add sub:subtract mul:multiply rem:fmod max:maximum min:minimum neg:negative abs
    sign floor ceil exp exp2 expm1 log log1p pow:power sqrt cbrt square tanh sin cos tan sinh
    cosh asin:arcsin acos:arccos atan:arctan atan2:arctan2 asinh:arcsinh acosh:arccosh
    atanh:arctanh is_finite:isfinite eq:equal ne:not_equal lt:less le:less_equal gt:greater
    ge:greater_equal and:bitwise_and or:bitwise_or not:invert xor:bitwise_xor
"""
_SCIPY = "logistic:expit erf erfc erf_inv:erfinv lgamma:gammaln digamma"
_SAME = "stop_gradient copy copy_p name convert_element_type"
_REDUCTIONS = (
    "reduce_sum:sum reduce_prod:prod reduce_max:max reduce_min:min reduce_and:all reduce_or:any"
)
_CUMULATIVE = """
    cumsum:add cumprod:multiply cummax:maximum cummin:minimum cumlogsumexp:logaddexp
"""


def _named(words: str, library: Any, make: Callable[[Any], Rule] = _of) -> dict[str, Rule]:
    """Rules of a library's functions: each word is a primitive, and the function's name if other.

    The two are divided by a colon.
    """
    pairs = (word.partition(":")[::2] for word in words.split())
    return {name: make(getattr(library, other or name)) for name, other in pairs}


RULES: dict[str, Rule] = {
    **_named(_NUMPY, np),
    **_named(_SCIPY, scipy.special),
    **dict.fromkeys(_SAME.split(), _of(lambda x: x)),
    **_named(_REDUCTIONS, np, _reduction),
    **_named(_CUMULATIVE, np, _cumulative),
    **_named("argmax argmin", np, _arg),
    "div": _div,
    "rsqrt": _of(lambda x: 1 / np.sqrt(x)),
    "integer_pow": _integer_pow,
    "select_n": _select,
    "clamp": _clamp,
    "lt_to": _of(_total_less),
    "round": lambda params, x: np.rint(x) if int(params["rounding_method"]) else _away(x),
    "device_put": lambda params, *operands: list(operands),
    "reduce_precision": _reduce_precision,
    "optimization_barrier": lambda params, *operands: list(operands),
    "duotone_instead": _of(lambda plain, result: result),
    "reshape": lambda params, x, *_: x.reshape(params["new_sizes"]),
    "squeeze": lambda params, x: np.squeeze(x, tuple(params["dimensions"])),
    "expand_dims": lambda params, x: np.expand_dims(x, tuple(params["dimensions"])),
    "transpose": lambda params, x: np.transpose(x, params["permutation"]),
    "rev": lambda params, x: np.flip(x, tuple(params["dimensions"])),
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda params, *parts: np.concatenate(parts, params["dimension"]),
    "stack": lambda params, *parts: np.stack(parts, params["axis"]),
    "unstack": _unstack,
    "split": _split,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "pad": _pad,
    "iota": _iota,
    "dot_general": _dot,
    "duotone_dot": _product,
    **arithmetic_of_arrays.RULES,
}
"""By primitive."""

MOVES = frozenset(
    "max min neg abs select_n stop_gradient copy name optimization_barrier duotone_instead reshape "
    "squeeze expand_dims transpose rev broadcast_in_dim concatenate stack unstack split slice "
    "dynamic_slice dynamic_update_slice pad reduce_max reduce_min cummax cummin gather sort top_k "
    "tile device_put reduce_window_max reduce_window_min scatter empty2".split()
)
"""Primitives whose results are among their operands' elements: nothing is rounded there."""


def sum_in_steps(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """``reduce_sum`` of half numbers as written: each partial sum is rounded."""
    axes = sorted(params["axes"])
    kept = [a for a in range(x.ndim) if a not in axes]
    rows = x.transpose([*axes, *kept]).reshape([-1, *(x.shape[a] for a in kept)])
    total = np.zeros(rows.shape[1:], x.dtype)
    for row in rows:
        total = (total + row).astype(x.dtype)
    return total
