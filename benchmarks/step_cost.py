# python -m benchmarks.step_cost
"""How much of a step is half, and how much does it keep for the backward pass, against by hand?

Counted on the program, so it needs no device and repeats exactly: bytes of the residuals that
``jax.vjp`` keeps (parameters themselves not counted) and dots and convolutions with half operands
among all. What a compiler fuses is not seen here; the CPU's compiled program would not show it
either, since it computes half precision in float32.

The derivative of a bfloat16 dot is a primitive of duotone's on CPUs
(``duotone/jaxpr/rules/dots.py``); it counts as the dot that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks._common import Result, nested_programs, table, write
from benchmarks.gradient_error import HALF_TYPES, gradients, painted
from benchmarks.models import Case, gpt2_small, small_resnet, small_transformer, small_unet
from benchmarks.models.case import Tree

QUESTION = "How much of a step is half, and what does it keep, against dtypes set by hand?"
MODELS: dict[str, Callable[..., Case]] = {
    "resnet": small_resnet,
    "transformer": small_transformer,
    "unet": small_unet,
    "GPT-2 small, 8 x 1024": lambda dtype=None: gpt2_small(dtype, batch=8, length=1024),
}
_DOTS = ("dot_general", "conv_general_dilated", "ragged_dot_general", "duotone_dot")


def residual_bytes(loss: Callable[[Tree, Tree], jax.Array], shapes: tuple[Tree, Tree]) -> int:
    """Bytes of what the backward pass reads of the forward pass, parameters and batch aside."""
    params, batch = shapes

    def kept(params: Tree, batch: Tree) -> Any:
        return jax.vjp(lambda p: loss(p, batch), params)[1]

    given = {(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(shapes)}
    leaves = jax.tree.leaves(jax.eval_shape(kept, params, batch))
    arrays = [leaf for leaf in leaves if (leaf.shape, leaf.dtype) not in given]
    return sum(leaf.size * leaf.dtype.itemsize for leaf in arrays)


def dots(jaxpr: Any) -> Iterator[bool]:
    """For each dot and convolution, whether its operands are half."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if eqn.primitive.name in _DOTS:
            yield all(atom.aval.dtype.itemsize == 2 for atom in eqn.invars[:2])
        for nested in nested_programs(eqn.params.values()):
            yield from dots(nested)


def rows_of(name: str, make: Callable[..., Case]) -> list[dict[str, Any]]:
    """One row for each way to the gradient."""
    case = make()
    shapes = case.shapes()
    ways: dict[str, tuple[Any, Any]] = {"float32": (jax.grad(case.loss), case.loss)}
    for half in HALF_TYPES:
        losses = {
            "by hand": make(jnp.dtype(half)).loss,
            "autocast(grad(f))": None,
            "grad(autocast(f))": painted(case.loss, half),
        }
        for way, gradient in gradients(make, half).items():
            ways[f"{half} {way}"] = (gradient, losses[way])
    rows = []
    for way, (gradient, loss) in ways.items():
        found = list(dots(jax.make_jaxpr(gradient)(*shapes)))
        kept = None if loss is None else residual_bytes(loss, shapes) / 1e6
        rows.append(
            {
                "model": name,
                "way": way,
                "dots": len(found),
                "half dots": sum(found),
                "kept MB": kept,
            }
        )
    return rows


def text_of(name: str, rows: list[dict[str, Any]]) -> str:
    """One table."""
    cells = [
        [row["way"], f"{row['half dots']}/{row['dots']}", _shown(row["kept MB"])] for row in rows
    ]
    return table([name, "dots in half", "residuals, MB"], cells)


def _shown(megabytes: float | None) -> str:
    return "-" if megabytes is None else f"{megabytes:.3g}"


def main() -> None:
    """Measures and writes the result."""
    rows = {name: rows_of(name, make) for name, make in MODELS.items()}
    text = "\n\n".join(text_of(name, found) for name, found in rows.items())
    write(Result("step_cost", QUESTION, "python -m benchmarks.step_cost", [], text, rows))


if __name__ == "__main__":
    main()
