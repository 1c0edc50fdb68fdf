"""Splits, checks and names the arguments of an exported function."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from duotone.errors import ArgumentError
from duotone.exporting.refusals import check_types

BATCH = "batch"
"""The name of an open size."""
Types = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments with ``jax.ShapeDtypeStruct`` instead of arrays."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A call without the arguments that contain no array.

    Attributes:
        name: the name of the function.
        function: takes the arguments that contain arrays.
        args: the positional arguments that contain arrays.
        positions: the positions of ``args`` among all arguments.
        kwargs: the keyword arguments that contain arrays.
        fixed: the other arguments, by position (as text) or name.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    positions: tuple[int, ...]
    kwargs: dict[str, Any]
    fixed: Mapping[str, Any]


def divided(
    name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call:
    """Separates the arguments that contain arrays from those that become part of the program."""
    positions = tuple(i for i, value in enumerate(args) if _holds_arrays(value))
    given = {key: value for key, value in kwargs.items() if _holds_arrays(value)}
    fixed: dict[str, Any] = {str(i): v for i, v in enumerate(args) if i not in positions}
    fixed |= {key: value for key, value in kwargs.items() if key not in given}

    def call(*arrays: Any, **named: Any) -> Any:
        whole = list(args)
        for position, value in zip(positions, arrays, strict=True):
            whole[position] = value
        results = fn(*whole, **{**kwargs, **named})
        check_types(name, results)
        return results

    return Call(name, call, tuple(args[i] for i in positions), positions, given, fixed)


def _holds_arrays(value: Any) -> bool:
    return any(is_array(leaf) for leaf in jax.tree.leaves(value))


def is_array(leaf: Any) -> bool:
    """Returns True for an array or a ``jax.ShapeDtypeStruct``."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


def positions_of(given: int | Sequence[int], args: tuple[Any, ...]) -> frozenset[int]:
    """Returns the positions of arguments with a batch.

    Raises:
        ArgumentError: an argument has no array with axes.
    """
    positions = (given,) if isinstance(given, int) else tuple(given)
    for position in positions:
        inside = range(-len(args), len(args))
        leaves = jax.tree.leaves(args[position]) if position in inside else []
        if not any(is_array(leaf) and leaf.ndim for leaf in leaves):
            raise ArgumentError(
                f"export: batch_argnums names argument {position}, which has no array with axes; "
                f"there are {len(args)} arguments by position."
            )
    return frozenset(position % len(args) for position in positions)


def types_of(call: Call, with_batch: frozenset[int]) -> Types:
    """Replaces arrays by shapes and dtypes, and the batch size by a symbol."""
    (batch,) = jax.export.symbolic_shape(BATCH)

    def typed(leaf: Any, has_batch: bool) -> Any:
        if not is_array(leaf):
            return leaf
        shape = (batch, *leaf.shape[1:]) if has_batch and leaf.shape else leaf.shape
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        dtype = leaf.dtype if is_key else jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct(shape, dtype)

    pairs = zip(call.positions, call.args, strict=True)
    args = tuple(
        jax.tree.map(lambda x, p=p: typed(x, p in with_batch), value) for p, value in pairs
    )
    return args, jax.tree.map(lambda x: typed(x, False), call.kwargs)


def parameters_of(fn: Callable[..., Any], call: Call) -> list[str]:
    """Returns the names of the parameters that take the positional arguments of a call."""
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        names = []
    return [names[p] if p < len(names) else f"argument{p}" for p in call.positions]


def leaf_names(tree: Any, alone: str, kept: Callable[[Any], bool] = lambda leaf: True) -> list[str]:
    """Names the leaves of a pytree by their paths."""
    found = [path for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0] if kept(leaf)]
    return [jax.tree_util.keystr(path, simple=True, separator=".") or alone for path in found]


def input_names(
    parameters: Sequence[str],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    kept: Callable[[Any], bool] = lambda leaf: True,
) -> list[str]:
    """Names the leaves of ``(args, kwargs)``, in their order.

    Example:
        >>> input_names(["w", "x"], [{"b": 1, "a": 2}, 3], {"scale": 4})
        ['w.a', 'w.b', 'x', 'scale']
    """
    trees = [*({name: arg} for name, arg in zip(parameters, args, strict=True)), kwargs]
    return [name for tree in trees for name in leaf_names(tree, "argument", kept)]
