"""Shapes: how large the values of a graph are."""

from __future__ import annotations

import pytest

from duotone.tensorflow.op_registry import define_function, find_op
from duotone.tensorflow.protos import FLOAT
from duotone.tensorflow.shapes import Shapes, count_elements
from duotone.tensorflow.shapes.find import SHAPE_RULES
from duotone.tensorflow.units import make_units
from tests.tensorflow.graphdefs import resnet50
from tests.tensorflow.painted import Builder, placeholder, rewrite


def shapes_of(b: Builder, *, guess: bool = False):
    units = make_units(b.graph, find_op)
    shapes = Shapes(units)
    found = shapes.guessed if guess else shapes.known
    return {node.name: tuple(found[i]) for i, node in enumerate(units.nodes)}


def value(b: Builder, *shape: int) -> str:
    return b.add("Placeholder", name="v", dtype=FLOAT, shape=shape)


SAME = {"strides": [1, 2, 2, 1], "padding": "SAME"}
VALID = {"strides": [1, 2, 2, 1], "padding": "VALID"}
POOL = {"ksize": [1, 3, 3, 1]}
RULES = [
    ("MatMul", [(2, 3), (3, 5)], {}, (2, 5)),
    ("MatMul", [(3, 2), (5, 3)], {"transpose_a": True, "transpose_b": True}, (2, 5)),
    ("BatchMatMulV2", [(7, 1, 2, 3), (4, 5, 3)], {"adj_y": True}, (7, 4, 2, 5)),
    ("Einsum", [(2, 3, 4), (5, 4)], {"equation": "...a,ba->...b"}, (2, 3, 5)),
    ("Conv2D", [(8, 9, 9, 3), (3, 3, 3, 16)], SAME, (8, 5, 5, 16)),
    ("Conv2D", [(8, 9, 9, 3), (3, 3, 3, 16)], VALID, (8, 4, 4, 16)),
    ("DepthwiseConv2dNative", [(8, 9, 9, 3), (3, 3, 3, 2)], SAME, (8, 5, 5, 6)),
    ("MaxPool", [(8, 9, 9, 3)], {**POOL, **VALID}, (8, 4, 4, 3)),
    ("Add", [(2, 1, 4), (3, 1)], {}, (2, 3, 4)),
    ("Relu", [(2, 3)], {}, (2, 3)),
    ("BiasAddGrad", [(2, 3, 4)], {}, (4,)),
    ("L2Loss", [(2, 3)], {}, ()),
    ("AddN", [(2, 3), (2, 3)], {}, (2, 3)),
    ("Pack", [(2, 3), (2, 3)], {"axis": -1}, (2, 3, 2)),
    ("Unpack", [(2, 3)], {"axis": 1, "num": 3}, (2,)),
    ("Squeeze", [(2, 1, 3, 1)], {}, (2, 3)),
]
WITH_VECTOR = [
    ("Reshape", (4, 6), [-1, 3], {}, (8, 3)),
    ("Mean", (4, 6), [0], {}, (6,)),
    ("Mean", (4, 6), [0], {"keep_dims": True}, (1, 6)),
    ("Transpose", (4, 6), [1, 0], {}, (6, 4)),
    ("Tile", (4, 6), [2, 1], {}, (8, 6)),
    ("ExpandDims", (4, 6), [1], {}, (4, 1, 6)),
    ("Pad", (4, 6), [1, 1, 0, 2], {}, (6, 8)),
    ("OneHot", (4,), [10], {}, (4, 10)),
    ("BroadcastTo", (6,), [4, 6], {}, (4, 6)),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "wanted"), RULES)
def test_a_rule(op, inputs, attributes, wanted):
    b = Builder()
    name = b.add(op, *[value(b, *shape) for shape in inputs], name="y", **attributes)
    assert shapes_of(b)[name][0] == wanted


@pytest.mark.parametrize(("op", "shape", "vector", "attributes", "wanted"), WITH_VECTOR)
def test_a_rule_with_a_constant(op, shape, vector, attributes, wanted):
    b = Builder()
    rest = [b.constant(1.0)] * 2 if op == "OneHot" else []
    if op == "OneHot":
        attributes = {**attributes, "axis": -1}
    name = b.add(op, value(b, *shape), b.constant(vector), *rest, name="y", **attributes)
    assert shapes_of(b)[name][0] == wanted


def test_shapes_that_are_computed_in_the_graph():
    b = Builder()
    x, w = value(b, 8, 6, 6, 3), value(b, 3, 3, 3, 4)
    y = b.add("Conv2D", x, w, name="y", **SAME)
    sizes = b.add("ShapeN", x, w, name="sizes")
    b.add("Conv2DBackpropFilter", x, f"{sizes}:1", y, name="dw", **SAME)
    b.add("Conv2DBackpropInput", sizes, w, y, name="dx", **SAME)
    found = shapes_of(b)
    assert found["dw"] == ((3, 3, 3, 4),)
    assert found["dx"] == ((8, 6, 6, 3),)


