"""Apply: applies a painting to a model.

::

    constants  one for each precision in which they are read; the first keeps the old name
    casts      one for each value, precision and graph: right after the node that makes the value,
               before a loop in which it does not change, or inside the only branch that reads it
    results    of the model keep their names and types; the half value before the cast is renamed

:mod:`duotone.onnx.verify` checks the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from duotone.graph.graph import Boundary, Graph, Paint
from duotone.onnx.demands import Demands
from duotone.onnx.parts import Built, FileStep, Part
from duotone.onnx.pipeline import PaintedModel
from duotone.onnx.protos import (
    FLOAT,
    NUMBERS,
    ONNX,
    GraphProto,
    ModelProto,
    NodeProto,
    graphs_in,
    nodes_in,
)
from duotone.onnx.storage import Storage
from duotone.precision.casts.cast_plan import Cast, CastPlan

_SUFFIX = {Paint.HALF: "half", Paint.FULL: "full"}


def apply(painted: PaintedModel, storage: Storage) -> tuple[ModelProto, CastPlan]:
    """Returns the rewritten model, and the casts in it."""
    writer = Writer(painted, storage)
    made = ONNX.ModelProto()
    source = painted.model
    made.CopyFrom(_without_graph(source))
    if painted.fold_inputs:  # before IR version 4 every initializer had to be an input
        made.ir_version = max(made.ir_version, 4)
    made.graph.CopyFrom(writer.graph(painted.built.root))
    return made, CastPlan(tuple(writer.casts), {})


def _without_graph(model: ModelProto) -> ModelProto:
    """Returns a model without its graph."""
    made = ONNX.ModelProto()
    for field, value in model.ListFields():
        if field.name == "graph":
            continue
        if isinstance(value, int | str | bytes):
            setattr(made, field.name, value)
        else:
            getattr(made, field.name).extend(value)
    return made


class Writer:
    """Writes one model.

    Attributes:
        casts: the planned casts, in the order of their first reader.
    """

    def __init__(self, painted: PaintedModel, storage: Storage) -> None:
        self._built: Built = painted.built
        self._graph: Graph = painted.built.graph
        self._number = NUMBERS[painted.half.name]
        self._half = painted.half
        self._storage = storage
        self._folded = painted.fold_inputs
        self._names = list(painted.built.names)
        self._taken = set(_all_names(painted.model.graph))
        self._node_names = {node.name for node in nodes_in(painted.model.graph)}
        self._copies: dict[tuple[int, Paint], str] = {}
        self._of_body: dict[int, dict[tuple[int, Paint], str]] = {}
        self._returned = dict(self._graph.outputs)
        self._demands = Demands(painted.built, painted.painting)
        self._name_constants()
        self._name_casts()
        self.casts = [
            Cast(value, to, body, tuple(readers), free=False, exact=False, materialized="")
            for (value, to, body), readers in self._demands.readers.items()
        ]

    # ------------------------------------------------------------- names

    def _unique(self, name: str) -> str:
        found, number = name, 1
        while found in self._taken:
            number += 1
            found = f"{name}_{number}"
        self._taken.add(found)
        return found

    def _name_constants(self) -> None:
        for value, constant in self._built.constants.items():
            wanted = self._demands.wanted.get(value) or {Paint.FULL: None}
            first = Paint.FULL if Paint.FULL in wanted else Paint.HALF
            if self._returned.get(value) is Boundary.HALF:
                first = Paint.HALF
            for paint in sorted(wanted, key=lambda paint: paint is not first):
                name = constant.name
                if paint is not first:
                    name = self._unique(f"{name}_{_SUFFIX[paint]}")
                self._copies[value, paint] = name

    def _name_casts(self) -> None:
        for value, to, body in self._demands.readers:
            name = self._names[value]
            if body == 0 and value in self._returned and self._graph.values[value].producer >= 0:
                boundary = self._returned[value]
                if (boundary is Boundary.HALF) == (to is Paint.HALF):
                    self._of_body.setdefault(body, {})[value, to] = name
                    continue
            made = self._unique(f"{name}_{_SUFFIX[to]}")
            self._of_body.setdefault(body, {})[value, to] = made
        for (value, to), name in self._of_body.get(0, {}).items():
            if name == self._names[value]:
                stored = Paint.FULL if to is Paint.HALF else Paint.HALF
                self._names[value] = self._unique(f"{name}_{_SUFFIX[stored]}")

    def _name(self, value: int, want: Paint | None, body: int) -> str:
        """Returns the name under which a graph reads a value."""
        if value in self._built.constants:
            paints = (want,) if want is not None else (Paint.FULL, Paint.HALF)
            return next(
                self._copies[value, paint] for paint in paints if (value, paint) in self._copies
            )
        if want is None or self._demands.stored(value) is want:
            return self._names[value]
        while (value, want) not in self._of_body.get(body, {}):
            body = self._graph.bodies[body].parent
        return self._of_body[body][value, want]

    # ------------------------------------------------------------- writing

    def graph(self, part: Part) -> GraphProto:
        """Returns a graph of the model, rewritten, including nested graphs."""
        old = part.graph
        made = ONNX.GraphProto()
        made.name, made.doc_string = old.name, old.doc_string
        own = {self._built.names[v]: v for v in self._own(part)}
        initial = {t.name for t in old.initializer} if self._folded and not part.body else ()
        for info in old.input:
            if info.name not in initial:
                self._copy_info(made.input.add(), info, self._is_half(own.get(info.name)))
        self._initializers(part, made)
        made.quantization_annotation.extend(old.quantization_annotation)
        made.metadata_props.extend(old.metadata_props)
        local = {value.name for value in made.input}
        local |= {tensor.name for tensor in made.initializer}
        local |= {sparse.values.name for sparse in made.sparse_initializer}
        defined = {v for step in part.steps for v in step.outputs if v >= 0}
        # A value has one cast at most, to the precision in which it is not stored.
        casts = {v: (to, name) for (v, to), name in self._of_body.get(part.body, {}).items()}
        made.node.extend(self._cast(v, *cast) for v, cast in casts.items() if v not in defined)
        for step in part.steps:
            made.node.extend(self._step(step, part))
            made.node.extend(self._cast(v, *casts[v]) for v in step.outputs if v in casts)
        local |= {name for node in made.node for name in node.output}
        self._results(part, made, local)
        for info in old.value_info:
            value = own.get(info.name)
            half = self._is_half(value) and value is not None and self._names[value] == info.name
            self._copy_info(made.value_info.add(), info, half)
        return made

    def _own(self, part: Part) -> Iterable[int]:
        """Returns the values that a graph defines, without the constants of a nested one."""
        if part.body == 0:
            return [value.index for value in self._graph.values if value.body == 0]
        return [*part.inputs, *(v for step in part.steps for v in step.outputs if v >= 0)]

    def _is_half(self, value: int | None) -> bool:
        if value is None or not self._graph.values[value].paintable:
            return False
        if value in self._built.constants:
            return self._copies.get((value, Paint.HALF)) == self._built.constants[value].name
        return self._demands.stored(value) is Paint.HALF

    def _copy_info(self, made: Any, info: Any, half: bool) -> None:
        made.CopyFrom(info)
        if half and made.type.tensor_type.elem_type == FLOAT:
            made.type.tensor_type.elem_type = self._number

    def _initializers(self, part: Part, made: GraphProto) -> None:
        known = {self._built.names[v]: v for v in part.constants}
        for tensor in part.graph.initializer:
            made.initializer.extend(self._stored(tensor, known.get(tensor.name)))
        for sparse in part.graph.sparse_initializer:
            for stored in self._stored(sparse.values, known.get(sparse.values.name)):
                copy = made.sparse_initializer.add(indices=sparse.indices, dims=sparse.dims)
                copy.values.CopyFrom(stored)

    def _stored(self, tensor: Any, value: int | None) -> Iterator[Any]:
        """Yields a tensor of an initializer, once for each precision in which it is read."""
        if value is None or value not in self._built.constants:
            yield self._storage.kept(tensor)
            return
        for paint in (Paint.FULL, Paint.HALF):
            if name := self._copies.get((value, paint)):
                is_half = paint is Paint.HALF
                halved, kept = self._storage.halved, self._storage.kept
                yield _called(name, halved(tensor, self._half) if is_half else kept(tensor))

    def _results(self, part: Part, made: GraphProto, local: set[str]) -> None:
        for info, value, reader in zip(part.graph.output, part.outputs, part.readers, strict=True):
            want = self._demands.want_result(part, value, reader)
            name = self._name(value, want, part.body)
            if part.body and name not in local:
                copy = self._unique(f"{info.name}_result")
                made.node.append(ONNX.helper.make_node("Identity", [name], [copy]))
                local.add(copy)
                name = copy
            output = made.output.add()
            self._copy_info(output, info, want is Paint.HALF)
            output.name = info.name if part.body == 0 else name

    def _cast(self, value: int, to: Paint, name: str) -> NodeProto:
        number = self._number if to is Paint.HALF else FLOAT
        own = self._unique(f"{name}_cast") if name in self._node_names else name
        return ONNX.helper.make_node("Cast", [self._names[value]], [name], own, to=number)

    def _step(self, step: FileStep, part: Part) -> list[NodeProto]:
        """Returns the nodes that replace one node."""
        old = step.node
        if step.index < 0 and not step.parts and step.outputs[0] in self._built.constants:
            return self._constant(step)
        pairs = zip(step.inputs, step.readers, strict=True)
        wants = [self._demands.want(v, reader) if v >= 0 else None for v, reader in pairs]
        inputs = [
            self._name(v, want, part.body) if v >= 0 else ""
            for v, want in zip(step.inputs, wants, strict=True)
        ]
        if old.op_type == "Cast" and step.index >= 0 and self._drop(step, inputs[0], wants[0]):
            return []
        made = ONNX.NodeProto()
        for field in ("name", "op_type", "domain", "doc_string", "overload"):
            if getattr(old, field):
                setattr(made, field, getattr(old, field))
        made.input.extend(inputs)
        made.output.extend(self._names[v] if v >= 0 else "" for v in step.outputs)
        made.metadata_props.extend(old.metadata_props)
        graphs = iter(step.parts)
        for found in old.attribute:
            attribute = made.attribute.add()
            if found.type == ONNX.AttributeProto.GRAPH:
                attribute.name, attribute.type = found.name, found.type
                inner = next(graphs, None)
                attribute.g.CopyFrom(found.g if inner is None else self.graph(inner))
            elif found.type == ONNX.AttributeProto.TENSOR:
                attribute.name, attribute.type = found.name, found.type
                attribute.t.CopyFrom(self._storage.kept(found.t))
            else:
                attribute.CopyFrom(found)
        if step.index >= 0 and self._is_half(step.outputs[0] if step.outputs else None):
            self._retype(made)
        return [made]

    def _retype(self, made: NodeProto) -> None:
        """Changes an attribute that gives the type of a result to half."""
        if made.op_type == "Cast":
            for found in made.attribute:
                if found.name == "to":
                    found.i = self._number
        elif made.op_type == "ConstantOfShape":
            for found in made.attribute:
                found.t.CopyFrom(self._storage.halved(found.t, self._half))
            if not made.attribute:
                zero = ONNX.TensorProto(dims=[1], data_type=self._number, raw_data=b"\0\0")
                made.attribute.append(ONNX.helper.make_attribute("value", zero))

    def _drop(self, step: FileStep, name: str, want: Paint | None) -> bool:
        """Returns True for a cast that became an identity; its readers then read its operand."""
        read, made = step.inputs[0], step.outputs[0]
        values = self._graph.values
        half = self._half.name
        source = half if want is Paint.HALF else values[read].dtype
        target = half if self._is_half(made) else values[made].dtype
        if source != target or made in self._returned:
            return False
        if any(body_value == made for body in self._of_body.values() for body_value, _ in body):
            return False
        self._names[made] = name
        return True

    def _constant(self, step: FileStep) -> list[NodeProto]:
        """Returns the nodes of a constant, one for each precision in which it is read."""
        value = step.outputs[0]
        nodes = []
        for paint in (Paint.FULL, Paint.HALF):
            name = self._copies.get((value, paint))
            if name is None:
                continue
            node = ONNX.NodeProto()
            if paint is Paint.FULL:
                node.CopyFrom(step.node)
                for found in node.attribute:
                    if found.type == ONNX.AttributeProto.TENSOR:
                        found.t.CopyFrom(self._storage.kept(found.t))
                node.output[:] = [name]
            else:
                tensor = self._storage.halved(self._built.constants[value].tensor, self._half)
                own = step.node.name if name == step.node.output[0] else name
                node = ONNX.helper.make_node("Constant", [], [name], own, value=tensor)
            nodes.append(node)
        return nodes


def _called(name: str, tensor: Any) -> Any:
    """Returns a tensor under a name; a copy if it has another one."""
    if tensor.name == name:
        return tensor
    made = ONNX.TensorProto()
    made.CopyFrom(tensor)
    made.name = name
    return made


def _all_names(graph: GraphProto) -> Iterator[str]:
    """Yields all names of values, including nested graphs."""
    yield from (value.name for value in (*graph.input, *graph.output))
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output
        yield node.name
        for inner in graphs_in(node):
            yield from _all_names(inner)
