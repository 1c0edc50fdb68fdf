"""What every model of the zoo gives: the whole training step, its state and its batches.

:func:`train_case` makes one from a loss and an optimizer; the models that need another step (two
networks, sparse tables) make a :class:`TrainCase` themselves.

Loss scaling is left out of the step: it costs every way of training the same.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks.models.case import Case, Tree

Size = Literal["full", "cpu", "tiny"]
"""Public size and batch; a step of about a second on two cores; small enough for float64."""
SIZES: tuple[Size, ...] = ("full", "cpu", "tiny")


class State(NamedTuple):
    """What a training step hands to the next one.

    Attributes:
        params: float32 parameters.
        statistics: what the model keeps next to them (running statistics, averaged weights).
        optimizer: Optax' state.
    """

    params: Tree
    statistics: Tree
    optimizer: Tree


Step = Callable[[State, Tree], tuple[State, jax.Array]]
"""``step(state, batch)`` to the next state and the float32 loss."""
Loss = Callable[[Tree, Tree, Tree], tuple[jax.Array, Tree]]
"""``loss(params, statistics, batch)`` to the loss and new statistics."""
Differentiated = Callable[[Tree, Tree, Tree], tuple[tuple[jax.Array, Tree], Tree]]
"""The same to (loss, new statistics) and the gradient."""
ValueAndGrad = Callable[[Loss], Differentiated]


@dataclasses.dataclass(frozen=True)
class TrainCase(Case):
    """A model to train.

    Attributes:
        step: the whole training step: loss, gradient, statistics, update.
        start: ``start(key)`` to the first state.
        step_with: the step with another ``jax.value_and_grad``, for libraries that bring their own;
            None where one such function is not enough.

    Example:
        >>> from benchmarks.zoo import MODELS
        >>> case = MODELS["gpt2"](None, "full")
        >>> state, tokens = case.step_shapes()
        >>> tokens.shape
        (8, 1025)
    """

    step: Step = lambda state, batch: (state, jnp.zeros(()))
    start: Callable[[jax.Array], State] = lambda key: State({}, {}, {})
    step_with: Callable[[ValueAndGrad], Step] | None = None

    def step_shapes(self) -> tuple[State, Tree]:
        """Shapes and dtypes of the arguments of ``step``; nothing is computed."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        batch = jax.eval_shape(lambda k: self.batch(k, "ordinary"), key)
        return jax.eval_shape(self.start, key), batch


Variables = Callable[[jax.Array], tuple[Tree, Tree]]
"""``variables(key)`` to parameters and statistics."""


def train_case(
    name: str,
    *,
    variables: Variables,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    batch: Callable[[jax.Array, str], Tree],
    weights: Callable[[Tree, str], Tree] = lambda params, inputs: params,
    average: float | None = None,
) -> TrainCase:
    """A case of one network, one loss and one optimizer.

    Args:
        name: for tables.
        variables: makes parameters and statistics.
        loss: of a batch; its second result replaces the statistics.
        optimizer: of all parameters.
        batch: as in :class:`~benchmarks.models.case.Case`.
        weights: as in :class:`~benchmarks.models.case.Case`.
        average: the decay of an exponential moving average of the parameters, which then is all of
            the statistics; ``loss`` must return its statistics unchanged.
    """

    def start(key: jax.Array) -> State:
        params, statistics = variables(key)
        if average is not None:
            statistics = params
        return State(params, statistics, optimizer.init(params))

    def step_with(value_and_grad: ValueAndGrad) -> Step:
        def step(state: State, data: Tree) -> tuple[State, jax.Array]:
            differentiate = value_and_grad(loss)
            (value, statistics), gradient = differentiate(state.params, state.statistics, data)
            updates, moved = optimizer.update(gradient, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)
            if average is not None:
                statistics = optax.incremental_update(params, statistics, 1.0 - average)
            return State(params, statistics, moved), value

        return step

    @functools.cache
    def statistics_shapes() -> Tree:
        return jax.eval_shape(lambda: variables(jax.random.key(0))[1])

    def plain_loss(params: Tree, data: Tree) -> jax.Array:
        # Running statistics are written, not read, while training: any will do.
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), statistics_shapes())
        return loss(params, zeros, data)[0]

    return TrainCase(
        name,
        plain_loss,
        lambda key: variables(key)[0],
        batch,
        weights,
        step=step_with(lambda loss: jax.value_and_grad(loss, has_aux=True)),
        start=start,
        step_with=step_with,
    )


def without_statistics(loss: Callable[[Tree, Tree], jax.Array]) -> Loss:
    """``loss(params, batch)`` of a model that keeps nothing, in the form of :data:`Loss`."""
    return lambda params, statistics, batch: (loss(params, batch), statistics)


def at_least_float32(x: jax.Array) -> jax.Array:
    """Half widened to float32, anything else as it is."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def hostile_leaf(
    path: tuple[str, ...], draw: Callable[[jax.Array, tuple[int, ...], str], jax.Array]
) -> Callable[[Tree, str], Tree]:
    """A ``weights`` function that draws one parameter from the inputs' distribution.

    Args:
        path: the keys that lead to the parameter.
        draw: ``draw(key, shape, inputs)``.
    """

    def weights(params: Tree, inputs: str) -> Tree:
        return params if inputs == "ordinary" else _replaced(params, path, inputs)

    def _replaced(tree: Any, rest: tuple[str, ...], inputs: str) -> Any:
        if not rest:
            return draw(jax.random.key(7), tree.shape, inputs).astype(tree.dtype)
        return {**tree, rest[0]: _replaced(tree[rest[0]], rest[1:], inputs)}

    return weights
