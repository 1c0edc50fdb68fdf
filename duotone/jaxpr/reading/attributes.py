"""Attributes: the parameters of an equation that the range analysis needs.

Their names are independent of a framework (:class:`duotone.graph.graph.Node` lists them). Most
primitives need none. To give a rule of :mod:`duotone.precision.ranges` another parameter, add a
line to ``_ATTRIBUTES``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE, HALF_TYPES, NO_ATTRIBUTES, Attribute
from duotone.jaxpr.reading.operations import OWN_DOT, kept_sizes
from duotone.jaxpr.reading.windows import (
    Convolution,
    has_phases,
    is_channelwise,
    is_of_filters,
    library_forms,
    overhangs,
    pools,
    slides,
    tiling,
)
from duotone.jaxpr.rules.scatters import scatter_attributes
from duotone.precision.ranges.intervals import DTYPE_RANGES, fits

_Read = Callable[[_jax.Eqn], Mapping[str, Attribute]]


def attributes_of(eqn: _jax.Eqn, indices: np.ndarray | None = None) -> Mapping[str, Attribute]:
    """Returns the attributes of a first-order equation.

    The ``indices`` are those of a ``scatter-add``, if they are known before any call.
    """
    if eqn.primitive.name == "scatter-add":
        return scatter_attributes(eqn, indices)
    read = _ATTRIBUTES.get(eqn.primitive.name)
    return NO_ATTRIBUTES if read is None else read(eqn)


def _axes(name: str, parameter: str) -> _Read:
    """Returns the reader of a parameter that names axes."""

    def read(eqn: _jax.Eqn) -> Mapping[str, Attribute]:
        axes = eqn.params.get(parameter)  # those of a reshape may be None
        return NO_ATTRIBUTES if axes is None else {name: tuple(map(int, axes))}

    return read


def _dot(eqn: _jax.Eqn) -> Mapping[str, Attribute]:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    sizes = _sizes(eqn, eqn.params["dimension_numbers"])
    terms = {**_terms([shape[axis] for axis in contracted]), **sizes}
    if _sharded(eqn) or eqn.params.get("out_sharding") is not None:
        return terms  # moving such arrays would need their shardings
    return {**terms, "labels": _labels(eqn)}


def _sharded(eqn: _jax.Eqn) -> bool:
    return any(has_sharded_type(var.aval) for var in eqn.invars)


def has_sharded_type(aval: Any) -> bool:
    """Checks if a sharding is part of an aval's type: explicit mesh axes, inside ``shard_map``."""
    axes = aval.sharding.mesh.axis_types if hasattr(aval, "sharding") else ()  # a token has none
    return any(kind is not jax.sharding.AxisType.Auto for kind in axes)


def _sizes(eqn: _jax.Eqn, numbers: Any) -> Mapping[str, Attribute]:
    """Returns the sizes of a batch of matrix products: batch, rows, terms, columns."""
    (contracted, _), (batch, _) = numbers
    shape, (rows, columns) = eqn.invars[0].aval.shape, kept_sizes(eqn, numbers)
    groups, terms = ([shape[axis] for axis in axes] for axes in (batch, contracted))
    return _products(groups, rows, terms, columns)


def _products(*dimensions: Sequence[Any]) -> Mapping[str, Attribute]:
    """Returns the ``sizes`` attribute; no attribute if a dimension is symbolic."""
    if not all(isinstance(size, int) for sizes in dimensions for size in sizes):
        return NO_ATTRIBUTES
    return {"sizes": tuple(math.prod(sizes) for sizes in dimensions)}


def _labels(eqn: _jax.Eqn) -> tuple[int, ...]:
    """Returns axis labels as in an einsum; those of the left operand are its axes."""
    contracted, batch = eqn.params["dimension_numbers"]
    left = range(eqn.invars[0].aval.ndim)
    right = [len(left) + axis for axis in range(eqn.invars[1].aval.ndim)]
    for mine, theirs in (contracted, batch):
        for axis, label in zip(theirs, mine, strict=True):
            right[axis] = label
    kept = [axis for axis in left if axis not in contracted[0] and axis not in batch[0]]
    return (*left, *right, *batch[0], *kept, *(label for label in right if label >= len(left)))


def _holes(window: Sequence[Any], dilation: Sequence[int]) -> float:
    """Returns the elements of a dilated window, with the zeros between them, over those without."""
    sides = [(side, apart) for side, apart in zip(window, dilation, strict=True) if apart > 1]
    if not all(isinstance(side, int) and side > 0 for side, _ in sides):
        return 1.0
    return math.prod(((side - 1) * apart + 1) / side for side, apart in sides)


