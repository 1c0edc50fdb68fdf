"""``benchmarks.gpu_kernels`` reads a small program and times that were written by hand."""

from __future__ import annotations

import lzma
import re
import shutil
from pathlib import Path

import pytest

from benchmarks import gpu_kernels
from benchmarks._common import RESULTS
from duotone.cost.roofline import kernel_seconds
from duotone.devices import TARGETS

_KEPT = RESULTS / "gpu_kernels"
_SOME = """gpt2-duotone-bfloat16 gan-float32 gpt2_scan-by_hand-float16 gat-float32 diffusion-float32
    pinn-by_hand-bfloat16 resnet50-by_hand-bfloat16 moe-float32""".split()
_OPERATIONS = (r" = \S+ ([a-z][\w\-]*)\(", r"\) ([a-z][\w\-]*)\(", r"kind=\w+", r"\b[a-z]+\d+\w*\[")
_TEXT = """HloModule step

%fused (p: f32[1024]) -> f32[1024] {
  %p = f32[1024]{0} parameter(0)
  ROOT %tanh = f32[1024]{0} tanh(%p)
}

ENTRY %main (x: f32[1024], w: f32[64,64]) -> (f32[1024], f32[64,64]) {
  %x = f32[1024]{0} parameter(0)
  %w = f32[64,64]{1,0} parameter(1)
  %loop_tanh_fusion.3 = f32[1024]{0} fusion(%x), kind=kLoop, calls=%fused
  %dot.1 = f32[64,64]{1,0} dot(%w, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %both = (f32[1024]{0}, f32[64,64]{1,0}) tuple(%loop_tanh_fusion.3, %dot.1)
}
"""


def test_kernels_are_compared_with_their_instructions():
    description = TARGETS["h100"].description
    kernels = [["loop_tanh_fusion_3", 8, 8e-6, "no"], ["nvjet_a", 4, 4e-5, "yes"]]
    record = {"device": description, "seconds": 2e-5, "steps": 4, "kernels": kernels}
    found = gpu_kernels.compared(_TEXT, record)
    bound = kernel_seconds(TARGETS["h100"], 2 * 4096, 0.0)
    calls, seconds, said = found["kinds"]["elementwise"]
    assert (calls, seconds, said) == (2.0, pytest.approx(2e-6), pytest.approx(2 * bound))
    assert found["kinds"][gpu_kernels.LIBRARY][:2] == [1.0, pytest.approx(1e-5)]
    table = gpu_kernels.text_of({description: {"a, by hand": found}})
    assert "elementwise" in table


def operations(folder: Path) -> set[str]:
    """The operations, types and kinds of fusions in the programs of a folder."""
    texts = [lzma.decompress(file.read_bytes()).decode() for file in folder.glob("*.hlo.xz")]
    return {found for text in texts for what in _OPERATIONS for found in re.findall(what, text)}


@pytest.fixture
def some(tmp_path: Path) -> Path:
    """The smallest part of the kept results in which every operation of all of them occurs."""
    for name in _SOME:
        for end in ("hlo.xz", "kernels.json"):
            shutil.copy(_KEPT / f"{name}.{end}", tmp_path)
    return tmp_path


def test_kept_results_are_read_again(some: Path) -> None:
    found, _ = gpu_kernels.read(some)
    assert sum(map(len, found.values())) == len(_SOME)
    assert found[TARGETS["h100"].description]["gpt2, duotone, bfloat16"]["seconds"] < 0.04


@pytest.mark.slow
def test_all_kept_results_are_read_again(some: Path) -> None:
    found, _ = gpu_kernels.read(_KEPT)
    assert found[TARGETS["h100"].description]["gpt2, duotone, bfloat16"]["seconds"] < 0.04
    assert operations(some) == operations(_KEPT)
