"""Networks: shapes of convolutions, pooling, normalisation, losses and recurrent cells.

``algebra`` says how rules work.
"""

from __future__ import annotations

from collections.abc import Sequence

from duotone.tensorflow.shapes.algebra import broadcast_to, from_value, same, same_as_second
from duotone.tensorflow.shapes.operation import Operation, Shape, ShapeRule


def _channel_axis(operation: Operation, rank: int) -> int:
    """Returns where the channels are in an activation."""
    return 1 if operation.text("data_format", "NHWC").startswith("NC") else rank - 1


def _spatial_axes(operation: Operation, rank: int) -> list[int]:
    channel = _channel_axis(operation, rank)
    return [axis for axis in range(1, rank) if axis != channel]


def _window(
    operation: Operation, size: int | None, axis: int, window: int | None, strides: Sequence[int]
) -> int | None:
    """Returns the size of one dimension after a window has moved over it."""
    stride = strides[axis] if axis < len(strides) else 1
    padding = operation.text("padding", "VALID")
    if size is not None and padding == "SAME":
        return -(-size // stride)
    if window is None and operation.guess:
        window = 1
    if size is None or window is None:
        return None
    if padding == "EXPLICIT":
        explicit = operation.integers("explicit_paddings")
        size += explicit[2 * axis] + explicit[2 * axis + 1]
    return (size - window) // stride + 1


def convolution(operation: Operation) -> Sequence[Shape]:
    """Infers a convolution, whose filters end in input channels and output channels.

    The filters of a depthwise one end in channels and a multiplier.
    """
    shape, filters = operation.shape(0), operation.shape(1)
    if shape is None:
        return [(None,) * len(operation.integers("strides"))]
    filters = filters or (None,) * len(shape)
    result = list(shape)
    strides, dilations = operation.integers("strides"), operation.integers("dilations")
    for axis_index, axis in enumerate(_spatial_axes(operation, len(shape))):
        size = filters[axis_index]
        dilation = dilations[axis] if axis < len(dilations) else 1
        reach = None if size is None else (size - 1) * dilation + 1
        result[axis] = _window(operation, shape[axis], axis, reach, strides)
    inputs, outputs = filters[-2:]
    if operation.node.op.startswith("Depthwise"):
        outputs = None if inputs is None or outputs is None else inputs * outputs
    result[_channel_axis(operation, len(shape))] = outputs
    return [tuple(result)]


def input_gradient(operation: Operation) -> Sequence[Shape]:
    """Infers Conv*BackpropInput from its first input, the size, or else from the gradient."""
    sizes = operation.value(0)
    if sizes is not None:
        return [sizes]
    gradient, filters = operation.known(2), operation.known(1)
    result: list[int | None] = list(gradient)
    strides = operation.integers("strides")
    for axis in _spatial_axes(operation, len(gradient)):
        size = gradient[axis]
        result[axis] = None if size is None else size * strides[axis]
    result[_channel_axis(operation, len(gradient))] = filters[-2]
    return [tuple(result)]


def pooling(operation: Operation) -> Sequence[Shape]:
    """Infers a pooling, whose attributes have the window."""
    shape = operation.known(0)
    result = list(shape)
    window, strides = operation.integers("ksize"), operation.integers("strides")
    for axis in range(1, len(shape)):
        result[axis] = _window(operation, shape[axis], axis, window[axis], strides)
    return [tuple(result)] * operation.outputs


def bias_gradient(operation: Operation) -> Sequence[Shape]:
    """Infers BiasAddGrad: one number per channel."""
    shape = operation.known(0)
    return [(shape[_channel_axis(operation, len(shape))],)]


def normalisation(operation: Operation) -> Sequence[Shape]:
    """Infers FusedBatchNorm and its gradients: an activation, then a vector per output."""
    shape = operation.known(0)
    vector = (shape[_channel_axis(operation, len(shape))],)
    return [shape, *[vector] * (operation.outputs - 1)]


def normalisation_gradient(operation: Operation) -> Sequence[Shape]:
    """Infers FusedBatchNormGrad, whose last two outputs are empty."""
    return [*normalisation(operation)[:3], (0,), (0,)]


def biased(operation: Operation) -> Sequence[Shape]:
    """Infers BiasAdd: the bias has one element per channel."""
    shape, bias = operation.known(0), operation.shape(1)
    if bias is None:
        return [shape]
    axis = _channel_axis(operation, len(shape))
    return [tuple(bias[0] if i == axis and d is None else d for i, d in enumerate(shape))]


def loss(operation: Operation) -> Sequence[Shape]:
    """Infers softmax cross entropy: a loss per example and the gradient of the logits."""
    shape = operation.known(0)
    return [shape[:1], shape]


def to_scalar(operation: Operation) -> Sequence[Shape]:
    """Infers L2Loss, a scalar."""
    return [()] * operation.outputs


def top_k(operation: Operation) -> Sequence[Shape]:
    """Infers TopKV2: values and their indices."""
    shape, count = operation.known(0), operation.value(1)
    return [(*shape[:-1], count[0] if count else None)] * 2


def resize(operation: Operation) -> Sequence[Shape]:
    """Infers the resizing of images to a constant size."""
    shape, size = operation.known(0), operation.value(1)
    height, width = size or (None, None)
    return [(shape[0], height, width, shape[3])]


def block_cell(operation: Operation) -> Sequence[Shape]:
    """Infers LSTMBlockCell and GRUBlockCell: all outputs are as large as the state."""
    return [operation.shape(1)] * operation.outputs


def block_sequence(operation: Operation) -> Sequence[Shape]:
    """Infers BlockLSTM from time, batch and the size of the state."""
    return [(operation.known(1)[0], *operation.known(2))] * operation.outputs


_FAMILIES: dict[ShapeRule, str] = {
    convolution: "Conv2D Conv3D DepthwiseConv2dNative",
    input_gradient: """Conv2DBackpropInput Conv3DBackpropInputV2
        DepthwiseConv2dNativeBackpropInput""",
    broadcast_to: """Conv2DBackpropFilter Conv3DBackpropFilterV2
        DepthwiseConv2dNativeBackpropFilter""",
    pooling: "AvgPool AvgPool3D MaxPool MaxPool3D",
    same: "MaxPoolGrad MaxPool3DGrad MaxPoolGradGrad MaxPoolGradV2",
    from_value: "AvgPoolGrad AvgPool3DGrad",
    bias_gradient: "BiasAddGrad",
    normalisation: "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3",
    normalisation_gradient: "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3",
    biased: "BiasAdd BiasAddV1",
    same_as_second: "ResizeBilinearGrad ResizeBicubicGrad",
    loss: "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
    to_scalar: "L2Loss Rank Size",
    top_k: "TopKV2",
    resize: "ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea",
    block_cell: "LSTMBlockCell GRUBlockCell",
    block_sequence: "BlockLSTM BlockLSTMV2",
}

NETWORKS: dict[str, ShapeRule] = {op: rule for rule, ops in _FAMILIES.items() for op in ops.split()}
"""By op."""
