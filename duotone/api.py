"""The road: the stages in order, and the functions users call.

::

    fn, args ─ trace ─► Traced ─ build ─► Graph ─ classify ─► Classes ─ paint ─► Painting
             ─ plan_casts ─► CastPlan ─ rewrite ─► jaxpr ─ run ─► results

Each stage takes earlier values and returns a new one; a check runs on each result. Interval
analysis of ranges will stand between classify and paint.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax

from duotone import _jax, dumps
from duotone.errors import ArgumentError, ArgumentTypeError, RewriteError
from duotone.graph.casts import CastPlan, plan_casts
from duotone.graph.classes import Classes, Pins, check_classes, classify
from duotone.graph.graph import HALF_TYPES, Boundary, HalfType, Paint, check_graph
from duotone.graph.lists import Kind, OpLists
from duotone.graph.painters import PAINTERS
from duotone.graph.painting import Painting, check_painting
from duotone.graph.record import Record, make_record
from duotone.jaxpr import custom, half_rules, nested  # noqa: F401  (register the forms)
from duotone.jaxpr.build import build
from duotone.jaxpr.lists import ENTRIES
from duotone.jaxpr.program import Built
from duotone.jaxpr.rewrite import Rewriter
from duotone.jaxpr.run import Runner
from duotone.jaxpr.signature import describe_callable, flatten_call
from duotone.jaxpr.trace import trace
from duotone.policy import LISTS, Policy
from duotone.targets import current_choice
from duotone.views import text

logger = logging.getLogger("duotone")

_SETTINGS = "__duotone_settings__"
"""Attribute of an autocast function: the function, dtype and policy it was made from."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True)
class Painted:
    """The values of all stages of one program, up to the cast plan."""

    built: Built
    classes: Classes
    painting: Painting
    plan: CastPlan
    half: HalfType


def paint_jaxpr(
    jaxpr: _jax.ClosedJaxpr,
    policy: Policy,
    half: HalfType,
    given: Sequence[Paint] | None = None,
    boundaries: Sequence[Boundary] | None = None,
) -> Painted:
    """Calls the stages in order, from a jaxpr to the cast plan.

    Args:
        jaxpr: the program.
        policy: merged with the environment.
        half: the half type.
        given: how each argument arrives; all full if omitted.
        boundaries: how each result must leave; all full if omitted.
    """
    built = build(jaxpr, given, boundaries)
    graph = check_graph(built.graph)
    policy.check_names(_known_names() | {node.op for node in graph.nodes})
    lists = _lists(policy, half)
    pins = Pins(policy.keep_full, policy.keep_half)
    force_all = policy.level == "UNSAFE_FORCE_ALL"
    classes = check_classes(classify(graph, lists, half, pins, force_all=force_all), graph)
    painting = check_painting(PAINTERS[policy.painter](graph, classes), graph)
    plan = plan_casts(graph, classes, painting)
    if policy.log_decisions:
        dumps.log_decisions(graph, classes, painting)
    return Painted(built, classes, painting, plan, half)


def rewriter_of(painted: Painted, policy: Policy) -> Rewriter:
    """The rewriter of a painted program; derivative rules inside are painted by the same policy."""

    def repaint(
        jaxpr: _jax.ClosedJaxpr, given: Sequence[Paint], boundaries: Sequence[Boundary]
    ) -> Rewriter:
        return rewriter_of(paint_jaxpr(jaxpr, policy, painted.half, given, boundaries), policy)

    return Rewriter(painted.built, painted.painting, painted.plan, painted.half.name, repaint)


def rewrite_jaxpr(
    jaxpr: _jax.ClosedJaxpr, policy: Policy, half: HalfType
) -> Callable[..., list[Any]]:
    """The rewritten program, as a function of arrays; whoever traces it has its jaxpr.

    Args:
        jaxpr: the program.
        policy: merged with the environment.
        half: the half type.

    Returns:
        A function that returns what ``jaxpr`` returns, types included. It raises
        :class:`~duotone.errors.RewriteError` where it does not.
    """
    painted = paint_jaxpr(jaxpr, policy, half)
    run = _jax.jaxpr_as_fun(jaxpr)
    if painted.painting.changed:
        rewriter = rewriter_of(painted, policy)
        avals = [atom.aval for atom in _jax.open_jaxpr(jaxpr).outvars]

        def run(*leaves: Any) -> list[Any]:
            pairs = zip(rewriter(*leaves), avals, strict=True)
            results = [rewriter.match(array, aval, Paint.FULL) for array, aval in pairs]
            _check_results(results, avals)
            return results

    if policy.log_path is not None:
        after = jax.make_jaxpr(run)(*_jax.open_jaxpr(jaxpr).in_avals)
        dumps.write(
            policy.log_path, jaxpr, after, painted.built.graph, painted.classes, painted.painting
        )
    return run


