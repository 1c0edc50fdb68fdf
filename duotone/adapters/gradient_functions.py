"""Caches the rewritten, scaled gradients of loss functions while the loss functions are alive.

The first call of a rewritten function compiles it, so ``opt.compute_gradients(loss_fn, ...)`` must
find the same function in the next step. The cached function has a weak reference to `loss_fn` and
is dropped with it. The reference is always alive during a call, since the caller has `loss_fn`.
"""

from __future__ import annotations

import logging
import types
import weakref
from collections.abc import Callable
from typing import Any

from duotone._checks import check_switch
from duotone.policy.arguments import without_heal
from duotone.policy.dtypes import OFF
from duotone.policy.policy import Policy
from duotone.scale import ScaledGrad, scaled_value_and_grad
from duotone.transforms.autocast import autocast

logger = logging.getLogger("duotone")

_MANY = 16
MOST_KEPT = 64


class Borrowed:
    """A callable with a weak reference to a function, if Python allows one, and with its name."""

    def __init__(self, fn: Callable[..., Any], forget: Callable[[Any], Any]) -> None:
        self._get = _reference(fn, forget)
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)

    @property
    def __wrapped__(self) -> Any:
        return self._get()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        return self._get()(*args, **kwargs)


def _reference(fn: Any, forget: Callable[[Any], Any]) -> Callable[[], Any]:
    """Returns a reference to a function: weak, unless Python allows only a strong one."""
    try:
        if isinstance(fn, types.MethodType):
            return weakref.WeakMethod(fn, forget)
        return weakref.ref(fn, forget)
    except TypeError:  # allows no weak references: kept until newer functions replace it
        return lambda: fn


class GradientFunctions:
    """Rewritten gradients of loss functions, by function.

    Args:
        dtype: the half type, as for :func:`duotone.autocast`.
        policy: which operations may be painted, as for :func:`duotone.autocast`.
        axes: mapped axes over which the finite check agrees, or None.
        rewrite: whether they are rewritten at all. If ``dtype`` is float32, they are switched off,
            and an outer rewrite does not change them either.

    Attributes:
        policy: the policy of the next rewrite.
        handed_out: whether one of them became part of a larger program, which keeps its painting.
    """

    def __init__(
        self, dtype: Any, policy: Policy | None, axes: tuple[str, ...] | None, rewrite: bool = True
    ) -> None:
        self._dtype, self._axes, self._rewrite = dtype, axes, rewrite
        self.policy = policy
        self._painting = 0
        self.handed_out = False
        self._kept: dict[Any, tuple[Borrowed, Callable[..., ScaledGrad]]] = {}
        self._compiled = 0

    def of(self, loss_fn: Any, has_aux: bool, *, traced: bool) -> Callable[..., ScaledGrad]:
        """Returns ``autocast(scaled_value_and_grad(loss_fn, …))``, each time the same object.

        Raises:
            ArgumentTypeError: `loss_fn` is not callable.
        """
        check_switch("compute_gradients", "has_aux", has_aux)
        self.handed_out |= traced
        # Reads the count before the policy, because a healer writes the policy before the count.
        key = (*identity(loss_fn), bool(has_aux), self._painting)
        policy = self.policy
        kept = self._kept.get(key)
        if kept is not None and kept[0].__wrapped__ is not None:  # alive, so it is the same object
            return kept[1]
        if not callable(loss_fn):
            scaled_value_and_grad(loss_fn)  # raises the error for this
        borrowed = Borrowed(loss_fn, lambda _: self._kept.pop(key, None))
        function = scaled_value_and_grad(borrowed, has_aux=bool(has_aux), axis_name=self._axes)
        if self._rewrite or self._dtype == OFF:
            function = autocast(function, dtype=self._dtype, policy=without_heal(policy))
        self._kept[key] = (borrowed, function)
        while len(self._kept) > MOST_KEPT:
            self._kept.pop(next(iter(self._kept)), None)
        if not traced:
            self._count(borrowed.__name__)
        return function

    def repaint(self, policy: Policy) -> None:
        """Uses another policy for all later rewrites."""
        self.policy = policy
        self._painting += 1
        self._kept.clear()
        self.handed_out = False

    def _count(self, name: str) -> None:
        self._compiled += 1
        if self._compiled == _MANY:
            logger.warning(
                "compute_gradients was given %d different loss functions, the last one %s, and "
                "compiled each. If every step makes a new one (a lambda or functools.partial "
                "in the loop), define it once outside and pass what changes as arguments; or put "
                "the whole step into jax.jit.",
                self._compiled,
                name,
            )


def identity(fn: Any) -> tuple[int, int]:
    """Returns a key for a function; Python makes a new bound method at every access."""
    if isinstance(fn, types.MethodType):
        return id(fn.__self__), id(fn.__func__)
    return id(fn), 0
