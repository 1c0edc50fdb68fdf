"""Compare: two models on the same inputs, by result and by inner value.

::

    inputs      the user's, or random ones with which the first model runs
    reference   every value of the first model
    exposed     every value of the second, each half value rounded
    plain       the results of the second as the runtime computes them
    difference  of reference and exposed; of the results also of reference and plain

Both models run in ONNX Runtime on the CPU without its optimizations, so that a value keeps its
name. The provider computes most operations of half operands in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from duotone.errors import ArgumentError
from duotone.measuring import inputs
from duotone.measuring.differences import Difference, constant_results, differences
from duotone.measuring.inputs import Shapes
from duotone.onnx import files, running
from duotone.onnx.exposing import rounded, with_all_values
from duotone.onnx.pipeline import inlined
from duotone.onnx.protos import ModelProto

PLAIN = (
    "error: with each half value rounded, as on a GPU; plain error: with ONNX Runtime's CPU "
    "provider, which keeps some half values in float32"
)
_NOT_ROUNDED = "ONNX infers no types in the second model, so its half values are not rounded"


def compare(
    first: Any, second: Any, data: Any = None, *, seed: int = 0, shapes: Shapes | None = None
) -> Difference:
    """Runs two models on the same inputs and tells where they first differ.

    Args:
        first: the path of a model, or an ``onnx.ModelProto``: the reference.
        second: the same, rewritten.
        data: inputs by name, or an ``.npz`` file of them; ``None`` for random numbers in the
            shapes of the first model. Sides that it leaves open get a size with which it runs.
        seed: the seed of the random numbers.
        shapes: the shapes of some random inputs, by name: ``{"x": (1, 3, 320, 640)}``.

    Returns:
        The differences. The error of a result is infinite where only one model gives infinity or
        NaN, or another shape.

    Raises:
        ArgumentTypeError: a model, the seed or the shapes have the wrong type.
        ArgumentError: the two have different results, or no inputs are found that the first runs
            with; name shapes or pass data.
        OnnxError: a model is damaged, or ONNX Runtime cannot run it.
        MissingExtraError: there is no ONNX Runtime.

    Example:
        >>> from onnx import parser
        >>> import duotone.onnx
        >>> model = parser.parse_model('''
        ... <ir_version: 8, opset_import: ["" : 17]>
        ... f (float[2, 3] x, float[3, 4] w) => (float[2, 4] y) { y = MatMul(x, w) }
        ... ''')
        >>> duotone.onnx.compare(model, duotone.onnx.rewrite(model).model).error < 1e-3
        True
    """
    one, other = files.read(first), files.read(second)
    outputs = [value.name for value in one.model.graph.output]
    if {*outputs} != {value.name for value in other.model.graph.output}:
        raise ArgumentError("the two models have different results; they cannot be compared.")
    with files.naming(one):
        given = inputs.given(
            data, shapes, lambda: running.inputs_for(one, seed=seed, shapes=shapes)
        )
        reference = _values(one, inlined(one.model), given.feed, outputs)
    with files.naming(other):
        exposed = rounded(other.model)
        values = _values(other, exposed or other.model, given.feed, outputs)
        opened = running.session(other.model, folder=other.folder)
        results = running.run(opened, outputs, running.fitted(opened, given.feed))
        plain = dict(zip(outputs, results, strict=True))
    constant = constant_results({name: reference[name] for name in outputs})
    notes = (*given.notes, *constant, PLAIN if exposed is not None else _NOT_ROUNDED)
    makers = {name: node.op_type for node in other.model.graph.node for name in node.output}
    found = differences(reference, values, outputs, makers, plain)
    return Difference(*found, inputs.described(given.feed), notes)


def _values(
    source: files.Source, model: ModelProto, feed: Mapping[str, Any], outputs: Sequence[str]
) -> dict[str, Any]:
    """Returns every float value of the outermost graph, and the results."""
    made, names = with_all_values(model)
    opened = running.session(made, folder=source.folder)
    asked = list(dict.fromkeys([*names, *outputs]))
    return dict(zip(asked, running.run(opened, asked, running.fitted(opened, feed)), strict=True))
