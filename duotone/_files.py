"""Writes files atomically.

The content goes to a temporary file or folder next to the target, which is then renamed. An
interrupted run does not change the old file. Writing follows a symbolic link. An existing file
keeps its mode (and its owner, if permitted), and a new file has the mode of the umask.

No temporary file stays if the process is killed::

    a file      has no name until it is complete (Linux: O_TMPFILE), so the kernel removes it
    a folder,   has a temporary name and a lock that ends with the process. SIGTERM, SIGHUP and
    or a file   Ctrl-C remove it. After kill -9, the next process that writes into the same folder
    elsewhere   removes it, since nobody has its lock.

The lock is not a process number in the name, because numbers are reused, and have no meaning on
another machine that shares the folder.
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
"""Temporary names. They are short, so that a target with the longest possible name works too."""

_NO_RIGHT = "Name a file in a folder that you may write to."
_REMEDIES = {
    errno.ENOSPC: "Free some space there, or name a file on another disk.",
    errno.EDQUOT: "Free some of your space there, or name a file on another disk.",
    errno.EFBIG: "Name a file on a disk that takes files of this size.",
    errno.ENAMETOOLONG: "Its name has {bytes} bytes: give it a shorter one.",
    errno.ELOOP: "Its links lead in a circle: remove them or name another file.",
    errno.ENOENT: "There is no folder {parent}: make it with: mkdir -p {parent}",
    errno.ENOTDIR: "One of its folders is a file: name another folder.",
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: _NO_RIGHT,
}
_ENDS = (signal.SIGTERM, signal.SIGHUP)
_CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a whole file or leaves the old one.

    Args:
        path: the file, or a link to it, in an existing folder.
        content: text (written as UTF-8) or bytes.

    Raises:
        WriteError: the file system refuses it, or the path is not a regular file.
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
                os.fsync(handle)  # a network file system may report a full disk only here
                temporary.replace(target)


def write_pieces_atomically(path: Path, pieces: Iterable[bytes]) -> None:
    """Writes a whole file piece by piece, or leaves the old one.

    Args:
        path: the file, or a link to it, in an existing folder.
        pieces: its bytes in order; only one piece is in memory at a time.

    Raises:
        WriteError: the file system refuses it, or the path is not a regular file.
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
    """Yields a temporary folder to fill, which is renamed if the block ends without an error.

    Args:
        path: the folder, or a link to it; it must not exist or must be empty.

    Yields:
        The temporary folder.

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
    """Raises the errors of :func:`write_atomically` that are known before writing.

    Args:
        path: the file, or a link to it.

    Raises:
        WriteError: the path is not a regular file, its folder does not exist or is not writable, or
            its name is too long.
    """
    with explained(path):
        _present(path)
        folder = Path(os.path.realpath(path)).parent
        folder.stat()
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raises if a file cannot be written, or exists and must not be replaced.

    Args:
        path: the file, or a link to it.
        overwrite: whether to replace an existing file.

    Raises:
        WriteError: as :func:`check_writable`.
        ArgumentError: the file exists, and ``overwrite`` is false.
    """
    check_writable(path)
    if path.exists() and not overwrite:
        raise ArgumentError(
            f"{path} exists. Name another file, or have it replaced: --force (in Python "
            "overwrite=True)."
        )


def check_new_folder(path: Path) -> None:
    """Raises the errors of :func:`folder_in_one_step` that are known before writing.

    Args:
        path: the folder, or a link to it.

    Raises:
        ArgumentError: the path exists and is not an empty folder, or its parent does not exist.
        WriteError: the file system refuses access.
    """
    folder = Path(os.path.realpath(path))
    with explained(path):
        if folder.is_dir() and not any(folder.iterdir()):
            return
        if folder.exists() or folder.is_symlink():
            raise ArgumentError(f"{folder} exists: it must be a new folder. Name another.")
    if not folder.parent.is_dir():
        raise ArgumentError(
            f"cannot write {folder}: there is no folder {folder.parent}. "
            f"Make it with: mkdir -p {folder.parent}"
        )


def prepare_folder(path: Path) -> Path:
    """Creates a folder if it is missing, and checks that it is writable.

    Args:
        path: the folder.

    Returns:
        ``path``.

    Raises:
        ArgumentError: ``path`` or one of its parents is a file, or it is not writable.
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
    """Returns the existing file or ``None``; refuses devices and pipes."""
    try:
        old = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(old.st_mode):
        what = "a folder" if stat.S_ISDIR(old.st_mode) else "not a regular file"
        raise WriteError(f"cannot write {path}: it is {what}. Name a file.")
    return old


def _write_nameless(target: Path, data: bytes, old: os.stat_result | None) -> bool:
    """Writes through a file without a name; returns False if the system does not support it."""
    try:
        handle = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, _first_mode(old))
    except (AttributeError, OSError):  # the fallback raises the same error if it is another one
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
    """Yields a named temporary file or folder and its open handle; removes it after an error."""
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
    """Creates a temporary file or folder and locks it."""
    while True:
        path = folder / _new_name()
        handle = create(path)
        _lock(handle)
        if path.exists():  # no other process removed it before it was locked
            return path, handle
        os.close(handle)


def _create_folder(path: Path) -> int:
    path.mkdir()
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def _first_mode(old: os.stat_result | None) -> int:
    """Returns the initial mode; the umask applies to a new file, :func:`_fill` sets an old mode."""
    return 0o666 if old is None else 0o600


def _fill(handle: int, data: bytes, old: os.stat_result | None) -> None:
    """Writes the data after it sets owner and mode, so that nobody else can read it early."""
    if old is not None:
        with contextlib.suppress(OSError):  # only root may change the owner
            os.fchown(handle, old.st_uid, old.st_gid)
        os.fchmod(handle, stat.S_IMODE(old.st_mode))
    with open(handle, "wb", closefd=False) as file:
        file.write(data)


def _new_name() -> str:
    return f".duotone-{secrets.token_hex(8)}.tmp"


def _lock(handle: int, *, wait: bool = True) -> bool:
    """Locks a temporary file; returns False if that is not possible."""
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
    """Removes temporary files of killed processes, once for each folder."""
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
    """A signal ends the process; no ``Exception``, so that ``except Exception`` ignores it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _tidy_when_ended() -> Iterator[None]:
    """Turns a terminating signal into an exception, so that the block can clean up."""
    if threading.current_thread() is not threading.main_thread():  # only there Python sets handlers
        yield
        return

    def end(number: int, frame: object) -> None:
        raise _EndedError(number)

    # Handlers of the user take precedence.
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
        os.kill(os.getpid(), ended)  # so that the exit status names the signal


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Replaces errors of the file system in a block by one that names the file and the remedy.

    Args:
        path: the file or folder to write.

    Raises:
        WriteError: replaces any ``OSError``; duotone's own errors do not change.
    """
    try:
        yield
    except DuotoneError:
        raise
    except (OSError, ValueError) as error:
        raise _explanation(path, error) from error


def _explanation(path: Path, error: Exception) -> WriteError:
    number, problem = getattr(error, "errno", None), getattr(error, "strerror", None)
    if isinstance(error, shutil.Error):  # a list of errors, one for each file
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
