"""Steps over eight devices as people write them: a loss, its weights and its batch, placed.

Each case is made over a mesh whose axes are automatic or explicit. Weights and batches are small:
what counts is where results lie and what travels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH, BATCH, DEVICES = 32, 64, 8


@dataclasses.dataclass(frozen=True)
class Case:
    """A program over a mesh.

    Attributes:
        axes: names and sizes of the mesh.
        make: from the mesh, a loss, its weights and its batch, not placed.
        specs: of the weights.
        batch: spec of the batch.
        explicit: whether it is written for explicit axes (and runs under ``jax.set_mesh``).
    """

    axes: dict[str, int]
    make: Callable[[Any], tuple[Callable[..., Any], Any, Any]]
    specs: Any
    batch: Any
    explicit: bool = False

    def mesh(self) -> Any:
        """The mesh, of virtual devices."""
        kind = AxisType.Explicit if self.explicit else AxisType.Auto
        return jax.make_mesh(tuple(self.axes.values()), tuple(self.axes), (kind,) * len(self.axes))

    def placed(self, mesh: Any) -> tuple[Callable[..., Any], Any, Any]:
        """Loss, weights and batch on the devices."""
        loss, weights, batch = self.make(mesh)
        return (
            loss,
            jax.tree.map(
                lambda w, s: jax.device_put(w, NamedSharding(mesh, s)), weights, self.specs
            ),
            jax.tree.map(lambda x, s: jax.device_put(x, NamedSharding(mesh, s)), batch, self.batch),
        )


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    """Numbers of a normal distribution."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * scale, jnp.float32)


def square(seed: int, *lead: int) -> jax.Array:
    """Weights of a layer."""
    return normal(seed, *lead, WIDTH, WIDTH, scale=WIDTH**-0.5)


X = normal(0, BATCH, WIDTH)


def _layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w["w"] + w["b"])


def _layers(count: int = 3) -> Any:
    return [{"w": square(i), "b": jnp.zeros(WIDTH)} for i in range(count)]


def _dense(mesh: Any) -> Any:
    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = _layer(x, w)
        return jnp.mean((x - 0.5) ** 2)

    return loss, _layers(), X


def _scanned(checkpoint: bool) -> Any:
    def make(mesh: Any) -> Any:
        layer = jax.checkpoint(_layer) if checkpoint else _layer

        def loss(weights: Any, x: Any) -> Any:
            last, _ = lax.scan(lambda x, w: (layer(x, w), None), x, weights)
            return jnp.mean((last - 0.5) ** 2)

        return loss, {"w": square(1, 4), "b": jnp.zeros((4, WIDTH))}, X

    return make


def _norm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def _block(mesh: Any) -> Any:
    """A transformer block as Megatron divides it: heads and hidden units over ``model``."""

    def on(x: Any, *spec: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def loss(weights: Any, ids: Any) -> Any:
        x = on(weights["embed"][ids], "data")
        h = _norm(x)
        q, k, v = (
            on(jnp.einsum("btd,dhe->bhte", h, weights[name]), "data", "model") for name in "qkv"
        )
        mixed = jax.nn.softmax(jnp.einsum("bhte,bhse->bhts", q, k) / 2.0) @ v
        x = on(x + jnp.einsum("bhte,hed->btd", mixed, weights["o"]), "data")
        x = x + jax.nn.gelu(on(_norm(x) @ weights["up"], "data", None, "model")) @ weights["down"]
        logits = _norm(on(x, "data")) @ weights["embed"].T
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1)
        return -picked.mean()

    heads, part = 4, WIDTH // 4
    weights = {
        "embed": normal(5, 24, WIDTH),
        **{n: normal(6 + i, WIDTH, heads, part, scale=0.25) for i, n in enumerate("qkv")},
        "o": normal(9, heads, part, WIDTH, scale=0.25),
        "up": normal(10, WIDTH, 4 * WIDTH, scale=0.25),
        "down": normal(11, 4 * WIDTH, WIDTH, scale=0.125),
    }
    return loss, weights, jnp.asarray(np.random.default_rng(1).integers(0, 24, (8, 8)))


