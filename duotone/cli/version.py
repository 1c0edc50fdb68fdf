"""``duotone version`` prints the versions that a bug report needs."""

from __future__ import annotations

import importlib.metadata
import platform

import typer

from duotone._version import __version__


def version() -> None:
    """Show the versions of duotone, Python and JAX."""
    typer.echo(f"duotone {__version__}")
    typer.echo(f"python  {platform.python_version()}")
    for name in ("jax", "jaxlib", "optax"):
        typer.echo(f"{name:<7} {importlib.metadata.version(name)}")


def print_version(wanted: bool) -> None:
    """Prints duotone's version and exits if ``wanted``."""
    if wanted:
        typer.echo(f"duotone {__version__}")
        raise typer.Exit
