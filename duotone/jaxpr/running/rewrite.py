"""Rewrite: applies a painting to a jaxpr.

Like ``jax.core.eval_jaxpr``, this is one loop over the program's steps with one environment
(:class:`Env`). A step in which nothing is half is bound unchanged, with full operands.
:mod:`duotone.jaxpr.rules.half_rules` binds painted first-order equations, and
:mod:`duotone.jaxpr.nesting` rebuilds those with nested programs.

A value is cast when it is read in another precision than it is stored in. The environment keeps
the cast for later readers. A cast that the cast plan hoists out of a loop is made before the loop.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import Tracer

from duotone import _jax
from duotone.errors import RewriteError
from duotone.graph.graph import Boundary, Graph, Paint
from duotone.jaxpr.painted import PaintedProgram
from duotone.jaxpr.reading.program import Program, Step
from duotone.jaxpr.rules.instead import instead
from duotone.jaxpr.running.constants import constant_in_half, is_large_constant
from duotone.jaxpr.running.env import Env
from duotone.jaxpr.running.jaxprs import add_note_once
from duotone.precision.casts.cast_plan import casting_inside

_FULL, _HALF = Paint.FULL, Paint.HALF  # bound once: these are hot

Repaint = Callable[
    [_jax.ClosedJaxpr, Sequence[Paint], Sequence[Boundary], tuple[str, ...]], "Rewriter"
]
"""Takes a jaxpr, how its arguments arrive and its results leave, and the scopes around it; returns
a rewriter."""


class Rewriter:
    """Applies one painting.

    Attributes:
        graph: the graph.
        painting: its precisions.
        half: the half dtype.
        largest: the largest finite number of the half dtype.
        repaint: paints a derivative rule by the same policy.
        optimizations: the nodes that are bound in another form than the user wrote.
        dots: the form in which dots with half operands are bound: :mod:`duotone.jaxpr.rules.dots`.
        math: by operation, the algorithm or precision in which a node that stays full computes.
        mark: maps a node to the name scope to bind it in; ``None`` marks nothing.
        derives: whether dots have derivatives of their own; not if the whole program has one.
        bound_once: traces a function once for all steps that call it with the same types.
    """

    def __init__(
        self,
        painted: PaintedProgram,
        handlers: Mapping[str, Handler],
        repaint: Repaint,
        mark: Callable[[int], Any] | None = None,
        *,
        derives: bool = True,
    ) -> None:
        painting, plan, optimizations = painted.painting, painted.plan, painted.optimizations
        math = dict(painted.forms.math)
        self.graph: Graph = painted.built.graph
        self.program = painted.built.program
        self.painting = painting
        self.plan = plan
        self.half = np.dtype(painted.half.name)
        self.repaint = repaint
        self.optimizations = optimizations
        self.recompute = optimizations.recompute
        self.dots = painted.forms.dots
        self.math: Mapping[str, str] = math
        self.mark = mark
        self.derives = derives
        self._handlers = handlers  # by Step.kind
        self.bound_once = _jax.BoundOnce()
        self._exact = {cast.value for cast in plan.casts if cast.exact}
        self._materialized = {cast.value for cast in plan.casts if cast.materialized}
        self.largest = float(jax.numpy.finfo(self.half).max)
        pairs = zip(painting.compute, painting.store, strict=True)
        apart = optimizations.nodes(self.graph) | casting_inside(plan, self.graph)
        touched = (
            int(Paint.HALF in pair or node.index in apart or node.op in math)
            for pair, node in zip(pairs, self.graph.nodes, strict=True)
        )
        self._touched_before = list(itertools.accumulate(touched, initial=0))

    def __call__(self, *arguments: Any, wants: Sequence[Paint | None] | None = None) -> list[Any]:
        """Runs the rewritten program on arguments in the precisions that ``graph.inputs`` give.

        The results have the precisions ``wants``; ``None`` means "as stored".
        """
        env = Env()
        for value, array in zip(self.program.inputs, arguments, strict=True):
            env.write(value, self.stored(value), array)
        self.run(self.program, env)
        wants = wants or [Paint.FULL] * len(self.program.outputs)
        return [
            self.read(env, value, self.stored(value) if want is None else want)
            for value, want in zip(self.program.outputs, wants, strict=True)
        ]

    def stored(self, value: int) -> Paint:
        """Returns the precision in which a value is stored."""
        return self.graph.stored(self.painting.store, self.graph.values[value])

    def wanted(self, node: int, slot: int) -> Paint:
        """Returns the precision in which a node reads the operand in a slot."""
        half = self.graph.nodes[node].half_inputs[slot]
        return self.painting.compute[node] if half else Paint.FULL

    def kept(self, node: int, slot: int) -> Paint:
        """Returns the precision in which a node stores the result in a slot."""
        half = self.graph.nodes[node].half_outputs[slot]
        return self.painting.store[node] if half else Paint.FULL

    def dtype(self, aval: Any, paint: Paint) -> Any:
        """Returns the dtype of a value of the original program in a precision."""
        return self.half if paint is Paint.HALF else aval.dtype

    def touched(self, step: Step) -> bool:
        """Returns True if anything inside a step is half, or bound in another form."""
        return self._touched_before[step.last] > self._touched_before[step.first]

    def read(self, env: Env, value: int, paint: Paint) -> Any:
        """Returns a value in a precision, cast if need be."""
        array = env.find(value, paint)
        if array is not None:
            return array
        other = Paint.HALF if paint is Paint.FULL else Paint.FULL
        array = env.find(value, other)
        if array is None:
            missing = self.graph.values[value]
            raise RewriteError(
                f"value {value} ({missing.dtype}{list(missing.shape)}) is read before it is "
                "computed; this is a bug in duotone, please report the program"
            )
        with _in_mesh_of(array):
            array = (self._to_half if paint is Paint.HALF else self._to_full)(value, array)
        env.write(value, paint, array)
        return array

    def operands(self, env: Env, nodes: Sequence[int], values: Sequence[int]) -> list[Any]:
        """Returns the operands of nodes that read one value each, in the precisions they want."""
        pairs = zip(nodes, values, strict=True)
        return [self.read(env, value, self.wanted(node, 0)) for node, value in pairs]

    def results(
        self, env: Env, values: Sequence[int], wants: Sequence[Paint], avals: Sequence[Any]
    ) -> list[Any]:
        """Returns values in the wanted precisions, with the types of the original program."""
        return [
            self.match(self.read(env, value, want), aval, want)
            for value, want, aval in zip(values, wants, avals, strict=True)
        ]

    def _to_full(self, value: int, array: Any) -> Any:
        """Widens a value that is stored in half."""
        if value in self._materialized:
            array = lax.optimization_barrier(array)
        array = self._cast(array, np.dtype(self.graph.values[value].dtype))
        return self.rounded(array) if value in self._exact else array

    def rounded(self, array: Any) -> Any:
        """Rounds float32 numbers to half without changing the dtype; no compiler removes this."""
        info = jax.numpy.finfo(self.half)
        return jax.lax.reduce_precision(array, info.nexp, info.nmant)

    def _to_half(self, value: int, array: Any) -> Any:
        """Rounds to half; a constant beyond the range of half becomes its largest finite number."""
        constant = self.graph.values[value].constant
        too_large = constant is not None and constant.largest > self.largest
        if self.mark is not None:  # makes the rounding an equation, so that it is marked too
            array = jax.numpy.asarray(array)
        elif is_host_array(array):
            host = np.asarray(array)
            if too_large:
                finite = np.clip(host, -self.largest, self.largest)
                host = np.where(np.isfinite(host), finite, host)
            return host.astype(self.half)
        if is_large_constant(array):
            return constant_in_half(array, self.half, self.largest if too_large else np.inf)
        if too_large:
            limit = np.float32(self.largest)
            finite = jax.lax.clamp(-limit, array, limit)
            array = jax.lax.select(jax.lax.is_finite(array), finite, array)
        return self._cast(array, self.half)

    def _cast(self, array: Any, dtype: np.dtype, weak_type: bool = False) -> Any:
        return self.bound_once(_jax.convert, [array], dtype, weak_type)

    def run(self, program: Program, env: Env) -> None:
        """Runs the steps of a program and writes their results to ``env``."""
        for value, array in program.constants:
            env.write(value, Paint.FULL, array)
        for step in program.steps:
            if step.kind == "inline" and (self.mark is not None or self.touched(step)):
                with _jax.inlined_call(step.eqn):
                    self.run(step.bodies[0], env)
                continue
            for node in step.nodes:
                for site, value in self._recomputed_reads.get(node, ()):
                    self._recompute_value(env.recomputed_at(site), site, value)
            self._step(step, env)

    def _step(self, step: Step, env: Env) -> None:
        """Runs one step."""
        try:
            if self.mark is None:
                results = self._results(step, env)
            else:
                with self.mark(step.first):
                    results = self._results(step, env)
        except FloatingPointError as error:  # of `jax_debug_nans`, which runs each step by itself
            add_note_once(error, f"{step.eqn.primitive.name} is at {_jax.source_line(step.eqn)}")
            raise
        for value, (paint, array) in zip(step.outputs, results, strict=True):
            if paint is _HALF and value in self.recompute.rounded_once:
                array = lax.optimization_barrier(array)
            env.write(value, paint, array)

    def _results(self, step: Step, env: Env) -> list[tuple[Paint, Any]]:
        """Returns the results of a step, each with its precision."""
        if self.touched(step):
            with _jax.EquationContext(step.eqn):
                return [*self._handlers[step.kind](self, step, env)]
        operands = [env.find(value, _FULL) for value in step.inputs]
        if any(operand is None for operand in operands):
            with _jax.EquationContext(step.eqn):  # for the casts
                operands = [self.read(env, value, _FULL) for value in step.inputs]
        return [(_FULL, array) for array in _jax.bind_again(step.eqn, operands)]

    def operands_of(self, step: Step, env: Env) -> list[Any]:
        """Returns the operands of a first-order equation, in the precisions that its node wants."""
        (node,) = step.nodes
        half, wanted = self.graph.nodes[node].half_inputs, self.painting.compute[node]
        recomputed = node in self._recomputed_reads
        return [
            self.read(
                self.source(env, node, value) if recomputed else env,
                value,
                wanted if half[slot] else _FULL,
            )
            for slot, value in enumerate(step.inputs)
        ]

    def source(self, env: Env, node: int, value: int) -> Env:
        """Returns the environment from which a node reads a value: ``env``, or that of a site.

        A recomputed value reads the values that are recomputed at the same site.
        """
        site = self.recompute.reads.get((node, value))
        return env if site is None or env.shadows else env.recomputed_at(site)

    def _recompute_value(self, env: Env, site: int, value: int) -> None:
        """Recomputes a value and its operands, unless the environment has it.

        This runs outside of the context of the reader's equation, which may run on another device.

        Args:
            env: the environment of the site.
            site: its key.
            value: the value; the parent environment has what is neither recomputed nor a root.
        """
        if env.holds(value):
            return
        roots, recomputed = self.recompute.sites[site].roots, self.recompute.sites[site].recomputed
        if value in roots:
            paint = Paint.HALF if value in self.recompute.halved else self.stored(value)
            env.write(value, paint, lax.optimization_barrier(self.read(env, value, paint)))
        elif value in recomputed and value in self.recompute.products:
            made = self.recompute.products[value]
            self._recompute_value(env, site, made.normalized)
            normalized = self.read(env, made.normalized, Paint.FULL)
            # Compilers recognize a value divided by its sum, and build one kernel around it.
            array = normalized / jax.numpy.sum(normalized, made.axes, keepdims=True)
            if made.divisor not in self.recompute.ones:
                self._recompute_value(env, site, made.divisor)
                array = array * self.read(env, made.divisor, Paint.FULL)
            env.write(value, Paint.FULL, array)
        elif value in recomputed and value in self.recompute.ones:
            env.write(value, Paint.FULL, jax.numpy.ones_like(self.read(env, value, Paint.FULL)))
        elif value in recomputed:
            for operand in self.step_of(value).inputs:
                self._recompute_value(env, site, operand)
            self._step(self.step_of(value), env)

    @functools.cached_property
    def _recomputed_reads(self) -> dict[int, list[tuple[int, int]]]:
        """The sites and values that each node reads recomputed, if it reads any."""
        found: dict[int, list[tuple[int, int]]] = {}
        for (node, value), site in self.recompute.reads.items():
            found.setdefault(node, []).append((site, value))
        return found

    def step_of(self, value: int) -> Step:
        """Returns the equation that computes a value; it must be one node."""
        return self._steps[self.graph.values[value].producer]

    @functools.cached_property
    def _steps(self) -> dict[int, Step]:
        """The step of each node that is a first-order equation."""
        found: dict[int, Step] = {}
        programs = [self.program]
        while programs:
            for step in programs.pop().steps:
                programs.extend(step.bodies)
                if step.kind == "leaf":
                    found[step.nodes[0]] = step
        return found

    def hoist(self, body: int, env: Env) -> None:
        """Makes the casts that the plan hoists out of a loop."""
        for value, paint in self.plan.hoisted.get(body, ()):
            self.read(env, value, paint)

    def enter_loop(self, body: int, env: Env) -> Env:
        """Returns the environment inside a loop: it sees the outer values and their casts.

        If a value were cast to half outside, its gradient would be summed over the iterations in
        half. Inside the loop, the half value therefore has the derivative of the full value, whose
        gradient is float32.
        """
        inner = Env(env)
        for value, paint in self.plan.hoisted.get(body, ()):
            full = env.find(value, Paint.FULL)
            if paint is Paint.HALF and isinstance(full, Tracer):  # a constant has no gradient
                inner.write(value, paint, instead(full, self.read(env, value, paint)))
        return inner

    def match(self, array: Any, aval: Any, paint: Paint) -> Any:
        """Casts ``array`` to the dtype and the weak type of ``aval`` in a precision."""
        full, own = paint is _FULL, getattr(array, "aval", None)
        if full and (own is aval or own == aval):
            return array  # the usual case
        weak = full and getattr(aval, "weak_type", False)
        dtype = getattr(aval, "dtype", None)
        if dtype is None or (full and jax.numpy.issubdtype(dtype, jax.dtypes.extended)):
            return array
        if not hasattr(array, "dtype"):  # a Python number among the literals
            array = np.asarray(array, dtype)
        if array.dtype == self.dtype(aval, paint) and jax.typeof(array).weak_type == weak:
            return array
        with _in_mesh_of(array):
            return self._cast(array, self.dtype(aval, paint), weak)


def _in_mesh_of(array: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which JAX binds operations in the mesh of an array's type, if any.

    With explicit axes, JAX accepts an operation only in the mesh of its operands' types. An
    equation that moves an array to another mesh (at the borders of ``jax.sharding.auto_axes``) is
    bound in the mesh of its result, so a cast of its operand needs the operand's mesh.
    """
    aval = getattr(array, "aval", None)
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    if mesh is None or mesh.empty or mesh == jax.sharding.get_abstract_mesh():
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh)


def is_host_array(array: Any) -> bool:
    """Returns True for literals and NumPy arrays, which are cast while the program is traced."""
    return not isinstance(array, jax.Array)


Handler = Callable[[Rewriter, Step, Env], Iterable[tuple[Paint, Any]]]
"""Rewrites a painted step; returns each result with its precision."""
