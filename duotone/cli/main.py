"""The ``duotone`` command: the list of commands, their help, and the output of errors.

An error of duotone or of the file system is one line on stderr with exit status 2 or 1. An error of
the user's program shows its traceback from the first frame in the user's files, with status 1. An
error of the device, such as a lack of memory, is one line with status 1. Any other error is a bug
of duotone and keeps its traceback.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from duotone.adapters.on_import import when_imported
from duotone.cli.advise import advise
from duotone.cli.blame import blame
from duotone.cli.clusters import clusters, flags
from duotone.cli.compare import compare
from duotone.cli.demo import demo
from duotone.cli.explain import explain
from duotone.cli.export import export
from duotone.cli.profile import profile
from duotone.cli.report import report
from duotone.cli.rewrite import rewrite
from duotone.cli.run import run as run_script
from duotone.cli.script import from_users_line
from duotone.cli.version import print_version, version
from duotone.cli.view import view
from duotone.errors import DuotoneError

_MAIN_EXAMPLES = """
  duotone demo                       three precisions side by side
  duotone demo --precision float16   one, with a dynamic loss scale
  duotone demo --seeds 3 --out runs  mean and spread over three seeds
  duotone run train.py --epochs 3    a Keras script in mixed precision, source unchanged
  duotone run --dtype float16 --loss-scale 1024 --policy-file policy.toml -m pkg.train
  duotone explain train.py:step      what is half in a function, and why
  duotone compare train.py:step --targets h100,a100
  duotone advise train.py:step       what makes it slow
  duotone clusters train.py:step     what makes it slow to compile
  duotone blame train.py:step        what overflows or loses digits in half
  duotone profile train.py           where the time goes
  duotone report train.py:step       all of it as a page, with a graph to zoom into
  duotone export serve.py:model --out model   files that JAX runs without duotone
  duotone rewrite graph.pb --out half.pb --fetch logits
  duotone view saved_model/ --tensorboard logs
  duotone rewrite model.onnx --out half.onnx
  duotone compare model.onnx half.onnx
"""
_EXAMPLES: dict[Callable[..., None], str] = {
    demo: """
  duotone demo --precision float16      one, with a dynamic loss scale
  duotone demo --epochs 5 --seeds 3     mean and spread over three seeds
  duotone demo --out reports/mine       where the report goes
""",
    run_script: """
  duotone run train.py --epochs 3             --epochs is the script's
  duotone run --dtype float16 --loss-scale 1024 train.py
  duotone run --policy-file policy.toml --painter tensorflow train.py
  duotone run -m pkg.train                    as python -m pkg.train
[bold]A policy file[/bold]
  deny_add = ["tanh"]
  keep_full = ["*/attention/*"]
""",
    explain: """
  duotone explain train.py:example                  example() returns (step, *arguments)
  duotone explain model.py:apply --shapes 'f32[512,512] f32[32,512]'
  duotone explain train.py:example --target h100    for a device that is not here
  duotone explain train.py:example --target h200 --against v5e      what differs, and why
  duotone explain train.py:example --where '*/attention/*'
  duotone explain train.py:example --rule taint --rows 20
  duotone explain train.py:example --json seen.json
""",
    compare: """
  duotone compare train.py:example --targets h100,a100,v5e
  duotone compare model.py:apply --shapes 'f32[512,512] f32[32,512]' --targets t4
  duotone compare train.py:example --targets l40s --bound    without compiling
  duotone compare train.py:example --targets h100 --exact    fails if it cannot compile
  duotone compare train.py:example --targets h100 --json seen.json
  duotone compare model.onnx half.onnx                       random inputs; status 1 if one is inf
  duotone compare model.onnx half.onnx --shapes 'x=1,3,320,640'
  duotone compare model.onnx half.onnx --data inputs.npz
  duotone compare saved_model/ saved_model_half/             runs in TensorFlow
""",
    advise: """
  duotone advise train.py:example                   example() returns (step, *arguments)
  duotone advise train.py:example --target a100     for a device that is not here
  duotone advise model.py:apply --shapes 'f32[512,512] f32[32,512]'
  duotone advise train.py:example --json found.json
""",
    blame: """
  duotone blame train.py:example                    example() returns (step, *arguments)
  duotone blame train.py:example --dtype float16 --rows 20
  duotone blame model.py:apply --shapes 'f32[512,512] f32[32,512]'    random numbers
  duotone blame train.py:example --json - | jq .first
""",
    clusters: """
  duotone clusters train.py:step --shapes 'f32[64,32]'
  duotone clusters train.py:example --compile    compiles it twice: unchanged, and rolled
""",
    flags: """
  XLA_FLAGS=--xla_dump_to=/tmp/dump duotone flags      finds flags that would end the process
  duotone flags --tf-xla='--tf_xla_auto_jit=2'         its meaning in JAX
