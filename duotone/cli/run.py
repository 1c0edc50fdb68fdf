"""``duotone run`` runs a script in mixed precision without changes to its source.

It rewrites the script's Keras models, also with plain optimizers, and switches on optimizers made
with ``duotone.optimizer_from_environment(...)``. The options become environment variables, so
settings in the script override them. The script sees the command line, ``__name__`` and module
path that it would have under ``python``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer

from duotone.cli.script import check_script, execute
from duotone.errors import ArgumentError, EnvironmentVariableError
from duotone.policy.dtypes import canonical
from duotone.policy.environment import PAINTER, POLICY_FILE
from duotone.policy.switches import DTYPE, LOSS_SCALE, SWITCH, read_switches
from duotone.text.suggestions import did_you_mean

HALF_TYPES = ["float16", "bfloat16"]
_OPTIONS = ("--dtype", "--loss-scale", "--policy-file", "--painter", "--module")


def _half_type(text: str) -> str:
    """Parses a half type; accepts the same words as in Python."""
    name = canonical(text)
    if name in HALF_TYPES:
        return name
    meant = did_you_mean(text, HALF_TYPES, "it takes float16 or bfloat16.")
    raise typer.BadParameter(f"{text!r} is not a half type; {meant}")


def half_type_option(help: str) -> Any:
    """Makes the option ``--dtype`` with its line in the help."""
    return typer.Option(
        "--dtype",
        help=help,
        parser=_half_type,
        metavar="float16|bfloat16",
        autocompletion=lambda: HALF_TYPES,
    )


LossScaleOption = Annotated[
    str | None,
    typer.Option(
        help="dynamic, none or a number such as 1024; by default dynamic in float16 and none "
        "in bfloat16.",
        metavar="SCALE",
    ),
]
PolicyFileOption = Annotated[
    Path | None,
    typer.Option(
        help="A TOML or JSON file with fields of duotone.Policy, such as "
        'deny_add = ["tanh"]; settings in code override it.',
        metavar="FILE",
    ),
]
RunPainterOption = Annotated[
    Literal["duotone", "tensorflow"] | None,
    typer.Option(help="duotone's rules, or TensorFlow's passes."),
]


def run(
    script: Annotated[
        str, typer.Argument(help="The Python script, or with --module the name of a module.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The arguments of the script.")
    ] = None,
    dtype: Annotated[
        str | None,
        half_type_option("The half type; by default the one that is fast on the device."),
    ] = None,
    loss_scale: LossScaleOption = None,
    policy_file: PolicyFileOption = None,
    painter: RunPainterOption = None,
    module: Annotated[
        bool, typer.Option("--module", "-m", help="SCRIPT is a module, as for python -m.")
    ] = False,
) -> None:
    """Run a script in mixed precision: Keras, TensorFlow 1, duotone.optimizer_from_environment."""
    check_script("run", script, module, _OPTIONS)
    _set_variables(
        {
            DTYPE: dtype,
            LOSS_SCALE: loss_scale,
            POLICY_FILE: None if policy_file is None else str(policy_file.absolute()),
            PAINTER: painter,
        }
    )
    from duotone.adapters.on_import import when_imported

    _show_log()
    when_imported("jax", _follow_compilation)
    when_imported("keras", _switch_keras_on)
    when_imported("tensorflow", _switch_tensorflow_on)
    status = execute("run", script, arguments or [], module)
    if status:
        raise typer.Exit(status)
    # `duotone.adapters.optax` is imported when it is first used.
    if not {"keras", "tensorflow", "duotone.adapters.optax"} & set(sys.modules):
        typer.echo(
            f"note: {script} uses neither Keras, nor TensorFlow, nor "
            "duotone.optimizer_from_environment(...): nothing to switch on",
            err=True,
        )


def _set_variables(options: Mapping[str, str | None]) -> None:
    """Passes the options to the script and its child processes as environment variables."""
    os.environ.update({name: value for name, value in options.items() if value is not None})
    if (text := options[LOSS_SCALE]) is not None:
        try:
            read_switches({LOSS_SCALE: text})
        except EnvironmentVariableError as error:
            takes = "dynamic, none or a number above 0, such as --loss-scale 1024"
            raise ArgumentError(f"--loss-scale {text}: it takes {takes}.") from error
    if not read_switches().found:  # TensorFlow's variables, if set, choose the parts already
        os.environ[SWITCH] = "1"
    if text is not None and not read_switches().loss_scaling:
        typer.echo(
            f"note: --loss-scale {text} has no effect: an environment variable switches loss "
            "scaling off (page Environment variables of the documentation)",
            err=True,
        )
    if options[POLICY_FILE] is not None:
        from duotone.policy.policy import Policy

        Policy.from_file(str(options[POLICY_FILE]))


class _LogLines(logging.StreamHandler[TextIO]):
    """Prints log lines unless the script configured logging, which then prints them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        if not logging.getLogger().handlers:
            super().emit(record)


def _show_log() -> None:
    """Prints duotone's log from level INFO on."""
    handler = _LogLines()
    handler.setFormatter(logging.Formatter("duotone: %(message)s"))
    logger = logging.getLogger("duotone")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _follow_compilation() -> None:
    """Applies the compilation settings in ``TF_XLA_FLAGS`` and ``TF_CPP_VMODULE``."""
    from duotone.compiling.log import asks_for_log, log_compilations

    if asks_for_log(os.environ.get("TF_CPP_VMODULE", "")):
        log_compilations()
    if text := os.environ.get("TF_XLA_FLAGS", ""):
        from duotone.compiling.flags import apply_tf_xla_flags

        apply_tf_xla_flags(text, logging.getLogger("duotone").info)


def _switch_tensorflow_on() -> None:
    from duotone.adapters.tensorflow.everywhere import wrap_v1_optimizers

    wrap_v1_optimizers()


def _switch_keras_on() -> None:
    import keras

    if keras.backend.backend() == "tensorflow":
        from duotone.adapters.tensorflow.everywhere import wrap_keras_optimizers

        wrap_keras_optimizers()
        return
    from duotone.adapters.keras import enable_everywhere

    switches = read_switches()
    enable_everywhere(
        switches.rewrite,
        switches.loss_scaling,
        dtype=switches.dtype,
        loss_scale=switches.loss_scale,
    )
