"""Reading traces: those that JAX writes here, and made ones of GPUs and TPUs."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from duotone.errors import TraceError
from duotone.profiling import wire
from duotone.profiling.read_trace import read_trace
from tests.profiling.xplanes import Event, gpu, kernel, plane, write


def test_what_ran_on_a_gpu(tmp_path: Path) -> None:
    lines = {
        "Stream #14(MemcpyH2D)": [Event("MemcpyH2D", 0, 1)],
        "Stream #13(Compute)": [
            kernel("sm90_xmma_gemm_f16f16", 10, 5, "dot.1"),
            kernel("loop_add_fusion", 16, 2, "add.2"),
        ],
        "XLA Ops": [Event("dot.1", 10, 5)],  # what TensorBoard's plugin adds, if it wrote the file
    }
    host = plane("/host:CPU", {"python": [Event("backend_compile", 2, 3)]})
    trace = read_trace(write(tmp_path / "made.xplane.pb", host, gpu(lines)))
    assert trace.platform == "GPU"
    assert [trace.kinds[n].kernel for n in trace.kind] == [
        "MemcpyH2D",
        "sm90_xmma_gemm_f16f16",
        "loop_add_fusion",
    ]
    assert [kind.operation for kind in trace.kinds if kind.module == "jit_step"] == [
        "dot.1",
        "add.2",
    ]
    assert {kind.program for kind in trace.kinds} == {None, 7}
    np.testing.assert_allclose(trace.start, [0, 10e3, 16e3])
    np.testing.assert_allclose(trace.end - trace.start, [1e3, 5e3, 2e3])
    np.testing.assert_allclose(trace.compilations, [[2e3, 5e3]])
    assert trace.devices["GPU:0"]["compute_cap_major"] == 9


def test_of_nested_operations_the_innermost_counts(tmp_path: Path) -> None:
    device = gpu({"Stream #1(Compute)": [kernel("k", 1, 1, "while.3::fusion.2")]})
    trace = read_trace(write(tmp_path / "made.xplane.pb", device))
    assert [kind.operation for kind in trace.kinds] == ["fusion.2"]


def test_what_ran_on_a_tpu(tmp_path: Path) -> None:
    """An operation there is named by its text; the program is that in whose run it began."""
    lines = {
        "XLA Modules": [Event("jit_step(12)", 0, 10), Event("jit_eval(13)", 20, 10)],
        "XLA Ops": [
            Event("%fusion.1 = f32[8]{0} fusion(%p)", 1, 4),
            Event("%fusion.1 = f32[8]{0} fusion(%p)", 21, 4),
            Event("%copy.2 = f32[8]{0} copy(%p)", 15, 1),
        ],
        "Steps": [Event("1", 0, 10)],
    }
    trace = read_trace(write(tmp_path / "made.xplane.pb", plane("/device:TPU:0", lines)))
    ran = [(trace.kinds[n].operation, trace.kinds[n].module) for n in trace.kind]
    assert ran == [("fusion.1", "jit_step"), ("copy.2", ""), ("fusion.1", "jit_eval")]
    assert {kind.program for kind in trace.kinds} == {12, 13, None}


def thunk(name: str, start: float, duration: float, number: int, line: str = "jit_step") -> Event:
    about = {"hlo_op": name, "hlo_module": line, "program_id": 8, "device_ordinal": 0, "_p": number}
    return Event(name, start, duration, about)


def test_an_operation_that_goes_on_after_its_launch_ends_when_it_is_done(tmp_path: Path) -> None:
    """Catches: the time of a launch taken for the time of an operation, on CPUs."""
    lines = {
        "worker/1": [
            thunk("dot.1", 0, 2, 1),
            thunk("add.2", 3, 2, 2),
            Event("end: add.2", 4.9, 0.1, {"_c": 2}),
            thunk("dot.1", 10, 1, 1 << 63 | 3),
        ],
        "worker/2": [
            Event("end: dot.1", 8, 0.1, {"_c": 1}),
            Event("end: dot.1", 17, 0.1, {"_c": 1 << 63 | 3}),
            Event("ThreadpoolListener::Record", 18, 0),
        ],
    }
    trace = read_trace(write(tmp_path / "made.xplane.pb", plane("/host:CPU", lines)))
    assert [trace.kinds[n].operation for n in trace.kind] == ["dot.1", "add.2", "dot.1"]
    np.testing.assert_allclose((trace.end - trace.start) / 1e3, [8, 2, 7])


def test_the_host_is_left_out_where_a_gpu_ran(tmp_path: Path) -> None:
    host = plane("/host:CPU", {"worker": [thunk("dot.1", 0, 2, 1)]})
    device = gpu({"Stream #1(Compute)": [kernel("k", 1, 1, "dot.1")]})
    trace = read_trace(write(tmp_path / "made.xplane.pb", host, device))
    assert [kind.device for kind in trace.kinds] == ["GPU:0"]


def test_a_piece_at_a_time_is_the_same_as_all_at_once(tmp_path: Path) -> None:
    events = [kernel(f"k{n % 3}", n, 0.5, f"op.{n % 5}") for n in range(300)]
    data = gpu({"Stream #1(Compute)": events[:200], "Stream #2(Compute)": events[200:]})
    (only,) = wire.planes(data)
    whole = list(wire.pieces(data, only))
    parts = list(wire.pieces(data, only, size=400))
    assert len(whole) == 1
    assert len(parts) > 20
    assert max(map(len, parts)) < len(data) / 10
    found = [_names(part) for part in parts]
    assert [name for names in found for name in names] == _names(whole[0])
    assert len(_names(whole[0])) == 300


def _names(space: bytes) -> list[str]:
    from jax.profiler import ProfileData

    data = ProfileData.from_serialized_xspace(space)
    return [event.name for p in data.planes for line in p.lines for event in line.events]


def test_a_compressed_trace(tmp_path: Path) -> None:
    device = gpu({"Stream #1(Compute)": [kernel("k", 1, 1, "dot.1")]})
    (tmp_path / "made.xplane.pb.gz").write_bytes(gzip.compress(device))
    assert len(read_trace(tmp_path / "made.xplane.pb.gz").kind) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"hello, this is not a trace at all", "is not a trace"),
        (b"\xff" * 64, "is not a trace"),
        (b"\x08\x01", "has no plane"),
        (b'{"traceEvents": []}', "is not a trace"),
    ],
)
def test_what_is_no_trace_is_an_error_that_names_the_file(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "made.xplane.pb"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=says) as error:
        read_trace(path)
    assert str(path) in str(error.value)


def test_of_a_trace_that_is_cut_short_the_rest_is_read(tmp_path: Path) -> None:
    """Catches: a trace of an hour that is lost for its last byte."""
    first = gpu({"Stream #1(Compute)": [kernel("k", 1, 1, "dot.1")]})
    second = gpu({"Stream #1(Compute)": [kernel("k", 1, 1, "dot.1")] * 50}, index=1)
    for left in range(len(first) + 1, len(first + second), 37):
        path = tmp_path / "made.xplane.pb"
        path.write_bytes((first + second)[:left])
        trace = read_trace(path)
        assert "GPU:0" in {kind.device for kind in trace.kinds}
        assert any("cut short" in note for note in trace.notes), left


def test_a_trace_in_which_nothing_ran_says_so(tmp_path: Path) -> None:
    host = plane("/host:CPU", {"python": [Event("PjitFunction(f)", 0, 1)]})
    trace = read_trace(write(tmp_path / "made.xplane.pb", host))
    assert trace.platform == ""
    assert trace.notes == ("no operation of JAX ran on a device while the trace was taken",)


def test_a_field_that_is_not_known_is_passed_over(tmp_path: Path) -> None:
    """A later version may say more."""
    device = gpu({"Stream #1(Compute)": [kernel("k", 1, 1, "dot.1")]})
    later = wire.message(9, b"something new")
    assert len(read_trace(write(tmp_path / "made.xplane.pb", device, later)).kind) == 1
