"""``duotone.cluster_jit``: compiles equal parts of a program once, as separate programs.

::

    trace ─ inline jit functions ─ list ─ cut into parts ─ equal parts are one cluster
                                                │
               would clusters win? no ─ jax.jit of the whole, and one line that says why
                                                │ yes
               compile each cluster in a thread; a call runs the parts in order
               background=True: also compile the whole; later calls use it

Inside a trace, the function becomes part of the outer program.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.core import Tracer

from duotone import _jax
from duotone._checks import check_string, check_strings, check_switch, check_whole
from duotone.compiling.background_compile import Swapped
from duotone.compiling.cluster_parts import SCOPE, Sizes
from duotone.compiling.cluster_program import clusters_of, compile_clusters
from duotone.compiling.defaults import DEFAULTS, jit_is_disabled
from duotone.devices.options import compiler_options, painting_for
from duotone.errors import ArgumentError
from duotone.jaxpr.reading.signature import Results, Signature
from duotone.jaxpr.reading.trace import Traced, trace
from duotone.jaxpr.running.own_jit import decided
from duotone.jaxpr.running.run import Runner
from duotone.policy.arguments import check_callable
from duotone.text.numbers import amount

logger = logging.getLogger("duotone")
_NUMBERS = itertools.count()


def cluster_jit(
    fn: Callable[..., Any],
    *,
    min_cluster_size: int | None = None,
    max_cluster_size: int | None = None,
    exclude_ops: Collection[str] = (),
    donate_argnums: int | Sequence[int] = (),
    threads: int | None = None,
    background: bool | None = None,
) -> Callable[..., Any]:
    """Returns a ``jax.jit`` that compiles each group of equal parts of a program once.

    A Python loop over layers or time steps leaves copies of its body in the program.
    :func:`duotone.reroll` declines if each copy has its own weights. Here such copies are one
    *cluster*: one compiled program, launched once for each copy. The equations between them are
    clusters too. Compilation takes a fraction of the time. A step may take longer on an
    accelerator, because nothing is fused across clusters, and more memory, because values between
    clusters are stored. If clusters would not save time, the whole program is compiled, and one
    line on the logger ``duotone`` says why.

    Args:
        fn: any function that JAX can trace; arguments that are not arrays are part of the program.
        min_cluster_size: the least number of operations of a cluster, 64 by default; smaller copies
            are grouped.
        max_cluster_size: the most operations of a cluster; larger parts are cut. ``None`` cuts no
            part.
        exclude_ops: names of primitives, such as ``"dot_general"``, each of which becomes a
            separate cluster.
        donate_argnums: positions of arguments whose buffers may be reused, as in ``jax.jit``.
        threads: how many threads compile; by default the number of processors, at most 8.
        background: also compile the whole program, in one thread, and call it as soon as it is
            ready.

    Under ``duotone run``, flags in ``TF_XLA_FLAGS`` set the defaults of the sizes and
    ``background``.

    Returns:
        A function of the same arguments and results, compiled at its first call with a signature.
        Inside a trace (of ``jax.grad`` or ``jit``) it is ``fn``. If arguments are on several
        devices, the whole program is compiled.

    Raises:
        ArgumentTypeError: ``fn`` is not callable, or an option has the wrong type.
        ArgumentError: sizes are not positive or contradict each other.
        UnknownOperationError: at a call, ``exclude_ops`` names an operation that neither JAX nor
            ``fn`` has.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> def layers(weights, x):
        ...     for w in weights:
        ...         with duotone.cluster_scope("layer"):
        ...             x = x + jnp.tanh(x @ w)
        ...     return x
        >>> weights = [jnp.eye(4)] * 8
        >>> bool(jnp.allclose(duotone.cluster_jit(layers)(weights, jnp.ones(4)),
        ...                   layers(weights, jnp.ones(4))))
        True
    """
    check_callable("cluster_jit", fn)
    if min_cluster_size is None:
        min_cluster_size = DEFAULTS.min_cluster_size
    if max_cluster_size is None:
        max_cluster_size = DEFAULTS.max_cluster_size
    if background is None:
        background = DEFAULTS.background
    check_switch("cluster_jit", "background", background)
    check_whole("cluster_jit", "min_cluster_size", min_cluster_size, 1)
    if max_cluster_size is not None:
        check_whole("cluster_jit", "max_cluster_size", max_cluster_size, 1)
        if max_cluster_size < min_cluster_size:
            raise ArgumentError(
                f"cluster_jit: max_cluster_size is {max_cluster_size}, below min_cluster_size, "
                f"{min_cluster_size}; pass min_cluster_size={max_cluster_size} as well"
            )
    check_strings("cluster_jit", "exclude_ops", exclude_ops)
    if threads is not None:
        check_whole("cluster_jit", "threads", threads, 1)
    numbers = _argument_numbers(donate_argnums)
    sizes = Sizes(min_cluster_size, max_cluster_size, frozenset(exclude_ops))
    runner = _Runner(fn, sizes, numbers, threads or min(os.cpu_count() or 1, 8), background)

    @functools.wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return runner(args, kwargs)

    return call


@contextlib.contextmanager
def cluster_scope(name: str) -> Iterator[None]:
    """Puts the operations traced inside the block into one cluster of :func:`cluster_jit`.

    Their backward pass is another cluster. Outside of :func:`cluster_jit` this does nothing.

    Args:
        name: a label for messages. Names need not differ: equal clusters share a program, whatever
            their names.

    Raises:
        ArgumentTypeError: ``name`` is not a string.

    Example:
        >>> import jax.numpy as jnp, duotone
        >>> with duotone.cluster_scope("head"):
        ...     logits = jnp.ones((2, 4)) @ jnp.ones((4, 3))
    """
    check_string("cluster_scope", "name", name)
    with jax.named_scope(f"{SCOPE}.{next(_NUMBERS)}.{name}"):
        yield


def _argument_numbers(value: Any) -> tuple[int, ...]:
    numbers = tuple(value) if isinstance(value, Iterable) else (value,)
    for number in numbers:
        check_whole("cluster_jit", "donate_argnums", number, 0)
    return numbers


class _Runner(Runner):
    """A function and its clusters, by signature and types."""

    def __init__(
        self,
        function: Callable[..., Any],
        sizes: Sizes,
        donated: tuple[int, ...],
        threads: int,
        background: bool,
    ) -> None:
        super().__init__(function, _unchanged, "cluster_jit")
        self._sizes, self._numbers = sizes, donated
        self._threads, self._background = threads, background
        self._lock = threading.Lock()
        self._called = getattr(function, "__name__", type(function).__name__)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs)))
        if traced or jit_is_disabled():
            return self._function(*args, **kwargs)
        return super().__call__(args, kwargs)

    def _key(self, signature: Signature, arrays: Sequence[Any]) -> Any:
        types = tuple([(jax.typeof(array), _devices(array)) for array in arrays])
        return signature.tree, signature.statics, types, _jax.trace_context()

    def _first(self, key: Any, signature: Signature, arrays: Sequence[Any]) -> Any:
        with self._lock:
            if key not in self._compiled:
                self._compiled[key] = self._compile(signature, arrays)
        return self._compiled[key](*arrays)

    def _compile(self, signature: Signature, arrays: Sequence[Any]) -> Callable[..., Any]:
        self._warn_of_many(signature)
        traced, options = self._traced(signature, arrays)
        donated = self._donated(signature, arrays)
        program = _jax.jaxpr_as_fun(traced.jaxpr)
        whole = jax.jit(program, donate_argnums=donated, compiler_options=options)
        if len({device for array in arrays for device in _devices(array)}) > 1:
            return self._declined(whole, traced.results, "its arguments are on several devices")
        clusters = clusters_of(traced.jaxpr, self._sizes)
        if clusters.declined:
            return self._declined(whole, traced.results, clusters.declined)
        program = compile_clusters(clusters, arrays, frozenset(donated), self._threads, options)
        live = amount(program.most_bytes, "B")
        logger.info("cluster_jit %s: %s; at most %s live", self._called, clusters, live)
        if not self._background:
            return lambda *leaves: (program(*leaves), traced.results)
        lowered = whole.lower(*arrays)  # in this thread, with the JAX settings of the call
        swapped = Swapped(f"the whole program of {self._called}", program, lowered.compile)
        return lambda *leaves: (swapped(*leaves), traced.results)

    def _traced(
        self, signature: Signature, arrays: Sequence[Any]
    ) -> tuple[Traced, dict[str, bool]]:
        """Returns the traced function and the compiler options of all its programs."""

        def make(options: bool | None) -> Any:
            with painting_for(options):
                traced = trace(self._function, signature, arrays, self._name)
            return (traced, compiler_options() if options else {}), lambda: traced.jaxpr

        return decided(make, arrays)

    def _declined(
        self, whole: Callable[..., Any], results: Results, reason: str
    ) -> Callable[..., Any]:
        logger.warning("cluster_jit %s: compiled whole, since %s", self._called, reason)
        return lambda *leaves: (whole(*leaves), results)

    def _donated(self, signature: Signature, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Returns the positions of the arrays in donated arguments."""
        own = super()._donated(signature, arrays)
        if not self._numbers:
            return own
        count = signature.tree.num_leaves
        args, _ = jax.tree.unflatten(signature.tree, range(count))
        leaves = {
            leaf
            for number in self._numbers
            if number < len(args)
            for leaf in jax.tree.leaves(args[number])
        }
        fixed = {position for position, _ in signature.statics}
        traced = [position for position in range(count) if position not in fixed]
        return tuple(i for i, leaf in enumerate(traced) if leaf in leaves or i in own)


def _unchanged(traced: Traced) -> Callable[..., list[Any]]:
    return _jax.jaxpr_as_fun(traced.jaxpr)


def _devices(array: Any) -> Any:
    """Returns the devices of an array, hashable; empty if it is not committed to a device."""
    if isinstance(array, jax.Array) and array.committed:
        return frozenset(array.devices())
    return ()
