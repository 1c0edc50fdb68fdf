"""Atomic writes, what they leave behind and keep, and report folders."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from duotone import _files
from duotone._files import check_writable, folder_in_one_step, prepare_folder, write_atomically
from duotone.errors import ArgumentError, WriteError


def modes(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


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


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_may_be_read_by_whom_the_umask_allows(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert modes(tmp_path / "a") == mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_an_existing_file_keeps_its_mode(tmp_path, mode):
    """Catches: a report that only its owner could read, open to all after the next run."""
    (tmp_path / "a").touch()
    (tmp_path / "a").chmod(mode)
    write_atomically(tmp_path / "a", "new")
    assert modes(tmp_path / "a") == mode


def test_a_link_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "real").write_text("old")
    for name, there in (("one", True), ("two", False)):
        target = tmp_path / "disk" / ("real" if there else "new")
        (tmp_path / name).symlink_to(target)
        write_atomically(tmp_path / name, name)
        assert (tmp_path / name).is_symlink()
        assert target.read_text() == name
    assert sorted(p.name for p in (tmp_path / "disk").iterdir()) == ["new", "real"]


def test_the_longest_name_that_the_file_system_takes(tmp_path):
    """Catches: a temporary name that is longer than the file's own."""
    name = "x" * os.pathconf(tmp_path, "PC_NAME_MAX")
    write_atomically(tmp_path / name, "text")
    assert (tmp_path / name).read_text() == "text"


def test_a_name_that_is_too_long_is_named(tmp_path):
    path = tmp_path / ("x" * 300)
    for write in (check_writable, lambda p: write_atomically(p, "text")):
        with pytest.raises(WriteError, match=r"xxx: File name too long\. .* 300 bytes"):
            write(path)
    write_atomically(path.with_name("x"), "text")  # the advice, followed


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "Free some space"), (errno.EROFS, "may write to"), (errno.EIO, "another file")],
)
def test_what_the_file_system_refuses_is_named_with_a_remedy(tmp_path, monkeypatch, number, remedy):
    write_atomically(tmp_path / "a", "old")

    def refuse(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(WriteError, match=f"a: {os.strerror(number)}\\. .*{remedy}") as e:
        write_atomically(tmp_path / "a", "new")
    assert e.value.errno == number
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_really_full_disk(tmp_path):
    """A limit of the process simulates a full disk: the kernel refuses in the middle of a write."""
    script = """
        import resource, signal, sys
        from pathlib import Path
        from duotone import _files
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        _files.write_atomically(Path("a"), b"x" * 5000)
    """
    (tmp_path / "a").write_text("old")
    done = python(script, tmp_path)
    assert "WriteError: cannot write a: File too large. Name a file on a disk" in done.stderr
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for write in (check_writable, lambda p: write_atomically(p, "text")):
        with pytest.raises(WriteError, match=r"pipe: it is not a regular file\. Name a file"):
            write(tmp_path / "pipe")
        with pytest.raises(WriteError, match="it is a folder"):
            write(tmp_path)


def test_links_in_a_circle_and_folders_that_are_not_there(tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "file").touch()
    for name, says in (
        ("circle", "Its links lead in a circle"),
        ("none/a", f"There is no folder {tmp_path}/none: .*mkdir -p"),
        ("file/a", "Not a directory"),
    ):
        for write in (check_writable, lambda p: write_atomically(p, "text")):
            with pytest.raises(WriteError, match=says):
                write(tmp_path / name)


def test_a_folder_that_may_not_be_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(WriteError, match=r"a: Permission denied\. Name a file in a folder"):
        check_writable(tmp_path / "a")


FOREGROUND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in signal.SIGHUP, signal.SIGTERM:
    signal.signal(number, signal.SIG_DFL)
"""


def python(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own, with the signal handlers of a shell's foreground.

    Under nohup or in the background, the tests ignore some signals, and a child inherits that.
    """
    command = [sys.executable, "-c", FOREGROUND + textwrap.dedent(script)]
    root = str(Path(__file__).parents[1])
    environ = {**os.environ, "PYTHONPATH": root}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)


KILLED = """
    import os, signal
    from pathlib import Path
    from duotone import _files

    def pieces():
        yield b"new"
        os.kill(os.getpid(), {number})

    _files.write_pieces_atomically(Path("a"), pieces())
"""


@pytest.mark.parametrize(("name", "left"), [("SIGTERM", 1), ("SIGINT", 0), ("SIGKILL", 1)])
def test_a_killed_run_leaves_the_old_file(tmp_path, name, left):
    write_atomically(tmp_path / "a", "old")
    number = getattr(signal, name)
    done = python(KILLED.format(number=int(number)), tmp_path)
    assert done.returncode == -number
    assert (tmp_path / "a").read_text() == "old"
    assert len([p.name for p in tmp_path.iterdir() if p.name != "a"]) == left


def test_a_folder_appears_in_one_step_and_where_its_link_leads(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with folder_in_one_step(tmp_path / "link") as folder:
        (folder / "a").write_text("text")
        assert not list((tmp_path / "real").iterdir())
    assert (tmp_path / "link").is_symlink()
    assert modes(tmp_path / "real") == 0o700
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]
    with (
        pytest.raises(RuntimeError, match="on the way"),
        folder_in_one_step(tmp_path / "new") as folder,
    ):
        raise RuntimeError("on the way")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


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


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("new", r"Name a file in a folder that you may write to\."), ("no/new", "mkdir -p")],
)
def test_a_file_system_that_takes_no_files_differs_from_a_missing_folder(tmp_path, name, remedy):
    with pytest.raises(WriteError, match=remedy), _files.explained(tmp_path / name):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def test_a_new_folder_with_a_name_that_is_too_long(tmp_path):
    with pytest.raises(WriteError, match=r"Its name has 300 bytes: give it a shorter one"):
        _files.check_new_folder(tmp_path / ("a" * 300))
