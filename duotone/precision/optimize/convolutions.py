"""Convolutions and pooling in the forms for which libraries have fast kernels.

On CPUs:

Windows that do not overlap, such as 1 × 1, make a convolution a dot (``window_dots``). A
convolution of an image with zeros between its elements becomes several without them (``phases``).
oneDNN has half kernels for windows that slide over the image as it is (``library_convolutions``).

In two cases XLA computes a convolution one product at a time, in float32 too. One is a
convolution with one feature per group. As products of the shifted image, or sums of them for the
gradient of its filters, it is computed by vector instructions (``channelwise_sums``). The other
is a window with more elements than the image: XLA exchanges the two, and no library takes the
result. An image that is padded before is larger (``padded_images``). XLA reduces windows one by
one as well; their maximum, sum and gradients are elementwise operations of the moved operand
(``pooling``).

On GPUs, in float32 too: cuDNN takes dilations and strides as they are, and XLA uses that for
convolutions of evenly padded images and for the two gradients of a strided convolution. It fills
the operands of others with zeros, or has cuDNN compute them with a window as large as the image. A
transposed convolution and the gradient of its filters are gradients of a strided convolution
(``transposed_convolutions``); an image is padded before (``dilated_filters``); and the gradient of
dilated filters is one of plain filters, with the positions between as features
(``dilated_gradients``).

The front end marks such operations; :mod:`duotone.jaxpr.reading.windows` says which they are. All
forms compute the sums of the program.
"""

from __future__ import annotations

from duotone.graph.graph import SWITCHED_OFF, Node
from duotone.precision.optimize.optimization import Expression, Match, Optimization
from duotone.precision.optimize.painted_view import View


def _of_half(name: str, attribute: str, reason: str) -> Match:
    """Returns a match of half convolutions with an attribute, which the front end lowers."""

    def match(node: Node, view: View) -> Optimization | None:
        if attribute not in node.attributes or not view.computes_half(node):
            return None
        return Optimization(name, node.index, reason, ())

    return match


def _replaced(name: str, attribute: str, reason: str) -> Match:
    """Returns a match of operations with an attribute, in any precision, by a step of a name."""

    def match(node: Node, view: View) -> Optimization | None:
        if attribute not in node.attributes or node.region == SWITCHED_OFF:
            return None
        write = Expression()
        write(name, *write.operands(node, view.painting.compute[node.index]))
        return Optimization(name, node.index, reason, write.steps)

    return match


match_windows = _of_half("window_dots", "tiles", "its windows do not overlap: a dot")
match_phases = _of_half(
    "phases",
    "phases",
    "its image has zeros between its elements: a convolution for each of their phases",
)
match_library = _of_half(
    "library_convolutions",
    "slides",
    "its windows slide over the image as it is: oneDNN has a half kernel for it",
)
match_channelwise = _replaced(
    "channelwise_sums", "channelwise", "one feature per group: elementwise, by vector instructions"
)
match_spread = _replaced(
    "transposed_convolutions", "spread", "its image has zeros between its elements"
)
match_uneven = _replaced(
    "dilated_filters", "uneven", "its filters are dilated, and its image is padded first"
)
match_dilated_gradient = _replaced(
    "dilated_gradients", "dilated_gradient", "a sum over positions that are a dilation apart"
)
match_pooling = _replaced(
    "pooling", "pools", "elementwise over the elements of a window, by vector instructions"
)
match_padded = _replaced(
    "padded_images", "overhangs", "its window is larger than its image, which is padded first"
)
