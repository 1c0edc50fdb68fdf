"""Operations that TensorFlow's remapper fused are taken apart."""

from __future__ import annotations

import pytest

from duotone.tensorflow.live.unfuse import unfuse
from duotone.tensorflow.protos import FLOAT
from tests.tensorflow.painted import Builder

PLACEHOLDER = {"dtype": FLOAT}


def taken_apart(bias_shape, layout, parts=("BiasAdd", "Relu")):
    """The ops of a fused convolution, and the inputs of each after the first."""
    b = Builder()
    x = b.add("Placeholder", name="x", shape=(8, 16, 16, 4), **PLACEHOLDER)
    w = b.add("Placeholder", name="w", shape=(3, 3, 4, 2), **PLACEHOLDER)
    given = {} if bias_shape is None else {"shape": bias_shape}
    bias = b.add("Placeholder", name="bias", **given, **PLACEHOLDER)
    if bias_shape is None:
        b.graph.node[-1].attr["shape"].shape.unknown_rank = True
    fused = b.graph.node.add(name="y", op="_FusedConv2D", input=[x, w])
    if "BiasAdd" in parts:
        fused.input.append(bias)
    fused.attr["T"].type = FLOAT
    fused.attr["fused_ops"].list.s.extend(part.encode() for part in parts)
    fused.attr["data_format"].s = layout
    assert unfuse(b.graph) == 1
    made = {node.name: node for node in b.graph.node if node.op != "Placeholder"}
    assert "y" in made
    assert made["y/unfused"].op == "Conv2D"
    return {node.op: list(node.input) for node in made.values()}


@pytest.mark.parametrize(
    ("shape", "layout", "op"),
    [
        ((2,), b"NHWC", "BiasAdd"),
        ((2,), b"NCHW", "BiasAdd"),
        ((1, 1, 1, 2), b"NHWC", "AddV2"),
        ((1, 2, 1, 1), b"NCHW", "AddV2"),
        (None, b"NHWC", "AddV2"),
        (None, b"NCHW", "BiasAdd"),
    ],
)
def test_a_bias_is_added_as_its_rank_says(shape, layout, op):
    """Catches: a BiasAdd of a bias that is no vector, which fails when it runs."""
    ops = taken_apart(shape, layout)
    assert ops.keys() == {"Conv2D", op, "Relu"}
    assert ops[op] == ["y/unfused", "bias"]


def test_an_activation_alone():
    assert taken_apart((2,), b"NHWC", parts=("Relu",)) == {
        "Conv2D": ["x", "w"],
        "Relu": ["y/unfused"],
    }
