"""Bytes, FLOPs, runs and seconds, counted by hand on small programs."""

from pathlib import Path

import pytest

from duotone.cost import cost_of_program as cost
from duotone.cost import traffic
from duotone.cost.cost_of_program import cost_of
from duotone.cost.hlo import parse
from duotone.devices.specifications import find_target

HERE = Path(__file__).parent
H200 = find_target("h200")

HEAD = "HloModule m, is_scheduled=true\n\n"


def counted(text, target=H200):
    return cost_of(parse(HEAD + text), target)


def by_name(totals):
    return {kernel.name: kernel for kernel in totals.kernels}


def stored(name):
    return parse((HERE / "programs" / f"{name}.txt").read_text())


FUSIONS = """
%slices (p: f32[100,8], i: s32[]) -> f32[2,8] {
  %p = f32[100,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %sin = f32[100,8]{1,0} sine(%p)
  %part = f32[2,8]{1,0} dynamic-slice(%sin, %i, %zero), dynamic_slice_sizes={2,8}
  ROOT %neg = f32[2,8]{1,0} negate(%part)
}

%updates (p.1: f32[100,8], u: f16[1,8], i.1: s32[]) -> f32[100,8] {
  %p.1 = f32[100,8]{1,0} parameter(0)
  %u = f16[1,8]{1,0} parameter(1)
  %wide = f32[1,8]{1,0} convert(%u)
  %i.1 = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %dus = f32[100,8]{1,0} dynamic-update-slice(%p.1, %wide, %i.1, %zero.1)
}

%two (a: f32[10,8], b: f32[8]) -> (f32[10,8], f32[10]) {
  %a = f32[10,8]{1,0} parameter(0)
  %b = f32[8]{0} parameter(1)
  %wide.1 = f32[10,8]{1,0} broadcast(%b), dimensions={1}
  %sum = f32[10,8]{1,0} add(%a, %wide.1)
  %none = f32[] constant(0)
  %total = f32[10]{0} reduce(%sum, %none), dimensions={1}, to_apply=%region
  ROOT %out.1 = (f32[10,8]{1,0}, f32[10]{0}) tuple(%sum, %total)
}

%region (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}

ENTRY %main (w: f32[100,8], n: s32[], h: f16[1,8], c: f32[10,8], d: f32[8]) -> f32[] {
  %w = f32[100,8]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %h = f16[1,8]{1,0} parameter(2)
  %c = f32[10,8]{1,0} parameter(3)
  %d = f32[8]{0} parameter(4)
  %sliced = f32[2,8]{1,0} fusion(%w, %n), kind=kLoop, calls=%slices
  %updated = f32[100,8]{1,0} fusion(%w, %h, %n), kind=kLoop, calls=%updates
  %both = (f32[10,8]{1,0}, f32[10]{0}) fusion(%c, %d), kind=kInput, calls=%two
  %first = f32[10,8]{1,0} get-tuple-element(%both), index=0
  %flat = f32[80]{0} bitcast(%first)
  %copied = f32[80]{0} copy(%flat)
  %zero.2 = s32[] constant(0)
  %own = f32[1,8]{1,0} dynamic-slice(%w, %n, %zero.2), dynamic_slice_sizes={1,8}
  ROOT %placed = f32[100,8]{1,0} dynamic-update-slice(%w, %own, %n, %zero.2)
}
"""
# Read + written, in bytes.
FUSION_BYTES = {
    "sliced": 2 * 8 * 4 + 4 + 2 * 8 * 4,  # the two rows that are needed, the index; two rows
    "updated": 8 * 2 + 4 + 8 * 4,  # the row in half, the index; one row in place
    "both": 80 * 4 + 8 * 4 + 80 * 4 + 10 * 4,  # each operand once; both results
    "copied": 80 * 4 + 80 * 4,
    "own": 8 * 4 + 2 * 4 + 8 * 4,
    "placed": 8 * 4 + 2 * 4 + 8 * 4,
}


def test_a_kernel_moves_what_it_needs():
    totals = counted(FUSIONS)
    assert {name: kernel.bytes for name, kernel in by_name(totals).items()} == FUSION_BYTES
    assert totals.bytes == sum(FUSION_BYTES.values())
    assert totals.kernel_count == len(FUSION_BYTES)
    assert totals.casts == 1


