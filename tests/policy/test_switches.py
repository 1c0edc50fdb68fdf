"""The variables that switch mixed precision on: which one wins, bad values, the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from duotone.errors import EnvironmentVariableError
from duotone.policy.environment import KNOWN, SWITCH_NAMES
from duotone.policy.policy import Policy
from duotone.policy.switches import read_switches

BOTH = "TF_ENABLE_AUTO_MIXED_PRECISION"
REWRITE = f"{BOTH}_GRAPH_REWRITE"
SCALING = f"{BOTH}_LOSS_SCALING"


def parts(**environ: str) -> tuple[bool, bool]:
    found = read_switches(environ)
    return found.rewrite, found.loss_scaling


def test_nothing_is_on_by_default():
    assert read_switches({"HOME": "/"}) == (False, False, None, False, "dynamic")


@pytest.mark.parametrize("name", [BOTH, "DUOTONE_ENABLE"])
def test_one_switch_for_both_parts(name):
    assert parts(**{name: "1"}) == (True, True)
    assert parts(**{name: "0"}) == (False, False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (REWRITE, (True, False)),
        (SCALING, (False, True)),
        ("DUOTONE_ENABLE_GRAPH_REWRITE", (True, False)),
        ("DUOTONE_ENABLE_LOSS_SCALING", (False, True)),
    ],
)
def test_each_part_alone(name, expected):
    assert parts(**{name: "1"}) == expected


def test_a_part_of_its_own_wins_over_the_switch_for_both():
    assert parts(**{BOTH: "1", SCALING: "0"}) == (True, False)
    assert parts(DUOTONE_ENABLE="0", DUOTONE_ENABLE_LOSS_SCALING="1") == (False, True)


def test_duotones_names_win_over_tensorflows():
    assert parts(**{"DUOTONE_ENABLE": "0", BOTH: "1", REWRITE: "1", SCALING: "1"}) == (False, False)
    # What was not read may hold anything.
    assert parts(**{"DUOTONE_ENABLE": "1", BOTH: "perhaps"}) == (True, True)


def test_found_says_whether_somebody_chose():
    assert read_switches({BOTH: "0"}).found
    assert not read_switches({"DUOTONE_DTYPE": "float16"}).found


def test_the_half_type():
    assert read_switches({"DUOTONE_DTYPE": " Float16 "}).dtype == "float16"
    assert read_switches({"DUOTONE_DTYPE": "bf16"}).dtype == "bfloat16"
    assert read_switches({"DUOTONE_DTYPE": ""}).dtype is None


def test_the_loss_scale():
    for text, scale in (
        (" Dynamic ", "dynamic"),
        ("", "dynamic"),
        ("NONE", None),
        ("2e3", 2000.0),
        ("0.5", 0.5),
    ):
        assert read_switches({"DUOTONE_LOSS_SCALE": text}).loss_scale == scale


@pytest.mark.parametrize("text", ["1e-40", "nan", "inf", "1e39", "-1024"])
def test_a_number_that_is_no_loss_scale(text):
    with pytest.raises(EnvironmentVariableError, match=r"not a loss scale.*a number from 2"):
        read_switches({"DUOTONE_LOSS_SCALE": text})


def test_the_optimizer_takes_the_loss_scale_where_it_was_not_given_another(monkeypatch):
    import optax

    import duotone

    def scale_of(**given):
        opt = duotone.optimizer_from_environment(optax.sgd(0.1), dtype="float16", **given)
        state = opt.find_state(opt.init(1.0))
        return type(state.loss_scale).__name__, float(state.loss_scale.value)

    monkeypatch.setenv("DUOTONE_LOSS_SCALE", "1024")
    assert scale_of() == ("NoLossScale", 1.0)  # says which, not whether
    for part in ("DUOTONE_ENABLE", "DUOTONE_ENABLE_LOSS_SCALING"):
        monkeypatch.setenv(part, "1")
        assert scale_of() == ("FixedLossScale", 1024.0)
        assert scale_of(loss_scale=64) == ("FixedLossScale", 64.0)
        monkeypatch.delenv(part)
    monkeypatch.setenv("DUOTONE_ENABLE", "1")
    monkeypatch.setenv("DUOTONE_LOSS_SCALE", "none")
    assert scale_of() == ("NoLossScale", 1.0)


def test_float32_switches_both_parts_off():
    environ = {BOTH: "1", "DUOTONE_DTYPE": "fp32"}
    assert read_switches(environ) == (False, False, None, True, "dynamic")


def test_a_variable_that_does_not_exist_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr("duotone.policy.environment._REPORTED", set())
    for _ in range(2):
        read_switches({"DUOTONE_ENABEL": "1", "HOME": "/"})
        Policy().merged_with_environment({"DUOTONE_ENABEL": "1", "DUOTONE_DENY_ADD": "exp"})
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith("environment variable DUOTONE_ENABEL: duotone has none")
    assert "did you mean 'DUOTONE_ENABLE'?" in first
    assert "did you mean 'DUOTONE_DENYLIST_ADD'?" in second


def test_every_switch_is_known():
    assert set(SWITCH_NAMES) <= set(KNOWN)


@pytest.mark.parametrize(
    "name",
    [BOTH, REWRITE, SCALING, "DUOTONE_ENABLE", "DUOTONE_DTYPE", "DUOTONE_LOSS_SCALE"],
)
def test_a_bad_value_names_the_variable_and_what_it_takes(name):
    with pytest.raises(EnvironmentVariableError, match=f"{name} is 'maybe'.*It takes") as caught:
        read_switches({name: "maybe"})
    # The advice, followed:
    assert f"unset {name}" in str(caught.value)
    assert read_switches({}) == (False, False, None, False, "dynamic")


def test_the_process_environment_is_read_by_default(monkeypatch):
    monkeypatch.setenv("DUOTONE_ENABLE", "1")
    assert read_switches().rewrite


@pytest.mark.parametrize("name", SWITCH_NAMES)
def test_the_docs_list_every_switch(name):
    docs = (Path(__file__).parents[2] / "docs" / "environment.md").read_text().splitlines()
    (row,) = [line for line in docs if f" | `{name}` | " in line]
    original, example = row.split(" | ")[0], row.split("`")[-2]
    assert original in ("| none", f"| `{name.replace('DUOTONE_ENABLE', BOTH)}`")
    assert read_switches({name: example}) != read_switches({})
