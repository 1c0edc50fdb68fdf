"""duotone's painter for TensorFlow graphs: what is half, what is not, and why."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from duotone import Policy, tensorflow
from duotone.ops import tensorflow as original
from duotone.ops import tensorflow_meanings as meanings
from duotone.tensorflow.op_registry import OpDefinition, find_op, op_names
from duotone.tensorflow.protos import FLOAT, HALF, VARIANT
from tests.tensorflow.graphdefs import Builder, cases
from tests.tensorflow.painted import check_types, half

INT32 = 3


def rewrite(b: Builder, fetch=(), **given):
    return tensorflow.rewrite(b.graph, fetch=fetch, painter="duotone", **given)


def rules(result):
    """The rule of each node; of one with several types, the first one's."""
    found = {}
    for decision in result.decisions:
        found.setdefault(decision.node, decision.rule)
    return found


def definition(op: str) -> OpDefinition:
    found = find_op(op)
    assert found is not None, op
    return found


def array(b: Builder, elements, name="weights") -> str:
    """A Const with its elements as bytes."""
    elements = np.asarray(elements, np.float32)
    made = b.add("Const", dtype=FLOAT, name=name)
    tensor = b.graph.node[-1].attr["value"].tensor
    tensor.dtype = FLOAT
    tensor.tensor_content = elements.tobytes()
    for size in elements.shape:
        tensor.tensor_shape.dim.add(size=size)
    return made


def matrix(b: Builder, size: int = 32, scale: float = 1.0, name="weights") -> str:
    numbers = np.random.default_rng(0).standard_normal((size, size)) * scale
    return array(b, numbers, name)


def start(size: int = 32) -> tuple[Builder, str]:
    b = Builder()
    return b, b.add("Placeholder", name="x", dtype=FLOAT, shape=(size, size))


def dot(b: Builder, x: str, name: str = "dot", scale: float = 1.0) -> str:
    return b.add("MatMul", x, matrix(b, scale=scale), name=name)


def test_a_network_is_half_between_its_products():
    b, x = start()
    h = b.add("Relu", b.add("BiasAdd", dot(b, x), array(b, np.ones(32)), name="bias"), name="relu")
    b.add("Identity", dot(b, h, "out"), name="y")
    result = rewrite(b, ["y"])
    assert {"dot", "bias", "relu", "out"} <= set(half(result))
    assert len(result.casts) == 2  # of x, and of the result


def test_weights_become_half_constants():
    """Catches: a Const with a Cast after it, which makes no file smaller."""
    b, x = start()
    b.add("Identity", dot(b, x), name="y")
    before = next(n for n in b.graph.node if n.op == "Const").attr["value"].tensor
    result = rewrite(b, ["y"])
    node = next(n for n in result.graph_def.node if n.op == "Const")
    tensor = node.attr["value"].tensor
    assert (node.attr["dtype"].type, tensor.dtype) == (HALF, HALF)
    expected = np.frombuffer(before.tensor_content, np.float32).astype(np.float16)
    np.testing.assert_array_equal(np.frombuffer(tensor.tensor_content, np.float16), expected)
    assert rules(result)[node.name] == "weights"


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 0x7BFF), ("bfloat16", 0x4974)])
def test_a_number_for_all_elements_stays_one_number(dtype, bits):
    b, x = start(256)
    made = b.add("Const", dtype=FLOAT, name="mask")
    tensor = b.graph.node[-1].attr["value"].tensor
    tensor.dtype = FLOAT
    tensor.float_val.append(1e6)
    for _ in range(2):
        tensor.tensor_shape.dim.add(size=256)
    b.add(
        "Identity",
        b.add("MatMul", b.add("Minimum", b.add("MatMul", x, matrix(b, 256)), made), "weights"),
        name="y",
    )
    tensor = (
        next(n for n in rewrite(b, ["y"], dtype=dtype).graph_def.node if n.name == made)
        .attr["value"]
        .tensor
    )
    assert list(tensor.half_val) == [bits]  # saturated in float16
    assert not tensor.tensor_content
    assert not tensor.float_val


