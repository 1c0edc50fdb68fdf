"""The variables that switch mixed precision on: which one wins, bad values, the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from duotone._switches import SWITCHES, read_switches
from duotone.errors import EnvironmentVariableError

BOTH = "TF_ENABLE_AUTO_MIXED_PRECISION"
REWRITE = f"{BOTH}_GRAPH_REWRITE"
SCALING = f"{BOTH}_LOSS_SCALING"


def parts(**environ: str) -> tuple[bool, bool]:
    found = read_switches(environ)
    return found.rewrite, found.loss_scaling


def test_nothing_is_on_by_default():
    assert read_switches({"HOME": "/"}) == (False, False, None, False)


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
    assert read_switches({"DUOTONE_DTYPE": ""}).dtype is None


@pytest.mark.parametrize("name", [BOTH, REWRITE, SCALING, "DUOTONE_ENABLE", "DUOTONE_DTYPE"])
def test_a_bad_value_names_the_variable_and_what_it_takes(name):
    with pytest.raises(EnvironmentVariableError, match=f"{name} is 'maybe'.*It takes") as caught:
        read_switches({name: "maybe"})
    # The advice, followed:
    assert f"unset {name}" in str(caught.value)
    assert read_switches({}) == (False, False, None, False)


def test_the_process_environment_is_read_by_default(monkeypatch):
    monkeypatch.setenv("DUOTONE_ENABLE", "1")
    assert read_switches().rewrite


def test_the_docs_list_every_switch():
    docs = (Path(__file__).parents[1] / "docs" / "environment.md").read_text()
    for row in SWITCHES:
        original = f"`{row.original}`" if row.original else "none"
        line = f"| {original} | `{row.duotone}` | {row.takes} | {row.effect} | `{row.example}` |"
        assert line in docs