""",
    profile: """
  duotone profile train.py --epochs 3                  --epochs is the script's
  duotone profile --out logs --iter-start 5 --iter-stop 20 train.py
  duotone profile --key-node jit_step/fusion.3 train.py
  duotone profile -m duotone run train.py              in mixed precision
  duotone profile logs/plugins/profile/*/host.xplane.pb   read it again
""",
    report: """
  duotone report train.py:example                   example() returns (step, *arguments)
  duotone report train.py:example --target h100 --advise --compare h100,a100
  duotone report model.py:apply --shapes 'f32[512,512] f32[32,512]' --out apply.html
  duotone report train.py:example --history run.csv --force    replaces report.html
  duotone report train.py:example --blame           runs the step once, in half and in float32
  duotone report seen.json                          from explain --json, also of another machine
""",
    export: """
  duotone export serve.py:example --out model            example() returns (fn, *arguments)
  duotone export serve.py:example --out model --target h100 --platforms cpu,cuda
  duotone export model.py:apply --shapes 'f32[512,10] f32[32,512]' --batch 1 --out model
""",
    rewrite: """
  duotone rewrite frozen.pb --out half.pb --fetch logits,probabilities
  duotone rewrite model/ --out model_half/     a SavedModel
  duotone rewrite graph.pbtxt --out g.pb --dtype bfloat16 --painter tensorflow
  duotone rewrite graph.pb -o half.pb --device v100
  duotone rewrite graph.pb -o half.pb --force   replaces half.pb
  duotone rewrite model.onnx -o half.onnx      names what overflows on large inputs
  duotone rewrite model.onnx -o half.onnx --calibration data.npz   measures your data instead
""",
    view: """
  duotone view frozen.pb --fetch logits              op by op, with the reasons
  duotone view model/ --nodes '*/dense/*'            node by node
  duotone view model/ --compare                      the casts of each painter
  duotone view frozen.pb --device t4                 for another GPU
  duotone view model/ --tensorboard logs             before and after, in TensorBoard
  duotone view explanation.json --tensorboard logs   a JAX program: explain(...).to_json()
""",
    version: """
  duotone version     the versions that a bug report needs
  duotone --version   only that of duotone
""",
}
"""The commands in the order of the help, each with its examples."""


def _epilog(examples: str) -> str:
    """Returns the end of a help page: examples, each a paragraph so that lines are kept."""
    paragraphs = "\n\n".join(examples.strip("\n").splitlines())
    return f"\n[bold]Examples[/bold]\n\n{paragraphs}\n"


app = typer.Typer(
    name="duotone",
    help="Automatic mixed precision for JAX: one changed line, half precision where it is safe.",
    epilog=_epilog(_MAIN_EXAMPLES),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
# Words after the script belong to the script, also options.
_OF_SCRIPTS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
for _command, _examples in _EXAMPLES.items():
    _settings = _OF_SCRIPTS if _command in (run_script, profile) else None
    app.command(epilog=_epilog(_examples), context_settings=_settings)(_command)


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
    """Runs the command line and exits the process with its status.

    Args:
        arguments: the words after ``duotone``; by default those of the process.
    """
    when_imported("jax", _shorten_plugin_reports)
    if isinstance(sys.stdout, io.TextIOWrapper):  # the locale may lack some characters of a table
        sys.stdout.reconfigure(errors="replace")
    try:
        app(None if arguments is None else list(arguments))
    except OSError as error:  # duotone's own WriteError too
        _fail(str(error), status=1)
    except DuotoneError as error:
        _fail(str(error), status=2)
    except Exception as error:
        if from_users_line(error):
            sys.excepthook(type(error), error, error.__traceback__)
            sys.exit(1)
        if not _is_of_device(error):
            raise
        _fail(str(error).splitlines()[0], status=1)


def _is_of_device(error: Exception) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(error, jax.errors.JaxRuntimeError)


def _shorten_plugin_reports() -> None:
    from duotone import _jax

    logging.getLogger(_jax.PLUGIN_LOG).addFilter(_in_one_line)


def _in_one_line(record: logging.LogRecord) -> bool:
    """Shortens JAX's report of a failing device plugin to a line; mostly there is no GPU."""
    if record.exc_info and record.exc_info[1] is not None:
        why = (str(record.exc_info[1]).splitlines() or [record.exc_info[0].__name__])[0]
        record.msg, record.args = f"{record.getMessage()}: {why}", ()
        record.msg = f"no GPU or TPU is used: {record.msg}"
        record.exc_info = record.exc_text = None
    return True


def _fail(message: str, status: int) -> None:
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(message, err=True)
    sys.exit(status)
