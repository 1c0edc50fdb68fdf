"""The table of devices, and what XLA gets of them."""

import re
from pathlib import Path

import pytest

from duotone.devices.gpus import GPUS, target_config
from duotone.devices.half_choice import choose_half
from duotone.devices.specifications import TARGETS, find_target
from duotone.graph.graph import HALF_TYPES

DESCRIBED = [target for target in TARGETS.values() if target.name != "cpu"]


@pytest.mark.parametrize("target", DESCRIBED, ids=lambda target: target.name)
def test_a_target_is_described_in_full(target):
    assert target.half in HALF_TYPES
    assert target.source
    assert 1e11 < target.bandwidth < 1e13
    assert 1e10 < target.memory < 1e12
    short = {"float16": "f16", "bfloat16": "bf16"}[target.half]
    # In half the device is faster, by less than two orders of magnitude.
    assert 1 < target.peak[short] / target.peak["f32"] < 100
    assert find_target(target.name.upper()) is target
    assert find_target(target) is target


@pytest.mark.parametrize("target", DESCRIBED, ids=lambda target: target.name)
def test_the_half_type_is_the_one_that_autocast_chooses(target):
    device = target.device()
    chosen = choose_half(device.platform, compute_capability=device.compute_capability)
    assert chosen.dtype == target.half


def test_a_page_lists_every_target():
    page = (Path(__file__).parents[2] / "docs/targets.md").read_text(encoding="utf-8")
    assert [name for name in TARGETS if f"| `{name}` |" not in page] == []


def test_every_gpu_has_one_description():
    gpus = {target.name: target for target in TARGETS.values() if target.platform == "cuda"}
    assert set(gpus) == set(GPUS)
    for name, gpu in GPUS.items():
        assert gpu.description == gpus[name].description
        assert ".".join(map(str, gpu.capability)) == gpus[name].capability
        assert gpu.bandwidth == pytest.approx(gpus[name].bandwidth, rel=0.01)
        assert gpu.memory == pytest.approx(gpus[name].memory, rel=0.07)


@pytest.mark.parametrize("name", GPUS)
def test_a_description_is_a_text_proto(name):
    text = target_config(GPUS[name])
    assert text.count("{") == text.count("}")
    for line in text.strip().splitlines():
        assert re.fullmatch(r"\s*(\w+ \{.*|\}|\w+: .+)", line), line


def test_peaks_agree_with_the_units_of_the_chip():
    """Cores × lanes × 2 × clock is the float32 peak that the data sheet gives."""
    for name, gpu in GPUS.items():
        computed = gpu.cores * gpu.lanes * 2 * gpu.clock * 1e9
        assert computed == pytest.approx(TARGETS[name].peak["f32"], rel=0.02)
