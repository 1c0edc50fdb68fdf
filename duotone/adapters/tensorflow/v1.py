"""Optimizers of TensorFlow 1: ``tf.compat.v1.train``, for graphs, Sessions and ``tf.function``.

::

    opt = duotone.enable_mixed_precision_graph_rewrite(tf.compat.v1.train.AdamOptimizer())
    train = opt.minimize(loss, global_step=step)

Each graph in which the optimizer is used has its own loss scale, in variables that
``global_variables_initializer`` initializes and ``Saver`` saves.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from duotone.adapters.tensorflow.replicas import agreed, take_or_skip
from duotone.adapters.tensorflow.scaling import (
    State,
    all_finite,
    float32_scope,
    in_use,
    metrics_of,
    scale,
    tf,
    unscale,
)
from duotone.adapters.tensorflow.settings import WrapSettings
from duotone.adapters.tensorflow.statistics import is_here, restore
from duotone.adapters.tensorflow.update_ops import moved_before_this
from duotone.errors import ArgumentError, ArgumentTypeError, kind_of


class _Eager:
    """The key of the variables that all functions share, instead of a graph."""


_Base: Any = tf.compat.v1.train.Optimizer


@dataclasses.dataclass(frozen=True, slots=True)
class _Computed:
    """A call of ``compute_gradients``: are its gradients finite, its loss, and its variables."""

    finite: Any
    loss: Any
    keys: frozenset[int]


def _train_ops() -> list[Any]:
    """Returns the collection of the training steps of a graph, to which optimizers add theirs."""
    return tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)


def _keys(pairs: Sequence[tuple[Any, Any]]) -> frozenset[int]:
    return frozenset(id(variable) for _, variable in pairs)


class V1LossScaleOptimizer(_Base):
    """An optimizer of TensorFlow 1 for training in mixed precision.

    Args:
        optimizer: the wrapped optimizer.
        settings: its checked arguments.
    """

    def __init__(self, optimizer: Any, settings: WrapSettings) -> None:
        super().__init__(use_locking=False, name=optimizer.get_name())
        self._optimizer = optimizer
        self._settings = settings
        self._states: weakref.WeakKeyDictionary[Any, State] = weakref.WeakKeyDictionary()
        self._computed: list[_Computed] = []

    @property
    def half(self) -> str | None:
        """``"float16"``, ``"bfloat16"``, or None if graphs are not rewritten."""
        return self._settings.half

    @property
    def loss_scale(self) -> Any:
        """The loss scale of the current graph, ``float32[]``."""
        return in_use(self._settings.rule, self._state()).value

    def metrics(self) -> dict[str, Any]:
        """Returns the state of the loss scale in the current graph.

        Returns:
            ``loss_scale``, ``good_steps``, ``skipped_steps`` and ``last_finite`` (tensors to run,
            or numbers outside of a graph), and ``dtype``: the half type, or ``"float32"`` if graphs
            are not rewritten. Run them in another ``Session.run`` than the step.
        """
        return {**metrics_of(self._settings.rule, self._state()), "dtype": self.half or "float32"}

    def _state(self) -> State:
        """Returns the variables of the loss scale in the current graph; creates them once."""
        with tf.init_scope():
            eager = tf.executing_eagerly()  # the caller is a tf.function
            graph = _Eager if eager else tf.compat.v1.get_default_graph()
            if graph not in self._states:
                self._states[graph] = self._new_state()
            return self._states[graph]

    def _new_state(self) -> State:
        initial = self._settings.initial
        with tf.name_scope(f"{self.get_name()}/loss_scale"):
            return State(
                _variable("value", initial, tf.float32),
                _variable("good_steps", 0, tf.int32),
                _variable("skipped", 0, tf.int32),
                _variable("last_finite", True, tf.bool),
                _variable("stuck", 0, tf.int32),
            )

    # One step.

    def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Returns the gradients of a loss, unscaled, and their variables.

        Args:
            loss: a floating scalar, or a function that returns it.
            *args: as for ``tf.compat.v1.train.Optimizer.compute_gradients``.
            **kwargs: the same.

        Raises:
            ArgumentError: the call is eager.
        """
        self._refuse_eager("compute_gradients")
        if not self._settings.guards:
            return self._optimizer.compute_gradients(loss, *args, **kwargs)
        value, losses = self.loss_scale, []
        scaled = functools.partial(self._scaled, loss, value, losses)
        pairs = self._optimizer.compute_gradients(
            scaled if callable(loss) else scaled(), *args, **kwargs
        )
        unscaled = [(unscale(gradient, value), variable) for gradient, variable in pairs]
        # Clipping by value, between this call and the next, would hide an infinity.
        finite = all_finite([gradient for gradient, _ in unscaled])
        self._computed.append(_Computed(finite, losses[-1], _keys(unscaled)))
        return unscaled

    def _scaled(self, loss: Any, value: Any, losses: list[Any]) -> Any:
        found = loss() if callable(loss) else loss
        losses.append(found)
        return scale(found, value) if self._settings.rule.scales else found

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: Any = None
    ) -> Any:
        """Returns an operation that takes a step, or skips it if a gradient is not finite.

        A skipped step changes neither the variables nor the slots nor the global step.

        Args:
            grads_and_vars: the result of :meth:`compute_gradients`.
            global_step: is incremented by a step that is taken.
            name: the name of the operation.

        Raises:
            ArgumentError: the call is eager, or outside of the replicas of a strategy.
        """
        self._refuse_eager("apply_gradients")
        pairs = list(grads_and_vars)
        self._settings.warn_of_dtypes([variable for _, variable in pairs])
        if not self._settings.guards:
            return self._update(pairs, global_step, name)
        finite, loss = agreed(*self._finite_and_loss(pairs))
        moved = moved_before_this()
        rule, state, before = self._settings.rule, self._state(), len(_train_ops())
        step = take_or_skip(rule, state, finite, loss, self._update, (pairs, global_step, name))
        step = tf.group(step, restore(moved, finite)) if moved else step
        # The inner optimizer adds an operation of the branch, which no file can name.
        _train_ops()[before:] = [step]
        return step

    def _finite_and_loss(self, pairs: Any) -> tuple[Any, Any]:
        """Returns whether a step is finite, and its loss if there is one.

        It takes into account every call of ``compute_gradients`` for these variables since their
        last step.
        """
        keys = _keys(pairs)
        here = [found for found in self._computed if is_here(found.finite)]
        ours = [found for found in here if found.keys & keys]
        self._computed = [found for found in here if not found.keys & keys]
        losses = [f.loss for f in ours if is_here(f.loss) and f.loss.shape.rank == 0]
        with float32_scope():
            checks = [all_finite([gradient for gradient, _ in pairs]), *(f.finite for f in ours)]
            loss = tf.cast(losses[0], tf.float32) if len(losses) == 1 else None
            return tf.reduce_all(tf.stack(checks)), loss

    def _update(self, pairs: Any, global_step: Any, name: Any) -> Any:
        with float32_scope():
            return self._optimizer.apply_gradients(pairs, global_step, name)

    def _refuse_eager(self, method: str) -> None:
        if tf.executing_eagerly():
            raise ArgumentError(
                f"{method} was called eagerly, where there is no graph to rewrite. Call it in a "
                "tf.function, or build the step in `with tf.Graph().as_default():` and run it in a "
                "tf.compat.v1.Session."
            )

    # The wrapped optimizer has the rest.

    def get_slot(self, var: Any, name: str) -> Any:
        """Returns a slot of the wrapped optimizer."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Returns the names of the wrapped optimizer's slots."""
        return self._optimizer.get_slot_names()

    def variables(self) -> list[Any]:
        """Returns the variables of the wrapped optimizer and of the loss scale."""
        return [*self._optimizer.variables(), *self._state()]


def _variable(name: str, value: Any, dtype: Any) -> Any:
    return tf.Variable(
        value,
        trainable=False,
        name=name,
        dtype=dtype,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def enable(
    optimizer: Any, loss_scale: Any, *, dtype: Any, policy: Any, rewrite: bool
) -> V1LossScaleOptimizer:
    """Wraps an optimizer of TensorFlow 1, and switches the rewrite of this process on.

    Raises:
        ArgumentTypeError, ArgumentError: an argument that cannot be used.
    """
    theirs = tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer
    if isinstance(optimizer, type):
        made = f"tf.compat.v1.train.{optimizer.__name__}(...)"
        raise ArgumentTypeError(f"{optimizer.__name__} is a class. Make an optimizer: {made}.")
    if isinstance(optimizer, (V1LossScaleOptimizer, theirs)):
        raise ArgumentError(
            f"the optimizer is {kind_of(optimizer)}, which scales the loss already. Wrap the bare "
            "optimizer, once."
        )
    if "keras" in sys.modules:
        from duotone.adapters.keras_checks import check_global_policy

        check_global_policy()
    settings = WrapSettings.of(loss_scale, dtype, policy, rewrite)
    settings.switch_on()
    return V1LossScaleOptimizer(optimizer, settings)