@pytest.mark.parametrize(
    ("where", "fault", "changed"),
    [
        ("_in_place", lambda fused, made: None, {"updated"}),
        ("_SLICES", frozenset(), {"sliced", "own"}),
        ("_results", lambda fused: [fused.root], {"both"}),
    ],
)
def test_a_planted_fault_in_the_counting_is_seen(monkeypatch, where, fault, changed):
    monkeypatch.setattr(traffic, where, fault)
    found = {name: kernel.bytes for name, kernel in by_name(counted(FUSIONS)).items()}
    assert {name for name in found if found[name] != FUSION_BYTES[name]} == changed


LOOP = """
%cond (s: (s32[], f32[64])) -> pred[] {
  %s = (s32[], f32[64]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(7)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%body (s.1: (s32[], f32[64])) -> (s32[], f32[64]) {
  %s.1 = (s32[], f32[64]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %x = f32[64]{0} get-tuple-element(%s.1), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i.1, %one)
  %half = f16[64]{0} convert(%x)
  %more = f32[64]{0} convert(%half)
  ROOT %t = (s32[], f32[64]{0}) tuple(%next, %more)
}

ENTRY %main (a: f32[64]) -> (s32[], f32[64]) {
  %a = f32[64]{0} parameter(0)
  %first = s32[] constant(2)
  %start = (s32[], f32[64]{0}) tuple(%first, %a)
  ROOT %loop = (s32[], f32[64]{0}) while(%start), condition=%cond, body=%bodyKNOWN
}
"""
BODY = (4 + 4 + 4) + 2 * (64 * 4 + 64 * 2)


def test_a_loop_counts_as_often_as_the_compiler_says():
    known = ', backend_config={"known_trip_count":{"n":"12"}}'
    totals = counted(LOOP.replace("KNOWN", known))
    assert totals.bytes == 12 * BODY
    assert totals.kernel_count == 12 * 3
    assert totals.casts == 12 * 2
    assert {kernel.runs for kernel in totals.kernels} == {12}
    assert not totals.notes


def test_a_loop_counts_from_its_start_to_its_limit():
    totals = counted(LOOP.replace("KNOWN", ""))
    assert totals.casts == (7 - 2) * 2
    assert totals.bytes == 5 * BODY + 6 * (4 + 4 + 1)  # the condition runs once more
    assert not totals.notes


def test_a_loop_of_unknown_length_counts_once_and_says_so():
    text = LOOP.replace("KNOWN", "").replace("%n = s32[] constant(7)", "%n = s32[] negate(%i)")
    totals = counted(text)
    assert totals.casts == 2
    assert totals.notes == ("how often loop runs is not known: counted once",)


def test_loops_in_loops_multiply():
    inner = LOOP.replace("KNOWN", ', backend_config={"known_trip_count":{"n":"3"}}')
    outer = inner.replace("ENTRY %main", "%inner").replace("ROOT %loop", "ROOT %within")
    text = f"""{outer}
%always (s.9: (s32[], f32[64])) -> pred[] {{
  %s.9 = (s32[], f32[64]{{0}}) parameter(0)
  ROOT %true = pred[] constant(true)
}}

%twice (s.8: (s32[], f32[64])) -> (s32[], f32[64]) {{
  %s.8 = (s32[], f32[64]{{0}}) parameter(0)
  %v = f32[64]{{0}} get-tuple-element(%s.8), index=1
  ROOT %called = (s32[], f32[64]{{0}}) call(%v), to_apply=%inner
}}

ENTRY %main (b: (s32[], f32[64])) -> (s32[], f32[64]) {{
  %b = (s32[], f32[64]{{0}}) parameter(0)
  ROOT %outer = (s32[], f32[64]{{0}}) while(%b), condition=%always, body=%twice, \
backend_config={{"known_trip_count":{{"n":"4"}}}}
}}
"""
    totals = counted(text)
    assert totals.bytes == 4 * 3 * BODY
    assert totals.casts == 4 * 3 * 2


BRANCHES = """
%cheap (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %same = f32[8]{0} negate(%p)
}

%expensive (q: f32[8]) -> f32[8] {
  %q = f32[8]{0} parameter(0)
  %once = f32[8]{0} copy(%q)
  ROOT %again = f32[8]{0} copy(%once)
}

ENTRY %main (k: s32[], x: f32[8]) -> f32[8] {
  %k = s32[] parameter(0)
  %x = f32[8]{0} parameter(1)
  ROOT %either = f32[8]{0} conditional(%k, %x, %x), branch_computations={%cheap, %expensive}
}
"""


