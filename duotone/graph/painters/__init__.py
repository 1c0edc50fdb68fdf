"""Painters: each takes a graph and its classes and returns a painting.

``duotone`` and ``mincut`` are ours; ``tensorflow`` is the reference. One file each, registered in
:data:`PAINTERS`.
"""

from duotone.graph.painters.dominant import paint_dominant
from duotone.graph.painters.mincut import paint_mincut
from duotone.graph.painters.tensorflow import paint_tensorflow
from duotone.graph.painting import Painter

PAINTERS: dict[str, Painter] = {
    "duotone": paint_dominant,
    "mincut": paint_mincut,
    "tensorflow": paint_tensorflow,
}
"""By the name that ``Policy(painter=...)`` takes."""

__all__ = ["PAINTERS", "paint_dominant", "paint_mincut", "paint_tensorflow"]
