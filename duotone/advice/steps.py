"""Finders of what bounds a step as a whole: launches, the optimizer, embedding tables."""

from __future__ import annotations

from collections.abc import Iterator

from duotone.advice.scene import MOST, Scene, as_shape, is_dot
from duotone.graph.record import CastRecord, OperationRecord
from duotone.targets.advice import Finding

_LOOKUPS = ("gather", "scatter", "dynamic_update_slice")


def launches(scene: Scene) -> Iterator[Finding]:
    """``launches``: kernels too short to be worth starting."""
    if scene.launch_bound:
        count = sum(kernel.runs for kernel, _ in scene.kernels)
        yield scene.finding(
            "launches",
            f"the step is bound by the launches of its {count} kernels: each is too short to be "
            "worth starting",
            "raise the batch, or the work of one call (lax.scan over several steps in one program "
            "saves the host's share); half saves nothing here",
            cost=scene.launches,
        )


def optimizer(scene: Scene) -> Iterator[Finding]:
    """``optimizer``: updates of weights that take longer than the gradients."""
    before = _before_dots(scene)
    tables = _tables(scene)
    members: list[OperationRecord] = []
    cost, moved = 0.0, 0
    for kernel, of in scene.kernels:
        if isinstance(of, CastRecord) or of.index in before or is_dot(of):
            continue
        if _is_state(scene, of.shape) and of.shape not in tables:
            members.append(of)
            cost += scene.cost(kernel)
            moved += kernel.total_bytes
    learns = any(is_dot(o) for o in scene.operations.values())
    if members and learns and cost >= MOST * scene.total:
        yield scene.finding(
            "optimizer",
            "most of the step updates weights and the optimizer's state, which are as many "
            "whatever the batch",
            "raise the batch or add up gradients over several batches; or a smaller state: "
            "bfloat16 moments (optax.adamw(mu_dtype=...)), Adafactor, state sharded over devices",
            members,
            cost,
            moved,
        )


def embeddings(scene: Scene) -> Iterator[Finding]:
    """``embedding``: look-ups in tables, their gradients, and updates of whole tables."""
    tables = _tables(scene)
    before = _before_dots(scene)
    members: list[OperationRecord] = []
    cost, moved = 0.0, 0
    for kernel, of in scene.kernels:
        if isinstance(of, CastRecord):
            continue
        looked_up = of.operation.startswith(_LOOKUPS) and (
            of.shape in tables or any(_table(scene, number) for number, _ in of.given)
        )
        if looked_up or (of.shape in tables and of.index not in before and not is_dot(of)):
            members.append(of)
            cost += scene.cost(kernel)
            moved += kernel.total_bytes
    if members and cost >= MOST * scene.total:
        shapes = ", ".join(sorted(map(as_shape, tables)))
        yield scene.finding(
            "embedding",
            f"most of the step reads, adds to and updates embedding tables ({shapes})",
            "update the rows that were looked up and no others (gradients of the rows, applied by "
            ".at[ids].add); smaller or half tables; or raise the work behind them",
            members,
            cost,
            moved,
        )


def _is_state(scene: Scene, shape: tuple[str, ...]) -> bool:
    """True if an argument and a result have this shape, and are no numbers."""
    taken = any(a.shape == shape and "float" in a.dtype for a in scene.arguments)
    return bool(shape) and taken and shape in scene.results


def _table(scene: Scene, number: int) -> bool:
    """True if a value is an argument with rows to look up."""
    known = 0 <= number < len(scene.arguments)
    return known and len(scene.arguments[number].shape) > 1


def _tables(scene: Scene) -> frozenset[tuple[str, ...]]:
    """Shapes of the arguments that are looked up in."""
    return frozenset(
        scene.arguments[number].shape
        for o in scene.operations.values()
        if o.operation == "gather"
        for number, _ in o.given
        if _table(scene, number) and "float" in scene.arguments[number].dtype
    )


def _before_dots(scene: Scene) -> set[int]:
    """Operations whose results lead to a dot, further on in the program."""
    found: set[int] = set()
    for operation in reversed(list(scene.operations.values())):
        readers = scene.readers.get(operation.index, ())
        if any(r.index > operation.index and (is_dot(r) or r.index in found) for r in readers):
            found.add(operation.index)
    return found
