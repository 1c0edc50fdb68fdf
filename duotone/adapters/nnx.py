"""Flax NNX: lifts functions that change their arguments in place into pure functions.

NNX objects (modules, optimizers, metrics, Rngs, variables) contain variables that a training step
changes in place. A trace gets copies, so :func:`duotone.autocast` refuses such objects. This file
lifts the function instead, as ``nnx.jit`` does::

    split the objects among the arguments   ->  graph definitions, arrays          (outside)
      merge, call the function, split again ->  arrays, new graph definitions      (traced)
    merge into the same objects             ->  changed in place                   (outside)

Flax's update context carries the references across, so that objects shared between arguments stay
shared, and variables, modules and attributes made inside appear outside. The lift always works on
graphs, which all NNX objects are, and so does not depend on Flax's graph and tree modes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp

from duotone import _jax
from duotone._checks import check_switch
from duotone.blaming import blame as _blaming
from duotone.blaming.blame import Blame
from duotone.errors import ArgumentTypeError, MissingExtraError
from duotone.jaxpr.modules import holding, inside
from duotone.jaxpr.reading.foreign import USE_NNX
from duotone.jaxpr.reading.signature import describe_callable
from duotone.policy.arguments import check_callable, is_off
from duotone.policy.policy import Policy
from duotone.transforms import autocast as api
from duotone.transforms.decorator import Decorator

try:
    from flax import nnx
    from flax.errors import TraceContextError
except ImportError as error:
    raise MissingExtraError("duotone.nnx", "flax", "flax") from error

P = ParamSpec("P")
R = TypeVar("R")

_MADE = "_duotone_nnx"
"""The attribute of a result of :func:`autocast`: itself, the rewritten function, its objects."""
TAG = "duotone"
"""The name of the update contexts of this file; for nested calls, Flax keeps a stack of them."""


@overload
def autocast(
    fn: Callable[P, R], *, dtype: Any = None, policy: Policy | None = None, enabled: bool = True
) -> Callable[P, R]: ...
@overload
def autocast(
    fn: None = None, *, dtype: Any = None, policy: Policy | None = None, enabled: bool = True
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def autocast(
    fn: Callable[..., Any] | None = None,
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    enabled: bool = True,
) -> Any:
    """Rewrites a function of NNX objects, as :func:`duotone.autocast` rewrites others.

    Arguments and results may contain modules, optimizers, metrics, Rngs and variables anywhere. The
    function's changes to them take effect: parameters, optimizer state, batch statistics, random
    counters, metrics, variables made inside. This works inside and outside of ``nnx.jit``,
    ``nnx.grad``, ``nnx.vmap``, ``nnx.scan`` and ``nnx.remat``.

    As in ``nnx.jit``, a Python number inside a variable becomes an array. Other numbers stay Python
    numbers, as in :func:`duotone.autocast`.

    Args:
        fn: the function. If it is a module or a method of one, the module is lifted too, as the
            first argument. If omitted, a decorator is returned.
        dtype: ``float16``, ``bfloat16``, or ``None`` for the one that is fast on this device.
        policy: which operations may be painted.
        enabled: ``False`` is the same as ``dtype="float32"``: the returned function runs ``fn``
            unchanged, even inside another rewrite.

    Returns:
        A function with the signature of ``fn``.

    Raises:
        ArgumentTypeError, ArgumentError: as for :func:`duotone.autocast`.

    Example:
        >>> import jax.numpy as jnp, duotone.nnx
        >>> from flax import nnx
        >>> @duotone.nnx.autocast(dtype=jnp.bfloat16)
        ... def predict(model, x):
        ...     return model(x)
        >>> predict(nnx.Linear(4, 2, rngs=nnx.Rngs(0)), jnp.ones((3, 4))).dtype
        dtype('float32')
    """
    check_switch("autocast", "enabled", enabled)
    if fn is None:
        return Decorator(autocast, dtype=dtype, policy=policy, enabled=enabled)
    check_callable("autocast", fn)
    api.check_settings("autocast", dtype, policy)
    if not enabled or is_off("autocast", dtype):
        return api.autocast(fn, enabled=False)
    pure, first = _pure(fn)
    mixed = api.autocast(pure, dtype=dtype, policy=policy)

    @functools.wraps(fn, updated=())
    def lifted(*args: Any, **kwargs: Any) -> Any:
        check_changeable(describe_callable(fn, "nnx.autocast"), (first, args, kwargs))
        with nnx.update_context(TAG):
            pure_args, pure_kwargs = split_objects(((*first, *args), kwargs))
            _, out = merge_objects(mixed(*pure_args, **pure_kwargs), inner=False)
        return out

    setattr(lifted, _MADE, (lifted, mixed, first))
    return lifted


def explain(
    fn: Callable[..., Any],
    *args: Any,
    dtype: Any = None,
    policy: Policy | None = None,
    **kwargs: Any,
) -> api.Explanation:
    """Calls :func:`duotone.explain` on a function of NNX objects, and changes nothing in them.

    Args:
        fn: the function, or the result of :func:`autocast`, whose dtype and policy are then the
            defaults.
        *args: its arguments.
        dtype: as for :func:`duotone.explain`.
        policy: as for :func:`duotone.explain`.
        **kwargs: its keyword arguments, also ``target`` as for :func:`duotone.explain`.

    Returns:
        A record; print it for a table.

    Raises:
        ArgumentTypeError, ArgumentError: as for :func:`duotone.explain`.

    Example:
        >>> import jax.numpy as jnp, duotone.nnx
        >>> from flax import nnx
        >>> model = nnx.Linear(8, 2, rngs=nnx.Rngs(0))
        >>> seen = duotone.nnx.explain(model, jnp.ones((3, 8)), dtype=jnp.float16)
        >>> [o.operation for o in seen.operations if o.paint == "half"][0]
        'dot_general'
    """
    pure, first = _pure(fn)
    with nnx.update_context(TAG):
        pure_args, pure_kwargs = split_objects(((*first, *args), kwargs))
        return api.explain(pure, *pure_args, dtype=dtype, policy=policy, **pure_kwargs)


def blame(
    step: Callable[..., Any],
    *args: Any,
    dtype: Any = None,
    policy: Policy | None = None,
    **kwargs: Any,
) -> Blame:
    """Calls :func:`duotone.blame` on a function of NNX objects, and changes nothing in them.

    Args:
        step: the function, or the result of :func:`autocast`; it may call rewritten programs, like
            a step with a wrapped optimizer.
        *args: its arguments.
        dtype: as for :func:`duotone.blame`.
        policy: as for :func:`duotone.blame`.
        **kwargs: its keyword arguments.

    Returns:
        A record; print it.

    Raises:
        ArgumentTypeError, ArgumentError: as for :func:`duotone.blame`.

    Example:
        >>> import jax.numpy as jnp, duotone.nnx
        >>> from flax import nnx
        >>> model = nnx.Linear(8, 2, rngs=nnx.Rngs(0))
        >>> duotone.nnx.blame(model, jnp.ones((3, 8)), dtype=jnp.float16).verdict.value
        'finite'
    """
    pure, first = _pure(step)
    with nnx.update_context(TAG):
        pure_args, pure_kwargs = split_objects(((*first, *args), kwargs))
        return _blaming.blame(pure, *pure_args, dtype=dtype, policy=policy, **pure_kwargs)


def _pure(fn: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns a function of split objects, and the objects that precede the user's arguments."""
    check_callable("autocast", fn)
    made: Any = getattr(fn, _MADE, None)
    if made and made[0] is fn:  # another wrapper may have copied the attribute
        return made[1:]
    function, first = unbound(fn)

    @functools.wraps(fn, updated=())
    def pure(*pure_args: Any, **pure_kwargs: Any) -> Any:
        args, kwargs = merge_objects((pure_args, pure_kwargs), inner=True)
        with holding(*modules_in((args, kwargs))), inside(args[0]) if first else nullcontext():
            out = function(*args, **kwargs)
        return split_objects((only_objects((args, kwargs)), out))

    return pure, first


