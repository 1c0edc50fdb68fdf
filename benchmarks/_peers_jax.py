# python -m benchmarks._peers_jax
"""The process of one way of ``peers_cpu.py`` in JAX: the zoo's models without dropout."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import duotone
from benchmarks._peers import Made, Spec, draw, serve
from benchmarks.zoo.case import Tree, at_least_float32, cross_entropy
from benchmarks.zoo.gpt2 import GPT2, Shape
from benchmarks.zoo.layers import Dtype, attend
from benchmarks.zoo.unet import squared_error

ONE_LINE = "duotone, one line"
WEIGHTS = "duotone, weights"
WAYS = {
    "predict": ("float32", "duotone", WEIGHTS, "by hand"),
    "train": ("float32", "duotone", ONE_LINE, "by hand"),
}
"""The ways of a prediction and of a training step."""


class Generator(nn.Module):
    """The zoo's GPT-2 that continues a token greedily, with keys and values cached, in one loop.

    All but norms and softmax computes in the type of the weights.

    Attributes:
        shape: of the model.
        count: how many tokens to make.
    """

    shape: Shape
    count: int

    @nn.compact
    def __call__(self, first: jax.Array) -> jax.Array:
        """Maps (batch,) first tokens to (count, batch) next ones."""
        shape = self.shape
        if self.is_initializing():
            return GPT2(shape)(first[:, None])
        params = self.variables["params"]["GPT2_0"]
        size = (len(first), shape.context, shape.heads, shape.width // shape.heads)
        dtype = params["token"]["embedding"].dtype
        cache = [(jnp.zeros(size, dtype), jnp.zeros(size, dtype)) for _ in range(shape.layers)]

        def step(state: Any, position: jax.Array) -> tuple[Any, jax.Array]:
            tokens, cache = state
            token = params["token"]["embedding"]
            x = (token[tokens] + params["position"]["embedding"][position])[:, None]
            kept = []
            for i in range(shape.layers):
                x, pair = _decode(x, params[f"layer_{i}"], cache[i], position)
                kept.append(pair)
            x = _norm(x, params["LayerNorm_0"])[:, 0]
            tokens = jnp.argmax(x @ token.T, axis=-1).astype(jnp.int32)
            return (tokens, kept), tokens

        return jax.lax.scan(step, (first, cache), jnp.arange(self.count))[1]


def _norm(x: jax.Array, layer: Tree) -> jax.Array:
    wide = at_least_float32(x)
    centred = wide - wide.mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return (normed * layer["scale"] + layer["bias"]).astype(x.dtype)


def _dense(x: jax.Array, layer: Tree) -> jax.Array:
    return x @ layer["kernel"] + layer["bias"]


def _decode(
    x: jax.Array, layer: Tree, cache: tuple[jax.Array, jax.Array], position: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """A block for one token: (batch, 1, width), with keys and values of all positions."""
    inner = layer["SelfAttention_0"]
    joint = _dense(_norm(x, layer["LayerNorm_0"]), inner["in"])
    heads, size = cache[0].shape[2:]
    query, *new = (part.reshape(len(x), 1, heads, size) for part in jnp.split(joint, 3, -1))
    put = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=position, axis=1)
    key, value = (put(kept, part) for kept, part in zip(cache, new, strict=True))
    seen = (jnp.arange(key.shape[1]) <= position)[None]
    mixed = attend(query, key, value, seen).reshape(x.shape)
    x = x + _dense(mixed, inner["out"])
    inner = layer["Perceptron_0"]
    hidden = nn.gelu(_dense(_norm(x, layer["LayerNorm_1"]), inner["Dense_0"]))
    return x + _dense(hidden, inner["Dense_1"]), (key, value)


MODELS = {
    "resnet": ("resnet50", "ResNet50"),
    "convnext": ("convnext", "ConvNeXt"),
    "vit": ("vit", "ViT"),
    "mixer": ("mixer", "Mixer"),
    "gpt2": ("gpt2", "GPT2"),
    "llama": ("llama", "Llama"),
    "lstm": ("lstm", "LanguageModel"),
    "dit": ("dit", "DiT"),
}
"""The file of the zoo and the class of each model."""


def zoo_file(name: str) -> Any:
    """The zoo's module of a model, which has its ``Shape`` and ``SHAPES``."""
    return importlib.import_module(f"benchmarks.zoo.{MODELS[name][0]}")


