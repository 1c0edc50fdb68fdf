"""The containers' files: in step with pyproject.toml, pinned, not root, nothing secret in them."""

from __future__ import annotations

import fnmatch
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
DOCKERFILES = [ROOT / "docker" / "Dockerfile", ROOT / "docker" / "Dockerfile.custom"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = (ROOT / "docker" / "constraints.txt").read_text()
EXTRAS = PROJECT["optional-dependencies"]


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile and their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(name, rest) for name, rest in lines]


def argument(name: str) -> str:
    values = [rest for kind, rest in instructions(DOCKERFILES[0]) if kind == "ARG"]
    (value,) = [rest.split("=")[1] for rest in values if rest.split("=")[0] == name]
    return value


def pins(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {normal(name): version for name, version in (line.split("==") for line in lines)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(extras: list[str]) -> list[Requirement]:
    """What the project needs with these extras, and those that they name."""
    found = [Requirement(line) for line in PROJECT["dependencies"]]
    for extra in extras:
        for needed in map(Requirement, EXTRAS[extra]):
            found += requirements(list(needed.extras)) if needed.name == "duotone" else [needed]
    return found


def test_base_is_a_python_that_the_project_supports():
    image, _, tag = argument("BASE").partition(":")
    assert image == "python"
    version = re.match(r"(\d+\.\d+)\.\d+-slim-\w+$", tag)  # a patch release: pinned
    assert version
    assert version[1] in SpecifierSet(PROJECT["requires-python"])
    assert f"Programming Language :: Python :: {version[1]}" in PROJECT["classifiers"]


def test_constraints_pin_what_the_project_and_its_extras_need():
    pinned = pins(CONSTRAINTS)
    extras = argument("EXTRAS").split(",")
    for needed in requirements(extras):
        assert pinned[normal(needed.name)] in needed.specifier, needed


def test_a_requirement_that_moved_on_is_seen(monkeypatch):
    monkeypatch.setitem(EXTRAS, "flax", ["flax>=99"])
    with pytest.raises(AssertionError, match="flax"):
        test_constraints_pin_what_the_project_and_its_extras_need()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_the_program_does_not_run_as_root(path):
    users = [rest for kind, rest in instructions(path) if kind == "USER"]
    assert users[-1].isdigit()
    assert int(users[-1]) > 0


def test_both_files_run_as_the_same_user():
    users = {[rest for kind, rest in instructions(p) if kind == "USER"][-1] for p in DOCKERFILES}
    assert len(users) == 1
    assert f"--uid {users.pop()} " in DOCKERFILES[0].read_text()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_nothing_secret_and_nothing_from_the_network_but_by_pip(path):
    text = path.read_text()
    assert not re.search(r"(?i)password|secret|token|api_?key|\bnetrc\b", text)
    assert not re.search(r"\bADD\b|curl |wget |git clone|--index-url|--trusted-host", text)


def test_what_is_copied_is_there_and_not_ignored():
    ignored, back = [], []
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            (back if line.startswith("!") else ignored).append(line.lstrip("!"))
    assert "*" in ignored
    copied = []
    for kind, rest in instructions(DOCKERFILES[0]):
        if kind == "COPY" and "--from" not in rest:
            copied += [word for word in rest.split()[:-1] if not word.startswith("--")]
    assert len(copied) > 4
    for name in copied:
        assert (ROOT / name).exists(), name
        assert any(fnmatch.fnmatch(name, pattern) for pattern in back), name
    assert set(back) == set(copied)  # nothing else travels


def test_what_the_base_image_has_is_kept():
    kept = runpy.run_path(str(ROOT / "docker" / "keep.py"))["kept"]
    text = kept("# why\njax==0.12.0\nml_dtypes==0.6.0\nrich==15.0.0\n", {"Rich": "15.1.0"})
    assert text == "jax==0.12.0\nml_dtypes==0.6.0\nrich==15.1.0\n"
    text = kept("flax==0.12.12\njax==0.12.0\n", {"jax": "0.11.1+nv"})
    assert text == "jax==0.11.1+nv\n"  # pip looks for a Flax that fits
    text = kept("ml_dtypes==0.6.0\n", {"ml-dtypes": "0.5.1"})
    assert pins(text) == {"ml-dtypes": "0.5.1"}


def test_the_page_names_what_the_files_say():
    page = (ROOT / "docs" / "containers.md").read_text()
    assert argument("BASE") in page
    assert f"EXTRAS={argument('EXTRAS')}" in page or f"`{argument('EXTRAS')}`" in page
    for path in DOCKERFILES:
        assert f"docker/{path.name}" in page
