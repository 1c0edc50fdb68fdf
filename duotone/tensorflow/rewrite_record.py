"""Records of rewritten GraphDefs; views, logs and tests read only these."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from duotone.precision.rules import WORDS
from duotone.tensorflow.protos import GraphDef

PRECISIONS = {"float16": "f16", "bfloat16": "bf16"}
"""How a painting writes each half dtype; full is ``"f32"``."""

RULES: Mapping[str, str] = MappingProxyType(
    {
        **WORDS,
        "allow_list": "its op is on the allow list",
        "forced": "level UNSAFE_FORCE_ALL makes every stateless op half",
        "between": "it lies between allow ops with no denied op in between",
        "follow": "an infer op that reads an allow op and no denied one",
        "clear": "a clear op next to half ones",
        "tensor_list": "ops on one list of tensors have one precision",
        "loop": "a NextIteration has the precision of its Merge",
        "existing_cast": "a cast to float32 that only half ops read",
        "preserved": "the node is fetched, fed or kept",
        "placement": "the node is not on a device that gains",
        "impossible": "its op takes no half there",
        "kernel": "no kernel of the device takes half there",
        "nothing_allowed": "the graph has no op of the allow list",
    }
)
"""The rules of all painters, in words; TensorFlow's passes have some of their own."""


@dataclasses.dataclass(frozen=True, slots=True)
class CastNodeRecord:
    """One Cast node that was added.

    Attributes:
        name: the name of the node.
        source: the port that it casts, ``"node:port"``.
        to: ``"f16"``, ``"bf16"`` or ``"f32"``.
        consumers: the inputs that read it, ``"node#input"``, in order.
        bytes: the bytes that it reads and writes; None if the rank is unknown. An unknown dimension
            counts as 1.
    """

    name: str
    source: str
    to: str
    consumers: tuple[str, ...]
    bytes: int | None = None


class Decision(NamedTuple):
    """Why one float32 type attribute has its precision.

    Attributes:
        node: name of the node.
        op: the op of the node, after the rewrite.
        attribute: ``"T"``, ``"Tin[0]"``, or a type name such as ``"float"`` for a fixed type.
        list: ``"allow"``, ``"infer"``, ``"deny"``, ``"clear"`` or ``"unlisted"``.
        precision: ``"f16"``, ``"bf16"`` or ``"f32"``.
        rule: a key of :data:`RULES`.
        words: the rule in words, with details of this node.
    """

    node: str
    op: str
    attribute: str
    list: str
    precision: str
    rule: str
    words: str


@dataclasses.dataclass(frozen=True)
class BodyResult:
    """The result of rewriting one graph, or the body of one function.

    Attributes:
        painting: node -> float32 type attribute (``"T"``, ``"Tin[0]"``) -> precision.
        casts: Cast nodes that were added, in the order of their sources.
        op_changes: node -> op before and after (FusedBatchNorm to its second version).
        decisions: one for each float32 unit, in the order of the nodes.
        unsafe: the half nodes that duotone's safety rules keep float32, with reasons; always
            empty for duotone's own painter.
    """

    painting: Mapping[str, Mapping[str, str]]
    casts: tuple[CastNodeRecord, ...]
    op_changes: Mapping[str, tuple[str, str]]
    decisions: tuple[Decision, ...]
    unsafe: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True)

    @property
    def half_nodes(self) -> int:
        """The number of nodes with a half type."""
        return sum(any(p != "f32" for p in types.values()) for types in self.painting.values())

    @property
    def cast_bytes(self) -> int:
        """Bytes that all casts read and write, as far as shapes are known."""
        return sum(cast.bytes or 0 for cast in self.casts)


@dataclasses.dataclass(frozen=True)
class RewriteResult(BodyResult):
    """The result of :func:`duotone.tensorflow.rewrite`.

    Attributes:
        graph_def: the rewritten copy.
        functions: by name, the results for the functions that the graph reaches.
        dropped_functions: names of the removed functions, which the graph does not reach.
    """

    graph_def: GraphDef = dataclasses.field(kw_only=True)
    functions: Mapping[str, BodyResult] = dataclasses.field(kw_only=True)
    dropped_functions: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
