"""Assume: turns the user's statements into assumptions about the values of one graph.

The user names an argument (by its path, such as ``params/dense/kernel``) or the results of
operations (by name scope and operation, as the patterns of ``Policy(keep_full=...)``). Calibration
stores its measurements by the index of a value in the graph, so they hold for one function only.
:func:`fingerprint` identifies it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Mapping, Sequence

from duotone.errors import CalibrationError, RangeError
from duotone.graph.graph import Graph, Node, Value
from duotone.ops.traits import Trait
from duotone.precision.ranges.find import Assumptions, Measured
from duotone.precision.ranges.interval import Interval, meet, words
from duotone.text import suggestions


def assume(
    graph: Graph,
    stated: Sequence[tuple[str, Interval]],
    arguments: Sequence[str] | None,
    measured: Mapping[int, Measured],
) -> Assumptions:
    """Collects the assumptions about a graph.

    Args:
        graph: the program.
        stated: name patterns (``fnmatch``) and intervals; a value has all intervals that match.
        arguments: the name of each input; ``None`` for a program that is only part of the user's
            function (a derivative rule), in which a pattern need not match anything.
        measured: the measurements by value.

    Returns:
        The assumptions.

    Raises:
        RangeError: a pattern matches no argument and no operation, or two patterns that match one
            value contradict each other.
        CalibrationError: the measurements contain a value that the program does not have.
    """
    _check_measured(graph, measured)
    intervals: dict[int, Interval] = {}
    names: dict[int, str] = {}
    for pattern, interval in stated:
        matches = re.compile(fnmatch.translate(pattern)).match
        found = [
            (value, name)
            for value, name in zip(graph.inputs, arguments or (), strict=False)
            if matches(name) and graph.values[value].paintable
        ]
        for node in graph.nodes:
            if Trait.STRUCTURAL not in node.traits and matches(path_of(node)):
                found += [(v, path_of(node)) for v in node.outputs if graph.values[v].paintable]
        if not found and arguments is not None:
            raise RangeError(_unmatched(pattern, graph, arguments))
        for value, name in found:
            before = intervals.get(value, interval)
            if before[0] > interval[1] or interval[0] > before[1]:
                raise RangeError(
                    f"Policy(ranges=...): two patterns name {name!r} and contradict each other: "
                    f"{pattern!r} says that it is {words(interval)}, another one that it is "
                    f"{words(before)}; make one narrower"
                )
            intervals[value] = meet(before, interval) or interval
            names[value] = repr(name)
    return Assumptions(intervals, measured, names)


def _check_measured(graph: Graph, measured: Mapping[int, Measured]) -> None:
    for value in measured:
        if not 0 <= value < len(graph.values):
            raise CalibrationError(
                f"the calibration contains value {value} of a program that has "
                f"{len(graph.values)} values: it is damaged or was edited. Measure again with "
                "duotone.calibrate."
            )


def path_of(node: Node) -> str:
    """Returns name scope and operation."""
    return f"{node.scope}/{node.op}" if node.scope else node.op


def paths_of(graph: Graph) -> list[str]:
    """Returns the paths of all operations of the user's code, each once."""
    return sorted({path_of(node) for node in graph.nodes if Trait.STRUCTURAL not in node.traits})


def nearest(pattern: str, names: Sequence[str]) -> str:
    """Returns the name that a pattern without a match probably meant; empty if none is close.

    Prefers a name similar to the whole pattern, else one with a part similar to its longest part.
    """
    close = suggestions.nearest(pattern, names)
    if close:
        return close[0]
    having = {part: name for name in reversed(names) for part in name.split("/")}
    for part in sorted((part.strip("*?") for part in pattern.split("/")), key=len, reverse=True):
        for near in suggestions.nearest(part, having, cutoff=0.75):
            return having[near]
    return ""


def _unmatched(pattern: str, graph: Graph, arguments: Sequence[str]) -> str:
    """Returns the message for a pattern that matches nothing."""
    floats = [
        name
        for name, value in zip(arguments, graph.inputs, strict=True)
        if graph.values[value].paintable
    ]
    near = nearest(pattern, [*floats, *paths_of(graph)])
    hint = f" Did you mean {near!r}?" if near else ""
    shown = ", ".join(floats[:8]) + (", ..." if len(floats) > 8 else "")
    return (
        f"Policy(ranges=...) names {pattern!r}, but the function has no float32 argument and no "
        f"operation of this name.{hint} Its float32 arguments are: {shown or 'none'}; its "
        "operations are named by scope and operation (duotone.explain lists them), and patterns "
        "may contain wildcards: '*/attention/*'."
    )


_SIZES = frozenset({"terms", "length", "updates", "once", "sizes"})
"""Attributes of a node that follow from the sizes of arrays."""


def fingerprint(graph: Graph) -> str:
    """Returns a digest that tells a graph from those of other functions, for any sizes.

    Numbers in the function's code are part of it, except those that may be a size, such as the
    divisor of a mean.
    """
    digest = hashlib.sha256()
    inputs = frozenset(graph.inputs)
    for value in graph.values:
        number = "" if value.index in inputs else _number(graph, value)
        digest.update(f"{value.dtype},{len(value.shape)},{value.producer},{number};".encode())
    for node in graph.nodes:
        fixed = sorted((k, v) for k, v in node.attributes.items() if k not in _SIZES)
        digest.update(f"{node.op},{node.inputs},{node.outputs},{node.body},{fixed};".encode())
    digest.update(f"{graph.inputs},{[value for value, _ in graph.outputs]}".encode())
    return digest.hexdigest()


def _number(graph: Graph, value: Value) -> str:
    """Returns a constant number of the program as text; ``size`` if it may be a size."""
    constant = value.constant
    if value.producer >= 0 or value.shape or constant is None or "float" not in value.dtype:
        return ""
    readers = graph.consumers[value.index]
    if all(_may_be_size(graph, graph.nodes[node], slot, constant.low) for node, slot in readers):
        return "size"
    return repr(constant.low)


def _may_be_size(graph: Graph, node: Node, slot: int, number: float) -> bool:
    """Returns True if a node divides by an integer, or subtracts from one, as in ``n - 1``.

    The test does not look at the sizes of arrays. Otherwise a number of the program would be a size
    in one batch and not in the next.
    """
    if Trait.DIVIDES in node.traits and slot == 1:
        return number.is_integer()
    if Trait.MULTIPLIES in node.traits and 0.0 < number <= 1.0:
        whole = 1.0 / number
        return abs(whole - round(whole)) <= 2.0**-22 * whole
    scalar = not graph.values[node.outputs[0]].shape
    return Trait.SUBTRACTS in node.traits and slot == 0 and scalar and number.is_integer()


def check_fingerprint(expected: str, graph: Graph, function: str) -> None:
    """Raises an error unless a calibration was made for this graph.

    Args:
        expected: the fingerprint in the calibration.
        graph: the program.
        function: the function that was calibrated, for the error.

    Raises:
        CalibrationError: it was made for another graph.
    """
    if fingerprint(graph) != expected:
        raise CalibrationError(
            f"this calibration belongs to another function: {function} was measured, and its graph "
            f"differs from the one that is painted now ({len(graph.nodes)} operations). Measure "
            "the function that you rewrite, derivatives included, with duotone.calibrate."
        )
