"""Kinds of models in which half precision gives wrong numbers: the error of each, rewritten."""

from __future__ import annotations

import pytest

import duotone
from tests.onnx import kinds, kinds_branches, kinds_distances, kinds_positions, kinds_spectra

BAR = 5e-3
GROUPS = (kinds_branches, kinds_distances, kinds_positions, kinds_spectra)
CAUGHT = {
    "position": (
        "a_grid_and_a_flow a_grid_in_pixels predicted_positions a_flow_of_two_steps "
        "two_flows_added boxes_for_roi_align "
        "boxes_for_max_roi_pool a_crop_by_a_predicted_region a_grid_out_of_a_branch "
        "coordinates_far_from_zero places_by_a_triangle products_of_bytes"
    ).split(),
    "log_power": (
        "a_mel_spectrum a_mel_spectrum_with_eps a_clipped_mel_spectrum audio_of_16_bits "
        "scaled_audio_of_16_bits a_bank_by_convolution a_transposed_bank a_bank_by_gemm "
        "a_bank_by_einsum powers_by_pow a_magnitude a_magnitude_by_a_norm "
        "a_power_by_a_sum_of_squares squares_of_both_parts_at_once decibels_below_the_maximum "
        "as_whisper_does cepstral_coefficients normalized_by_mean_and_deviation without_a_bank "
        "by_frames_and_a_product the_power_itself_is_the_input"
    ).split(),
    "overflow": "a_large_constant_taken a_large_constant_node_taken a_large_number_taken".split(),
    "distance": (
        "distances_to_codes squares_by_a_power squares_of_a_norm squares_of_a_root "
        "squares_that_a_product_adds squares_next_to_a_product squares_in_an_operand "
        "a_variance_by_powers a_rest_inside_of_a_product"
    ).split(),
    "carry": "a_state_that_grows a_running_sum".split(),
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
