"""``duotone.profile`` and ``duotone.read_profile`` measure the time of a training loop.

JAX's own profiler, without its Python tracer, writes a trace, which is read at the end (see
:mod:`duotone.profiling`). The profile is written even if the block raises an error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.monitoring
import jax.profiler

from duotone._checks import path_of
from duotone._files import prepare_folder
from duotone.errors import TraceError
from duotone.profiling.asked import ProfileChoices
from duotone.profiling.cuda_graphs import name_kernels
from duotone.profiling.profile_advice import advise
from duotone.profiling.profile_files import write_profile
from duotone.profiling.profile_record import ProfileRecord, ProfileSummary
from duotone.profiling.profile_tables import tabulate
from duotone.profiling.profile_view import ProfileView
from duotone.profiling.programs import read_programs
from duotone.profiling.read_trace import read_trace
from duotone.profiling.training_iterations import cut
from duotone.text.lines import Viewed

FOLDER = "duotone-profile"
"""The default folder of a profile."""
_COMPILED = "/jax/core/compile/backend_compile_duration"
_TRACES = ("*.xplane.pb", "*.xplane.pb.gz")


class Profile(Viewed):
    """A context that profiles its block, and the result.

    :func:`profile` and :func:`read_profile` return it. ``print`` and notebooks show it.

    Attributes:
        folder: the folder of its files; ``None`` if it is not written.
        record: the result as data: ``summary``, the tables ``iterations``, ``operations``,
            ``kernels``, ``scopes`` and ``dtypes``, and ``advice`` and ``notes``. It is empty before
            the end of the block.
    """

    def __init__(self, folder: Path | None, asked: ProfileChoices) -> None:
        self.folder = folder
        self.record = ProfileRecord(ProfileSummary())
        self._asked = asked
        self._process = os.getpid()
        self._begun = self._waits = False
        self._before: set[Path] = set()
        self._problem = ""

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, *problem: object) -> None:
        self.finish()

    def begin_when_compiled(self) -> None:
        """Starts the trace after the next compilation."""
        self._waits = True
        jax.monitoring.register_event_duration_secs_listener(self._compiled)

    def _compiled(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == _COMPILED and not self._begun and not self._problem and self._is_here():
            try:
                self._begin()
            except TraceError as error:
                self._problem = str(error)

    def _is_here(self) -> bool:
        """Returns True in the profiled process, False in a forked one."""
        return os.getpid() == self._process

    def _begin(self) -> None:
        assert self.folder is not None, "only a profile that is written is taken"
        prepare_folder(self.folder)
        self._before = _traces_in(self.folder)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # tracing each Python call is expensive, and not used
        options.host_tracer_level = 1
        try:
            jax.profiler.start_trace(self.folder, profiler_options=options)
        except RuntimeError as error:
            raise TraceError(
                f"JAX cannot start a profile now ({error}): it takes one at a time. End the other "
                "one, jax.profiler.trace or start_trace, first."
            ) from error
        self._begun = True

    def finish(self, more_notes: Sequence[str] = ()) -> None:
        """Ends the trace, reads it, and writes the profile.

        Args:
            more_notes: lines to add to the notes of the record.

        Raises:
            WriteError: the file system refuses a file; the trace file stays.
        """
        if not self._is_here() or self.folder is None:
            return
        if self._waits:
            self._waits = False
            jax.monitoring.unregister_event_duration_listener(self._compiled)
        notes = [*more_notes, self._problem] if self._problem else [*more_notes]
        if self._begun:
            self._begun = False
            try:
                jax.profiler.stop_trace()
            except RuntimeError as error:
                notes.append(f"JAX's profiler was ended by something else ({error})")
            self._read_new(notes)
        else:
            notes.append("JAX compiled nothing in this process, so that nothing was profiled")
            self.record = ProfileRecord(ProfileSummary(), notes=tuple(notes))
        prepare_folder(self.folder)
        write_profile(self.record, self.folder)

    def _read_new(self, notes: list[str]) -> None:
        """Reads the new trace."""
        assert self.folder is not None
        new = sorted(_traces_in(self.folder) - self._before)
        self.record = ProfileRecord(ProfileSummary(), notes=tuple(notes))
        if not new:
            missing = f"JAX's profiler wrote no trace into {self.folder}"
            self.record = ProfileRecord(ProfileSummary(), notes=(*notes, missing))
            return
        try:
            self.record = _read(new[-1], self._asked, notes)
        except TraceError as error:
            self.record = ProfileRecord(ProfileSummary(), notes=(*notes, str(error)))

    def __rich__(self) -> ProfileView:
        return ProfileView(self.record, self.folder)


def profile(
    out: str | os.PathLike[str] = FOLDER,
    *,
    key_node: str | None = None,
    iter_start: int | None = None,
    iter_stop: int | None = None,
) -> Profile:
    """Returns a context that profiles JAX operations, iteration by iteration.

    An iteration begins with a *key operation*, by default the first one of the compiled
    program that takes the most time. Iterations that warm up or compile are left out. Wait for
    the arrays of the last step inside the block (``jax.block_until_ready``).

    Args:
        out: a folder, created if missing, for CSV, JSON and SQLite files and the trace for
            TensorBoard.
        key_node: the operation that begins an iteration: its name in the compiled program, the
            name of its kernel, ``module/operation``, or a pattern such as ``jit_step/*``.
        iter_start: the first iteration that counts, from 0. If given, only ``iter_start`` and
            ``iter_stop`` leave out iterations.
        iter_stop: the last iteration that counts.

    Returns:
        The context. After the block, ``record`` has the tables, and ``print`` shows them.

    Raises:
        TraceError: another JAX profile is running.
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: an iteration is below 0, ``iter_stop`` is before ``iter_start``, or the
            folder cannot be written.

    Example:
        >>> import jax, jax.numpy as jnp, duotone, tempfile
        >>> step = jax.jit(lambda x: jnp.tanh(x @ x))
        >>> x = jnp.ones((64, 64))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with duotone.profile(folder) as seen:
        ...         for _ in range(5):
        ...             x = step(x).block_until_ready()
        >>> seen.record.summary.iterations, seen.record.summary.counted
        (5, 4)
    """
    return Profile(path_of("profile", "out", out), ProfileChoices(key_node, iter_start, iter_stop))


def read_profile(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    key_node: str | None = None,
    iter_start: int | None = None,
    iter_stop: int | None = None,
) -> Profile:
    """Reads an existing trace.

    Args:
        path: an ``….xplane.pb``, compressed or not; or a folder, whose newest trace is read.
        out: a folder for the tables; none are written if omitted.
        key_node: the operation that begins an iteration, as for :func:`profile`.
        iter_start: the first iteration that counts, as for :func:`profile`.
        iter_stop: the last iteration that counts.

    Returns:
        The profile.

    Raises:
        TraceError: there is no trace, it is empty, or it is not from JAX's profiler.
        ArgumentError: as in :func:`profile`.

    Example:
        >>> import duotone
        >>> duotone.read_profile("no/such.xplane.pb")
        Traceback (most recent call last):
            ...
        duotone.errors.TraceError: there is no trace no/such.xplane.pb...
    """
    asked = ProfileChoices(key_node, iter_start, iter_stop)
    found = Profile(None if out is None else path_of("read_profile", "out", out), asked)
    found.record = _read(_trace_at(path_of("read_profile", "path", path)), asked, [])
    if found.folder is not None:
        write_profile(found.record, prepare_folder(found.folder))
    return found


def _trace_at(path: Path) -> Path:
    if not path.exists():
        raise TraceError(
            f"there is no trace {path}: name an .xplane.pb or a folder with one below."
        )
    if path.is_file():
        return path
    traces = sorted(_traces_in(path), key=lambda file: file.stat().st_mtime)
    if not traces:
        raise TraceError(
            f"there is no .xplane.pb below {path}: name the folder that a profile was written to."
        )
    return traces[-1]


def _traces_in(folder: Path) -> set[Path]:
    return {file for pattern in _TRACES for file in folder.rglob(pattern)}


def _read(file: Path, asked: ProfileChoices, notes: list[str]) -> ProfileRecord:
    """Runs all stages in order."""
    trace = read_trace(file)
    programs = {kind.program for kind in trace.kinds if kind.program is not None}
    facts, unread = read_programs(trace.programs, programs)
    trace, facts, in_graphs = name_kernels(trace, facts)
    iterations = cut(trace, facts, asked)
    record, sums = tabulate(trace, facts, iterations, (*notes, *unread, *in_graphs))
    return record.with_advice(advise(record, sums))
