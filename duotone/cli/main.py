"""The ``duotone`` command: its list of commands, its help, and how errors reach a person.

An error of duotone, or of the file system, is one line on stderr and exit status 2 or 1; anything
else is a fault of duotone and keeps its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from duotone.cli.demo import demo
from duotone.cli.run import run as run_script
from duotone.cli.version import print_version, version
from duotone.errors import DuotoneError

_EPILOG = """
[bold]Examples[/bold]

  duotone demo                       three precisions side by side

  duotone demo --precision float16   one, with a dynamic loss scale

  duotone demo --seeds 3 --out runs  mean and spread over three seeds

  duotone run train.py --epochs 3    a Keras script in mixed precision, source unchanged

  duotone run --dtype float16 -m pkg.train
"""

app = typer.Typer(
    name="duotone",
    help="Automatic mixed precision for JAX: one changed line, half precision where it is safe.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command(
    name="run",
    # What stands after the script belongs to the script, options as well.
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
)(run_script)
app.command()(version)


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=print_version, is_eager=True
        ),
    ] = False,
) -> None:
    del show_version


def run(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and ends the process with its exit status.

    Args:
        arguments: the words after ``duotone``; those of the process if omitted.
    """
    try:
        app(None if arguments is None else list(arguments))
    except DuotoneError as error:
        _fail(str(error), status=2)
    except OSError as error:
        _fail(str(error), status=1)


def _fail(message: str, status: int) -> None:
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(message, err=True)
    sys.exit(status)
