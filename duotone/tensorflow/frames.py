r"""Frames: the loops of a graph with lowered control flow, as bodies.

::

    Enter(frame_name) -> Merge -> Switch -> ... -> NextIteration -> Merge
                                        \\-> Exit

``Enter`` takes a value into a frame, and ``Exit`` out of it. Every other node is in the frame of
its operands. Each frame is a body of kind :attr:`~duotone.graph.graph.BodyKind.LOOP`.
"""

from __future__ import annotations

from duotone.graph.graph import Body, BodyKind
from duotone.ops.tensorflow_kinds import ENTERS
from duotone.tensorflow.units import Units

_ROOT = ""


def frames_of(units: Units, *, in_loop: bool = False) -> tuple[list[Body], list[int]]:
    """Returns the bodies of a graph, an outer one first, and the body of each node by its index.

    A graph that is the body of a loop itself is the second body.
    """
    frame = [_ROOT] * len(units.nodes)
    around: dict[str, str] = {}
    has_frames = any(node.op in ENTERS for node in units.nodes)
    for position in units.order if has_frames else ():
        node = units.nodes[position]
        inside = [frame[source] for source, _ in units.sources[position]]
        frame[position] = max(inside, key=lambda name: _depth(name, around), default=_ROOT)
        if node.op in ENTERS:
            name = node.attr["frame_name"].s.decode()
            around.setdefault(name, frame[position])
            frame[position] = name
        elif node.op in ("Exit", "RefExit"):
            frame[position] = around.get(frame[position], _ROOT)
    numbers: dict[str, int] = {}
    bodies = [Body(0, -1, BodyKind.ROOT, 1)] if in_loop else []
    _number(_ROOT, len(bodies) - 1, around, numbers, bodies)
    return bodies, [numbers.get(name, numbers[_ROOT]) for name in frame]


def _depth(name: str, around: dict[str, str]) -> int:
    depth = 0
    while name in around and depth <= len(around):
        name, depth = around[name], depth + 1
    return depth


def _number(
    name: str, parent: int, around: dict[str, str], numbers: dict[str, int], bodies: list[Body]
) -> None:
    """Adds the body of a frame, and after it those of the frames inside."""
    index = numbers[name] = len(bodies)
    bodies.append(Body(index, parent, BodyKind.ROOT if parent < 0 else BodyKind.LOOP, 1))
    for inner, outer in around.items():
        if outer == name and inner not in numbers:
            _number(inner, index, around, numbers, bodies)
