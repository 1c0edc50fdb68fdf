"""What a case is: a function, its arguments, and what must hold of it, as data.

Families of cases (``elementwise.py``, ``control_flow.py`` …) make them, ``cases.py`` gathers
them, ``test_cases.py`` checks every one in every variation. A variation that cannot be had for a
case is a limit with a reason, which the generated tables in ``docs/coverage/`` show; no test skips
by name.

Arguments are exact in float16 and bfloat16 (multiples of 1/16 below 4), so that casting them loses
nothing and what is left to measure is the operation itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

VARIATIONS = ("plain", "sandwich", "grad outside", "grad inside", "vmap", "forced")
"""How each case is called: as it is, between two dots, ``grad(autocast(f))``,
``autocast(grad(f))``, ``vmap(autocast(f))``, and with its primitive put on the allow list."""

NOT_DIFFERENTIABLE = "not differentiable"
NO_FLOAT = "no float32 operand to be painted"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One case.

    Attributes:
        name: unique.
        function: takes ``args``.
        args: pytrees of NumPy arrays and static leaves; a callable makes what needs JAX (keys).
        primitives: names that must appear in the traced function (nested ones included).
        transformations: what the case covers besides primitives.
        through: the argument that the dot of the sandwich feeds; ``None`` if there is none.
        all_operands: the dot of the sandwich feeds every float32 operand, not that one only.
        ulp: tolerance of values, in ULP of the half type at the largest element of a result.
        grad_ulp: tolerance of gradients.
        loose: a wider tolerance that needs a reason, as ``(ulp, reason)``, for both.
        limits: variation to the reason why it cannot be had.
        opaque: primitives that must be left alone, dtypes and all.
        forced: what the allow list does to the case's primitive: ``"half"`` (its half form runs),
            ``"fixed"`` (it has none and stays full) or ``"refused"`` (a RewriteError that says so).
        effects: the case has effects that a test counts.
        x64: runs with 64-bit types enabled.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] | Callable[[], tuple[Any, ...]]
    primitives: tuple[str, ...] = ()
    transformations: tuple[str, ...] = ()
    through: int | None = 0
    all_operands: bool = False
    ulp: float = 2.0
    grad_ulp: float = 8.0
    loose: tuple[float, str] | None = None
    limits: Mapping[str, str] = dataclasses.field(default_factory=dict)
    opaque: tuple[str, ...] = ()
    forced: str = "half"
    x64: bool = False

    def arguments(self) -> tuple[Any, ...]:
        """The arguments."""
        return self.args() if callable(self.args) else self.args

    def tolerance(self, variation: str) -> float:
        """ULP of the half type."""
        if self.loose is not None:
            return self.loose[0]
        return self.grad_ulp if variation.startswith("grad") else self.ulp


def cases_of(*default: Any, **settings: Any) -> Callable[..., Case]:
    """Makes the cases of one family: ``make(name, function, transformation, *args, **fields)``.

    Args:
        *default: the arguments of a case without any of its own.
        **settings: fields of every case, which a case may set otherwise.
    """
    settings = {"grad_ulp": 16.0, "ulp": 4.0, **settings}

    def make(name: str, function: Any, transformation: str, *args: Any, **fields: Any) -> Case:
        of = {"args": args or default, "transformations": (transformation,)}
        return Case(name=name, function=function, **of, **{**settings, **fields})

    return make


def limits(
    *, grad: str = "", vmap: str = "", forced: str = "", sandwich: str = ""
) -> dict[str, str]:
    """The limits that are set, by variation."""
    named = {
        "grad outside": grad,
        "grad inside": grad,
        "vmap": vmap,
        "forced": forced,
        "sandwich": sandwich,
    }
    return {variation: reason for variation, reason in named.items() if reason}


def _grid(low: float, high: float, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Multiples of 1/16 between two bounds, all different while there are enough of them."""
    steps = np.arange(np.ceil(low * 16), np.floor(high * 16) + 1)
    count = int(np.prod(shape, dtype=int))
    rng = np.random.default_rng(seed)
    picked = rng.choice(steps, count, replace=count > len(steps))
    return (picked / 16).astype(np.float32).reshape(shape)


def reals(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers between -2 and 2."""
    return _grid(-2, 2, shape, seed)


def positives(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers between 1/2 and 3."""
    return _grid(0.5, 3, shape, seed)


def above_one(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers between 9/8 and 3."""
    return _grid(1.125, 3, shape, seed)


def units(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers between -3/4 and 3/4."""
    return _grid(-0.75, 0.75, shape, seed)


def integers(*shape: int, low: int = 0, high: int = 8, seed: int = 0) -> np.ndarray:
    """int32 numbers in ``[low, high)``."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.int32)


def booleans(*shape: int, seed: int = 0) -> np.ndarray:
    """Booleans."""
    return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)


def matrix(n: int, seed: int = 0) -> np.ndarray:
    """A well conditioned square matrix."""
    return (units(n, n, seed=seed) / 2 + 2 * np.eye(n)).astype(np.float32)


def symmetric(n: int, seed: int = 0) -> np.ndarray:
    """A symmetric positive definite matrix with eigenvalues apart."""
    off = units(n, n, seed=seed) / 4
    return (np.diag(np.arange(1, n + 1)) + (off + off.T) / 2).astype(np.float32)