def test_of_a_branch_the_most_expensive_form_counts():
    totals = counted(BRANCHES)
    assert totals.bytes == 2 * (32 + 32)
    assert [kernel.name for kernel in totals.kernels] == ["once", "again"]
    assert "branch" in totals.notes[0]


ASYNC = """
%wrapped (p: f16[4,4], q: f16[4,4]) -> f32[4,4] {
  %p = f16[4,4]{1,0} parameter(0)
  %q = f16[4,4]{1,0} parameter(1)
  ROOT %dot = f32[4,4]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (a: f16[4,4]) -> f32[4,4] {
  %a = f16[4,4]{1,0} parameter(0)
  %copy-start = (f16[4,4]{1,0:S(1)}, f16[4,4]{1,0}, u32[]) copy-start(%a)
  %copy-done = f16[4,4]{1,0:S(1)} copy-done(%copy-start)
  %start = ((f16[4,4]{1,0}, f16[4,4]{1,0}), f32[4,4]{1,0}) async-start(%a, %a), calls=%wrapped
  ROOT %done = f32[4,4]{1,0} async-done(%start)
}
"""


def test_an_asynchronous_pair_counts_once_and_other_memory_not_at_all():
    totals = counted(ASYNC)
    kernels = by_name(totals)
    assert set(kernels) == {"copy-done", "dot"}
    assert kernels["copy-done"].bytes == 32  # read from main memory, written on the chip
    assert kernels["dot"].bytes == 32 + 32 + 64
    assert totals.dots == {"f16×f16→f32": 1}
    assert totals.flops == {"f16×f16→f32": 2 * 16 * 4}


LIBRARY = """
ENTRY %main (a: bf16[2,8,16], b: bf16[2,16,4], q: bf16[2,32,4,8]) -> bf16[2,8,4] {
  %a = bf16[2,8,16]{2,1,0} parameter(0)
  %b = bf16[2,16,4]{2,1,0} parameter(1)
  %q = bf16[2,32,4,8]{3,2,1,0} parameter(2)
  %gemm = (bf16[2,8,4]{2,1,0}, s8[4096]{0}) custom-call(%a, %b), \
custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":\
{"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"]}}}
  %attention = (bf16[2,4,32,8]{3,1,2,0}, u8[0]{0}) custom-call(%q, %q, %q), \
custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config":\
{"bmm1_dot_dimension_numbers":{"lhs_contracting_dimensions":["3"],\
"rhs_contracting_dimensions":["3"],"lhs_batch_dimensions":["0","2"],\
"rhs_batch_dimensions":["0","2"]}}}
  %unknown = bf16[2,8,4]{2,1,0} custom-call(%a), custom_call_target="mine"
  ROOT %out = bf16[2,8,4]{2,1,0} get-tuple-element(%gemm), index=0
}
"""


def test_calls_of_libraries():
    kernels = by_name(counted(LIBRARY))
    assert kernels["gemm"].flops == 2 * (2 * 8 * 4) * 16
    assert kernels["gemm"].bytes == 2 * (2 * 8 * 16 + 2 * 16 * 4 + 2 * 8 * 4)  # no workspace
    # Each of 2 × 4 heads: queries with keys, weights with values.
    assert kernels["attention"].flops == 2 * (2 * 4) * (2 * 32 * 32 * 8)
    assert kernels["unknown"].flops == 0
    assert kernels["unknown"].op == "mine"


ONEDNN = """
ENTRY %main (x: bf16[16,32,32,64], w: bf16[3,3,64,8], a: bf16[512,768], b: bf16[512,16]) -> \
bf16[768,16] {
  %x = bf16[16,32,32,64]{3,2,1,0} parameter(0)
  %w = bf16[3,3,64,8]{3,2,1,0} parameter(1)
  %a = bf16[512,768]{1,0} parameter(2)
  %b = bf16[512,16]{1,0} parameter(3)
  %conv = (bf16[16,32,32,8]{3,2,1,0}, u8[12336]{0}) custom-call(%x, %w), \
custom_call_target="__onednn$convolution", backend_config={"onednn_conv_config":{"dims":"4",\
"kernel":{"dims":"0","filter":{"input_feature_dim":"2","output_feature_dim":"3",\
"shape":["3","3","64","8"],"spatial_dims":["0","1"]}}},"outer_dimension_partitions":[]}
  %dot = (bf16[768,16]{1,0}, u8[648960]{0}) custom-call(%a, %b), \
custom_call_target="__onednn$matmul", backend_config={"onednn_matmul_config":\
{"transpose_a":true,"transpose_b":false},"outer_dimension_partitions":[]}
  ROOT %out = bf16[768,16]{1,0} get-tuple-element(%dot), index=0
}
"""


