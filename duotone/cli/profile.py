"""``duotone profile``: where the time of a script goes, iteration by iteration.

The script runs as it is, under JAX's profiler, from the first program that it compiles on. The
report goes to stderr, so that stdout is the script's own, and into a folder. Whatever ends the
script (its end, an error, Ctrl-C, SIGTERM, ``sys.exit``), what was seen is written, and its exit
status is passed on. A trace that was taken before may stand in the place of a script.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duotone._files import prepare_folder
from duotone.adapters.on_import import when_imported
from duotone.cli.script import check_script, execute
from duotone.profiling.asked import Asked

if TYPE_CHECKING:
    from duotone.profiling.profile import Profile

_OPTIONS = ("--key-node", "--iter-start", "--iter-stop", "--out", "--module")
_TRACES = (".xplane.pb", ".xplane.pb.gz")
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"})
_TERMINATED = 128 + signal.SIGTERM


def profile(
    script: Annotated[
        str,
        typer.Argument(
            help="The Python script, with --module the name of a module, or an .xplane.pb to read."
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What the script is called with.")
    ] = None,
    key_node: Annotated[
        str | None,
        typer.Option(
            help="The operation that begins an iteration, or a pattern of it; by default the first "
            "one of the program that takes most time.",
            metavar="NAME",
        ),
    ] = None,
    iter_start: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The first iteration that counts, from 0; by default those that warm up or "
            "compile are left out.",
            show_default=False,
        ),
    ] = None,
    iter_stop: Annotated[
        int | None, typer.Option(min=0, help="The last iteration that counts.", show_default=False)
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The folder for the report and the trace.", metavar="DIR")
    ] = Path("duotone-profile"),
    module: Annotated[
        bool, typer.Option("--module", "-m", help="SCRIPT is a module, as for python -m.")
    ] = False,
) -> None:
    """Profile a script: time, idle devices and Tensor Cores by iteration, operation and scope."""
    out = out.absolute()  # the script may change the working directory
    if script.endswith(_TRACES) and not module:
        from rich.console import Console

        from duotone.profiling.profile import read_profile

        Console().print(
            read_profile(script, out, key_node=key_node, iter_start=iter_start, iter_stop=iter_stop)
        )
        return
    check_script("profile", script, module, _OPTIONS)
    run = _Run(out, Asked(key_node, iter_start, iter_stop))
    ended: SystemExit | None = None
    try:
        status = execute("profile", script, arguments or [], module)
    except SystemExit as error:
        status, ended = 0, error
    run.report()
    if ended is not None:
        raise ended
    if status:
        raise typer.Exit(status)


class _Run:
    """A script's run: what is profiled of it, and what is not.

    The script imports JAX, and sets it up until it compiles something: only then the trace begins.
    """

    def __init__(self, out: Path, asked: Asked) -> None:
        self._out, self._asked = prepare_folder(out), asked
        self._process = os.getpid()
        self._profile: Profile | None = None
        self._started = 0
        sys.addaudithook(self._audit)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
        when_imported("jax", self._prepare)

    def _prepare(self) -> None:
        from duotone.profiling.profile import Profile

        self._profile = Profile(self._out, self._asked)
        self._profile.begin_when_compiled()

    def _audit(self, event: str, arguments: object) -> None:
        """Counts the processes that the script starts, which the trace does not see."""
        del arguments
        if event in _STARTS:
            self._started += 1

    def _terminated(self, number: int, frame: object) -> None:
        """Ends the script by an exception, so that there is a report; a forked process as ever."""
        del frame
        if os.getpid() != self._process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise SystemExit(_TERMINATED)

    def report(self) -> None:
        """Shows and writes what was seen; nothing in a process that the script forked off."""
        from rich.console import Console

        if os.getpid() != self._process:
            return
        if self._profile is None:
            importlib.import_module("jax")  # the script did not, which is what is to be reported
        assert self._profile is not None, "made when JAX is imported"
        told = ()
        if self._started:
            many = f"{self._started} processes" if self._started > 1 else "a process"
            told = (f"the script started {many}; what JAX did there is not in this profile",)
        self._profile.finish(told)
        Console(stderr=True).print(self._profile)
