"""The ways to train a model that ``benchmarks.painter`` compares, each as a step and its arguments.

To add a library, add a function to :data:`WAYS`. If a model cannot be trained in that way, the
function raises :class:`Absent` with the reason, which the table then shows.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import duotone
from benchmarks.zoo import ZOO
from benchmarks.zoo.case import Differentiated, Loss, Tree

KERAS_MODELS = ("keras_resnet50", "keras_transformer")
"""Models of :mod:`benchmarks._keras_models`; by hand means a ``mixed_*`` policy there."""
ALL_MODELS = (*ZOO, *KERAS_MODELS)
SHORT = "value_and_grad(autocast(f))"
"""The way that paints the loss alone and leaves the gradient to JAX."""
FORMS = {"whole": "duotone", "short": SHORT}
"""The ways with duotone: around the whole step, or around the loss alone."""


class Absent(Exception):  # noqa: N818 (no error: a gap in the table)
    """A model has no such way, or its library is not installed."""


@dataclasses.dataclass(frozen=True)
class Made:
    """A step to compile.

    Attributes:
        step: jitted, its state donated.
        arguments: shapes.
    """

    step: Any
    arguments: tuple[Tree, ...]


def _jitted(step: Callable[..., Any], arguments: tuple[Tree, ...]) -> Made:
    return Made(jax.jit(step, donate_argnums=0), arguments)


def float32(model: str, half: str) -> Made:
    """As written."""
    if model in KERAS_MODELS:
        return _keras(model, "float32")
    case = ZOO[model].make(None, "full")
    return _jitted(case.step, case.step_shapes())


def by_hand(model: str, half: str) -> Made:
    """With dtypes set by hand; a Keras model with a policy for all of it."""
    if model in KERAS_MODELS:
        return _keras(model, f"mixed_{half}")
    case = ZOO[model].make(jnp.dtype(half), "full")
    return _jitted(case.step, case.step_shapes())


def painted(model: str, half: str) -> Made:
    """The float32 step in ``duotone.autocast``, with everything left at its default."""
    if model in KERAS_MODELS:
        made = _keras(model, "float32")
        # Keras' step is jitted already; its function is painted, then jitted and donated alike.
        return _jitted(duotone.autocast(made.step.__wrapped__, dtype=half), made.arguments)
    case = ZOO[model].make(None, "full")
    return _jitted(duotone.autocast(case.step, dtype=half), case.step_shapes())


def painted_loss(model: str, half: str) -> Made:
    """The float32 step whose loss alone is in ``duotone.autocast``, inside of its gradient."""
    case = ZOO[model].make(None, "full") if model in ZOO else None
    if case is None or case.step_with is None:
        raise Absent("the step is not one gradient function")

    def value_and_grad(loss: Loss) -> Differentiated:
        return jax.value_and_grad(duotone.autocast(loss, dtype=half), has_aux=True)

    return _jitted(case.step_with(value_and_grad), case.step_shapes())


def mpx(model: str, half: str) -> Made:
    """The float32 step with the gradient function of ``mixed-precision-for-jax``.

    It casts parameters and batch to half and leaves the rest to the types that follow; Flax' norms
    and our losses compute in float32 all the same. Its scale is left out of the update, so that
    it is not charged for what no other way does here.
    """
    if importlib.util.find_spec("mpx") is None:
        raise Absent("mixed-precision-for-jax is not installed")
    case = ZOO[model].make(None, "full") if model in ZOO else None
    if case is None or case.step_with is None:
        raise Absent("the step is not one gradient function")
    import mpx as library  # pyright: ignore[reportMissingImports]

    library._dtypes.HALF_PRECISION_DATATYPE = jnp.dtype(half)  # its setter ignores names

    def value_and_grad(loss: Loss) -> Differentiated:
        def differentiated(params: Tree, statistics: Tree, batch: Tree) -> Any:
            one = jnp.float32(1.0)
            scaling = library.DynamicLossScaling(loss_scaling=one, min_loss_scaling=one)
            differentiate = library.filter_value_and_grad(
                lambda params, batch: loss(params, statistics, batch), scaling, has_aux=True
            )
            found, _, _, gradient = differentiate(params, batch)
            return found, gradient

        return differentiated

    return _jitted(case.step_with(value_and_grad), case.step_shapes())


def _keras(model: str, policy: str) -> Made:
    if importlib.util.find_spec("keras") is None:
        raise Absent("Keras is not installed")
    from benchmarks._keras_models import STEPS

    step, arguments = STEPS[model](policy)
    return _jitted(step, arguments)


WAYS: dict[str, Callable[[str, str], Made]] = {
    "float32": float32,
    "by hand": by_hand,
    "duotone": painted,
    SHORT: painted_loss,
    "mpx": mpx,
}
"""By name: each is called with the names of a model and a half type."""