def test_a_weight_that_float32_reads_too_is_kept_and_cast():
    b, x = start()
    w = matrix(b)
    b.add("Identity", b.add("Exp", b.add("Identity", w, name="read"), name="exp"), name="z")
    b.add("Identity", b.add("MatMul", x, w, name="dot"), name="y")
    result = rewrite(b, ["y", "z"])
    assert result.painting[w]["dtype"] == "f32"
    assert {c.source for c in result.casts} >= {f"{w}:0"}


@pytest.mark.parametrize("scale", [1.0, 32768.0])
def test_a_filter_bank_after_a_power_spectrum_is_float32(scale):
    b, x = start()
    s = dot(b, b.add("Mul", x, b.constant(scale), name="scaled"), "dft")
    bank = dot(b, b.add("Mul", s, s, name="power"), "bank")
    b.add("Log", b.add("Maximum", bank, b.constant(1e-10), name="guard"), name="y")
    result = rewrite(b, ["y"])
    assert half(result) == []
    assert rules(result)["bank"] == "log_power"


@pytest.mark.parametrize("root", ["Rsqrt", "Sqrt"])
@pytest.mark.parametrize("guard", ["Maximum", "AddV2"])
def test_the_guard_of_a_zero_row_holds(root, guard):
    """Catches: ``x * rsqrt(max(sum(x * x), 1e-12))``, 1e6 on a row of zeros: infinite in half."""
    b, x = start()
    h = dot(b, x)
    total = b.add("Sum", b.add("Square", h, name="square"), b.constant([1]), Tidx=INT32, name="sum")
    norm = b.add(root, b.add(guard, total, b.constant(1e-12), name="guard"), name="root")
    op = "Mul" if root == "Rsqrt" else "RealDiv"
    b.add("Identity", dot(b, b.add(op, h, norm, name="normal"), "out"), name="y")
    result = rewrite(b, ["y"])
    assert set(half(result)) >= {"dot", "out"}
    assert not {"guard", "root", "normal"} & set(half(result))


def test_weights_that_half_cannot_hold():
    b, x = start()
    b.add("Identity", dot(b, dot(b, x, "large", scale=1e6), "after"), name="y")
    result = rewrite(b, ["y"])
    assert (rules(result)["large"], half(result)) == ("constant", [])
    assert "out of the range of float16" in next(
        d.words for d in result.decisions if d.node == "large"
    )


@pytest.mark.parametrize("kind", ["float", "int"])
def test_positions_are_float32(kind):
    b, x = start()
    if kind == "float":
        limits = (b.constant(0.0), b.constant(5000.0), b.constant(1.0))
        counted = b.add("Range", *limits, Tidx=FLOAT, name="positions")
    else:
        limits = (b.constant([0]), b.constant([5000]), b.constant([1]))
        counted = b.add(
            "Cast", b.add("Range", *limits, Tidx=INT32, name="positions"), SrcT=INT32, name="cast"
        )
    column = b.add("ExpandDims", counted, b.constant([1]), name="column")
    frequencies = array(b, np.random.default_rng(0).random((1, 32)))
    angle = b.add("MatMul", column, frequencies, name="angle")
    b.add("Identity", dot(b, b.add("Sin", angle, name="sine"), "out"), name="y")
    b.add("Identity", dot(b, x), name="z")
    painted = half(rewrite(b, ["y", "z"]))
    assert {"dot", "out"} <= set(painted)
    assert not {"positions", "cast", "column", "angle", "sine"} & set(painted)


@pytest.mark.parametrize("op", ["CropAndResize", "NonMaxSuppressionV2"])
def test_positions_at_which_an_op_reads_are_float32(op):
    """Catches: boxes from a half product, each off by as much as half rounds a coordinate."""
    b, x = start()
    image = b.add("Placeholder", name="image", dtype=FLOAT, shape=(1, 64, 64, 3))
    hidden = b.add("Relu", dot(b, x, "first"), name="relu")
    last = b.add("MatMul", hidden, array(b, np.ones((32, 4))), name="last")
    boxes = b.add("Sigmoid", last, name="boxes")
    number = b.constant([8])
    if op == "CropAndResize":
        b.add(op, image, boxes, number, number, name="y")
    else:
        scores = b.add("Placeholder", name="scores", dtype=FLOAT, shape=(32,))
        b.add(op, boxes, scores, number, b.constant(0.5), name="y")
    painted = set(half(rewrite(b, ["y"])))
    assert "first" in painted
    assert not {"last", "boxes"} & painted


