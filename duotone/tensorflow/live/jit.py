"""Jit: functions with ``jit_compile=True``, whose graphs Grappler never sees.

XLA compiles such a function as a whole, so Grappler gets one call. duotone rewrites the function
when TensorFlow has traced it, and the functions that it calls, whose copies get names of their own.

This is the one file with private names of TensorFlow. :func:`missing` tells which of them a version
lacks.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from duotone.tensorflow.checks import called_functions
from duotone.tensorflow.protos import (
    FunctionDef,
    GraphDef,
    bodies_of,
    functions_named,
    new_graph,
)

Rewrite = Callable[[GraphDef, str], Any]
"""Rewrites a graph and its functions in place; returns ``None`` if they stay as they are."""
_TRANSFORM = "tensorflow.python.eager.polymorphic_function.transform"
_CONTEXT = "tensorflow.python.eager.context"
_PROTOS = "tensorflow.core.framework.function_pb2"
MUST_COMPILE = "_XlaMustCompile"
"""The attribute of a function that XLA compiles."""
_SUFFIX = "_duotone"
_CALL = "duotone_call"
_lock = threading.Lock()
_installed: list[Any] = []


def missing() -> str:
    """Returns the private name that this TensorFlow lacks, or an empty string."""
    for module, attributes in (
        (_TRANSFORM, ("CONCRETE_FUNCTION_CALLBACKS",)),
        (_CONTEXT, ("context",)),
        (_PROTOS, ("FunctionDef",)),
    ):
        try:
            found = importlib.import_module(module)
        except ImportError:
            return module
        for name in attributes:
            if not hasattr(found, name):
                return f"{module}.{name}"
    context = importlib.import_module(_CONTEXT).context()
    for name in ("get_function_def", "has_function", "remove_function", "add_function_def"):
        if not hasattr(context, name):
            return f"{_CONTEXT}.Context.{name}"
    return ""


def install(rewrite: Rewrite) -> None:
    """Rewrites every function with ``jit_compile=True`` that is traced from now on.

    Later calls do nothing. A TensorFlow that lacks a private name is left alone.
    """
    with _lock:
        if _installed or missing():
            return
        traced = functools.partial(_replace, rewrite=rewrite)
        _installed.append(traced)
        importlib.import_module(_TRANSFORM).CONCRETE_FUNCTION_CALLBACKS.append(traced)


def _replace(function: Any, rewrite: Rewrite) -> None:
    """Rewrites the definition of a traced function, if XLA compiles it."""
    inner = getattr(function, "_inference_function", None)
    if inner is None:
        return
    context = importlib.import_module(_CONTEXT).context()
    definition = context.get_function_def(inner.name)
    if not (MUST_COMPILE in definition.attr and definition.attr[MUST_COMPILE].b):
        return
    graph = _calling(definition, list(_called(context, definition)))
    if rewrite(graph, definition.signature.name) is None:
        return
    add_functions(graph, kept=definition.signature.name)
    inner._cached_definition = None  # it keeps a copy


def _called(context: Any, definition: FunctionDef) -> Iterator[FunctionDef]:
    """Yields the functions that a function calls, directly or through others."""
    seen: set[str] = set()
    queue = [definition]
    while queue:
        known = _Known(context)
        names = [name for node in queue.pop().node_def for name in called_functions(node, known)]
        for name in names:
            if name not in seen:
                seen.add(name)
                found = context.get_function_def(name)
                queue.append(found)
                yield found


@dataclasses.dataclass(frozen=True)
class _Known:
    """The functions of an eager context, as a library."""

    context: Any

    def __contains__(self, name: object) -> bool:
        return bool(name) and self.context.has_function(name)


def _calling(definition: FunctionDef, called: list[FunctionDef]) -> GraphDef:
    """Returns a graph that calls a function, with all functions in its library."""
    graph = new_graph()
    for function in (definition, *called):
        graph.library.function.add().ParseFromString(function.SerializeToString())
    call = graph.node.add(name=_CALL, op="StatefulPartitionedCall")
    call.attr["f"].func.name = definition.signature.name
    for number, argument in enumerate(definition.signature.input_arg):
        given = graph.node.add(name=f"argument_{number}", op="Placeholder")
        given.attr["dtype"].type = argument.type
        call.input.append(given.name)
        call.attr["Tin"].list.type.append(argument.type)
    call.attr["Tout"].list.type.extend(a.type for a in definition.signature.output_arg)
    return graph


def add_functions(graph: GraphDef, suffix: str = _SUFFIX, kept: str = "") -> None:
    """Gives the eager context the functions of a graph's library, by new names.

    Args:
        graph: its functions, and the calls of them, get the new names.
        suffix: the end of the new names.
        kept: a function that keeps its name, and whose definition is replaced.
    """
    context = importlib.import_module(_CONTEXT).context()
    message = importlib.import_module(_PROTOS).FunctionDef
    renamed = {
        function.signature.name: function.signature.name + suffix
        for function in graph.library.function
        if function.signature.name != kept
    }
    for node in (node for _, nodes in bodies_of(graph) for node in nodes):
        node.op = renamed.get(node.op, node.op)
        for called in functions_named(node):
            called.name = renamed.get(called.name, called.name)
    for function in graph.library.function:
        own = function.signature.name
        function.signature.name = renamed.get(own, own)
        if context.has_function(function.signature.name):
            context.remove_function(function.signature.name)
        context.add_function_def(message.FromString(function.SerializeToString()))
