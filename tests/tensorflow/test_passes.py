"""The passes, one rule at a time, on graphs of a few nodes."""

from __future__ import annotations

import pytest

from duotone.errors import GraphDefError
from duotone.policy.policy import Policy
from duotone.tensorflow.protos import FLOAT, HALF, new_graph
from tests.tensorflow.painted import INT32, Builder, check_types, half, placeholder, rewrite

DOUBLE = 2


def test_allow_ops_are_half_without_any_test_of_types():
    b = Builder()
    x = placeholder(b)
    b.add("MatMul", x, x, name="a")
    wide = b.add("Cast", x, DstT=DOUBLE, name="c")
    b.add("MatMul", wide, wide, name="d", T=DOUBLE)
    result = rewrite(b.graph)
    assert half(result) == ["a"]
    assert "d" not in result.painting


def test_nothing_allowed_leaves_the_graph_but_for_batch_norm():
    b = Builder()
    x = placeholder(b)
    v = b.constant(1.0)
    b.add("Relu", x, name="r")
    b.add("FusedBatchNorm", x, v, v, v, v, name="norm")
    result = rewrite(b.graph)
    assert not half(result)
    assert not result.casts
    assert result.op_changes == {"norm": ("FusedBatchNorm", "FusedBatchNormV2")}
    assert {d.rule for d in result.decisions if d.node == "r"} == {"nothing_allowed"}


def test_batch_norm_that_is_fetched_stays():
    b = Builder()
    v = b.constant(1.0)
    b.add("FusedBatchNorm", placeholder(b), v, v, v, v, name="norm")
    assert not rewrite(b.graph, fetch=["norm:0"]).op_changes


def test_deny_runs_through_infer_and_to_it_through_clear():
    b = Builder()
    x = placeholder(b)
    e = b.add("Exp", x, name="e")
    r = b.add("Relu", e, name="clear")
    i = b.add("Add", r, x, name="infer")
    b.add("MatMul", i, i, name="m")
    result = rewrite(b.graph)
    assert half(result) == ["m"]
    rules = {d.node: d.rule for d in result.decisions}
    assert rules["e"] == "deny"
    assert rules["clear"] == rules["infer"] == "taint"


def test_deny_does_not_reach_a_clear_op_that_leads_to_no_infer_or_deny():
    b = Builder()
    r = b.add("Relu", b.add("Exp", placeholder(b), name="e"), name="clear")
    b.add("MatMul", r, r, name="m")
    assert half(rewrite(b.graph)) == ["clear", "m"]


def test_deny_ignores_preservation_and_device():
    b = Builder()
    e = b.add("Exp", placeholder(b), name="e")
    kept = b.add("Add", e, e, name="kept")
    i = b.add("Add", kept, kept, name="infer")
    b.add("MatMul", i, i, name="m")
    assert half(rewrite(b.graph, fetch=["kept"])) == ["m"]


def test_infer_between_allow_ops_is_half_and_next_to_them_is_not():
    b = Builder()
    x = placeholder(b)
    before = b.add("Add", x, x, name="before")
    m = b.add("MatMul", before, before, name="m")
    i = b.add("Add", m, m, name="between")
    b.add("MatMul", i, i, name="n")
    assert half(rewrite(b.graph)) == ["m", "between", "n"]


def test_order_of_nodes_decides_how_far_infer_follows_allow():
    """Pass 4 sees its own earlier results: the same graph in another order has other precisions."""
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    first = b.add("Tanh", m, name="first")
    b.add("Tanh", first, name="second")
    assert half(rewrite(b.graph)) == ["m", "first", "second"]
    turned = new_graph()
    turned.node.extend(reversed(b.graph.node))
    assert sorted(half(rewrite(turned))) == ["first", "m"]


def test_infer_does_not_follow_allow_next_to_a_denied_operand():
    b = Builder()
    x = placeholder(b)
    m = b.add("MatMul", x, x, name="m")
    b.add("Add", m, b.add("Exp", x, name="e"), name="mixed")
    assert half(rewrite(b.graph)) == ["m"]


def test_infer_that_follows_allow_needs_no_kernel():
    """FloorDiv is on the infer list; its definition allows half."""
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    b.add("Prod", m, b.constant([0]), name="p")
    followed = half(rewrite(b.graph))
    assert followed == ["m", "p"]


def test_allow_spreads_both_ways_through_clear():
    b = Builder()
    up = b.add("Relu", b.add("Neg", placeholder(b), name="far"), name="near")
    m = b.add("MatMul", up, up, name="m")
    b.add("Reshape", m, b.constant([16]), name="down")
    assert half(rewrite(b.graph)) == ["far", "near", "m", "down"]


