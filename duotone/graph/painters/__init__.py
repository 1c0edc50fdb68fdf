"""Painters: each takes a graph and its classes and returns a painting.

``duotone`` is ours, ``tensorflow`` the reference. One file each, registered in :data:`PAINTERS`.
(The minimum cut is for saved graphs: ``duotone/tensorflow/mincut.py``.)
"""

from duotone.graph.painters.dominant import paint_dominant
from duotone.graph.painters.painting import Painter
from duotone.graph.painters.tensorflow import paint_tensorflow

PAINTERS: dict[str, Painter] = {
    "duotone": paint_dominant,
    "tensorflow": paint_tensorflow,
}
"""By the name that ``Policy(painter=...)`` takes."""

__all__ = ["PAINTERS", "paint_dominant", "paint_tensorflow"]
