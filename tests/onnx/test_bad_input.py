"""Damaged models: an error that names what is wrong, and never a crash."""

import contextlib

import numpy as np
import pytest
from onnx import TensorProto, parser

import duotone.onnx
from duotone.errors import OnnxError
from tests.onnx.models import BRANCHES, FUNCTION, LOOP, MLP, model, old


def damaged(data, random):
    """Some bytes of a file changed, flipped, copied elsewhere or lost; or its end cut off."""
    changed = bytearray(data)
    how = random.integers(4)
    for _ in range(random.integers(1, 6)):
        position, size = (int(random.integers(1, most)) for most in (len(changed), 20))
        if how == 0:
            changed[position] = random.integers(256)
        elif how == 1:
            changed[position] ^= 1 << random.integers(8)
        elif how == 2:
            start = random.integers(len(changed))
            changed[position : position + size] = changed[start : start + size]
        else:
            del changed[position : position + size // 5]
    return changed[: random.integers(1, len(changed))] if random.random() < 0.1 else changed


def rewrite_damaged(tmp_path, seed, count):
    random = np.random.default_rng(seed)
    models = [model(text) for text in (BRANCHES, LOOP, MLP)] + [parser.parse_model(FUNCTION), old()]
    files = [made.SerializeToString() for made in models]
    path = tmp_path / "fuzzed.onnx"
    for _ in range(count):
        path.write_bytes(damaged(files[random.integers(len(files))], random))
        painter = ("duotone", "mincut", "tensorflow")[random.integers(3)]
        with contextlib.suppress(OnnxError):  # any other error fails
            duotone.onnx.rewrite(
                path,
                painter=painter,
                fold_inputs=bool(random.integers(2)),
                keep_io=bool(random.integers(2)),
            )


def test_damaged_bytes_are_an_error_or_a_model_and_never_a_crash(tmp_path):
    rewrite_damaged(tmp_path, seed=1, count=300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_damaged_files(tmp_path, seed):
    rewrite_damaged(tmp_path, seed, count=2000)


def test_too_few_operands_are_named():
    made = model(MLP)
    del made.graph.node[0].input[1]
    with pytest.raises(OnnxError, match=r"'h' \(MatMul\) has 1 of the 2 operands"):
        duotone.onnx.rewrite(made)


def test_a_result_of_another_type_than_the_file_says_is_named():
    made = model(MLP)
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    with pytest.raises(OnnxError, match="'y' is float32, and the file says int8"):
        duotone.onnx.rewrite(made)


def test_a_function_that_reads_what_nothing_makes_is_named():
    made = parser.parse_model(FUNCTION)
    made.functions[0].node[1].input[0] = "nothing"
    with pytest.raises(OnnxError, match="nothing"):
        duotone.onnx.rewrite(made)
