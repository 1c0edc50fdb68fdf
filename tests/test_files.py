"""Atomic writes and report folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duotone._files import prepare_folder, write_atomically
from duotone.errors import ArgumentError


@pytest.mark.parametrize(
    ("content", "expected"), [("ä\n", "ä\n".encode()), (b"\x00\xff", b"\x00\xff")]
)
def test_the_file_has_the_content_and_nothing_else_is_left(tmp_path, content, expected):
    write_atomically(tmp_path / "a", "an older and longer content")
    write_atomically(tmp_path / "a", content)
    assert (tmp_path / "a").read_bytes() == expected
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a", "old")

    def refuse(self, target):
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no space"):
        write_atomically(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_file_may_be_read_by_whom_the_umask_allows(tmp_path):
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_a_folder_is_made_with_its_parents(tmp_path):
    assert prepare_folder(tmp_path / "a" / "b").is_dir()
    prepare_folder(tmp_path / "a" / "b")


@pytest.mark.parametrize("below", [".", "below", "below/deep"])
def test_a_file_in_the_way_is_named(tmp_path, below):
    (tmp_path / "taken").write_text("")
    with pytest.raises(ArgumentError, match=r"taken is a file\. Name a folder"):
        prepare_folder(tmp_path / "taken" / below)


def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ArgumentError, match=r"cannot make the folder .*new: Permission denied"):
        prepare_folder(tmp_path / "new")


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ArgumentError, match="permission denied"):
        prepare_folder(tmp_path)
