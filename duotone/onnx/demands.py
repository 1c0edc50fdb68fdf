"""Demands: the precisions in which each value is read, and the positions of its casts.

::

    before a loop     casts of values that do not change inside, in branches in it too
    before an If      casts that every branch reads
    inside a branch   casts that other branches do not read, since only one branch runs
"""

from __future__ import annotations

from duotone.graph.graph import BodyKind, Boundary, Graph, Paint
from duotone.onnx.parts import Built, Part
from duotone.precision.painters.painting import Painting

Cast = tuple[int, Paint, int]
"""Value, precision, and the body of the cast."""


class Demands:
    """The demands of one painting.

    Attributes:
        wanted: the precisions in which each value is read.
        readers: the nodes that read each cast, -1 for a result; in the order of the first reader.
    """

    def __init__(self, built: Built, painting: Painting) -> None:
        self._built, self._painting = built, painting
        self._graph: Graph = built.graph
        self._returned = dict(self._graph.outputs)
        self._branches: list[tuple[int, list[int]]] = []
        self.wanted: dict[int, dict[Paint, None]] = {}
        self.readers: dict[Cast, list[int]] = {}
        self._walk(built.root)
        self._share()

    def want(self, value: int, reader: tuple[int, int] | None) -> Paint | None:
        """Returns the precision in which a node reads a value; ``None`` as it is stored."""
        if reader is None or not self._graph.values[value].paintable:
            return None
        node, slot = reader
        may = self._graph.nodes[node].half_inputs[slot]
        return self._painting.compute[node] if may else Paint.FULL

    def want_result(self, part: Part, value: int, reader: tuple[int, int] | None) -> Paint | None:
        """Returns the precision in which a value leaves a graph."""
        if part.body == 0 and self._graph.values[value].paintable:
            return Paint.HALF if self._returned[value] is Boundary.HALF else Paint.FULL
        return self.want(value, reader)

    def stored(self, value: int) -> Paint:
        """Returns the precision in which a value is made."""
        return self._graph.stored(self._painting.store, self._graph.values[value])

    def _walk(self, part: Part) -> None:
        """Collects the demands of a graph and its nested graphs."""
        for step in part.steps:
            for value, reader in zip(step.inputs, step.readers, strict=True):
                if value >= 0:
                    self._note(value, self.want(value, reader), part.body, reader)
            for inner in step.parts:
                self._walk(inner)
            if len(step.parts) > 1:
                self._branches.append((part.body, [inner.body for inner in step.parts]))
        for value, reader in zip(part.outputs, part.readers, strict=True):
            self._note(value, self.want_result(part, value, reader), part.body, reader)

    def _note(
        self, value: int, want: Paint | None, body: int, reader: tuple[int, int] | None
    ) -> None:
        if want is None:
            return
        self.wanted.setdefault(value, {})[want] = None
        if value in self._built.constants or self.stored(value) is want:
            return
        where = self._place(value, body)
        readers = self.readers.setdefault((value, want, where), [])
        readers.append(-1 if reader is None else reader[0])

    def _place(self, value: int, body: int) -> int:
        """Returns the body of a cast: outside of loops that keep the value, else in the branch."""
        around = {self._graph.values[value].body, *self._around(self._graph.values[value].body)}
        where = body
        while body not in around:
            found = self._graph.bodies[body]
            where = found.parent if found.kind is BodyKind.LOOP else where
            body = found.parent
        return where

    def _around(self, body: int) -> list[int]:
        """Returns the outer bodies of a body, the nearest first."""
        found = []
        while (body := self._graph.bodies[body].parent) >= 0:
            found.append(body)
        return found

    def _share(self) -> None:
        """Moves casts before an ``If`` that each branch needs, and drops those made outside."""
        for body, branches in self._branches:  # inner ones come first
            for value, to in [(v, to) for v, to, where in self.readers if where == branches[0]]:
                if all((value, to, branch) in self.readers for branch in branches):
                    readers = [r for b in branches for r in self.readers.pop((value, to, b))]
                    cast = value, to, self._place(value, body)
                    self.readers[cast] = self.readers.get(cast, []) + readers
        for value, to, body in list(self.readers):
            for outer in self._around(body):
                if (value, to, outer) in self.readers:
                    self.readers[value, to, outer] += self.readers.pop((value, to, body))
                    break
