"""Painters: each takes a graph and its classes and returns a painting.

``duotone`` is ours, ``tensorflow`` the reference. Each is a file and has a line in
:data:`PAINTERS`.
The minimum cut is not for programs whose compiler fuses casts: ``mincut.py`` here is for ONNX
models, and ``duotone/tensorflow/mincut.py`` for saved graphs.
"""

from duotone.precision.painters.dominant import paint_dominant
from duotone.precision.painters.mincut import paint_mincut
from duotone.precision.painters.painting import Painter
from duotone.precision.painters.tensorflow_passes import paint_tensorflow

PAINTERS: dict[str, Painter] = {
    "duotone": paint_dominant,
    "tensorflow": paint_tensorflow,
    "mincut": paint_mincut,
}
"""The painters by the name that ``Policy(painter=...)`` takes."""

__all__ = ["PAINTERS", "paint_dominant", "paint_tensorflow"]
