"""The minimum cut on GraphDefs: cheaper than TensorFlow's painting, by the same rules."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest

from duotone import Policy
from duotone.tensorflow.protos import FLOAT, new_graph
from tests.tensorflow.graphdefs import cases, resnet50
from tests.tensorflow.painted import Builder, check_types, half, placeholder, rewrite
from tests.tensorflow.test_cases import CASES


def total(result) -> int:
    return sum(body.cast_bytes for body in (result, *result.functions.values()))


@pytest.fixture(scope="module")
def both():
    """(bytes, bytes by cut) of every case in both modes."""
    found = []
    for text, answer in CASES.values():
        for dtype in ("float16", "bfloat16"):
            graph = new_graph.FromString(text)
            given = {"fetch": answer["fetch"], "dtype": dtype}
            found.append(
                (total(rewrite(graph, **given)), total(rewrite(graph, painter="mincut", **given)))
            )
    return found


def test_never_more_bytes_and_fewer_in_geometric_mean(both):
    assert all(cut <= original for original, cut in both)
    ratios = [cut / original for original, cut in both if original]
    assert math.prod(ratios) ** (1 / len(ratios)) < 0.93


def test_the_resnet_training_step_is_cheaper():
    graph = resnet50()
    assert len(graph.node) >= 2500
    original, cut = rewrite(graph), rewrite(graph, painter="mincut")
    assert cut.cast_bytes < 0.8 * original.cast_bytes
    check_types(cut.graph_def)


def test_an_op_that_only_costs_casts_stays_full():
    """TensorFlow makes the tail half and casts both what it adds and what it gives."""
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    t = b.add("Add", m, b.add("Placeholder", name="y", dtype=FLOAT, shape=(4, 4)), name="tail")
    b.add("Cos", t, name="end")
    assert half(rewrite(b.graph)) == ["m", "tail"]
    cut = rewrite(b.graph, painter="mincut")
    assert half(cut) == ["m"]
    rules = {d.node: d.rule for d in cut.decisions}
    assert (rules["m"], rules["tail"]) == ("allow_list", "cut")


def test_the_painter_of_the_policy_and_of_the_environment(monkeypatch):
    """Catches: DUOTONE_PAINTER=mincut and Policy(painter="mincut") that say nothing of a graph."""
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    tail = b.add("Add", m, b.add("Placeholder", name="y", dtype=FLOAT, shape=(4, 4)), name="tail")
    b.add("Cos", tail, name="end")
    assert half(rewrite(b.graph, painter=None, policy=Policy(painter="mincut"))) == ["m"]
    monkeypatch.setenv("DUOTONE_PAINTER", "mincut")
    assert half(rewrite(b.graph, painter=None)) == ["m"]
    assert half(rewrite(b.graph, painter="tensorflow")) == ["m", "tail"]
    monkeypatch.setenv("DUOTONE_PAINTER", "duotone")
    duotone = rewrite(b.graph, painter=None)
    assert [d.rule for d in duotone.decisions if d.node == "m"] == ["deny"]


def test_the_rules_hold_for_the_cut_as_well():
    """Denied, unlisted and preserved nodes stay full whatever their casts cost."""
    b = Builder()
    m = b.add("MatMul", placeholder(b, size=64), "x", name="m")
    for name, op in (("denied", "Exp"), ("unlisted", "Cos"), ("kept", "Relu")):
        t = b.add(op, m, name=name)
        b.add("MatMul", t, t, name=f"n_{name}")
    result = rewrite(b.graph, fetch=["kept"], painter="mincut")
    assert half(result) == ["m", "n_denied", "n_unlisted", "n_kept"]


def test_the_choice_is_the_cheapest_of_all():
    """Against every colouring of the open units of random graphs of clear ops."""
    for seed in range(12):
        draw = random.Random(seed)
        b = Builder()
        placeholder(b)
        nodes = ["x", b.add("MatMul", "x", "x", name="m")]
        opened = []
        for i in range(7):
            op = draw.choice(["Relu", "Maximum", "Cos", "MatMul"])
            count = 1 if op in ("Relu", "Cos") else 2
            nodes.append(b.add(op, *draw.choices(nodes, k=count), name=f"v{i}"))
            if op in ("Relu", "Maximum"):
                opened.append(nodes[-1])
        best = min(
            _bytes(b.graph, {name for name, h in zip(opened, halves, strict=True) if h})
            for halves in itertools.product([False, True], repeat=len(opened))
        )
        assert rewrite(b.graph, painter="mincut").cast_bytes == best


def _bytes(graph, chosen: set[str]) -> int:
    """Bytes of casts if these ops and all MatMuls are half; all values have 16 elements."""
    chosen = chosen | {node.name for node in graph.node if node.op == "MatMul"}
    ports = {
        source
        for node in graph.node
        for source in node.input
        if (source in chosen) != (node.name in chosen)
    }
    return 6 * 16 * len(ports)


def test_loops_and_lists_agree_under_the_cut():
    for name, text, answer in cases():
        if "recurrent" in name or "lowered" in name or "tensorlist" in name:
            graph = new_graph.FromString(text)
            cut = rewrite(graph, fetch=json.loads(answer)["fetch"], painter="mincut")
            check_types(cut.graph_def)


@pytest.mark.parametrize("rows", [2**50 + 1, 2**62 - 1])
def test_a_dimension_that_no_machine_holds(rows):
    """Catches: capacities split into edges without bound, until the memory was full."""
    b = Builder()
    weight = b.add("Placeholder", name="weight", dtype=FLOAT, shape=(4, 4))
    for name, count in (("small", 3), ("large", rows)):  # next to each other: no common divisor
        draw = random.Random(10)  # one of many in which the cut has something to decide
        x = b.add("Placeholder", name=name, dtype=FLOAT, shape=(count, 4))
        values = [b.add("MatMul", x, weight, name=f"{name}_{i}") for i in "ab"] + [x]
        for number in range(10):
            op = draw.choice(["Add", "Add", "Relu", "Exp", "Tanh", "MatMul"])
            more = [weight] if op == "MatMul" else []
            reads = draw.sample(values, 2 if op == "Add" else 1)
            values.append(b.add(op, *reads, *more, name=f"{name}_{number}"))
    cut = half(rewrite(b.graph, painter="mincut"))
    assert cut != half(rewrite(b.graph))
    assert [n.replace("small", "large") for n in cut if "small" in n] == [
        n for n in cut if "large" in n
    ]
