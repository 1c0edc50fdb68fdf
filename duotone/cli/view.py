"""``duotone view`` shows how a graph is painted and why, in the terminal or in TensorBoard.

It paints a TensorFlow graph or ONNX model without writing it. The JSON of an explanation
(``duotone.explain(...).to_json()``) contains a painted JAX program.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from duotone.cli import onnx_models as onnx
from duotone.cli.output import in_stages
from duotone.cli.rewrite import (
    DeviceOption,
    DtypeOption,
    FeedOption,
    FetchOption,
    PainterChoice,
    PainterOption,
    settings_of_graph,
)
from duotone.cli.run import PolicyFileOption
from duotone.cli.user_program import settings
from duotone.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import Console

    from duotone.precision.record import Record
    from duotone.tensorflow.rewrite_file import FileResult


def view(
    graph: Annotated[
        Path,
        typer.Argument(
            help="A graph or ONNX model as for rewrite, or the JSON of duotone.explain(...).",
            metavar="GRAPH",
        ),
    ],
    nodes: Annotated[
        str | None,
        typer.Option(
            help="Show these nodes one by one, or operations of these name scopes: '*/conv1/*'.",
            metavar="PATTERN",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show casts and their bytes for every painter.")
    ] = False,
    most: Annotated[int, typer.Option(min=1, help="The most lines to show.")] = 100,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            help="Write the graph before and after for TensorBoard's Graphs dashboard.",
            metavar="LOGDIR",
        ),
    ] = None,
    fetch: FetchOption = None,
    feed: FeedOption = "",
    dtype: DtypeOption = "float16",
    painter: PainterOption = None,
    device: DeviceOption = None,
    policy_file: PolicyFileOption = None,
    keep_io: onnx.KeepIoOption = True,
    keep_full: onnx.KeepFullOption = None,
    calibration: onnx.CalibrationOption = None,
    provider: onnx.ProviderOption = None,
) -> None:
    """Show how a graph is painted and why, as a table or colored in TensorBoard."""
    from rich.console import Console

    console = Console()
    if onnx.is_model(graph):
        from duotone.onnx import rewrite as rewrite_onnx

        graphs = {"--fetch": fetch, "--feed": feed, "--device": device, "--compare": compare}
        onnx.check_options(graph, graphs, "TensorFlow graphs")
        painted = in_stages(
            console,
            rewrite_onnx,
            graph,
            None,
            **settings(dtype, policy_file),
            painter=painter,
            keep_io=keep_io,
            keep_full=keep_full or (),
            calibration=calibration,
            provider=provider,
        )
        _show_record(console, painted.record, nodes, most, tensorboard)
        return
    models = {"--half-io": not keep_io, "--keep-full": keep_full, "--provider": provider}
    onnx.check_options(graph, models, "ONNX models (*.onnx)")
    if _is_json(graph):
        paints = {
            "--compare": compare,
            "--fetch": fetch,
            "--feed": feed,
            "--painter": painter,
            "--device": device,
            "--policy-file": policy_file,
            "--calibration": calibration,
        }
        onnx.check_options(graph, paints, "graphs")
        _show_record(console, read_record(graph), nodes, most, tensorboard)
        return
    from duotone.tensorflow.rewrite_file import rewrite_file

    asked = settings_of_graph(fetch, feed, dtype, device, policy_file)
    if compare:
        if nodes is not None or tensorboard is not None:
            raise ArgumentError("--compare shows one table: leave out --nodes and --tensorboard.")
        _compare(console, graph, asked)
        return
    done = in_stages(
        console, rewrite_file, graph, None, **asked, painter=painter, calibration=calibration
    )
    _show_graphs(console, done, nodes, most, tensorboard)


def _show_graphs(
    console: Console, done: FileResult, where: str | None, most: int, logdir: Path | None
) -> None:
    """Prints the graphs of a file or some of their nodes, and writes them for TensorBoard."""
    from duotone.tensorflow import graph_view as graphdef

    for number, result in enumerate(done.graphs):
        if where is None:
            console.print(graphdef.by_op(result.result))
        else:
            console.print(graphdef.by_node(result.result, where, most))
        console.print()
        console.print(graphdef.summary(result))
        if logdir is not None:
            folder = logdir if number == 0 else logdir / f"graph_{number}"
            graphdef.write_tensorboard(folder, result.before, result.result)
    if logdir is not None:
        _say_where(console, logdir)


def _compare(console: Console, graph: Path, asked: dict[str, Any]) -> None:
    """Compares the painters on each graph of a file."""
    from duotone.tensorflow import graph_view as graphdef
    from duotone.tensorflow.rewrite_file import rewrite_file

    painted = {
        painter: in_stages(console, rewrite_file, graph, None, **asked, painter=painter).graphs
        for painter in get_args(PainterChoice)
    }
    for number in range(len(painted["tensorflow"])):
        results = {name: graphs[number].result for name, graphs in painted.items()}
        console.print(graphdef.comparison(results))


def _is_json(path: Path) -> bool:
    """Returns True if a file starts like a JSON object."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(100).lstrip().startswith(b"{")


def read_record(path: Path) -> Record:
    """Reads the record in a file from ``duotone.explain(...).to_json()``.

    Raises:
        ArgumentError: the file contains something else.
    """
    from duotone.precision.record import Record

    try:
        return Record.from_json(path.read_text(encoding="utf-8"))
    except (ArgumentError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: {error}") from error


def _show_record(
    console: Console, record: Record, where: str | None, most: int, logdir: Path | None
) -> None:
    """Prints a record or some of its operations, and writes it for TensorBoard."""
    from duotone.explaining.operation_rows import Rows
    from duotone.explaining.overview import Overview

    console.print(
        Overview(record, hint="--nodes '*/attention/*'")
        if where is None
        else Rows(record, where, most=most)
    )
    if logdir is not None:
        from duotone.explaining import tensorboard

        tensorboard.write_record(logdir, record)
        _say_where(console, logdir)


def _say_where(console: Console, logdir: Path) -> None:
    from rich.markup import escape

    console.print(
        f"Now run [bold]tensorboard --logdir {escape(str(logdir))}[/bold], open Graphs, and set "
        "Color by to Device (precision) or XLA cluster (list)."
    )
