"""Writing files: whole or not at all, where the name leads, with nothing left behind.

Called wherever duotone writes a result. The content goes to a temporary place in the same folder,
which then takes the name in one step: an interrupted run leaves the old file as it was. A symbolic
link is followed, an existing file keeps its mode (and its owner, where that is allowed), a new one
has the mode that the umask says.

What happens to the temporary place when the process is killed::

    a file      has no name while it is written (Linux: O_TMPFILE), so that the kernel itself
                forgets it; it gets one for the moment in which it is renamed
    a folder,   has a short name of ours and a lock that ends with the process: SIGTERM, SIGHUP
    or a file   and Ctrl-C remove it, and what kill -9 leaves is removed by the next process that
    elsewhere   writes into this folder, since nobody holds its lock

A lock and not a process number in the name: numbers are given out again, and mean nothing to
another machine that sees the same folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import secrets
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from duotone.errors import ArgumentError, DuotoneError, WriteError

_TEMPORARY = re.compile(r"\.duotone-[0-9a-f]{16}\.tmp")
"""Short whatever the file is called: the longest name that a file system takes can be written."""

_NO_RIGHT = "Name a file in a folder that you may write to."
_REMEDIES = {
    errno.ENOSPC: "Free some space there, or name a file on another disk.",
    errno.EDQUOT: "Free some of your space there, or name a file on another disk.",
    errno.EFBIG: "Name a file on a disk that takes files of this size.",
    errno.ENAMETOOLONG: "Its name has {bytes} bytes: give it a shorter one.",
    errno.ELOOP: "Its links lead in a circle: remove them or name another file.",
    errno.ENOENT: "There is no folder {parent}: make it with: mkdir -p {parent}",
    errno.ENOTDIR: "One of its folders is a file: name another place.",
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: _NO_RIGHT,
}
_ENDS = (signal.SIGTERM, signal.SIGHUP)
_CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a whole file or leaves what was there.

    Args:
        path: the file, or a link to it; its folder exists.
        content: text (written as UTF-8) or bytes.

    Raises:
        WriteError: the file system refuses it, or the path is no regular file.
    """
    data = content.encode() if isinstance(content, str) else content
    with explained(path):
        old = _present(path)
        target = Path(os.path.realpath(path))
        _remove_left_behind(target.parent)
        if not _write_nameless(target, data, old):
            create = functools.partial(os.open, flags=_CREATE, mode=_first_mode(old))
            with _temporary(target.parent, create) as (temporary, handle):
                _fill(handle, data, old)
                os.fsync(handle)  # a network file system may say only now that the disk is full
                temporary.replace(target)


def write_pieces_atomically(path: Path, pieces: Iterable[bytes]) -> None:
    """Writes a whole file piece by piece, or leaves what was there.

    Args:
        path: the file, or a link to it; its folder exists.
        pieces: its bytes in order; only one piece is in memory at a time.

    Raises:
        WriteError: the file system refuses it, or the path is no regular file.
    """
    with explained(path):
        old = _present(path)
        target = Path(os.path.realpath(path))
        _remove_left_behind(target.parent)
        create = functools.partial(os.open, flags=_CREATE, mode=_first_mode(old))
        with _temporary(target.parent, create) as (temporary, handle):
            _fill(handle, b"", old)
            with open(handle, "wb", closefd=False) as file:
                for piece in pieces:
                    file.write(piece)
            os.fsync(handle)
            temporary.replace(target)


@contextlib.contextmanager
def folder_in_one_step(path: Path) -> Iterator[Path]:
    """An empty folder to be filled, which takes its name when the block ends without an error.

    Args:
        path: of the folder, or a link to it; it does not exist or is empty.

    Yields:
        The folder under the name that it has meanwhile.

    Raises:
        WriteError: the file system refuses it.
    """
    with explained(path):
        target = Path(os.path.realpath(path))
        old = target.stat() if target.exists() else None
        _remove_left_behind(target.parent)
        with _temporary(target.parent, _create_folder) as (temporary, _):
            yield temporary
            if old is not None:
                temporary.chmod(stat.S_IMODE(old.st_mode))
            temporary.replace(target)


