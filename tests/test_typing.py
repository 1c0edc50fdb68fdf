"""What a type checker and an editor know of duotone: results have types, mistakes are flagged."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import duotone
from duotone import Policy
from duotone.errors import PolicyTypeError

ROOT = Path(duotone.__file__).parents[1]
PROGRAM = """
import optax
from typing import Any, assert_type

import duotone

opt = duotone.enable_mixed_precision_graph_rewrite(optax.adam(1e-3), dtype="float16")
assert_type(opt, duotone.MixedPrecisionOptimizer)
assert_type(duotone.optimizer_from_environment(optax.sgd(1e-3)), duotone.MixedPrecisionOptimizer)
opt.minimize, opt.metrics, opt.init

duotone.Policy(keep_full=["a/*"], deny_add={"exp"}, keep_half=("b",), allow_add=frozenset("c"))
duotone.Policy(keep_full="a/*")  # line 13
duotone.Policy(deny_add="exp")  # line 14
opt.minimise  # line 15
"""


@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="no pyright here")
def test_pyright_knows_results_and_flags_one_string_for_several(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {e["range"]["start"]["line"] + 1: e for e in found if e["severity"] == "error"}
    assert sorted(errors) == [13, 14, 15], found
    assert "str" in errors[13]["message"]
    assert "minimise" in errors[15]["message"]


def test_one_string_for_several_is_an_error_at_run_time_too() -> None:
    with pytest.raises(PolicyTypeError, match="keep_full"):
        Policy(keep_full="a/*")  # pyright: ignore[reportArgumentType]


def test_dir_has_public_names_only() -> None:
    names = [name for name in dir(duotone) if not name.startswith("__")]
    assert set(names) >= set(duotone.__all__)
    assert set(names) - set(duotone.__all__) == {"errors", "keras", "linen", "nnx", "onnx"}
