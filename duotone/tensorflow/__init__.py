"""duotone.tensorflow: TensorFlow graphs, painted as TensorFlow 2.21 paints them, without it.

:func:`rewrite` takes a GraphDef and gives back a copy in mixed precision with a record of every
decision; :func:`rewrite_file` does it to a file or a SavedModel. :func:`compare` runs two files in
TensorFlow and tells where they first differ. The first two need the ``tensorboard`` package for
the protobuf messages, and neither TensorFlow nor JAX.

The stages are in ``duotone/tensorflow/pipeline.py``.
"""

from duotone.tensorflow.compare import compare
from duotone.tensorflow.devices import Device
from duotone.tensorflow.pipeline import rewrite
from duotone.tensorflow.rewrite_file import FileResult, GraphResult, rewrite_file
from duotone.tensorflow.rewrite_record import (
    BodyResult,
    CastNodeRecord,
    Decision,
    FunctionResult,
    RewriteResult,
)

__all__ = [
    "BodyResult",
    "CastNodeRecord",
    "Decision",
    "Device",
    "FileResult",
    "FunctionResult",
    "GraphResult",
    "RewriteResult",
    "compare",
    "rewrite",
    "rewrite_file",
]
