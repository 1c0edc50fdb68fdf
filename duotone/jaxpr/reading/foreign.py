"""Objects of neural network libraries that a plain trace would damage silently.

duotone imports none of these libraries; it looks at what the user's program has loaded. Called by
:mod:`duotone.jaxpr.reading.trace`, so at trace time only.

* Flax NNX objects are changed in place. JAX takes them apart and puts them together again as
  copies, so the trace changes copies: a whole training step becomes one that does nothing.
* Linen and Haiku modules make and change variables of the model around them while they run. Made
  inside a trace, these stay behind as traced values: parameters from ``init`` that are no arrays.
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

_USE = (
    "Use duotone.nnx.autocast(...) in place of duotone.autocast(...), duotone.nnx.explain(...) in "
    "place of duotone.explain(...)"
)


def refuse_nnx_objects(
    name: str,
    function: Callable[..., Any],
    call: tuple[Any, Any],
    describe: Callable[[Any], str],
) -> None:
    """Refuses NNX objects (modules, optimizers, metrics, Rngs, variables) among the arguments.

    What ``nnx.split`` returns passes: functions of it are pure.

    Args:
        name: the function, for the message.
        function: the function itself; a module, or a method of one, holds its variables.
        call: ``(args, kwargs)``.
        describe: says where in ``call`` a path points.

    Raises:
        ArgumentTypeError: there is one.
    """
    mutable = nnx_classes()
    owner = getattr(function, "__self__", function)
    if isinstance(owner, mutable):
        raise ArgumentTypeError(
            f"{name}: the function is {_of_nnx(owner)}: its parameters would be frozen into the "
            f"program, and what it changes would be lost. {_USE}"
        )
    if (found := nnx_object_in(call)) is not None:
        path, leaf = found
        raise ArgumentTypeError(
            f"{name}: {describe(path)} is {_of_nnx(leaf)}: what the function changes in it "
            f"would be lost. {_USE}; or pass what nnx.split(...) gives"
        )


def _of_nnx(thing: Any) -> str:
    return f"a Flax NNX object ({type(thing).__name__}), which is changed in place"


@contextlib.contextmanager
def traced_cleanly(name: str) -> Iterator[None]:
    """Reports variables of Linen and Haiku models that a trace leaves behind as traced values.

    Around the call of the user's function. A function that makes no variable of the model around
    it, or only reads them, passes.

    Args:
        name: the function, for the message.

    Raises:
        LeakedTracerError: the function made or changed a variable of the model around it.
    """
    before = [leaf for _, leaf in _variables_around()]  # kept alive, so that an id stays its own
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
            f"{name} runs inside a Linen or Haiku model and makes or changes variables of it "
            f"({', '.join(left[:3])}{', ...' if len(left) > 3 else ''}), which would stay behind "
            "as traced values. Call autocast outside the model: duotone.autocast(model.apply), and "
            "init without it. To keep a part of the model in float32, use duotone.keep_full() "
            "inside it or Policy(keep_full=[...])"
        )


def _variables_around() -> list[tuple[Any, Any]]:
    """Paths and leaves of the variables of the Linen and Haiku models that now run."""
    trees: list[Any] = []
    linen = sys.modules.get("flax.linen.module")
    stack = getattr(getattr(linen, "_context", None), "module_stack", None) or [None]
    scope = getattr(stack[-1], "scope", None)
    if scope is not None:
        trees.append(scope.root.variables())
    haiku = sys.modules.get("haiku")
    if haiku is not None and hasattr(haiku, "get_current_state"):
        with contextlib.suppress(ValueError):  # no model runs now
            trees += [haiku.get_params(), haiku.get_current_state(), haiku.get_initial_state()]
    return [pair for tree in trees for pair in jax.tree_util.tree_leaves_with_path(tree)]


def _advise(name: str, error: Exception) -> None:
    """Adds the remedy to Flax's own error about an NNX object that a function closes over."""
    flax = sys.modules.get("flax.errors")
    if flax is not None and isinstance(error, getattr(flax, "TraceContextError", ())):
        error.add_note(
            f"{name} is traced. It can change an NNX object only if it takes it as an argument: "
            "pass the object, and use duotone.nnx.autocast(...)."
        )