def check_writable(path: Path) -> None:
    """Raises what is known to prevent :func:`write_atomically`, before any work is done for it.

    Args:
        path: the file, or a link to it.

    Raises:
        WriteError: no regular file, no folder for it, a folder without the right to write, a name
            that is too long.
    """
    with explained(path):
        _present(path)
        folder = Path(os.path.realpath(path)).parent
        folder.stat()
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raises unless a file can be written without taking the place of another one.

    Args:
        path: the file, or a link to it.
        overwrite: whether a file that is there may be replaced.

    Raises:
        WriteError: as :func:`check_writable`.
        ArgumentError: there is a file, and ``overwrite`` is false.
    """
    check_writable(path)
    if path.exists() and not overwrite:
        raise ArgumentError(
            f"{path} exists. Name another file, or have it replaced: --force (in Python "
            "overwrite=True)."
        )


def check_new_folder(path: Path) -> None:
    """Raises what is known to prevent :func:`folder_in_one_step`, before any work is done for it.

    Args:
        path: the folder, or a link to it.

    Raises:
        ArgumentError: it exists and is not an empty folder, or there is nothing to put it into.
        WriteError: the file system refuses to look.
    """
    folder = Path(os.path.realpath(path))
    with explained(path):
        if folder.is_dir() and not any(folder.iterdir()):
            return
        if folder.exists() or folder.is_symlink():
            raise ArgumentError(f"{folder} exists: it is to be a new folder. Name another.")
    if not folder.parent.is_dir():
        raise ArgumentError(
            f"cannot write {folder}: there is no folder {folder.parent}. "
            f"Make it with: mkdir -p {folder.parent}"
        )


def prepare_folder(path: Path) -> Path:
    """A folder to write into: made where missing, checked before any work is done for it.

    Args:
        path: the folder.

    Returns:
        `path`.

    Raises:
        ArgumentError: `path` or one of its parents is a file, or it cannot be written to.
    """
    for ancestor in (path, *path.parents):
        if os.path.lexists(ancestor) and not ancestor.is_dir():
            raise ArgumentError(f"cannot write into {path}: {ancestor} is a file. Name a folder.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            f"cannot make the folder {path}: {error.strerror}. Name a folder that you may write to."
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ArgumentError(f"cannot write into {path}: permission denied. Name another folder.")
    return path


def _present(path: Path) -> os.stat_result | None:
    """The file that is there, or None; a device or a pipe would be replaced by a file."""
    try:
        old = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(old.st_mode):
        what = "a folder" if stat.S_ISDIR(old.st_mode) else "no regular file"
        raise WriteError(f"cannot write {path}: it is {what}. Name a file.")
    return old


def _write_nameless(target: Path, data: bytes, old: os.stat_result | None) -> bool:
    """Writes by way of a file without a name; False where the system has none."""
    try:
        handle = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, _first_mode(old))
    except (AttributeError, OSError):  # what else is wrong the other way meets as well
        return False
    try:
        _fill(handle, data, old)
        _lock(handle)
        temporary = target.with_name(_new_name())
        try:
            # An absolute path needs no folder; given one, Python follows the link to the file.
            os.link(f"/proc/self/fd/{handle}", temporary, src_dir_fd=handle, follow_symlinks=True)
        except OSError:
            return False
        try:
            temporary.replace(target)
        except BaseException:
            temporary.unlink()
            raise
    finally:
        os.close(handle)
    return True


@contextlib.contextmanager
def _temporary(folder: Path, create: Callable[[Path], int]) -> Iterator[tuple[Path, int]]:
    """A temporary file or folder with a name, and its open handle; removed unless renamed."""
    with _tidy_when_ended():
        path, handle = _claim(folder, create)
        try:
            yield path, handle
        except BaseException:
            _remove(path)
            raise
        finally:
            os.close(handle)


def _claim(folder: Path, create: Callable[[Path], int]) -> tuple[Path, int]:
    """Makes a temporary file or folder and takes its lock."""
    while True:
        path = folder / _new_name()
        handle = create(path)
        _lock(handle)
        if path.exists():  # nobody thought it left behind before it was locked
            return path, handle
        os.close(handle)


def _create_folder(path: Path) -> int:
    path.mkdir()
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def _first_mode(old: os.stat_result | None) -> int:
    """The mode to begin with: the umask is taken from a new file's, an old one's is set later."""
    return 0o666 if old is None else 0o600


def _fill(handle: int, data: bytes, old: os.stat_result | None) -> None:
    """Writes everything; who may read it is settled before the first byte."""
    if old is not None:
        with contextlib.suppress(OSError):  # only root gives files away
            os.fchown(handle, old.st_uid, old.st_gid)
        os.fchmod(handle, stat.S_IMODE(old.st_mode))
    with open(handle, "wb", closefd=False) as file:
        file.write(data)


def _new_name() -> str:
    return f".duotone-{secrets.token_hex(8)}.tmp"


def _lock(handle: int, *, wait: bool = True) -> bool:
    """Takes the lock that says that somebody still writes; False where there is none to be had."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process has it, or the file system knows no locks
        return False
    return True


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@functools.cache
def _remove_left_behind(folder: Path) -> None:
    """Removes what killed processes left in a folder; looked for once, since it is rare."""
    with contextlib.suppress(OSError):
        left = [entry.path for entry in os.scandir(folder) if _TEMPORARY.fullmatch(entry.name)]
        for path in left:
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    if _lock(handle, wait=False):
                        _remove(Path(path))
                finally:
                    os.close(handle)


class _EndedError(BaseException):
    """The process was told to end; no ``Exception``, so that nothing on the way catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _tidy_when_ended() -> Iterator[None]:
    """Lets what is open be closed before a signal ends the process, as Ctrl-C does by itself."""
    if threading.current_thread() is not threading.main_thread():  # where Python sets no handlers
        yield
        return

    def end(number: int, frame: object) -> None:
        raise _EndedError(number)

    # Who has a handler of their own has decided already.
    ours = [number for number in _ENDS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    ended = None
    try:
        yield
    except _EndedError as error:
        ended = error.number
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
    if ended is not None:
        os.kill(os.getpid(), ended)  # as if nothing had been in between: the status says why


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns errors of the file system in a block into one that names the file and the remedy.

    Args:
        path: what is to be written.

    Raises:
        WriteError: in place of any ``OSError``; duotone's own errors pass.
    """
    try:
        yield
    except DuotoneError:
        raise
    except (OSError, ValueError) as error:
        raise _explanation(path, error) from error


def _explanation(path: Path, error: Exception) -> WriteError:
    number, problem = getattr(error, "errno", None), getattr(error, "strerror", None)
    if isinstance(error, shutil.Error):  # of many files, each with the text of its own error
        problem = str(error.args[0][0][2])
        found = re.match(r"\[Errno (\d+)\] ", problem)
        number = int(found[1]) if found else None
    parent = Path(os.path.realpath(path)).parent
    key = errno.EACCES if number == errno.ENOENT and parent.is_dir() else number or 0
    remedy = _REMEDIES.get(key, "Name another file.")
    remedy = remedy.format(parent=parent, bytes=len(os.fsencode(path.name)))
    explained = WriteError(f"cannot write {path}: {problem or error}. {remedy}")
    explained.errno = number
    return explained
