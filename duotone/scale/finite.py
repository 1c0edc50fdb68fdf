"""The finite check: is every number in a tree finite, and do all devices agree on the answer?

* With ``check_vma=True`` (the default of ``shard_map``), the type of the answer has the axes along
  which it can vary. The check reads them and agrees over them.
* With ``check_vma=False``, ``pmap`` and ``vmap(..., axis_name=...)``, the type does not have the
  axes, so the caller names the axis: ``all_finite(grads, axis_name="data")``. Gradients that were
  already averaged over the axis (``lax.pmean``) are equal on all devices and need no name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from duotone.errors import ArgumentTypeError
from duotone.policy.regions import updating
from duotone.scale.leaves import is_inexact

AxisName = str | Sequence[str]


def all_finite(tree: Any, *, axis_name: AxisName | None = None) -> jax.Array:
    """Returns True if no floating or complex leaf of a tree has an infinity or NaN.

    It passes once over each leaf in its own dtype, without a cast or a copy.

    Args:
        tree: any pytree; integers, booleans, float0, PRNG keys and None are ignored.
        axis_name: mapped axes over which all devices must agree (one name or several). None agrees
            over the axes along which the type of the answer varies (``shard_map`` with
            ``check_vma=True``), and over no axis elsewhere. With ``()`` devices never agree: each
            has its own answer, as for a population of models.

    Returns:
        ``bool[]``; True for a tree without floating leaves.

    Raises:
        ArgumentTypeError: `axis_name` is not a name or a sequence of names.

    Example:
        >>> import jax.numpy as jnp, duotone
        >>> bool(duotone.all_finite({"w": jnp.ones(3, jnp.float16), "step": 7}))
        True
        >>> bool(duotone.all_finite({"w": jnp.array([1.0, jnp.inf])}))
        False
    """
    axes = check_axis_name(axis_name)
    with updating():
        checks = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree) if is_inexact(leaf)]
        finite = reduce(jnp.logical_and, checks) if checks else jnp.asarray(True)
        axes = _varying_axes(finite) if axes is None else axes
        return lax.pmin(finite.astype(jnp.int32), axes) > 0 if axes else finite


def unfollowed_axes() -> list[str]:
    """Returns the manual mesh axes that types do not track, along which devices may disagree."""
    # An axis index varies along its axis by definition, so its type shows whether JAX tracks it.
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return [name for name in manual if name not in jax.typeof(lax.axis_index(name)).mat.varying]


def same_everywhere(array: Any) -> bool:
    """Returns True if an array is known to be equal on all devices."""
    return not _varying_axes(jnp.asarray(array)) and not unfollowed_axes()


def check_axis_name(axis_name: Any) -> tuple[str, ...] | None:
    """Returns the axis names as a tuple, or None to read them from the type."""
    if axis_name is None:
        return None
    names = (axis_name,) if isinstance(axis_name, str) else axis_name
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(
            f"axis_name must be the name of a mapped axis or a sequence of names, as in "
            f'axis_name="data"; got {axis_name!r} of type {type(axis_name).__name__}.'
        )
    return tuple(names)


def _varying_axes(array: jax.Array) -> tuple[str, ...]:
    """Returns the manual mesh axes along which the type says that an array may differ."""
    return tuple(sorted(jax.typeof(array).mat.varying))
