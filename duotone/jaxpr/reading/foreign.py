"""Objects of neural network libraries that a plain trace would damage silently.

duotone imports none of these libraries; it inspects the modules that the user's program has loaded,
at trace time only.

* User code changes Flax NNX objects in place. JAX flattens them and rebuilds copies, so a trace
  would change only the copies, and a whole training step would do nothing.
* Linen and Haiku modules create and change variables of the outer model while they run. In a trace,
  these variables become traced values that outlive it: ``init`` would return no arrays.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import Tracer

from duotone.errors import ArgumentTypeError, LeakedTracerError
from duotone.jaxpr.modules import nnx_classes, nnx_object_in
from duotone.jaxpr.reading.signature import describe_argument

USE_NNX = (
    "Use duotone.nnx.autocast(...) instead of duotone.autocast(...), "
    "duotone.nnx.autocast(nnx.value_and_grad(...)) instead of duotone.value_and_grad(...), "
    "duotone.nnx.explain(...) instead of duotone.explain(...), and duotone.nnx.blame(...) instead "
    "of duotone.blame(...)"
)
"""The functions for NNX objects, for a message."""
_NOTES = {
    "TraceContextError": "{name} is traced. It can change an NNX object only if it takes it as an "
    "argument: pass the object, and use duotone.nnx.autocast(...).",
    "CallCompactUnboundModuleError": "A Linen module has no parameters of its own: pass its "
    "`apply`, and its variables as the first argument.",
}
"""Remedies for errors of Flax, by the names of their classes."""


def refuse_nnx_objects(name: str, function: Callable[..., Any], call: tuple[Any, Any]) -> None:
    """Refuses NNX objects (modules, optimizers, metrics, Rngs, variables) among the arguments.

    The results of ``nnx.split`` are accepted: functions of them are pure.

    Raises:
        ArgumentTypeError: there is an NNX object.
    """
    mutable = nnx_classes()
    owner = getattr(function, "__self__", function)
    if isinstance(owner, mutable):
        raise ArgumentTypeError(
            f"{name}: the function is {_of_nnx(owner)}: its parameters would be frozen into the "
            f"program, and its changes would be lost. {USE_NNX}"
        )
    if (found := nnx_object_in(call)) is not None:
        path, leaf = found
        raise ArgumentTypeError(
            f"{name}: {describe_argument(path)} is {_of_nnx(leaf)}: the function's changes to it "
            f"would be lost. {USE_NNX}; or pass the results of nnx.split(...)"
        )


def _of_nnx(thing: Any) -> str:
    return f"a Flax NNX object ({type(thing).__name__}), which is changed in place"


@contextlib.contextmanager
def traced_cleanly(name: str) -> Iterator[None]:
    """Reports variables of Linen and Haiku models that become traced values and outlive the trace.

    The user's function runs in this context. It may read the variables of the outer model.

    Raises:
        LeakedTracerError: the function created or changed a variable of the outer model.
    """
    before = [leaf for _, leaf in _variables_around()]  # alive, so that no id is reused
    try:
        yield
    except Exception as error:
        _advise(name, error)
        raise
    known = set(map(id, before))
    left = [
        jax.tree_util.keystr(path)
        for path, leaf in _variables_around()
        if isinstance(leaf, Tracer) and id(leaf) not in known
    ]
    if left:
        raise LeakedTracerError(
            f"{name} runs inside a Linen or Haiku model and creates or changes variables of it "
            f"({', '.join(left[:3])}{', ...' if len(left) > 3 else ''}), which would outlive the "
            "trace as traced values. Call autocast outside the model: "
            "duotone.autocast(model.apply), and init without it. To keep a part of the model in "
            "float32, use duotone.keep_full() inside it or Policy(keep_full=[...])"
        )


def _variables_around() -> list[tuple[Any, Any]]:
    """Yields paths and leaves of the variables of running Linen and Haiku models."""
    trees: list[Any] = []
    linen = sys.modules.get("flax.linen.module")
    stack = getattr(getattr(linen, "_context", None), "module_stack", None) or [None]
    scope = getattr(stack[-1], "scope", None)
    if scope is not None:
        trees.append(scope.root.variables())
    haiku = sys.modules.get("haiku")
    if haiku is not None and hasattr(haiku, "get_current_state"):
        with contextlib.suppress(ValueError):  # no model is running
            trees += [haiku.get_params(), haiku.get_current_state(), haiku.get_initial_state()]
    return [pair for tree in trees for pair in jax.tree_util.tree_leaves_with_path(tree)]


def _advise(name: str, error: Exception) -> None:
    """Adds the remedy to one of Flax's own errors."""
    flax = sys.modules.get("flax.errors")
    for kind, note in _NOTES.items():
        if isinstance(error, getattr(flax, kind, ())):
            error.add_note(note.format(name=name))
