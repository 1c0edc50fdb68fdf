"""Finds replicated weights that each device of a mesh reads in full.

A traced program has global shapes, and its arguments have shardings. With more devices, each device
multiplies a smaller part of the batch but still reads the whole of a replicated weight. If reading
takes longer than multiplying, the weight is the cost.
"""

from __future__ import annotations

from collections.abc import Iterator

from duotone.advising.advice import Finding
from duotone.advising.step_model import StepArgument, StepModel, is_dot
from duotone.cost.estimate import short_name
from duotone.cost.roofline import peak_of
from duotone.ops.entries import names_with
from duotone.ops.jax import TRAITS
from duotone.ops.traits import Trait
from duotone.precision.record import OperationRecord

_DOTS = names_with(TRAITS, Trait.EINSUM)
_MOVES = names_with(TRAITS, Trait.CONVERTS, Trait.TRANSPOSES, Trait.RESHAPES) - names_with(
    TRAITS, Trait.REPEATS
)


def whole_weights(step: StepModel) -> Iterator[Finding]:
    """Yields ``sharding``: dots that wait for replicated weights."""
    if not step.timed:
        return
    waits: dict[str, list[tuple[OperationRecord, float, int]]] = {}
    devices = 1
    for operation in step.operations.values():
        if not is_dot(operation) or not operation.sizes or operation.operation not in _DOTS:
            continue
        for argument, size in _weights(step, operation):
            reading = size / step.target.bandwidth
            peak = peak_of(step.target, short_name(operation.operands[0]))
            dividing = operation.flops / operation.runs / peak / argument.devices
            waiting = max(reading - dividing, 0.0) * operation.runs
            waits.setdefault(argument.name, []).append((operation, waiting, size * operation.runs))
            devices = max(devices, argument.devices)
    members = [entry for entries in waits.values() for entry in entries]
    saved = sum(waiting for _, waiting, _ in members) * (1 - 1 / devices)
    # One device does its part of the divided work, and waits for replicated weights.
    own = step.total / devices + sum(waiting for _, waiting, _ in members)
    if saved and saved / own >= MOST_WAITING:
        twice = sum(len(entries) > 1 for entries in waits.values())
        read = sum(size for *_, size in members)
        names = ", ".join(sorted(waits)[:3]) + (", …" if len(waits) > 3 else "")
        yield step.finding(
            "sharding",
            f"each of {devices} devices reads all of {names}"
            + (f", {twice} of them twice or more (forward and backward)" if twice else "")
            + ": the dots wait for it. Seconds and share are those of one device",
            "divide the weights over the mesh (NamedSharding(mesh, P(None, 'model'))), or raise "
            "the batch of each device",
            [operation for operation, *_ in members],
            saved,
            round(read * (1 - 1 / devices)),
            of=own,
        )


MOST_WAITING = 0.25
"""The least share of one device's time that makes a finding. Below it, the collectives of divided
weights would cost as much."""


def _weights(step: StepModel, dot: OperationRecord) -> Iterator[tuple[StepArgument, int]]:
    """Yields the replicated arguments that a dot reads, with the bytes of one run."""
    waiting = [dot]
    while waiting:
        operation = waiting.pop()
        for number, size in operation.given:
            if 0 <= number < len(step.arguments):
                argument = step.arguments[number]
                if argument.whole and argument.devices > 1 and len(argument.shape) > 1:
                    yield argument, size
        makers = [step.operations[i] for i in operation.reads if i in step.operations]
        waiting += [m for m in makers if m.operation in _MOVES and m.index < operation.index]
