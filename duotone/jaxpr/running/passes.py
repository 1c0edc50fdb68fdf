"""Passes: the forward and the backward pass of a program, and the linear equation between them.

The tangents of a differentiated program come from one linear primitive. It takes the residuals and
the tangents of the arguments, and its transpose is the backward pass. Forward mode transposes the
backward pass once more.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from duotone import _jax
from duotone.jaxpr.reading.attributes import has_sharded_type


@dataclasses.dataclass(frozen=True, eq=False)
class Passes:
    """The two passes of a differentiated program.

    Attributes:
        forward: maps arguments to results, and to those residuals that are neither arguments nor
            results.
        sources: each residual's position among arguments, results and these.
        backward: maps residuals and cotangents (of the ``reached`` results) to the gradients with
            respect to the differentiated arguments.
        reached: for each result, whether it depends on a differentiated argument.
        types: the types of the tangents of the ``reached`` results.
        mapped: the mapped passes so far, by the dimensions of their operands and the size.
    """

    forward: Callable[..., tuple[list[Any], list[Any]]]
    sources: tuple[int, ...]
    backward: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    reached: tuple[bool, ...]
    types: tuple[Any, ...]
    mapped: dict[Any, Passes] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @property
    def count(self) -> int:
        """The number of residuals."""
        return len(self.sources)

    def residuals(
        self, leaves: Sequence[Any], results: Sequence[Any], made: Sequence[Any]
    ) -> list[Any]:
        """Returns the residuals, from the arguments and the results of ``forward``."""
        arrays = [*leaves, *results, *made]
        return [arrays[source] for source in self.sources]

    def tangents(self, residuals: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """Returns the tangents of the results: the backward pass, transposed."""

        def backward(*cotangents: Any) -> list[Any]:
            return self.backward(residuals, cotangents)

        return list(jax.linear_transpose(backward, *self.types)(list(given)))

    @functools.cached_property
    def compiled_tangents(self) -> Callable[..., list[Any]]:
        """Maps residuals and tangents to the tangents of the results, compiled."""
        return jax.jit(functools.partial(_calculate, passes=self))


def _abstract(*operands: Any, passes: Passes) -> list[Any]:
    return list(passes.types)


def _calculate(*operands: Any, passes: Passes) -> list[Any]:
    return passes.tangents(operands[: passes.count], operands[passes.count :])


def _jvp(operands: Sequence[Any], tangents: Sequence[Any], passes: Passes) -> Any:
    """Returns the derivative of the tangents, which depend on residuals."""
    pairs = zip(operands, tangents, strict=True)
    dense = [no_tangent(jax.typeof(x)) if type(t) is _jax.ad.Zero else t for x, t in pairs]
    calculate = functools.partial(_calculate, passes=passes)
    return jax.jvp(calculate, tuple(operands), tuple(dense))


def _transpose(cotangents: Sequence[Any], *operands: Any, passes: Passes) -> list[Any]:
    """Returns the backward pass."""
    pairs = zip(cotangents, passes.types, strict=True)
    given = [no_tangent(aval) if type(ct) is _jax.ad.Zero else ct for ct, aval in pairs]
    return [None] * passes.count + passes.backward(operands[: passes.count], given)


def _batch(operands: Sequence[Any], dims: Sequence[Any], passes: Passes) -> Any:
    """Batches the passes; an operand that is not mapped gets the sum of its gradients."""
    mapped = tuple(None if type(dim) is not int else dim for dim in dims)
    size = next(x.shape[p] for x, p in zip(operands, mapped, strict=True) if p is not None)
    made = LINEAR.bind(*operands, passes=_mapped(passes, mapped, size, operands))
    return made, [0] * len(made)


def _mapped(
    passes: Passes, dims: tuple[int | None, ...], size: int, operands: Sequence[Any]
) -> Passes:
    """Returns the passes of a program that is mapped over dimensions of its operands."""
    types = tuple(map(jax.typeof, operands))
    key = dims, size, types if any(map(has_sharded_type, types)) else ()
    if key not in passes.mapped:  # JAX keeps a compiled program for each value of a parameter
        passes.mapped[key] = _map(passes, *key)
    return passes.mapped[key]


def _map(
    passes: Passes, dims: tuple[int | None, ...], size: int, sharded: tuple[Any, ...]
) -> Passes:
    """Maps the passes; ``sharded`` are the operands' types if shardings are part of them."""
    residuals, linear = dims[: passes.count], dims[passes.count :]

    def backward(kept: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        each = jax.vmap(passes.backward, (list(residuals), 0), 0, axis_size=size)
        made = each(list(kept), list(given))
        return [
            x.sum(0) if dim is None else jax.numpy.moveaxis(x, 0, dim)
            for x, dim in zip(made, linear, strict=True)
        ]

    if sharded:
        each = jax.vmap(functools.partial(_calculate, passes=passes), dims, axis_size=size)
        types = tuple(jax.make_jaxpr(each)(*sharded).out_avals)
    else:
        types = tuple(aval.update(shape=(size, *aval.shape)) for aval in passes.types)
    return dataclasses.replace(passes, backward=backward, types=types)


def _primitive() -> Any:
    """Makes the linear primitive from arguments, residuals and tangents to tangents."""
    primitive = _jax.Primitive("duotone_tangents")
    primitive.multiple_results = True
    primitive.def_impl(lambda *operands, passes: passes.compiled_tangents(*operands))
    primitive.def_abstract_eval(_abstract)
    _jax.ad.primitive_jvps[primitive] = _jvp
    _jax.ad.primitive_transposes[primitive] = _transpose
    _jax.batching.primitive_batchers[primitive] = _batch
    _jax.mlir.register_lowering(primitive, _jax.mlir.lower_fun(_calculate, multiple_results=True))
    return primitive


LINEAR = _primitive()


def is_float(aval: Any) -> bool:
    """Returns True if an array of this type can be differentiated."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jax.numpy.issubdtype(dtype, np.inexact)


def no_tangent(aval: Any) -> Any:
    """Returns a tangent of zeros."""
    if is_float(aval):
        return _jax.ad.instantiate_zeros(_jax.ad.Zero(aval))  # it may vary over mesh axes
    return np.zeros(aval.shape, jax.dtypes.float0)