def test_the_positions_of_a_row_are_boxes_and_their_like():
    words = ("box", "transform", "offset", "scale", "translat")
    for op, slots in meanings.POSITIONS.items():
        names = [argument.name for argument in definition(op).inputs]
        assert all(any(word in names[slot] for word in words) for slot in slots), (op, names)


def test_a_distance_is_float32():
    """Catches: the axes of a sum that count as its operand, so that no rule knows the sum."""
    b, x = start()
    h = dot(b, x)
    squares = b.add("Sum", b.add("Mul", h, h), b.constant([1]), Tidx=INT32, name="squares")
    product = b.add("MatMul", h, h, transpose_b=True, name="product")
    twice = b.add("Mul", product, b.constant(2.0), name="twice")
    b.add("Identity", b.add("Sub", squares, twice, name="distance"), name="y")
    result = rewrite(b, ["y"])
    assert rules(result)["product"] == "distance"


def test_an_unknown_op_keeps_the_safety_rules_on():
    """Catches: an op without a row between a logarithm and its power that switches the rule off."""
    b, x = start()
    power = b.add("Square", dot(b, x), name="power")
    bank = dot(b, power, "bank")
    unknown = b.add("Betainc", bank, bank, bank, name="unknown")
    assert "Betainc" not in meanings.TRAITS
    b.add("Log", unknown, name="y")
    result = rewrite(b, ["y"])
    assert rules(result)["unknown"] == "unlisted"
    assert half(result) == []


def _loop(body_of, x):
    """A lowered loop around ``body_of(builder, state)``."""
    b, x = x
    enter = b.add("Enter", x, frame_name="frame", name="enter")
    b.add("Merge", enter, "next", N=2, name="merge")
    zero = b.add("Enter", b.constant([0]), T=INT32, frame_name="frame", name="zero")
    b.add("Merge", zero, "next_count", N=2, T=INT32, name="count")
    most = b.add("Enter", b.constant([9]), T=INT32, frame_name="frame", is_constant=True)
    b.add("LoopCond", b.add("Less", "count", most, T=INT32, name="test"), name="cond")
    b.add("Switch", "merge", "cond", name="switch")
    b.add("Switch", "count", "cond", T=INT32, name="switch_count")
    one = b.add("Enter", b.constant([1]), T=INT32, frame_name="frame", is_constant=True)
    counted = b.add("AddV2", "switch_count:1", one, T=INT32)
    b.add("NextIteration", counted, T=INT32, name="next_count")
    b.add("NextIteration", body_of(b, "switch:1"), name="next")
    b.add("Identity", b.add("Exit", "switch", name="exit"), name="y")
    return b


def _weights_in(b: Builder) -> str:
    return b.add("Enter", matrix(b), frame_name="frame", is_constant=True, name="weights_in")


def test_a_recurrent_network_in_a_loop_is_half():
    b = _loop(
        lambda b, h: b.add("Tanh", b.add("MatMul", h, _weights_in(b), name="dot"), name="tanh"),
        start(),
    )
    result = rewrite(b, ["y"])
    check_types(result.graph_def)
    assert rules(result)["dot"] == "allow"
    assert {"dot", "weights_in"} <= set(half(result))


def test_a_power_iteration_in_a_loop_is_float32():
    b = _loop(lambda b, h: b.add("MatMul", h, _weights_in(b), name="dot"), start())
    result = rewrite(b, ["y"])
    assert rules(result)["dot"] == "iteration"
    assert half(result) == []


def test_a_merge_and_its_next_iteration_agree():
    b = _loop(lambda b, h: b.add("Tanh", b.add("MatMul", h, _weights_in(b))), start())
    painting = rewrite(b, ["y"]).painting
    assert painting["merge"]["T"] == painting["next"]["T"]


