"""Bytes that devices send each other, by hand."""

from __future__ import annotations

import dataclasses

import pytest

from duotone.cost.collectives import sendings_of
from duotone.cost.cost_of_program import cost_of
from duotone.cost.hlo import parse
from duotone.cost.roofline import LINKS, time_by
from duotone.devices import find_target

HEAD = "HloModule m, is_scheduled=true, num_partitions=8\n"
MESH = "replica_groups=mesh['axis_0'=4,'axis_1'=2]"


def program(*lines: str) -> str:
    return (
        f"{HEAD}ENTRY %main (p: f32[16,8]) -> f32[16,8] {{\n  %p = f32[16,8]{{1,0}} parameter(0)\n"
        + ("\n".join(f"  {line}" for line in lines) + "\n}")
    )


@pytest.mark.parametrize(
    ("line", "devices", "sent"),
    [
        ("f32[128,8] all-gather(%p), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}", 8, 3584),
        (f"f32[64,8] all-gather(%p), {MESH} {{'axis_0'}}, dimensions={{0}}", 4, 1536),
        (f"f32[32,8] all-gather(%p), {MESH} {{'axis_1'}}, dimensions={{0}}", 2, 512),
        (f"f32[16,8] all-reduce(%p), {MESH} {{'axis_0','axis_1'}}", 8, 896),
        ("f32[16,8] all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add", 4, 768),
        (f"f32[16,8] all-reduce(%p), {MESH} {{'axis_0':(1)2}}", 2, 512),
        ("f32[2,8] reduce-scatter(%p), replica_groups={}, dimensions={0}", 8, 448),
        ("bf16[16,8] all-to-all(%p), replica_groups={{0,1},{2,3}}", 2, 128),
        ("f32[16,8] collective-permute(%p), source_target_pairs={{0,1},{1,0}}", 8, 512),
    ],
)
def test_bytes_of_each_kind(line, devices, sent):
    read = parse(program(f"ROOT %c = {line}"))
    assert read.partitions == 8
    (found,) = sendings_of(read.entry.root, read.entry, read)
    assert (found.devices, found.bytes) == (devices, sent)


def test_started_and_done_are_one_and_the_time_is_that_of_the_links():
    text = program(
        "%s = (f32[16,8], f32[128,8]) all-gather-start(%p), channel_id=1, "
        "replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}",
        "ROOT %d = f32[128,8]{1,0} all-gather-done(%s)",
    )
    target = dataclasses.replace(find_target("h200"), link=1e6)
    seen = cost_of(parse(text), target)
    (found,) = seen.collectives
    assert (found.kind, found.bytes, found.runs) == ("all-gather", 3584, 1)
    assert seen.seconds == pytest.approx(3584 / 1e6 + target.launch)
    assert max(time_by(seen.kernels, target).items(), key=lambda x: x[1])[0] == LINKS
    unknown = cost_of(parse(text), dataclasses.replace(target, link=0.0))
    assert unknown.seconds < 1e-5


def test_pieces_of_one_channel_are_one_collective():
    piece = "f32[128,8] all-gather(%p), channel_id=4, replica_groups={}"
    text = program(f"%a = {piece}", f"ROOT %b = {piece}")
    assert len(cost_of(parse(text), find_target("v5e")).collectives) == 1
    other = piece.replace("channel_id=4", "channel_id=5")
    text = program(f"%a = {piece}", f"ROOT %b = {other}")
    assert len(cost_of(parse(text), find_target("v5e")).collectives) == 2


def test_an_all_reduce_of_which_a_slice_is_kept_is_a_reduce_scatter():
    fused = (
        "%f (q: f32[16,8], i: s32[]) -> f32[2,8] {\n"
        "  %q = f32[16,8] parameter(0)\n  %i = s32[] parameter(1)\n"
        "  %r = f32[16,8] all-reduce(%q), channel_id=2, replica_groups={}\n"
        "  ROOT %s = f32[2,8] dynamic-slice(%r, %i, %i), dynamic_slice_sizes={2,8}\n}\n"
    )
    entry = (
        "ENTRY %main (p: f32[16,8], n: s32[]) -> f32[2,8] {\n"
        "  %p = f32[16,8] parameter(0)\n  %n = s32[] parameter(1)\n"
        "  ROOT %u = f32[2,8] fusion(%p, %n), kind=kCustom, calls=%f\n}"
    )
    (found,) = cost_of(parse(HEAD + fused + entry), find_target("v5e")).collectives
    assert (found.kind, found.bytes) == ("reduce-scatter", 448)


def test_a_collective_in_a_loop_runs_as_often_as_the_loop():
    text = f"""{HEAD}%body (t: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {{
  %t = (s32[], f32[16,8]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[16,8] get-tuple-element(%t), index=1
  %r = f32[16,8] all-reduce(%x), channel_id=2, replica_groups={{}}
  ROOT %o = (s32[], f32[16,8]) tuple(%i, %r)
}}
%condition (t: (s32[], f32[16,8])) -> pred[] {{
  %t = (s32[], f32[16,8]) parameter(0)
  ROOT %c = pred[] constant(true)
}}
ENTRY %main (t: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {{
  %t = (s32[], f32[16,8]) parameter(0)
  ROOT %w = (s32[], f32[16,8]) while(%t), condition=%condition, body=%body, \
backend_config={{"known_trip_count":{{"n":"12"}}}}
}}"""
    (found,) = cost_of(parse(text), find_target("h200")).collectives
    assert (found.runs, found.total_bytes) == (12, 12 * 896)
