"""The forms of a function that ``duotone.compare`` puts side by side, each with its arguments.

Who calls this: :mod:`duotone._comparing`. What goes wrong: arguments that are no batch are errors
that name them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from duotone import api
from duotone.errors import ArgumentError, ArgumentTypeError, shown
from duotone.jaxpr.reading.signature import describe_callable, flatten_call
from duotone.jaxpr.reading.trace import trace
from duotone.policy import Policy
from duotone.targets.assumed import AssumedDevice, assumed, assuming
from duotone.targets.comparison import DUOTONE, FLOAT32, WRITTEN

ANY_DEVICE = AssumedDevice("any", "cpu")
"""For what is the same on every device."""


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """A function and the arguments of one call."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.args, self.kwargs


def forms(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dtype: Any,
    policy: Policy | None,
) -> dict[str, Form]:
    """The function with duotone off, as it is, and with autocast."""
    settings = api.settings_of(step)
    function, given, mixed = step, args, step
    if settings is not None and settings.weights is not None:
        if dtype is not None or policy is not None:
            raise ArgumentError(
                "compare: the function was made with weights=, for one dtype and policy; leave "
                "dtype and policy out"
            )
        function, given = settings.function, (settings.weights.stand_in, *args)
    elif settings is None or settings.off or dtype is not None or policy is not None:
        inner = step
        if settings is not None:
            inner = settings.function
            dtype = settings.dtype if dtype is None and not settings.off else dtype
            policy = settings.policy if policy is None else policy
        mixed = api.autocast(inner, dtype=dtype, policy=policy)
    return {
        FLOAT32: Form(_without_duotone(function), given, kwargs),
        WRITTEN: Form(step, args, kwargs),
        DUOTONE: Form(mixed, args, kwargs),
    }


def _without_duotone(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function in which nothing is rewritten, not inside of it either."""

    @functools.wraps(function, updated=())
    def plainly(*args: Any, **kwargs: Any) -> Any:
        with assuming(dataclasses.replace(assumed() or ANY_DEVICE, rewrites=False)):
            return function(*args, **kwargs)

    return plainly


def traced(form: Form) -> Any:
    arrays, signature = flatten_call(describe_callable(form.function), *form.call)
    return trace(form.function, signature, arrays)


def bytes_of(aval: Any) -> int:
    """Bytes of an array; 0 of what has no fixed size."""
    size, dtype = getattr(aval, "size", 0), getattr(aval, "dtype", None)
    return size * getattr(dtype, "itemsize", 0) if isinstance(size, int) else 0


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The arguments of a function whose first axis is the batch.

    Attributes:
        positions: of those arguments.
        size: examples in them.
    """

    positions: tuple[int, ...]
    size: int

    @property
    def others(self) -> tuple[int, ...]:
        """Sizes to compile beside it, in the order in which they are tried."""
        return (2 * self.size, self.size // 2) if self.size > 1 else (2 * self.size,)

    def largest(self, memory: int, other: int, other_memory: int, limit: float) -> int | None:
        """The largest batch that fits, if memory grows evenly with it; ``None`` if it does not.

        Args:
            memory: bytes that one call needs.
            other: another size of the batch.
            other_memory: bytes that it needs.
            limit: bytes that there are.
        """
        each = (other_memory - memory) / (other - self.size)
        if each <= 0:
            return None
        return max(int(self.size + (limit - memory) / each), 0)

    def resized(self, args: tuple[Any, ...], size: int) -> tuple[Any, ...]:
        """The arguments with so many examples, as shapes."""
        return tuple(
            jax.tree.map(functools.partial(_resized, size=size), arg)
            if position in self.positions
            else arg
            for position, arg in enumerate(args)
        )


def batch_of(args: tuple[Any, ...], given: int | Sequence[int]) -> Batch:
    """The batch among a function's arguments.

    Args:
        args: the arguments.
        given: positions of those whose arrays all have the batch as first axis.

    Raises:
        ArgumentTypeError: ``given`` holds no integers.
        ArgumentError: there is no such argument, or its arrays have not one first axis.
    """
    positions = (given,) if isinstance(given, int) else tuple(given)
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
            f"compare: the arrays of batch={shown(given)} have not one first axis ({found}); name "
            "the arguments whose arrays all begin with the batch"
        )
    return Batch(positions, sizes.pop())


def _resized(leaf: Any, size: int) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    named = sharding if isinstance(sharding, jax.sharding.NamedSharding) else None
    return jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype, sharding=named)
