"""Module paths of NNX and Equinox in the name stack: as Linen, Haiku and Keras have them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import keras
import optax
import pytest
from flax import linen, nnx

import duotone
import duotone.nnx
from duotone.jaxpr import modules

X = jnp.ones((2, 8, 16))


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(2, 16, decode=False, rngs=rngs)
        self.mlp = nnx.Linear(16, 16, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(x)
        return x + self.mlp(x)


class Again(Block):
    """Its call is recomputed in the backward pass: Flax copies the module for that."""

    __call__ = nnx.remat(Block.__call__)


class Compiled(Block):
    __call__ = nnx.jit(Block.__call__)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, block: type[Block] = Block) -> None:
        self.layers = nnx.List([block(rngs) for _ in range(2)])
        self.head = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.encode(x))

    def encode(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class EqxBlock(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.Linear
    again: bool = eqx.field(static=True)

    def __init__(self, key: Any, again: bool = False) -> None:
        self.attention = eqx.nn.MultiheadAttention(2, 16, key=key)
        self.mlp = eqx.nn.Linear(16, 16, key=key)
        self.again = again

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(x, x, x)
        return x + jax.vmap(self.mlp)(x)


class EqxNet(eqx.Module):
    layers: list[EqxBlock]
    head: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        self.layers = [EqxBlock(key, again) for again in (False, True)]
        self.head = eqx.nn.Linear(16, 1, key=key)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = eqx.filter_checkpoint(layer)(x) if layer.again else layer(x)
        return jax.vmap(self.head)(x)


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = x + linen.MultiHeadAttention(2, name="attention")(x)
        return x + linen.Dense(16, name="mlp")(x)


class HaikuBlock(hk.Module):
    def __call__(self, x: Any) -> Any:
        w_init = hk.initializers.Constant(0.1)
        x = x + hk.MultiHeadAttention(2, 8, w_init=w_init, name="attention")(x, x, x)
        return x + hk.Linear(16, name="mlp")(x)


class KerasBlock(keras.layers.Layer):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, 8, name="attention")
        self.mlp = keras.layers.Dense(16, name="mlp")

    def call(self, x: Any) -> Any:
        x = x + self.attention(x, x)
        return x + self.mlp(x)


def loss_fn(model: Any, x: Any) -> Any:
    return jnp.mean(model(x) ** 2)


def of_nnx(**settings: Any) -> duotone.Explanation:
    return duotone.nnx.explain(loss_fn, Net(nnx.Rngs(0)), X, **settings)


def of_equinox(**settings: Any) -> duotone.Explanation:
    return duotone.explain(
        lambda model, x: loss_fn(jax.vmap(model), x), EqxNet(jax.random.key(0)), X, **settings
    )


def of_linen(**settings: Any) -> duotone.Explanation:
    model = LinenBlock(name="block")
    params = model.init(jax.random.key(0), X)
    return duotone.explain(
        lambda p, x: loss_fn(lambda x: model.apply(p, x), x), params, X, **settings
    )


def of_haiku(**settings: Any) -> duotone.Explanation:
    model = hk.without_apply_rng(hk.transform(lambda x: HaikuBlock(name="block")(x)))
    params = model.init(jax.random.key(0), X)
    return duotone.explain(
        lambda p, x: loss_fn(lambda x: model.apply(p, x), x), params, X, **settings
    )


def of_keras(**settings: Any) -> duotone.Explanation:
    model = keras.Sequential([keras.Input(X.shape[1:]), KerasBlock(name="block")])
    trained = [variable.value for variable in model.trainable_variables]
    rest = [variable.value for variable in model.non_trainable_variables]
    return duotone.explain(
        lambda t, x: loss_fn(lambda x: model.stateless_call(t, rest, x)[0], x),
        trained,
        X,
        **settings,
    )


LIBRARIES = [of_nnx, of_equinox, of_linen, of_haiku, of_keras]


def dots(seen: duotone.Explanation) -> list[Any]:
    return [o for o in seen.operations if o.operation == "dot_general"]


def scopes(fn: Callable[..., Any], *args: Any) -> list[str]:
    return [o.scope for o in dots(duotone.nnx.explain(fn, *args, dtype="bfloat16"))]


@pytest.mark.parametrize("explained", LIBRARIES)
def test_one_pattern_keeps_the_attention_of_every_library_full(
    explained: Callable[..., duotone.Explanation], caplog: pytest.LogCaptureFixture
) -> None:
    policy = duotone.Policy(keep_full=["*/attention/*"])
    seen = dots(explained(dtype="bfloat16", policy=policy))
    inside = [o for o in seen if "/attention" in o.scope]
    assert len(inside) in (6, 12)
    assert all((o.paint == "full") == (o in inside) for o in seen)
    assert not caplog.messages


def test_nnx_paths_are_those_of_attributes() -> None:
    assert [o.scope for o in dots(of_nnx(dtype="bfloat16"))] == [
        f"Net/{name}"
        for layer in range(2)
        for name in (
            *[f"layers/{layer}/attention/{part}" for part in ("query", "key", "value")],
            f"layers/{layer}/attention/BTNH,BSNH->BNTS",
            f"layers/{layer}/attention/BNTS,BSNH->BTNH",
            f"layers/{layer}/attention/out",
            f"layers/{layer}/mlp",
        )
    ] + ["Net/head"]


def test_equinox_has_paths_and_its_own_classes_also_through_a_copy() -> None:
    seen = [o.scope for o in dots(of_equinox(dtype="bfloat16"))]
    assert seen[0] == "EqxNet/layers/0/attention/eqx.nn.MultiheadAttention/query_proj/eqx.nn.Linear"
    # The second layer is called as a copy, which says nothing of where it comes from.
    assert seen[7].startswith("EqxNet/EqxBlock/attention/")
    assert seen[13].startswith("EqxNet/EqxBlock/mlp/")
    assert seen[14] == "EqxNet/head/eqx.nn.Linear"


def test_a_layer_of_equinox_at_the_top_keeps_the_name_it_gives_itself() -> None:
    model = eqx.nn.MLP(16, 16, 16, 1, key=jax.random.key(0))
    seen = duotone.explain(jax.vmap(model), X[0], dtype="bfloat16")
    assert [o.scope for o in dots(seen)] == [
        f"eqx.nn.MLP/layers/{layer}/eqx.nn.Linear" for layer in range(2)
    ]


@pytest.mark.parametrize("block", [Again, Compiled])
def test_a_copy_made_by_flax_is_named_like_what_it_copies(block: type[Block]) -> None:
    assert set(scopes(loss_fn, Net(nnx.Rngs(0), block), X)) >= {
        "Net/layers/0/attention/query",
        "Net/layers/1/attention/out",
        "Net/layers/1/mlp",
        "Net/head",
    }


def test_modules_and_methods_themselves() -> None:
    net = Net(nnx.Rngs(0))
    assert scopes(net, X) == scopes(loss_fn, net, X)
    assert scopes(net.encode, X) == scopes(net, X)[:-1]
    assert scopes(lambda net, x: net.layers[1](x), net, X)[0] == "Net/layers/1/attention/query"
    assert scopes(lambda x: net.layers[1](x), X)[0] == "Block/attention/query"  # closed over
    model = EqxNet(jax.random.key(0))
    seen = duotone.explain(model.layers[1], X[0], dtype="bfloat16")
    assert dots(seen)[0].scope.startswith("EqxBlock/attention/")


def test_a_module_that_two_hold_is_named_by_the_shorter_path() -> None:
    class Tied(nnx.Module):
        def __init__(self) -> None:
            self.embedding = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
            self.decoder = nnx.Sequential(self.embedding, self.embedding)

        def __call__(self, x: Any) -> Any:
            return self.decoder(self.embedding(x))

    assert scopes(loss_fn, Tied(), X) == ["Tied/embedding"] + ["Tied/decoder/embedding"] * 2


def test_the_whole_step_of_an_optimizer_has_the_names(caplog: pytest.LogCaptureFixture) -> None:
    net = Net(nnx.Rngs(0))
    policy = duotone.Policy(keep_full=["Net/layers/*/attention/*", "Net/head/*", "nothing/here"])
    optimizer = duotone.nnx.Optimizer(net, optax.sgd(0.1), dtype="bfloat16", policy=policy)
    text = str(
        nnx.jit(lambda net, optimizer, x: optimizer.minimize(loss_fn, net, x))
        .lower(net, optimizer, X)
        .as_text()
    )
    assert len(caplog.messages) == 1
    assert "nothing/here" in caplog.messages[0]
    # Dots of the same shapes are calls of one function.
    functions = re.split(r"(?=func\.func)", text)
    half = {re.search(r"@(\w+)", f)[1] for f in functions if re.search("dot_general.*bf16", f)}  # pyright: ignore[reportOptionalSubscript]
    calls = re.findall(r"call @(\w+)", text)
    assert sum(call in half for call in calls) == 6  # two perceptrons: forward, two gradients


def methods() -> dict[tuple[type, str], Any]:
    return {
        (kind, name): value
        for kind in (Net, Block, nnx.Linear, EqxNet, EqxBlock, eqx.nn.Linear)
        for name, value in vars(kind).items()
    }


def test_classes_are_as_they_were_afterwards() -> None:
    before = methods()
    of_nnx(dtype="bfloat16")
    of_equinox(dtype="bfloat16")

    def fails(model: Any, x: Any) -> Any:
        model(x)
        assert vars(Net)["__call__"] is not before[Net, "__call__"]
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        duotone.nnx.explain(fails, Net(nnx.Rngs(0)), X)
    assert methods() == before
    assert not modules._replaced
    assert not modules._naming.known


def test_other_threads_notice_nothing_and_traces_overlap() -> None:
    net, other = Net(nnx.Rngs(0)), Net(nnx.Rngs(1))
    before = methods()
    inside, outside, seen = threading.Event(), threading.Event(), {}

    def slow(model: Any, x: Any) -> Any:
        inside.set()
        assert outside.wait(60)
        return model(x)

    def trace_slowly() -> None:
        seen["slow"] = scopes(slow, net, X)

    thread = threading.Thread(target=trace_slowly)
    thread.start()
    assert inside.wait(60)
    plain = jax.make_jaxpr(other.head)(X)
    seen["fast"] = scopes(other, X)  # a trace that begins and ends while the slow one lasts
    assert vars(Net)["__call__"] is not before[Net, "__call__"]
    outside.set()
    thread.join(60)
    assert seen["slow"] == seen["fast"] == scopes(net, X)
    assert not any("head" in str(eqn.source_info.name_stack) for eqn in plain.eqns)
    assert methods() == before
