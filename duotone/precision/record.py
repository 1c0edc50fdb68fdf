"""The record of one painting: data for people and programs, computed once.

Views read it and compute nothing. Bytes are those of operands and results as a node reads and
writes them: an upper bound, since a compiler fuses nodes and keeps values in registers. Bytes and
FLOPs are per run of the program: an operation in a loop counts once for each iteration.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any, Self

from duotone.errors import ArgumentError
from duotone.graph.graph import Graph, HalfType, Node, Paint
from duotone.graph.products import flops_of
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.casts.cast_plan import CastPlan
from duotone.precision.classify.classes import Classes
from duotone.precision.node_facts import (
    filled_of,
    leaves_of,
    maker_of,
    makers,
    shape_of,
    sizes_of,
)
from duotone.precision.optimize.optimizations import (
    NO_OPTIMIZATIONS,
    Optimizations,
    reasons_by_operation,
)
from duotone.precision.painters.painting import Painting
from duotone.precision.rules import Rule


@dataclasses.dataclass(frozen=True, slots=True)
class OperationRecord:
    """One operation.

    Attributes:
        index: position in program order.
        operation: its name.
        paint: ``"half"`` or ``"full"``: the precision in which it computes.
        stored: the precision of its results.
        rule: name of the rule that decided.
        reason: the words of the rule, with details of this operation.
        list: ``"allow"``, ``"infer"``, ``"deny"``, ``"clear"`` or ``"unlisted"``.
        scope: name scope.
        source: the user's source line.
        shape: the shape of the first result.
        dtype: the dtype of the first result in the original program.
        runs: how often it runs in one run of the program.
        flops: floating point operations, all runs.
        bytes: operands and results as painted, all runs.
        bytes_full: operands and results in the original program, all runs.
        casts: casts made for it (shared ones count for their first reader).
        reads: indices of the operations whose results it reads; nodes that only carry a value into
            or out of a nested program are skipped.
        optimizations: each optimization in effect (``docs/optimizations.md`` lists them): its name
            and what it does here.
        rewritten: whether it belongs to a program inside the explained function that duotone
            rewrites on its own; the record then shows how it runs there.
        operands: the dtype of each operand after casts.
        fixed: why it cannot be half in any painting: its kind, or a precision that the user asked
            for; empty for most.
        given: the arguments and constants that it reads, except single numbers: for each one
            an index, and the bytes of one run.
        sizes: for a dot, the number of matrix products, and rows, terms and columns of each; for
            a convolution, groups, images, positions in a result, elements of a window, and
            features that each group reads and makes; empty for others, and if unknown.
        leaves: how its results leave their body: ``"output"`` for a result of the program, and the
            structural nodes that read them (``"loop.stack"``, ``"loop.carry"``, …).
        filled: for a convolution of a dilated operand, its products if the operand is filled with
            zeros, over those without; 1 for gradients and for other operations.
    """

    index: int
    operation: str
    paint: str
    stored: str
    rule: str
    reason: str
    list: str
    scope: str
    source: str
    shape: tuple[str, ...]
    dtype: str
    runs: int
    flops: float
    bytes: int
    bytes_full: int
    casts: int
    reads: tuple[int, ...] = ()
    rewritten: bool = False
    optimizations: tuple[tuple[str, str], ...] = ()
    operands: tuple[str, ...] = ()
    fixed: str = ""
    given: tuple[tuple[int, int], ...] = ()
    sizes: tuple[int, ...] = ()
    leaves: tuple[str, ...] = ()
    filled: float = 1.0

    @property
    def path(self) -> str:
        """The name scope and operation that patterns of a policy match."""
        return f"{self.scope}/{self.operation}" if self.scope else self.operation


@dataclasses.dataclass(frozen=True, slots=True)
class CastRecord:
    """One cast.

    Attributes:
        to: the dtype of its result.
        shape: the shape of the value.
        maker: operation that makes the value; ``"input"`` or ``"constant"`` without one.
        readers: operations that read the result; ``"output"`` for an output of the program.
        runs: how often it runs.
        sources: indices of the operations that make the value, as in :class:`OperationRecord`.
        targets: indices of the operations that read the result.
    """

    to: str
    shape: tuple[str, ...]
    maker: str
    readers: tuple[str, ...]
    runs: int
    sources: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Totals. FLOPs (a multiply-add is two) and bytes are those of all runs of an operation.

    Attributes:
        half_dtype: the half type.
        operations_half: the number of operations that compute in half.
        operations_full: the number of operations that compute in float32.
        allow_half: the number of allow operations (dots, convolutions) that compute in half.
        allow_total: the number of allow operations.
        flops_half: FLOPs of the operations that compute in half.
        flops_full: FLOPs of the operations that compute in float32.
        bytes_half: bytes of operands and results of the operations that compute in half.
        bytes_full: bytes of operands and results of the operations that compute in float32.
        bytes_original: bytes of operands and results of all operations in the original program.
        casts_inserted: the number of casts.
        unlisted: how often each operation occurs that duotone does not know.
        rewritten: the number of operations in programs inside that are rewritten on their own.
        optimizations: the number of operations that each optimization concerns.
        backward: why ``grad(autocast(f))`` paints the passes separately; empty if it does not.
    """

    half_dtype: str
    operations_half: int
    operations_full: int
    allow_half: int
    allow_total: int
    flops_half: float
    flops_full: float
    bytes_half: int
    bytes_full: int
    bytes_original: int
    casts_inserted: int
    unlisted: dict[str, int]
    rewritten: int = 0
    optimizations: dict[str, int] = dataclasses.field(default_factory=dict)
    backward: str = ""

    @property
    def flops_half_share(self) -> float:
        """Share of FLOPs computed in half, 0 to 1."""
        total = self.flops_half + self.flops_full
        return self.flops_half / total if total else 0.0


