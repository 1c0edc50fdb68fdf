"""Devices: strings as TensorFlow reads them, and the kernels that a device has."""

from __future__ import annotations

import pytest

from duotone.errors import ArgumentError
from duotone.policy.policy import Policy
from duotone.tensorflow import Device
from duotone.tensorflow.devices import parse_device
from tests.tensorflow.painted import Builder, half, placeholder, rewrite

ON_GPU = ["", "/gpu:0", "/GPU:3", "/device:GPU:0", "/job:w/replica:0/task:1/device:XLA_GPU:0"]
NOT_ON_GPU = [
    "/cpu:0",
    "/device:GPU",
    "/device:GPU:*",
    "GPU:0",
    "/job:gpu",
    "/job:gpu/device:CPU:0",
]


@pytest.mark.parametrize("device", ON_GPU + NOT_ON_GPU)
def test_the_device_part_of_a_string_decides(device):
    b = Builder()
    b.add("MatMul", placeholder(b), "x", name="m")
    b.graph.node[-1].device = device
    assert half(rewrite(b.graph)) == (["m"] if device in ON_GPU else [])


def test_the_last_device_part_counts():
    assert parse_device("/device:GPU:0/device:CPU:1").is_on("cpu")
    assert not parse_device("/device:GPU:0/device:CPU:1").is_on("gpu")


def test_a_cast_is_on_the_device_of_what_it_casts():
    b = Builder()
    b.add("Cos", placeholder(b), name="c")
    b.graph.node[-1].device = "/cpu:0"
    b.add("MatMul", "c", "c", name="m")
    added = rewrite(b.graph).graph_def.node[-1]
    assert (added.name, added.device) == ("c-0-CastToFp16-0-AutoMixedPrecision", "/cpu:0")


def test_a_device_type_in_lower_case_is_processed_but_has_no_kernels():
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    b.add("Relu", m, name="r")
    b.graph.node[-1].device = "/device:gpu:0"
    b.add("MatMul", "r", "r", name="n")
    assert half(rewrite(b.graph)) == ["m", "n"]


def test_an_old_gpu_gains_nothing():
    b = Builder()
    b.add("MatMul", placeholder(b), "x", name="m")
    old = Device(compute_capability=(6, 1))
    assert not half(rewrite(b.graph, device=old))
    assert half(rewrite(b.graph, device=old, policy=Policy(ignore_performance=True))) == ["m"]


def test_float16_without_a_gpu_leaves_the_graph_alone():
    b = Builder()
    b.add("MatMul", placeholder(b), "x", name="m")
    assert not half(rewrite(b.graph, device=Device("cpu")))
    assert half(rewrite(b.graph, dtype="bfloat16")) == ["m"]


def test_bfloat16_on_a_machine_with_a_gpu_is_for_the_nodes_on_the_cpu():
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    b.add("MatMul", m, m, name="n")
    b.graph.node[-1].device = "/cpu:0"
    assert half(rewrite(b.graph, dtype="bfloat16", device=Device("gpu"))) == ["n"]


def test_versions_gate_the_allow_list():
    b = Builder()
    b.add("BatchMatMul", placeholder(b), "x", name="m")
    assert half(rewrite(b.graph)) == ["m"]
    assert not half(rewrite(b.graph, device=Device(cuda=9000)))


def test_a_device_that_does_not_exist():
    with pytest.raises(ArgumentError, match="'npu'"):
        Device("npu")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="two whole numbers"):
        Device(compute_capability=(8,))  # type: ignore[arg-type]
