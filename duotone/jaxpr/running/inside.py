"""Rewritten programs inside of another program, and how each was painted.

The rewrite happens while a function is traced. The outer program then contains a ``jit`` equation.
Transformations copy, differentiate and map that equation, but keep its name. So ``explain``, which
shows how the program was painted, traces it once more and collects::

    with collecting() as collection:       every `jit` cache misses: its key contains the collection
        trace the outer program            a Runner gives each equation a new name, such as
                                           duotone_autocast.3, and stores its painting by that name
        for each equation: collection.find(equation)
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import jax

from duotone import _jax
from duotone.jaxpr.reading.program import Program, Step
from duotone.jaxpr.reading.scopes import MARKER, is_rewritten
from duotone.jaxpr.running.jaxprs import programs_in

_MARK = "duotone.node#"


@dataclasses.dataclass(frozen=True, slots=True)
class RewrittenProgram:
    """One rewritten program.

    Attributes:
        painted: the result of the pipeline; see :class:`duotone.jaxpr.painted.PaintedProgram`.
        jaxpr: the rewritten program.
    """

    painted: Any
    jaxpr: _jax.ClosedJaxpr


class Collection:
    """Rewritten programs by the name of their equation.

    Attributes:
        latest: the last painted program, until :meth:`put` stores it.
        marked: the programs whose nodes are marked in name scopes, see :meth:`marker_of`.
    """

    def __init__(self, *, marks: bool = False) -> None:
        self.latest: Any = None
        self.marked: list[Any] = []
        self._marks = marks
        self._entries: dict[str, RewrittenProgram] = {}
        self._compiled: dict[Hashable, Any] = {}
        self._kept: list[Any] = []
        self._numbers = itertools.count(1)

    def marker_of(self, painted: Any) -> Callable[[int], Any] | None:
        """Returns a function from a node to the name scope that marks the equations made from it.

        The program is appended to :attr:`marked`.

        Returns:
            ``None`` if this collection does not mark nodes.
        """
        if not self._marks:
            return None
        self.marked.append(painted)
        prefix = f"{_MARK}{len(self.marked) - 1}."
        return lambda node: jax.named_scope(f"{prefix}{node}")

    def new_name(self) -> str:
        """Returns a name that no equation has yet."""
        return f"{MARKER}.{next(self._numbers)}"

    def once(self, owner: Any, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns the result of ``make()``, called once for each object and key."""
        found = self._compiled.get((id(owner), key))
        if found is None:
            self._kept.append(owner)  # so that Python does not reuse its id
            found = self._compiled[id(owner), key] = make()
        return found

    def put(self, name: str, jaxpr: _jax.ClosedJaxpr) -> None:
        """Stores the most recently painted program under the name of its equation."""
        if self.latest is not None:
            self._entries[name] = RewrittenProgram(self.latest, jaxpr)
            self.latest = None

    def find(self, eqn: _jax.Eqn) -> RewrittenProgram | None:
        """Returns how the program of an equation was painted; ``None`` if this is not stored."""
        return self._entries.get(eqn.params["name"])


class _Key:
    """Represents a collection in the keys of ``jit`` caches, which keep it; so it holds nothing."""


_COLLECTIONS: dict[_Key, Collection] = {}


@contextlib.contextmanager
def collecting(*, marks: bool = False) -> Iterator[Collection]:
    """Collects what is painted inside the block.

    With ``marks``, a name scope on every equation of a rewritten program names the node that the
    equation was made from; :func:`node_marked` reads it.
    """
    key, collection = _Key(), Collection(marks=marks)
    _COLLECTIONS[key] = collection
    try:
        with _jax.collecting(key):
            yield collection
    finally:
        del _COLLECTIONS[key]


def node_marked(names: Iterable[str]) -> tuple[int, int] | None:
    """Returns the index in :attr:`Collection.marked` and the node that the innermost mark names."""
    found = [name for name in names if name.startswith(_MARK)]
    if not found:
        return None
    program, _, node = found[-1].removeprefix(_MARK).partition(".")
    return int(program), int(node)


def without_marks(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the name scopes that mark no node."""
    return tuple(name for name in names if not name.startswith(_MARK))


def collection_now() -> Collection | None:
    """Returns the current collection, or ``None``."""
    key = _jax.collecting.value
    return None if key is None else _COLLECTIONS.get(key)


def holds_rewritten(jaxpr: Any) -> bool:
    """Returns True if a program contains a rewritten program, at any depth."""
    return any(
        is_rewritten(eqn) or any(map(holds_rewritten, programs_in(eqn)))
        for eqn in _jax.open_jaxpr(jaxpr).eqns
    )


def rewritten_steps(program: Program) -> Iterator[Step]:
    """Yields the equations that are rewritten programs, in a program and its nested programs."""
    for step in program.steps:
        if step.kind == "leaf" and is_rewritten(step.eqn):
            yield step
        for body in step.bodies:
            yield from rewritten_steps(body)


def same_program(one: Any, other: Any) -> bool:
    """Checks if two programs have the same equations with the same types, nested ones included.

    False for a program that was differentiated, mapped or evaluated in part.
    """
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same_program, one, other))
    if not _jax.holds_jaxpr(one):  # another object in a tuple with programs
        return not _jax.holds_jaxpr(other)
    mine, theirs = _jax.open_jaxpr(one), _jax.open_jaxpr(other)
    if len(mine.eqns) != len(theirs.eqns) or _types(mine.invars) != _types(theirs.invars):
        return False
    for a, b in zip(mine.eqns, theirs.eqns, strict=True):
        if a.primitive is not b.primitive or _types(a.outvars) != _types(b.outvars):
            return False
        for name, param in a.params.items():
            if _jax.holds_jaxpr(param) and not same_program(param, b.params[name]):
                return False
    return True


def _types(atoms: Any) -> list[tuple[Any, Any]]:
    avals = [atom.aval for atom in atoms]
    return [(getattr(aval, "shape", None), getattr(aval, "dtype", None)) for aval in avals]