def _pipeline(mesh: Any) -> Any:
    """Stages over devices, microbatches passed on by ``ppermute``."""
    stages, turns = DEVICES, DEVICES + 3

    def local(w: Any, micro: Any) -> Any:
        w = jax.tree.map(lambda leaf: leaf[0], w)
        stage = lax.axis_index("stage")

        def turn(carry: Any, step: Any) -> Any:
            held, done = carry
            fed = micro[jnp.minimum(step, micro.shape[0] - 1)]
            made = _layer(jnp.where(stage == 0, fed, held), w)
            at = step - (stages - 1)
            kept = jnp.where((stage == stages - 1) & (at >= 0), made, 0.0)
            done = lax.dynamic_update_index_in_dim(
                done, kept + done[jnp.maximum(at, 0)] * (at < 0), jnp.maximum(at, 0), 0
            )
            handed = lax.ppermute(made, "stage", [(i, (i + 1) % stages) for i in range(stages)])
            return (handed, done), None

        first = lax.pcast(jnp.zeros_like(micro), ("stage",), to="varying")
        (_, done), _ = lax.scan(turn, (first[0], first), jnp.arange(turns))
        return lax.psum(done, "stage")

    run = jax.shard_map(local, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P())

    def loss(weights: Any, x: Any) -> Any:
        return jnp.mean((run(weights, x) - 0.5) ** 2)

    weights = {"w": square(3, stages), "b": jnp.zeros((stages, WIDTH))}
    return loss, weights, X.reshape(4, -1, WIDTH)


def _experts(mesh: Any) -> Any:
    """One expert a device, tokens sent to them and back by ``all_to_all``."""
    capacity = 8

    def local(weights: Any, x: Any) -> Any:
        scores = jax.nn.softmax(x @ weights["router"])
        chosen, gate = scores.argmax(-1), scores.max(-1)
        one_hot = jax.nn.one_hot(chosen, DEVICES)
        place = (jnp.cumsum(one_hot, 0) - 1) * one_hot
        slot = jax.nn.one_hot(place.sum(-1).astype(int), capacity)
        dispatch = one_hot[:, :, None] * slot[:, None, :]
        sent = jnp.einsum("tec,td->ecd", dispatch, x)
        got = lax.all_to_all(sent, "expert", 0, 0, tiled=True).reshape(-1, WIDTH)
        made = jax.nn.relu(got @ weights["up"][0]) @ weights["down"][0]
        back = lax.all_to_all(made.reshape(DEVICES, -1, WIDTH), "expert", 0, 0, tiled=True)
        out = jnp.einsum("tec,ecd->td", dispatch * gate[:, None, None], back)
        return lax.pmean(jnp.mean((x + out - 0.5) ** 2), "expert")

    specs = {"router": P(), "up": P("expert"), "down": P("expert")}
    loss = jax.shard_map(local, mesh=mesh, in_specs=(specs, P("expert")), out_specs=P())
    weights = {
        "router": normal(1, WIDTH, DEVICES),
        "up": normal(2, DEVICES, WIDTH, 2 * WIDTH, scale=0.25),
        "down": normal(3, DEVICES, 2 * WIDTH, WIDTH, scale=0.25),
    }
    return loss, weights, X


