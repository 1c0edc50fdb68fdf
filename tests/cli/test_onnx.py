"""``duotone rewrite``, ``view``, ``explain`` and ``compare`` of ONNX models."""

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from duotone.cli.main import app, run
from duotone.errors import ArgumentError, WriteError
from tests.onnx.models import MLP, model, old


@pytest.fixture
def path(tmp_path):
    onnx.save(model(MLP), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_rewrite_then_compare(path, tmp_path):
    out = tmp_path / "half.onnx"
    said = invoke("rewrite", path, "--out", out, "--keep-full", "Softmax")
    assert said.exit_code == 0
    assert "ONNX" in said.output
    assert [n.op_type for n in onnx.load(out).graph.node].count("Cast") == 2
    said = invoke("compare", path, out, "--json", tmp_path / "d.json")
    assert "no value differs by more than 16 steps of float16" in said.output
    assert (tmp_path / "d.json").read_text().startswith("{")


def test_compare_fails_where_a_result_is_infinite(path, tmp_path):
    out = tmp_path / "half.onnx"
    invoke("rewrite", path, "--out", out)
    np.savez(tmp_path / "x.npz", x=np.full((4, 8), 7e4, np.float32))
    said = invoke("compare", path, out, "--data", tmp_path / "x.npz")
    assert said.exit_code == 1
    assert " inf " in said.output
    assert invoke("compare", path, out, "--shapes", "x=4,8").exit_code == 0


def test_a_model_that_is_half_already_says_so(path, tmp_path):
    out = tmp_path / "half.onnx"
    assert "half as written" not in invoke("rewrite", path, "--out", out).output
    again = invoke("rewrite", out, "--out", tmp_path / "again.onnx").output
    for said in (again, invoke("view", out).output):
        assert "0 of 7 operations in half" in said
        assert "half as written: 5 operations, 2 of 2 on the allow list" in said


def test_a_name_that_is_too_long_is_an_error_that_says_so(path, tmp_path):
    with pytest.raises(WriteError, match=r"File name too long. Its name has 265 bytes"):
        invoke("rewrite", path, "--out", tmp_path / ("x" * 260 + ".onnx"))


def test_weights_that_are_inputs_become_constants_by_any_painter(tmp_path):
    onnx.save(old(), tmp_path / "old.onnx")
    out = tmp_path / "half.onnx"
    said = invoke(
        *("rewrite", tmp_path / "old.onnx", "--out", out), "--fold-inputs", "--painter", "mincut"
    )
    assert said.exit_code == 0
    assert [value.name for value in onnx.load(out).graph.input] == ["x"]


def test_a_rule_that_no_operation_has_is_answered(path):
    said = invoke("explain", path, "--rule", "deny")
    assert said.exit_code == 0
    assert "no operation has the rule deny; there are allow, downstream, state" in said.output


def test_a_model_is_converted_to_an_opset_first(tmp_path, caplog):
    onnx.save(model(MLP, opset=12), tmp_path / "m.onnx")
    out = tmp_path / "half.onnx"
    invoke("rewrite", tmp_path / "m.onnx", "--out", out, "--dtype", "bfloat16", "--opset", "13")
    assert onnx.load(out).opset_import[0].version == 13
    assert not caplog.records


def test_a_place_for_json_is_checked_before_models_run(path, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        run(["compare", str(path), str(path), "--json", str(tmp_path / "no" / "d.json")])
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert "mkdir -p" in said.err
    assert not said.out.strip()


def test_view_and_explain(path, tmp_path):
    assert "MatMul" in invoke("view", path, "--nodes", "*MatMul*").output
    said = invoke("explain", path, "--rule", "allow", "--json", tmp_path / "r.json")
    assert "MatMul" in said.output
    assert "4 of 5 operations in half" in invoke("view", tmp_path / "r.json").output


def test_a_policy_file(path, tmp_path):
    policy, out = tmp_path / "policy.toml", tmp_path / "same.onnx"
    policy.write_text('deny_add = ["MatMul"]')
    for command in (["rewrite", path, "--out", out], ["view", path]):
        said = invoke(*command, "--policy-file", policy, "--dtype", "float16")
        assert said.exit_code == 0
        assert "0 of 5 operations in half" in said.output


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["rewrite", "PATH", "--out", "x.onnx", "--fetch", "y"], "--fetch"),
        (["rewrite", "graph.pb", "--out", "x.pb", "--provider", "cuda"], "--provider"),
        (["rewrite", "graph.pb", "--out", "x.pb", "--fold-inputs"], "--fold-inputs"),
        (["compare", "PATH"], "another model"),
        (["compare", "PATH", "PATH", "--targets", "h100"], "--targets"),
        (["compare", "train.py:step"], "--targets"),
        (["explain", "PATH", "--shapes", "f32[2]"], "--shapes"),
    ],
)
def test_options_of_other_kinds_are_refused(path, words, names):
    with pytest.raises(ArgumentError, match=names):
        invoke(*(path if word == "PATH" else word for word in words))


def test_bfloat16_for_a_cpu_is_warned_of(path, tmp_path):
    """Catches: a model that ONNX Runtime refuses where people try it first."""
    out = tmp_path / "half.onnx"
    said = invoke("rewrite", path, "--out", out, "--dtype", "bfloat16")
    assert "ONNX Runtime's CPU has no kernels that compute in bfloat16" in said.output
    for options in (["--dtype", "float16"], ["--dtype", "bfloat16", "--provider", "cuda"]):
        said = invoke("rewrite", path, "--out", out, "--force", *options)
        assert said.exit_code == 0
        assert "no kernels" not in said.output
