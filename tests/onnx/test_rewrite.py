"""Rewriting small models: types, casts, constants, bodies, files and errors."""

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import duotone.onnx
from duotone.errors import ArgumentError, OnnxError, PolicyError
from duotone.onnx import running
from duotone.policy.policy import Policy
from tests.onnx.models import BRANCHES, FUNCTION, LOOP, MLP, model, numbers, old


def operations(graph):
    return [node.op_type for node in graph.node]


def run(made, **feed):
    return running.session(made).run(None, feed)


def x(rows=4, columns=8):
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)


def close(first, second, most=4e-3):
    for a, b in zip(first, second, strict=True):
        assert a.dtype == b.dtype
        assert np.max(np.abs(a - b)) <= most * np.max(np.abs(a))


def test_a_network_has_two_casts_and_half_weights():
    before = model(MLP)
    done = duotone.onnx.rewrite(before)
    assert operations(done.model.graph).count("Cast") == 2
    assert {t.data_type for t in done.model.graph.initializer} == {TensorProto.FLOAT16}
    assert [t.name for t in done.model.graph.initializer] == ["w", "b", "v"]
    assert done.bytes_after * 2 == done.bytes_before
    assert before == model(MLP), "the model that was given is changed"
    close(run(before, x=x()), run(done.model, x=x()))


def test_results_are_deterministic_and_valid():
    one, two = (duotone.onnx.rewrite(model(MLP)).model.SerializeToString() for _ in range(2))
    assert one == two
    onnx.checker.check_model(onnx.load_from_string(one), full_check=True)


def test_half_inputs_and_results():
    done = duotone.onnx.rewrite(model(MLP), keep_io=False).model
    assert done.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    assert done.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    assert "Cast" not in operations(done.graph)


@pytest.mark.parametrize("taken", [True, False])
def test_branches_cast_inside(taken):
    before = model(BRANCHES)
    after = duotone.onnx.rewrite(before).model
    onnx.checker.check_model(after, full_check=True)
    feed = {"x": x(8, 8), "c": np.asarray(taken)}
    close(run(before, **feed), run(after, **feed))
    (branch,) = (node for node in after.graph.node if node.op_type == "If")
    (other,) = (a.g for a in branch.attribute if a.name == "else_branch")
    assert operations(other)[0] == "Cast", "the exponential's cast is in its branch"


def test_a_loop_casts_weights_once_and_keeps_types():
    before = model(LOOP)
    after = duotone.onnx.rewrite(before).model
    onnx.checker.check_model(after, full_check=True)
    feed = {"x": x(8, 8), "n": np.asarray(3), "c": np.asarray(True)}
    close(run(before, **feed), run(after, **feed))
    assert after.graph.initializer[0].data_type == TensorProto.FLOAT16


def test_an_activation_in_a_loop_is_one_where_its_shape_is_not_known():
    """A recurrent network is half, and a linear iteration is not."""
    text = """f (float[b, c] x, float[c, c] w, int64 n) => (float[b, c] y) { y = Loop (n, , x) <
        body = l (int64 i, bool go, float[b, c] h) => (bool on, float[b, c] next)
        { on = Identity(go)  m = MatMul(h, w)  next = OP(m) } > }"""
    for op, paint in (("Tanh", "half"), ("Neg", "full")):
        record = duotone.onnx.explain(model(text.replace("OP", op)))
        (dot,) = (o for o in record.operations if o.operation == "MatMul")
        assert dot.paint == paint, op


def test_functions_are_inlined():
    before = parser.parse_model(FUNCTION)
    after = duotone.onnx.rewrite(before).model
    assert operations(after.graph).count("MatMul") == 2
    feed = {"x": x(8, 8), "w": x(8, 8)}
    close(run(before, **feed), run(after, **feed))


