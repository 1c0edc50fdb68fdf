"""Finders of what bounds a step as a whole: launches, the optimizer, embedding tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from duotone.advising.advice import Finding
from duotone.advising.step_model import MOST, Scene, as_shape, is_dot
from duotone.ops.entries import names_with
from duotone.ops.jax import TRAITS
from duotone.ops.traits import Trait
from duotone.precision.record import OperationRecord

_LOOKUPS = names_with(TRAITS, Trait.GATHERS, Trait.UPDATES)


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
    found = _updates(scene)
    learns = any(is_dot(o) for o in scene.operations.values())
    if learns and found.bounds(scene) and not _lookups(scene).bounds(scene):
        yield scene.finding(
            "optimizer",
            "most of the step updates weights and the optimizer's state, which are as many "
            "whatever the batch",
            "raise the batch or add up gradients over several batches; or a smaller state: "
            "bfloat16 moments (optax.adamw(mu_dtype=...)), Adafactor, state sharded over devices",
            found.operations,
            found.cost,
            found.bytes,
        )


def embeddings(scene: Scene) -> Iterator[Finding]:
    """``embedding``: look-ups in tables, their gradients, and updates of whole tables."""
    found = _lookups(scene)
    if found.bounds(scene):
        shapes = ", ".join(sorted(map(as_shape, _tables(scene))))
        yield scene.finding(
            "embedding",
            f"most of the step reads, adds to and updates embedding tables ({shapes})",
            "update the rows that were looked up and no others (gradients of the rows, applied by "
            ".at[ids].add); smaller or half tables; or raise the work behind them",
            found.operations,
            found.cost,
            found.bytes,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A part of a step.

    Attributes:
        operations: by which its kernels are named.
        cost: of those kernels.
        bytes: that they move.
    """

    operations: tuple[OperationRecord, ...]
    cost: float
    bytes: int

    def bounds(self, scene: Scene) -> bool:
        """True if it takes most of the step."""
        return bool(self.operations) and self.cost >= MOST * scene.total


def _part(scene: Scene, belongs: Callable[[OperationRecord], bool]) -> _Part:
    """The kernels that are named by some operations."""
    members = [(k, o) for k, o in scene.kernels if isinstance(o, OperationRecord) and belongs(o)]
    cost = sum(scene.cost(kernel) for kernel, _ in members)
    moved = sum(kernel.total_bytes for kernel, _ in members)
    return _Part(tuple(o for _, o in members), cost, moved)


def _updates(scene: Scene) -> _Part:
    before = _before_dots(scene)
    return _part(
        scene, lambda o: o.index not in before and not is_dot(o) and _is_state(scene, o.shape)
    )


def _lookups(scene: Scene) -> _Part:
    tables, before = _tables(scene), _before_dots(scene)

    def belongs(o: OperationRecord) -> bool:
        reads = o.shape in tables or any(_is_table(scene, number) for number, _ in o.given)
        updates = o.shape in tables and o.index not in before and not is_dot(o)
        return updates or (reads and o.operation in _LOOKUPS)

    return _part(scene, belongs)


def _is_state(scene: Scene, shape: tuple[str, ...]) -> bool:
    """True if an argument and a result have this shape, and are no numbers."""
    taken = any(a.shape == shape and "float" in a.dtype for a in scene.arguments)
    return bool(shape) and taken and shape in scene.results


def _is_table(scene: Scene, number: int) -> bool:
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
        if _is_table(scene, number) and "float" in scene.arguments[number].dtype
    )


def _before_dots(scene: Scene) -> set[int]:
    """Operations whose results lead to a dot, further on in the program."""
    found: set[int] = set()
    for operation in reversed(list(scene.operations.values())):
        readers = scene.readers.get(operation.index, ())
        if any(r.index > operation.index and (is_dot(r) or r.index in found) for r in readers):
            found.add(operation.index)
    return found
