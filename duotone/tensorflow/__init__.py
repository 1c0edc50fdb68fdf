"""duotone.tensorflow: TensorFlow graphs in mixed precision, saved and live.

:func:`rewrite` takes a GraphDef and returns a copy in mixed precision with a record of every
decision; :func:`rewrite_file` does it to a file or a SavedModel. These two need the ``tensorboard``
package for the protobuf messages, and neither TensorFlow nor JAX. :func:`compare` runs two files in
TensorFlow and tells where they first differ.

:func:`duotone.enable_mixed_precision_graph_rewrite` rewrites the graphs of a running TensorFlow.
:func:`explain_last` shows why each operation is half, :func:`compare_last` what the rewrite
changes, and :func:`compare_step` where a step first differs from float32.
:func:`disable_mixed_precision_graph_rewrite` switches it off.

The stages are in ``duotone/tensorflow/pipeline.py``.
"""

from duotone.tensorflow.calibrate import calibrate
from duotone.tensorflow.compare import compare
from duotone.tensorflow.devices import Device
from duotone.tensorflow.live.compared import LiveComparison, compare_last
from duotone.tensorflow.live.explained import LiveExplanation, explain_last
from duotone.tensorflow.live.step import compare_step
from duotone.tensorflow.live.switch import disable as disable_mixed_precision_graph_rewrite
from duotone.tensorflow.pipeline import rewrite
from duotone.tensorflow.rewrite_file import FileResult, GraphResult, rewrite_file
from duotone.tensorflow.rewrite_record import (
    BodyResult,
    CastNodeRecord,
    Decision,
    RewriteResult,
)

__all__ = [
    "BodyResult",
    "CastNodeRecord",
    "Decision",
    "Device",
    "FileResult",
    "GraphResult",
    "LiveComparison",
    "LiveExplanation",
    "RewriteResult",
    "calibrate",
    "compare",
    "compare_last",
    "compare_step",
    "disable_mixed_precision_graph_rewrite",
    "explain_last",
    "rewrite",
    "rewrite_file",
]