def test_a_constant_read_in_both_precisions_is_kept_once_for_each():
    text = """f (float[2, 8] x) => (float[2, 8] y) <float[8, 8] w = {W}>
    { h = MatMul(x, w)  e = Exp(w)  g = MatMul(h, e)  y = MatMul(g, w) }"""
    after = duotone.onnx.rewrite(model(text.replace("W", numbers(64)))).model
    types = {t.name: t.data_type for t in after.graph.initializer}
    assert types == {"w": TensorProto.FLOAT, "w_half": TensorProto.FLOAT16}


def test_weights_that_are_inputs_keep_their_types_and_are_cast_inside():
    before = old()
    after = duotone.onnx.rewrite(before).model
    assert after.graph.input == before.graph.input
    assert [t.data_type for t in after.graph.initializer] == [TensorProto.FLOAT] * 2
    assert operations(after.graph).count("Cast") == 3
    close(run(before, x=x(8, 8)), run(after, x=x(8, 8)))


def test_weights_that_are_inputs_become_constants_on_demand():
    before = old()
    after = duotone.onnx.rewrite(before, fold_inputs=True).model
    onnx.checker.check_model(after, full_check=True)
    assert ([v.name for v in after.graph.input], after.ir_version) == (["x"], 4)
    assert {t.name: t.data_type for t in after.graph.initializer}["w"] == TensorProto.FLOAT16
    assert operations(after.graph).count("Cast") == 2
    close(run(before, x=x(8, 8)), run(after, x=x(8, 8)))


def test_a_default_that_is_too_large_for_half_keeps_its_reader_full():
    record = duotone.onnx.explain(old("-1e30"))
    (add,) = (o for o in record.operations if o.operation == "Add")
    assert add.paint == "full"
    assert "'b'" in add.fixed


def test_a_mask_of_minus_1e9_keeps_the_addition_full():
    text = """f (float[8, 8] x, float[8, 8] w) => (float[8, 8] y)
    <float[1, 8] m = {0, -1e9, 0, 0, 0, 0, 0, 0}>
    { s = MatMul(x, w)  a = Add(s, m)  p = Softmax<axis = -1>(a)  y = MatMul(p, p) }"""
    record = duotone.onnx.explain(model(text))
    paints = {o.operation: (o.paint, o.rule) for o in record.operations}
    assert paints["Add"] == ("full", "constant")
    assert paints["Softmax"][0] == "full"
    assert paints["MatMul"][0] == "half"


def test_a_fill_of_minus_infinity_stays_half():
    text = """f (float[8, 8] x, float[8, 8] w, bool[8, 8] c) => (float[8, 8] y) <float m = {-inf}>
    { s = MatMul(x, w)  a = Where(c, s, m)  p = Softmax<axis = -1>(a)  y = MatMul(p, p) }"""
    text = text.replace("<float m = {-inf}>", "<float m = {-1e30}>")
    after = duotone.onnx.rewrite(model(text)).model
    (fill,) = after.graph.initializer
    assert numpy_helper.to_array(fill) == np.float16(-65504), "a fill that only masks is saturated"


def test_the_filters_of_a_log_spectrum_stay_full():
    text = """f (float[1, 1, 64] x, float[4, 1, 8] w) => (float[1, 4, 57] y)
    { s = Conv(x, w)  p = Mul(s, s)  y = Log(p) }"""
    (conv, *_) = duotone.onnx.explain(model(text)).operations
    assert (conv.operation, conv.paint, conv.rule) == ("Conv", "full", "log_power")


def test_half_parts_and_quantised_parts_are_left():
    text = """f (float[8, 8] x, float16[8, 8] w) => (float[8, 8] y)
    { h = Cast<to = 10>(x)  g = MatMul(h, w)  f = Cast<to = 1>(g)  y = MatMul(f, f) }"""
    after = duotone.onnx.rewrite(model(text)).model
    assert operations(after.graph) == ["Cast", "MatMul", "MatMul", "Cast"]
    text = """f (uint8[8, 8] x, float s, uint8 z) => (float[8, 8] y)
    { a = DequantizeLinear(x, s, z)  y = MatMul(a, a) }"""
    left = duotone.onnx.rewrite(model(text))
    assert left.record.summary.operations_half == 0


