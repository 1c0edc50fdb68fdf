"""The implementation of a mixed-precision optimizer: the wrapped optimizer, settings and caches.

It caches the compiled gradients of each loss function, measurements, the structures of known
states, whether the warning was logged, and whether this thread scaled a loss and has not unscaled
the gradients. None of this affects the training, whose state is only in the optimizer state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from duotone.adapters import ENABLE
from duotone.adapters.gradient_functions import GradientFunctions
from duotone.adapters.trees import (
    check_differentiable,
    check_gradients,
    check_reduced,
    check_same_leaves,
)
from duotone.blaming.healing import Healer
from duotone.calibrating.measure import Calibrations
from duotone.errors import ArgumentError, ArgumentTypeError, kind_of
from duotone.jaxpr.modules import nnx_object_in
from duotone.policy.calibration import Calibration
from duotone.policy.dtypes import OFF
from duotone.policy.policy import Policy
from duotone.policy.regions import switched_off
from duotone.scale import LossScale, ScaledGrad
from duotone.scale.choice import make_loss_scale
from duotone.scale.finite import same_everywhere
from duotone.scale.optimizer_state import (
    MixedPrecisionState,
    advance,
    begin,
    check,
    find,
    in_use,
    is_concrete,
    refuse_accumulation_around,
    states_in,
    stored,
)
from duotone.scale.skip import (
    accepted,
    checked_gradients,
    guarded_apply,
    guarded_update,
    updated,
    with_extra_args,
)
from duotone.text.scale_log import StuckAlarm
from duotone.transforms import autocast as api
from duotone.transforms.mixed_function import rewrote_anything

logger = logging.getLogger("duotone")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Minimized:
    """The result of :meth:`MixedPrecisionOptimizer.minimize`; a pytree.

    Attributes:
        params: the new parameters, in their own dtypes.
        state: the optimizer's new state.
        loss: the loss before the step, unscaled, as ``loss_fn`` returned it.
        aux: the auxiliary output of ``loss_fn``; None without ``has_aux``.
    """

    params: Any
    state: MixedPrecisionState
    loss: jax.Array
    aux: Any = None


class Wrapped:
    """An optimizer, its settings, and its caches."""

    def __init__(
        self,
        given: Any,
        loss_scale: str | float | LossScale | None,
        dtype: Any,
        policy: Policy | None,
        axes: tuple[str, ...] | None,
        rewrite: bool = True,
        scale: bool = True,
    ) -> None:
        self.given, self.rewrite, self.scale = given, rewrite, scale
        self.inner = with_extra_args(given, ENABLE)
        self.loss_scale, self.dtype, self.axes = loss_scale, dtype, axes
        self.functions = GradientFunctions(dtype, policy, axes, rewrite)
        self.calibrations = Calibrations()
        self.healer = Healer(lambda: self.policy, self.functions.repaint)
        self.alarm = StuckAlarm(ask=lambda: self.healer.ask(self.half))
        self._structures: set[Any] = set()
        self._warned = False
        self._thread = threading.local()

    @property
    def policy(self) -> Policy | None:
        """The user's policy, with later measurements added."""
        return self.functions.policy

    def __reduce__(self) -> Any:
        settings = (self.given, self.loss_scale, self.dtype, self.policy, self.axes)
        return Wrapped, (*settings, self.rewrite, self.scale)  # copies keep only the measurements

    def init(self, params: Any) -> Any:
        """Calls ``init`` of the optimizer; refuses NNX models and optimizers wrapped already."""
        if (found := nnx_object_in(params)) is not None:
            raise ArgumentTypeError(
                f"init: params hold a Flax NNX object ({type(found[1]).__name__}), which is "
                "changed in place. Use duotone.nnx.Optimizer(model, optax.adam(1e-3)), which holds "
                "its state; or pass what nnx.state(model, nnx.Param) gives."
            )
        try:
            inner = self.inner.init(params)
        except (TypeError, ValueError):
            check_differentiable(params, "init")  # whose advice is better, if it has some
            raise
        if states_in(inner):
            raise ArgumentError(
                f"{ENABLE}: inside the optimizer there is another one that is wrapped already, at "
                f"state.inner{states_in(inner)[0][0]}; the loss would be scaled twice. Wrap the "
                "outermost optimizer only, such as enable_mixed_precision_graph_rewrite("
                "optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)))."
            )
        self._structures.add(jax.tree.structure(inner))
        # Every half type and device has the same leaves, so that checkpoints are portable.
        return begin(inner, make_loss_scale(self.loss_scale, "float16"))

    @property
    def scales(self) -> bool:
        """True if losses are multiplied by the loss scale of the state."""
        if not self.scale or not isinstance(self.loss_scale, str):
            return self.scale
        return api.half_name(ENABLE, self.dtype, self.policy) == "float16"

    def find(self, state: Any, who: str, *, checked: bool = False) -> MixedPrecisionState:
        """Returns the state of this optimizer, with the loss scale in use, found in any state.

        It checks the loss scale if asked to, or if its numbers can be read without waiting for the
        device.

        Raises:
            ArgumentTypeError, ArgumentError: as ``find`` and ``check`` of ``optimizer_state``.
        """
        scaled = self.scales
        own = find(state, who, scaled=scaled)
        if checked or is_concrete(own):
            check(own, who)
        return in_use(own, scaled=scaled)

    @property
    def half(self) -> str | None:
        """The half type of the loss functions, or None if they are not rewritten."""
        return api.half_name(ENABLE, self.dtype, self.policy) if self.rewrite else None

    def calibrate(
        self, loss_fn: Any, has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Calibration:
        """Measures the gradients of a loss function; later rewrites use the measurements."""
        name = "calibrate"
        if not self.rewrite:
            raise ArgumentError(
                f"{name}: this optimizer rewrites no program, so there is nothing to measure for. "
                f"Make it with {ENABLE}, or switch the rewriting on."
            )
        if self.axes is not None:
            raise ArgumentError(
                f"{name}: this optimizer has axis_name={self.axes!r}, and what runs under pmap or "
                "shard_map cannot be measured value by value. State what you know as "
                "Policy(ranges={...}), or keep what overflows in float32: Policy(keep_full=[...])."
            )
        handed_out = self.functions.handed_out
        function = self.functions.of(loss_fn, has_aux, traced=True)
        measured = self.calibrations.measure(function, args, kwargs)
        self.functions.repaint(self.calibrations.added_to(self.policy))
        if handed_out:
            logger.warning(
                "calibrate: a step that was compiled before keeps its painting. Call calibrate "
                "before the first step, or compile the step again (jax.clear_caches())."
            )
        return measured

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        """Calls ``update`` of the optimizer with unscaled gradients or a :class:`ScaledGrad`."""
        refuse_accumulation_around()
        return self._step(guarded_update, updates, state, params, extra)

    def apply(self, grads: Any, state: Any, params: Any, extra: dict[str, Any]) -> Any:
        """Calls ``update`` and adds the updates: returns new parameters and the new state."""
        return self._step(guarded_apply, grads, state, params, extra)

    def _step(
        self, guarded: Callable[..., Any], grads: Any, state: Any, params: Any, extra: Any
    ) -> tuple[Any, MixedPrecisionState]:
        refuse_other_state(state)
        self.refuse_scaled(grads)
        self.check_inner(state.inner, params)
        scaled = isinstance(grads, ScaledGrad)
        if self.rewrite and not scaled:
            self.healer.unseen("the gradients do not come from compute_gradients or minimize")
            self._warn_of_float32()
        tree = grads.grads if scaled else grads
        examples = check_gradients(tree, params)
        if scaled:  # optimizers with a line search want these as well
            if examples is not None:  # one step of them all: jax.vmap gave a flag and a loss each
                finite, value = jnp.all(grads.finite), jnp.mean(grads.value)
                grads = dataclasses.replace(grads, finite=finite, value=value)
            extra = {**self.offer(value=grads.value, grad=tree), **extra}
        tree, finite = checked_gradients(grads, self.axes, ENABLE)
        if examples is not None:
            made = jax.eval_shape(lambda: updated(self.inner, tree, state.inner, params, extra)[0])
            check_reduced(made, params, examples)
        with switched_off() if self.dtype == OFF else contextlib.nullcontext():
            result, inner = guarded(self.inner, tree, state.inner, params, finite, extra)
        loss = grads.value if scaled and jnp.ndim(grads.value) == 0 else None
        if loss is not None and not same_everywhere(loss):
            loss = None  # agreeing on one would cost every step a collective
        used = advance(in_use(state, scaled=self.scales), inner, finite, loss)
        return result, stored(used, state)

    def _warn_of_float32(self) -> None:
        """Warns once if the gradients are those of a float32 loss, which nothing rewrote."""
        if self._warned or rewrote_anything() or self.half is None:
            return
        self._warned = True
        logger.warning(
            "%s: these gradients come from a function that duotone did not rewrite, so training is "
            "float32. Call opt.minimize(loss_fn, params, state, ...), or take the gradients with "
            "opt.compute_gradients, duotone.value_and_grad or jax.grad(duotone.autocast(loss_fn)).",
            ENABLE,
        )

    def offer(self, **extra: Any) -> dict[str, Any]:
        """Returns the extra arguments that the optimizer's ``update`` accepts."""
        return accepted(self.inner, extra)

    def refuse_scaled(self, grads: Any) -> None:
        """Refuses gradients of a scaled loss that were not unscaled."""
        if isinstance(grads, ScaledGrad):
            self.pending = False
        elif self.pending:
            raise ArgumentError(
                "the gradients are still scaled: scale_loss was called and unscale was not. Call "
                "grads = opt.unscale(grads, state) before apply_gradients or update, or take the "
                "gradients with opt.compute_gradients(loss_fn, params, state, ...), which does "
                "both. (If these gradients come from elsewhere, pass a ScaledGrad, as "
                "compute_gradients returns it.)"
            )

    def check_inner(self, inner: Any, params: Any) -> None:
        """Refuses an inner state that this optimizer did not make, if its structure shows it."""
        structure = jax.tree.structure(inner)
        if structure in self._structures or params is None:
            return
        try:
            expected = jax.eval_shape(lambda: self.inner.init(params))
        except TypeError:  # a state that holds other things than arrays: not comparable
            return
        check_same_leaves(expected, inner)
        self._structures.add(structure)

    @property
    def pending(self) -> bool:
        """True if this thread scaled a loss that it is differentiating, and has not unscaled."""
        return getattr(self._thread, "pending", False)

    @pending.setter
    def pending(self, pending: bool) -> None:
        self._thread.pending = pending


def refuse_other_state(state: Any, params: Any = None) -> None:
    """Refuses what is not the state of a wrapped optimizer itself.

    It also finds the order of arguments of Optax's ``update``, with the state before `params`.
    """
    if isinstance(state, MixedPrecisionState):
        return
    if isinstance(params, MixedPrecisionState):
        raise ArgumentTypeError(
            "the state comes before the parameters, as in Optax's update; this method takes the "
            "parameters first: minimize(loss_fn, params, state), apply_gradients(grads, params, "
            "state)."
        )
    remedy = (
        "Make it with opt.init(params); a state of the bare optimizer, from a checkpoint of "
        "before, goes inside: opt.init(params)._replace(inner=state)."
    )
    if states_in(state):
        find(state, "update")  # says what is wrong with optax.MultiSteps outside
        remedy = (
            "It is the state of an optimizer around this one: call update of that one and "
            "optax.apply_updates, or wrap the outermost optimizer."
        )
    raise ArgumentTypeError(
        f"the state must be a MixedPrecisionState; got {kind_of(state)}. {remedy}"
    )
