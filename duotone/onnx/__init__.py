"""duotone.onnx: ONNX models in mixed precision.

:func:`rewrite` takes a model, or the file of one, and gives back a copy in mixed precision with the
record of every decision; :func:`explain` paints without writing, :func:`view` shows the record;
:func:`compare` runs two models in ONNX Runtime and tells where they first differ; :func:`calibrate`
measures the ranges of a model's values; :func:`check_range` finds those that float16 cannot hold.
They need the ``onnx`` package (``pip install 'duotone[onnx]'``), those that run a model
``onnxruntime``, and no JAX.

The stages are in ``duotone/onnx/pipeline.py``.
"""

from duotone.measuring.differences import Difference
from duotone.onnx.api import Rewritten, explain, rewrite, view
from duotone.onnx.calibrate import calibrate
from duotone.onnx.compare import compare
from duotone.onnx.range_check import RangeCheck, check_range

__all__ = [
    "Difference",
    "RangeCheck",
    "Rewritten",
    "calibrate",
    "check_range",
    "compare",
    "explain",
    "rewrite",
    "view",
]
