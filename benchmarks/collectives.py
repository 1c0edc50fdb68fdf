# python -m benchmarks.collectives
"""How many bytes do devices send each other, in float32 and painted?

Training steps over a mesh of eight devices, compiled for H200s and for a slice of a v5e pod that
are not there: fully sharded layers written out, in a scan, rematerialized, as experts, with
explicit axes, by hand in ``shard_map``; and layers divided by tensor parallelism. Bytes are those
that one device sends, by kind of collective. The bars are on the weights that are gathered, over
what float32 gathers on an H200: a v5e's compiler rounds float32 weights to bfloat16 before it
gathers them, and makes rings of permutes of some gathers. It needs the extras ``cuda`` and
``tpu``.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from rich.progress import track

import duotone
from benchmarks._common import RESULTS, Bar, Result, table, write
from duotone.errors import MissingExtraError

QUESTION = "How many bytes do devices send each other, in float32 and painted?"
COMMAND = "python -m benchmarks.collectives"
TARGETS = ("h200", "v5e")
HALF = "bfloat16"
FORMS = ("float32", "autocast(step)", "value_and_grad(autocast(f))")
GATHERED = ("all-gather", "collective-permute")
"""Also rings of permutes, which XLA makes of gathers next to dots; no case permutes otherwise."""
_LIMIT = 0.55
"""The limit of gathered bytes over float32's."""
_DEVICES, _WIDTH, _LAYERS, _BATCH = 8, 1024, 4, 8192
P = PartitionSpec
LAST = RESULTS / "collectives.json"
MESH = AbstractMesh((_DEVICES,), ("data",), axis_types=(AxisType.Auto,))
EXPLICIT = AbstractMesh((_DEVICES,), ("data",), axis_types=(AxisType.Explicit,))
Loss = Callable[[Any, Any], jax.Array]


def on(
    shape: tuple[int, ...], *spec: str | None, mesh: AbstractMesh = MESH
) -> jax.ShapeDtypeStruct:
    """A float32 array over a mesh."""
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))


def _layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def _written_out(layer: Callable[..., jax.Array]) -> Loss:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for w in weights:
            x = layer(x, w)
        return jnp.mean(x**2)

    return loss


def _scanned(layer: Callable[..., jax.Array]) -> Loss:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        last, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)
        return jnp.mean(last**2)

    return loss


def _experts(weights: Any, x: jax.Array) -> jax.Array:
    up, down = weights
    routed = x.reshape(_DEVICES, -1, _WIDTH)
    hidden = jax.nn.relu(jnp.einsum("ebd,edf->ebf", routed, up))
    return jnp.mean(jnp.einsum("ebf,efd->ebd", hidden, down) ** 2)


def _explicit(weights: Any, x: Any) -> Any:
    for w in weights:
        x = _layer(x, jax.sharding.reshard(w, NamedSharding(EXPLICIT, P())))
    return jnp.mean(x**2)


def _on_shards(local: Loss) -> Loss:
    return jax.shard_map(local, mesh=MESH, in_specs=(P("data"), P("data")), out_specs=P())


def _by_hand(weights: Any, x: Any) -> Any:
    """Weights are gathered, and their gradients scattered, by collectives of the program."""

    def local(weights: Any, x: Any) -> Any:
        for w in weights:
            x = _layer(x, jax.lax.all_gather(w, "data", tiled=True))
        return jax.lax.pmean(jnp.mean(x**2), "data")

    return _on_shards(local)(weights, x)


def _experts_by_hand(weights: Any, x: Any) -> Any:
    """One expert a device; rows are exchanged by ``all_to_all``."""

    def local(weights: Any, x: Any) -> Any:
        up, down = (w[0] for w in weights)
        sent = x.reshape(_DEVICES, -1, _WIDTH)
        got = jax.lax.all_to_all(sent, "data", 0, 0, tiled=True).reshape(-1, _WIDTH)
        made = (jax.nn.relu(got @ up) @ down).reshape(sent.shape)
        back = jax.lax.all_to_all(made, "data", 0, 0, tiled=True)
        return jax.lax.pmean(jnp.mean(back**2), "data")

    return _on_shards(local)(weights, x)


def _tensor_parallel(weights: Any, x: jax.Array) -> jax.Array:
    for up, down in weights:
        x = x + jax.nn.gelu(x @ up) @ down
    return jnp.mean(x**2)


