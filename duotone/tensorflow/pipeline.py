"""Rewrites a GraphDef.

duotone's painter reads the units into a neutral graph, and the pipeline of all front ends decides.
TensorFlow's painter runs the passes of the original on the units themselves, which are finer than
the nodes of a neutral graph. A policy is resolved as for every front end.

::

    lists    = make_lists(dtype, device, policy)
    resolved = resolve(policy, lists)
    for the graph, then for each function that it reaches:
        processed = not fetched, fed or kept, and on the device
        FusedBatchNorm becomes FusedBatchNormV2 where processed
        units     = make_units(graph)
        precisions   = paint(units)                    "duotone", "tensorflow" or "mincut"
        casts     = apply(precisions)
"""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import logging
import re
from collections.abc import Collection, Mapping, Sequence

from duotone._checks import check_switch
from duotone.errors import ArgumentTypeError, PolicyError, plural, shown
from duotone.graph.collector import collector_paused
from duotone.measuring.ranges import NO_MEASUREMENTS, check_measured
from duotone.ops.tensorflow_meanings import ENTRIES
from duotone.policy.arguments import check_painter, check_policy, half_of_model
from duotone.policy.policy import Policy
from duotone.policy.resolve import edited_lists, resolve, without
from duotone.precision.classify.profitability import EVERYTHING
from duotone.precision.classify.unmatched import warn_of_unmatched
from duotone.precision.ranges.find import Measured
from duotone.precision.resolved import Resolved
from duotone.tensorflow import dumps
from duotone.tensorflow.calls import is_kept, keep_calls, loop_bodies, release
from duotone.tensorflow.casts import apply
from duotone.tensorflow.checks import check_graph
from duotone.tensorflow.describe import describe
from duotone.tensorflow.devices import DEFAULT_DEVICE, WANTED, Device, placement
from duotone.tensorflow.functions import FunctionBody, drop_unreachable, rewritable
from duotone.tensorflow.lists import make_lists
from duotone.tensorflow.log_lines import MAIN_GRAPH
from duotone.tensorflow.mincut import paint_mincut
from duotone.tensorflow.op_registry import OpDefinition, define_function, find_op, op_names
from duotone.tensorflow.painting import find_unsafe, paint_duotone
from duotone.tensorflow.passes import Reason, paint
from duotone.tensorflow.preparation import (
    drop_doubled_controls,
    find_preserved,
    use_second_versions,
    write_default_types,
)
from duotone.tensorflow.protos import GraphDef, NodeDef, bodies_of, library_of
from duotone.tensorflow.rewrite_record import BodyResult, RewriteResult
from duotone.tensorflow.shapes import Shapes
from duotone.tensorflow.unit_facts import Facts
from duotone.tensorflow.units import make_units

PAINTERS = ("duotone", "tensorflow", "mincut")
_NOT_FOR_GRAPHS = (
    "keep_half",
    "optimizations_remove",
    "ranges",
    "calibration",
    "float32_math",
    "convolution_math",
    "reduce_dtype",
    "segment_sums",
    "heal",
)
"""Fields without a meaning for a GraphDef: an error in code, and ignored in the environment."""
_SHOWS_NAMES = "duotone view graph.pb shows the ops of a graph"
logger = logging.getLogger("duotone")


