"""The scaled loss: its scale, and a mark that records whether JAX differentiated it.

An optimizer divides the gradients that it receives by its loss scale. This is correct only if the
differentiated loss was multiplied by the same scale::

    scale_loss    reads the scale from the state of this step, multiplies, and marks the result
    the mark      an identity whose derivative rule records that JAX called it
    apply         refuses gradients if JAX never differentiated a marked loss

JAX calls a derivative rule wherever it differentiates, also inside ``jit``, ``scan`` and
``checkpoint``, so this needs no search in the program. The optimizer never clears the mark, because
JAX does not retrace an inner ``jit``.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from duotone.errors import ArgumentError
from duotone.scale import LossScale, NoLossScale

_REMEDY = (
    "In the function that you differentiate, scale the loss by the state of the step:\n"
    "    pairs = list(zip(optimizer.variables, optimizer_variables))\n"
    "    with keras.StatelessScope(state_mapping=pairs):\n"
    "        loss = optimizer.scale_loss(loss)\n"
)


class Mark:
    """Remembers if JAX ever differentiated a loss that one optimizer scaled."""

    def __init__(self) -> None:
        self.differentiated = False


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def marked(mark: Mark, loss: Any) -> Any:
    """Returns a scaled loss; sets the mark if JAX differentiates it."""
    return loss


@marked.defjvp
def _differentiated(mark: Mark, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    mark.differentiated = True
    return primals[0], tangents[0]


def check_scaled(name: str, loss_scale: LossScale, mark: Mark) -> None:
    """Refuses gradients of a loss that was not scaled.

    Raises:
        ArgumentError: JAX never differentiated a loss that the optimizer scaled.
    """
    divides = not isinstance(loss_scale, NoLossScale) and getattr(loss_scale, "constant", 0.0) != 1
    if divides and not mark.differentiated:
        raise ArgumentError(
            f"optimizer {name!r}: the loss was not scaled before it was differentiated. The "
            "optimizer would divide these gradients by the loss scale, and the model would not "
            f"train. {_REMEDY}To train without loss scaling, wrap the optimizer with "
            'dtype="bfloat16", or with loss_scale=None (then float16 gradients below 6e-8 are 0).'
        )


def value_of_step(name: str, scale: Any) -> Any:
    """Returns the value of a dynamic loss scale in the current or traced step.

    Raises:
        ArgumentError: the value would be a constant of the traced program, or Keras has moved it
            into the state of the step.
    """
    try:
        value = scale.value
    except TypeError:  # inside `fit` the variables are empty, and Keras calls no initializer
        value = None
    constant = not isinstance(value, Tracer) and isinstance(jnp.multiply(1.0, 1.0), Tracer)
    if value is None or constant:
        raise ArgumentError(
            f"optimizer {name!r}: scale_loss was called outside of the state of the step, so it "
            f"would not see how the loss scale changes. {_REMEDY}"
        )
    return value
