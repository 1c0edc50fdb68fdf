"""View: a painted program and the facts that matches ask for, computed once."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from duotone.graph.graph import Graph, Node, Paint, Value
from duotone.precision.classify.classes import Classes
from duotone.precision.levels import Levels, find_levels
from duotone.precision.painters.painting import Painting
from duotone.precision.ranges.interval import Known

T = TypeVar("T")


class View:
    """A painted program.

    Attributes:
        graph: the program.
        classes: the class of each node.
        painting: the precisions.
        known: gives the interval of a value, or ``None``.
    """

    def __init__(
        self,
        graph: Graph,
        classes: Classes,
        painting: Painting,
        known: Callable[[int], Known] = lambda value: None,
    ) -> None:
        self.graph = graph
        self.classes = classes
        self.painting = painting
        self.known = known
        self._found: dict[Callable[..., Any], Any] = {}

    def repainted(self, painting: Painting) -> Self:
        """Returns the same program in other precisions."""
        found = copy.copy(self)
        found.painting, found._found = painting, {}
        return found

    def once(self, find: Callable[[Self], T]) -> T:
        """Returns the result of a function of this program and its painting; calls it once."""
        if find not in self._found:
            self._found[find] = find(self)
        return self._found[find]

    @functools.cached_property
    def levels(self) -> Levels:
        """Which operations can never be in one kernel."""
        return find_levels(self.graph, self.classes)

    def value(self, index: int) -> Value:
        """Returns the value with an index."""
        return self.graph.values[index]

    def shape(self, value: int) -> tuple[object, ...]:
        """Returns the shape of a value."""
        return self.graph.values[value].shape

    def maker(self, value: int) -> Node | None:
        """Returns the node that makes a value; ``None`` for arguments and constants."""
        return self.graph.maker(value)

    def maker_in_body(self, node: Node, value: int) -> Node | None:
        """Returns the node that makes a value, if it runs in the same body as ``node``."""
        made = self.maker(value)
        return made if made is not None and made.body == node.body else None

    def full_maker(self, node: Node, value: int) -> Node | None:
        """Returns the maker of a value, if it is in ``node``'s body and full throughout."""
        made = self.maker_in_body(node, value)
        return made if made is not None and self.painting.is_full(made) else None

    def readers(self, value: int) -> list[tuple[Node, int]]:
        """Returns the nodes that read a value, each with the slot."""
        return [(self.graph.nodes[reader], slot) for reader, slot in self.graph.consumers[value]]

    def only_reader(self, value: int) -> Node | None:
        """Returns the node that reads a value, if there is exactly one reader."""
        readers = self.graph.consumers[value]
        return self.graph.nodes[readers[0][0]] if len(readers) == 1 else None

    def is_full(self, node: Node) -> bool:
        """Returns True if a node could be half, but computes and stores full."""
        return self.painting.is_full(node)

    def computes_half(self, node: Node) -> bool:
        """Returns True if a node takes its operands in half."""
        return self.painting.compute[node.index] is Paint.HALF

    def is_stored_half(self, value: int) -> bool:
        """Returns True if a value is in memory in half."""
        return self.graph.stored(self.painting.store, self.graph.values[value]) is Paint.HALF

    def axes(self, node: Node, name: str = "axes") -> tuple[int, ...]:
        """Returns an attribute of a node that names axes; empty if it has no such attribute."""
        axes = node.attributes.get(name, ())
        assert isinstance(axes, tuple)
        return axes

    def is_common(self, factor: int, shape: Sequence[object], axes: Sequence[int]) -> bool:
        """Returns True if a factor is the same for all elements along some axes.

        Args:
            factor: the index of a value.
            shape: the shape of the other operand, with which it is combined element by element.
            axes: the axes, for example those that a sum removes.
        """
        mine = self.shape(factor)
        return not mine or (len(mine) == len(shape) and all(mine[axis] == 1 for axis in axes))
