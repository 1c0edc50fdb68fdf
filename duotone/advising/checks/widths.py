"""Finds accidental float64, and accidental float32 in a half program.

JAX promotes types. An array or NumPy number with a wider dtype (``np.float64(2)``, ``np.ones(8)``
with x64 enabled, a float32 table added to bfloat16 activations) widens its other operand and every
value computed from it. Python numbers do not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from duotone.advising.advice import Finding
from duotone.advising.step_model import StepModel, in_half, is_dot
from duotone.graph.graph import FULL_DTYPE, HALF_TYPES
from duotone.precision.record import OperationRecord

_DOUBLE = frozenset({"float64", "complex128"})


def doubles(step: StepModel) -> Iterator[Finding]:
    """Yields ``float64`` if there are arrays of it."""
    found = [o for o in step.operations.values() if _is_double(o)]
    if not any(_elements(o) > 1 for o in found):
        return
    half = step.half or FULL_DTYPE
    cost, moved = step.saved({o.index: _narrowed(o, half) for o in found}, half)
    first = next((o for o in found if o.dtype in _DOUBLE and _elements(o) > 1), found[0])
    given = [a.name for a in step.arguments if a.dtype in _DOUBLE]
    what = (
        f"{'arguments are' if len(given) > 1 else 'an argument is'} float64 "
        f"({', '.join(given[:3])}{', …' if len(given) > 3 else ''})"
        if given
        else "float64 begins here: a NumPy number or array promotes its other operand"
    )
    yield step.finding(
        "float64",
        f"{what}; {len(found)} operations follow in float64, which no Tensor Core speeds up",
        "pass float32, or a Python number, or np.float32(...); with jax_enable_x64, name the dtype "
        "of what NumPy makes",
        [first, *(o for o in found if o is not first)],
        max(cost, 0.0),
        moved,
        at=first,
    )


def promotions(step: StepModel) -> Iterator[Finding]:
    """Yields ``promotion``: half values widened to float32 that dots then read."""
    seen: set[int] = set()
    for operation in step.operations.values():
        if not _widens(operation) or operation.index in seen:
            continue
        region = _widened(step, operation)
        dots = [o for o in region.values() if is_dot(o)]
        seen |= region.keys()
        if not dots:
            continue
        seen |= {
            maker
            for o in region.values()
            for maker in o.reads
            if maker in step.operations and _widens(step.operations[maker])
        }
        half = operation.operands[0]
        cost, moved = step.saved({i: in_half(o, half) for i, o in region.items()}, half)
        if step.matters(cost):
            yield step.finding(
                "promotion",
                f"{half} becomes float32 here (astype, or a float32 array or NumPy number as the "
                f"other operand), and {len(dots)} dots downstream of it multiply float32",
                f"give that array or number the dtype of the other operand ({half}), or use a "
                "Python number; or keep all float32 and leave the types to duotone.autocast",
                [operation, *dots],
                cost,
                moved,
                at=operation,
            )


def is_half_by_hand(step: StepModel) -> bool:
    """Returns True if a dot of a program reads half values, or two values that were half.

    Half data that a float32 program widens at once do not count.
    """
    widened: set[int] = set()
    for o in step.operations.values():
        if is_dot(o):
            were_half = sum(maker in widened for maker in o.reads)
            if were_half > 1 or not HALF_TYPES.keys().isdisjoint(o.operands):
                return True
        elif _widens(o) or (o.dtype == FULL_DTYPE and not widened.isdisjoint(o.reads)):
            widened.add(o.index)
    return False


def _is_double(operation: OperationRecord) -> bool:
    return operation.dtype in _DOUBLE or not _DOUBLE.isdisjoint(operation.operands)


def _narrowed(operation: OperationRecord, half: str) -> OperationRecord:
    """Returns a float64 operation in float32, or in half if it is a dot."""
    narrow = dataclasses.replace(
        operation,
        dtype=FULL_DTYPE if operation.dtype == "float64" else operation.dtype,
        operands=tuple(FULL_DTYPE if d == "float64" else d for d in operation.operands),
        bytes=operation.bytes // 2,
        given=tuple((number, size // 2) for number, size in operation.given),
        fixed="",
    )
    return in_half(narrow, half) if is_dot(operation) else narrow


def _elements(operation: OperationRecord) -> int:
    found = 1
    for size in operation.shape:
        found *= int(size) if size.isdigit() else 2
    return found


def _widens(operation: OperationRecord) -> bool:
    return (
        operation.operation == "convert_element_type"
        and operation.dtype == FULL_DTYPE
        and operation.paint == "full"
        and operation.operands[:1] != ()
        and operation.operands[0] in HALF_TYPES
    )


def _widened(step: StepModel, start: OperationRecord) -> dict[int, OperationRecord]:
    """Returns the float32 operations downstream of a conversion, through dots."""
    region, waiting = {start.index: start}, [start]
    while waiting:
        for reader in step.readers.get(waiting.pop().index, ()):
            full = reader.paint == "full" and (
                reader.dtype == FULL_DTYPE or (is_dot(reader) and FULL_DTYPE in reader.operands)
            )
            if full and reader.index not in region and reader.index > start.index:
                region[reader.index] = reader
                waiting.append(reader)
    return region