def _experts_auto(mesh: Any) -> Any:
    """Experts by dispatch tensors, laid out by constraints; XLA makes the exchange."""

    def on(x: Any, *spec: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def loss(weights: Any, x: Any) -> Any:
        x = x.reshape(DEVICES, -1, WIDTH)
        scores = jax.nn.softmax(jnp.einsum("gtd,de->gte", x, weights["router"]))
        dispatch = jax.nn.one_hot(scores.argmax(-1), DEVICES)
        sent = on(jnp.einsum("gte,gtd->egtd", dispatch, x), "expert")
        hidden = jax.nn.relu(jnp.einsum("egtd,edf->egtf", sent, weights["up"]))
        made = on(jnp.einsum("egtf,efd->egtd", hidden, weights["down"]), "expert")
        out = on(jnp.einsum("gte,egtd->gtd", dispatch * scores, made), "expert")
        return jnp.mean((x + out - 0.5) ** 2)

    return loss, _experts(mesh)[1], X


def _sequence(mesh: Any) -> Any:
    """Tensor and sequence parallel by hand: gathered before, scattered after."""

    def local(weights: Any, x: Any) -> Any:
        whole = lax.all_gather(x, "model", axis=0, tiled=True)
        made = jax.nn.gelu(whole @ weights["up"]) @ weights["down"]
        x = x + lax.psum_scatter(made, "model", scatter_dimension=0, tiled=True)
        return lax.pmean(jnp.mean((x - 0.5) ** 2), "model")

    specs = {"up": P(None, "model"), "down": P("model")}
    loss = jax.shard_map(local, mesh=mesh, in_specs=(specs, P("model")), out_specs=P())
    weights = {"up": normal(2, WIDTH, 64, scale=0.25), "down": normal(3, 64, WIDTH, scale=0.125)}
    return loss, weights, X


def _ring(mesh: Any) -> Any:
    """Ring attention: keys and values go round, sums are rescaled as maxima grow."""

    def local(weights: Any, x: Any) -> Any:
        q, k, v = (x @ weights[name] for name in "qkv")

        def turn(carry: Any, _: Any) -> Any:
            k, v, top, total, out = carry
            scores = q @ k.T / 4.0
            new = jnp.maximum(top, scores.max(-1))
            p = jnp.exp(scores - new[:, None])
            shrink = jnp.exp(top - new)
            total = total * shrink + p.sum(-1)
            out = out * shrink[:, None] + p @ v
            k, v = (lax.ppermute(a, "seq", [(i, (i + 1) % 8) for i in range(8)]) for a in (k, v))
            return (k, v, new, total, out), None

        low = jnp.full_like(q[:, 0], -jnp.inf)
        carry = (k, v, low, jnp.zeros_like(low), jnp.zeros_like(q))
        (_, _, _, total, out), _ = lax.scan(turn, carry, None, length=8)
        return lax.pmean(jnp.mean((out / total[:, None] - 0.5) ** 2), "seq")

    loss = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("seq")), out_specs=P())
    return loss, {name: square(i) for i, name in enumerate("qkv")}, X


def _partly(mesh: Any) -> Any:
    """By hand over one axis, left to the compiler over the other."""

    def local(weights: Any, x: Any) -> Any:
        for w in weights:
            x = _layer(x, w)
        return lax.pmean(jnp.mean((x - 0.5) ** 2), "data")

    loss = jax.shard_map(
        local, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), axis_names={"data"}
    )
    return loss, _layers(), X


@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return jnp.tanh(x)


_clipped.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g * (1 - jnp.tanh(x) ** 2),))


def _nested(mesh: Any) -> Any:
    """Inner ``jit`` with shardings, a derivative of one's own, kept dots, a loop, a branch."""
    place = NamedSharding(mesh, P("data"))

    inner = jax.jit(lambda x, w: x @ w, out_shardings=place)

    def loss(weights: Any, x: Any) -> Any:
        saved = jax.checkpoint(
            lambda x, w: _clipped(inner(x, w["w"])),
            policy=jax.checkpoint_policies.dots_saveable,
        )
        x = saved(x, weights[0])
        x = lax.cond(x[0, 0] > 2.0, lambda x: x, lambda x: _layer(x, weights[1]), x)
        x = lax.fori_loop(0, 2, lambda _, x: _layer(x, weights[2]), x)
        return jnp.mean((x - 0.5) ** 2)

    return loss, _layers(), X


