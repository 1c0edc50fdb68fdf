"""Loss scaling: keeps gradients within the range of float16, and skips the steps that overflow.

The smallest float16 above zero is about 6e-8, and many gradients are smaller. Multiplying the loss
by a *loss scale* multiplies every gradient by it. Dividing the gradients by the same number, in
float32, recovers the true gradients. The scale is as large as the gradients allow: a gradient that
overflows divides it (and skips that step), and a run of good steps multiplies it.

This is one training step, written out::

    # scaled inside, unscaled outside
    loss, grads = duotone.value_and_grad(loss_fn, scale=loss_scale)(params, batch)
    finite = all_finite(grads)
    new = update(params, grads)
    params = select_tree(finite, new, params)              # a step that overflowed changes nothing
    loss_scale = loss_scale.adjust(finite)            # halve, keep or double

To add a rule for the scale, subclass :class:`LossScale` (``state.py``).

Files: ``leaves`` (arithmetic on one leaf), ``finite`` (the finite check), ``selection`` (keep or
replace), ``powers`` (of two), ``state`` (the three loss
scales), ``gradient`` (differentiation), ``choice`` (the ``loss_scale`` argument), ``skip`` (an
optimizer that skips bad steps), ``optimizer_state`` and ``monitor`` (for optimizers with a loss
scale).
"""

from duotone.scale.choice import dynamic_loss_scale, fixed_loss_scale, make_loss_scale
from duotone.scale.finite import all_finite
from duotone.scale.gradient import ScaledGrad, scaled_value_and_grad
from duotone.scale.selection import select_tree
from duotone.scale.skip import SkipState, skip_nonfinite
from duotone.scale.state import DynamicLossScale, FixedLossScale, LossScale, NoLossScale

__all__ = [
    "DynamicLossScale",
    "FixedLossScale",
    "LossScale",
    "NoLossScale",
    "ScaledGrad",
    "SkipState",
    "all_finite",
    "dynamic_loss_scale",
    "fixed_loss_scale",
    "make_loss_scale",
    "scaled_value_and_grad",
    "select_tree",
    "skip_nonfinite",
]
