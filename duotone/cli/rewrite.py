"""``duotone rewrite`` converts a TensorFlow graph, SavedModel or ONNX model to mixed precision.

:func:`duotone.tensorflow.rewrite_file` or :func:`duotone.onnx.rewrite` does the work. This file
reads the options, shows progress and prints the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from duotone.cli import onnx_models as onnx
from duotone.cli.output import in_stages
from duotone.cli.run import PolicyFileOption, half_type_option
from duotone.cli.user_program import names, settings
from duotone.errors import ArgumentError
from duotone.text.suggestions import did_you_mean

if TYPE_CHECKING:
    from duotone.tensorflow.devices import Device


PainterChoice = Literal["duotone", "tensorflow", "mincut"]
GraphArgument = Annotated[
    Path,
    typer.Argument(
        help="GraphDef or MetaGraphDef, binary or text, a SavedModel folder, or an ONNX model.",
        metavar="GRAPH",
    ),
]
FetchOption = Annotated[
    str | None,
    typer.Option(
        help="Nodes that keep their types, separated by commas, in addition to those of "
        "signatures. By default, without signatures, the nodes that nothing reads.",
        metavar="NODES",
    ),
]
FeedOption = Annotated[
    str, typer.Option(help="Nodes that are fed and keep their types.", metavar="NODES")
]
DtypeOption = Annotated[str, half_type_option("float16 is for GPUs, bfloat16 for CPUs (oneDNN).")]
PainterOption = Annotated[
    PainterChoice | None,
    typer.Option(
        help="duotone's own rules; TensorFlow's own passes, node for node; or the fewest bytes of "
        "casts by minimum cut, under TensorFlow's lists. The default is DUOTONE_PAINTER, or "
        "duotone."
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        help="The device of the graph: cpu, gpu, a GPU's compute capability as in gpu:8.0, or a "
        "name such as h100, t4 or v5e (a wrong one lists all). By default the device that the "
        "dtype is for.",
        metavar="DEVICE",
    ),
]


def rewrite(
    graph: GraphArgument,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="The new file, text if it ends in .pbtxt; for a SavedModel, a new folder.",
            metavar="PATH",
        ),
    ],
    fetch: FetchOption = None,
    feed: FeedOption = "",
    dtype: DtypeOption = "float16",
    painter: PainterOption = None,
    device: DeviceOption = None,
    policy_file: PolicyFileOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing file, but never the input.")
    ] = False,
    keep_io: onnx.KeepIoOption = True,
    keep_full: onnx.KeepFullOption = None,
    calibration: onnx.CalibrationOption = None,
    provider: onnx.ProviderOption = None,
    fold_inputs: onnx.FoldInputsOption = False,
    opset: onnx.OpsetOption = None,
    range_check: onnx.RangeCheckOption = True,
) -> None:
    """Rewrite a TensorFlow graph or an ONNX model by duotone's rules.

    TensorFlow need not be installed.
    """
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    if onnx.is_model(graph):
        from duotone.onnx import rewrite as rewrite_onnx

        graphs = {"--fetch": fetch, "--feed": feed, "--device": device}
        onnx.check_options(graph, graphs, "TensorFlow graphs")
        rewritten = in_stages(
            console,
            rewrite_onnx,
            graph,
            out,
            **settings(dtype, policy_file),
            painter=painter,
            keep_io=keep_io,
            keep_full=keep_full or (),
            calibration=calibration,
            provider=provider,
            fold_inputs=fold_inputs,
            opset=opset,
            overwrite=force,
        )
        onnx.say_rewritten(console, graph, rewritten)
        if range_check and calibration is None and dtype == "float16":
            onnx.say_range(console, graph, rewritten)
        if dtype == "bfloat16" and provider is None:
            typer.echo(
                "note: ONNX Runtime's CPU has no kernels that compute in bfloat16, so it cannot "
                "run this model. --dtype float16 runs there; --provider cuda or tensorrt names "
                "a runtime for bfloat16.",
                err=True,
            )
        return
    from duotone.tensorflow import graph_view as graphdef
    from duotone.tensorflow.rewrite_file import rewrite_file

    models = {
        "--half-io": not keep_io,
        "--keep-full": keep_full,
        "--provider": provider,
        "--fold-inputs": fold_inputs,
        "--opset": opset,
        "--no-range-check": not range_check,
    }
    onnx.check_options(graph, models, "ONNX models (*.onnx)")
    done = in_stages(
        console,
        rewrite_file,
        graph,
        out,
        **settings_of_graph(fetch, feed, dtype, device, policy_file),
        painter=painter,
        calibration=calibration,
        overwrite=force,
    )
    for result in done.graphs:
        console.print(graphdef.summary(result))
    where = f"[bold]{escape(str(out))}[/bold] ({done.kind})"
    console.print(f"Rewritten in {done.seconds:.2f} s: {where}")


def settings_of_graph(
    fetch: str | None, feed: str, dtype: str, device: str | None, policy_file: Path | None
) -> dict[str, Any]:
    """Converts options to arguments of :func:`duotone.tensorflow.rewrite_file`.

    Raises:
        ArgumentError: as :func:`parse_device`.
        PolicyError: the policy file is not there, or is none.
    """
    return {
        "fetch": None if fetch is None else names(fetch),
        "feed": names(feed),
        **settings(dtype, policy_file),
        "device": _device_of(device, dtype),
    }


def _device_of(text: str | None, dtype: str) -> Device:
    """Parses ``--device`` and prints a note if TensorFlow's passes change nothing on the device.

    Raises:
        ArgumentError: as :func:`parse_device`.
    """
    from duotone.tensorflow.devices import WANTED

    device = parse_device(text)
    if device.type is not None and device.type != WANTED[dtype]:
        typer.echo(
            f"note: TensorFlow's passes change nothing to {dtype} on {text}. They know "
            "float16 on GPUs (--device gpu --dtype float16) and bfloat16 on CPUs (--device cpu "
            "--dtype bfloat16).",
            err=True,
        )
    return device


def parse_device(text: str | None) -> Device:
    """Parses ``--device``.

    Raises:
        ArgumentError: the text is not a known device; the message names the nearest one.
    """
    from duotone.devices.specifications import TARGETS
    from duotone.tensorflow.devices import DEFAULT_DEVICE, Device

    if text is None:
        return DEFAULT_DEVICE
    name, colon, number = text.lower().partition(":")
    if not colon and name in TARGETS:
        target = TARGETS[name]
        if target.platform != "cuda":
            return Device("tpu" if target.platform == "tpu" else "cpu")
        name, number = "gpu", target.capability
    if text.lower() == "tpu":
        return Device("tpu")
    if name == "gpu":
        major, dot, minor = (number or "8.0").partition(".")
        if dot and major.isdecimal() and minor.isdecimal():
            return Device("gpu", compute_capability=(int(major), int(minor)))
    takes = f"it takes {', '.join(TARGETS)}, tpu, gpu, or gpu with a compute capability: gpu:9.0."
    meant = takes if colon else did_you_mean(name, ["gpu", "tpu", *TARGETS], takes)
    raise ArgumentError(f"--device {text}: {meant}")
