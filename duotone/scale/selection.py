"""Keep or replace: one tree or the other, decided by a traced boolean.

``select_tree(finite, new, old)`` skips a step: parameters, optimizer state, step counters, PRNG
keys and anything else in the trees keep their old values. It accepts leaves of any dtype and never
converts one. A new value of another shape or dtype is an error here, because it would later cause a
recompilation or a loop carry of changing type.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from duotone.errors import ArgumentError, ArgumentTypeError


def select_tree(pred: Any, on_true: Any, on_false: Any) -> Any:
    """Returns `on_true` if `pred` is true, else `on_false`, leaf by leaf.

    Both trees are computed; infinities in the other tree do not leak into the result.

    Args:
        pred: ``bool[]`` (or a Python bool), usually from :func:`duotone.all_finite`.
        on_true: any pytree.
        on_false: a pytree of the same structure, whose leaves have the same shapes and dtypes.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ArgumentTypeError: `pred` is not a boolean scalar.
        ArgumentError: the trees differ in structure, or a leaf in shape, dtype or (where it is not
            an array) value; the message names the leaf.

    Example:
        >>> import jax.numpy as jnp, duotone
        >>> old = {"w": jnp.array([1.0, 2.0]), "step": jnp.array(3)}
        >>> new = {"w": jnp.array([jnp.nan, 2.5]), "step": jnp.array(4)}
        >>> duotone.select_tree(jnp.array(False), new, old)["w"].tolist()
        [1.0, 2.0]
    """
    pred = check_predicate(pred, "pred")
    chosen = [
        lax.select(pred, jnp.asarray(new), jnp.asarray(old)) if differs else new
        for new, old, differs in pairs(on_true, on_false)
    ]
    return tree_unflatten(jax.tree.structure(on_true), chosen)


def pairs(on_true: Any, on_false: Any) -> list[tuple[Any, Any, bool]]:
    """Returns the pairs of leaves of two trees, for :func:`select_tree`.

    Returns:
        For each leaf the new value, the old value, and whether a choice is needed: False if both
        are the same object or equal static values.

    Raises:
        ArgumentError: the trees differ, as for :func:`select_tree`.
    """
    paths_and_new, structure = tree_flatten_with_path(on_true)
    old, old_structure = tree_flatten(on_false)
    if structure != old_structure:
        raise ArgumentError(
            "select_tree needs two trees of the same structure, such as the parameters before and "
            f"after an update; {_first_difference(on_true, on_false)}."
        )
    return [
        (new, kept, _check_leaf(keystr(path), new, kept))
        for (path, new), kept in zip(paths_and_new, old, strict=True)
    ]


def check_predicate(pred: Any, name: str) -> jax.Array:
    """Returns the argument called `name` as ``bool[]``, or an error that says what it must be."""
    shape = getattr(pred, "shape", ())
    dtype = getattr(pred, "dtype", None)
    if isinstance(pred, bool) or (dtype == jnp.bool_ and shape == ()):
        return jnp.asarray(pred)
    found = type(pred).__name__ if dtype is None else f"{dtype}{list(shape)}"
    raise ArgumentTypeError(
        f"{name} must be one boolean, as all_finite(grads) gives; got {found}. "
        "Reduce an array of booleans with jnp.all, and compare a number explicitly."
    )


def _check_leaf(path: str, new: Any, old: Any) -> bool:
    """Checks if the two leaves need a choice; raises if a choice between them is impossible."""
    if new is old:
        return False
    if not (_is_array(new) and _is_array(old)):
        _check_same_static(path, new, old)
        return False
    new_type, old_type = jax.typeof(new), jax.typeof(old)
    if (new_type.shape, new_type.dtype) != (old_type.shape, old_type.dtype):
        raise ArgumentError(
            f"select_tree: leaf {path or '(the whole tree)'} is {new_type.str_short()} in on_true "
            f"and {old_type.str_short()} in on_false. Both must have one shape and dtype: convert "
            "the new value with .astype(old.dtype), or find what changed it."
        )
    return new_type.dtype != jax.dtypes.float0  # holds no information, and no operation takes it


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)


def _check_same_static(path: str, new: Any, old: Any) -> None:
    """Raises unless two leaves that are not arrays are equal: they cannot depend on a tracer."""
    if type(new) is type(old) and bool(new == old):
        return
    raise ArgumentError(
        f"select_tree: leaf {path or '(the whole tree)'} is {new!r} in on_true and {old!r} in "
        "on_false. Only arrays can be chosen inside a compiled step; make other leaves equal, or "
        "take them out of the trees."
    )


def _first_difference(on_true: Any, on_false: Any) -> str:
    new, old = (
        {keystr(path): None for path, _ in tree_flatten_with_path(tree)[0]}
        for tree in (on_true, on_false)
    )
    for here, there, name, other in (
        (new, old, "on_true", "on_false"),
        (old, new, "on_false", "on_true"),
    ):
        for path in here:
            if path not in there:
                leaf = f"leaf {path}" if path else "a single leaf"
                return f"{name} has {leaf}, which {other} does not have"
    structures = (jax.tree.structure(on_true), jax.tree.structure(on_false))
    return f"on_true is {structures[0]} and on_false is {structures[1]}"
