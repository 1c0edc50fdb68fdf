"""``benchmarks.gpu_steps`` on tiny sizes and on a CPU; no time is asserted."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import gpu_steps
from benchmarks.zoo import MODELS
from duotone.devices import TARGETS


@pytest.mark.slow
def test_programs_are_kept_run_and_told(tmp_path, monkeypatch):
    made = MODELS["dlrm"]
    monkeypatch.setitem(MODELS, "dlrm", lambda dtype, size: made(dtype, "tiny"))
    monkeypatch.setattr(gpu_steps, "this_target", lambda: TARGETS["h200"])
    monkeypatch.setattr(gpu_steps, "ROUNDS", 1)
    left = "by hand bfloat16"
    for way, half in gpu_steps.programs("dlrm"):
        if half != "float16" and f"{way} {half}" != left:
            gpu_steps.prepare(tmp_path, "dlrm", way, half)
    found = gpu_steps.measure(tmp_path, "dlrm")
    assert found[left] == {"failed": "not compiled"}
    assert found["float32"]["seconds"] > 0
    assert found["float32"]["predicted"] > 0
    assert math.isfinite(found["duotone bfloat16"]["loss"])
    json.dumps(found)
    figures = {"NVIDIA H200": {"dlrm": found}}
    text = gpu_steps.text_of(figures)
    assert f"dlrm, {left}: not compiled" in text
    names = [bar.name for bar in gpu_steps.bars(figures)]
    start = "NVIDIA H200, bfloat16: duotone's time over float32"
    assert names == [f"{start}, geometric mean", f"{start}, worst: dlrm"]


def test_ratios_leave_out_what_was_not_measured():
    models = {"a": {"x": {"seconds": 2.0}, "y": {"seconds": 4.0}}, "b": {"x": {"seconds": 1.0}}}
    assert gpu_steps._ratios(models, "x", "y") == {"a": 0.5}


def test_a_device_that_is_no_target_is_named():
    with pytest.raises(SystemExit, match="is not a target of duotone's; there are b200"):
        gpu_steps.this_target()
