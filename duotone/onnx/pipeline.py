"""Paints an ONNX model.

::

    model ─ inline functions, take invariants out of loops, infer shapes ─ Reader ─► Graph
          ─ resolve ─► Resolved ─ decide ─► Decisions
          ─ Writer ─► model, CastPlan ─ make_record ─► Record

:func:`duotone.precision.pipeline.decide` calls the stages that decide.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from duotone._checks import check_strings, check_switch
from duotone.errors import OnnxError, PolicyError
from duotone.graph.graph import Graph, HalfType, Node
from duotone.onnx.files import check_values
from duotone.onnx.hints import Hints
from duotone.onnx.invariants import without_invariants
from duotone.onnx.names import OF_JAX, onnx_names
from duotone.onnx.nested import NESTED
from duotone.onnx.opsets import say_newer
from duotone.onnx.parts import Built
from duotone.onnx.protos import ONNX, GraphProto, ModelProto, TensorProto, operation
from duotone.onnx.providers import without_half
from duotone.onnx.reading import Reader
from duotone.onnx.weights import count, is_external
from duotone.ops.onnx import ENTRIES
from duotone.ops.traits import Trait
from duotone.policy.arguments import check_painter, check_policy, half_of_model
from duotone.policy.policy import LISTS, Policy
from duotone.policy.resolve import edited_lists, resolve, without
from duotone.precision.classify.classes import Classes
from duotone.precision.classify.unmatched import warn_of_unmatched
from duotone.precision.painters import PAINTERS
from duotone.precision.painters.painting import Painting
from duotone.precision.pipeline import Capabilities, decide
from duotone.precision.ranges.find import Measured, measured_values
from duotone.precision.ranges.kernels import KERNEL_RULES
from duotone.precision.resolved import Resolved

logger = logging.getLogger("duotone")
CAPABILITIES = Capabilities(
    painters=frozenset(PAINTERS),
    two_precisions=False,
    fuses_casts=False,
    takes_optimizations=False,
    trained_constants=True,
    ranges_for_all_painters=True,
    interval_rules=KERNEL_RULES,
)
"""ONNX models: an operation has one type, a cast is an operation, and weights are constants."""
_NOT_FOR_MODELS = (
    "level",
    "optimizations_remove",
    "ranges",
    "calibration",
    "float32_math",
    "convolution_math",
)
"""Fields without a meaning for a model: an error in code, and logged from the environment."""
_NOT_READ = ("reduce_dtype", "segment_sums", "log_path", "log_decisions")
"""Fields that say nothing about the painting of a model."""
_SHOWS_NAMES = "duotone view model.onnx --nodes '*' shows the operations of a model"
_SMALL_TENSOR = 4096
"""The most elements of a tensor that shape inference gets, since it may be a shape."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one rewrite.

    Attributes:
        half: the half type.
        policy: merged with the environment, without fields that have no meaning for a model.
        keep_io: whether inputs and outputs stay float32.
        provider: the runtime whose kernels are asked for; ``None`` for any.
        measured: the range that calibration found for each value, by name.
        fold_inputs: whether inputs with a default become constants.
    """

    half: HalfType
    policy: Policy
    keep_io: bool = True
    provider: str | None = None
    measured: Mapping[str, Measured] = dataclasses.field(default_factory=dict)
    fold_inputs: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PaintedModel:
    """The values of all stages, up to the painting."""

    model: ModelProto
    built: Built
    classes: Classes
    painting: Painting
    half: HalfType
    fold_inputs: bool


def make_settings(
    dtype: str,
    painter: str | None,
    policy: Policy | None,
    keep_full: Sequence[str],
    *,
    keep_io: bool,
    provider: str | None,
    fold_inputs: bool,
) -> Settings:
    """Checks options and puts them together.

    Raises:
        ArgumentError: a dtype, painter or provider that does not exist.
        PolicyError: the policy has a field without a meaning for a model.
    """
    half = half_of_model(dtype)
    check_policy("duotone.onnx", policy)
    check_switch("duotone.onnx", "keep_io", keep_io)
    check_switch("duotone.onnx", "fold_inputs", fold_inputs)
    given = policy or Policy()
    for field in _NOT_FOR_MODELS:
        if getattr(given, field):
            raise PolicyError(
                f"Policy({field}=...) is not for ONNX models: leave it out. Measured ranges are "
                "the argument calibration=..., nodes to keep are keep_full=[...]."
            )
    merged = given.merged_with_environment()
    _say_ignored(merged)
    asked = check_painter(merged.painter if painter is None else painter, PAINTERS)
    check_strings("duotone.onnx", "keep_full", keep_full)
    merged = without(merged, (*_NOT_FOR_MODELS, *_NOT_READ))
    kept = (*merged.keep_full, *keep_full)
    merged = dataclasses.replace(merged, painter=asked, keep_full=kept)
    without_half(provider, half.name)  # checks it
    return Settings(half, merged, keep_io, provider, fold_inputs=fold_inputs)


def _say_ignored(policy: Policy) -> None:
    """Logs in one line which settings of a policy and the environment have no meaning here."""
    unset = Policy()
    fields = [
        field
        for field in (*_NOT_FOR_MODELS, *_NOT_READ)
        if getattr(policy, field) != getattr(unset, field)
    ]
    if fields:
        logger.warning(
            "ignored for an ONNX model, from the policy or the environment (DUOTONE_..., its "
            "policy file): %s. The documentation lists what applies (Environment variables).",
            ", ".join(fields),
        )


def paint(model: ModelProto, folder: Path | None, settings: Settings) -> PaintedModel:
    """Paints a checked model, which is not changed; its external data is in a folder."""
    half, policy = settings.half, settings.policy
    model = without_invariants(inlined(model))
    resolved = _resolved(model, policy, half)
    opted = frozenset().union(*(onnx_names(getattr(policy, f"{name}_add")) for name in LISTS))
    avoided = without_half(settings.provider, half.name)
    reader = Reader(model, half, folder, NESTED, avoided, opted)
    built = reader.read(
        model.graph,
        Hints(model.graph, inferred(model)),
        keep_io=settings.keep_io,
        fold_inputs=settings.fold_inputs,
    )
    _say_defaults(built)
    say_newer(built, half, reader.opsets[""])

    def names(node: Node) -> tuple[str, ...]:
        return () if Trait.STRUCTURAL in node.traits else _names_of(built, node)

    outer = {v.index: built.names[v.index] for v in built.graph.values if v.body == 0}
    every = (name for node in built.graph.nodes for name in names(node))
    remedy = "duotone view model.onnx --nodes '*' lists them."
    warn_of_unmatched(resolved.pins, every, "node of the model", remedy)
    found = decide(
        built.graph,
        resolved,
        CAPABILITIES,
        assumptions=measured_values(built.graph, outer, settings.measured),
        weights=tuple(built.constants),
        names=names,
    )
    built = dataclasses.replace(built, graph=found.graph)
    return PaintedModel(model, built, found.classes, found.painting, half, settings.fold_inputs)


def _say_defaults(built: Built) -> None:
    """Logs that weights stay float32 because they are inputs."""
    if sum(map(count, built.defaults.values())) > _SMALL_TENSOR:
        logger.warning(
            "%d weights of the model are inputs too, so they keep their type and are cast inside. "
            "fold_inputs=True (--fold-inputs) makes constants of them, stored half.",
            len(built.defaults),
        )


def inlined(model: ModelProto) -> ModelProto:
    """Returns the model with the bodies of its functions in place of their calls.

    Raises:
        OnnxError: a function calls itself, or cannot be inlined.
    """
    if not model.functions:
        return model
    calls = {(f.domain, f.name): {(n.domain, n.op_type) for n in f.node} for f in model.functions}
    left = dict(calls)
    while left:
        leaves = [key for key, called in left.items() if called.isdisjoint(left)]
        if not leaves:
            names = ", ".join(sorted(f"{d}.{n}" for d, n in left))
            raise OnnxError(f"functions call one another in a circle: {names}.")
        for key in leaves:
            del left[key]
    try:
        made = ONNX.inliner.inline_local_functions(model)
    except Exception as error:
        raise OnnxError(f"its functions cannot be inlined: {error}") from error
    check_values(made.graph)
    return made


def inferred(model: ModelProto) -> GraphProto | None:
    """Returns the graph with the shapes that ONNX infers; ``None`` where it finds none."""
    bare = ONNX.ModelProto()
    bare.ir_version = model.ir_version
    bare.opset_import.extend(model.opset_import)
    _without_weights(model.graph, bare.graph)
    try:
        return ONNX.shape_inference.infer_shapes(bare, data_prop=True).graph
    except Exception as error:  # an inference that fails is none; dtypes are found without it
        logger.debug("ONNX infers no shapes: %s", error)
        return None


def _without_weights(graph: GraphProto, bare: GraphProto) -> None:
    """Removes the elements of large tensors from a graph: shape inference needs none of them."""
    bare.name = graph.name
    bare.input.extend(graph.input)
    bare.output.extend(graph.output)
    bare.value_info.extend(graph.value_info)
    bare.sparse_initializer.extend(graph.sparse_initializer)
    for tensor in graph.initializer:
        _stub(tensor, bare.initializer.add())
    for node in graph.node:
        made = bare.node.add()
        made.op_type, made.domain, made.name = node.op_type, node.domain, node.name
        made.input.extend(node.input)
        made.output.extend(node.output)
        for found in node.attribute:
            attribute = made.attribute.add()
            if found.type == ONNX.AttributeProto.GRAPH:
                attribute.name, attribute.type = found.name, found.type
                _without_weights(found.g, attribute.g)
            elif found.type == ONNX.AttributeProto.TENSOR:
                attribute.name, attribute.type = found.name, found.type
                _stub(found.t, attribute.t)
            else:
                attribute.CopyFrom(found)


def _stub(tensor: TensorProto, made: TensorProto) -> None:
    """Makes a tensor of the same name, shape and type; a small one has its elements too."""
    if count(tensor) <= _SMALL_TENSOR and not is_external(tensor):
        made.CopyFrom(tensor)
        return
    made.name, made.data_type = tensor.name, tensor.data_type
    made.dims.extend(tensor.dims)


def _resolved(model: ModelProto, policy: Policy, half: HalfType) -> Resolved:
    """Returns the policy as the stages take it, for the operations of a model."""
    used = {operation(node) for node in model.graph.node}
    own = {schema.name for schema in ONNX.defs.get_all_schemas()}
    policy.check_names(used | own | {entry.op for entry in ENTRIES} | OF_JAX.keys(), _SHOWS_NAMES)
    return resolve(policy, half, edited_lists(policy, half, ENTRIES, onnx_names))


def _names_of(built: Built, node: Node) -> tuple[str, ...]:
    """Returns the names that may refer to a node: its own, its operation's, its results'."""
    op = built.operations.get(node.index, node.op)
    own = str(node.source)
    path = f"{node.scope}/{op}" if node.scope else op
    return (own, own.strip("/"), path, op, *(built.names[value] for value in node.outputs))


def shown_graph(built: Built) -> Graph:
    """Returns the graph whose nodes are named by their operations in the file."""
    nodes = tuple(
        dataclasses.replace(node, op=built.operations[node.index])
        if node.index in built.operations
        else node
        for node in built.graph.nodes
    )
    return dataclasses.replace(built.graph, nodes=nodes)
