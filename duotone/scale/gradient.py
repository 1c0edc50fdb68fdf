"""Differentiates a scaled loss; returns the loss and the unscaled gradients.

The order of operations matters::

    loss, aux  = loss_fn(...)
    scaled     = used.scale(loss)        # in float32, used = loss_scale.limited_to(loss.dtype)
    grads      = used.unscale(d scaled)  # in float32, with the same scale
    finite     = all_finite(grads)

The returned loss is the one that ``loss_fn`` computed, not a scaled loss divided by the scale.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from duotone.errors import ArgumentError, ArgumentTypeError, shown
from duotone.scale.finite import AxisName, all_finite, check_axis_name
from duotone.scale.state import LossScale

_NO_TREE = (
    "a ScaledGrad is neither a tree of gradients nor a pair (loss, gradients). Pass the ScaledGrad "
    "itself only to code that can skip a step: duotone.linen.TrainState instead of Flax's, or the "
    "methods of the wrapped optimizer. Elsewhere pass out.grads, its unscaled gradients, and read "
    "out.value and out.aux."
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ScaledGrad:
    """The result of ``compute_gradients`` of a wrapped optimizer; a pytree.

    Attributes:
        value: the loss as ``loss_fn`` returned it, unscaled, in its own dtype.
        grads: unscaled gradients, in the structure of the differentiated arguments; half
            gradients as float32.
        finite: ``bool[]``, whether every gradient is finite.
        aux: the auxiliary output of ``loss_fn``; None without ``has_aux``.
    """

    value: jax.Array
    grads: Any
    finite: jax.Array
    aux: Any = None

    def __iter__(self) -> NoReturn:
        raise ArgumentTypeError(_NO_TREE)

    def __contains__(self, name: object) -> NoReturn:
        raise ArgumentTypeError(_NO_TREE)  # a Flax TrainState calls this first


def scaled_value_and_grad(
    loss_fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    allow_int: bool = False,
    axis_name: AxisName | None = None,
) -> Callable[..., ScaledGrad]:
    """Returns the gradient of a loss function; each call takes a loss scale.

    This rewrites nothing: the optimizer wrappers apply :func:`duotone.autocast` to it. Users call
    :func:`duotone.value_and_grad`.

    A float16 loss is scaled by at most 2**15, whatever the value of the loss scale, because its
    gradient is float16 too (see :meth:`LossScale.limited_to`). The gradients are divided by the
    same number.

    Args:
        loss_fn: returns a floating scalar, or a pair ``(loss, aux)`` with `has_aux`.
        argnums: the arguments of `loss_fn` to differentiate, counted from 0 without the loss scale.
        has_aux: whether `loss_fn` returns a pair.
        allow_int: whether integer arguments may be differentiated (their gradients are float0).
        axis_name: mapped axes over which all devices must agree on ``finite``; see
            :func:`all_finite`.

    Returns:
        A function ``(loss_scale, *args, **kwargs) -> ScaledGrad``.

    Raises:
        ArgumentTypeError: `loss_fn` is not callable, `argnums` or `axis_name` has the wrong type.
            On a call: `argnums` points past the arguments, or the loss is not floating.
        ArgumentError: `argnums` is empty. On a call: the loss is not a scalar.

    Example:
        >>> import jax.numpy as jnp
        >>> from duotone.scale import DynamicLossScale, scaled_value_and_grad
        >>> grad_fn = scaled_value_and_grad(lambda w, x: jnp.sum(w * x))
        >>> out = grad_fn(DynamicLossScale(), jnp.ones(2, jnp.float16), jnp.float16([0.5, 5e-8]))
        >>> out.value.dtype, out.grads.dtype, bool(out.finite)
        (dtype('float16'), dtype('float32'), True)
    """
    axes = check_axis_name(axis_name)
    parts = scaled_parts(loss_fn, argnums, has_aux, allow_int=allow_int)

    def grad_fn(loss_scale: LossScale, /, *args: Any, **kwargs: Any) -> ScaledGrad:
        loss, aux, grads = parts(loss_scale, *args, **kwargs)
        return ScaledGrad(loss, grads, all_finite(grads, axis_name=axes), aux)

    return with_loss_scale_first("value_and_grad", loss_fn, grad_fn)


def scaled_parts(
    loss_fn: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    *,
    allow_int: bool,
    what: str = "loss_fn",
) -> Callable[..., tuple[jax.Array, Any, Any]]:
    """Calls :func:`scaled_value_and_grad` without the check of the gradients.

    Returns:
        A function ``(loss_scale, *args, **kwargs) -> (loss, aux, gradients)``.
    """
    if not callable(loss_fn):
        raise ArgumentTypeError(
            f"loss_fn must be a function that returns the loss; got {shown(loss_fn)}. "
            "Pass the function itself, not its result."
        )
    positions = check_argnums("argnums", argnums)

    def parts(loss_scale: LossScale, /, *args: Any, **kwargs: Any) -> tuple[jax.Array, Any, Any]:
        check_reach("argnums", positions, len(args))

        def scaled_loss(*args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, Any]]:
            loss, aux = _split(f"{what} {_describe(loss_fn)}", has_aux, loss_fn(*args, **kwargs))
            return loss_scale.limited_to(loss.dtype).scale(loss), (loss, aux)

        gradient = jax.value_and_grad(scaled_loss, positions, has_aux=True, allow_int=allow_int)
        (_, (loss, aux)), scaled = gradient(*args, **kwargs)
        # Recomputes the limit instead of using the one from `scaled_loss`, because a tracer
        # must not leave the differentiated function. Both are the same operations on the same
        # numbers.
        return loss, aux, loss_scale.limited_to(loss.dtype).unscale(scaled)

    return parts


def with_loss_scale_first(
    name: str, loss_fn: Callable[..., Any], grad_fn: Callable[..., Any]
) -> Callable[..., Any]:
    """Gives a function a name, and the signature that ``jit(static_argnames=...)`` reads.

    ``functools.wraps`` would show the signature of `loss_fn`, without the loss scale, and ``jit``
    would make the wrong argument static.
    """
    own = getattr(loss_fn, "__name__", type(loss_fn).__name__)
    grad_fn.__name__ = grad_fn.__qualname__ = f"{name}_of_{own}"
    grad_fn.__doc__ = f"Scaled {name} of {_describe(loss_fn)}."
    try:
        signature = inspect.signature(loss_fn)
    except (TypeError, ValueError):  # some callables implemented in C have none
        return grad_fn
    first = "loss_scale"
    while first in signature.parameters:
        first += "_"
    parameter = inspect.Parameter(first, inspect.Parameter.POSITIONAL_ONLY)
    vars(grad_fn)["__signature__"] = signature.replace(
        parameters=[parameter, *signature.parameters.values()],
        return_annotation=inspect.Signature.empty,
    )
    return grad_fn


def check_argnums(name: str, argnums: Any) -> int | tuple[int, ...]:
    """Checks the positions to differentiate, as for ``jax.grad``.

    Raises:
        ArgumentTypeError: it is neither.
        ArgumentError: there is none.
    """
    try:
        positions = _index(argnums)
    except TypeError:
        try:
            positions = tuple([_index(number) for number in argnums])
        except TypeError:
            raise ArgumentTypeError(
                f"{name} must be an integer or a tuple of integers, the positions of the arguments "
                f"to differentiate; got {argnums!r}."
            ) from None
    if positions == ():
        raise ArgumentError(f"{name} is empty: name at least one argument, such as 0.")
    return positions


def _index(number: Any) -> int:
    if isinstance(number, bool):
        raise TypeError
    return operator.index(number)


def check_reach(name: str, argnums: int | tuple[int, ...], count: int) -> None:
    """Refuses positions beyond the arguments of a call.

    Raises:
        ArgumentTypeError: there are too few.
    """
    positions = argnums if isinstance(argnums, tuple) else (argnums,)
    if any(not -count <= position < count for position in positions):
        raise ArgumentTypeError(
            f"{name}={argnums} points past the {count} positional argument(s) of this call. "
            "Positions count from 0, and an argument to differentiate must be passed by position."
        )


def _split(loss_fn: str, has_aux: bool, output: Any) -> tuple[jax.Array, Any]:
    """Returns the loss as an array and the auxiliary output; an error names the function."""
    aux, is_pair = None, isinstance(output, tuple | list) and len(output) == 2
    if has_aux:
        if not is_pair:
            raise ArgumentTypeError(
                f"{loss_fn} must return a pair (loss, aux) because has_aux is "
                f"True; it returned {shown(output)}."
            )
        output, aux = output
    if not isinstance(output, bool | int | float | complex) and not hasattr(output, "dtype"):
        hint = " If it returns (loss, aux), pass has_aux=True." if is_pair else ""
        raise ArgumentTypeError(
            f"{loss_fn} must return one floating scalar, the loss; it returned "
            f"{shown(output)}.{hint}"
        )
    loss = jnp.asarray(output)
    if loss.shape != ():
        raise ArgumentError(
            f"{loss_fn} must return a scalar loss; it returned shape "
            f"{loss.shape}. Reduce it, usually with jnp.mean (or [0] for one element)."
        )
    if not jnp.issubdtype(loss.dtype, jnp.floating):
        raise ArgumentTypeError(
            f"{loss_fn} must return a floating loss; it returned {loss.dtype}. "
            "Take the real part of a complex loss; an integer has no gradient."
        )
    return loss, aux


def _describe(fn: Callable[..., Any]) -> str:
    """Returns the name of a function and, if Python knows them, its file and line."""
    name = getattr(fn, "__name__", type(fn).__name__)
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"'{name}'" if code is None else f"'{name}' ({code.co_filename}:{code.co_firstlineno})"
