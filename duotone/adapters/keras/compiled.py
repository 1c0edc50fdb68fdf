"""Lets Keras compile the steps of a model with compiler options where they gain.

Keras compiles its functions with the name ``jit`` of its trainer's module and takes no compiler
options. While Keras makes the functions of a model with a plan, this name is
:func:`duotone.jaxpr.running.own_jit.own_jit`, which takes the same arguments and sets the options.
It stays ``jit`` for all other models. It also does where Keras' variables are Flax NNX's, since
``nnx.jit`` takes no options, and Keras 3.10 has no such name; duotone then logs one line.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator

import jax

from duotone.jaxpr.running.own_jit import own_jit

_TRAINER = "keras.src.backend.jax.trainer"
_lock = threading.RLock()


@contextlib.contextmanager
def with_own_jit() -> Iterator[None]:
    """Inside the block, Keras makes its functions with the ``jit`` of duotone."""
    trainer = importlib.import_module(_TRAINER)
    with _lock:
        own = getattr(trainer, "jit", None)
        if own is not jax.jit:
            yield
            return
        trainer.jit = own_jit  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            trainer.jit = own  # pyright: ignore[reportAttributeAccessIssue]
