"""``benchmarks.gpu_profile`` without a GPU: what it reads, and how it compares."""

from __future__ import annotations

from benchmarks import gpu_profile

_CSV = '''==PROF== Connected to process 1
"ID","Process ID","Kernel Name","sm__inst_executed_pipe_tensor.sum"
"","","","inst"
"0","1","void gemm<(int)1>(float *)","1,024"
"1","1","loop_fusion","0"
"2","1","loop_fusion","0"
'''


def test_the_rows_of_the_counters_are_read():
    seen = gpu_profile.read(_CSV, ["sm__inst_executed_pipe_tensor.sum"])
    assert seen == {"void gemm<(int)1>(float *)": True, "loop_fusion": False}


def test_names_are_compared_with_what_was_counted():
    said = {"a": "yes", "b": "yes", "void c": "no", "d": "unknown"}
    seen = {"a(int)": True, "b": False, "c": False, "d": True, "e": True}
    found = gpu_profile.compared(said, seen)
    assert found == {"right": 2, "unknown": ["d"], "wrong": ["b"], "only counted": ["e"]}