def test_calls_of_the_library_of_a_cpu():
    kernels = by_name(counted(ONEDNN))
    assert kernels["conv"].flops == 2 * (16 * 32 * 32 * 8) * (3 * 3 * 64)
    image, kernel, out = 16 * 32 * 32 * 64, 3 * 3 * 64 * 8, 16 * 32 * 32 * 8
    assert kernels["conv"].bytes == 2 * (image + kernel + out)  # no workspace
    assert kernels["dot"].flops == 2 * (768 * 16) * 512


def test_a_real_loop_over_layers():
    """``lax.scan`` over five layers of 64×32 @ 32×32 in float16, compiled for an H200."""
    totals = cost_of(stored("h200_scan"), H200)
    assert totals.dots == {"f16×f16→f16": 5}
    assert totals.flops == {"f16×f16→f16": 5 * 2 * 64 * 32 * 32}
    kernels = by_name(totals)
    one_weight = 32 * 32 * 4 + 4 + 32 * 32 * 2
    assert kernels["loop_convert_fusion"].bytes == one_weight
    assert kernels["loop_dynamic_update_slice_fusion"].bytes == 64 * 4 + 4 + 64 * 4  # one row
    assert kernels["wrapped_convert"].bytes == 64 * 32 * (4 + 2)
    assert kernels["loop_broadcast_fusion"].bytes == 5 * 64 * 4
    assert kernels["loop_broadcast_fusion"].runs == 1
    assert totals.casts == 5 * 4
    assert totals.kernel_count == 5 * 7 + 3


def test_a_real_convolution_and_its_gradients():
    """2×16×16×8 with 3×3×8×16, stride 2: each of the three does the same work."""
    totals = cost_of(stored("h200_convolution"), H200)
    assert totals.dots == {"f16×f16→f16": 3}
    assert totals.flops["f16×f16→f16"] == 3 * 2 * (2 * 8 * 8 * 16) * (3 * 3 * 8)
    padded, kernel, out = 2 * 17 * 17 * 8, 3 * 3 * 8 * 16, 2 * 8 * 8 * 16
    for name in ("cudnn-conv.2", "cudnn-conv-bw-filter.2", "cudnn-conv-bw-input.2"):
        assert by_name(totals)[name].bytes == 2 * (padded + kernel + out)


@pytest.mark.parametrize(
    ("window", "result", "is_slow"),
    [
        ("size=64x64", "2,3,3,16", True),  # the gradient of a filter, with its cotangent as window
        ("size=7x7", "2,1,1,16", False),  # a dense layer
        ("size=16x16 stride=16x16", "2,2,2,16", False),  # patches: a dot
        ("size=31x31 pad=15_15x15_15", "2,14,14,16", False),  # a large window of a small image
    ],
)
def test_a_window_larger_than_the_result_is_slow(window: str, result: str, is_slow: bool):
    spatial = window.split()[0].removeprefix("size=").replace("x", ",")
    text = f"""
ENTRY %main (x: f32[2,66,66,8], w: f32[{spatial},8,16]) -> f32[{result}] {{
  %x = f32[2,66,66,8]{{3,2,1,0}} parameter(0)
  %w = f32[{spatial},8,16]{{3,2,1,0}} parameter(1)
  %both = (f32[{result}]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%x, %w), window={{{window}}}, \
dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$convForward"
  ROOT %out = f32[{result}]{{3,2,1,0}} get-tuple-element(%both), index=0
}}
"""
    notes = " ".join(counted(text).notes)
    assert ("larger than the result: 1 convolution" in notes) == is_slow


def test_a_real_program_of_a_tpu():
    """Two dots in one fusion, the second weight and all results between in vector memory."""
    totals = cost_of(stored("v5e_mlp"), find_target("v5e"))
    assert totals.flops == {"bf16×bf16→bf16": 2 * 2 * 256 * 128 * 512}
    kernels = by_name(totals)
    assert kernels["copy-done"].bytes == 2 * 512 * 128
    assert kernels["fusion.21"].bytes == 2 * (256 * 128 + 128 * 512)
    assert kernels["fusion.15"].bytes == 0
    assert kernels["copy.1"].bytes == 2 * 256 * 128