def model_of(case: dict[str, Any], dtype: Dtype, predicts: bool) -> nn.Module:
    """The model of a case; see ``peers_cpu.Peer``."""
    name, given = case["name"], dict(case["shape"])
    if name == "generate":
        count = given.pop("count")
        return Generator(Shape(**given), count)
    lists = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
    shape = zoo_file(name).Shape(**{**given, **lists})
    running = {"running": predicts} if name == "resnet" else {}
    return getattr(zoo_file(name), MODELS[name][1])(shape=shape, dtype=dtype, **running)


def made(case: dict[str, Any], way: str, task: str, batch: int) -> Made:
    """Prepares a prediction or a training step in one way."""
    half = jnp.bfloat16 if way == "by hand" else None
    model = model_of(case, half, task == "predict")
    inputs = [jnp.asarray(x) for x in draw(case["inputs"], batch)]
    variables = jax.jit(model.init)(jax.random.key(0), *inputs)
    count = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    if task == "predict":
        return _predict(model, way, variables, inputs), count
    return _train(model, way, variables, inputs, case["target"], batch), count


def _predict(model: nn.Module, way: str, variables: Tree, inputs: list[Any]) -> Callable[[], Any]:
    """A prediction; half weights are cast once, and no float32 copy stays."""
    if way == WEIGHTS:
        record = duotone.cast_params(model.apply, variables, *inputs)
        fast = duotone.autocast(model.apply, weights=record)
        return lambda: jax.block_until_ready(fast(*inputs))
    if way == "by hand":
        variables = jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables)
    wrap = duotone.autocast if way == "duotone" else jax.jit
    predict: Any = wrap(model.apply)
    return lambda: jax.block_until_ready(predict(variables, *inputs))


def _train(
    model: nn.Module, way: str, variables: Tree, inputs: list[Any], target: Spec, batch: int
) -> Callable[[], Any]:
    """A training step: loss, gradient, AdamW; the state is donated."""
    (wanted,) = (jnp.asarray(x) for x in draw([target], batch))
    measure = cross_entropy if jnp.issubdtype(wanted.dtype, jnp.integer) else squared_error

    def loss(params: Tree, statistics: Tree, inputs: Tree, wanted: jax.Array) -> Any:
        found, new = model.apply({"params": params, **statistics}, *inputs, mutable=[*statistics])
        return measure(found, wanted), new

    optimizer: Any = optax.adamw(1e-4, weight_decay=1e-4)
    if way == ONE_LINE:
        optimizer = duotone.enable_mixed_precision_graph_rewrite(optimizer)

    def step(state: tuple[Tree, Tree, Tree], *batch: Tree) -> tuple[Tree, jax.Array]:
        params, statistics, moments = state
        if way == ONE_LINE:
            done = optimizer.minimize(loss, params, moments, statistics, *batch, has_aux=True)
            return (done.params, done.aux, done.state), done.loss
        differentiate = jax.value_and_grad(loss, has_aux=True)
        (value, statistics), gradient = differentiate(params, statistics, *batch)
        updates, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), statistics, moments), value

    stepped: Any = jax.jit(step, donate_argnums=0)
    if way == "duotone":
        stepped = duotone.autocast(stepped)
    params = variables.pop("params")
    state = (params, variables, optimizer.init(params))

    def run() -> None:
        nonlocal state
        state, value = stepped(state, inputs, wanted)
        jax.block_until_ready(value)

    return run


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    serve(lambda **task: made(settings["case"], settings["way"], **task))
