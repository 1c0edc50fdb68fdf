"""Filters before a log spectrum: why they stay float32 in memory too."""

import numpy as np
import pytest

import duotone.onnx
from tests.onnx.models import model

TAPS, TOLERANCE = 256, 0.2
"""In nepers of power: 0.9 decibels."""


def log_spectrum(filters):
    """The log power of a loud tone in 100 bands, whose windows keep it out of the distant ones."""
    tone = np.sin(np.arange(TAPS) * 0.1)
    return np.log((filters @ tone) ** 2 + 1e-12)


def filters():
    """Cosines of bands in a window whose side lobes are 92 decibels down (Blackman-Harris)."""
    phase = 2 * np.pi * np.arange(TAPS) / TAPS
    window = 0.35875 - 0.48829 * np.cos(phase) + 0.14128 * np.cos(2 * phase)
    window -= 0.01168 * np.cos(3 * phase)
    bands = np.linspace(0.05, 3.0, 100)
    return np.cos(bands[:, None] * np.arange(TAPS)) * window / TAPS


@pytest.mark.parametrize("scale", [1.0, 2.0**20])
def test_filters_that_are_stored_half_leak_a_tone_into_quiet_bands(scale):
    """A scale by which no element is below half's normal numbers helps nothing."""
    exact = filters()
    full = exact.astype(np.float32).astype(np.float64)
    half = (exact * scale).astype(np.float16).astype(np.float64) / scale
    assert np.max(np.abs(log_spectrum(full) - log_spectrum(exact))) < TOLERANCE
    assert np.max(np.abs(log_spectrum(half) - log_spectrum(exact))) > 10 * TOLERANCE


def test_they_stay_float32():
    text = """f (float[1, 1, 256] x, float[4, 1, 8] w) => (float[1, 4, 249] y)
    { s = Conv(x, w)  p = Mul(s, s)  y = Log(p) }"""
    (conv, *_) = duotone.onnx.explain(model(text)).operations
    assert (conv.paint, conv.rule) == ("full", "log_power")