DOT = """
ENTRY %main (a: f32[64,64]) -> f32[64,64] {
  %a = f32[64,64]{1,0} parameter(0)
  ROOT %d = f32[64,64]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}HOW
}
"""


@pytest.mark.parametrize(
    ("how", "types", "peak"),
    [
        ("", "f32×f32→f32", H200.peak["tf32"]),
        (", operand_precision={highest,highest}", "f32×f32→f32", H200.peak["f32"]),
        (", algorithm=dot_tf32_tf32_f32", "f32×f32→f32 as tf32", H200.peak["tf32"]),
        (", algorithm=dot_bf16_bf16_f32_x3", "f32×f32→f32 as bf16", H200.peak["bf16"] / 3),
        (", algorithm=dot_f32_f32_f32", "f32×f32→f32 as f32", H200.peak["f32"]),
    ],
)
def test_a_dot_takes_the_time_of_the_type_it_multiplies_in(monkeypatch, how, types, peak):
    totals = counted(DOT.replace("HOW", how))
    assert list(totals.dots) == [types]
    flops = 2 * 64**3
    moving = 3 * 64 * 64 * 4 / H200.bandwidth
    assert totals.seconds == pytest.approx(max(moving, flops / peak) + H200.launch)


def test_seconds_are_the_slower_of_moving_and_calculating_and_a_launch():
    totals = counted(FUSIONS)
    expected = totals.bytes / H200.bandwidth + totals.kernel_count * H200.launch
    assert totals.seconds == pytest.approx(expected)
    assert counted(FUSIONS, find_target("cpu")).seconds == 0


def test_casts_of_constants_do_not_count():
    text = """
ENTRY %main () -> f16[4] {
  %one = f32[] constant(1)
  %many = f32[4]{0} broadcast(%one), dimensions={}
  ROOT %c = f16[4]{0} convert(%many)
}
"""
    assert counted(text).casts == 0
    assert cost.cost_of(parse(HEAD + text), H200).kernel_count == 2


CONVOLUTION = """
ENTRY %main (x: bf16[{lhs}], k: bf16[{rhs}]) -> bf16[{out}] {{
  %x = bf16[{lhs}] parameter(0)
  %k = bf16[{rhs}] parameter(1)
  ROOT %c = bf16[{out}] convolution(%x, %k), window={{{window}}}, dim_labels={labels}
}}
"""


@pytest.mark.parametrize(
    ("lhs", "rhs", "out", "window", "labels", "products"),
    [
        # The corners of a 5 x 5 image see 4 of 9 elements, its sides 6: (2 + 3 + 3 + 3 + 2)^2.
        ("2,5,5,3", "3,3,3,4", "2,5,5,4", "size=3x3 pad=1_1x1_1", "b01f_01io->b01f", 169 * 24),
        # Two steps at a time: 2 + 3 + 2 of them.
        (
            *("2,5,5,3", "3,3,3,4", "2,3,3,4"),
            *("size=3x3 stride=2x2 pad=1_1x1_1", "b01f_01io->b01f", 49 * 24),
        ),
        # A pointwise convolution as a TPU's compiler writes it: the image slides over the kernel.
        (
            *("1,1,6,4", "4,4,7,6", "4,4,7,4"),
            *("size=4x4 pad=3_3x3_3 rhs_reversal=1x1", "01fb_01oi->01fb", 4 * 4 * 7 * 6 * 4),
        ),
        # Zeros between the elements of an operand: every second place of 5 holds one.
        ("1,3,1,1", "1,1,1,1", "1,5,1,1", "size=1x1 lhs_dilate=2x1", "b01f_01io->b01f", 3),
        # A window with holes, of which 2, 2, 3, 3, 3, 2 and 2 elements lie inside.
        (
            *("1,7,1,1", "3,1,1,1", "1,7,1,1"),
            *("size=3x1 pad=2_2x0_0 rhs_dilate=2x1", "b01f_01io->b01f", 2 + 2 + 3 + 3 + 3 + 2 + 2),
        ),
        ("8,16", "16,4", "8,4", "", "bf_io->bf", 8 * 16 * 4),
    ],
)
def test_a_convolution_multiplies_elements_and_not_padding(lhs, rhs, out, window, labels, products):
    text = CONVOLUTION.format(lhs=lhs, rhs=rhs, out=out, window=window, labels=labels)
    (flops,) = counted(text).flops.values()
    assert flops == pytest.approx(2 * products)