def _convolution(eqn: _jax.Eqn) -> Mapping[str, Attribute]:
    """Returns the attributes of a convolution; it sums one product per filter element."""
    shape = list(eqn.invars[1].aval.shape)
    numbers = eqn.params["dimension_numbers"]
    features, inside, *window = (shape[axis] for axis in numbers.rhs_spec)
    image, _, *positions = (eqn.outvars[0].aval.shape[axis] for axis in numbers.out_spec)
    groups = eqn.params["feature_group_count"] * eqn.params["batch_group_count"]
    if isinstance(features, int):
        features //= groups
    sizes = _products([groups], [image], positions, window, [inside], [features])
    del shape[numbers.rhs_spec[0]]
    found = {**_terms(shape), **sizes}
    if (apart := math.prod(eqn.params["lhs_dilation"])) > 1:
        found["apart"] = float(apart)
    # The gradient of a filter exchanges images and channels, and libraries have a form for it.
    if not is_of_filters(eqn.params):
        filled = apart * _holes(window, eqn.params["rhs_dilation"])
        found |= {"filled": float(filled)} if filled > 1 else {}
    made = Convolution.of(eqn)
    if slides(made):
        found["slides"] = 1.0
    if _sharded(eqn):
        return found
    if tiling(made) is not None:
        found["tiles"] = 1.0
    in_float32 = _computes_float32(eqn)
    if in_float32:
        found |= dict.fromkeys(library_forms(made), 1.0)
    if in_float32 and is_channelwise(made):
        found["channelwise"] = 1.0
    elif in_float32 and overhangs(made):
        found["overhangs"] = 1.0
    elif has_phases(made):
        found["phases"] = 1.0
    return found


def _computes_float32(eqn: _jax.Eqn) -> bool:
    """Checks if all operands and results are float32 or half."""
    return all(
        var.aval.dtype.name in (FULL_DTYPE, *HALF_TYPES) for var in (*eqn.invars, *eqn.outvars)
    )


def _running(eqn: _jax.Eqn) -> Mapping[str, Attribute]:
    return _terms([eqn.invars[0].aval.shape[eqn.params["axis"]]])


def _window(eqn: _jax.Eqn) -> Mapping[str, Attribute]:
    """Returns the attributes of a reduction of windows, or of the gradient of one."""
    found = dict(_terms(eqn.params["window_dimensions"]))
    gradient = len(eqn.invars) > 1
    array, made = eqn.invars[-1].aval, (eqn.invars if gradient else eqn.outvars)[0].aval
    if _computes_float32(eqn) and not _sharded(eqn):
        pooled = pools(eqn.params, array.shape, made.shape, overlapping=not gradient)
        found |= {"pools": 1.0} if pooled else {}
    return found


def _terms(dimensions: Sequence[Any]) -> Mapping[str, Attribute]:
    """Returns the ``terms`` attribute; no attribute if a dimension is symbolic."""
    if not all(isinstance(dimension, int) for dimension in dimensions):
        return NO_ATTRIBUTES
    return {"terms": float(math.prod(dimensions))}


def _counter(eqn: _jax.Eqn) -> Mapping[str, Attribute]:
    length = eqn.outvars[0].aval.shape[eqn.params["dimension"]]
    return {"length": float(length)} if isinstance(length, int) else NO_ATTRIBUTES


def _gather(eqn: _jax.Eqn) -> Mapping[str, Attribute]:
    found: dict[str, Attribute] = {}
    if (fill := _fill(eqn)) is not None:
        found["fill"] = fill
    if paired := eqn.params["dimension_numbers"].operand_batching_dims:
        found["paired"] = tuple(map(int, paired))
    return found or NO_ATTRIBUTES


def _fill(eqn: _jax.Eqn) -> float | None:
    """Returns the number that a gather returns out of bounds, in the operand's dtype."""
    fill, dtype = eqn.params.get("fill_value"), eqn.invars[0].aval.dtype
    if fill is None or np.iscomplexobj(fill):
        return None
    if jax.numpy.issubdtype(dtype, np.floating):
        with np.errstate(all="ignore"):
            return float(np.asarray(fill).astype(dtype))
    whole = float(fill).is_integer() and dtype.name in DTYPE_RANGES
    return float(fill) if whole and fits((float(fill), float(fill)), dtype.name) else None


_ATTRIBUTES: dict[str, _Read] = {
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"), _axes("axes", "axes")
    ),
    "broadcast_in_dim": _axes("places", "broadcast_dimensions"),
    "transpose": _axes("permutation", "permutation"),
    "reshape": _axes("permutation", "dimensions"),
    "integer_pow": lambda eqn: {"exponent": float(eqn.params["y"])},
    "dot_general": _dot,
    OWN_DOT: lambda eqn: _sizes(eqn, eqn.params["numbers"]),
    "conv_general_dilated": _convolution,
    **dict.fromkeys(("cumsum", "cumprod"), _running),
    **dict.fromkeys(
        "reduce_window_max reduce_window_min reduce_window_sum select_and_scatter_add".split(),
        _window,
    ),
    "iota": _counter,
    "gather": _gather,
}
"""By primitive; called once for each equation, so these functions must be cheap."""
