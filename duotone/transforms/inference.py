"""Casts weights to half once, for inference.

``cast_params`` makes the record that ``autocast(fn, weights=...)`` takes. Both plan with
:class:`duotone.transforms.static_weights.WeightsRunner`, so a record fits its function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duotone.devices.assumed import assumed
from duotone.policy.policy import Policy
from duotone.transforms import autocast as api
from duotone.transforms.static_weights import CastParams, WeightsRunner


def cast_params(
    fn: Callable[..., Any],
    params: Any,
    *args: Any,
    dtype: Any = None,
    policy: Policy | None = None,
    **kwargs: Any,
) -> CastParams:
    """Casts the weights that a function reads in half only.

    For inference: ``autocast(fn, weights=cast_params(fn, params, ...))`` runs the same operations
    as ``autocast(fn)(params, ...)`` and keeps no float32 copy of the cast weights.

    Args:
        fn: the function; its first argument is the weights.
        params: the weights, a pytree of arrays.
        *args: its other arguments: arrays or ``jax.ShapeDtypeStruct``.
        dtype: as for :func:`autocast`.
        policy: as for :func:`autocast`.
        **kwargs: its keyword arguments. For a function that has one named ``dtype`` or ``policy``
            itself, pass ``functools.partial(fn, dtype=...)``.

    Returns:
        A record with the weights in ``.params``.

    Raises:
        ArgumentTypeError, ArgumentError: as for :func:`autocast` with ``weights``.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> def predict(params, x):
        ...     return x @ params["w"] + params["b"]
        >>> params = {"w": jnp.ones((8, 4)), "b": jnp.zeros(4)}
        >>> x = jnp.ones((2, 8))
        >>> duotone.cast_params(predict, params, x, dtype=jnp.bfloat16)
        CastParams(1 of 2 arrays in bfloat16, 144 bytes before, 80 after)
    """
    api.check_settings("cast_params", dtype, policy)
    fast = api.autocast(fn, dtype=dtype, policy=policy, weights=params)
    settings = api.settings_of(fast)
    assert settings is not None
    runner = settings.run(assumed())
    if not isinstance(runner, WeightsRunner):  # no half type is fast here
        assert settings.weights is not None
        cast, names, half = settings.weights.full(), frozenset[str](), None
    else:
        (cast, names), half = runner.record(args, kwargs), runner.half
    return CastParams(cast, names, half, settings.chosen, settings.policy)


def with_weights(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Adds the weights of a function made with ``weights`` to the arguments of a call.

    Lowering the function itself would make its weights constants. Other functions are returned
    unchanged.
    """
    settings = api.settings_of(fn)
    runner = None if settings is None else settings.run(assumed())
    if not isinstance(runner, WeightsRunner):
        return fn, args, kwargs
    program, arrays = runner.program(args, kwargs)
    return program, tuple(arrays), {}