def test_a_merge_of_several_returns_is_not_described():
    """Catches: ranges of such a loop that forget what comes back."""
    b, x = start()
    enter = b.add("Enter", dot(b, x), frame_name="frame", name="enter")
    b.add("Merge", enter, "next", "again", N=3, name="merge")
    for name in ("next", "again"):
        b.add("NextIteration", b.add("AddV2", "merge", "merge"), name=name)
    b.add("Identity", b.add("Exit", "merge", name="exit"), name="y")
    result = rewrite(b, ["y"])
    check_types(result.graph_def)
    assert rules(result)["merge"] == "unlisted"


def _while(body_of):
    """A While whose body is a function of a counter and a state."""
    b, x = start()
    for name, result, kind in (("cond", "test", 10), ("body", "state", FLOAT)):
        inner = Builder()
        function = b.graph.library.function.add()
        function.signature.name = name
        for argument, dtype in (("i", INT32), ("s", FLOAT)):
            function.signature.input_arg.add(name=argument, type=dtype)
        if name == "cond":
            inner.add("Less", "i", "i", T=INT32, name="less")
            function.signature.output_arg.add(name=result, type=kind)
            function.ret[result] = "less:z:0"
        else:
            function.signature.output_arg.add(name="count", type=INT32)
            function.signature.output_arg.add(name=result, type=kind)
            inner.add("AddV2", "i", "i", T=INT32, name="plus")
            function.ret["count"] = "plus:z:0"
            function.ret[result] = body_of(inner)
        function.node_def.extend(inner.graph.node)
    loop = b.graph.node.add(name="loop", op="While", input=[b.constant([0]), x])
    loop.attr["T"].list.type.extend([INT32, FLOAT])
    loop.attr["cond"].func.name, loop.attr["body"].func.name = "cond", "body"
    b.graph.node.add(name="y", op="Identity", input=["loop:1"]).attr["T"].type = FLOAT
    return b


def test_the_body_of_a_while_is_a_loop():
    """Catches: an iteration in a function, of which nobody sees that its result comes back."""

    def iterate(b):
        b.add("MatMul", "s", f"{matrix(b)}:output:0", name="dot")
        return "dot:product:0"

    def recur(b):
        iterate(b)
        b.add("Tanh", "dot:product:0", name="tanh")
        return "tanh:y:0"

    for body, expected in ((iterate, "f32"), (recur, "f16")):
        result = rewrite(_while(body), ["y"])
        assert result.functions["body"].painting["dot"]["T"] == expected


def test_a_list_of_tensors_is_half_as_a_whole():
    b, x = start()
    shape = b.constant([32])
    kept = b.add("TensorListFromTensor", dot(b, x), shape, shape_type=INT32, name="list")
    read = b.add("TensorListStack", kept, shape, element_dtype=FLOAT, name="stack")
    b.add("Identity", dot(b, read, "out"), name="y")
    result = rewrite(b, ["y"])
    assert {"list.element_dtype", "stack.element_dtype", "dot", "out"} <= set(half(result))
    assert len(result.casts) == 2

    b.add("Exp", read, name="z")
    result = rewrite(b, ["y", "z"])
    lists = {result.painting[name]["element_dtype"] for name in ("list", "stack")}
    assert len(lists) == 1


def test_rows_of_an_embedding_are_an_input():
    """Catches: an op without a row, which keeps every safety rule on for what it reads."""
    b = Builder()
    ids = b.add("Placeholder", name="ids", dtype=INT32, shape=(32,))
    handle, _ = b.variable("table", (100, 32))
    rows = b.add("ResourceGather", handle, ids, Tindices=INT32, dtype=FLOAT, name="rows")
    h = b.add("Tanh", dot(b, rows), name="tanh")
    b.add("Identity", dot(b, h, "out"), name="y")
    assert {"dot", "tanh", "out"} <= set(half(rewrite(b, ["y"])))


def test_the_update_of_a_variable_is_float32():
    b, x = start()
    handle, value = b.variable("w", (32, 32))
    gradient = b.add("MatMul", b.add("MatMul", x, value, name="dot"), x, name="gradient")
    scaled = b.add("Mul", gradient, b.constant(0.1), name="scaled")
    b.add("AssignSubVariableOp", handle, scaled, dtype=FLOAT, name="assign")
    result = rewrite(b)
    assert {"dot", "gradient"} <= set(half(result))
    assert rules(result)["scaled"] == "state"


