"""Runs a rewritten program together with a float32 reference of each of its values.

::

    for each equation
        bind it to the program's values, then to their references, none of which is half
        note a row of statistics of both (:mod:`duotone.blaming.reference_statistics`)

A value is its own reference, computed once, if no half value leads to it. The program's own values
control loops and branches of both runs. Rows of several iterations are joined. The caller traces
both runs, so they compile as one program.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from duotone import _jax
from duotone.blaming.reference_statistics import Note, RowKind, watched
from duotone.ops.entries import names_with
from duotone.ops.jax import TRAITS
from duotone.ops.traits import Trait

HALF = (jnp.dtype("float16"), jnp.dtype("bfloat16"))
_MAKES = names_with(TRAITS, Trait.CONVERTS, Trait.COUNTS)
MOVING = names_with(TRAITS, Trait.MOVES, Trait.CHOOSES) - _MAKES
MOVING |= {"copy_p", "duotone_instead", "reduce_precision"}
"""Operations that only move values. Their results have no site of their own."""
_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CALLS = frozenset("jit pjit closed_call core_call remat2 custom_jvp_call custom_vjp_call".split())
Names = tuple[tuple[str, bool], ...]
"""A name stack: names, and whether each is that of a transformation."""


@dataclasses.dataclass(frozen=True, slots=True)
class ValueSite:
    """A site in the program that makes a value.

    Attributes:
        eqn: the equation.
        names: its name stack.
        dtype: the dtype of the value.
        shape: the shape of the value.
        reads: sites of the operands.
        loop: whether the equation is in a loop.
        around: the enclosing equations, outermost first.
    """

    eqn: Any
    names: Names
    dtype: str
    shape: tuple[int, ...]
    reads: tuple[int, ...]
    loop: bool
    around: tuple[Any, ...] = ()

    def first_known(self, source: str) -> str:
        """Returns a source line, or that of the nearest enclosing equation if JAX knows none."""
        lines = (source, *map(_jax.source_line, reversed(self.around)))
        return next((line for line in lines if line != _jax.NO_SOURCE), source)


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """A value of the program, its reference, and the site at which it was made (-1 if unknown)."""

    plain: Any
    full: Any
    site: int = -1

    @property
    def shared(self) -> bool:
        """True if a value is its own reference."""
        return self.plain is self.full

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The value, and its reference if that is another one."""
        return (self.plain,) if self.shared else (self.plain, self.full)


NUMBER = -2
"""The site of a literal and of values computed from literals alone."""


def reference_of(plain: Any, site: int = -1) -> Reference:
    """Returns an argument or a constant with a reference of the same numbers."""
    if getattr(plain, "dtype", None) in HALF and not _jax.is_operand(plain):
        return Reference(plain, jnp.asarray(plain).astype(jnp.float32), site)
    return Reference(plain, plain, site)


