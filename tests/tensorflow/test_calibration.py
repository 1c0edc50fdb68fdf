"""Calibration of TensorFlow graphs: ranges that decide, and ranges that TensorFlow measures."""

from __future__ import annotations

import numpy as np
import pytest

import duotone.tensorflow
from duotone.errors import CalibrationError
from duotone.precision.ranges.find import Measured
from duotone.tensorflow import files, rewrite, rewrite_file
from duotone.tensorflow.protos import FLOAT
from tests.tensorflow import graphs
from tests.tensorflow.graphdefs import Builder
from tests.tensorflow.in_tensorflow import needs_tensorflow
from tests.tensorflow.painted import half
from tests.tensorflow.test_painting import matrix


def _network() -> Builder:
    b = Builder()
    x = b.add("Placeholder", name="x", dtype=FLOAT, shape=(32, 32))
    first = b.add("MatMul", x, matrix(b), name="first")
    b.add("Identity", b.add("MatMul", first, matrix(b), name="second"), name="y")
    return b


def test_a_value_that_was_measured_too_large_is_float32():
    b = _network()
    assert {"first", "second"} <= set(half(rewrite(b.graph, fetch=["y"])))
    large = {"first:0": Measured(-3e5, 3e5, 0.0)}
    result = rewrite(b.graph, fetch=["y"], measured=large)
    assert not {"first", "second"} & set(half(result))
    assert {d.rule for d in result.decisions if d.node == "first"} == {"overflow"}


def test_bfloat16_holds_it():
    large = {"first:0": Measured(-3e5, 3e5, 0.0)}
    b = Builder()
    x = b.add("Placeholder", name="x", dtype=FLOAT, shape=(256, 256))
    b.add("Identity", b.add("MatMul", x, matrix(b, 256), name="first"), name="y")
    assert "first" in half(rewrite(b.graph, fetch=["y"], dtype="bfloat16", measured=large))


def test_only_frozen_graphs_are_measured(tmp_path):
    files.write(tmp_path / "meta.pb", graphs.meta_graph())
    with pytest.raises(CalibrationError, match="calibrate a frozen GraphDef"):
        duotone.tensorflow.calibrate(tmp_path / "meta.pb", {"x": np.zeros((4, 4), np.float32)})


class TestInTensorFlow:
    """Measures in TensorFlow."""

    pytestmark = needs_tensorflow

    def test_a_graph_is_measured(self, tf, tmp_path):
        del tf
        files.write(tmp_path / "in.pb", _network().graph)
        data = {"x": np.full((32, 32), 1e4, np.float32)}
        found = duotone.tensorflow.calibrate(tmp_path / "in.pb", data)
        assert found["x:0"] == Measured(1e4, 1e4, 0.0)
        assert found["first:0"].high > 6e4
        np.savez(tmp_path / "data.npz", x=data["x"])
        done = rewrite_file(tmp_path / "in.pb", calibration=tmp_path / "data.npz").graphs[0]
        assert "first" not in half(done.result)
        assert "first" in half(rewrite_file(tmp_path / "in.pb").graphs[0].result)

    def test_inputs_without_a_finite_number(self, tf, tmp_path):
        del tf
        files.write(tmp_path / "in.pb", _network().graph)
        data = {"x": np.full((32, 32), np.nan, np.float32)}
        with pytest.raises(CalibrationError, match="'x'"):
            duotone.tensorflow.calibrate(tmp_path / "in.pb", data)
