"""Casts of a rewritten model: where they stand, and how few they are."""

import numpy as np
import onnx
import pytest

import duotone.onnx
from duotone.onnx import running
from duotone.policy.policy import Policy
from tests.onnx.models import model, numbers
from tests.onnx.test_invariants import casts_in_bodies


def operations(graph):
    return [node.op_type for node in graph.node]


def casts(graph):
    """Casts of a graph and of those inside."""
    inside = [a.g for node in graph.node for a in node.attribute if a.type == a.GRAPH]
    return operations(graph).count("Cast") + sum(map(casts, inside))


def agree(before, after, most=4e-3, **feed):
    onnx.checker.check_model(after, full_check=True)
    one, two = (running.session(m).run(None, feed) for m in (before, after))
    for a, b in zip(one, two, strict=True):
        assert a.dtype == b.dtype
        assert np.max(np.abs(a - b)) <= most * np.max(np.abs(a))


def x(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


SHARED = """
f (float[8, 8] x, bool c) => (float[8, 8] y)
<float[8, 8] w = {W}>
{
    y = If (c) <
        then_branch = t () => (float[8, 8] p) { p = MatMul(x, w) },
        else_branch = e () => (float[8, 8] q) { k = MatMul(x, w)  q = MatMul(k, w) }
    >
}
""".replace("{W}", "{" + numbers(64) + "}")


@pytest.mark.parametrize("taken", [True, False])
def test_what_both_branches_cast_is_cast_before_them_and_their_results_after(taken):
    before = model(SHARED)
    after = duotone.onnx.rewrite(before).model
    assert operations(after.graph) == ["Cast", "If", "Cast"]
    assert casts(after.graph) == 2
    agree(before, after, x=x(8, 8), c=np.asarray(taken))


def test_what_one_branch_reads_is_cast_inside():
    text = SHARED.replace("k = MatMul(x, w)  q = MatMul(k, w)", "q = Identity(x)")
    after = duotone.onnx.rewrite(model(text)).model
    assert operations(after.graph)[0] == "If"
    agree(model(text), after, x=x(8, 8), c=np.asarray(True))


def test_casts_of_a_loop_in_both_branches_stand_before_all():
    loop = """z = Loop (n, , x) <
        body = b%s (int64 i, bool go, float[8, 8] h) => (bool on, float[8, 8] next)
        { on = Identity(go)  a = MatMul(s, w)  next = Add(h, a) } >"""
    text = """f (float[8, 8] x, float[8, 8] s, int64 n, bool c) => (float[8, 8] y)
    <float[8, 8] w = {W}> { y = If (c) <
        then_branch = t () => (float[8, 8] p) { THEN p = Identity(z) },
        else_branch = e () => (float[8, 8] q) { ELSE q = Neg(z) }
    > }"""
    text = text.replace("{W}", "{" + numbers(64) + "}")
    text = text.replace("THEN", loop % 1).replace("ELSE", loop % 2)
    before = model(text)
    after = duotone.onnx.rewrite(before).model
    outside = [node for node in after.graph.node if node.op_type == "Cast"]
    assert "s" in [node.input[0] for node in outside]
    feed = {"x": x(8, 8), "s": x(8, 8), "n": np.asarray(2), "c": np.asarray(False)}
    agree(before, after, **feed)


def test_a_cast_that_changes_nothing_is_dropped():
    text = """f (float[8, 8] x) => (float[8, 8] y)
    { e = Exp(x)  k = Cast<to = 1>(e)  y = Log(k) }"""
    after = duotone.onnx.rewrite(model(text)).model
    assert "Cast" not in operations(after.graph)
    agree(model(text), after, x=x(8, 8))


def test_casts_have_names_that_no_node_has():
    before = model("""f (float[8, 8] x, float[8, 8] w) => (float[8, 8] y)
    { h = MatMul(x, w)  y = Relu(h) }""")
    for node in before.graph.node:
        node.name = node.output[0]
    after = duotone.onnx.rewrite(before).model
    names = [node.name for node in after.graph.node]
    assert len(set(names)) == len(names)
    agree(before, after, x=x(8, 8), w=x(8, 8))


def test_a_small_addend_is_half_unless_something_cancels():
    text = """f (float[8, 8] x, float[8, 8] w) => (float[8, 8] y)
    <float c = {3e-5}> { h = MatMul(x, w)  a = Add(h, c)  THEN }"""
    biased = model(text.replace("THEN", "y = MatMul(a, w)"))
    (add,) = (o for o in duotone.onnx.explain(biased).operations if o.operation == "Add")
    assert add.paint == "half"
    agree(biased, duotone.onnx.rewrite(biased).model, x=x(8, 8), w=x(8, 8))
    guarded = model(text.replace("THEN", "r = Sqrt(a)  y = Div(h, r)"))
    (add,) = (o for o in duotone.onnx.explain(guarded).operations if o.operation == "Add")
    assert (add.paint, add.rule) == ("full", "constant")


def test_a_dimension_of_minus_one_is_unknown():
    text = """f (float[n, 8] x, float[8, 2] w) => (float[n, 2] y)
    { h = MatMul(x, w)  s = Softmax<axis = 1>(h)  y = Identity(s) }"""
    before = model(text)
    for value in (*before.graph.input[:1], *before.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    paints = {o.operation: o.paint for o in duotone.onnx.explain(before).operations}
    assert paints == {"MatMul": "half", "Softmax": "full", "Identity": "full"}


NET = """
f (float[4, 8] x, float[8, 8] w) => (float[4, 8] y)
{
    h = MatMul(x, w)
    a = Relu(h)
    e = Exp(a)
    r = Neg(e)
    s = Reshape(r, d)
    y = MatMul(s, w)
}
""".replace("{\n    h", "<int64[2] d = {4, 8}>\n{\n    h")


@pytest.mark.parametrize("painter", ["duotone", "tensorflow", "mincut"])
def test_every_painter_makes_a_model_that_runs(painter):
    before = model(NET)
    done = duotone.onnx.rewrite(before, painter=painter)
    paints = {o.operation: o.paint for o in done.record.operations}
    assert (paints["MatMul"], paints["Exp"]) == ("half", "full")
    agree(before, done.model, most=2e-2, x=x(4, 8) / 4, w=x(8, 8) / 4)


def test_the_minimum_cut_moves_fewer_bytes_than_tensorflow_s_passes():
    """What is repeated for a denied operation is cast before it is repeated."""
    text = """f (float[8, 8] x, float[8, 8] w) => (float[128, 8] y) <int64[2] n = {16, 1}>
    { h = MatMul(x, w)  t = Tile(h, n)  y = Exp(t) }"""
    before = model(text)
    painted = {
        painter: {o.operation: (o.paint, o.rule) for o in done.operations}
        for painter in ("tensorflow", "mincut")
        for done in [duotone.onnx.explain(before, painter=painter)]
    }
    assert painted["tensorflow"]["Tile"][0] == "half"
    assert painted["mincut"]["Tile"] == ("full", "cut")
    after = duotone.onnx.rewrite(before, painter="mincut").model
    assert operations(after.graph) == ["Cast", "Cast", "MatMul", "Cast", "Tile", "Exp"]
    agree(before, after, most=1e-2, x=x(8, 8) / 4, w=x(8, 8) / 4)


def test_a_policy_switches_the_cut_off():
    """Of an input, four slices are cast; with the cut, it is cast once."""
    parts = "  ".join(
        f"s{i} = Slice(x, b{i}, b{i + 1}, one)  h{i} = MatMul(s{i}, w)" for i in range(4)
    )
    edges = ", ".join(f"int64[1] b{i} = {{{i * 8}}}" for i in range(5))
    before = model(f"""f (float[4, 32] x, float[8, 8] w) => (float[4, 8] y)
    <{edges}, int64[1] one = {{1}}> {{ {parts}  y = Sum(h0, h1, h2, h3) }}""")
    with_cut = duotone.onnx.rewrite(before)
    policy = Policy(rules_remove={"cut"})
    without = duotone.onnx.rewrite(before, policy=policy)
    rules = [{o.rule for o in done.record.operations} for done in (with_cut, without)]
    assert "cut" in rules[0]
    assert "cut" not in rules[1]
    assert casts(with_cut.model.graph) < casts(without.model.graph)


def test_a_branch_in_a_loop_reads_a_cast_that_is_made_before_the_loop():
    """Only one branch reads it, and would cast it in each iteration."""
    text = """f (float[8, 8] x, float[8, 8] s, int64 n, bool c) => (float[8, 8] y)
    <float[8, 8] w = {W}> { y = Loop (n, , x) <
        body = b (int64 i, bool go, float[8, 8] h) => (bool on, float[8, 8] next) {
            on = Identity(go)
            next = If (c) <
                then_branch = t () => (float[8, 8] p) { m = MatMul(s, w)  p = Tanh(m) },
                else_branch = e () => (float[8, 8] q) { q = Neg(h) }
            > }
    > }"""
    before = model(text.replace("{W}", "{" + numbers(64) + "}"))
    after = duotone.onnx.rewrite(before).model
    outside = [node.input[0] for node in after.graph.node if node.op_type == "Cast"]
    assert "s" in outside
    assert "s" not in casts_in_bodies(after.graph)
    for taken in (True, False):
        feed = {"x": x(8, 8), "s": x(8, 8), "n": np.asarray(2), "c": np.asarray(taken)}
        agree(before, after, **feed)
