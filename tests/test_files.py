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


@pytest.fixture(params=["nameless", "named"])
def way(request, monkeypatch):
    """Both ways to write a file: as on Linux, and as where files cannot be without a name."""
    if request.param == "named":
        monkeypatch.setattr(_files, "_write_nameless", lambda *args: False)
    return request.param


def modes(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("content", "expected"), [("ä\n", "ä\n".encode()), (b"\x00\xff", b"\x00\xff")]
)
def test_the_file_has_the_content_and_nothing_else_is_left(tmp_path, content, expected, way):
    write_atomically(tmp_path / "a", "an older and longer content")
    write_atomically(tmp_path / "a", content)
    assert (tmp_path / "a").read_bytes() == expected
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch, way):
    write_atomically(tmp_path / "a", "old")

    def refuse(self, target):
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no space"):
        write_atomically(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_may_be_read_by_whom_the_umask_allows(tmp_path, umask, mode, way):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert modes(tmp_path / "a") == mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_an_existing_file_keeps_its_mode(tmp_path, mode, way):
    """Catches: a report that only its owner could read, open to all after the next run."""
    (tmp_path / "a").touch()
    (tmp_path / "a").chmod(mode)
    write_atomically(tmp_path / "a", "new")
    assert modes(tmp_path / "a") == mode


def test_a_link_is_followed(tmp_path, way):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "real").write_text("old")
    for name, there in (("one", True), ("two", False)):
        target = tmp_path / "disk" / ("real" if there else "new")
        (tmp_path / name).symlink_to(target)
        write_atomically(tmp_path / name, name)
        assert (tmp_path / name).is_symlink()
        assert target.read_text() == name
    assert sorted(p.name for p in (tmp_path / "disk").iterdir()) == ["new", "real"]


def test_the_longest_name_that_the_file_system_takes(tmp_path, way):
    """Catches: a temporary name that is longer than the file's own."""
    name = "x" * os.pathconf(tmp_path, "PC_NAME_MAX")
    write_atomically(tmp_path / name, "text")
    assert (tmp_path / name).read_text() == "text"


def test_a_name_that_is_too_long_is_named(tmp_path, way):
    path = tmp_path / ("x" * 300)
    for write in (check_writable, lambda p: write_atomically(p, "text")):
        with pytest.raises(WriteError, match=r"xxx: File name too long\. .* 300 bytes"):
            write(path)
    write_atomically(path.with_name("x"), "text")  # the advice, followed


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "Free some space"), (errno.EROFS, "may write to"), (errno.EIO, "another file")],
)
def test_what_the_file_system_refuses_is_named_with_a_remedy(
    tmp_path, monkeypatch, number, remedy, way
):
    write_atomically(tmp_path / "a", "old")

    def refuse(handle, data, old):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(_files, "_fill", refuse)
    with pytest.raises(WriteError, match=f"a: {os.strerror(number)}\\. .*{remedy}") as e:
        write_atomically(tmp_path / "a", "new")
    assert e.value.errno == number
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_really_full_disk(tmp_path, way):
    """A limit of the process simulates a full disk: the kernel refuses in the middle of a write."""
    script = f"""
        import resource, signal, sys
        from pathlib import Path
        from duotone import _files
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        if {way == "named"}:
            _files._write_nameless = lambda *args: False
        _files.write_atomically(Path("a"), b"x" * 5000)
    """
    (tmp_path / "a").write_text("old")
    done = python(script, tmp_path)
    assert "WriteError: cannot write a: File too large. Name a file on a disk" in done.stderr
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_device_is_not_replaced(tmp_path, way):
    os.mkfifo(tmp_path / "pipe")
    for write in (check_writable, lambda p: write_atomically(p, "text")):
        with pytest.raises(WriteError, match=r"pipe: it is not a regular file\. Name a file"):
            write(tmp_path / "pipe")
        with pytest.raises(WriteError, match="it is a folder"):
            write(tmp_path)


def test_links_in_a_circle_and_folders_that_are_not_there(tmp_path, way):
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
    import os, signal, sys
    from pathlib import Path
    from duotone import _files

    def killed(handle, data, old, write=_files._fill):
        write(handle, data, old)
        os.kill(os.getpid(), {number})

    {way}
    _files._fill = killed
    _files.write_atomically(Path("a"), "new")
"""
NAMED = "_files._write_nameless = lambda *args: False"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGKILL"])
def test_a_killed_run_leaves_nothing_and_the_old_file(tmp_path, name, way):
    write_atomically(tmp_path / "a", "old")
    number = getattr(signal, name)
    done = python(KILLED.format(number=int(number), way=NAMED if way == "named" else ""), tmp_path)
    assert done.returncode == -number  # the status says why, as if nothing had been in between
    assert (tmp_path / "a").read_text() == "old"
    left = [p.name for p in tmp_path.iterdir() if p.name != "a"]
    assert len(left) == (1 if (name, way) == ("SIGKILL", "named") else 0)


KILLED_IN_A_FOLDER = """
    import os
    from pathlib import Path
    from duotone._files import folder_in_one_step

    with folder_in_one_step(Path("model")) as folder:
        (folder / "variables").write_text("large")
        os.kill(os.getpid(), {number})
"""


def test_a_killed_run_leaves_no_folder(tmp_path):
    done = python(KILLED_IN_A_FOLDER.format(number=15), tmp_path)
    assert done.returncode == -15
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", [KILLED, KILLED_IN_A_FOLDER], ids=["file", "folder"])
def test_what_kill_9_left_is_removed_by_the_next_run_and_nothing_else(tmp_path, script):
    python(script.format(number=9, way=NAMED), tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / ".duotone-notes.tmp").touch()  # somebody else's
    with _files._temporary(tmp_path, _files._create_folder) as (in_use, _):
        write_atomically(tmp_path / "a", "new")
        assert {p.name for p in tmp_path.iterdir()} == {"a", ".duotone-notes.tmp", in_use.name}
        in_use.rmdir()


def test_a_handler_of_the_program_itself_is_left_alone(tmp_path):
    script = """
        import os, signal
        from pathlib import Path
        from duotone._files import folder_in_one_step
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup starts the tests with it ignored
        signal.signal(signal.SIGTERM, lambda *_: print("own handler"))
        with folder_in_one_step(Path("model")):
            os.kill(os.getpid(), signal.SIGTERM)
            assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
        print(signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)
    """
    assert python(script, tmp_path).stdout.split("\n")[:2] == ["own handler", "True"]
    assert (tmp_path / "model").is_dir()


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
