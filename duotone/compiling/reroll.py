"""``duotone.reroll``: turns repeated parts of a program into loops, so that they compile once.

The pipeline: trace (:mod:`duotone.jaxpr.reading`), list, find runs, plan, rewrite. It runs while
``jit`` traces, once for each signature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from duotone import _jax
from duotone.compiling.rerolled_program import rolled
from duotone.jaxpr.reading.signature import Signature
from duotone.jaxpr.reading.trace import Traced, trace
from duotone.jaxpr.running.own_jit import own_jit
from duotone.jaxpr.running.run import Runner
from duotone.policy.arguments import check_callable

NAME = "duotone_reroll"
"""The name of the ``jit`` function around a rolled program."""


def reroll(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Rerolls the unrolled loops of a function, so that each repeated part is compiled once.

    A Python loop over time steps, solver steps or layers leaves one copy of its body per iteration
    in the traced program, and XLA's time grows faster than their number. Consecutive equal copies
    become one ``lax.scan``: it carries the values that pass from a copy to the next, and stacks the
    values that differ between copies.

    A run does not become a loop if the loop would cost more than it saves: few operations,
    weights that would have to be stacked, stacked values that nothing reads. ``duotone clusters
    file.py:fn`` and :func:`duotone.clusters` show the decision for each run.

    Results equal those of ``fn`` up to rounding, since the compiler fuses a loop's body separately.
    Effects keep their order. Gradients, ``vmap`` and ``jit`` work inside and outside of it.

    Args:
        fn: any function that JAX can trace. Arguments that are not arrays are part of the program.

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
        super().__init__(function, _rolled, "reroll")

    def _compile(self, signature: Signature, arrays: Sequence[Any]) -> Callable[..., Any]:
        self._warn_of_many(signature)

        def program(*leaves: Any) -> Any:
            traced = trace(self._function, signature, leaves, self._name)
            return self._rewrite(traced)(*leaves), traced.results

        donated = self._donated(signature, arrays)
        return own_jit(_jax.named(program, NAME), donate_argnums=donated)


def _rolled(traced: Traced) -> Callable[..., list[Any]]:
    return rolled(traced.jaxpr, [])
