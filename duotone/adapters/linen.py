"""Flax Linen: a ``TrainState`` in mixed precision, whose step counter does not count skipped steps.

Linen's ``init`` and ``apply`` are pure functions, so :func:`duotone.autocast` and
``duotone.value_and_grad`` accept them directly. Only the training state needs an adapter:
``flax.training.train_state.TrainState`` adds one to ``step`` even if the step is skipped, and a
skipped step must not change other state (batch statistics) either.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax.numpy as jnp
import optax

from duotone.adapters.once import wrapped_once
from duotone.adapters.optax import MixedPrecisionOptimizer
from duotone.errors import ArgumentError, ArgumentTypeError, MissingExtraError, kind_of
from duotone.policy.calibration import Calibration
from duotone.policy.policy import Policy
from duotone.scale import (
    DynamicLossScale,
    FixedLossScale,
    LossScale,
    NoLossScale,
    ScaledGrad,
    select_tree,
)
from duotone.scale.optimizer_state import find

try:
    from flax import serialization, struct
    from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT
    from flax.training import train_state
except ImportError as error:
    raise MissingExtraError("duotone.linen", "flax", "flax") from error


class TrainState(train_state.TrainState):
    """``flax.training.train_state.TrainState`` in mixed precision.

    It has the same fields, ``create`` and ``apply_gradients``. You may subclass it to add fields.
    It serializes with ``flax.serialization`` and Orbax, and holds no traced values. A step whose
    gradients are not finite is skipped::

        @jax.jit
        def train_step(state, x, y):
            out = state.compute_gradients(loss_fn, x, y)
            return state.apply_gradients(grads=out), out.value

    Attributes:
        step: steps that were taken, ``int32[]``.
        apply_fn: usually ``model.apply``.
        params: the parameters.
        tx: a mixed-precision optimizer.
        opt_state: its state, which has the loss scale.

    Example:
        >>> import jax, jax.numpy as jnp, optax, flax.linen as nn
        >>> from duotone.linen import TrainState
        >>> model = nn.Dense(1)
        >>> x, y = jnp.ones((4, 2)), jnp.zeros((4, 1))
        >>> params = model.init(jax.random.key(0), x)["params"]
        >>> state = TrainState.create(
        ...     apply_fn=model.apply, params=params, tx=optax.sgd(0.1), dtype=jnp.float16)
        >>> def loss_fn(params, x, y):
        ...     return jnp.mean((model.apply({"params": params}, x) - y) ** 2)
        >>> out = state.compute_gradients(loss_fn, x, y)
        >>> state = state.apply_gradients(grads=out)
        >>> int(state.step), float(state.loss_scale.value)
        (1, 32768.0)
    """

    # This is a frozen dataclass, so no code can put a bare optimizer here through the base class.
    tx: MixedPrecisionOptimizer = struct.field(pytree_node=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    @classmethod
    def create(
        cls,
        *,
        apply_fn: Callable[..., Any],
        params: Any,
        tx: optax.GradientTransformation,
        loss_scale: Any = "dynamic",
        dtype: Any = None,
        policy: Policy | None = None,
        **kwargs: Any,
    ) -> Self:
        """Returns a state at step 0.

        Args:
            apply_fn: usually ``model.apply``.
            params: the parameters.
            tx: an Optax optimizer, which is wrapped as by
                :func:`duotone.enable_mixed_precision_graph_rewrite`, or a wrapped one.
            loss_scale: ``"dynamic"`` (scales in float16, not in bfloat16), a positive number,
                a loss-scale object, or None.
            dtype: the half type, as for :func:`duotone.autocast`.
            policy: as for :func:`duotone.autocast`.
            **kwargs: the fields of a subclass.

        Raises:
            ArgumentTypeError: ``tx`` is not an optimizer.
            ArgumentError: ``tx`` is wrapped already, and settings are given too; the parameters
                hold fp8 scales.
        """
        if isinstance(params, Mapping) and OVERWRITE_WITH_GRADIENT in params:
            raise ArgumentError(
                f"TrainState: params has {OVERWRITE_WITH_GRADIENT!r}, fp8 scales that Flax passes "
                "through the gradients; a loss scale would multiply them. Use "
                "flax.training.train_state.TrainState for fp8 models."
            )
        wrapped = wrapped_once(tx, loss_scale, dtype, policy, "TrainState")
        state = super().create(apply_fn=apply_fn, params=params, tx=wrapped, **kwargs)
        # This is an array from the beginning: if its type changed after the first step, JAX would
        # compile the step twice.
        state = state.replace(step=jnp.zeros((), jnp.int32))
        _make_serializable(type(state.loss_scale))
        return state

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale, with its arrays."""
        return self.tx.find_state(self.opt_state).loss_scale

    def compute_gradients(
        self, loss_fn: Callable[..., Any], /, *args: Any, has_aux: bool = False, **kwargs: Any
    ) -> ScaledGrad:
        """Computes the loss and its gradients in mixed precision, with the loss scaled inside.

        Args:
            loss_fn: called as ``loss_fn(params, *args, **kwargs)``; returns a floating scalar, or a
                pair ``(loss, aux)`` with ``has_aux``.
            *args: further arguments of ``loss_fn``.
            has_aux: whether ``loss_fn`` returns a pair.
            **kwargs: keyword arguments of ``loss_fn``.

        Returns:
            The loss, unscaled gradients, whether they are finite, and aux.

        Raises:
            ArgumentTypeError: ``loss_fn`` is not a function, or returns no floating loss or no
                pair with ``has_aux``; a parameter is not floating.
            ArgumentError: the loss is not a scalar.
        """
        return self.tx.compute_gradients(
            loss_fn, self.params, self.opt_state, *args, has_aux=has_aux, **kwargs
        )

    def calibrate(
        self, loss_fn: Callable[..., Any], /, *args: Any, has_aux: bool = False, **kwargs: Any
    ) -> Calibration:
        """Measures a batch, and paints later steps by it; see ``calibrate`` of the optimizer.

        Args:
            loss_fn: as for :meth:`compute_gradients`.
            *args: further arguments of ``loss_fn``: one batch.
            has_aux: whether ``loss_fn`` returns a pair.
            **kwargs: keyword arguments of ``loss_fn``.

        Returns:
            The measurements on all batches so far; print it for a table.

        Raises:
            ArgumentError: the optimizer rewrites nothing.
            CalibrationError: the batch contains NaN.
        """
        return self.tx.calibrate(
            loss_fn, self.params, self.opt_state, *args, has_aux=has_aux, **kwargs
        )

    def apply_gradients(self, *, grads: Any, **kwargs: Any) -> Self:
        """Returns the state after a step; a skipped step changes only the loss scale.

        Args:
            grads: the result of :meth:`compute_gradients`, or a tree of unscaled gradients.
            **kwargs: fields to replace, such as ``batch_stats``. A field of arrays keeps its old
                value when the step is skipped.

        Returns:
            The new state.

        Raises:
            ArgumentError: the gradients belong to other parameters; a replaced field has another
                structure, shape or dtype than before.
            ArgumentTypeError: ``kwargs`` names no field, or ``step``, ``params`` or ``opt_state``.
        """
        self._check_fields(kwargs)
        params, opt_state = self.tx.apply_gradients(grads, self.params, self.opt_state)
        taken = find(opt_state, "TrainState.apply_gradients").last_finite
        traced = {f.name for f in dataclasses.fields(self) if f.metadata.get("pytree_node", True)}
        kept = {
            name: select_tree(taken, new, getattr(self, name)) if name in traced else new
            for name, new in kwargs.items()
        }
        return self.replace(
            step=jnp.where(taken, self.step + 1, self.step),
            params=params,
            opt_state=opt_state,
            **kept,
        )

    def metrics(self) -> dict[str, float | int | bool | str]:
        """Returns the loss scale and the counts of steps, as numbers on the host."""
        return self.tx.metrics(self.opt_state)

    def _check_fields(self, replaced: dict[str, Any]) -> None:
        own = {"step", "params", "opt_state"}
        names = {field.name for field in dataclasses.fields(self)} - own
        for name in replaced:
            if name not in names:
                raise ArgumentTypeError(
                    f"apply_gradients: {name!r} is not a field that a step can replace; there are "
                    f"{', '.join(sorted(names))}. Subclass TrainState to hold more, and use "
                    "state.replace(...) for what does not depend on the step."
                )


def _make_serializable(kind: type[LossScale]) -> None:
    """Tells ``flax.serialization`` how a class of loss scales is saved: its arrays, by name."""

    def to_dict(loss_scale: Any) -> dict[str, Any]:
        return {
            field.name: serialization.to_state_dict(getattr(loss_scale, field.name))
            for field in dataclasses.fields(loss_scale)
            if not field.metadata.get("static", False)
        }

    def from_dict(target: Any, saved: dict[str, Any]) -> Any:
        expected = to_dict(target)
        if set(saved) != set(expected):
            raise ArgumentError(
                f"the saved loss scale has {sorted(saved)} and {kind_of(target)} has "
                f"{sorted(expected)}; restore it into a state with the loss scale it was saved with"
            )
        restored = {
            name: serialization.from_state_dict(getattr(target, name), value, name=name)
            for name, value in saved.items()
        }
        return dataclasses.replace(target, **restored)

    if dataclasses.is_dataclass(kind):
        serialization.register_serialization_state(kind, to_dict, from_dict, override=True)


for _kind in (DynamicLossScale, FixedLossScale, NoLossScale):
    _make_serializable(_kind)
