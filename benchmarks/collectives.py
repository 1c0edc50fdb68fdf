# python -m benchmarks.collectives
"""How many bytes do devices send each other, in float32 and painted?

Training steps over a mesh of eight devices, compiled for H200s and for a slice of a v5e pod that
are not there: fully sharded layers written out, in a scan, rematerialized, as experts; and layers
divided by tensor parallelism. Bytes are those that one device sends, by kind of collective; the bar
is on the weights that are gathered. It needs the extras ``cuda`` and ``tpu``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from rich.progress import track

import duotone
from benchmarks._common import Bar, Result, table, write
from duotone.errors import MissingExtraError

QUESTION = "How many bytes do devices send each other, in float32 and painted?"
COMMAND = "python -m benchmarks.collectives"
TARGETS = ("h200", "v5e")
HALF = "bfloat16"
FORMS = ("float32", "autocast(step)", "value_and_grad(autocast(f))")
GATHERED = "all-gather"
_LIMIT = 0.55
"""Of gathered bytes over float32's; TPUs gather float32 weights in bfloat16 already."""
_DEVICES, _WIDTH, _LAYERS, _BATCH = 8, 1024, 4, 8192
P = PartitionSpec
MESH = AbstractMesh((_DEVICES,), ("data",), axis_types=(AxisType.Auto,))
Loss = Callable[[Any, Any], jax.Array]


def on(shape: tuple[int, ...], *spec: str | None) -> jax.ShapeDtypeStruct:
    """A float32 array over the mesh."""
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))


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


def _tensor_parallel(weights: Any, x: jax.Array) -> jax.Array:
    for up, down in weights:
        x = x + jax.nn.gelu(x @ up) @ down
    return jnp.mean(x**2)


_SQUARE = (_WIDTH, _WIDTH)
_ROWS = on((_BATCH, _WIDTH), "data")
_EACH = [on(_SQUARE, "data") for _ in range(_LAYERS)]
_STACKED = on((_LAYERS, *_SQUARE), None, "data")
CASES: dict[str, tuple[Loss, Any, Any]] = {
    "layers": (_written_out(_layer), _EACH, _ROWS),
    "scan": (_scanned(_layer), _STACKED, _ROWS),
    "rematerialized": (_written_out(jax.checkpoint(_layer)), _EACH, _ROWS),
    "scan, rematerialized": (_scanned(jax.checkpoint(_layer)), _STACKED, _ROWS),
    "experts": (
        _experts,
        [
            on((_DEVICES, _WIDTH, 2 * _WIDTH), None, "data"),
            on((_DEVICES, 2 * _WIDTH, _WIDTH), None, "data"),
        ],
        _ROWS,
    ),
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
    """Bytes of all-gathers."""
    return sum(size for kind, size in found.items() if kind.startswith(GATHERED))


def result_of(figures: dict[str, dict[str, int]]) -> Result:
    """The table and the limits.

    Args:
        figures: by ``"case/target/form"``, what :func:`sent` finds.
    """
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
                if form != FORMS[0] and target == "h200" and gathered(full):
                    ratio = gathered(found) / gathered(full)
                    label = f"{target}, {name}, {form}: gathered over float32's"
                    bars.append(Bar(label, ratio, _LIMIT, "times"))
    head = ["step", "target", "form", "sent over float32", "MB that a device sends"]
    return Result("collectives", QUESTION, COMMAND, bars, table(head, rows), figures)


def main() -> None:
    """Compiles all and writes the table."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    asked = parser.parse_args()
    jobs = [(name, target, form) for target in TARGETS for name in asked.only for form in FORMS]
    try:
        figures = {"/".join(job): sent(*job) for job in track(jobs, "compiling")}
    except MissingExtraError as error:
        raise SystemExit(f"not measured: {error}") from error
    write(result_of(figures))


if __name__ == "__main__":
    main()
