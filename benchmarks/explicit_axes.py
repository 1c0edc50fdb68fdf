# python -m benchmarks.explicit_axes
"""Does a step with explicit mesh axes move as few bytes as one with automatic axes?

``jax.make_mesh`` makes explicit axes by default: shardings are then part of types. A training step
of a GPT over eight devices, its batch divided, is compiled for H200s that are not there: with
dtypes set by hand, and rewritten. Bytes are those that the kernels of one device move. It needs the
extra ``cuda``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from rich.progress import track

import duotone
from benchmarks._common import Bar, Result, table, take_no_options, write
from duotone.errors import MissingExtraError

QUESTION = "Does a step with explicit mesh axes move as few bytes as one with automatic axes?"
COMMAND = "python -m benchmarks.explicit_axes"
HALF = "bfloat16"
AXES = {"automatic": AxisType.Auto, "explicit": AxisType.Explicit}
BY_HAND, SHORT, WHOLE = "by hand", "value_and_grad(autocast(f))", "duotone.value_and_grad(f)"
FORMS = (BY_HAND, SHORT, WHOLE)
_DEVICES, _LAYERS, _WIDTH, _HEADS, _WORDS = 8, 4, 768, 12, 32768
_BATCH, _LENGTH = 64, 1024
_MOST_OVER_AUTOMATIC, _MOST_OVER_HAND = 1.02, 0.95
P = PartitionSpec


def _loss(mesh: AbstractMesh, dtype: str) -> Callable[[Any, Any], jax.Array]:
    """A GPT's loss whose dots compute in a dtype."""
    place = NamedSharding(mesh, P("data")) if AxisType.Explicit in mesh.axis_types else None

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        x = x.astype("float32")
        x = x - jnp.mean(x, -1, keepdims=True)
        return (x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5) * scale).astype(dtype)

    def loss(weights: Any, tokens: jax.Array) -> jax.Array:
        embedded = weights["embed"].at[tokens].get(out_sharding=place)
        weights = jax.tree.map(lambda w: w.astype(dtype) if w.ndim > 1 else w, weights)
        x = embedded.astype(dtype) + weights["places"]
        for layer in weights["layers"]:
            heads = jnp.einsum("btd,dnhk->nbhtk", norm(x, layer["norm"][0]), layer["heads"])
            scores = jnp.einsum("bhtk,bhsk->bhts", heads[0], heads[1]) / 8.0
            scores = jnp.where(jnp.tri(_LENGTH, dtype=bool), scores.astype("float32"), -1e9)
            mixed = jnp.einsum("bhts,bhsk->bthk", jax.nn.softmax(scores).astype(dtype), heads[2])
            x = x + jnp.einsum("bthk,hkd->btd", mixed, layer["out"])
            x = x + jax.nn.gelu(norm(x, layer["norm"][1]) @ layer["up"]) @ layer["down"]
        logits = jnp.einsum("btd,vd->btv", norm(x, weights["norm"]), weights["embed"])
        likely = jax.nn.log_softmax(logits.astype("float32"))
        following = jnp.roll(tokens, -1, 1)[..., None]
        return -jnp.mean(jnp.take_along_axis(likely, following, -1))

    return loss


def arguments(mesh: AbstractMesh) -> tuple[Any, jax.ShapeDtypeStruct]:
    """Weights on all devices, and tokens divided among them."""

    def on(*shape: int, spec: PartitionSpec = P(), dtype: str = "float32") -> Any:  # noqa: B008
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    layer = {
        "norm": [on(_WIDTH), on(_WIDTH)],
        "heads": on(_WIDTH, 3, _HEADS, _WIDTH // _HEADS),
        "out": on(_HEADS, _WIDTH // _HEADS, _WIDTH),
        "up": on(_WIDTH, 4 * _WIDTH),
        "down": on(4 * _WIDTH, _WIDTH),
    }
    weights = {
        "embed": on(_WORDS, _WIDTH),
        "places": on(_LENGTH, _WIDTH),
        "norm": on(_WIDTH),
        "layers": [layer] * _LAYERS,
    }
    return weights, on(_BATCH, _LENGTH, spec=P("data"), dtype="int32")


def step_of(mesh: AbstractMesh, form: str) -> Callable[..., Any]:
    """A step of gradient descent in one form."""
    plain = _loss(mesh, "float32")
    gradient: Callable[..., Any] = {
        BY_HAND: lambda: jax.value_and_grad(_loss(mesh, HALF)),
        SHORT: lambda: jax.value_and_grad(duotone.autocast(plain, dtype=HALF)),
        WHOLE: lambda: duotone.value_and_grad(plain, dtype=HALF),
    }[form]()

    def step(weights: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = gradient(weights, tokens)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients), value

    return jax.jit(step, donate_argnums=0)


def moved(axes: str, form: str) -> dict[str, int]:
    """Bytes that one device moves, stores for a while, and sends."""
    mesh = AbstractMesh((_DEVICES,), ("data",), axis_types=(AXES[axes],))
    cost = duotone.compile_for(step_of(mesh, form), *arguments(mesh), target="h200")
    return {
        "moved": cost.bytes,
        "temporary": cost.temporary_bytes,
        "sent": sum(collective.total_bytes for collective in cost.collectives),
    }


def result_of(figures: dict[str, dict[str, int]]) -> Result:
    """The table and the limits of what :func:`moved` finds, by ``"axes/form"``."""
    rows, bars = [], []
    for form in FORMS:
        for axes in AXES:
            found = figures[f"{axes}/{form}"]
            over = found["moved"] / figures[f"{axes}/{BY_HAND}"]["moved"]
            rows.append([form, axes, *[f"{size / 1e9:.2f}" for size in found.values()], over])
            if axes == "explicit" and form != BY_HAND:
                ratio = found["moved"] / figures[f"automatic/{form}"]["moved"]
                bars += [
                    Bar(f"{form}, explicit axes", ratio, _MOST_OVER_AUTOMATIC, "times automatic"),
                    Bar(f"{form}, explicit axes", over, _MOST_OVER_HAND, "times by hand"),
                ]
    head = ["form", "axes", "GB moved", "GB temporary", "GB sent", "moved over by hand"]
    return Result("explicit_axes", QUESTION, COMMAND, bars, table(head, rows), figures)


def main() -> None:
    """Compiles all and writes the table."""
    take_no_options(QUESTION)
    jobs = [(axes, form) for form in FORMS for axes in AXES]
    try:
        figures = {"/".join(job): moved(*job) for job in track(jobs, "compiling")}
    except MissingExtraError as error:
        raise SystemExit(f"not measured: {error}") from error
    write(result_of(figures))


if __name__ == "__main__":
    main()