def test_resize_keeps_its_scales():
    text = """f (float[1, 1, 4, 4] x, float[1, 1, 1, 1] w) => (float[1, 1, 8, 8] y)
    <float[4] s = {1, 1, 2, 2}> { h = Conv(x, w)  r = Resize(h, , s)  y = Conv(r, w) }"""
    after = duotone.onnx.rewrite(model(text)).model
    assert [t.data_type for t in after.graph.initializer] == [TensorProto.FLOAT]
    assert "Resize" in {o.operation for o in duotone.onnx.explain(model(text)).operations}
    close(
        run(model(text), x=np.ones((1, 1, 4, 4), "f"), w=np.ones((1, 1, 1, 1), "f")),
        run(after, x=np.ones((1, 1, 4, 4), "f"), w=np.ones((1, 1, 1, 1), "f")),
    )


def test_nodes_are_kept_by_name_and_operation_and_provider():
    paints = {o.operation: o.paint for o in duotone.onnx.explain(model(MLP)).operations}
    assert paints["Relu"] == "half"
    kept = duotone.onnx.explain(model(MLP), keep_full=["Relu"])
    (relu,) = (o for o in kept.operations if o.operation == "Relu")
    assert (relu.paint, relu.rule) == ("full", "pinned")
    assert "pattern 'Relu'" in relu.reason
    cpu = duotone.onnx.explain(model(MLP), provider="cpu")
    assert {o.paint for o in cpu.operations} == {"full"}
    listed = duotone.onnx.explain(model(MLP), policy=Policy(deny_add={"Relu"}))
    (relu,) = (o for o in listed.operations if o.operation == "Relu")
    assert relu.rule == "deny"


def test_calibration_keeps_what_overflows():
    text = """f (float[2, 8] x, float[8, 8] w) => (float[2, 8] y)
    { h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, w) }"""
    data = {"x": np.full((2, 8), 300.0, "f"), "w": np.full((8, 8), 300.0, "f")}
    (first, *_) = duotone.onnx.explain(model(text), calibration=data).operations
    assert (first.paint, first.rule) == ("full", "overflow")
    after = duotone.onnx.rewrite(model(text), calibration=data).model
    assert np.isfinite(run(after, **data)[0]).all()
    assert duotone.onnx.calibrate(model(text), data)["h"].high == 720000.0


def test_bfloat16_is_refused_by_old_operations_alone():
    half = duotone.onnx.explain(model(MLP), dtype="bfloat16").summary
    assert half.half_dtype == "bfloat16"
    assert half.operations_half
    old = duotone.onnx.explain(model(MLP, opset=12, ir=7), dtype="bfloat16")
    assert "takes no bfloat16 in this opset" in old.operations[0].fixed


