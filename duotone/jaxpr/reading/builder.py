"""The builder: collects the nodes, values and bodies of a graph, equation by equation.

A first-order equation becomes one node. For an equation with nested programs, the builder calls the
function that :mod:`duotone.jaxpr.reading.scopes` registered for its primitive. Any other equation
becomes a node with the name of its primitive: it is on no list, so duotone does not change it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from duotone import _jax
from duotone.graph.elements import if_whole, magnitude_of
from duotone.graph.graph import (
    FULL_DTYPE,
    NO_ATTRIBUTES,
    Attribute,
    Body,
    BodyKind,
    Node,
    Paint,
    Value,
)
from duotone.graph.magnitude import Magnitude
from duotone.jaxpr.reading.attributes import attributes_of
from duotone.jaxpr.reading.indices import Integers
from duotone.jaxpr.reading.operations import EquationDescription, describe, dtype_name, size_of
from duotone.jaxpr.reading.program import Program, Step
from duotone.ops.jax import INTERVALS, TRAITS
from duotone.ops.traits import UNDESCRIBED, Trait, Traits
from duotone.policy.regions import region_of, without_regions
from duotone.precision.ranges.intervals import DTYPE_RANGES, fits

_LARGEST_CONSTANT = 2**22
"""The most elements of a constant array whose magnitudes are read (a 2048 x 2048 mask)."""


class SourceLine:
    """The user's source line of equations, computed when it is printed for the first time.

    JAX has none inside its own functions, which it traces once; then it is the outer call's line.
    """

    def __init__(self, eqn: _jax.Eqn, call: SourceLine | None = None) -> None:
        self._eqn, self._call = eqn, call

    def __str__(self) -> str:
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        own = _jax.source_line(self._eqn)
        return str(self._call) if own == _jax.NO_SOURCE and self._call is not None else own


class Builder:
    """Collects nodes, values and bodies.

    Args:
        nested: reads an equation with nested programs, by primitive name.
    """

    def __init__(self, nested: Mapping[str, NestedBuilder]) -> None:
        self._nested = nested
        self.nodes: list[Node] = []
        self.values: list[Value] = []
        self.bodies: list[Body] = []
        self._integers = Integers()
        self._call: SourceLine | None = None
        self._lines: dict[tuple[Any, SourceLine | None], SourceLine] = {}
        self._scopes: dict[tuple[tuple[str, ...], Any], tuple[str, str, tuple[str, ...]]] = {}
        self._types: dict[Any, tuple[int, tuple[Any, ...], str]] = {}

    def add_body(self, parent: int, kind: BodyKind, trips: int) -> int:
        """Adds a body; ``trips`` is per run of its parent. Returns its index."""
        total = trips * (self.bodies[parent].trips if parent >= 0 else 1)
        self.bodies.append(Body(len(self.bodies), parent, kind, total))
        return len(self.bodies) - 1

    @contextlib.contextmanager
    def called(self, eqn: _jax.Eqn) -> Iterator[None]:
        """Returns a context for adding the nodes of a program that an equation calls."""
        outer, self._call = self._call, self._line(eqn)
        try:
            yield
        finally:
            self._call = outer

    def value(
        self,
        aval: Any,
        *,
        body: int,
        producer: int = -1,
        constant: Magnitude | None = None,
        given: Paint = Paint.FULL,
    ) -> int:
        """Adds a value; returns its index."""
        index = len(self.values)
        if (known := self._types.get(aval)) is None:
            known = size_of(aval), tuple(getattr(aval, "shape", ())), dtype_name(aval)
            self._types[aval] = known
        self.values.append(Value(index, *known, producer, body, constant, given))
        return index

    def node(
        self,
        eqn: _jax.Eqn,
        op: str,
        inputs: Sequence[int],
        out_avals: Sequence[Any],
        *,
        body: int,
        scopes: tuple[str, ...],
        out_bodies: Sequence[int] | None = None,
    ) -> tuple[int, ...]:
        """Adds a structural node; returns its result values."""
        what = EquationDescription(
            op,
            tuple(self.values[v].dtype == FULL_DTYPE for v in inputs),
            tuple(dtype_name(aval) == FULL_DTYPE for aval in out_avals),
            0.0,
            "",
            TRAITS.get(op, UNDESCRIBED),
        )
        return self._add(eqn, op, what, inputs, out_avals, body, scopes, out_bodies)

    def _add(
        self,
        eqn: _jax.Eqn,
        op: str,
        what: EquationDescription,
        inputs: Sequence[int],
        out_avals: Sequence[Any],
        body: int,
        scopes: tuple[str, ...],
        out_bodies: Sequence[int] | None = None,
        constant: Magnitude | None = None,
        attributes: Mapping[str, Attribute] = NO_ATTRIBUTES,
    ) -> tuple[int, ...]:
        index = len(self.nodes)
        scope, region, _ = self.scope(scopes, eqn)
        owners = out_bodies or [body] * len(out_avals)
        outputs = tuple(
            [
                self.value(aval, body=owner, producer=index, constant=constant)
                for aval, owner in zip(out_avals, owners, strict=True)
            ]
        )
        self.nodes.append(
            Node(
                index=index,
                op=op,
                list_key=what.list_key,
                inputs=tuple(inputs),
                outputs=outputs,
                half_inputs=what.half_inputs,
                half_outputs=what.half_outputs,
                body=body,
                scope=scope,
                region=region,
                source=self._line(eqn),
                flops=what.flops,
                fixed=what.fixed,
                attributes=attributes,
                traits=what.traits,
                interval=INTERVALS.get(what.list_key, ""),
            )
        )
        return outputs

    def _line(self, eqn: _jax.Eqn) -> SourceLine:
        """Returns the source line of an equation; the layers of a network share theirs."""
        key = (eqn.source_info.traceback, self._call)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = SourceLine(eqn, self._call)
        return line

    def scope(self, outer: tuple[str, ...], eqn: _jax.Eqn) -> tuple[str, str, tuple[str, ...]]:
        """Returns the name scope of an equation, the region it is in, and all scope names."""
        key = (outer, eqn.source_info.name_stack)
        found = self._scopes.get(key)  # once: hashing a name stack is slow
        if found is None:
            names = (*outer, *_jax.scope_names(eqn.source_info.name_stack))
            found = "/".join(without_regions(names)), region_of(names), names
            self._scopes[key] = found
        return found

    def program(
        self, jaxpr: _jax.ClosedJaxpr, inputs: Sequence[int], *, body: int, scopes: tuple[str, ...]
    ) -> Program:
        """Returns the program of one call of ``jaxpr``."""
        opened = _jax.open_jaxpr(jaxpr)
        env: dict[Any, int] = dict(zip(opened.invars, inputs, strict=True))
        constants = []
        for var, array in zip(opened.constvars, _jax.consts_of(jaxpr), strict=True):
            env[var] = self.value(var.aval, body=body, constant=_array_magnitude(array))
            self._integers.constant(env[var], array)
            constants.append((env[var], array))

        def read(atom: _jax.Atom) -> int:
            if not _jax.is_literal(atom):
                return env[atom]
            literal = self.value(atom.aval, body=body, constant=_scalar_magnitude(atom.val))
            self._integers.constant(literal, atom.val)
            constants.append((literal, atom.val))
            return literal

        steps = []
        for eqn in opened.eqns:
            step = self.step(eqn, tuple([read(a) for a in eqn.invars]), body, scopes)
            env.update(zip(eqn.outvars, step.outputs, strict=True))
            steps.append(step)
        outputs = tuple(read(atom) for atom in opened.outvars)
        return Program(opened, body, tuple(inputs), tuple(constants), outputs, tuple(steps))

    def step(
        self, eqn: _jax.Eqn, inputs: tuple[int, ...], body: int, scopes: tuple[str, ...]
    ) -> Step:
        """Adds one equation: a nested step if a function reads its primitive, else a leaf."""
        name, first = eqn.primitive.name, len(self.nodes)
        nested = self._nested.get(name)
        if nested is not None:
            own = self.scope(scopes, eqn)[2]
            step = nested(self, Call(eqn, inputs, body, scopes, own, first))
            if step is not None:
                return step
        what = describe(eqn, [self.values[value] for value in inputs])
        indices = self._integers.find(inputs[1]) if name == "scatter-add" else None
        attributes = attributes_of(eqn, indices)
        constant = self._kept_constant(eqn, what.traits, inputs, attributes)
        if attributes.get("updates") in (0.0, 1.0) and self._is_zero(inputs[0]):
            once = "scatter_once"
            what = dataclasses.replace(what, list_key=once, traits=TRAITS.get(once, UNDESCRIBED))
        avals = [var.aval for var in eqn.outvars]
        outputs = self._add(
            eqn, name, what, inputs, avals, body, scopes, constant=constant, attributes=attributes
        )
        self._integers.made(eqn, inputs, outputs)
        return Step(eqn, "leaf", inputs, outputs, (first,), first, first + 1)

    def _is_zero(self, value: int) -> bool:
        constant = self.values[value].constant
        return constant is not None and constant.low == constant.high == 0.0

    def _kept_constant(
        self,
        eqn: _jax.Eqn,
        traits: Traits,
        inputs: tuple[int, ...],
        attributes: Mapping[str, Attribute],
    ) -> Magnitude | None:
        """Returns the magnitudes of a result that only moves a constant, or counts."""
        if _KEEPS in traits:
            return _kept(eqn, traits, self.values[inputs[0]].constant)
        if _COMMUTES in traits and not traits.isdisjoint(_CHOOSES):
            chosen = [self.values[v].constant for v in inputs if self.values[v].paintable]
            fill = attributes.get("fill")
            if chosen and isinstance(fill, float):
                chosen.append(Magnitude.of(fill))
            return _joined(chosen)
        length = attributes.get("length")
        if isinstance(length, float) and Trait.COUNTS in traits:
            counter = dataclasses.replace(Magnitude.of(max(length - 1.0, 0.0)), low=0.0)
            return _in_result_dtype(eqn, counter)
        return None


_KEEPS, _COMMUTES = Trait.KEEPS, Trait.COMMUTES  # looked up once: this code is hot
_CHOOSES = frozenset({Trait.INDEXES, Trait.PARTS, Trait.CHOOSES, Trait.BOUNDS})


def _kept(eqn: _jax.Eqn, traits: Traits, constant: Magnitude | None) -> Magnitude | None:
    """Returns the magnitudes of a constant after an operation that keeps them; signs may change."""
    if constant is None:
        return None
    constant = if_whole(constant, traits)
    if Trait.CONVERTS in traits:
        return _in_result_dtype(eqn, constant)
    if Trait.NEGATES not in traits:
        return constant
    low, high = -constant.high, -constant.low
    if Trait.FLIPS not in traits:
        low, high = max(constant.low, low, 0.0), max(constant.high, high)
    return _in_result_dtype(eqn, dataclasses.replace(constant, low=low, high=high))


def _in_result_dtype(eqn: _jax.Eqn, constant: Magnitude) -> Magnitude | None:
    """Returns a constant's magnitudes in the result's dtype; ``None`` if it wraps around."""
    dtype = dtype_name(eqn.outvars[0].aval)
    if dtype in DTYPE_RANGES and not fits((constant.low, constant.high), dtype):
        return None
    whole = all(name in DTYPE_RANGES for name in (dtype, *(dtype_name(v.aval) for v in eqn.invars)))
    if whole or dtype in (FULL_DTYPE, "float64"):
        return constant
    return Magnitude(constant.smallest, constant.largest)  # rounding moves low and high


def _joined(magnitudes: Sequence[Magnitude | None]) -> Magnitude | None:
    """Returns the magnitudes of a choice between constants; ``None`` for other operands."""
    known = [magnitude for magnitude in magnitudes if magnitude is not None]
    if not known or len(known) < len(magnitudes):
        return None
    return Magnitude(
        min(m.smallest for m in known),
        max(m.largest for m in known),
        min(m.low for m in known),
        max(m.high for m in known),
    )


def _array_magnitude(array: Any) -> Magnitude | None:
    """Returns the magnitudes of a constant array, if it can be read and is not too large."""
    # A jax.Ref has a dtype too, but it is mutable, and NumPy would never stop reading it.
    if not isinstance(array, jax.Array | np.ndarray | np.generic):
        return None
    if array.dtype != np.float32 or array.size > _LARGEST_CONSTANT:
        return None
    if not _jax.is_concrete(array):
        return None
    return magnitude_of([np.asarray(array)])


def _scalar_magnitude(number: Any) -> Magnitude | None:
    """Returns the magnitude of a literal; ``None`` if it is not a real number."""
    try:
        number = float(number)
    except TypeError:
        return None
    return Magnitude.of(number)


class Call(NamedTuple):
    """An equation with nested programs, before its nodes are added.

    Attributes:
        eqn: the equation.
        inputs: graph values of its operands.
        body: the body that it is in.
        around: the name scopes around its program, outermost first.
        scopes: these, and those of the equation itself.
        first: the index of its first node.
    """

    eqn: _jax.Eqn
    inputs: tuple[int, ...]
    body: int
    around: tuple[str, ...]
    scopes: tuple[str, ...]
    first: int


NestedBuilder = Callable[[Builder, Call], "Step | None"]
"""Returns the step of an equation, or ``None`` to make it a leaf that is not changed."""
