"""Policy files: their form, who wins, and errors that name the file."""

from __future__ import annotations

import json
import math

import jax.numpy as jnp
import pytest

import duotone
from duotone import Policy
from duotone.errors import CalibrationError, PolicyError, PolicyTypeError

TOML = """
painter = "mincut"
deny_add = ["tanh", "erf"]
keep_full = ["*/attention/*"]
ignore_performance = true
log_path = "logs"
calibration = "measured.json"

[ranges]
images = [-1, 1]
"params/*" = [-inf, 8.5]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that is not the current one, with what the file names."""
    (tmp_path / "logs").mkdir()
    duotone.calibrate(jnp.tanh, [(jnp.ones(2),)]).save(tmp_path / "measured.json")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "policy.toml").write_text(TOML)
    return tmp_path


def test_a_file_is_the_policy_that_its_fields_make(folder):
    wanted = Policy(
        painter="mincut",
        deny_add={"tanh", "erf"},
        keep_full=["*/attention/*"],
        ignore_performance=True,
        log_path=folder / "logs",
        calibration=duotone.Calibration.load(folder / "measured.json"),
        ranges={"images": (-1, 1), "params/*": (-math.inf, 8.5)},
    )
    assert Policy.from_file(folder / "policy.toml") == wanted
    assert Policy.from_file("../policy.toml") == wanted


def test_json_is_recognised_by_its_content(tmp_path):
    data = {"deny_add": ["tanh"], "ranges": {"x": [0, 1]}, "level": None}
    (tmp_path / "policy.txt").write_text("\n " + json.dumps(data))
    assert Policy.from_file(tmp_path / "policy.txt") == Policy(
        deny_add=["tanh"], ranges={"x": (0, 1)}
    )
    (tmp_path / "empty.toml").write_text("# nothing\n")
    assert Policy.from_file(tmp_path / "empty.toml") == Policy()


def test_code_wins_over_variables_and_these_over_the_file(folder):
    environ = {
        "DUOTONE_POLICY_FILE": str(folder / "policy.toml"),
        "DUOTONE_PAINTER": "duotone",
        "DUOTONE_DENYLIST_ADD": "exp",
    }
    policy = Policy(keep_full=["*/norm/*"], ranges={"images": (0, 255)}, log_path="..")
    merged = policy.merged_with_environment(environ)
    assert merged.painter == "duotone"  # its default, said by a variable
    assert merged.deny_add == {"tanh", "erf", "exp"}
    assert merged.keep_full == ("*/norm/*", "*/attention/*")
    assert dict(merged.ranges) == {"images": (0, 255), "params/*": (-math.inf, 8.5)}
    assert merged.log_path == folder / "elsewhere" / ".."
    assert merged.calibration is not None
    assert merged.merged_with_environment(environ) == merged
    assert f"policy file {folder}/policy.toml" in merged.describe()
    assert Policy().merged_with_environment({"DUOTONE_POLICY_FILE": ""}) == Policy()


def test_a_painted_function_follows_the_file(folder, monkeypatch):
    (folder / "policy.toml").write_text('deny_add = ["tanh"]')

    def rules():
        seen = duotone.explain(lambda x: jnp.tanh(x @ x) @ x, jnp.ones((8, 8)), dtype="float16")
        return {o.operation: o.rule for o in seen.operations}

    before = rules()
    monkeypatch.setenv("DUOTONE_POLICY_FILE", str(folder / "policy.toml"))
    assert before["tanh"] != rules()["tanh"] == "deny"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("dney_add = []", PolicyError, "no field 'dney_add': did you mean 'deny_add'?"),
        ("[tool]", PolicyError, "no field 'tool': it has painter, level, "),
        ('level = "FAST"', PolicyError, r"Policy\(level='FAST'\): it takes 'TENSOR_CORES_ONLY'"),
        ('painter = "mincot"', PolicyError, "did you mean 'mincut'?"),
        ('deny_add = "tanh"', PolicyTypeError, "a single string is not a list"),
        ("log_decisions = 1", PolicyTypeError, "it takes True or False"),
        ("ranges = 3", PolicyTypeError, "a dict of names and bounds"),
        ('log_path = "nowhere"', PolicyError, "there is no folder .*nowhere"),
        ("log_path = 3", PolicyTypeError, "log_path is 3; it takes a path"),
        ('calibration = "nowhere.json"', CalibrationError, "nowhere.json: No such file"),
        ('keep_full = ["a"]\nkeep_half = ["a"]', PolicyError, "drop it from one of these"),
        ("deny_add = [", PolicyError, "not valid TOML: .*lines such as"),
        ('{"deny_add": [}', PolicyError, "not valid JSON: "),
    ],
)
def test_mistakes_name_the_file_and_the_remedy(tmp_path, text, error, says):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(error, match=says) as raised:
        Policy.from_file(tmp_path / "policy.toml")
    if error is not CalibrationError:
        assert str(raised.value).startswith(str(tmp_path / "policy.toml"))


@pytest.mark.parametrize(
    ("text", "says"),
    [("[1, 2]", "holds a list; a policy file holds fields"), ("deny_add = []", "not valid JSON")],
)
def test_a_file_with_the_name_of_json_is_read_as_json(tmp_path, text, says):
    (tmp_path / "policy.json").write_text(text)
    with pytest.raises((PolicyError, PolicyTypeError), match=rf"policy\.json.* {says}"):
        Policy.from_file(tmp_path / "policy.json")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(
        PolicyError, match=r"policy file .*none\.toml: No such file.*Name a TOML or JSON"
    ):
        Policy.from_file(tmp_path / "none.toml")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PolicyError, match="it is not text"):
        Policy.from_file(tmp_path / "bytes")


def test_edits_of_file_and_code_that_contradict_each_other_name_both(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text('deny_add = ["tanh"]\nkeep_half = ["*/norm/*"]')
    environ = {"DUOTONE_POLICY_FILE": str(file)}
    with pytest.raises(PolicyError, match=rf"Policy\(allow_add=...\) and by policy file {file}"):
        Policy(allow_add=["tanh"]).merged_with_environment(environ)
    with pytest.raises(PolicyError, match=rf"Policy\(keep_full=...\) and in policy file {file}"):
        Policy(keep_full=["*/norm/*"]).merged_with_environment(environ)
