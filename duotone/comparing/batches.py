"""The batch among a function's arguments, and the largest one that fits."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from duotone.devices.mesh import sharding_of
from duotone.errors import ArgumentError, ArgumentTypeError, shown


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The positions of the arguments whose first axis is the batch, and its size."""

    positions: tuple[int, ...]
    size: int

    @property
    def others(self) -> tuple[int, ...]:
        """Other sizes to compile, in the order of trial."""
        return (2 * self.size, self.size // 2) if self.size > 1 else (2 * self.size,)

    def largest(self, memory: int, other: int, other_memory: int, limit: float) -> int | None:
        """Extrapolates the largest batch whose bytes are at most ``limit``; ``None`` for any.

        A call takes ``memory`` with this batch, and ``other_memory`` with one of size ``other``.
        """
        each = (other_memory - memory) / (other - self.size)
        if each <= 0:
            return None
        return max(int(self.size + (limit - memory) / each), 0)

    def resized(self, args: tuple[Any, ...], size: int) -> tuple[Any, ...]:
        """Returns the arguments with ``size`` examples; arrays of the batch become shapes."""
        return tuple(
            jax.tree.map(functools.partial(_resized, size=size), arg)
            if position in self.positions
            else arg
            for position, arg in enumerate(args)
        )


def batch_of(args: tuple[Any, ...], given: int | Sequence[int]) -> Batch:
    """Finds the batch among a function's arguments.

    Args:
        args: the arguments.
        given: positions of the arguments whose arrays all have the batch as first axis.

    Raises:
        ArgumentTypeError: ``given`` contains something other than integers.
        ArgumentError: there is no such argument, or the first axes of its arrays differ.
    """
    positions = tuple(given) if isinstance(given, Iterable) else (given,)
    if not positions or not all(type(position) is int for position in positions):
        raise ArgumentTypeError(
            f"compare: batch is {shown(given)}; pass the positions of the arguments whose first "
            "axis is the batch, as batch=2 or batch=(1, 2)"
        )
    sizes = set()
    for position in positions:
        if not 0 <= position < len(args):
            raise ArgumentError(
                f"compare: batch names argument {position}, and there are {len(args)}, counted "
                "from 0"
            )
        leaves = jax.tree.leaves(args[position])
        sizes |= {leaf.shape[0] if getattr(leaf, "ndim", 0) else None for leaf in leaves}
    if len(sizes) != 1 or None in sizes:
        found = ", ".join(map(str, sorted(sizes, key=str))) or "no arrays"
        raise ArgumentError(
            f"compare: the arrays of batch={shown(given)} differ in their first axis ({found}); "
            "name the arguments whose arrays all begin with the batch"
        )
    return Batch(positions, sizes.pop())


def _resized(leaf: Any, size: int) -> jax.ShapeDtypeStruct:
    shape = (size, *leaf.shape[1:])
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding_of(leaf))