@pytest.mark.parametrize("op", ["Variable", "VariableV2"])
def test_allow_does_not_spread_to_what_reads_an_old_variable(op):
    b = Builder()
    v = b.add(op, name="v", dtype=FLOAT, shape=(4, 4))
    read = b.add("Identity", v, name="read")
    b.add("MatMul", b.add("Enter", read, name="enter", frame_name="f"), "enter", name="m")
    assert half(rewrite(b.graph)) == ["m"]


def test_allow_spreads_through_an_identity_of_a_resource():
    b = Builder()
    _, value = b.variable("v", (4, 4))
    read = b.add("Identity", value, name="read")
    b.add("MatMul", read, read, name="m")
    assert half(rewrite(b.graph)) == ["read", "m"]


def test_allow_listed_types_that_cannot_be_half_are_taken_off():
    """BlockLSTM's seq_len_max is a fixed int64, Conv2DBackpropInput's sizes a fixed int32."""
    b = Builder()
    x = b.add("Placeholder", name="x", dtype=FLOAT, shape=(1, 8, 8, 3))
    w = b.add("Placeholder", name="w", dtype=FLOAT, shape=(3, 3, 3, 3))
    how = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    b.add("Conv2DBackpropInput", b.constant([1, 8, 8, 3]), w, x, name="g", **how)
    result = rewrite(b.graph)
    assert half(result) == ["g"]
    check_types(result.graph_def)


def test_an_existing_cast_becomes_a_cast_to_half_even_when_fetched():
    b = Builder()
    numbers = b.add("Placeholder", name="n", dtype=INT32, shape=(4, 4))
    b.add("Cast", numbers, name="c", SrcT=INT32, DstT=FLOAT)
    b.add("MatMul", "c", "c", name="m")
    assert half(rewrite(b.graph, fetch=["c"])) == ["c.DstT", "m"]
    b.add("Exp", "c", name="other")
    assert half(rewrite(b.graph)) == ["m"]


def test_units_of_a_list_of_types_are_painted_one_by_one():
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    b.add("IdentityN", m, "x", name="both")
    types = b.graph.node[-1].attr["T"]
    types.ClearField("type")
    types.list.type.extend([FLOAT, FLOAT])
    b.add("MatMul", "both:0", "both:1", name="n")
    result = rewrite(b.graph, fetch=["x"])
    assert half(result) == ["m", "both.T[0]", "both.T[1]", "n"]
    assert list(result.graph_def.node[2].attr["T"].list.type) == [HALF, HALF]


def test_a_preserved_node_keeps_its_type():
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    b.add("Relu", m, name="keep")
    b.graph.node[-1].attr["_grappler_do_not_remove"].b = True
    b.add("MatMul", "keep", "keep", name="n")
    assert half(rewrite(b.graph)) == ["m", "n"]
    assert half(rewrite(b.graph, feed=["n"])) == ["m"]


def test_levels():
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    t = b.add("Tanh", m, name="infer")
    r = b.add("Relu", t, name="clear")
    b.add("MatMul", r, r, name="n")
    b.add("Cos", r, name="other")

    def at(level, dtype="float16"):
        return half(rewrite(b.graph, dtype=dtype, policy=Policy(level=level)))

    assert at(None) == ["m", "infer", "clear", "n"]
    assert at("TENSOR_CORES_ONLY") == ["m", "n"]
    assert at("TENSOR_CORES_ONLY", "bfloat16") == ["m", "infer", "clear", "n"]
    assert at("TREAT_INFER_AS_DENY") == ["m", "clear", "n"]
    assert at("UNSAFE_FORCE_ALL") == ["m", "infer", "clear", "n", "other"]


def test_a_forced_op_with_a_fixed_type_is_refused_by_name():
    b = Builder()
    x = b.add("Placeholder", name="x", dtype=FLOAT, shape=(1, 8, 8, 3))
    b.add("AdjustContrast", x, x, x, x, name="fixed", T=FLOAT)
    with pytest.raises(GraphDefError, match=r"'fixed'.*AdjustContrast has a fixed float32 type"):
        rewrite(b.graph, policy=Policy(level="UNSAFE_FORCE_ALL"))


def test_every_decision_has_a_rule_in_words():
    from duotone.tensorflow.rewrite_record import RULES

    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    b.add("Cos", b.add("Sum", m, b.constant([0]), name="s"), name="c")
    decisions = rewrite(b.graph).decisions
    assert {d.rule for d in decisions} <= RULES.keys()
    assert ("m", "MatMul", "T", "allow", "f16", "allow_list") in {d[:-1] for d in decisions}
    assert ("c", "Cos", "T", "unlisted", "f32", "unlisted") in {d[:-1] for d in decisions}
    assert all(RULES[d.rule] == d.words for d in decisions)
