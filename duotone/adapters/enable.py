"""The one line: ``optimizer = duotone.enable_mixed_precision_graph_rewrite(optimizer)``.

It passes the optimizer to the adapter of its library. It recognizes optimizers of Keras and
TensorFlow without importing these libraries: a program that passes one has imported its library.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack, overload

from duotone._checks import check_switch
from duotone.adapters import ENABLE
from duotone.errors import ArgumentError, ArgumentTypeError, kind_of
from duotone.policy.arguments import is_off
from duotone.policy.dtypes import OFF
from duotone.policy.policy import Policy
from duotone.policy.scales import DYNAMIC
from duotone.policy.switches import read_switches

if TYPE_CHECKING:
    import optax

    from duotone.adapters.optax import MixedPrecisionOptimizer
    from duotone.scale.finite import AxisName

    class _Keras(Protocol):
        """A Keras optimizer; Keras has no types of its own."""

        def build(self, variables: Any) -> Any: ...
        def apply_gradients(self, grads_and_vars: Any) -> Any: ...

    class _WrappedKeras(Protocol):  # first: a type checker takes it where it knows nothing
        def __getattr__(self, name: str) -> Any: ...

    class _Settings(TypedDict, total=False):
        dtype: Any
        policy: Policy | None
        axis_name: AxisName | None

    class _MoreSettings(_Settings, total=False):
        enabled: bool


@overload
def enable_mixed_precision_graph_rewrite(
    opt: _Keras, loss_scale: Any = ..., **settings: Unpack[_MoreSettings]
) -> _WrappedKeras: ...
@overload
def enable_mixed_precision_graph_rewrite(
    opt: optax.GradientTransformation, loss_scale: Any = ..., **settings: Unpack[_MoreSettings]
) -> MixedPrecisionOptimizer: ...
@overload
def enable_mixed_precision_graph_rewrite(
    opt: Any, loss_scale: Any = ..., **settings: Unpack[_MoreSettings]
) -> Any: ...
def enable_mixed_precision_graph_rewrite(
    opt: Any,
    loss_scale: Any = "dynamic",
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    axis_name: AxisName | None = None,
    enabled: bool = True,
) -> Any:
    """Makes an optimizer train in mixed precision.

    * **Optax**: the result is still a ``GradientTransformationExtraArgs`` and also has
      ``minimize``, ``compute_gradients`` and ``apply_gradients``
      (:class:`duotone.MixedPrecisionOptimizer`).
    * **Keras on JAX**: the result is for ``model.compile``, and duotone rewrites ``fit``,
      ``evaluate`` and ``predict`` of that model.
    * **Keras on TensorFlow**: the result is for ``model.compile`` and for loops of your own, and
      duotone rewrites every graph that this process runs.
    * **tf.compat.v1.train**: the result has ``minimize``, ``compute_gradients`` and
      ``apply_gradients`` for graphs and Sessions, and duotone rewrites every graph that this
      process runs.

    A step whose gradients are not finite is skipped: parameters, the optimizer's state, schedules
    and step counters do not change, and the step is counted as skipped. (On TensorFlow, bfloat16
    without a loss scale takes every step.)

    Args:
        opt: an optimizer of Optax, Keras or ``tf.compat.v1.train``.
        loss_scale: ``"dynamic"`` (in float16: starts at 2**15 and adjusts itself; in bfloat16 and
            if nothing is rewritten: no scaling, since bfloat16 has float32's range), a positive
            number, a loss-scale object such as :func:`dynamic_loss_scale` returns, or None.
        dtype: ``float16`` or ``bfloat16``. With None, duotone uses the half type that is fast on
            the default device when training starts (on TensorFlow, on the devices of this machine
            now); if there is none, nothing is rewritten. ``float32`` is the same as
            ``enabled=False``.
        policy: which operations may be painted; the default policy if omitted.
        axis_name: (Optax) mapped axes over which all devices must agree whether a step is skipped;
            needed in ``pmap`` and in ``shard_map(check_vma=False)``.
        enabled: False rewrites and scales nothing. An Optax optimizer then has the same methods and
            still skips steps whose gradients are not finite; optimizers of Keras and TensorFlow
            are returned unchanged.

    Returns:
        The wrapped optimizer.

    Raises:
        ArgumentTypeError: `opt` is not an optimizer, or an argument has the wrong type.
        ArgumentError: `opt` is wrapped already, or an argument is out of range; on TensorFlow,
            another optimizer was wrapped with another dtype or policy.
        PolicyError: (TensorFlow) the policy names an unknown operation or has fields for JAX.

    Example:
        >>> import jax.numpy as jnp, optax, duotone
        >>> opt = optax.sgd(0.5)
        >>> opt = duotone.enable_mixed_precision_graph_rewrite(opt, dtype=jnp.float16)
        >>> params = {"w": jnp.zeros(2)}
        >>> state = opt.init(params)
        >>> done = opt.minimize(lambda p, x: jnp.sum((p["w"] - x) ** 2), params, state, jnp.ones(2))
        >>> done.params["w"].tolist()
        [1.0, 1.0]

    References:
        TensorFlow, ``tf.train.experimental.enable_mixed_precision_graph_rewrite``, whose later name
        is ``tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer``.
    """
    check_switch("enable_mixed_precision_graph_rewrite", "enabled", enabled)
    dtype = dtype if enabled else OFF
    return _wrapped(opt, loss_scale, dtype, policy, axis_name, rewrite=True, scale=True)


@overload
def optimizer_from_environment(
    opt: _Keras, loss_scale: Any = ..., **settings: Unpack[_Settings]
) -> _WrappedKeras: ...
@overload
def optimizer_from_environment(
    opt: optax.GradientTransformation, loss_scale: Any = ..., **settings: Unpack[_Settings]
) -> MixedPrecisionOptimizer: ...
@overload
def optimizer_from_environment(
    opt: Any, loss_scale: Any = ..., **settings: Unpack[_Settings]
) -> Any: ...
def optimizer_from_environment(
    opt: Any,
    loss_scale: Any = "dynamic",
    *,
    dtype: Any = None,
    policy: Policy | None = None,
    axis_name: AxisName | None = None,
) -> Any:
    """Returns an optimizer that the environment switches to mixed precision.

    With ``TF_ENABLE_AUTO_MIXED_PRECISION=1`` or ``DUOTONE_ENABLE=1`` this is
    :func:`enable_mixed_precision_graph_rewrite`; ``..._GRAPH_REWRITE=1`` and
    ``..._LOSS_SCALING=1`` switch one of the two parts on (``docs/environment.md``). Loss scaling
    alone, for a model that has its own half precision, is dynamic for every half type.

    Without them, an Optax optimizer gets the same methods and state and trains in full precision,
    except that it skips steps whose gradients are not finite. So the same program, with the same
    calls, runs in either precision. Optimizers of Keras and TensorFlow are returned unchanged.

    Args:
        opt: an optimizer of Optax, Keras or ``tf.compat.v1.train``.
        loss_scale: as for :func:`enable_mixed_precision_graph_rewrite`; ``DUOTONE_LOSS_SCALE``
            replaces ``"dynamic"``.
        dtype: ``float16`` or ``bfloat16``; None reads ``DUOTONE_DTYPE``, then asks the device.
        policy: which operations may be painted; the default policy if omitted.
        axis_name: (Optax) mapped axes over which all devices must agree whether a step is skipped.

    Returns:
        The optimizer.

    Raises:
        EnvironmentVariableError: a variable has an invalid value.
        ArgumentTypeError, ArgumentError: as :func:`enable_mixed_precision_graph_rewrite` does.

    Example:
        >>> import jax.numpy as jnp, optax, duotone
        >>> opt = duotone.optimizer_from_environment(optax.sgd(0.5))
        >>> params = jnp.zeros(2)
        >>> done = opt.minimize(lambda p: jnp.sum((p - 1) ** 2), params, opt.init(params))
        >>> done.params.tolist()
        [1.0, 1.0]
    """
    switches = read_switches()
    dtype = switches.dtype if dtype is None else dtype
    if not (switches.loss_scaling or switches.rewrite) and _keeps_its_state(opt):
        return opt
    if isinstance(loss_scale, str) and loss_scale == DYNAMIC:  # the default, as if omitted
        loss_scale = switches.loss_scale
    if isinstance(loss_scale, str) and switches.loss_scaling and not switches.rewrite:
        from duotone.scale.state import DynamicLossScale

        loss_scale = DynamicLossScale()  # the model's half type is unknown, so always scale
    parts = {"rewrite": switches.rewrite, "scale": switches.loss_scaling}
    return _wrapped(opt, loss_scale, dtype, policy, axis_name, **parts)


def _wrapped(
    opt: Any,
    loss_scale: Any,
    dtype: Any,
    policy: Policy | None,
    axis_name: AxisName | None,
    *,
    rewrite: bool,
    scale: bool,
) -> Any:
    """Returns the optimizer, wrapped by the adapter of its library."""
    if _keeps_its_state(opt):
        if is_off(ENABLE, dtype):
            return opt
        if axis_name is not None:
            raise ArgumentError(
                "enable_mixed_precision_graph_rewrite: axis_name is for Optax optimizers inside "
                "pmap and shard_map. Keras and TensorFlow check the gradients of all devices "
                "without it. Leave it out."
            )
        scale_or_none = loss_scale if scale else None
        enable = _adapter_of(opt)
        return enable(opt, scale_or_none, dtype=dtype, policy=policy, rewrite=rewrite)
    if "tensorflow" in sys.modules and not hasattr(opt, "update"):
        raise ArgumentTypeError(
            f"enable_mixed_precision_graph_rewrite: {kind_of(opt)} is not an optimizer of Keras, "
            "tf.compat.v1.train or Optax. Make one first, such as keras.optimizers.Adam()."
        )
    from duotone.adapters import optax

    parts = {"rewrite": rewrite, "scale": scale}
    return optax.wrap(opt, loss_scale, dtype=dtype, policy=policy, axis_name=axis_name, **parts)


MixedPrecisionLossScaleOptimizer = enable_mixed_precision_graph_rewrite
"""TensorFlow's later name for :func:`enable_mixed_precision_graph_rewrite`."""


def _keeps_its_state(opt: Any) -> bool:
    """Returns True for an optimizer of Keras or TensorFlow, whose state is in variables."""
    return _is_keras(opt) or _is_of(sys.modules.get("tensorflow.python.training.optimizer"), opt)


def _is_keras(opt: Any) -> bool:
    """Returns True for a Keras optimizer, or a class of them (which the adapter refuses)."""
    return _is_of(getattr(sys.modules.get("keras"), "optimizers", None), opt)


def _is_of(module: Any, opt: Any) -> bool:
    """Returns True for an ``Optimizer`` of a module, or a class of them."""
    base = getattr(module, "Optimizer", None)
    if not isinstance(base, type):
        return False
    return isinstance(opt, base) or (isinstance(opt, type) and issubclass(opt, base))


def _adapter_of(opt: Any) -> Any:
    """Returns the function that wraps an optimizer of Keras or TensorFlow."""
    if not _is_keras(opt):
        from duotone.adapters.tensorflow.v1 import enable
    elif sys.modules["keras"].backend.backend() == "tensorflow":
        from duotone.adapters.tensorflow.keras import enable
    else:
        from duotone.adapters.keras import enable
    return enable
