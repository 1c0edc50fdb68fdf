"""An NNX optimizer with a loss scale, whose step counter does not count skipped steps.

``flax.nnx.Optimizer`` adds one to ``step`` at each update. A step that is skipped because a
gradient overflowed was not a step: otherwise schedules and logs would run ahead of the optimizer.
:class:`Optimizer` counts the steps that were taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import jax
import optax
from flax import nnx

from duotone._checks import check_mapping
from duotone.adapters.gradient_functions import MOST_KEPT, Borrowed, identity
from duotone.adapters.nnx import (
    TAG,
    check_changeable,
    is_object,
    merge_in,
    merge_objects,
    modules_in,
    only_objects,
    split_in,
    split_objects,
    unbound,
)
from duotone.adapters.once import wrapped_once
from duotone.adapters.optax import MixedPrecisionOptimizer
from duotone.errors import ArgumentError, ArgumentTypeError, shown
from duotone.jaxpr.modules import holding, inside
from duotone.policy.calibration import Calibration
from duotone.policy.policy import Policy
from duotone.policy.regions import updating
from duotone.scale import LossScale, ScaledGrad, select_tree
from duotone.scale.optimizer_state import MixedPrecisionState, find
from duotone.text.scale_log import StuckAlarm

M = TypeVar("M")


class Optimizer(nnx.Optimizer[M]):
    """``flax.nnx.Optimizer`` in mixed precision.

    An Optax optimizer is wrapped as by :func:`duotone.enable_mixed_precision_graph_rewrite`;
    one that is wrapped already is taken as it is. :meth:`minimize` does a whole step::

        loss = optimizer.minimize(loss_fn, model, x, y)

    Or do it in two parts, to look at the gradients in between::

        out = optimizer.compute_gradients(loss_fn, model, x, y)
        optimizer.update(model, out)

    A step whose gradients are not all finite is skipped: parameters, optimizer state, ``step``
    and the arguments that the loss function changes (batch statistics, metrics) stay as they were,
    and the loss scale is reduced. Random streams advance, so that the next step draws other
    numbers.

    Args:
        model: the model.
        tx: an Optax optimizer.
        wrt: which variables are trained.
        loss_scale: ``"dynamic"`` (scales in float16, not in bfloat16), a positive number, a
            loss-scale object, or None.
        dtype: the half type, as for :func:`duotone.autocast`.
        policy: as for :func:`duotone.autocast`.
        graph: as in ``flax.nnx.Optimizer``.

    Raises:
        ArgumentTypeError: ``tx`` is not an optimizer, or ``model`` holds no NNX object.
        ArgumentError: ``tx`` is wrapped already, and a loss scale, dtype or policy is given too.

    Example:
        >>> import jax.numpy as jnp, optax, duotone.nnx
        >>> from flax import nnx
        >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        >>> optimizer = duotone.nnx.Optimizer(model, optax.sgd(0.1), dtype=jnp.float16)
        >>> def loss_fn(model, x, y):
        ...     return jnp.mean((model(x) - y) ** 2)
        >>> x, y = jnp.ones((4, 2)), jnp.zeros((4, 1))
        >>> losses = [float(optimizer.minimize(loss_fn, model, x, y)) for _ in range(5)]
        >>> losses[-1] < losses[0], int(optimizer.step[...])
        (True, 5)
    """

    tx: MixedPrecisionOptimizer

    def __init__(
        self,
        model: M,
        tx: optax.GradientTransformation,
        *,
        wrt: Any = nnx.Param,
        loss_scale: Any = "dynamic",
        dtype: Any = None,
        policy: Policy | None = None,
        graph: bool | None = None,
    ) -> None:
        if not any(map(is_object, jax.tree.leaves(model, is_leaf=is_object))):
            raise ArgumentTypeError(
                f"Optimizer: the model is {shown(model)}; pass an NNX module. For a pytree of "
                "arrays there is duotone.enable_mixed_precision_graph_rewrite(tx)"
            )
        wrapped = wrapped_once(tx, loss_scale, dtype, policy, "Optimizer")
        super().__init__(model, wrapped, wrt=wrt, graph=graph)

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale, with its arrays."""
        return self.mixed_precision_state().loss_scale

    @property
    def alarm(self) -> StuckAlarm:
        """The one warning of :meth:`metrics` and ``LossScaleMonitor``."""
        return self.tx.alarm

    @property
    def pins(self) -> tuple[str, ...]:
        """Patterns of the operations kept full, including healed ones; save with checkpoints."""
        return self.tx.pins

    def mixed_precision_state(self) -> MixedPrecisionState:
        """Returns the state of ``tx``, with arrays instead of variables, for a monitor."""
        return self.tx.find_state(nnx.as_pure(self.opt_state))

    def compute_gradients(
        self,
        loss_fn: Callable[..., Any],
        model: M,
        /,
        *args: Any,
        has_aux: bool = False,
        **kwargs: Any,
    ) -> ScaledGrad:
        """Computes the loss and its gradients in mixed precision, with the loss scaled inside.

        Changes that ``loss_fn`` makes to ``model`` and to other NNX objects among its arguments are
        kept if the gradients are finite. Random streams advance in any case. A variable that gets
        another structure, shape or dtype (a recorded activation, a list that grows) has the new
        value in any case, since a compiled step cannot choose between the two.

        Args:
            loss_fn: takes the model and the arguments; gives a floating scalar, or a pair
                ``(loss, aux)`` with ``has_aux``. Outside ``jit`` it is compiled once and kept
                while it lives, or the object whose method it is; of an NNX object, that is lifted
                too.
            model: differentiated with respect to the variables ``wrt``.
            *args: further arguments of ``loss_fn``.
            has_aux: whether ``loss_fn`` returns a pair.
            **kwargs: keyword arguments of ``loss_fn``.

        Returns:
            The loss, unscaled gradients (an ``nnx.State``), whether they are finite, and aux.

        Raises:
            ArgumentTypeError: ``loss_fn`` is not a function, or returns no floating loss or no
                pair with ``has_aux``.
            ArgumentError: the loss is not a scalar; devices could disagree and no axis is named.
        """
        objects = model, unbound(loss_fn)[1], args, kwargs
        check_changeable("compute_gradients", objects)
        before = _values_of(objects)
        with nnx.update_context(TAG):
            call = self._pure_call(loss_fn, model, args, kwargs, has_aux)
            out = self.tx.compute_gradients(*call, has_aux=True)
            aux, _ = merge_objects(out.aux, inner=False)
        for variable, value in before:
            variable.set_raw_value(_chosen(out.finite, variable.get_raw_value(), value))
        return dataclasses.replace(out, aux=aux)

    def calibrate(
        self,
        loss_fn: Callable[..., Any],
        model: M,
        /,
        *args: Any,
        has_aux: bool = False,
        **kwargs: Any,
    ) -> Calibration:
        """Measures the values of a training step; later steps are painted by the measurements.

        It does not change its arguments. Call it before the first step. Further calls with other
        batches add to the measurements.

        Args:
            loss_fn: as for :meth:`compute_gradients`.
            model: the model.
            *args: further arguments of ``loss_fn``: one batch.
            has_aux: whether ``loss_fn`` returns a pair.
            **kwargs: keyword arguments of ``loss_fn``.

        Returns:
            The measurements on all batches so far; print it for a table.

        Raises:
            ArgumentTypeError, ArgumentError, CalibrationError: as ``calibrate`` of the wrapped
                Optax optimizer.
        """
        with nnx.update_context(TAG):
            call = self._pure_call(loss_fn, model, args, kwargs, has_aux)
            return self.tx.calibrate(*call, has_aux=True)

    def _pure_call(
        self,
        loss_fn: Callable[..., Any],
        model: M,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        has_aux: bool,
    ) -> tuple[Any, ...]:
        """Returns the arguments of a call of the wrapped optimizer; inside an update context."""
        function, first = unbound(loss_fn)
        with nnx.split_context(TAG) as context:
            definition, params, rest = context.split(model, self.wrt, ...)
            others = split_in(context, (first, args, kwargs))
        state = nnx.as_pure(self.opt_state)
        return _pure_loss(function, has_aux), params, state, definition, rest, others

    def update(self, model: M, grads: Any, /, **kwargs: Any) -> optax.Updates:
        """Updates parameters and state; ``step`` grows by one if the step is taken.

        Args:
            model: the model.
            grads: the result of :meth:`compute_gradients`, or a tree of unscaled gradients such as
                ``nnx.grad`` gives.
            **kwargs: further arguments of ``tx.update``.

        Returns:
            The updates that were added to the parameters; -0.0 in a skipped step.

        Raises:
            ArgumentError: the gradients are of another tree.
        """
        params = nnx.as_pure(nnx.state(model, self.wrt, graph=self.graph))
        state = nnx.as_pure(self.opt_state)
        if isinstance(grads, ScaledGrad):
            grads = dataclasses.replace(grads, grads=self._gradients(grads.grads))
        else:
            grads = self._gradients(grads)
        updates, new_state = self.tx.update(grads, state, params, **nnx.as_pure(kwargs))
        with updating():
            params = optax.apply_updates(params, updates)
        nnx.update(model, params)
        nnx.update(self.opt_state, nnx.state(new_state, graph=self.graph))
        taken = find(new_state, "Optimizer.update").last_finite
        self.step[...] += taken.astype(self.step.dtype)
        return updates

    def minimize(
        self,
        loss_fn: Callable[..., Any],
        model: M,
        /,
        *args: Any,
        has_aux: bool = False,
        extra_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Performs one training step: :meth:`compute_gradients`, then :meth:`update`.

        Args:
            loss_fn: as for :meth:`compute_gradients`.
            model: the model.
            *args: further arguments of ``loss_fn``.
            has_aux: whether ``loss_fn`` returns a pair.
            extra_args: keyword arguments of :meth:`update`, which passes them to the optimizer.
            **kwargs: keyword arguments of ``loss_fn``.

        Returns:
            The loss, unscaled, or ``(loss, aux)`` with ``has_aux``.

        Raises:
            ArgumentTypeError, ArgumentError: as for :meth:`compute_gradients` and :meth:`update`.
        """
        check_mapping("minimize", "extra_args", extra_args)
        out = self.compute_gradients(loss_fn, model, *args, has_aux=has_aux, **kwargs)
        self.update(model, out, **(extra_args or {}))
        return (out.value, out.aux) if has_aux else out.value

    def metrics(self) -> dict[str, float | int | bool | str]:
        """Returns the loss scale, the counts of steps and the dtype, without arrays."""
        return self.tx.metrics(nnx.as_pure(self.opt_state))

    def _gradients(self, grads: Any) -> Any:
        return nnx.as_pure(nnx.state(grads, self.wrt, graph=self.graph))


def _values_of(tree: Any) -> list[tuple[nnx.Variable, Any]]:
    """Returns the variables of NNX objects and their values, without random streams."""
    return [
        (variable, variable.get_raw_value())
        for _, variable in nnx.iter_graph(tree, graph=True)
        if isinstance(variable, nnx.Variable) and not isinstance(variable, nnx.RngState)
    ]


def _chosen(finite: Any, new: Any, old: Any) -> Any:
    """Returns `new` if the step is taken, else `old`; always `new` if their types differ."""
    try:
        return select_tree(finite, new, old)
    except ArgumentError:
        return new


class _PureLoss(Borrowed):
    """A loss function of split NNX objects; also returns the changed objects."""

    def __init__(
        self, loss_fn: Callable[..., Any], has_aux: bool, forget: Callable[[Any], Any]
    ) -> None:
        super().__init__(loss_fn, forget)
        self._has_aux = has_aux

    def __call__(self, params: Any, definition: Any, rest: Any, others: Any) -> Any:
        with nnx.merge_context(TAG, inner=True) as context:
            model = context.merge(definition, params, rest)
            first, args, kwargs = merge_in(context, others)
        with (
            holding(*modules_in((model, first, args, kwargs))),
            inside(first[0]) if first else nullcontext(),
        ):
            output = self._get()(*first, model, *args, **kwargs)
        aux = None
        if self._has_aux:
            if not isinstance(output, tuple | list) or len(output) != 2:
                return output  # the caller's error says what it must be
            output, aux = output
        return output, split_objects((aux, only_objects((model, first, args, kwargs))))


_PURE_LOSSES: dict[Any, _PureLoss] = {}


def _pure_loss(loss_fn: Any, has_aux: bool) -> Any:
    """Returns the same pure function for the same ``loss_fn``, so that it is compiled once."""
    if not callable(loss_fn):
        return loss_fn  # the caller's error says what it must be
    key = (*identity(loss_fn), bool(has_aux))
    kept = _PURE_LOSSES.get(key)
    if kept is None or kept.__wrapped__ is None:  # another one, which is dead, had this address
        forget = _PURE_LOSSES.pop  # bound here: when Python ends, the name is gone before the loss
        kept = _PureLoss(loss_fn, has_aux, lambda _: forget(key, None))
        _PURE_LOSSES[key] = kept
        while len(_PURE_LOSSES) > MOST_KEPT:
            _PURE_LOSSES.pop(next(iter(_PURE_LOSSES)), None)
    return kept