def _convolution(mesh: Any) -> Any:
    def loss(weights: Any, x: Any) -> Any:
        x = lax.conv_general_dilated(
            x, weights["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        x = jax.nn.relu((x - mean) * lax.rsqrt(var + 1e-5) * weights["g"])
        return jnp.mean((x.mean((1, 2)) @ weights["w"] - 0.5) ** 2)

    weights = {
        "k": normal(1, 3, 3, 8, 16, scale=0.1),
        "g": jnp.ones(16),
        "w": normal(2, 16, 16, scale=0.25),
    }
    return loss, weights, normal(4, 16, 4, 4, 8)


def _explicit_block(mesh: Any) -> Any:
    """Dots and lookups that name where their results lie."""

    def loss(weights: Any, ids: Any) -> Any:
        x = weights["embed"].at[ids].get(out_sharding=P("data"))
        up = jnp.einsum("btd,df->btf", x, weights["up"], out_sharding=P("data", None, "model"))
        down = jnp.einsum("btf,fd->btd", jax.nn.gelu(up), weights["down"], out_sharding=P("data"))
        x = x + down
        x = x - x.mean(-1, keepdims=True)
        x = jax.sharding.reshard(x, P("data"))
        logits = jnp.einsum("btd,vd->btv", x, weights["embed"])
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1)
        return -picked.mean()

    weights = {
        "embed": normal(5, 24, WIDTH),
        "up": normal(10, WIDTH, 4 * WIDTH, scale=0.25),
        "down": normal(11, 4 * WIDTH, WIDTH, scale=0.125),
    }
    return loss, weights, jnp.asarray(np.random.default_rng(1).integers(0, 24, (8, 8)))


def _explicit_attention(mesh: Any) -> Any:
    """Heads over ``model``."""

    def loss(weights: Any, ids: Any) -> Any:
        x = weights["embed"].at[ids].get(out_sharding=P("data"))
        q, k, v = (jnp.einsum("btd,dhe->bhte", _norm(x), weights[name]) for name in "qkv")
        scores = jnp.einsum("bhte,bhse->bhts", q, k) / 2.0
        weighed = jax.nn.softmax(jnp.where(jnp.tri(ids.shape[1], dtype=bool), scores, -1e9))
        mixed = jnp.einsum("bhts,bhse->bhte", weighed, v)
        x = x + jnp.einsum("bhte,hed->btd", mixed, weights["o"], out_sharding=P("data"))
        hidden = jax.nn.gelu(jnp.einsum("btd,df->btf", _norm(x), weights["up"]))
        x = x + jnp.einsum("btf,fd->btd", hidden, weights["down"], out_sharding=P("data"))
        logits = jnp.einsum("btd,vd->btv", _norm(x), weights["embed"])
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1)
        return -picked.mean()

    return loss, *_block(mesh)[1:]


def _explicit_nested(mesh: Any) -> Any:
    """A derivative of one's own, kept dots, a loop, a branch."""

    def loss(weights: Any, x: Any) -> Any:
        saved = jax.checkpoint(
            lambda x, w: _clipped(x @ w["w"]), policy=jax.checkpoint_policies.dots_saveable
        )
        x = saved(x, weights[0])
        x = lax.cond(jnp.sum(x) > 1e6, lambda x: x, lambda x: _layer(x, weights[1]), x)
        x, _ = lax.scan(lambda x, _: (_layer(x, weights[2]), None), x, None, length=2)
        return jnp.mean((x - 0.5) ** 2)

    return loss, _layers(), X


def _explicit_fsdp(mesh: Any) -> Any:
    """Weights gathered where they are used."""

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            whole = jax.tree.map(lambda leaf: jax.sharding.reshard(leaf, P()), w)
            x = _layer(x, whole)
        return jnp.mean((x - 0.5) ** 2)

    return loss, _layers(), X