def unbound(fn: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns a module, or a method of one, as a function whose first argument is the module."""
    if is_object(fn) and callable(fn):
        return type(fn).__call__, (fn,)
    if inspect.ismethod(fn) and is_object(fn.__self__):
        return fn.__func__, (fn.__self__,)
    return fn, ()


def is_object(thing: Any) -> bool:
    """Returns True for an NNX object, which may be changed in place."""
    return isinstance(thing, nnx.Variable) or nnx.graphlib.is_graph_node(thing)


def check_changeable(name: str, tree: Any) -> None:
    """Checks that this trace may change the NNX objects in a tree.

    Flax would notice while the changes are written, and leave an object without its attributes.

    Raises:
        ArgumentTypeError: an object is from outside of this trace.
    """
    if _jax.is_outermost(()):
        return
    for thing in jax.tree.leaves(tree, is_leaf=is_object):
        for _, node in nnx.iter_graph(thing) if is_object(thing) else ():
            if isinstance(node, nnx.Variable):
                try:
                    node.set_raw_value(node.get_raw_value())  # changes nothing
                except TraceContextError as error:
                    raise ArgumentTypeError(
                        f"{name} is traced, and {type(thing).__name__} is from outside of the "
                        "trace, which cannot change it. Take it as an argument: nnx.jit(...) of "
                        f"duotone.nnx.autocast(lambda model, x: ...). {USE_NNX}; elsewhere pass a "
                        "function of the results of nnx.split(...)"
                    ) from error


def modules_in(tree: Any) -> list[nnx.Module]:
    """Returns the outermost modules in a tree."""
    objects = jax.tree.leaves(tree, is_leaf=is_object)
    return [thing for thing in objects if isinstance(thing, nnx.Module)]


def only_objects(tree: Any) -> Any:
    """Returns a tree with its NNX objects, and ``None`` for all other leaves."""
    return jax.tree.map(lambda x: x if is_object(x) else None, tree, is_leaf=is_object)


def split_objects(tree: Any) -> Any:
    """Returns a tree with each NNX object split into a static definition and arrays.

    Call it inside ``nnx.update_context``.
    """
    with nnx.split_context(TAG) as context:
        return split_in(context, tree)


def split_in(context: nnx.SplitContext, tree: Any) -> Any:
    """Calls :func:`split_objects` in an open context, which remembers the objects it has seen."""

    def split(thing: Any) -> Any:
        if not is_object(thing):
            return thing
        definition, leaves = context.flatten(thing, with_paths=False)
        return nnx.NodeStates.from_split(definition, [_as_array(leaf) for leaf in leaves])

    return jax.tree.map(split, tree, is_leaf=is_object)


def merge_objects(tree: Any, *, inner: bool) -> Any:
    """Returns a tree whose NNX objects are merged: new inside the trace, the user's outside.

    Args:
        tree: the result of :func:`split_objects`.
        inner: whether this call is inside the trace.
    """
    with nnx.merge_context(TAG, inner) as context:
        return merge_in(context, tree)


def merge_in(context: nnx.MergeContext, tree: Any) -> Any:
    """Merges as :func:`merge_objects` does, in an open context."""

    def merge(node: Any) -> Any:
        return context.unflatten(node.graphdef, *node.states) if _is_split(node) else node

    return jax.tree.map(merge, tree, is_leaf=_is_split)


def _is_split(node: Any) -> bool:
    return isinstance(node, nnx.NodeStates)


def _as_array(leaf: Any) -> Any:
    """Turns a number in a variable into an array: a static would compile a program per value."""
    return jnp.asarray(leaf) if isinstance(leaf, bool | int | float | complex) else leaf
