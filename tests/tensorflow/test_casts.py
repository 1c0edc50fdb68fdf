"""Casts: their names, places and readers; what the copy keeps."""

from __future__ import annotations

import pytest

from duotone.errors import GraphDefError
from duotone.tensorflow.protos import FLOAT, HALF
from duotone.tensorflow.units import make_units, split_input
from tests.tensorflow.painted import INT32, Builder, check_types, half, placeholder, rewrite


def test_one_cast_for_all_readers_of_a_port():
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    b.add("Cos", m, name="c")
    b.add("Atan2", m, m, name="a")
    cast = rewrite(b.graph).casts[1]
    assert (cast.name, cast.source, cast.to) == (
        "m-0-CastToFp32-0-AutoMixedPrecision",
        "m:0",
        "f32",
    )
    assert cast.consumers == ("c#0", "a#0", "a#1")
    assert cast.bytes == 6 * 16


def test_ports_are_cast_one_by_one():
    b = Builder()
    parts = b.add("Split", b.constant([0]), placeholder(b), name="s", num_split=2)
    b.add("MatMul", f"{parts}:1", f"{parts}:1", name="m")
    b.add("Cos", f"{parts}:0", name="c")
    result = rewrite(b.graph, fetch=["x"])
    assert "s" in half(result)
    assert [cast.name for cast in result.casts] == [
        "x-0-CastToFp16-0-AutoMixedPrecision",
        "s-0-CastToFp32-0-AutoMixedPrecision",
    ]
    reader = next(node for node in result.graph_def.node if node.name == "c")
    assert list(reader.input) == ["s-0-CastToFp32-0-AutoMixedPrecision"]


def test_a_name_that_is_taken_counts_up():
    b = Builder()
    b.add("MatMul", placeholder(b), "x", name="m")
    b.add("NoOp", name="x-0-CastToBf16-0-AutoMixedPrecision")
    names = [cast.name for cast in rewrite(b.graph, dtype="bfloat16").casts]
    assert names == ["x-0-CastToBf16-1-AutoMixedPrecision"]


def test_the_cast_node_itself():
    b = Builder()
    b.add("Cos", placeholder(b), name="c")
    b.add("MatMul", "c", "c", name="m")
    node = rewrite(b.graph).graph_def.node[-1]
    types = node.attr["SrcT"].type, node.attr["DstT"].type, node.attr["Truncate"].b
    assert types == (FLOAT, HALF, False)


def test_the_copy_keeps_what_it_need_not_change():
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    node = b.graph.node[-1]
    node.attr["_class"].list.s.append(b"loc:@x")
    node.attr["_note"].s = b"mine"
    b.add("Identity", m, name="i")
    b.graph.node[-1].input.extend(["^x", "^m"])
    b.graph.versions.producer = 99
    result = rewrite(b.graph).graph_def
    assert result.versions == b.graph.versions
    assert result.node[1].attr["_note"].s == b"mine"
    assert list(result.node[2].input) == ["m", "^x"]  # ^m says nothing next to the data of m


def test_a_type_that_a_node_leaves_to_the_default_is_written_out():
    b = Builder()
    b.add("Shape", placeholder(b), name="s")
    assert rewrite(b.graph).graph_def.node[-1].attr["out_type"].type == INT32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda n: setattr(n, "op", "MatMall"), r"'m'.*no op 'MatMall'"),
        (lambda n: n.attr.pop("T"), r"'m' \(MatMul\) has no type attribute 'T'"),
        (lambda n: n.input.pop(), r"'m' \(MatMul\) has 1 data inputs and its op takes 2"),
        (lambda n: n.attr["speed"].CopyFrom(n.attr["T"]), r"'m'.*no attribute 'speed'"),
        (
            lambda n: n.input.__setitem__(0, "x:7"),
            r"'m' \(MatMul\) reads 'x:7', which does not exist",
        ),
    ],
)
def test_bad_nodes_are_named(change, message):
    b = Builder()
    b.add("MatMul", placeholder(b), "x", name="m")
    change(b.graph.node[-1])
    with pytest.raises(GraphDefError, match=message):
        rewrite(b.graph)


def test_a_hostile_count_is_refused_before_it_is_believed():
    b = Builder()
    b.add("Pack", placeholder(b), name="p", N=1)
    b.graph.node[-1].attr["N"].i = 2**40
    with pytest.raises(GraphDefError, match=r"'p'.*1099511627776 tensors"):
        rewrite(b.graph)


def test_units_of_a_node():
    b = Builder()
    b.add("TensorListPushBack", placeholder(b), "x", name="p")
    from duotone.tensorflow.op_registry import find_op

    units = make_units(b.graph, find_op)
    assert [str(units.attribute[u]) for u in units.of_node[1]] == ["variant", "element_dtype"]
    assert units.find(1, "element_dtype") == units.inputs[1][1]
    assert units.find(1, "nothing") is None
    assert split_input("a:b:2") == ("a:b", 2)
    check_types_fails = pytest.raises(AssertionError)
    with check_types_fails:
        check_types(b.graph)  # a handle is read from a float32 placeholder
