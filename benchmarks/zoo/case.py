"""The parts of every model of the zoo: its loss, whole training step, state and batches.

:func:`train_case` makes a :class:`TrainCase` from a loss and an optimizer; the models that need
another step (two networks, sparse tables) make one themselves.

Loss scaling is left out of the step: it costs every way of training the same.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

Tree = Any
"""A pytree of arrays."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A model to measure.

    Attributes:
        name: for tables.
        loss: ``loss(params, batch)`` to a float32 scalar, a training step's forward pass.
        init: ``init(key)`` to float32 parameters.
        batch: ``batch(key, inputs)`` to one batch; ``inputs`` is a key of :data:`INPUTS`.
        weights: ``weights(params, inputs)``: the parameters for these inputs. Where a batch holds
            whole numbers, hostile numbers have to come from the parameters.
    """

    name: str
    loss: Callable[[Tree, Tree], jax.Array]
    init: Callable[[jax.Array], Tree]
    batch: Callable[[jax.Array, str], Tree]
    weights: Callable[[Tree, str], Tree] = lambda params, inputs: params

    def shapes(self) -> tuple[Tree, Tree]:
        """Shapes and dtypes of parameters and batch; nothing is computed."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        return jax.eval_shape(self.init, key), jax.eval_shape(
            lambda k: self.batch(k, "ordinary"), key
        )


def _heavy(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Student's t with two degrees of freedom: no variance, outliers of hundreds."""
    return jax.random.t(key, 2.0, shape)


def _mixed(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Normal, each feature with its own scale, from 0.001 to 1000."""
    scales = jnp.logspace(-3.0, 3.0, shape[-1])
    return jax.random.normal(key, shape) * scales


INPUTS: dict[str, Callable[[jax.Array, tuple[int, ...]], jax.Array]] = {
    "ordinary": jax.random.normal,
    "heavy tails": _heavy,
    "large (x 1000)": lambda key, shape: 1e3 * jax.random.normal(key, shape),
    "tiny (x 0.0001)": lambda key, shape: 1e-4 * jax.random.normal(key, shape),
    "mixed scales": _mixed,
    "offset (+ 100)": lambda key, shape: 100.0 + jax.random.normal(key, shape),
}
"""Input distributions by name: all but the first are hostile to half precision."""


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy, in float32 (float64 stays)."""
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    chosen = jnp.take_along_axis(jax.nn.log_softmax(wide), labels[..., None], axis=-1)
    return -jnp.mean(chosen)


Part = Callable[[jax.Array, str], Any]
"""``part(key, inputs)`` to one array of a batch; ``inputs`` is a key of :data:`INPUTS`."""


def numbers(*shape: int) -> Part:
    """Numbers of the inputs' distribution."""
    return lambda key, inputs: INPUTS[inputs](key, shape)


def whole(shape: tuple[int, ...], below: int, least: int = 0) -> Part:
    """Whole numbers, int32, whatever the inputs."""
    return lambda key, inputs: jax.random.randint(key, shape, least, below)


def seed(key: jax.Array, inputs: str) -> jax.Array:
    """A seed, uint32, for coins that are thrown in the step."""
    return jax.random.bits(key, (), jnp.uint32)


def drawn(*parts: Part) -> Callable[[jax.Array, str], tuple[Any, ...]]:
    """``draw(key, inputs)`` to a batch of these parts, as in :class:`Case`."""

    def draw(key: jax.Array, inputs: str) -> tuple[Any, ...]:
        keys = jax.random.split(key, len(parts))
        return tuple(part(key, inputs) for part, key in zip(parts, keys, strict=True))

    return draw


Size = Literal["full", "cpu", "tiny"]
"""Public size and batch; a step of about a second on two cores; small enough for float64."""
SIZES: tuple[Size, ...] = ("full", "cpu", "tiny")


class State(NamedTuple):
    """The state that a training step passes to the next one.

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
        batch: as in :class:`Case`.
        weights: as in :class:`Case`.
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


def network_case(
    name: str,
    model: nn.Module,
    draw: Callable[[jax.Array, str], Any],
    optimizer: optax.GradientTransformation,
    *,
    reads: Callable[[Any], tuple[Any, ...]] = lambda batch: batch[:-1],
    loss: Callable[[Any, Any], jax.Array] = lambda found, batch: cross_entropy(found, batch[-1]),
    seeded: bool = False,
    weights: Callable[[Tree, str], Tree] = lambda params, inputs: params,
) -> TrainCase:
    """A case of one Flax network.

    Args:
        name: for tables.
        model: the network.
        draw: ``draw(key, inputs)`` to a batch, as in :class:`Case`.
        optimizer: of all parameters.
        reads: the arguments of the network in a batch; by default all of it but the last.
        loss: of what the network returns, and the batch; by default the cross-entropy with the last
            array of the batch.
        seeded: whether the last number of a batch is a seed for dropout.
        weights: as in :class:`Case`.
    """

    def variables(key: jax.Array) -> tuple[Tree, Tree]:
        shapes = jax.eval_shape(lambda key: reads(draw(key, "ordinary")), key)
        made = dict(model.lazy_init({"params": key, "dropout": key}, *shapes))
        return made.pop("params"), made

    def whole_loss(params: Tree, statistics: Tree, batch: Any) -> tuple[jax.Array, Tree]:
        found, new = model.apply(
            {"params": params, **statistics},
            *reads(batch),
            mutable=[*statistics],
            rngs={"dropout": jax.random.key(batch[-1])} if seeded else {},
        )
        return loss(found, batch), new

    return train_case(
        name, variables=variables, loss=whole_loss, optimizer=optimizer, batch=draw, weights=weights
    )


def without_statistics(loss: Callable[[Tree, Tree], jax.Array]) -> Loss:
    """``loss(params, batch)`` of a model that keeps nothing, in the form of :data:`Loss`."""
    return lambda params, statistics, batch: (loss(params, batch), statistics)


def at_least_float32(x: jax.Array) -> jax.Array:
    """Half widened to float32, anything else as it is."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def hostile_leaf(*path: str) -> Callable[[Tree, str], Tree]:
    """A ``weights`` function that draws the parameter at a path from the inputs' distribution."""

    def weights(params: Tree, inputs: str) -> Tree:
        return params if inputs == "ordinary" else _replaced(params, path, inputs)

    def _replaced(tree: Any, rest: tuple[str, ...], inputs: str) -> Any:
        if not rest:
            return INPUTS[inputs](jax.random.key(7), tree.shape).astype(tree.dtype)
        return {**tree, rest[0]: _replaced(tree[rest[0]], rest[1:], inputs)}

    return weights
