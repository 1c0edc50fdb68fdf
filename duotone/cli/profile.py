"""``duotone profile`` measures the time of a script, iteration by iteration.

The script runs unchanged under JAX's profiler, which starts at its first compilation. The report
goes into a folder and to stderr, so that stdout is the script's own. The report is written however
the script ends (normally, an error, Ctrl-C, SIGTERM, ``sys.exit``), and the command returns the
script's exit status. The argument may also be an existing trace.
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
from duotone.profiling.asked import ProfileChoices

if TYPE_CHECKING:
    from duotone.profiling.profile import Profile

_OPTIONS = ("--key-node", "--iter-start", "--iter-stop", "--out", "--module")
_TRACES = (".xplane.pb", ".xplane.pb.gz")
_TERMINATED = 128 + signal.SIGTERM


def profile(
    script: Annotated[
        str,
        typer.Argument(
            help="The Python script, with --module the name of a module, or an .xplane.pb to read."
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The arguments of the script.")
    ] = None,
    key_node: Annotated[
        str | None,
        typer.Option(
            help="The operation that begins an iteration, or a pattern for it; by default the "
            "first one of the program that takes the most time.",
            metavar="NAME",
        ),
    ] = None,
    iter_start: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The first iteration that counts, from 0; by default iterations that warm up or "
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
    run = _Run(out, ProfileChoices(key_node, iter_start, iter_stop))
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
    """The profile of a script's run.

    The script imports and configures JAX. The trace begins when it first compiles something.
    """

    def __init__(self, out: Path, asked: ProfileChoices) -> None:
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
        """Counts the processes that the script starts, since the trace does not include them."""
        if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"):
            self._started += 1

    def _terminated(self, number: int, frame: object) -> None:
        """Ends the script by an exception, so that there is a report; a forked process dies."""
        if os.getpid() != self._process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise SystemExit(_TERMINATED)

    def report(self) -> None:
        """Prints and writes the report; does nothing in a forked process."""
        from rich.console import Console

        if os.getpid() != self._process:
            return
        if self._profile is None:
            importlib.import_module("jax")  # the script did not import it; the report says so
        assert self._profile is not None, "made when JAX is imported"
        notes = ()
        if self._started:
            many = f"{self._started} processes" if self._started > 1 else "a process"
            notes = (f"the script started {many}; the profile does not include the work there",)
        self._profile.finish(notes)
        Console(stderr=True).print(self._profile)
