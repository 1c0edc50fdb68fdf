"""Classify: pins, regions, conflicts, levels."""

from __future__ import annotations

import pytest

from duotone.errors import PolicyError
from duotone.graph.graph import Paint
from duotone.ops.entries import Kind
from duotone.precision.classify.classes import Classes, Pins, check_classes
from tests.graph.tiny import Tiny


def _scoped(scope: str = "", region: str = "", op: str = "tanh") -> tuple[Tiny, int]:
    t = Tiny()
    h = t.dot()
    with t.scope(scope, region):
        value = t.op(op, h)
    t.goes_on(value)
    return t, value


@pytest.mark.parametrize(
    ("pattern", "scope", "hit"),
    [
        ("*/attention/*", "model/attention", True),
        ("*/attention/*", "model/attention/heads", True),
        ("*/attention/*", "attention", False),
        ("attention/*", "attention", True),
        ("attention/tanh", "attention", True),
        ("attention/exp", "attention", False),
        ("tanh", "", True),
        ("*tanh", "model/attention", True),
        ("model/block_[01]/*", "model/block_1", True),
        ("model/block_[01]/*", "model/block_2", False),
        ("Model/*", "model", False),
        ("*", "", True),
    ],
)
def test_patterns_are_matched_with_scope_and_operation(pattern: str, scope: str, hit: bool) -> None:
    t, value = _scoped(scope)
    painted = t.paint(pins=Pins(full=(pattern,)))
    assert (painted[value] == "full pinned") is hit


def test_a_pattern_reaches_structural_nodes_too() -> None:
    t = Tiny()
    w, start = t.input(64), t.input(64)
    with t.scope("scan"), t.loop():
        h, after = t.carry(start)
        t.close(h, t.dot(h, w))
    t.goes_on(after)
    assert t.paint(pins=Pins(full=("*loop.carry",)))[after] == "full pinned"


def test_a_region_pins() -> None:
    for region in ("full", "half"):
        t, value = _scoped(region=region)
        painted = t.paint()
        assert painted[value] == f"{region} pinned"
        assert painted.detail(value) == f"region keep_{region}()"


def test_two_patterns_that_disagree_are_an_error_that_names_both_and_the_place() -> None:
    t, _ = _scoped("model/head")
    with pytest.raises(PolicyError) as caught:
        t.paint(pins=Pins(full=("model/*",), half=("*/head/*",)))
    message = str(caught.value)
    for part in ("tanh", "'model/head'", "line 1", "'model/*'", "'*/head/*'", "narrower"):
        assert part in message
    painted = t.paint(pins=Pins(full=("model/*/dot",), half=("*/head/*",)))  # made narrower
    assert painted.painting.changed


def test_a_pattern_and_a_region_that_disagree_are_an_error() -> None:
    t, _ = _scoped("loss", region="full")
    with pytest.raises(PolicyError, match=r"region keep_full\(\).*pattern 'loss/\*'"):
        t.paint(pins=Pins(half=("loss/*",)))


def test_two_patterns_that_agree_are_no_error() -> None:
    t, value = _scoped("model/head")
    assert t.paint(pins=Pins(full=("model/*", "*/head/*")))[value] == "full pinned"


def test_nodes_of_one_name_and_different_scopes_are_distinguished() -> None:
    t = Tiny()
    h = t.dot()
    with t.scope("a"):
        one = t.op("tanh", h)
    with t.scope("b"):
        other = t.op("tanh", h)
    t.goes_on(one, other)
    painted = t.paint(pins=Pins(full=("a/*",)))
    assert [painted[one], painted[other]] == ["full pinned", "half downstream"]


def test_force_all_puts_everything_that_can_be_half_on_the_allow_list() -> None:
    t = Tiny()
    e = t.op("exp", t.input(64))
    odd = t.op("mystery", e)
    solved = t.op("dot", odd, fixed="has no half form")
    t.goes_on(solved)
    painted = t.paint(force_all=True)
    assert [painted[v] for v in (e, odd, solved)] == ["half allow", "half allow", "full fixed"]


def test_force_all_leaves_out_what_a_constant_would_break() -> None:
    t = Tiny()
    huge = t.op("mul", t.input(64), t.constant(1e6))
    t.goes_on(huge)
    assert t.paint(force_all=True)[huge] == "full constant"


def test_pins_win_over_force_all() -> None:
    t, value = _scoped("loss")
    painted = t.paint(force_all=True, pins=Pins(full=("loss/*",)))
    assert painted[value] == "full pinned"


def test_every_node_has_a_class() -> None:
    t, value = _scoped()
    painted = t.paint()
    assert [c.kind for c in painted.classes.nodes[:2]] == [Kind.ALLOW, Kind.INFER]
    assert painted.classes.nodes[0].pin is None
    with pytest.raises(PolicyError, match="1 classes for 4 nodes"):
        check_classes(Classes(painted.classes.nodes[:1], painted.classes.half), painted.graph)
    assert painted.painting.compute[painted.graph.values[value].producer] is Paint.HALF