class References:
    """One run of a program and its reference.

    Attributes:
        sites: by number, in the order in which the run first meets them.
        readers: for each site, the name stacks of the equations that read it.
        notes: the notes of the current program, by site.
        left: the rows of its loops and branches, each with their sites.
        tick: iterations of all loops so far.
        iteration: the iteration of the innermost loop.
        watching: whether values are noted.
    """

    def __init__(self, kind: RowKind, handlers: Mapping[str, Handler]) -> None:
        self.kind, self._handlers = kind, handlers
        self.sites: list[ValueSite] = []
        self.readers: dict[int, set[Names]] = {}
        self.notes: dict[int, Note] = {}
        self.left: list[tuple[Sequence[int], Any]] = []
        self.tick: Any = jnp.int32(0)
        self.iteration: Any = None
        self.watching = True
        self._around: tuple[Any, ...] = ()
        self._numbers: dict[Any, int] = {}

    def run(
        self,
        jaxpr: Any,
        operands: Sequence[Reference],
        names: Names = (),
        path: tuple[int, ...] = (),
    ) -> list[Reference]:
        """Runs a program."""
        opened = _jax.open_jaxpr(jaxpr)
        env: dict[Any, Reference] = dict(zip(opened.invars, operands, strict=True))
        env.update(zip(opened.constvars, map(reference_of, _jax.consts_of(jaxpr)), strict=True))

        def read(atom: Any) -> Reference:
            if _jax.is_literal(atom):
                return reference_of(np.asarray(atom.val, atom.aval.dtype), NUMBER)
            return env[atom]

        for position, eqn in enumerate(opened.eqns):
            inner = (*names, *_jax.stack_names(eqn.source_info.name_stack))
            inner_path = (*path, position)
            handler = self._handlers.get(
                eqn.primitive.name, _calls if eqn.primitive.name in _CALLS else _leaf
            )
            around = self._around
            self._around = around if handler is _leaf else (*around, eqn)
            results = handler(self, eqn, [read(atom) for atom in eqn.invars], inner, inner_path)
            self._around = around
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in opened.outvars]

    def note_results(self, jaxpr: Any, results: Sequence[Reference]) -> list[int]:
        """Returns the sites of the program's results.

        A result that was moved after its note gets a site of its own, because the move may add
        NaN, as ``jnp.where`` and ``jnp.take`` do.
        """
        sites = []
        for position, reference in enumerate(results):
            noted = self.notes.get(reference.site)
            makers = _makers(jaxpr, position)
            if makers and (noted is None or noted.full is not reference.full):
                stacks = (_jax.stack_names(eqn.source_info.name_stack) for eqn in makers)
                names, self._around = tuple(itertools.chain(*stacks)), makers[:-1]
                reference = self.note(
                    ("result", position), makers[-1], names, reference, [reference.site]
                )
            sites.append(reference.site)
        self._around = ()
        return sites

    def note(
        self, key: Any, eqn: Any, names: Names, reference: Reference, reads: Sequence[int]
    ) -> Reference:
        """Notes a value for a row and returns it with its site."""
        dtype = getattr(reference.plain, "dtype", None)
        if not self.watching or not watched(dtype) or _jax.is_operand(reference.plain):
            return reference
        if not reference.plain.size:
            return reference
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.sites)
            found = tuple(dict.fromkeys(read for read in reads if read >= 0))
            shape, loop = reference.plain.shape, self.iteration is not None
            self.sites.append(ValueSite(eqn, names, str(dtype), shape, found, loop, self._around))
        self.notes[number] = Note(reference.plain, reference.full, self.tick)
        return Reference(reference.plain, reference.full, number)

    def rows(self) -> tuple[list[int], Any]:
        """Returns the sites that the current program noted, and a row for each."""
        iteration = -1 if self.iteration is None else self.iteration
        sites = [*self.notes, *(site for sites, _ in self.left for site in sites)]
        found = [rows for _, rows in self.left]
        if self.notes:
            found.insert(0, self.kind.rows(list(self.notes.values()), iteration))
        return sites, jnp.concatenate(found) if found else self.kind.neutral(0)

    def apart(self, function: Callable[[], Any], tick: Any, iteration: Any) -> tuple[Any, Any]:
        """Runs a function in a trace of its own, with empty notes.

        Returns:
            Its result, and the sites, rows and tick that it leaves.
        """
        saved = self.notes, self.left, self.tick, self.iteration
        self.notes, self.left, self.tick, self.iteration = {}, [], tick, iteration
        try:
            return function(), (*self.rows(), self.tick)
        finally:
            self.notes, self.left, self.tick, self.iteration = saved


def _makers(jaxpr: Any, position: int) -> tuple[Any, ...]:
    """Returns the equation that makes a result, after its enclosing equations."""
    opened = _jax.open_jaxpr(jaxpr)
    atom = opened.outvars[position]
    for eqn in reversed(opened.eqns):
        if any(out is atom for out in eqn.outvars):
            if eqn.primitive.name not in _CALLS:
                return (eqn,)
            inner = next(eqn.params[name] for name in _CALLED if name in eqn.params)
            made = _makers(inner, [out is atom for out in eqn.outvars].index(True))
            return (eqn, *made) if made else ()
    return ()


Handler = Callable[[References, Any, list[Reference], Names, tuple[int, ...]], list[Reference]]
"""Takes the run, an equation, its operands, the name stack and the path; returns its results."""


def _calls(
    t: References, eqn: Any, operands: list[Reference], names: Names, path: tuple[int, ...]
) -> list[Reference]:
    """Runs the program of a call once."""
    jaxpr = next(eqn.params[name] for name in _CALLED if name in eqn.params)
    return t.run(jaxpr, operands, names, path)