@pytest.mark.parametrize("op", ["AssignSub", "ScatterNdSub"])
def test_the_update_of_a_reference_variable_is_float32(op):
    b, x = start()
    reference = b.add("VariableV2", dtype=FLOAT, shape=(32, 32), name="w")
    gradient = b.add("MatMul", dot(b, x), x, name="gradient")
    scaled = b.add("Mul", gradient, b.constant(0.1), name="scaled")
    where = () if op == "AssignSub" else (b.constant([0] * 32),)
    b.add(op, reference, *where, scaled, name="update")
    result = rewrite(b)
    assert {"dot", "gradient"} <= set(half(result))
    assert rules(result)["scaled"] == "state"


def test_ops_that_write_references():
    writes = {name for name in op_names() if definition(name).writes_reference}
    assert {"Assign", "ApplyAdam", "ScatterNdUpdate", "StridedSliceAssign"} <= writes
    assert not {"RefIdentity", "RefSwitch", "DebugGradientRefIdentity", "VariableV2"} & writes


def test_the_reciprocal_of_a_guarded_root_is_not_rounded():
    """Catches: a product in half with ``1 / (0 + 1e-8)``, since a reciprocal has no pole."""
    b, x = start()
    h = dot(b, x)
    squares = b.add("Sum", b.add("Square", h), b.constant([1]), keep_dims=True)
    guarded = b.add("AddV2", b.add("Sqrt", squares), b.constant(1e-8), name="guarded")
    scaled = b.add("Mul", h, b.add("Reciprocal", guarded), name="scaled")
    b.add("Identity", dot(b, scaled, "out"), name="y")
    result = rewrite(b, ["y"])
    assert rules(result)["guarded"] == "constant"
    assert {"dot", "out"} <= set(half(result))
    assert "scaled" not in half(result)


def test_statistics_of_a_norm_do_not_keep_it_float32():
    """Catches: a norm that is state since its float32 statistics are results."""
    b = Builder()
    x = b.add("Placeholder", name="x", dtype=FLOAT, shape=(8, 16, 16, 32))
    kernel = array(b, np.ones((3, 3, 32, 32)), name="kernel")
    how = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    h = b.add("Conv2D", x, kernel, **how, name="first")
    ones = array(b, np.ones(32), name="ones")
    norm = b.add("FusedBatchNormV3", h, ones, ones, ones, ones, name="norm")
    b.add("Identity", b.add("Conv2D", norm, kernel, **how, name="second"), name="y")
    b.add("Identity", f"{norm}:1", name="mean")
    assert {"first", "norm", "second"} <= set(half(rewrite(b, ["y", "mean"])))


def test_elements_of_an_identity_of_several_have_their_own_precision():
    b, x = start()
    b.add("Exp", x, name="exp")
    both = b.graph.node.add(name="both", op="IdentityN", input=[dot(b, x), "exp"])
    both.attr["T"].list.type.extend([FLOAT, FLOAT])
    b.add("Identity", dot(b, "both", "out"), name="y")
    b.add("Identity", b.add("Exp", "both:1", name="again"), name="z")
    painting = rewrite(b, ["y", "z"]).painting["both"]
    assert painting == {"T[0]": "f16", "T[1]": "f32"}


def test_a_call_of_a_function_keeps_its_types():
    b, x = start()
    function = b.graph.library.function.add()
    function.signature.name = "f"
    function.signature.input_arg.add(name="a", type=FLOAT)
    function.signature.output_arg.add(name="r", type=FLOAT)
    function.ret["r"] = "a"
    call = b.graph.node.add(name="call", op="PartitionedCall", input=[dot(b, x)])
    call.attr["Tin"].list.type.append(FLOAT)
    call.attr["Tout"].list.type.append(FLOAT)
    call.attr["f"].func.name = "f"
    b.add("Identity", dot(b, "call", "out"), name="y")
    result = rewrite(b, ["y"])
    check_types(result.graph_def)
    assert result.painting["call"] == {"Tin[0]": "f32", "Tout[0]": "f32"}