def test_what_cannot_be_known_is_none_unless_guessed():
    b = Builder()
    handle = b.add("Placeholder", name="h", dtype=20, shape=())
    w = b.add("ReadVariableOp", handle, name="w")
    b.add("Conv2D", value(b, 8, 9, 9, 3), w, name="y", **VALID)
    assert shapes_of(b)["w"] == (None,)
    assert shapes_of(b)["y"] == ((8, None, None, None),)
    assert shapes_of(b, guess=True)["y"] == ((8, 5, 5, None),)
    assert count_elements((8, None)) == 8
    assert count_elements(None) is None


def test_a_handle_that_a_function_takes_has_the_shape_of_its_variable():
    """Catches: a training step whose weights have no sizes, so that small products are not seen."""
    b = Builder()
    handle = b.add("_Arg", name="h", T=20, index=0)
    shape = b.graph.node[-1].attr["_handle_shapes"].list.shape.add()
    for side in (64, 32):
        shape.dim.add(size=side)
    w = b.add("ReadVariableOp", handle, name="w")
    b.add("MatMul", value(b, 8, 64), w, name="y")
    b.add("_Arg", name="unknown", T=20, index=1)
    assert shapes_of(b)["y"] == ((8, 32),)
    assert shapes_of(b)["unknown"] == (None,)


def test_the_handle_of_a_list_has_the_shape_of_an_element():
    b = Builder()
    rows = b.add("TensorListFromTensor", value(b, 5, 8, 64), b.constant([8, 64]), name="rows")
    row = b.add("TensorListGetItem", rows, b.constant([0]), b.constant([8, 64]), name="row")
    start = b.add("EmptyTensorList", b.constant([-1, 64]), b.constant([4]), name="start")
    kept = b.add("TensorListPushBack", start, row, name="kept")
    b.add("TensorListPopBack", kept, b.constant([-1, 64]), name="last")
    new = b.add("TensorListReserve", b.constant([-1, 64]), b.constant([5]), name="new")
    written = b.add("TensorListSetItem", new, b.constant([0]), row, name="written")
    b.add("TensorListStack", written, b.constant([-1, 64]), num_elements=5, name="all")
    found = shapes_of(b)
    assert found["start"] == ((None, 64),)
    assert found["row"] == ((8, 64),)
    assert found["last"] == ((8, 64),) * 2
    assert found["all"] == ((5, 8, 64),)


def test_a_graph_that_contradicts_itself_is_not_for_shapes_to_refuse():
    b = Builder()
    b.add("MatMul", value(b, 2), value(b, 2), name="m")
    b.add("Reshape", value(b, 4), b.constant([3, -1]), name="r")
    found = shapes_of(b)
    assert found["m"] == (None,)
    assert found["r"] == ((3, 1),)


def test_every_float_of_a_training_graph_is_known():
    units = make_units(resnet50(), find_op)
    found = Shapes(units).known
    unknown = [
        units.nodes[i].name
        for i, ports in enumerate(found)
        for port, shape in enumerate(ports)
        if shape is None and units.dtype[units.outputs[i][port]] == FLOAT
    ]
    assert unknown == []


@pytest.mark.parametrize("painter", ["duotone", "tensorflow", "mincut"])
def test_a_rewrite_finds_each_shape_once(painter, monkeypatch):
    found: list[str] = []
    rule = SHAPE_RULES["MatMul"]

    def counted(operation):
        found.append(operation.node.name)
        return rule(operation)

    monkeypatch.setitem(SHAPE_RULES, "MatMul", counted)
    b = Builder()
    x = placeholder(b, size=512)
    first = b.add("MatMul", x, x, name="first")
    b.add("MatMul", first, first, name="second")
    result = rewrite(b.graph, painter=painter)
    assert result.casts
    assert sorted(found) == ["first", "second"]


def test_a_guess_reaches_the_readers_of_what_is_not_known_alone():
    b = Builder()
    unknown = b.add("Placeholder", name="u", dtype=FLOAT)
    scaled = b.add("Mul", unknown, value(b, 3, 4), name="scaled")
    b.add("Relu", scaled, name="read")
    b.add("Relu", value(b, 5), name="apart")
    known, guessed = shapes_of(b), shapes_of(b, guess=True)
    assert (known["scaled"], known["read"], known["apart"]) == ((None,), (None,), ((5,),))
    assert guessed["scaled"] == guessed["read"] == ((3, 4),)
    assert guessed["apart"] == ((5,),)


def test_a_function_of_the_library_may_have_the_name_of_an_op():
    b = Builder()
    identity = b.graph.library.function.add().signature
    identity.name = "Identity"
    identity.input_arg.add(name="x", type=FLOAT)
    for name in ("first", "second"):
        identity.output_arg.add(name=name, type=FLOAT)
    b.graph.node.add(name="both", op="Identity", input=[value(b, 2)])
    b.add("Relu", "both:1", name="read")
    functions = {"Identity": define_function(identity)}
    units = make_units(b.graph, lambda op: functions.get(op) or find_op(op))
    assert Shapes(units).known[units.index["read"]] == [(2,)]