def _leaf(
    t: References, eqn: Any, operands: list[Reference], names: Names, path: tuple[int, ...]
) -> list[Reference]:
    """Binds an equation to the program's values and to their references."""
    for operand in operands:
        if operand.site >= 0:
            t.readers.setdefault(operand.site, set()).add(names)
    with _jax.EquationContext(eqn):
        plains = _jax.bind(eqn, [operand.plain for operand in operands])
        fulls = _full(eqn, operands, plains)
    references = [Reference(plain, full) for plain, full in zip(plains, fulls, strict=True)]
    name = eqn.primitive.name
    reads = [operand.site for operand in operands]
    widened = name == "convert_element_type" and plains[0].dtype not in HALF
    if all(read == NUMBER for read in reads) and plains and getattr(plains[0], "size", 1) > 1:
        return [Reference(reference.plain, reference.full, NUMBER) for reference in references]
    many = len(operands) == len(references)
    found = list(dict.fromkeys(read for read in reads if read >= 0)) or [max(reads, default=-1)]
    if widened or (name in MOVING and (many or len(found) == 1)):
        return [
            Reference(reference.plain, reference.full, reads[k] if many else found[0])
            for k, reference in enumerate(references)
        ]
    return [
        t.note((path, k), eqn, names, reference, reads) for k, reference in enumerate(references)
    ]


def _full(eqn: Any, operands: Sequence[Reference], plains: list[Any]) -> list[Any]:
    """Computes the references of an equation's results."""
    half = any(getattr(plain, "dtype", None) in HALF for plain in plains)
    if all(operand.shared for operand in operands) and not half and not _rounds(eqn):
        return plains
    if _rounds(eqn):
        return [operands[0].full]
    if eqn.primitive.name == "convert_element_type" and half:
        return [operands[0].full.astype(jnp.float32)]
    if eqn.effects or any(map(_jax.is_operand, (*plains, *(x.plain for x in operands)))):
        return [reference_of(plain).full for plain in plains]  # a Ref has no reference
    if any(_jax.holds_jaxpr(param) for param in eqn.params.values()):
        return _with_own_types(eqn, operands)
    try:
        params = {name: _wide(param) for name, param in eqn.params.items()}
        fulls = _jax.bind(eqn, [operand.full for operand in operands], params)
    except (TypeError, ValueError, NotImplementedError):
        return _with_own_types(eqn, operands)
    alike = all(full.shape == plain.shape for full, plain in zip(fulls, plains, strict=True))
    return fulls if alike else [reference_of(plain).full for plain in plains]


def _with_own_types(eqn: Any, operands: Sequence[Reference]) -> list[Any]:
    """Binds an unchanged equation to references in the types of the program."""
    own = [
        operand.full if operand.shared else jnp.asarray(operand.full).astype(operand.plain.dtype)
        for operand in operands
    ]
    return [reference_of(result).full for result in _jax.bind(eqn, own)]


def _rounds(eqn: Any) -> bool:
    """Returns True if an equation rounds float32 to the digits of half."""
    if eqn.primitive.name != "reduce_precision":
        return False
    return any(
        (info.nexp, info.nmant) == (eqn.params["exponent_bits"], eqn.params["mantissa_bits"])
        for info in map(jnp.finfo, HALF)
    )


def _wide(param: Any) -> Any:
    """Replaces half types and their algorithms in a parameter by float32."""
    if isinstance(param, str):
        return "float32" if param in map(str, HALF) else param
    if isinstance(param, lax.DotAlgorithmPreset) and param.name.startswith(("BF16", "F16")):
        return None
    if isinstance(param, np.dtype) or (isinstance(param, type) and hasattr(param, "dtype")):
        return np.dtype("float32") if jnp.dtype(param) in HALF else param
    return param


def rejoined(plain: Any, full: Any, aval: Any) -> tuple[Any, Any]:
    """Casts a value and its reference to the dtypes of a carry of this type."""
    dtype = aval.dtype
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return plain, full
    wide = jnp.dtype("float32") if dtype in HALF else dtype
    return jnp.asarray(plain, dtype), jnp.asarray(full, wide)