_SQUARE = (_WIDTH, _WIDTH)
_ROWS = on((_BATCH, _WIDTH), "data")
_EACH = [on(_SQUARE, "data") for _ in range(_LAYERS)]
_EXPERTS = ((_DEVICES, _WIDTH, 2 * _WIDTH), (_DEVICES, 2 * _WIDTH, _WIDTH))
_STACKED = on((_LAYERS, *_SQUARE), None, "data")
CASES: dict[str, tuple[Loss, Any, Any]] = {
    "layers": (_written_out(_layer), _EACH, _ROWS),
    "scan": (_scanned(_layer), _STACKED, _ROWS),
    "rematerialized": (_written_out(jax.checkpoint(_layer)), _EACH, _ROWS),
    "scan, rematerialized": (_scanned(jax.checkpoint(_layer)), _STACKED, _ROWS),
    "experts": (_experts, [on(size, None, "data") for size in _EXPERTS], _ROWS),
    "explicit axes": (
        _explicit,
        [on(_SQUARE, "data", mesh=EXPLICIT) for _ in range(_LAYERS)],
        on((_BATCH, _WIDTH), "data", mesh=EXPLICIT),
    ),
    "by hand": (_by_hand, _EACH, _ROWS),
    "experts by hand": (_experts_by_hand, [on(size, "data") for size in _EXPERTS], _ROWS),
    "tensor parallel": (
        _tensor_parallel,
        [
            (on((_WIDTH, 4 * _WIDTH), None, "data"), on((4 * _WIDTH, _WIDTH), "data"))
            for _ in range(_LAYERS)
        ],
        on((_BATCH, _WIDTH)),
    ),
}
"""By name: a loss, its weights and its batch."""
_NOT_COUNTED = {("by hand", "v5e"), ("experts by hand", "v5e")}
"""All collectives of ``shard_map`` have one channel, by which pieces of one are known on TPUs."""


def step_of(loss: Loss, form: str) -> Callable[..., Any]:
    """A step of gradient descent in one form."""
    inner = duotone.autocast(loss, dtype=HALF) if form == FORMS[2] else loss

    def step(weights: Any, x: Any) -> tuple[Any, jax.Array]:
        value, gradient = jax.value_and_grad(inner)(weights, x)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradient), value

    whole = duotone.autocast(step, dtype=HALF) if form == FORMS[1] else step
    return jax.jit(whole, donate_argnums=0)


def sent(name: str, target: str, form: str) -> dict[str, int]:
    """Bytes that one device sends in a step, by kind of collective and dtype."""
    loss, weights, x = CASES[name]
    cost = duotone.compile_for(step_of(loss, form), weights, x, target=target)
    found: Counter[str] = Counter()
    for collective in cost.collectives:
        found[f"{collective.kind} {collective.dtype}"] += collective.total_bytes
    return dict(found)


def gathered(found: dict[str, int]) -> int:
    """Bytes of all-gathers, rings of permutes included."""
    return sum(size for kind, size in found.items() if kind.startswith(GATHERED))


def result_of(figures: dict[str, dict[str, int]]) -> Result:
    """The table and the limits of what :func:`sent` finds, by ``"case/target/form"``."""
    rows, bars = [], []
    for target in TARGETS:
        for name in CASES:
            full = figures.get(f"{name}/{target}/{FORMS[0]}")
            for form in FORMS:
                found = figures.get(f"{name}/{target}/{form}")
                if found is None or full is None:
                    continue
                kinds = sorted(found.items(), key=lambda kind: -kind[1])
                told = ", ".join(f"{kind} {size / 1e6:.1f}" for kind, size in kinds if size > 1e3)
                over = sum(found.values()) / max(sum(full.values()), 1)
                rows.append([name, target, form, f"{over:.2f}", told])
                stated = gathered(figures.get(f"{name}/{TARGETS[0]}/{FORMS[0]}", {}))
                if form != FORMS[0] and stated:
                    ratio = gathered(found) / stated
                    label = f"{target}, {name}, {form}: gathered over float32's"
                    bars.append(Bar(label, ratio, _LIMIT, "times"))
    head = ["step", "target", "form", "sent over float32", "MB that a device sends"]
    return Result("collectives", QUESTION, COMMAND, bars, table(head, rows), figures)


def main() -> None:
    """Compiles all and writes the table."""
    parser = argparse.ArgumentParser(description=QUESTION)
    told = "of these cases, next to the last figures of the others"
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=None, help=told)
    asked = parser.parse_args()
    jobs = [
        (name, target, form)
        for target in TARGETS
        for name in asked.only or CASES
        for form in FORMS
        if (name, target) not in _NOT_COUNTED
    ]
    before = json.loads(LAST.read_text())["figures"] if asked.only and LAST.exists() else {}
    try:
        figures = {"/".join(job): sent(*job) for job in track(jobs, "compiling")}
    except MissingExtraError as error:
        raise SystemExit(f"not measured: {error}") from error
    write(result_of(before | figures))


if __name__ == "__main__":
    main()