def _explicit_scan(mesh: Any) -> Any:
    def loss(weights: Any, x: Any) -> Any:
        @jax.checkpoint
        def layer(x: Any, w: Any) -> Any:
            return _layer(x, jax.tree.map(lambda leaf: jax.sharding.reshard(leaf, P()), w))

        last, _ = lax.scan(lambda x, w: (layer(x, w), None), x, weights)
        return jnp.mean((last - 0.5) ** 2)

    return loss, {"w": square(1, 4), "b": jnp.zeros((4, WIDTH))}, X


def _explicit_auto(mesh: Any) -> Any:
    """A part of the program in which the compiler decides."""

    def loss(weights: Any, x: Any) -> Any:
        inner: Any = jax.sharding.auto_axes(_layer, out_sharding=P("data"))  # pyright: ignore[reportCallIssue]
        for w in weights:
            x = inner(x, w)
        return jnp.mean((x - 0.5) ** 2)

    return loss, _layers(), X


_DATA = {"data": 8}
_PLAIN = [{"w": P(), "b": P()}] * 3
_SHARDED = [{"w": P("data"), "b": P("data")}] * 3
_STACKED = {"w": P(None, "data"), "b": P()}
_HEADS = {
    "embed": P(),
    **dict.fromkeys("qkv", P(None, "model")),
    "o": P("model"),
    "up": P(None, "model"),
    "down": P("model"),
}
_EXPERTS = {"router": P(), "up": P("expert"), "down": P("expert")}
_TWO = {"data": 2, "model": 4}
CASES: dict[str, Case] = {
    "data parallel": Case(_DATA, _dense, _PLAIN, P("data")),
    "fully sharded": Case(_DATA, _dense, _SHARDED, P("data")),
    "scan": Case(_DATA, _scanned(False), _STACKED, P("data")),
    "scan, rematerialized": Case(_DATA, _scanned(True), _STACKED, P("data")),
    "tensor parallel": Case(_TWO, _block, _HEADS, P("data")),
    "pipeline": Case({"stage": 8}, _pipeline, {"w": P("stage"), "b": P("stage")}, P()),
    "experts": Case({"expert": 8}, _experts, _EXPERTS, P("expert")),
    "experts, by constraints": Case({"expert": 8}, _experts_auto, _EXPERTS, P("expert")),
    "sequence parallel": Case(
        {"model": 8}, _sequence, {"up": P(None, "model"), "down": P("model")}, P("model")
    ),
    "ring attention": Case({"seq": 8}, _ring, dict.fromkeys("qkv", P()), P("seq")),
    "partly by hand": Case(
        _TWO, _partly, [{"w": P(None, "model"), "b": P("model")}] * 3, P("data")
    ),
    "nested": Case(_DATA, _nested, _SHARDED, P("data")),
    "convolution": Case(_DATA, _convolution, {"k": P(), "g": P(), "w": P("data")}, P("data")),
    "explicit, data parallel": Case(_DATA, _dense, _PLAIN, P("data"), explicit=True),
    "explicit, fully sharded": Case(_DATA, _explicit_fsdp, _SHARDED, P("data"), explicit=True),
    "explicit, scan": Case(_DATA, _explicit_scan, _STACKED, P("data"), explicit=True),
    "explicit, tensor parallel": Case(
        _TWO,
        _explicit_block,
        {"embed": P(), "up": P(None, "model"), "down": P("model")},
        P("data"),
        explicit=True,
    ),
    "explicit, attention": Case(_TWO, _explicit_attention, _HEADS, P("data"), explicit=True),
    "explicit, convolution": Case(
        _DATA, _convolution, {"k": P(), "g": P(), "w": P()}, P("data"), explicit=True
    ),
    "explicit, nested": Case(_DATA, _explicit_nested, _PLAIN, P("data"), explicit=True),
    "explicit, automatic inside": Case(_DATA, _explicit_auto, _SHARDED, P("data"), explicit=True),
    "explicit, experts": Case({"expert": 8}, _experts, _EXPERTS, P("expert"), explicit=True),
    "explicit, pipeline": Case(
        {"stage": 8}, _pipeline, {"w": P("stage"), "b": P("stage")}, P(), explicit=True
    ),
}
"""By name."""
