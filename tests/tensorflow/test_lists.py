"""The lists, their gates, and edits by policy and environment."""

from __future__ import annotations

import lzma

import pytest

from duotone.errors import ArgumentError, PolicyError, UnknownOperationError
from duotone.ops.entries import Kind
from duotone.policy.policy import Policy
from duotone.tensorflow import Device
from duotone.tensorflow.lists import default_lists
from duotone.tensorflow.op_registry import _FILE, attribute_values, find_op, has_kernel, op_names
from tests.tensorflow.painted import Builder, half, placeholder, rewrite

PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"


def sizes(dtype, **device):
    lists = default_lists(dtype, Device(**device))
    return tuple(len(lists.ops(kind)) for kind in (Kind.ALLOW, Kind.DENY, Kind.INFER, Kind.CLEAR))


def test_sizes_of_the_lists():
    assert sizes("float16") == (39, 9, 43, 110)
    assert sizes("float16", cuda=9000, cudnn=7000) == (29, 9, 43, 110)
    assert sizes("bfloat16") == (14, 7, 48, 111)


def test_every_listed_op_of_the_release_is_known_but_for_those_of_other_builds():
    lists = default_lists("float16")
    unknown = lists.entries.keys() - op_names()
    assert len(unknown) < 20
    assert not unknown & {"MatMul", "Exp", "Add", "Relu"}


def chain():
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="m")
    b.add("MatMul", b.add("Cos", m, name="c"), "c", name="n")
    return b.graph


def test_edits_from_code_and_environment(monkeypatch):
    assert half(rewrite(chain())) == ["m", "n"]
    assert half(rewrite(chain(), policy=Policy(infer_add=["Cos"]))) == ["m", "c", "n"]
    assert half(rewrite(chain(), policy=Policy(allow_remove=["MatMul"]))) == []
    monkeypatch.setenv(f"{PREFIX}WHITELIST_REMOVE", "MatMul")
    assert half(rewrite(chain())) == []
    monkeypatch.setenv(f"{PREFIX}ALLOWLIST_REMOVE", "Conv2D")
    assert half(rewrite(chain())) == []


def test_an_op_on_two_lists_is_an_error_that_says_what_to_do():
    with pytest.raises(
        PolicyError, match="conflicting entries: Exp is on the deny list and on the"
    ):
        rewrite(chain(), policy=Policy(clear_add=["Exp"]))
    assert half(rewrite(chain(), policy=Policy(clear_add=["Exp"], deny_remove=["Exp"])))


def test_an_unknown_op_in_an_edit():
    with pytest.raises(UnknownOperationError, match=r"'MatMull'.*did you mean 'MatMul'"):
        rewrite(chain(), policy=Policy(deny_add=["MatMull"]))


def test_bad_options():
    with pytest.raises(ArgumentError, match="'int8'"):
        rewrite(chain(), dtype="int8")
    with pytest.raises(ArgumentError, match="'greedy'"):
        rewrite(chain(), painter="greedy")
    with pytest.raises(PolicyError, match="UNSAFE_FORCE_ALL does not exist for bfloat16"):
        rewrite(chain(), dtype="bfloat16", policy=Policy(level="UNSAFE_FORCE_ALL"))


def test_kernels_fit_by_all_their_constraints():
    assert has_kernel("Relu", "GPU", "", {"T": (19,)})
    assert not has_kernel("Relu", "GPU", "no such label", {"T": (19,)})
    assert not has_kernel("Relu", "GPU", "", {})
    assert has_kernel("Identity", "NPU", "", {"T": (19,)})  # for every device
    assert not has_kernel("MatMul", "NPU", "", {"T": (19,)})


def test_defaults_count_for_the_kernel():
    b = Builder()
    b.add("FusedBatchNormV3", *[placeholder(b)] * 5, name="norm")
    definition = find_op("FusedBatchNormV3")
    assert definition is not None
    assert attribute_values(b.graph.node[-1], definition) == {"T": (1,), "U": (1,)}


def test_the_packed_registry_is_small_and_whole():
    assert _FILE.stat().st_size < 100_000
    assert lzma.decompress(_FILE.read_bytes())[:1] == b"{"
    assert len(op_names()) == 1910


def test_nodes_can_be_kept_full_by_name():
    b = Builder()
    m = b.add("MatMul", placeholder(b), "x", name="block_0/m")
    b.add("MatMul", m, m, name="block_1/m")
    assert half(rewrite(b.graph, policy=Policy(keep_full=["block_0/*"]))) == ["block_1/m"]


def test_a_pattern_that_no_node_is_called_by_is_reported(caplog):
    b = Builder()
    b.add("MatMul", placeholder(b), "x", name="block_0/m")
    rewrite(b.graph, policy=Policy(keep_full=["block_0/*", "blok_0/m"]))
    (said,) = caplog.messages
    assert "'blok_0/m'" in said
    assert "nearest is 'block_0/m'" in said


def test_what_a_policy_says_of_jax_alone_is_refused():
    with pytest.raises(PolicyError, match=r"keep_half=.* is for JAX programs.*allow, infer"):
        rewrite(chain(), policy=Policy(keep_half=["*"]))
    with pytest.raises(PolicyError, match=r"float32_math=.* is for JAX programs"):
        rewrite(chain(), policy=Policy(float32_math="tf32"))


def test_math_of_the_environment_is_of_jax_programs(monkeypatch):
    monkeypatch.setenv("DUOTONE_FLOAT32_MATH", "tf32")
    monkeypatch.setenv("TF_ENABLE_CUBLAS_TENSOR_OP_MATH_FP32", "1")
    assert rewrite(chain()).casts
    with pytest.raises(PolicyError, match=r"ranges=.* is for JAX programs"):
        rewrite(chain(), policy=Policy(ranges={"x": (0, 1)}))