def test_a_policy_decides_here_too():
    b, x = start()
    b.add("Identity", dot(b, b.add("Tanh", dot(b, x), name="tanh"), "out"), name="y")
    assert "tanh" in half(rewrite(b, ["y"]))
    assert "tanh" not in half(rewrite(b, ["y"], policy=Policy(keep_full=["ta*"])))
    denied = rewrite(b, ["y"], policy=Policy(deny_add=["Tanh"]))
    assert rules(denied)["tanh"] == "deny"
    off = rewrite(b, ["y"], policy=Policy(rules_remove=["upstream"]))
    assert "upstream" not in rules(off).values()


@pytest.mark.parametrize(("name", "text", "answer"), [pytest.param(*c, id=c[0]) for c in cases()])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_observed_graphs_are_well_typed_and_untouched(name, text, answer, dtype):
    import json

    from duotone.tensorflow.protos import new_graph

    del name
    graph = new_graph().FromString(text)
    fetch = json.loads(answer)["fetch"]
    result = tensorflow.rewrite(graph, fetch=fetch, dtype=dtype)
    check_types(result.graph_def)
    assert graph == new_graph().FromString(text)
    assert not result.unsafe


def test_another_painter_warns_of_what_the_safety_rules_keep(caplog):
    b, x = start()
    power = b.add("Square", dot(b, x, "dft"), name="power")
    b.add("Log", dot(b, power, "bank"), name="y")
    with caplog.at_level(logging.WARNING, logger="duotone"):
        result = tensorflow.rewrite(b.graph, fetch=["y"], painter="tensorflow")
    (line,) = caplog.messages
    assert "'tensorflow' makes 2 nodes half that duotone's safety rules keep float32" in line
    assert "--painter duotone" in line
    assert set(result.unsafe) == {"dft", "bank"}
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="duotone"):
        tensorflow.rewrite(b.graph, fetch=["y"], painter="duotone")
    assert caplog.messages == []


@pytest.mark.parametrize(("size", "rule"), [(32, "small"), (256, "allow")])
def test_small_products_do_not_gain_on_a_cpu(size, rule):
    b, x = start(size)
    b.add("Identity", b.add("MatMul", x, matrix(b, size), name="dot"), name="y")
    assert rules(rewrite(b, ["y"], dtype="bfloat16"))["dot"] == rule
    assert rules(rewrite(b, ["y"], dtype="float16"))["dot"] == "allow"


def test_depthwise_convolutions_do_not_gain_on_a_cpu():
    b = Builder()
    x = b.add("Placeholder", name="x", dtype=FLOAT, shape=(8, 16, 16, 32))
    how = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    h = b.add("DepthwiseConv2dNative", x, array(b, np.ones((3, 3, 32, 1))), **how, name="depth")
    h = b.add("Conv2D", h, array(b, np.ones((3, 3, 32, 64)), "kernel"), **how, name="full")
    b.add("Identity", h, name="y")
    on_cpu, on_gpu = (rules(rewrite(b, ["y"], dtype=t)) for t in ("bfloat16", "float16"))
    assert (on_cpu["depth"], on_gpu["depth"]) == ("device", "allow")
    assert (on_cpu["full"], on_gpu["full"]) == ("allow", "allow")


def test_rows_are_of_ops_that_exist():
    named = {entry.op for entry in meanings.ENTRIES}
    known = op_names() | {entry.op for entry in original.ENTRIES}
    assert named - known == {"CastExact", "ExactPower", "short_dot", "sum_of_products"}


def test_every_op_of_the_original_lists_has_a_row():
    """Catches: an op that TensorFlow knows and duotone's painter leaves float32 unseen."""
    named = {entry.op for entry in meanings.ENTRIES}
    missing = {entry.op for entry in original.ENTRIES} - named
    structural = {"Merge", "NextIteration", "While", "StatelessWhile"}
    assert missing == structural | {"SaveV2"}


def test_variants_and_resources_are_no_numbers():
    from duotone.tensorflow.protos import dtype_of

    assert dtype_of(VARIANT) == "none"
