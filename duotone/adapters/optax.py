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
    update:             inner.update, discarded if a gradient is not finite;
                        the loss scale is adjusted

Like every optimizer, ``update`` takes *unscaled* gradients. So chains, masks and schedules may
contain the wrapped optimizer, and it may contain them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from jax.core import Tracer

from duotone._checks import check_mapping
from duotone.adapters import ENABLE
from duotone.adapters.trees import check_differentiable, check_every_gradient, trained
from duotone.adapters.wrapped import Minimized, Wrapped, refuse_other_state
from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.policy.arguments import is_off
from duotone.policy.calibration import Calibration
from duotone.policy.dtypes import OFF
from duotone.policy.policy import Policy
from duotone.scale import NoLossScale, ScaledGrad
from duotone.scale.choice import check_loss_scale
from duotone.scale.finite import AxisName, check_axis_name
from duotone.scale.optimizer_state import MixedPrecisionState, check, is_concrete, read
from duotone.scale.skip import check_agreement, in_dtypes_of
from duotone.text.scale_log import StuckAlarm
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

    This does not initialize a device; ``init`` does.

    Args:
        optimizer: an Optax optimizer, or any object with ``init`` and ``update``.
        loss_scale: ``"dynamic"``, a positive number, a loss-scale object, or None.
        dtype: ``float16``, ``bfloat16``, None for the one that is fast on the device, or
            ``float32``: nothing is rewritten or scaled.
        policy: which operations may be painted.
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
    :class:`ScaledGrad`; a step whose gradients are not finite leaves parameters and the inner
    state as they were, and is counted.

    Example:
        >>> import jax, jax.numpy as jnp, optax, duotone
        >>> opt = optax.sgd(0.5)
        >>> opt = duotone.enable_mixed_precision_graph_rewrite(opt, dtype=jnp.float16)
        >>> params = jnp.zeros(2)
        >>> done = opt.minimize(lambda p: jnp.sum((p - 1) ** 2), params, opt.init(params))
        >>> done.params.tolist(), float(done.loss), opt.metrics(done.state)["loss_scale"]
        ([1.0, 1.0], 2.0, 32768.0)
    """

    # This stays a named tuple of two functions, because JAX flattens and rebuilds tuples (Equinox
    # does so with modules that contain an optimizer). Everything else is found from `init`.
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
        """Patterns of the operations kept full, including healed ones; save with checkpoints."""
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
        """Computes the loss, scaled inside, and its gradients, unscaled in float32 outside.

        Both forward and backward pass are rewritten. Outside ``jit`` the rewritten program is
        compiled once for each `loss_fn` and cached while `loss_fn` is alive.

        Args:
            loss_fn: called as ``loss_fn(params, *args, **kwargs)``; returns a floating scalar, or a
                pair ``(loss, aux)`` with `has_aux`.
            params: differentiated; floating leaves only.
            state: the state of this optimizer, or of an outer one.
            *args: further arguments of `loss_fn`.
            has_aux: whether `loss_fn` returns a pair.
            **kwargs: further arguments of `loss_fn`.

        Returns:
            The loss, the gradients in float32 at least, whether all of them are finite, and aux.

        Raises:
            ArgumentTypeError: a leaf of `params` is not floating; `state` contains no loss scale;
                `loss_fn` is not a function or returns no floating loss.
            ArgumentError: the loss is not a scalar; devices could disagree and no axis is named;
                the state contains several loss scales, or a damaged one.
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
        """Performs one step of the optimizer, unless a gradient is not finite.

        Args:
            grads: the result of :meth:`compute_gradients`, or a tree of unscaled gradients.
            params: the parameters.
            state: the state of this optimizer.
            **extra: further arguments of ``update``.

        Returns:
            The new parameters, in their own dtypes, and the new state.

        Raises:
            ArgumentError: the gradients are still scaled, or belong to other parameters; the loss
                scale of `state` is damaged.
            ArgumentTypeError: the state is not of this optimizer.
        """
        wrapped = self._wrapped
        refuse_other_state(state, params)
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
        """Calls :meth:`compute_gradients`, then :meth:`apply_gradients`.

        The optimizer also gets ``value``, ``grad`` and ``value_fn`` (the loss in full precision),
        which optimizers with a line search or a plateau need.

        Args:
            loss_fn: as for :meth:`compute_gradients`.
            params: the parameters. `loss_fn` gets the fast ones of ``optax.LookaheadParams``.
            state: the state of this optimizer.
            *args: further arguments of `loss_fn`.
            has_aux: whether `loss_fn` returns a pair.
            extra_args: more keyword arguments for the optimizer's ``update``; they override the
                three above.
            **kwargs: further arguments of `loss_fn`.

        Returns:
            New parameters and state, the loss and aux.

        Raises:
            ArgumentError, ArgumentTypeError: as for the two methods.
        """
        refuse_other_state(state, params)
        fast = trained(params)
        out = self.compute_gradients(loss_fn, fast, state, *args, has_aux=has_aux, **kwargs)

        def value_fn(given: Any) -> Any:
            loss = loss_fn(in_dtypes_of(fast, given), *args, **kwargs)
            return loss[0] if has_aux else loss

        check_mapping("minimize", "extra_args", extra_args)
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
        """Measures the values of a training step; later steps are painted by the measurements.

        It takes the arguments of :meth:`minimize` and does not change them. Forward and backward
        pass run in float32 on this batch, with the loss scaled, operation by operation (see
        :func:`duotone.calibrate`). Call it before the first step. Further calls with other batches
        add to the measurements.

        Args:
            loss_fn: as for :meth:`compute_gradients`.
            params: the parameters; floating leaves only.
            state: the state of this optimizer, or of an outer one.
            *args: further arguments of `loss_fn`: one batch.
            has_aux: whether `loss_fn` returns a pair.
            **kwargs: further arguments of `loss_fn`.

        Returns:
            The measurements on all batches so far; print it for a table. Save it, and pass it as
            ``Policy(calibration=...)`` when you make the optimizer again.

        Raises:
            ArgumentError: the optimizer rewrites nothing, or names axes of ``pmap``.
            ArgumentTypeError: as for :meth:`compute_gradients`; called inside ``jax.jit``.
            CalibrationError: the batch contains NaN.

        Example:
            >>> import jax.numpy as jnp, optax, duotone
            >>> opt = optax.sgd(0.5)
            >>> opt = duotone.enable_mixed_precision_graph_rewrite(opt, dtype=jnp.float16)
            >>> params = jnp.full(2, 300.0)
            >>> measured = opt.calibrate(lambda p: jnp.sum(p * p), params, opt.init(params))
            >>> [(v.name, v.largest) for v in measured.values if v.largest > 65504][0]
            ('mul', 90000.0)
        """
        own = self._wrapped.find(state, "calibrate")
        check_differentiable(params)
        return self._wrapped.calibrate(loss_fn, has_aux, (own.loss_scale, params, *args), kwargs)

    def scale_loss(self, loss: Any, state: Any) -> Any:
        """Multiplies a loss by the loss scale; use it together with :meth:`unscale`.

        This is for training loops that call ``jax.grad`` themselves. ``update`` and
        :meth:`apply_gradients` refuse its gradients until :meth:`unscale` was called.

        Args:
            loss: a floating scalar.
            state: the state of this optimizer, or of an outer one.

        Returns:
            The scaled loss; a half loss as float32.

        Raises:
            ArgumentTypeError: `state` contains no loss scale.
        """
        loss_scale = self._wrapped.find(state, "scale_loss").loss_scale
        scaled = loss_scale.scale(loss)
        # A loss that is not a tracer is not being differentiated.
        if isinstance(scaled, Tracer) and not isinstance(loss_scale, NoLossScale):
            self._wrapped.pending = True
        return scaled

    def unscale(self, grads: Any, state: Any) -> Any:
        """Divides gradients of a scaled loss by the loss scale, in float32.

        Args:
            grads: gradients of the scaled loss from :meth:`scale_loss`.
            state: the same state that was passed to :meth:`scale_loss`.

        Returns:
            Unscaled gradients; half leaves as float32.

        Raises:
            ArgumentTypeError: `grads` is a :class:`ScaledGrad`, which is unscaled already; `state`
                contains no loss scale.
        """
        if isinstance(grads, ScaledGrad):
            raise ArgumentTypeError(
                "unscale: compute_gradients returns gradients that are unscaled already. Pass them "
                "to apply_gradients directly."
            )
        self._wrapped.pending = False
        return self._wrapped.find(state, "unscale").loss_scale.unscale(grads)

    def metrics(self, state: Any) -> dict[str, Any]:
        """Returns the numbers of a state, for logs; waits for the device.

        Warns once (logger ``"duotone"``) if many consecutive steps were skipped at the smallest
        scale.

        Args:
            state: the state of this optimizer, or of an outer one; outside compiled functions.

        Returns:
            ``loss_scale``, the one in use: 1 if nothing is scaled; ``good_steps``, finite steps
            since the scale last changed or a step was skipped (0 for a loss scale that does not
            count them); ``skipped_steps``; ``last_finite``; ``dtype``, the half type, or
            ``"float32"`` if loss functions are not rewritten.

        Raises:
            ArgumentError: the loss scale is damaged, or there are several.
            ArgumentTypeError: `state` contains no loss scale, or is traced.
        """
        reading = read(self._wrapped.find(state, "metrics", checked=True), "metrics")
        self._wrapped.alarm.check(reading)
        return {**reading.metrics(), "dtype": self._wrapped.half or "float32"}

    def check_state(self, state: Any) -> None:
        """Checks a restored state; refuses one that no training produces.

        Args:
            state: the state of this optimizer, or of an outer one; outside compiled functions.

        Raises:
            ArgumentError: its loss scale is NaN, infinite or out of its bounds.
            ArgumentTypeError: it is not a state of a mixed-precision optimizer, or is traced.
        """
        self._wrapped.find(state, "check_state", checked=True)

    def find_state(self, state: Any) -> MixedPrecisionState:
        """Returns the state of this optimizer, with the loss scale that is in use.

        Args:
            state: the state of this optimizer, or of an outer one.

        Returns:
            The :class:`MixedPrecisionState` in `state`. If nothing is scaled, its loss scale is a
            :class:`NoLossScale`, whatever the state contains.

        Raises:
            ArgumentError: there are several, or the loss scale is damaged.
            ArgumentTypeError: there is none.
        """
        return self._wrapped.find(state, "find_state")
