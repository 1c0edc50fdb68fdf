"""Rewrite: carries a painting out on a jaxpr.

One loop over the program's steps with one environment (:class:`Env`), as ``jax.core.eval_jaxpr``
has. A step in which nothing is half is bound again as it was, with its operands in full. A painted
first-order equation is bound by :mod:`duotone.jaxpr.rules.half_rules`; a painted equation with
nested programs is built anew by :mod:`duotone.jaxpr.nesting.nested` or
:mod:`duotone.jaxpr.nesting.custom`.

Casts happen when a value is read in another precision than it is kept in; what was cast once is
kept. Where the cast plan wants a cast before a loop, it is made before the loop.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import Tracer

from duotone import _jax
from duotone.errors import RewriteError
from duotone.graph.graph import Boundary, Graph, Node, Paint
from duotone.jaxpr.painted import Painted
from duotone.jaxpr.reading.program import Program, Step
from duotone.jaxpr.rules.instead import instead
from duotone.jaxpr.rules.meshes import in_mesh_of
from duotone.jaxpr.running.constants import constant_in_half, is_large_constant
from duotone.precision.casts.cast_plan import casting_inside


class Env:
    """Arrays by value and precision.

    An environment inside a loop sees those around it; inside any other nested program it holds only
    what was handed in. One that shadows holds values calculated again: of such a value it does not
    give the first calculation in another precision.

    Attributes:
        shadows: whether it holds values calculated again.
    """

    def __init__(self, parent: Env | None = None, *, shadows: bool = False) -> None:
        self._arrays: dict[tuple[int, Paint], Any] = {}
        self._parent = parent
        self._again: dict[int, Env] = {}
        self.shadows = shadows

    def find(self, value: int, paint: Paint) -> Any:
        """The array, or ``None``."""
        env: Env | None = self
        while env is not None:
            array = env._arrays.get((value, paint))
            if array is not None or (env.shadows and env.holds(value)):
                return array
            env = env._parent
        return None

    def write(self, value: int, paint: Paint, array: Any) -> None:
        """Keeps an array."""
        self._arrays[value, paint] = array

    def holds(self, value: int) -> bool:
        """True if a value was written here, in any precision; one of an outer program is not."""
        return any((value, paint) in self._arrays for paint in Paint)

    def place(self, key: int) -> Env:
        """The environment of what is calculated again at a place; it sees this one."""
        if key not in self._again:
            # A cycle would keep every array of the program until the next garbage collection.
            self._again[key] = Env(weakref.proxy(self), shadows=True)
        return self._again[key]


Repaint = Callable[
    [_jax.ClosedJaxpr, Sequence[Paint], Sequence[Boundary], tuple[str, ...]], "Rewriter"
]
"""From a jaxpr, how arguments arrive and results leave, and the scopes around it, to a rewriter."""


class Rewriter:
    """One painting being carried out.

    Attributes:
        graph: the graph.
        painting: its precisions.
        half: the half dtype.
        largest: the largest number that it holds.
        repaint: paints a derivative rule by the same policy.
        optimizations: what is carried out in another form than it was written in.
        dots: the form in which dots with half operands are bound: :mod:`duotone.jaxpr.rules.dots`.
        math: by operation, the algorithm or precision in which it calculates where it stays full.
        mark: from a node to a name scope to carry it out in, if somebody asks.
        bound_once: calls what many steps call with operands of the same types.
    """

    def __init__(
        self,
        painted: Painted,
        handlers: Mapping[str, Handler],
        repaint: Repaint,
        mark: Callable[[int], Any] | None = None,
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
        self._handlers = handlers  # by Step.kind
        self.bound_once = _jax.BoundOnce()
        self._exact = {cast.value for cast in plan.casts if cast.exact}
        self._held = {cast.value for cast in plan.casts if cast.held}
        self.largest = float(jax.numpy.finfo(self.half).max)
        pairs = zip(painting.compute, painting.store, strict=True)
        apart = optimizations.nodes(self.graph) | casting_inside(plan, self.graph)
        touched = (
            int(Paint.HALF in pair or node.index in apart or node.op in math)
            for pair, node in zip(pairs, self.graph.nodes, strict=True)
        )
        self._touched_before = list(itertools.accumulate(touched, initial=0))

    def __call__(self, *arguments: Any, wants: Sequence[Paint | None] | None = None) -> list[Any]:
        """Runs the rewritten program.

        Args:
            arguments: as ``graph.inputs`` say they are given.
            wants: the precision of each result; ``None`` stands for "as stored".
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
        """How a value is kept."""
        return self.graph.stored(self.painting.store, self.graph.values[value])

    def wanted(self, node: int, slot: int) -> Paint:
        """How a node wants the operand in a slot."""
        half = self.graph.nodes[node].half_inputs[slot]
        return self.painting.compute[node] if half else Paint.FULL

    def kept(self, node: int, slot: int) -> Paint:
        """How a node keeps the result in a slot."""
        half = self.graph.nodes[node].half_outputs[slot]
        return self.painting.store[node] if half else Paint.FULL

    def only_reader(self, value: int) -> Node | None:
        """The node that reads a value, if there is exactly one reader."""
        readers = self.graph.consumers[value]
        return self.graph.nodes[readers[0][0]] if len(readers) == 1 else None

    def maker(self, value: int) -> Node | None:
        """The node that makes a value; ``None`` for arguments and constants."""
        producer = self.graph.values[value].producer
        return self.graph.nodes[producer] if producer >= 0 else None

    def dtype(self, aval: Any, paint: Paint) -> Any:
        """The dtype of a value of the original program in a precision."""
        return self.half if paint is Paint.HALF else aval.dtype

    def touched(self, step: Step) -> bool:
        """True if anything inside a step is half, or bound in another form."""
        return self._touched_before[step.last] > self._touched_before[step.first]

    def read(self, env: Env, value: int, paint: Paint) -> Any:
        """A value in a precision, cast if need be."""
        array = env.find(value, paint)
        if array is not None:
            return array
        other = Paint.HALF if paint is Paint.FULL else Paint.FULL
        array = env.find(value, other)
        if array is None:
            held = self.graph.values[value]
            raise RewriteError(
                f"value {value} ({held.dtype}{list(held.shape)}) is read before it is made; this "
                "is a fault of duotone, please report the program"
            )
        with in_mesh_of(array):
            array = (self._to_half if paint is Paint.HALF else self._to_full)(value, array)
        env.write(value, paint, array)
        return array

    def _to_full(self, value: int, array: Any) -> Any:
        """Float32 again, of a value that is kept in half."""
        if value in self._held:
            array = lax.optimization_barrier(array)
        array = self._cast(array, np.dtype(self.graph.values[value].dtype))
        return self.rounded(array) if value in self._exact else array

    def rounded(self, array: Any) -> Any:
        """Float32 numbers that half holds; no compiler leaves this rounding out."""
        info = jax.numpy.finfo(self.half)
        return jax.lax.reduce_precision(array, info.nexp, info.nmant)

    def _to_half(self, value: int, array: Any) -> Any:
        """Rounds to half; a constant that half cannot hold becomes its largest finite number."""
        constant = self.graph.values[value].constant
        too_large = constant is not None and constant.largest > self.largest
        if self.mark is not None:  # whoever marks nodes sees this rounding too
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
        """Runs the steps of a program; its results stand in ``env`` afterwards."""
        for value, array in program.constants:
            env.write(value, Paint.FULL, array)
        for step in program.steps:
            if step.kind == "inline" and (self.mark is not None or self.touched(step)):
                with _jax.inlined_call(step.eqn):
                    self.run(step.bodies[0], env)
                continue
            for node in step.nodes:
                for place, value in self._places.get(node, ()):
                    self._calculate_again(env.place(place), place, value)
            self._step(step, env)

    def _step(self, step: Step, env: Env) -> None:
        """Carries out one step."""
        with contextlib.nullcontext() if self.mark is None else self.mark(step.first):
            results = list(self._results(step, env))
        for value, (paint, array) in zip(step.outputs, results, strict=True):
            firm = paint is Paint.HALF and value in self.recompute.firm
            env.write(value, paint, lax.optimization_barrier(array) if firm else array)

    def _results(self, step: Step, env: Env) -> Iterable[tuple[Paint, Any]]:
        """Each result of a step with its precision."""
        if self.touched(step):
            with _jax.EquationContext(step.eqn):
                return self._handlers[step.kind](self, step, env)
        return [(Paint.FULL, array) for array in self._unchanged(step, env)]

    def _unchanged(self, step: Step, env: Env) -> list[Any]:
        """The results of a step in which nothing is half."""
        operands = [env.find(value, Paint.FULL) for value in step.inputs]
        if any(operand is None for operand in operands):
            with _jax.EquationContext(step.eqn):  # of the casts
                operands = [self.read(env, value, Paint.FULL) for value in step.inputs]
        return _jax.bind_again(step.eqn, operands)

    def source(self, env: Env, node: int, value: int) -> Env:
        """The environment from which a node reads a value: ``env``, or that of a place.

        What is calculated again reads what is calculated again beside it.
        """
        place = self.recompute.reads.get((node, value))
        return env if place is None or env.shadows else env.place(place)

    def _calculate_again(self, again: Env, place: int, value: int) -> None:
        """Calculates a value again, with what it needs, unless that is done.

        Outside of the context of the equation that reads it: that one may run on another device.

        Args:
            again: the environment of the place.
            place: its key.
            value: what is read there; one that is neither to be calculated again nor a root is
                found in the environment around.
        """
        if again.holds(value):
            return
        if value in self.recompute.roots[place]:
            halved = value in self.recompute.halved
            paint = Paint.HALF if halved else self.stored(value)
            again.write(value, paint, lax.optimization_barrier(self.read(again, value, paint)))
        elif value in self.recompute.again[place] and value in self.recompute.products:
            made = self.recompute.products[value]
            self._calculate_again(again, place, made.quotient)
            quotient = self.read(again, made.quotient, Paint.FULL)
            # A compiler knows a quotient of a value and its sum, and makes one kernel around it.
            array = quotient / jax.numpy.sum(quotient, made.axes, keepdims=True)
            if made.divisor is not None:
                self._calculate_again(again, place, made.divisor)
                array = array * self.read(again, made.divisor, Paint.FULL)
            again.write(value, Paint.FULL, array)
        elif value in self.recompute.again[place]:
            step = self.step_of(value)
            for operand in step.inputs:
                self._calculate_again(again, place, operand)
            self._step(step, again)

    @functools.cached_property
    def _places(self) -> dict[int, list[tuple[int, int]]]:
        """For each node that reads values calculated again: places and values."""
        found: dict[int, list[tuple[int, int]]] = {}
        for (node, value), place in self.recompute.reads.items():
            found.setdefault(node, []).append((place, value))
        return found

    def step_of(self, value: int) -> Step:
        """The equation that makes a value; it must be one node."""
        return self._steps[self.graph.values[value].producer]

    @functools.cached_property
    def _steps(self) -> dict[int, Step]:
        """The step of each node that is an equation of its own."""
        found: dict[int, Step] = {}
        programs = [self.program]
        while programs:
            for step in programs.pop().steps:
                programs.extend(step.bodies)
                if step.kind == "leaf":
                    found[step.nodes[0]] = step
        return found

    def hoist(self, body: int, env: Env) -> None:
        """Makes the casts that the plan wants ready before a loop."""
        for value, paint in self.plan.hoisted.get(body, ()):
            self.read(env, value, paint)

    def enter_loop(self, body: int, env: Env) -> Env:
        """The environment inside a loop: sees what is outside, casts included.

        A value cast to half outside would have its gradient added up over the iterations in half.
        Inside the loop it is therefore linked to the full value, whose gradient is float32.
        """
        inner = Env(env)
        for value, paint in self.plan.hoisted.get(body, ()):
            full = env.find(value, Paint.FULL)
            if paint is Paint.HALF and isinstance(full, Tracer):  # a constant has no gradient
                inner.write(value, paint, instead(full, self.read(env, value, paint)))
        return inner

    def match(self, array: Any, aval: Any, paint: Paint) -> Any:
        """``array`` with the dtype and the weak type that ``aval`` has in a precision."""
        full = paint is Paint.FULL
        if full and getattr(array, "aval", None) == aval:
            return array  # nearly always
        weak = full and getattr(aval, "weak_type", False)
        dtype = getattr(aval, "dtype", None)
        if dtype is None or (full and jax.numpy.issubdtype(dtype, jax.dtypes.extended)):
            return array
        if not hasattr(array, "dtype"):  # a Python number among the literals
            array = np.asarray(array, dtype)
        if array.dtype == self.dtype(aval, paint) and jax.typeof(array).weak_type == weak:
            return array
        with in_mesh_of(array):
            return self._cast(array, self.dtype(aval, paint), weak)


def is_host_array(array: Any) -> bool:
    """True if casting needs no operation in the program: literals and NumPy arrays."""
    return not isinstance(array, jax.Array)


Handler = Callable[[Rewriter, Step, Env], Iterable[tuple[Paint, Any]]]
"""Rewrites a painted step; returns each result with its precision."""
