"""An Optax optimizer that scales, rewrites and skips, and is still an Optax optimizer.

::

    opt = duotone.enable_mixed_precision_graph_rewrite(optax.adam(1e-3))
    state = opt.init(params)

    @jax.jit
    def step(params, state, batch):
        return opt.minimize(loss_fn, params, state, batch)

``minimize`` is ``compute_gradients`` and ``apply_gradients``::

    compute_gradients:  autocast(scaled_value_and_grad(loss_fn))(state.loss_scale, params, ...)
    apply_gradients:    update, optax.apply_updates
    update:             inner.update; nothing of it stays if a gradient is not finite;
                        the loss scale is adjusted

``update`` takes *unscaled* gradients, as every optimizer does, so the wrapped one goes into chains,
masks and schedules, and these go into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from jax.core import Tracer

from duotone.adapters import ENABLE
from duotone.adapters.trees import check_differentiable, check_every_gradient
from duotone.adapters.wrapped import Minimized, Wrapped, refuse_other_state
from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.policy.arguments import is_off
from duotone.policy.calibration import Calibration
from duotone.policy.dtypes import OFF
from duotone.policy.policy import Policy
from duotone.scale import NoLossScale, ScaledGrad
from duotone.scale.choice import check_loss_scale
from duotone.scale.finite import AxisName, check_axis_name
from duotone.scale.monitor import StuckAlarm
from duotone.scale.optimizer_state import MixedPrecisionState, check, is_concrete, read
from duotone.scale.skip import check_agreement, in_dtypes_of
from duotone.transforms import autocast as api


def wrap(
    optimizer: Any,
    loss_scale: Any = "dynamic",
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    axis_name: AxisName | None = None,
    rewrite: bool = True,
    scale: bool = True,
) -> MixedPrecisionOptimizer:
    """Wraps an Optax optimizer; see :func:`duotone.enable_mixed_precision_graph_rewrite`.

    No device is asked before ``init``.

    Args:
        optimizer: an Optax optimizer, or any object with ``init`` and ``update``.
        loss_scale: ``"dynamic"``, a positive number, a loss-scale object, or None.
        dtype: ``float16``, ``bfloat16``, None to ask the device, or ``float32``: off, as without
            rewriting and with no loss scale.
        policy: what may be painted.
        axis_name: mapped axes over which all devices must agree; see :func:`duotone.all_finite`.
        rewrite: whether loss functions are rewritten; else the loss is only scaled.
        scale: whether the loss is scaled; if not, the state keeps `loss_scale` unused.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: an argument is out of range, or the optimizer is wrapped already.
    """
    if isinstance(optimizer, MixedPrecisionOptimizer):
        raise ArgumentError(
            f"{ENABLE}: the optimizer is wrapped already; the loss would be scaled twice. Use it "
            "as it is, or wrap the bare optimizer once with the settings you want."
        )
    api.check_settings(ENABLE, dtype, policy)
    axes = check_axis_name(axis_name)
    checked = check_loss_scale(loss_scale)
    if is_off(ENABLE, dtype):
        dtype, rewrite, scale = OFF, False, False
    wrapped = Wrapped(optimizer, checked, dtype, policy, axes, rewrite, scale)
    return MixedPrecisionOptimizer(wrapped.init, wrapped.update)


class MixedPrecisionOptimizer(optax.GradientTransformationExtraArgs):
    """An Optax optimizer that trains in mixed precision.

    Made by :func:`duotone.enable_mixed_precision_graph_rewrite`. It has ``init`` and ``update`` as
    every Optax optimizer, and the methods below. ``update`` takes unscaled gradients or a
    :class:`ScaledGrad`; a step whose gradients are not finite leaves parameters and the inner state
    as they were, and is counted.

    Example:
        >>> import jax, jax.numpy as jnp, optax, duotone
        >>> from duotone.adapters.optax import wrap
        >>> opt = wrap(optax.sgd(0.5), dtype=jnp.float16)
        >>> params = jnp.zeros(2)
        >>> done = opt.minimize(lambda p: jnp.sum((p - 1) ** 2), params, opt.init(params))
        >>> done.params.tolist(), float(done.loss), opt.metrics(done.state)["loss_scale"]
        ([1.0, 1.0], 2.0, 32768.0)
    """

    # A plain named tuple of two functions, because JAX takes tuples apart and puts them together
    # (Equinox does so with modules that hold an optimizer); all else is found from `init`.
    __slots__ = ()

    # Optax's states are any trees of arrays to a type checker; this one's has names.
    init: Callable[[Any], Any]  # pyright: ignore[reportIncompatibleVariableOverride]
    update: Callable[..., tuple[Any, Any]]  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def _wrapped(self) -> Wrapped:
        owner = getattr(self.init, "__self__", None)
        if not isinstance(owner, Wrapped):
            raise ArgumentTypeError(
                "this MixedPrecisionOptimizer was made by hand from two functions; make it with "
                "duotone.enable_mixed_precision_graph_rewrite(optax.adam(1e-3))."
            )
        return owner

    @property
    def alarm(self) -> StuckAlarm:
        """The one warning of :meth:`metrics` and ``LossScaleMonitor``."""
        return self._wrapped.alarm

    @property
    def pins(self) -> tuple[str, ...]:
        """Patterns of what is kept full, those that were healed too; save them with checkpoints."""
        policy = self._wrapped.policy
        return () if policy is None else policy.keep_full

    def compute_gradients(
        self,
        loss_fn: Callable[..., Any],
        params: Any,
        state: Any,
        /,
        *args: Any,
        has_aux: bool = False,
        **kwargs: Any,
    ) -> ScaledGrad:
        """Loss and gradients in mixed precision: scaled inside, unscaled in float32 outside.

        The whole of it is rewritten, forward and backward. Outside ``jit`` the rewritten program is
        compiled once for each `loss_fn` and kept while that lives.

        Args:
            loss_fn: called as ``loss_fn(params, *args, **kwargs)``; returns a floating scalar, or a
                pair ``(loss, aux)`` with `has_aux`.
            params: what to differentiate by; floating leaves only.
            state: of this optimizer, or of one around it.
            *args: further arguments of `loss_fn`.
            has_aux: whether `loss_fn` returns a pair.
            **kwargs: further arguments of `loss_fn`.

        Returns:
            The loss, the gradients in float32 at least, whether all of them are finite, and aux.

        Raises:
            ArgumentTypeError: a leaf of `params` is not floating; `state` holds no loss scale;
                `loss_fn` is no function or returns no floating loss.
            ArgumentError: the loss is no scalar; devices could disagree and no axis is named;
                the state holds several loss scales, or a damaged one.
        """
        wrapped = self._wrapped
        own = wrapped.find(state, "compute_gradients")
        check_agreement(wrapped.axes, "compute_gradients")
        check_differentiable(params)
        traced = any(
            isinstance(leaf, Tracer) for leaf in jax.tree.leaves((own.loss_scale, params, args))
        )
        function = wrapped.functions.of(loss_fn, has_aux, traced=traced)
        given = own.loss_scale, params, *args
        out = function(*given, **kwargs)
        wrapped.pending = False
        if wrapped.rewrite:
            wrapped.healer.attend(function, given, kwargs, out.value, out.finite, own)
        return out

    def apply_gradients(
        self, grads: Any, params: Any, state: Any, /, **extra: Any
    ) -> tuple[Any, MixedPrecisionState]:
        """One step of the optimizer, unless a gradient is not finite.

        Args:
            grads: what :meth:`compute_gradients` returned, or a tree of unscaled gradients.
            params: the parameters.
            state: of this optimizer.
            **extra: further arguments of ``update``.

        Returns:
            The new parameters, in their own dtypes, and the new state.

        Raises:
            ArgumentError: the gradients are still scaled, or belong to other parameters; the loss
                scale of `state` is damaged.
            ArgumentTypeError: the state is not of this optimizer.
        """
        wrapped = self._wrapped
        refuse_other_state(state)
        wrapped.refuse_scaled(grads)
        if is_concrete(state):
            check(state, "apply_gradients")
        check_every_gradient(grads.grads if isinstance(grads, ScaledGrad) else grads, params)
        return wrapped.apply(grads, state, params, extra)

    def minimize(
        self,
        loss_fn: Callable[..., Any],
        params: Any,
        state: Any,
        /,
        *args: Any,
        has_aux: bool = False,
        extra_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Minimized:
        """:meth:`compute_gradients` and :meth:`apply_gradients`.

        The optimizer also gets ``value``, ``grad`` and ``value_fn`` (the loss in full precision),
        which those with a line search or a plateau need.

        Args:
            loss_fn: as for :meth:`compute_gradients`.
            params: the parameters.
            state: of this optimizer.
            *args: further arguments of `loss_fn`.
            has_aux: whether `loss_fn` returns a pair.
            extra_args: more extra arguments for the optimizer, as in ``update(..., **extra_args)``,
                or others in the place of these.
            **kwargs: further arguments of `loss_fn`.

        Returns:
            New parameters and state, the loss and aux.

        Raises:
            ArgumentError: what the two raise.
            ArgumentTypeError: likewise.
        """
        refuse_other_state(state)
        out = self.compute_gradients(loss_fn, params, state, *args, has_aux=has_aux, **kwargs)

        def value_fn(given: Any) -> Any:
            loss = loss_fn(in_dtypes_of(params, given), *args, **kwargs)
            return loss[0] if has_aux else loss

        extra = {**self._wrapped.offer(value_fn=value_fn), **(extra_args or {})}
        new, state = self.apply_gradients(out, params, state, **extra)
        return Minimized(new, state, out.value, out.aux)

    def calibrate(
        self,
        loss_fn: Callable[..., Any],
        params: Any,
        state: Any,
        /,
        *args: Any,
        has_aux: bool = False,
        **kwargs: Any,
    ) -> Calibration:
        """Measures what the values of a training step are, and paints the steps after by it.

        Takes what :meth:`minimize` takes and changes nothing in it. Forward and backward pass run
        in float32 on this batch, the loss scaled, operation by operation (see
        :func:`duotone.calibrate`). Call it before the first step; again with another batch to add
        to what was measured.

        Args:
            loss_fn: as for :meth:`compute_gradients`.
            params: likewise.
            state: of this optimizer, or of one around it.
            *args: further arguments of `loss_fn`: one batch.
            has_aux: whether `loss_fn` returns a pair.
            **kwargs: further arguments of `loss_fn`.

        Returns:
            What was measured on all batches so far; print it for a table. It can be saved, and
            given as ``Policy(calibration=...)`` when the optimizer is made again.

        Raises:
            ArgumentError: the optimizer rewrites nothing, or names axes of ``pmap``.
            ArgumentTypeError: as for :meth:`compute_gradients`; called inside ``jax.jit``.
            CalibrationError: the batch holds NaN.

        Example:
            >>> import jax.numpy as jnp, optax
            >>> from duotone.adapters.optax import wrap
            >>> opt = wrap(optax.sgd(0.5), dtype=jnp.float16)
            >>> params = jnp.full(2, 300.0)
            >>> measured = opt.calibrate(lambda p: jnp.sum(p * p), params, opt.init(params))
            >>> [(v.name, v.largest) for v in measured.values if v.largest > 65504][0]
            ('mul', 90000.0)
        """
        own = self._wrapped.find(state, "calibrate")
        check_differentiable(params)
        return self._wrapped.calibrate(loss_fn, has_aux, (own.loss_scale, params, *args), kwargs)

    def scale_loss(self, loss: Any, state: Any) -> Any:
        """Multiplies a loss by the loss scale; goes in a pair with :meth:`unscale`.

        For training loops that differentiate by hand. Gradients taken of it are refused by
        ``update`` and :meth:`apply_gradients` until :meth:`unscale` was called.

        Args:
            loss: a floating scalar.
            state: of this optimizer, or of one around it.

        Returns:
            The scaled loss; a half loss as float32.

        Raises:
            ArgumentTypeError: `state` holds no loss scale.
        """
        loss_scale = self._wrapped.find(state, "scale_loss").loss_scale
        scaled = loss_scale.scale(loss)
        # A loss that is no tracer is not being differentiated: somebody only looks at it.
        if isinstance(scaled, Tracer) and not isinstance(loss_scale, NoLossScale):
            self._wrapped.pending = True
        return scaled

    def unscale(self, grads: Any, state: Any) -> Any:
        """Divides gradients of a scaled loss by the loss scale, in float32.

        Args:
            grads: gradients of what :meth:`scale_loss` returned.
            state: the one that :meth:`scale_loss` was given.

        Returns:
            Unscaled gradients; half leaves as float32.

        Raises:
            ArgumentTypeError: `grads` is a :class:`ScaledGrad`, which is unscaled already; `state`
                holds no loss scale.
        """
        if isinstance(grads, ScaledGrad):
            raise ArgumentTypeError(
                "unscale: compute_gradients returns gradients that are unscaled already. Give them "
                "to apply_gradients as they are."
            )
        self._wrapped.pending = False
        return self._wrapped.find(state, "unscale").loss_scale.unscale(grads)

    def metrics(self, state: Any) -> dict[str, Any]:
        """The numbers of a state, for logs; waits for the device.

        Warns once (logger ``"duotone"``) when many steps in a row were skipped at the smallest
        scale.

        Args:
            state: of this optimizer, or of one around it; outside compiled functions.

        Returns:
            ``loss_scale``, the one in use: 1 where nothing is scaled; ``good_steps``, finite steps
            since the scale last changed or a step was skipped (0 for a loss scale that does not
            count them); ``skipped_steps``; ``last_finite``; ``dtype``, the half type, or
            ``"float32"`` where loss functions are not rewritten.

        Raises:
            ArgumentError: the loss scale is damaged, or there are several.
            ArgumentTypeError: `state` holds no loss scale, or is traced.
        """
        reading = read(self._wrapped.find(state, "metrics", checked=True), "metrics")
        self._wrapped.alarm.check(reading)
        return {**reading.metrics(), "dtype": self._wrapped.half or "float32"}

    def check_state(self, state: Any) -> None:
        """Refuses a state that no training makes; for one that was restored.

        Args:
            state: of this optimizer, or of one around it; outside compiled functions.

        Raises:
            ArgumentError: its loss scale is NaN, infinite or out of its bounds.
            ArgumentTypeError: it is no state of a mixed-precision optimizer, or is traced.
        """
        self._wrapped.find(state, "check_state", checked=True)

    def find_state(self, state: Any) -> MixedPrecisionState:
        """The state of this optimizer, with the loss scale that is in use.

        Args:
            state: of this optimizer, or of one around it.

        Returns:
            The :class:`MixedPrecisionState` in `state`. Where nothing is scaled, its loss scale is
            a :class:`NoLossScale`, whatever the state keeps.

        Raises:
            ArgumentError: there are several, or the loss scale is damaged.
            ArgumentTypeError: there is none.
        """
        return self._wrapped.find(state, "find_state")
