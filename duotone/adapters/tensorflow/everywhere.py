"""Mixed precision for TensorFlow programs that do not mention it, as in ``duotone run``.

Each optimizer is wrapped as ``duotone.optimizer_from_environment`` wraps it: a Keras optimizer when
a model is compiled with it, one of ``tf.compat.v1.train`` when it first computes or applies
gradients. A loop of the script's own keeps its Keras optimizer, whose loss cannot be scaled then:
graphs are rewritten if they need no loss scaling, and else a line says that they are not.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import sys
import weakref
from typing import Any

from duotone.errors import ArgumentError
from duotone.policy.switches import read_switches

_HOOK = "__duotone_everywhere__"
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("_inside", default=False)
"""True while a wrapper calls the optimizer that it wraps."""
_wrappers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_compiled: weakref.WeakSet[Any] = weakref.WeakSet()
"""The optimizers with which models were compiled."""
_in_loops: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""The optimizers of loops, and whether their graphs are rewritten."""
_NOT_SCALED = (
    "float16 needs optimizer.scale_loss, which it does not call. Wrap its optimizer with "
    "duotone.enable_mixed_precision_graph_rewrite, or run it with --dtype bfloat16 or "
    "--loss-scale none"
)
logger = logging.getLogger("duotone")


def wrap_keras_optimizers() -> None:
    """Wraps the optimizer of every Keras model that is compiled from now on.

    Graphs in which another Keras optimizer applies gradients are rewritten too.
    """
    import keras

    optimizers = keras.optimizers
    for name, hook, kinds in (
        ("compile", _compiling, keras.Model.__mro__),
        ("apply", _applying, (*optimizers.Optimizer.__mro__, optimizers.LossScaleOptimizer)),
    ):
        for kind in kinds:
            method = vars(kind).get(name)
            if method is not None and not hasattr(method, _HOOK):
                setattr(kind, name, hook(method))


def _compiling(method: Any) -> Any:
    @functools.wraps(method)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        from duotone.adapters.keras_checks import is_plain
        from duotone.adapters.tensorflow.keras import LossScaleOptimizer

        if getattr(self, "optimizer", None) is not None:
            _compiled.add(self.optimizer)
        if is_plain(self, LossScaleOptimizer):
            from duotone.adapters.enable import optimizer_from_environment

            with self.distribute_strategy.scope():
                self.optimizer = optimizer_from_environment(self.optimizer)
            if self._compile_config is not None:  # what is saved with the model
                self._compile_config.config["optimizer"] = self.optimizer
        return result

    setattr(compile, _HOOK, True)
    return compile


def _applying(method: Any) -> Any:
    @functools.wraps(method)
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        from keras.optimizers import LossScaleOptimizer

        scope: Any = contextlib.nullcontext()
        token = _inside.set(_inside.get() or isinstance(self, LossScaleOptimizer))
        try:
            if not _inside.get() and self not in _compiled:
                scope = _scope_in_loop(self)
            with scope:
                return method(self, *args, **kwargs)
        finally:
            _inside.reset(token)

    setattr(apply, _HOOK, True)
    return apply


def _scope_in_loop(optimizer: Any) -> Any:
    """Returns the context of an update in a loop of the script's own."""
    from duotone.adapters.tensorflow.scaling import float32_scope, in_float32_scope

    tf = sys.modules["tensorflow"]
    if tf.executing_eagerly() or in_float32_scope():  # no graph, or a wrapper is calling
        return contextlib.nullcontext()
    if optimizer not in _in_loops:
        _in_loops[optimizer] = _switch_on_for(optimizer)
    return float32_scope() if _in_loops[optimizer] else contextlib.nullcontext()


def _switch_on_for(optimizer: Any) -> bool:
    """Switches the rewrite on for a loop, if its loss need not be scaled; else logs a line."""
    from duotone.adapters.keras_checks import check_global_policy
    from duotone.adapters.tensorflow.settings import WrapSettings

    switches = read_switches()
    if not switches.rewrite:
        return False
    scale = switches.loss_scale if switches.loss_scaling else None
    settings = WrapSettings.of(scale, switches.dtype, None, True)
    try:
        check_global_policy()
        if settings.rule.scales:
            raise ArgumentError(_NOT_SCALED)  # noqa: TRY301
        settings.switch_on()
    except ArgumentError as error:
        logger.warning(
            "a loop that applies gradients by optimizer %r is not changed: %s.",
            optimizer.name,
            error,
        )
        return False
    return settings.half is not None


def wrap_v1_optimizers() -> None:
    """Wraps every ``tf.compat.v1.train`` optimizer that takes a step from now on."""
    tf = sys.modules["tensorflow"]
    base = tf.compat.v1.train.Optimizer
    for name in ("minimize", "compute_gradients", "apply_gradients"):
        method = vars(base)[name]
        if not hasattr(method, _HOOK):
            setattr(base, name, _stepping(method))


def _stepping(method: Any) -> Any:
    """Returns a method of an optimizer that its wrapper has in its place.

    The wrapper calls the methods of the optimizer in turn, which then do what they always do.
    """

    @functools.wraps(method)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        from duotone.adapters.tensorflow.v1 import V1LossScaleOptimizer

        if _inside.get() or isinstance(self, V1LossScaleOptimizer):
            return method(self, *args, **kwargs)
        token = _inside.set(True)
        try:
            if self not in _wrappers:
                from duotone.adapters.enable import optimizer_from_environment

                _wrappers[self] = optimizer_from_environment(self)
            return getattr(_wrappers[self], method.__name__)(*args, **kwargs)
        finally:
            _inside.reset(token)

    setattr(step, _HOOK, True)
    return step