def test_a_wrong_type_is_found_before_anything_is_written(monkeypatch, tmp_path):
    from duotone.errors import RewriteError
    from duotone.onnx.apply import Writer
    from duotone.onnx.demands import Demands

    monkeypatch.setattr(Writer, "_is_half", lambda self, value: True)
    monkeypatch.setattr(Demands, "want", lambda self, value, reader: None)
    with pytest.raises(RewriteError, match="is not valid"):
        duotone.onnx.rewrite(model(LOOP), tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- files


def saved(made, path, *, external=False):
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(made, path, save_as_external_data=external, size_threshold=0, location="weights.bin")
    return path


def test_external_data_is_streamed_to_a_new_file(tmp_path):
    before = model(MLP)
    source = saved(model(MLP), tmp_path / "m.onnx", external=True)
    done = duotone.onnx.rewrite(source, tmp_path / "half.onnx")
    written = onnx.load(tmp_path / "half.onnx")
    assert (tmp_path / "half.onnx.data").exists()
    for tensor, first in zip(written.graph.initializer, before.graph.initializer, strict=True):
        expected = numpy_helper.to_array(first).astype(np.float16)
        assert (numpy_helper.to_array(tensor) == expected).all()
    assert done.bytes_after * 2 == done.bytes_before
    close(run(before, x=x()), running.session(tmp_path / "half.onnx").run(None, {"x": x()}))


def test_what_is_read_is_never_written_over(tmp_path):
    path = saved(model(MLP), tmp_path / "m.onnx")
    with pytest.raises(ArgumentError, match="that is read"):
        duotone.onnx.rewrite(path, path, overwrite=True)
    other = tmp_path / "other.onnx"
    other.write_bytes(b"mine")
    with pytest.raises(ArgumentError, match="exists"):
        duotone.onnx.rewrite(path, other)
    assert other.read_bytes() == b"mine"
    duotone.onnx.rewrite(path, other, overwrite=True)
    assert onnx.load(other).graph.node


def broken(**changes):
    made = model(MLP)
    for key, value in changes.items():
        if key == "reader":
            made.graph.node[1].input[0] = value
        elif key == "maker":
            made.graph.node[1].output[0] = value
        elif key == "opset":
            made.opset_import[0].version = value
        elif key == "cut":
            made.graph.initializer[0].ClearField("float_data")
            made.graph.initializer[0].raw_data = b"1234"
        elif key == "type":
            made.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ones(16, np.int64), "b"))
        elif key == "place":
            tensor = made.graph.initializer[0]
            tensor.ClearField("float_data")
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=value)
    return made


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (broken(reader="nowhere"), "which nothing makes"),
        (broken(reader="z"), "not in topological order"),
        (broken(maker="h"), "there is already"),
        (broken(opset=999), "opset 999"),
        (broken(cut=True), "cut off"),
        (broken(type=True), "must be the same"),
        (broken(place="gone.bin"), "no such file"),
        (broken(place="../../etc/passwd"), "not in the model's folder"),
        (onnx.ModelProto(), "has no graph"),
    ],
)
def test_damaged_models_are_refused_by_name_and_nothing_is_written(made, words, tmp_path):
    path, out = tmp_path / "damaged.onnx", tmp_path / "out" / "out.onnx"
    out.parent.mkdir()
    path.write_bytes(made.SerializeToString())
    with pytest.raises(OnnxError, match=words) as raised:
        duotone.onnx.rewrite(path, out)
    assert "damaged.onnx" in str(raised.value)
    assert not list(out.parent.iterdir())


def test_functions_that_call_each_other_are_refused():
    made = parser.parse_model(FUNCTION)
    made.functions[0].node[0].op_type, made.functions[0].node[0].domain = "twice", "own"
    with pytest.raises(OnnxError, match="in a circle"):
        duotone.onnx.rewrite(made)


def test_files_that_are_no_models(tmp_path):
    path = tmp_path / "x.onnx"
    with pytest.raises(OnnxError, match="no such file"):
        duotone.onnx.rewrite(path)
    path.write_bytes(b"\xff\xff\xff not a model")
    with pytest.raises(OnnxError, match=r"x\.onnx"):
        duotone.onnx.rewrite(path)
    with pytest.raises(OnnxError, match="is a folder"):
        duotone.onnx.rewrite(tmp_path)


def test_arguments_are_checked():
    with pytest.raises(ArgumentError, match="painter"):
        duotone.onnx.rewrite(model(MLP), painter="best")
    with pytest.raises(ArgumentError, match="provider"):
        duotone.onnx.rewrite(model(MLP), provider="abacus")
    with pytest.raises(ArgumentError, match="dtype"):
        duotone.onnx.rewrite(model(MLP), dtype="float8")
    with pytest.raises(PolicyError, match="not for ONNX"):
        duotone.onnx.rewrite(model(MLP), policy=Policy(ranges={"*": (0.0, 1.0)}))
    with pytest.raises(PolicyError, match="drop it from one"):
        duotone.onnx.rewrite(model(MLP), policy=Policy(keep_half={"Relu"}), keep_full=["Relu"])


