"""Kinds of models in which half precision gives wrong numbers: the error of each, rewritten."""

from __future__ import annotations

import pytest

import duotone
from tests.onnx import kinds, kinds_branches, kinds_positions

BAR = 5e-3
GROUPS = (kinds_branches, kinds_positions)
CAUGHT = {
    "position": (
        "a_grid_and_a_flow a_flow_of_two_steps two_flows_added boxes_for_roi_align "
        "boxes_for_max_roi_pool a_crop_by_a_predicted_region a_grid_out_of_a_branch"
    ).split(),
}
"""By safety rule, kinds whose error exceeds the bar without it."""
EVERY = {name: make for group in kinds.KINDS.values() for name, make in group.items()}


def error(name, **options):
    text, weights, feed = EVERY[name]()
    return kinds.error_of(kinds.built(text, weights), feed, **options)


@pytest.mark.parametrize("name", EVERY)
def test_the_error_is_that_of_rounding(name):
    assert error(name) < BAR


@pytest.mark.parametrize(("rule", "name"), [(r, n) for r, names in CAUGHT.items() for n in names])
def test_the_rule_makes_the_difference(rule, name):
    assert error(name, policy=duotone.Policy(rules_remove={rule})) > BAR
