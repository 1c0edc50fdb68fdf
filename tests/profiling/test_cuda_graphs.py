"""Kernels of CUDA graphs, as JAX 0.11.2 traced them on an H100."""

from __future__ import annotations

import numpy as np

from duotone.profiling.cuda_graphs import name_kernels
from duotone.profiling.programs import Fact
from duotone.profiling.trace_events import EventKind, Trace

_FACT = Fact("fusion", "layer_1/norm", "add", "m.py:3", "bf16", 0.0, (), False, "", (), False)
_FACTS = {7: {"loop_add_fusion.2": _FACT, "cudnn-conv.1": _FACT}}


def traced(*named: tuple[str, str, float]) -> Trace:
    """A trace of kernels, each with its operation and its time."""
    kinds = tuple(EventKind("GPU:0", kernel, op, "jit_step", 7) for kernel, op, _ in named)
    start = np.arange(len(named)) * 100.0
    end = start + [seconds for _, _, seconds in named]
    return Trace(kinds, np.arange(len(named)), start, end, np.zeros((0, 2)), {}, {}, {})


def test_a_kernel_of_xla_gets_its_operation_and_no_scope():
    trace = traced(("loop_add_fusion_2", "command_buffer_1", 10.0))
    found, facts, (note,) = name_kernels(trace, _FACTS)
    assert found.kinds[0].operation == "loop_add_fusion_2"
    fact = facts[7]["loop_add_fusion_2"]
    assert (fact.dtype, fact.scope, fact.source) == ("bf16", "", "")
    assert note.startswith("100% of the time is in CUDA graphs")


def test_kernels_of_two_graphs_are_one_kind():
    trace = traced(("nvjet_a", "command_buffer", 1.0), ("nvjet_a", "command_buffer_12", 1.0))
    found, facts, _ = name_kernels(trace, _FACTS)
    assert [kind.operation for kind in found.kinds] == ["nvjet_a"]
    assert found.kind.tolist() == [0, 0]
    assert "nvjet_a" not in facts[7]


def test_what_is_in_no_graph_stays():
    trace = traced(("some_kernel", "cudnn-conv.1", 99.5), ("k", "command_buffer_1", 0.5))
    found, _, notes = name_kernels(trace, _FACTS)
    assert [kind.operation for kind in found.kinds] == ["cudnn-conv.1", "k"]
    assert notes == ()
    plain = traced(("some_kernel", "cudnn-conv.1", 1.0))
    assert name_kernels(plain, _FACTS)[0] is plain


def test_an_operation_of_that_name_is_itself():
    trace = traced(("k", "command_buffer_1", 1.0))
    facts = {7: {"command_buffer_1": _FACT}}
    assert name_kernels(trace, facts) == (trace, facts, ())