def test_operations_of_other_domains_are_left_and_opted_in():
    node = helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft")
    x, w, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 2]) for n in "xwy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(helper.make_graph([node], "g", [x, w], [y]), opset_imports=opsets)
    assert duotone.onnx.explain(made).summary.unlisted == {"com.microsoft.FusedMatMul": 1}
    opted = Policy(allow_add={"com.microsoft.FusedMatMul"})
    after = duotone.onnx.rewrite(made, policy=opted).model
    assert operations(after.graph) == ["Cast", "Cast", "FusedMatMul", "Cast"]


@pytest.mark.parametrize(
    ("types", "product", "is_sum"),
    [
        ("float[9, 1, 64] a, float[9, 64, 1] b", "MatMul(a, b)", True),
        ("float[9, 2, 64] a, float[9, 64, 1] b", "MatMul(a, b)", False),
        ("float[9, 1, 64] a, float[64] b", "MatMul(a, b)", False),  # 9 rows times a vector
        ("float[64] a, float[64] b", "MatMul(a, b)", True),
        ("float[n, 64] a, float[64] b", "MatMul(a, b)", False),
        ("float[n, 3, 3] a, float[n, 3, 2] b", "MatMul(a, b)", True),  # many small rotations
        ("float[n, 3, 3] a, float[3, 3] b", "MatMul(a, b)", True),  # a rotation of many
        ("float[n, 3, 8] a, float[8, 3] b", "MatMul(a, b)", False),
        ("float[64, 1] a, float[1, 64] b", "Gemm<transA = 1, transB = 1>(a, b)", True),
        ("float[64, 1] a, float[1, 64] b", "Gemm(a, b)", True),  # an outer product
        ("float[64, 7] a, float[7, 64] b", "Gemm(a, b)", True),
        ("float[64, 8] a, float[8, 64] b", "Gemm(a, b)", False),
        ("float[4, 7] a, float[4, 7] b", 'Einsum<equation = "ij,ij->i">(a, b)', True),
        ("float[4, 7] a, float[7, 4] b", 'Einsum<equation = "ij,ji->">(a, b)', True),
        ("float[4, 7] a, float[5, 7] b", 'Einsum<equation = "ij,kj->ik">(a, b)', True),
        ("float[4, 8] a, float[5, 8] b", 'Einsum<equation = "ij,kj->ik">(a, b)', False),
        ("float[4, 7] a, float[4, 7] b", 'Einsum<equation = "...j,...j->...">(a, b)', False),
        ("float[4, 7] a", 'Einsum<equation = "ij->i">(a)', False),
    ],
)
def test_a_sum_of_products_is_full_as_in_jax(types, product, is_sum):
    record = duotone.onnx.explain(model(f"f ({types}) => (y) {{ y = {product} }}"))
    name = re.split("[<(]", product)[0]
    (found,) = [one for one in record.operations if one.operation == name]
    assert found.paint == ("full" if is_sum else "half")
    assert found.rule == ("deny" if is_sum else "allow")


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (MLP, {"provider": "cpu"}, "MatMul 'h': cannot be half: .* Without provider='cpu'"),
        (MLP, {"keep_full": ["MatMul"]}, "MatMul 'h': .*'MatMul'"),
        ("f (float[4] x) => (float[4] y) { y = Exp(x) }", {}, "no matrix product or convolution"),
        (
            """f (float[8, 8] x) => (float[8, 8] y) <float[8, 8] w = {W}>
            { h = MatMul(x, w)  r = Exp(w)  y = Mul(h, r) }""".replace(
                "{W}", "{" + numbers(64) + "}"
            ),
            {},
            "have 128 bytes more: weights that both precisions read",
        ),
    ],
)
def test_a_rewrite_that_gains_nothing_says_so_in_one_line(text, options, words, caplog):
    duotone.onnx.rewrite(model(text), **options)
    (line,) = [record.getMessage() for record in caplog.records]
    assert re.search(words, line)


def test_one_that_gains_something_says_nothing(caplog):
    duotone.onnx.rewrite(model(MLP))
    assert not caplog.records
