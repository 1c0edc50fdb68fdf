"""ONNX's own backend test suite: what runs in float32 runs rewritten, with the same types."""

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.model import collect_testcases as model_cases
from onnx.backend.test.case.node import collect_testcases as node_cases
from onnx.backend.test.loader import DATA_DIR

import duotone.onnx
from duotone.errors import OnnxError
from duotone.onnx import running

TOLERANCE = 5e-3


def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [*node_cases(None), *model_cases()]
    return [case for case in found if case.model is not None and case.data_sets]


def stored(kind):
    """The cases of a kind that come as files, most of them of IR version 3."""
    return sorted(Path(DATA_DIR, kind).glob("*/model.onnx"))


def feed_of(path, model):
    """The data of a stored case: of the inputs that have no default."""
    initial = {tensor.name for tensor in model.graph.initializer}
    needed = [value for value in model.graph.input if value.name not in initial]
    feed = {}
    for number, value in enumerate(needed):
        data = (path.parent / f"test_data_set_0/input_{number}.pb").read_bytes()
        if not value.type.HasField("tensor_type"):
            return None
        feed[value.name] = numpy_helper.to_array(onnx.TensorProto.FromString(data))
    return feed


def is_float(model):
    values = (*model.graph.input, *model.graph.output)
    return any(v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for v in values)


def problem(case):
    """A sentence on what is wrong with a rewritten case; none if it does not run in float32."""
    model = case.model
    arrays = case.data_sets[0][0]
    feed = {value.name: array for value, array in zip(model.graph.input, arrays, strict=False)}
    return problem_of(model, feed)


def problem_of(model, feed):
    try:
        expected = running.run(running.session(model), None, feed)
    except OnnxError:
        return None
    made = duotone.onnx.rewrite(model).model
    if any(
        [(value.name, value.type) for value in getattr(model.graph, side)]
        != [(value.name, value.type) for value in getattr(made.graph, side)]
        for side in ("input", "output")
    ):
        return "other types"
    got = running.run(running.session(made), None, feed)
    for a, b in zip(expected, got, strict=True):
        if not isinstance(a, np.ndarray):
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            return "another dtype or shape"
        if a.dtype == np.float32:
            scale = np.max(np.abs(a), initial=1e-3, where=np.isfinite(a))
            if not np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True):
                return "other numbers"
        elif a.dtype.kind in "iub" and not (a == b).all():
            return "other whole numbers"
    return None


def problems(some):
    found = {case.name: problem(case) for case in some if is_float(case.model)}
    return {name: what for name, what in found.items() if what}


def test_a_sample_of_the_backend_suite():
    sample = [c for c in cases() if c.name.startswith(("test_if", "test_loop", "test_scan"))]
    sample += [c for c in cases() if c.name.startswith(("test_max_", "test_gemm", "test_sequence"))]
    assert len(sample) > 20
    assert not problems(sample)


@pytest.mark.slow
def test_the_backend_suite():
    assert not problems(cases())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["simple", "pytorch-converted", "pytorch-operator"])
def test_the_stored_cases(kind):
    found, seen = {}, 0
    for path in stored(kind):
        model = onnx.load(path)
        feed = feed_of(path, model)
        if feed is None or not is_float(model):
            continue
        seen += 1
        what = problem_of(model, feed)
        if what:
            found[path.parent.name] = what
    assert seen >= {"simple": 7, "pytorch-converted": 80, "pytorch-operator": 29}[kind]
    assert not found
