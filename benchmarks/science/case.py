"""A scientific program as a case: how it is made, and which of its results a user looks at."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any
Function = Callable[..., Tree]
Figures = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        name: what it does.
        make: from a seed, and the half type of the network's dots by hand (``None``: all float32),
            the function and its arguments: float32 arrays, integers, keys.
        library: the module that it needs; empty if its mathematics are typed here.
        figures: what a user looks at, by name, from the results as NumPy arrays.
        chaotic: rounding grows until it is as large as the result: judged by a float32 whose
            arguments were perturbed as well.
        known: the figures are errors already, against what is known of the truth.
        network: most of it is a network, whose dots are to be half; judged by hand.
        seeds: how many are run.
    """

    name: str
    make: Callable[[int, Any], tuple[Function, tuple[Any, ...]]]
    library: str = ""
    figures: Callable[[Tree], Figures] = dict
    chaotic: bool = False
    known: bool = False
    network: bool = False
    seeds: int = 3


def module(name: str) -> Any:
    """A library that is not a dependency: imported when a program is made."""
    return importlib.import_module(name)


def random(seed: int) -> np.random.Generator:
    """NumPy's random numbers: the same in both precisions of JAX."""
    return np.random.default_rng(seed)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal float32 numbers."""
    return rng.standard_normal(shape).astype("float32")


def dense(x: jax.Array, weight: jax.Array, half: Any) -> jax.Array:
    """A network's dot as people write it by hand: half operands, the result as the input was."""
    if half is None:
        return x @ weight
    return (x.astype(half) @ weight.astype(half)).astype(x.dtype)


def network(x: jax.Array, weights: list[jax.Array], half: Any = None) -> jax.Array:
    """Dense layers with tanh between them."""
    for weight in weights[:-1]:
        x = jnp.tanh(dense(x, weight, half))
    return dense(x, weights[-1], half)


def layers(rng: np.random.Generator, *sizes: int) -> list[np.ndarray]:
    """Weights of a network."""
    pairs = itertools.pairwise(sizes)
    return [normal(rng, a, b) / np.float32(np.sqrt(a)) for a, b in pairs]


def with_gradient(loss: Function) -> Function:
    """A loss and its gradient with respect to the first argument, as figures."""

    def step(*args: Any) -> Tree:
        value, gradient = jax.value_and_grad(loss)(*args)
        return {"loss": value, "gradient": gradient}

    return step