def _check_results(results: Sequence[Any], avals: Sequence[Any]) -> None:
    """A rewrite keeps the types of results."""
    for position, (result, aval) in enumerate(zip(results, avals, strict=True)):
        if not _jax.same_type(jax.typeof(result), aval):
            raise RewriteError(
                f"result {position} was {aval} and became {jax.typeof(result)}; this is a fault of "
                "duotone, please report the program"
            )


@functools.cache
def _known_names() -> frozenset[str]:
    return _jax.known_primitives() | {entry.op for entry in ENTRIES}


@functools.lru_cache(maxsize=64)
def _lists(policy: Policy, half: HalfType) -> OpLists:
    """The lists for a half type, with a policy's edits and level."""
    lists = OpLists.for_half(ENTRIES, half.name)
    added = {Kind(name): getattr(policy, f"{name}_add") for name in LISTS}
    removed = {Kind(name): getattr(policy, f"{name}_remove") for name in LISTS}
    return lists.leveled(policy.level).edited(added, removed)


@overload
def autocast(
    fn: Callable[P, R], *, dtype: Any = None, policy: Policy | None = None
) -> Callable[P, R]: ...
@overload
def autocast(
    fn: None = None, *, dtype: Any = None, policy: Policy | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def autocast(
    fn: Callable[..., Any] | None = None, *, dtype: Any = None, policy: Policy | None = None
) -> Any:
    """Makes a function run in mixed precision.

    The function is traced when it is called, painted, and rewritten; what it takes and returns
    stays as it was: pytrees, shapes, dtypes, weak types. Each signature is traced once; outside
    ``jax.jit`` the rewritten program runs compiled. It may be called inside and around every JAX
    transformation.

    Args:
        fn: the function; if omitted, a decorator is returned.
        dtype: ``float16`` or ``bfloat16`` (anything ``jax.numpy.dtype`` takes). ``None`` asks the
            default device for the one that is fast there; where none is, ``fn`` runs as it is and
            one line is logged (see :class:`~duotone.Policy`, ``ignore_performance``).
        policy: what may be painted; the default policy if omitted. Environment variables are
            merged in (``docs/environment.md``).

    Returns:
        A function with the signature of ``fn``.

    Raises:
        ArgumentTypeError: ``fn`` is not callable, ``dtype`` is no dtype, ``policy`` is no policy.
        ArgumentError: ``dtype`` is not a half type.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> def predict(weights, images):
        ...     return jax.nn.relu(images @ weights)
        >>> fast = duotone.autocast(predict, dtype=jnp.bfloat16)
        >>> fast(jnp.ones((8, 4)), jnp.ones((2, 8))).dtype
        dtype('float32')

    References:
        TensorFlow, ``tf.train.experimental.enable_mixed_precision_graph_rewrite``.
    """
    if fn is None:
        return functools.partial(autocast, dtype=dtype, policy=policy)
    if not callable(fn):
        raise ArgumentTypeError(
            f"autocast: fn is {fn!r}, which is not callable; pass the function itself, not what it "
            "returns"
        )
    _check_policy("autocast", policy)
    named = None if dtype is None else _half_named("autocast", dtype)

    @functools.cache
    def run() -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        # At the first call, not before: asking the device starts JAX's backends.
        merged = (policy or Policy()).merged_with_environment()
        half = named or half_of_device(merged, describe_callable(fn))
        if half is None:
            return lambda args, kwargs: fn(*args, **kwargs)
        return Runner(fn, lambda jaxpr: rewrite_jaxpr(jaxpr, merged, half))

    @functools.wraps(fn, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return run()(args, kwargs)

    # The function that was written, not a wrapper around it: Equinox looks for arrays on the way.
    vars(wrapped)["__wrapped__"] = inspect.unwrap(fn, stop=lambda f: hasattr(f, "__signature__"))
    setattr(wrapped, _SETTINGS, (fn, dtype, policy))
    return wrapped


class Explanation(Record):
    """What a painting does to a function, and why; see :class:`duotone.graph.record.Record`.

    ``print`` shows a table; :meth:`to_json` gives data.
    """

    def __str__(self) -> str:
        return text.render(self)

    def __rich__(self) -> Any:
        return text.table(self)


def explain(
    fn: Callable[..., Any],
    *args: Any,
    dtype: Any = None,
    policy: Policy | None = None,
    **kwargs: Any,
) -> Explanation:
    """Says what :func:`autocast` would do to a function, operation by operation, and why.

    Nothing is compiled or run. Works on every machine: where ``dtype`` is ``None`` and no half type
    is faster here, the record is for bfloat16.

    Args:
        fn: the function. For one that :func:`autocast` returned, what that does to it, with its
            dtype and policy unless others are given.
        *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place.
        dtype: as for :func:`autocast`.
        policy: as for :func:`autocast`.
        **kwargs: its keyword arguments.

    Returns:
        A record; print it for a table.

    Raises:
        ArgumentTypeError, ArgumentError: as for :func:`autocast`.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> x = jax.ShapeDtypeStruct((128, 64), jnp.float32)
        >>> w = jax.ShapeDtypeStruct((64, 32), jnp.float32)
        >>> seen = duotone.explain(lambda x, w: jax.nn.softmax(x @ w), x, w, dtype=jnp.float16)
        >>> [o.operation for o in seen.operations if o.paint == "half"]
        ['dot_general']
    """
    if not callable(fn):
        raise ArgumentTypeError(f"explain: fn is {fn!r}, which is not callable")
    if hasattr(fn, _SETTINGS):
        fn, set_dtype, set_policy = getattr(fn, _SETTINGS)
        dtype = set_dtype if dtype is None else dtype
        policy = set_policy if policy is None else policy
    _check_policy("explain", policy)
    merged = (policy or Policy()).merged_with_environment()
    half = (
        half_of_device(merged.replace(ignore_performance=True), describe_callable(fn))
        if dtype is None
        else _half_named("explain", dtype)
    )
    assert half is not None, "ignore_performance always gives a half type"
    arrays, signature = flatten_call(describe_callable(fn), args, kwargs)
    painted = paint_jaxpr(trace(fn, signature, arrays).jaxpr, merged, half)
    record = make_record(painted.built.graph, painted.classes, painted.painting, painted.plan, half)
    return Explanation(record.operations, record.casts, record.summary)


def _check_policy(name: str, policy: Policy | None) -> None:
    if policy is not None and not isinstance(policy, Policy):
        raise ArgumentTypeError(
            f"{name}: policy is {policy!r}, a {type(policy).__name__}; pass a duotone.Policy"
        )


def check_settings(name: str, dtype: Any, policy: Policy | None) -> None:
    """Raises what :func:`autocast` raises for these arguments; asks no device.

    Args:
        name: the public function that was called, for the error.
        dtype: as :func:`autocast` takes it.
        policy: likewise.
    """
    _check_policy(name, policy)
    if dtype is not None:
        _half_named(name, dtype)


def half_name(name: str, dtype: Any, policy: Policy | None) -> str | None:
    """The half type in which :func:`autocast` with these arguments calculates.

    With ``dtype=None`` it asks the default device, which starts JAX's backends; nothing is logged.

    Args:
        name: the public function that was called, for the error.
        dtype: as :func:`autocast` takes it.
        policy: likewise.

    Returns:
        ``"float16"``, ``"bfloat16"``, or ``None`` where functions stay as they are.
    """
    if dtype is not None:
        return _half_named(name, dtype).name
    half = _fast_half((policy or Policy()).merged_with_environment())
    return None if half is None else half.name


def _fast_half(policy: Policy) -> HalfType | None:
    choice = current_choice()
    if choice.dtype is None:
        return HALF_TYPES["bfloat16"] if policy.ignore_performance else None
    return HALF_TYPES[choice.dtype]


def half_of_device(policy: Policy, what: str) -> HalfType | None:
    """The half type that is fast here, or ``None`` where the function is to stay as it is."""
    half = _fast_half(policy)
    if half is None:
        logger.warning(
            "%s: not rewritten, half is not faster here: %s. "
            "Policy(ignore_performance=True) or dtype=... rewrites all the same.",
            what,
            current_choice().reason,
        )
    return half


def _half_named(name: str, dtype: Any) -> HalfType:
    try:
        found = jax.numpy.dtype(dtype).name
    except TypeError as error:
        raise ArgumentTypeError(
            f"{name}: dtype is {dtype!r}, which is no dtype; pass jnp.float16 or jnp.bfloat16"
        ) from error
    if found not in HALF_TYPES:
        raise ArgumentError(
            f"{name}: dtype is {found}, which is not a half type; pass jnp.float16, jnp.bfloat16 "
            "or None (asks the device)"
        )
    return HALF_TYPES[found]
