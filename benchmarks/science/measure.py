"""Runs a program in float64, float32 and painted, and compares its figures."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import duotone
from benchmarks._common import geometric_mean
from benchmarks.science.case import Function, Program, Tree

EPSILON = 2.0**-24
"""Half a unit in the last place of float32: no error is reckoned smaller."""
EPSILONS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The same of the half types: what a network's dots cannot be better than."""
PERTURBED = 1e-6
ENOUGH = 2.0
"""At most so many times float32's own error, or that of half dtypes set by hand."""
WAYS = ("float16", "bfloat16", "default")
_FORCED = duotone.Policy(ignore_performance=True)


@dataclasses.dataclass(frozen=True)
class Row:
    """One figure of one program.

    Attributes:
        program: its name, and the figure's.
        library: that it comes from.
        float32: error against float64 (or the truth), the geometric mean over seeds.
        yardstick: what the ways are divided by: float32's error, or that of a perturbed float32
            where the program is chaotic; where it is a network, the error by hand, of which what
            half cannot hold is not reckoned.
        ratios: by way, its error over the yardstick.
        half: by way, operations in half.
        total: operations.
    """

    program: str
    figure: str
    library: str
    float32: float
    yardstick: dict[str, float]
    ratios: dict[str, float]
    half: dict[str, int]
    total: int
    network: bool
    chaotic: bool

    @property
    def verdict(self) -> str:
        """In a few words."""
        worse = [way for way in WAYS if not self.ratios[way] <= ENOUGH]
        if worse:
            return f"worse in {', '.join(worse)}"
        if not any(self.half.values()):
            return "float32"
        return "as by hand" if self.network else "as float32"


def available(program: Program) -> bool:
    """Returns True if the library of a program is installed."""
    return not program.library or importlib.util.find_spec(program.library) is not None


def _settings(way: str) -> dict[str, Any]:
    """The keyword arguments of ``autocast`` and ``explain`` for a way."""
    return {} if way == "default" else {"dtype": jnp.dtype(way), "policy": _FORCED}


def _each(change: Callable[[Any], Any], args: Tree) -> Tree:
    """Changes the floating arrays of a tree."""

    def of(leaf: Any) -> Any:
        is_float = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
        return change(leaf) if is_float else leaf

    return jax.tree.map(of, args)


def _plain(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: np.asarray(leaf, "float64"), tree)


def _figures(program: Program, function: Function, args: Any) -> dict[str, np.ndarray]:
    wide = any(getattr(leaf, "dtype", None) == np.float64 for leaf in jax.tree.leaves(args))
    with jax.enable_x64(wide):
        found = program.figures(_plain(function(*args)))
    return {
        name: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(value)])
        for name, value in found.items()
    }


def _ways_of(program: Program) -> dict[str, Function]:
    """The program compiled in each way; every seed runs the same function."""
    function, _ = program.make(0, None)
    ways = {} if program.known else {"float64": jax.jit(function)}
    ways["float32"] = jax.jit(function)
    if program.chaotic:
        ways["perturbed"] = ways["float32"]
    ways |= {way: jax.jit(duotone.autocast(function, **_settings(way))) for way in WAYS}
    if program.network:
        for half in WAYS[:2]:
            ways[f"by hand {half}"] = jax.jit(program.make(0, jnp.dtype(half))[0])
    return ways


def _outputs(program: Program, ways: dict[str, Function], seed: int) -> dict[str, Any]:
    """By way, the figures of one seed."""
    _, args = program.make(seed, None)
    return {way: _figures(program, run, _arguments(way, args, seed)) for way, run in ways.items()}


def _arguments(way: str, args: Any, seed: int) -> Any:
    """Arguments as a way takes them."""
    rng = np.random.default_rng(seed)

    def shaken(leaf: Any) -> jax.Array:
        return jnp.asarray(leaf * (1 + PERTURBED * rng.uniform(-1, 1, leaf.shape)), "float32")

    if way == "float64":
        return _each(lambda leaf: np.asarray(leaf, "float64"), args)
    return _each(shaken if way == "perturbed" else jnp.asarray, args)


def error(figure: np.ndarray, exact: np.ndarray | None) -> float:
    """Relative to the root mean square of the exact figure; infinite if not finite."""
    if not np.isfinite(figure).all():
        return math.inf
    if exact is None:
        return max(float(np.sqrt(np.mean(figure**2))), EPSILON**2)
    scale = float(np.sqrt(np.mean(exact**2)))
    difference = float(np.sqrt(np.mean((figure - exact) ** 2)))
    return max(difference / scale if scale else difference, EPSILON)


def rows(program: Program) -> list[Row]:
    """The rows of one program: measures it."""
    ways = _ways_of(program)
    runs = [_outputs(program, ways, seed) for seed in range(program.seeds)]
    function, args = program.make(0, None)
    args = _each(jnp.asarray, args)
    half, total = {}, 0
    for way in WAYS:
        summary = duotone.explain(function, *args, **_settings(way)).summary
        half[way] = summary.operations_half
        total = summary.operations_half + summary.operations_full
    return [_row(program, name, runs, half, total) for name in runs[0]["float32"]]


def _row(
    program: Program, name: str, runs: list[dict[str, Any]], half: dict[str, int], total: int
) -> Row:
    errors = {
        way: geometric_mean(
            [error(run[way][name], run.get("float64", {}).get(name)) for run in runs]
        )
        for way in runs[0]
    }
    own = max(errors["float32"], errors.get("perturbed", 0.0))
    by_hand = dict.fromkeys(WAYS, 0.0)
    if program.network:
        by_hand |= {
            way: max(errors[f"by hand {_type(way)}"], EPSILONS[_type(way)])
            for way in WAYS
            if half[way]
        }
    yardstick = {way: max(own, by_hand[way]) for way in WAYS}
    return Row(
        program.name,
        name,
        program.library,
        errors["float32"],
        yardstick,
        {way: errors[way] / yardstick[way] for way in WAYS},
        half,
        total,
        program.network,
        program.chaotic,
    )


def _type(way: str) -> str:
    return "bfloat16" if way == "default" else way
