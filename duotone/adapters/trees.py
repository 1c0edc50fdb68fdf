"""Checks that two trees match: gradients and parameters, or a state and its optimizer.

Trees are compared by the names of their leaves, not by their node types: a ``FrozenDict`` of
gradients matches a ``dict`` of parameters, and a gradient of None matches an untrained leaf.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
from jax.tree_util import keystr, tree_leaves_with_path

from duotone.errors import ArgumentError, ArgumentTypeError, kind_of


def check_differentiable(params: Any, who: str = "compute_gradients") -> None:
    """Refuses parameters that have no gradient: integers, booleans, keys, functions, strings.

    Raises:
        ArgumentTypeError: names the leaf.
    """
    for path, leaf in tree_leaves_with_path(params):
        if isinstance(leaf, float | complex):
            continue
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
            kind = f"{kind_of(leaf)}" if dtype is None else f"of dtype {dtype}"
            raise ArgumentTypeError(
                f"{who}: leaf {_leaf_name('params', path)} is {kind}, which has no "
                "gradient. Pass it as a further argument of loss_fn, and the floating leaves as "
                "params: in Equinox eqx.partition(model, eqx.is_inexact_array), elsewhere a tree "
                "of its own. (optax.masked excludes leaves from the update, not from the "
                "gradient.)"
            )


def check_gradients(grads: Any, params: Any) -> int | None:
    """Refuses gradients of leaves that the parameters do not have, or of another shape.

    Returns:
        The number of gradients in each leaf, stacked along a first axis as for differential
        privacy; None if each leaf is one gradient, the usual case.

    Raises:
        ArgumentError: names the first leaf.
    """
    params = trained(params)
    if params is None:
        return None
    leaves = tree_leaves_with_path(grads)
    known = {keystr(path): leaf for path, leaf in tree_leaves_with_path(params)}
    examples = _examples(leaves, known)
    for path, grad in leaves:
        if keystr(path) not in known:
            raise ArgumentError(
                f"update: the gradients have leaf {_leaf_name('grads', path)}, which the "
                f"parameters do not have; theirs are {_some(known)}. Take the gradients with "
                "respect to these very parameters."
            )
        shapes = jnp.shape(grad), jnp.shape(known[keystr(path)])
        if examples is None and shapes[0] != shapes[1]:
            raise ArgumentError(
                f"update: the gradient at {_leaf_name('grads', path)} has shape {shapes[0]} and "
                f"the parameter {shapes[1]}. Take the gradients with respect to these very "
                "parameters, and reduce gradients of several devices or batches before."
            )
    return examples


def check_reduced(updates: Any, params: Any, examples: int) -> None:
    """Refuses an optimizer that makes one update out of each of several gradients.

    Raises:
        ArgumentError: names the first leaf.
    """
    known = {keystr(path): leaf for path, leaf in tree_leaves_with_path(trained(params))}
    for path, update in tree_leaves_with_path(updates):
        param = known.get(keystr(path), update)
        if jnp.shape(update) != jnp.shape(param):
            raise ArgumentError(
                f"update: every gradient has a first axis of {examples} that its parameter has "
                f"not, and the optimizer does not reduce it: its update at "
                f"{_leaf_name('updates', path)} has shape {jnp.shape(update)} and the parameter "
                f"{jnp.shape(param)}. Take the mean of the gradients over that axis before, or "
                "begin the optimizer with one that does, such as "
                "optax.contrib.differentially_private_aggregate."
            )


def check_every_gradient(grads: Any, params: Any) -> None:
    """Refuses parameters without a gradient.

    Raises:
        ArgumentError: names the first leaf.
    """
    have = {keystr(path) for path, _ in tree_leaves_with_path(grads)}
    for path, _ in tree_leaves_with_path(trained(params)):
        if keystr(path) not in have:
            raise ArgumentError(
                f"apply_gradients: leaf {_leaf_name('params', path)} of the parameters has no "
                f"gradient; the gradients have {_some(have)}. Take the gradients with respect to "
                "these very parameters. To freeze some of them, keep their gradients and use "
                "optax.multi_transform with optax.set_to_zero(), or leave them out of params."
            )


def check_same_leaves(expected: Any, inner: Any) -> None:
    """Refuses an optimizer state with other leaves than ``init`` makes.

    Raises:
        ArgumentError: names the first leaf that only one of them has.
    """
    mine, theirs = (
        {keystr(path): None for path, _ in tree_leaves_with_path(tree)}
        for tree in (expected, inner)
    )
    for has, lacks, text in (
        (mine, theirs, "this optimizer keeps {} and the state has none"),
        (theirs, mine, "the state has {}, which this optimizer does not keep"),
    ):
        for path in has:
            if path not in lacks:
                shown = text.format(f"state.inner{path}")
                raise ArgumentError(
                    f"the state was made by another optimizer: {shown}. Use the optimizer that "
                    "made it, or begin with opt.init(params) and keep the loss scale: "
                    "opt.init(params)._replace(loss_scale=state.loss_scale)."
                )


def _examples(leaves: Any, known: dict[str, Any]) -> int | None:
    """Returns the length of the first axis that all gradients have and no parameter has."""
    lengths = set()
    for path, grad in leaves:
        shape, param = jnp.shape(grad), known.get(keystr(path))
        if param is None or len(shape) == 0 or shape[1:] != jnp.shape(param):
            return None
        lengths.add(shape[0])
    return lengths.pop() if len(lengths) == 1 else None


def trained(params: Any) -> Any:
    """Returns the parameters that have gradients."""
    return params.fast if isinstance(params, optax.LookaheadParams) else params


def _leaf_name(name: str, path: Any) -> str:
    return f"{name}{keystr(path)}"


def _some(paths: Any) -> str:
    shown = [path or "(one array)" for path in list(paths)[:4]]
    return ", ".join(shown) + (" ..." if len(paths) > 4 else "") if shown else "none"