@dataclasses.dataclass(frozen=True)
class Record:
    """The record that :func:`duotone.explain` returns.

    Attributes:
        operations: every operation of the program, in order, nested ones included.
        casts: every cast that runs (constants are cast while tracing).
        summary: the totals.
    """

    operations: tuple[OperationRecord, ...] = dataclasses.field(repr=False)
    casts: tuple[CastRecord, ...] = dataclasses.field(repr=False)
    summary: Summary

    def to_json(self, *, indent: int | None = None) -> str:
        """Returns the record as JSON: ``{"summary": …, "operations": […], "casts": […]}``.

        Args:
            indent: spaces of each level, as for ``json.dumps``; ``None`` for one line.
        """
        data: dict[str, Any] = {
            "summary": {
                **dataclasses.asdict(self.summary),
                "flops_half_share": self.summary.flops_half_share,
            },
            "operations": [dataclasses.asdict(operation) for operation in self.operations],
            "casts": [dataclasses.asdict(cast) for cast in self.casts],
        }
        return json.dumps(data, indent=indent)

    @classmethod
    def from_json(cls, content: str) -> Self:
        """Returns the record that :meth:`to_json` wrote.

        Args:
            content: the JSON.

        Raises:
            ArgumentError: it is not JSON, or not the JSON of a record.
        """
        try:
            data = json.loads(content)
            summary = dict(data["summary"])
            summary.pop("flops_half_share")
            return cls(
                tuple(OperationRecord(**_tuples(entry)) for entry in data["operations"]),
                tuple(CastRecord(**_tuples(entry)) for entry in data["casts"]),
                Summary(**summary),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ArgumentError(
                f"this is not the JSON of an explanation ({why}); "
                "duotone.explain(...).to_json() writes it."
            ) from error


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    """Turns the lists of JSON into the tuples of records."""

    def tuples(value: Any) -> Any:
        return tuple(map(tuples, value)) if isinstance(value, list) else value

    return {key: tuples(value) for key, value in entry.items()}


def make_record(
    graph: Graph,
    classes: Classes,
    painting: Painting,
    plan: CastPlan,
    half: HalfType,
    optimizations: Optimizations | None = None,
) -> Record:
    """Combines the results of the stages.

    Args:
        graph: the program.
        classes: the class of each node.
        painting: the precisions.
        plan: the casts.
        half: the half type.
        optimizations: the optimizations; none if omitted.

    Returns:
        The record.
    """
    optimizations = optimizations or NO_OPTIMIZATIONS
    forms = reasons_by_operation(graph, plan, optimizations)
    real = [cast for cast in plan.casts if not cast.free]
    made_for: dict[int, int] = {}
    for cast in real:
        made_for[cast.readers[0]] = made_for.get(cast.readers[0], 0) + 1
    operations = tuple(
        _operation(
            graph,
            node,
            classes,
            painting,
            half,
            made_for.get(node.index, 0),
            forms.get(node.index, ()),
        )
        for node in graph.nodes
        if Trait.STRUCTURAL not in node.traits
    )
    casts = tuple(
        CastRecord(
            to=half.name if cast.to is Paint.HALF else graph.values[cast.value].dtype,
            shape=shape_of(graph, cast.value),
            maker=maker_of(graph, cast.value),
            readers=tuple("output" if r < 0 else graph.nodes[r].op for r in cast.readers),
            runs=graph.bodies[cast.body].trips,
            sources=makers(graph, (cast.value,)),
            targets=tuple(
                r for r in cast.readers if r >= 0 and Trait.STRUCTURAL not in graph.nodes[r].traits
            ),
        )
        for cast in real
    )
    return Record(operations, casts, summarize(operations, casts, half.name))


def _operation(
    graph: Graph,
    node: Node,
    classes: Classes,
    painting: Painting,
    half: HalfType,
    casts: int,
    optimizations: tuple[tuple[str, str], ...],
) -> OperationRecord:
    rule = painting.rules[node.index]
    runs = graph.trips(node)
    first = graph.values[node.outputs[0]] if node.outputs else None
    painted = _traffic(graph, node, painting.compute[node.index], painting.store[node.index])
    return OperationRecord(
        index=node.index,
        operation=node.op,
        paint=str(painting.compute[node.index]),
        stored=str(painting.store[node.index]),
        rule=rule.value,
        reason=painting.reason(node.index),
        list=classes.nodes[node.index].listed.value,
        scope=node.scope,
        source=str(node.source),
        shape=shape_of(graph, first.index) if first else (),
        dtype=first.dtype if first else "none",
        runs=runs,
        flops=flops_of(node) * runs,
        bytes=painted * runs,
        bytes_full=_traffic(graph, node, Paint.FULL, Paint.FULL) * runs,
        casts=casts,
        reads=makers(graph, node.inputs),
        optimizations=optimizations,
        operands=_operands(graph, node, painting.compute[node.index], half.name),
        fixed=node.fixed,
        given=_given(graph, node, painting.compute[node.index]),
        sizes=sizes_of(node),
        leaves=leaves_of(graph, node.outputs),
        filled=filled_of(graph, node),
    )


def _given(graph: Graph, node: Node, compute: Paint) -> tuple[tuple[int, int], ...]:
    """Returns the operands that no operation makes, with their bytes, except single numbers."""
    return tuple(
        (index, graph.values[index].bytes(half=may_be_half and compute is Paint.HALF))
        for index, may_be_half in zip(node.inputs, node.half_inputs, strict=True)
        if graph.values[index].size > 1 and not makers(graph, (index,))
    )


def _operands(graph: Graph, node: Node, compute: Paint, half: str) -> tuple[str, ...]:
    """Returns the dtype of each operand after casts."""
    return tuple(
        half if may_be_half and compute is Paint.HALF else graph.values[index].dtype
        for index, may_be_half in zip(node.inputs, node.half_inputs, strict=True)
    )


def _traffic(graph: Graph, node: Node, compute: Paint, store: Paint) -> int:
    """Returns the bytes of operands and results."""
    total = 0
    for values, flags, paint in (
        (node.inputs, node.half_inputs, compute),
        (node.outputs, node.half_outputs, store),
    ):
        for index, may_be_half in zip(values, flags, strict=True):
            value = graph.values[index]
            total += value.bytes(half=may_be_half and paint is Paint.HALF)
    return total


def summarize(
    operations: tuple[OperationRecord, ...], casts: tuple[CastRecord, ...], half: str
) -> Summary:
    """Returns the totals of operations and casts; ``half`` is the name of the half type."""
    unlisted: dict[str, int] = {}
    for operation in operations:
        if operation.rule == Rule.UNLISTED:
            unlisted[operation.operation] = unlisted.get(operation.operation, 0) + 1
    in_half = [operation for operation in operations if operation.paint == "half"]
    in_full = [operation for operation in operations if operation.paint == "full"]
    allow = [o for o in operations if o.list == Kind.ALLOW.value]
    return Summary(
        half_dtype=half,
        operations_half=len(in_half),
        operations_full=len(in_full),
        allow_half=sum(o.paint == "half" for o in allow),
        allow_total=len(allow),
        flops_half=sum(o.flops for o in in_half),
        flops_full=sum(o.flops for o in in_full),
        bytes_half=sum(o.bytes for o in in_half),
        bytes_full=sum(o.bytes for o in in_full),
        bytes_original=sum(o.bytes_full for o in operations),
        casts_inserted=len(casts),
        unlisted=unlisted,
        rewritten=sum(o.rewritten for o in operations),
        optimizations=dict(Counter(name for o in operations for name, _ in o.optimizations)),
    )
