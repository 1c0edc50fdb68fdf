"""Derived: runs a function while JAX differentiates it, and paints it only once.

::

    a call that JAX differentiates ─► forward pass of the painted step, residuals, and its Passes
                                      (a jit program: JAX keeps it, as any, for each signature)
    any other call                 ─► :class:`duotone.jaxpr.running.run.Runner`

Under ``jax.jit`` or in a loop, JAX traces a call before it differentiates the trace. Such a call
is painted as any other; :func:`duotone.jaxpr.running.backward.with_backward` paints its derivative.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from duotone import _jax
from duotone.jaxpr.reading.scopes import MARKER
from duotone.jaxpr.reading.signature import Results, Signature
from duotone.jaxpr.reading.trace import Traced, flattened
from duotone.jaxpr.running.backward import Forward, with_rule
from duotone.jaxpr.running.inside import collection_now
from duotone.jaxpr.running.passes import Passes
from duotone.jaxpr.running.run import Runner

FindPasses = Callable[[Callable[..., list[Any]], Sequence[Any], tuple[bool, ...]], Passes | None]
"""Takes a function of arrays, its arguments, and for each whether it is differentiated with respect
to it; ``None`` leaves the backward pass to the rewritten function."""


class _DeclinedError(Exception):
    """Ends the trace of a forward pass that cannot be painted with its backward pass."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class _Found:
    """The part of a forward pass's results that is not traced."""

    passes: Passes
    results: Results


class DerivedRunner(Runner):
    """A function and its rewritten programs, with their own derivatives."""

    def __init__(
        self,
        function: Callable[..., Any],
        rewrite: Callable[[Traced], Callable[..., list[Any]]],
        find_passes: FindPasses,
    ) -> None:
        super().__init__(function, rewrite)
        self._find_passes = find_passes
        self._declined: set[Any] = set()

    def _key(self, signature: Signature, arrays: Sequence[Any]) -> Any:
        key = super()._key(signature, arrays)
        return (*key, True) if self._is_derived(key, arrays) else key

    def _is_derived(self, key: Any, arrays: Sequence[Any]) -> bool:
        """Checks if JAX is differentiating this call, and both passes can be painted together."""
        return (
            _jax.is_differentiated(arrays)
            and not any(map(_jax.is_operand, arrays))
            and key not in self._declined
            and collection_now() is None
        )

    def _compile(self, signature: Signature, arrays: Sequence[Any]) -> Callable[..., Any]:
        key = super()._key(signature, arrays)
        if not self._is_derived(key, arrays):
            return super()._compile(signature, arrays)
        self._warn_of_many(signature)
        programs: dict[tuple[bool, ...], Callable[..., Any]] = {}

        def plain(*leaves: Any) -> tuple[list[Any], Results]:
            if key not in self._compiled:
                self._compiled[key] = super(DerivedRunner, self)._compile(signature, leaves)
            return self._compiled[key](*leaves)

        def forward(leaves: Sequence[Any], moved: tuple[bool, ...]) -> Forward:
            if moved not in programs:
                programs[moved] = self._forward(signature, moved)
            results, made, found = programs[moved](*leaves)
            residuals = found.passes.residuals(leaves, results, made)
            return (results, found.results), residuals, found.passes

        def call(*leaves: Any) -> tuple[list[Any], Results]:
            returned = False

            def of_this_call(leaves: Sequence[Any], moved: tuple[bool, ...]) -> Forward | None:
                try:
                    return forward(leaves, moved)
                except _DeclinedError:
                    self._declined.add(key)
                    if not returned:
                        raise
                    return None  # JAX staged the call, and differentiates it now

            try:
                return with_rule(plain, of_this_call)(*leaves)
            except _DeclinedError:
                pass  # JAX may differentiate with respect to values that the function closes over
            finally:
                returned = True
            return plain(*leaves)

        return call

    def _forward(self, signature: Signature, moved: tuple[bool, ...]) -> Callable[..., Any]:
        """Returns the forward pass: from arguments to results, residuals, and the passes."""

        def program(*leaves: Any) -> tuple[list[Any], list[Any], _Found]:
            flat, rest = flattened(self._function, signature, self._name)
            passes = self._find_passes(flat, leaves, moved)
            if passes is None:
                raise _DeclinedError
            return *passes.forward(*leaves), _Found(passes, rest[-1])

        return jax.jit(_jax.named(program, MARKER))
