"""``duotone.reroll``: repeated parts of a program become loops, so that they are compiled once.

The road: trace (:mod:`duotone.jaxpr.reading`), list, find runs, plan, carry out. It is walked while
``jit`` traces, once for each signature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from duotone import _jax
from duotone.compiling.rerolled_program import rolled
from duotone.jaxpr.reading.signature import Signature
from duotone.jaxpr.reading.trace import Traced, trace
from duotone.jaxpr.running.run import Runner
from duotone.policy.arguments import check_callable

NAME = "duotone_reroll"
"""The name of the ``jit`` function around a rolled program."""


def reroll(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose unrolled loops are loops again: each repeated part is compiled once.

    Python loops over time steps, solver steps or layers leave as many copies of their body in the
    traced program as they had turns, and XLA's time grows faster than their number. Equal copies
    that follow each other become one ``lax.scan``: what a copy hands to the next one is carried,
    what is another value in each copy is stacked.

    A run is left as it is where a loop would cost more than it saves: few operations, weights that
    would have to be stacked, values kept that nothing reads. ``duotone clusters file.py:fn`` and
    :func:`duotone.clusters` say what became of each.

    Results are those of ``fn`` up to rounding, since the compiler fuses a loop's body by itself;
    effects happen in their order. Gradients, ``vmap`` and ``jit`` may stand around it or inside.

    Args:
        fn: any function that JAX can trace. Arguments that are no arrays are part of the program.

    Returns:
        A function of the same arguments and results, compiled at its first call with a signature.

    Raises:
        ArgumentTypeError: ``fn`` is not callable.

    Example:
        >>> import jax.numpy as jnp, duotone
        >>> def unrolled(x):
        ...     for _ in range(100):
        ...         x = x - 0.1 * jnp.sin(x)
        ...     return x
        >>> bool(jnp.allclose(duotone.reroll(unrolled)(jnp.ones(3)), unrolled(jnp.ones(3))))
        True
    """
    check_callable("reroll", fn)
    runner = _Runner(fn)

    @functools.wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return runner(args, kwargs)

    return call


class _Runner(Runner):
    """A function and its rolled programs, by signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function, _carried_out, "reroll")

    def _compile(self, signature: Signature, arrays: Sequence[Any]) -> Callable[..., Any]:
        self._warn_of_many(signature)

        def program(*leaves: Any) -> Any:
            traced = trace(self._function, signature, leaves, self._name)
            return self._rewrite(traced)(*leaves), traced.results

        donated = self._donated(signature, arrays)
        return jax.jit(_jax.named(program, NAME), donate_argnums=donated)


def _carried_out(traced: Traced) -> Callable[..., list[Any]]:
    return rolled(traced.jaxpr, [])