@dataclasses.dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of a graph and of all its functions."""

    resolved: Resolved
    device: Device
    functions: Mapping[str, OpDefinition]
    skipped: bool
    kept_full: tuple[re.Pattern[str], ...]
    loops: Mapping[str, Collection[int]]
    rules: Resolved | None
    """duotone's rules, with which another painter's choices are checked; None for no check."""
    compiled: bool = False
    measured: Mapping[str, Measured] = dataclasses.field(default_factory=dict)

    def find_op(self, name: str) -> OpDefinition | None:
        """Returns the definition of an op or function."""
        return self.functions.get(name) or find_op(name)


def rewrite(
    graph_def: GraphDef,
    *,
    fetch: Sequence[str] = (),
    feed: Sequence[str] = (),
    dtype: str = "float16",
    painter: str | None = None,
    device: Device = DEFAULT_DEVICE,
    policy: Policy | None = None,
    keep_functions: bool = False,
    compiled: bool = False,
    measured: Mapping[str, Measured] = NO_MEASUREMENTS,
) -> RewriteResult:
    """Rewrites a TensorFlow graph to mixed precision; TensorFlow need not be installed.

    Args:
        graph_def: a ``GraphDef``; it is not changed.
        fetch: names of the nodes (``"name"`` or ``"name:0"``) that are fetched; these keep their
            types.
        feed: names of the nodes that are fed; placeholders always are.
        dtype: ``"float16"`` (TensorFlow's mode for NVIDIA GPUs) or ``"bfloat16"`` (oneDNN on CPUs).
        painter: ``"duotone"`` for duotone's rules; ``"tensorflow"`` for TensorFlow's passes, bug
            for bug; ``"mincut"`` for the precisions with the fewest bytes of casts under
            TensorFlow's deny rules. With ``None``, the policy's painter is used.
        device: where nodes without a device run, and which ops are fast there.
        policy: list edits, level, ``ignore_performance``, ``keep_full`` (patterns of node names; of
            a function's nodes with or without ``function/`` before them), and the folder for dumps.
            The environment is merged into it.
        keep_functions: keep the functions of the library that the graph does not reach, which
            TensorFlow drops. A SavedModel calls such functions by name.
        compiled: XLA compiles the graph (``jit_compile=True``), so that casts cost nothing by
            themselves.
        measured: for duotone's painter, the ranges of values by port, from
            :func:`duotone.tensorflow.calibrate`. Values that do not fit half stay float32.

    Returns:
        The rewritten copy, and a record of all decisions.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: a dtype or painter that does not exist.
        GraphDefError: the graph is damaged or has ops that TensorFlow 2.21 lacks.
        PolicyError: the policy contradicts itself.

    Example:
        >>> import duotone.tensorflow
        >>> from duotone.tensorflow.protos import FLOAT, new_graph
        >>> graph = new_graph()
        >>> node = graph.node.add(name="x", op="Placeholder")
        >>> node.attr["dtype"].type = FLOAT
        >>> node = graph.node.add(name="y", op="MatMul", input=["x", "x"])
        >>> node.attr["T"].type = FLOAT
        >>> result = duotone.tensorflow.rewrite(graph)
        >>> result.painting["y"], result.casts[0].name
        ({'T': 'f16'}, 'x-0-CastToFp16-0-AutoMixedPrecision')
    """
    for name, value in (("keep_functions", keep_functions), ("compiled", compiled)):
        check_switch("duotone.tensorflow.rewrite", name, value)
    if getattr(getattr(graph_def, "DESCRIPTOR", None), "name", "") != "GraphDef":
        raise ArgumentTypeError(
            f"duotone.tensorflow.rewrite: graph_def is {shown(graph_def)}; pass a GraphDef. For a "
            "file there is duotone.tensorflow.rewrite_file"
        )
    check_measured("duotone.tensorflow.rewrite", "duotone.tensorflow.calibrate", measured)
    settings = _settings(graph_def, dtype, painter, device, policy)
    settings = dataclasses.replace(settings, compiled=compiled, measured=measured)
    check_graph(graph_def)
    _warn_of_unmatched(graph_def, settings)
    return _rewritten(graph_def, fetch, feed, settings, keep_functions)


def rewrite_one_of_many(
    graph_def: GraphDef,
    fetch: Sequence[str],
    *,
    dtype: str,
    device: Device,
    policy: Policy | None,
    compiled: bool,
) -> RewriteResult:
    """Rewrites as :func:`rewrite` does; logs no pattern that matches nothing.

    Another graph may have the name, and ``explain_last()`` tells if none does.
    """
    settings = _settings(graph_def, dtype, None, device, policy)
    check_graph(graph_def)
    settings = dataclasses.replace(settings, compiled=compiled)
    return _rewritten(graph_def, fetch, (), settings, keep_functions=False)


def _rewritten(
    graph_def: GraphDef,
    fetch: Sequence[str],
    feed: Sequence[str],
    settings: _Settings,
    keep_functions: bool,
) -> RewriteResult:
    graph = copy.deepcopy(graph_def)
    marks = () if settings.resolved.painter == "tensorflow" else keep_calls(graph)
    with collector_paused():
        done = _rewrite_all(graph, find_preserved(graph, fetch, feed), settings, keep_functions)
    release(done.graph_def, marks)
    _warn_of_unsafe(done, settings.resolved.painter)
    return done


def rewrite_nodes(
    graph: GraphDef,
    preserved: Collection[str],
    *,
    dtype: str,
    device: Device,
    policy: Policy | None,
    checked: bool = False,
) -> BodyResult:
    """Rewrites the nodes of a graph that TensorFlow has checked, in place, and no function.

    The arguments are those of :func:`rewrite`. If ``checked``, the result names the half nodes that
    duotone's safety rules would keep float32, which takes as long as the rewrite; then nothing is
    logged or written to a folder.
    """
    settings = _settings(graph, dtype, None, device, policy)
    if checked:
        quiet = dataclasses.replace(settings.resolved, log_path=None, log_decisions=False)
        settings = dataclasses.replace(settings, resolved=quiet)
    else:
        settings = dataclasses.replace(settings, rules=None)
    with collector_paused():
        return _rewrite_body(graph, MAIN_GRAPH, preserved, settings)


def _rewrite_all(
    graph: GraphDef, preserved: Collection[str], settings: _Settings, keep_functions: bool
) -> RewriteResult:
    """Rewrites a graph in place, then the functions that it reaches."""
    main = _rewrite_body(graph, MAIN_GRAPH, preserved, settings)
    dropped = () if keep_functions else drop_unreachable(graph)
    functions: dict[str, BodyResult] = {}
    by_name = library_of(graph)
    for name in () if settings.skipped else rewritable(graph):
        body = FunctionBody(by_name[name], settings.find_op)
        functions[name] = _rewrite_body(body.graph, name, body.preserved, settings)
        by_name[name].CopyFrom(body.close(functions[name].casts))
    return RewriteResult(
        main.painting,
        main.casts,
        main.op_changes,
        main.decisions,
        unsafe=main.unsafe,
        graph_def=graph,
        functions=functions,
        dropped_functions=dropped,
    )


def _settings(
    graph: GraphDef, dtype: str, painter: str | None, device: Device, policy: Policy | None
) -> _Settings:
    half = half_of_model(dtype)
    dtype = half.name
    if painter is not None:
        check_painter(painter, PAINTERS)
    check_policy("duotone.tensorflow", policy)
    if not isinstance(device, Device):
        raise ArgumentTypeError(
            f"device is {shown(device)}; pass duotone.tensorflow.Device('cpu') or ('gpu')"
        )
    given = policy or Policy()
    _check_policy(given)
    merged = given.merged_with_environment()
    painter = merged.painter if painter is None else painter
    merged = dataclasses.replace(without(merged, _NOT_FOR_GRAPHS), painter=painter)
    device = device.resolve(dtype)
    functions = {name: define_function(f.signature) for name, f in library_of(graph).items()}
    fast = device.is_fast or (device.type == "gpu" and merged.ignore_performance)
    known = op_names() | functions.keys()
    by_rules = edited_lists(merged, half, ENTRIES)
    if painter == "duotone":
        merged.check_names(known | {entry.op for entry in ENTRIES}, _SHOWS_NAMES)
        lists, rules = by_rules, None
    else:
        rules = resolve(dataclasses.replace(merged, painter="duotone"), half, by_rules)
        lists = make_lists(dtype, device, merged, known)
    return _Settings(
        resolve(
            merged,
            half,
            lists,
            profitability=device.gains if painter == "duotone" else EVERYTHING,
        ),
        device,
        functions=functions,
        skipped=dtype == "float16" and not fast,
        loops=loop_bodies(graph),
        rules=rules,
        kept_full=tuple(re.compile(fnmatch.translate(name)) for name in merged.keep_full),
    )


def _check_policy(policy: Policy) -> None:
    """Raises if a policy sets a field that has no meaning for a GraphDef."""
    unset = Policy()
    for field in _NOT_FOR_GRAPHS:
        if getattr(policy, field) != getattr(unset, field):
            raise PolicyError(
                f"Policy({field}=...) is for JAX programs and has no meaning for a GraphDef: leave "
                "it out. To make more ops half, put them on the allow, infer or clear list; to "
                "keep nodes full there is keep_full."
            )


def _warn_of_unsafe(result: RewriteResult, painter: str) -> None:
    """Logs the half operations that duotone's safety rules would keep float32."""
    found = {**result.unsafe}
    for name, function in result.functions.items():
        found |= {f"{name}/{node}": words for node, words in function.unsafe.items()}
    if found:
        node, words = next(iter(found.items()))
        logger.warning(
            "the painter %r makes %s half that duotone's safety rules keep float32, such as %r "
            "(%s). painter='duotone' (--painter duotone) keeps them.",
            painter,
            plural(len(found), "node"),
            node,
            words,
        )


def _names(node: NodeDef, function: str) -> tuple[str, ...]:
    """Returns the names of a node: of a function's, with the function's before it as well."""
    return (node.name, f"{function}/{node.name}") if function else (node.name,)


def _warn_of_unmatched(graph: GraphDef, settings: _Settings) -> None:
    """Logs the patterns of ``keep_full`` that match no node of the graph or of a function."""
    bodies = bodies_of(graph)
    names = (name for where, nodes in bodies for node in nodes for name in _names(node, where))
    remedy = "duotone view --nodes lists them."
    warn_of_unmatched(settings.resolved.pins, names, "node of the graph", remedy)


def _rewrite_body(
    graph: GraphDef, item: str, preserved: Collection[str], settings: _Settings
) -> BodyResult:
    """Rewrites one graph in place."""
    dump = dumps.start(settings.resolved, item)
    if not settings.skipped:
        dump.before(graph)
    default, function = settings.device.type or "gpu", "" if item == MAIN_GRAPH else item
    kept = tuple(
        node.name in preserved
        or is_kept(node)
        or any(p.match(name) for name in _names(node, function) for p in settings.kept_full)
        for node in graph.node
    )
    processed = tuple(
        not settings.skipped
        and not is_preserved
        and placement(node.device, default).is_on(WANTED[settings.resolved.half.name])
        for node, is_preserved in zip(graph.node, kept, strict=True)
    )
    changes = use_second_versions(graph, processed)
    write_default_types(graph, settings.find_op)
    drop_doubled_controls(graph)
    units = make_units(graph, settings.find_op)
    facts = Facts(
        units,
        Shapes(units),
        settings.resolved,
        tuple(settings.resolved.lists.get(node.op, node.op).kind for node in units.nodes),
        processed,
        default,
        settings.functions,
        settings.loops.get(item),
        settings.compiled,
    )
    unsafe: Mapping[int, Reason] = {}
    if settings.rules is not None and not settings.skipped:
        unsafe = find_unsafe(dataclasses.replace(facts, resolved=settings.rules))
    if settings.resolved.painter == "duotone":
        precisions = paint_duotone(facts, NO_MEASUREMENTS if function else settings.measured)
    else:
        precisions = paint(facts)
        if settings.resolved.painter == "mincut":
            precisions = paint_mincut(facts, precisions)
    painting, decisions = describe(
        facts, precisions, hidden=bool(function), skipped=settings.skipped
    )
    casts = apply(graph, facts, precisions.allow)
    chosen = {
        units.nodes[units.node[unit]].name: reason.words
        for unit, reason in unsafe.items()
        if unit in precisions.allow
    }
    result = BodyResult(painting, casts, changes, decisions, unsafe=chosen)
    if not settings.skipped:
        dump.after(graph, facts, precisions, result, kept)
    return result
