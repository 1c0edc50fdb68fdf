"""The one file that touches private JAX and knows how JAX versions differ.

Everything else in duotone uses public JAX and the names below. Supported: JAX 0.10 to 0.12. From
0.11 on, ``ClosedJaxpr`` and ``Jaxpr`` are one class, ``scan`` describes its operands by trees, some
names moved. An unsupported version fails here, with an error that names the change.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import api_util as _api_util
from jax._src import array as _array
from jax._src import config as _config
from jax._src import core as _private_core
from jax._src import source_info_util as _source_info
from jax._src import tree_util as _tree_util
from jax._src import xla_bridge as _bridge
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _staging
from jax.core import ShapedArray, Tracer
from jax.extend import core as _core
from jax.extend.core import primitives as _primitives
from jax.interpreters import ad, batching, mlir  # noqa: F401  (for duotone.jaxpr.rules.bilinear)

Eqn = Any
"""A ``JaxprEqn``."""
OpenJaxpr = Any
"""A ``Jaxpr`` without constants attached (before 0.11), or any ``Jaxpr``."""
ClosedJaxpr = Any
"""A jaxpr with its constants."""
Atom = Any
"""A ``Var`` or a ``Literal``."""

ArrayType = _array.ArrayImpl
"""The concrete type of JAX arrays, for a test that is quicker than ``isinstance``."""

argument_registry = _tree_util.tracing_registry
"""Flattens as ``jax.jit`` flattens its arguments: a view of a Ref is not a leaf."""

Literal = _core.Literal
Primitive = _core.Primitive
NameStack = _source_info.NameStack
open_program, closed_program = _core.Jaxpr, _core.ClosedJaxpr
check_jaxpr = _core.check_jaxpr
eval_jaxpr, InvalidNumberError = _private_core.eval_jaxpr, _api_util.InternalFloatingPointError
NamedAxisEffect = _private_core.NamedAxisEffect
trace_context = _config.trace_context
"""Returns the JAX settings that a trace depends on: part of the key of ``jit`` caches."""
outside_of_traces = _private_core.eval_context
"""Runs a block now, also in an eager ``shard_map``, unlike ``ensure_compile_time_eval``."""

# These contexts are part of the key of `jit` caches.
assumed_device = jax.make_user_context(default_value=None)
"""The device that a trace is for, if not the one at hand: :mod:`duotone.devices.assumed`."""
compiled_with_options = jax.make_user_context(default_value=None)
"""True or False if duotone compiles with options or without: :mod:`duotone.devices.options`."""
collecting = jax.make_user_context(default_value=None)
"""The collector of painted programs, if any: :mod:`duotone.jaxpr.running.inside`."""
healing = jax.make_user_context(default_value=0)
"""The number of times that healers changed the steps: :mod:`duotone.blaming.healing`."""

# User frames in source lines and filtered tracebacks are the user's, not duotone's.
_HERE = Path(__file__).resolve().parent
_OWN = (
    "_jax.py adapters blaming calibrating compiling cost devices exporting jaxpr "
    "policy/regions.py scale transforms"
).split()
LIBRARIES = frozenset({"site-packages", "dist-packages"})  # in paths of installed files
for _name in _OWN:
    _source_info.register_exclusion(str(_HERE / _name))


def is_literal(atom: Atom) -> bool:
    """Returns True if an atom is a constant written into the jaxpr."""
    return isinstance(atom, Literal)


def open_jaxpr(jaxpr: Any) -> OpenJaxpr:
    """Returns the jaxpr itself, closed or not (one class from JAX 0.11 on)."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def consts_of(jaxpr: Any) -> Sequence[Any]:
    """Returns the constants attached to a jaxpr; none for an open one."""
    return getattr(jaxpr, "consts", ())


def holds_jaxpr(param: Any) -> bool:
    """Returns True if an equation's parameter is, or holds, a jaxpr."""
    if isinstance(param, (tuple, list)):
        return any(holds_jaxpr(element) for element in param)
    return hasattr(open_jaxpr(param), "eqns")


def with_consts_as_arguments(jaxpr: ClosedJaxpr) -> tuple[OpenJaxpr, Sequence[Any]]:
    """Returns a jaxpr without constants, as ``remat2`` wants it, and its new first operands."""
    return _staging.convert_constvars_jaxpr(open_jaxpr(jaxpr)), consts_of(jaxpr)


def jaxpr_as_fun(jaxpr: ClosedJaxpr) -> Callable[..., list[Any]]:
    """Returns a program as a function; ``jax_debug_nans`` sees inside, unlike in JAX's own."""
    return functools.partial(eval_jaxpr, open_jaxpr(jaxpr), consts_of(jaxpr))


class EquationContext:
    """Gives the operations bound inside the source line, names, device and metadata of an equation.

    This is a class and not a generator, because one is entered for every equation.
    """

    __slots__ = ("_metadata", "_source")

    def __init__(self, eqn: Eqn) -> None:
        stack = _source_info.current_name_stack() + eqn.source_info.name_stack
        self._source = _source_info.user_context(eqn.source_info.traceback, name_stack=stack)
        self._metadata = eqn.ctx.manager

    def __enter__(self) -> None:
        self._source.__enter__()
        self._metadata.__enter__()

    def __exit__(self, *raised: Any) -> None:
        try:
            self._metadata.__exit__(*raised)
        finally:
            self._source.__exit__(*raised)


@contextlib.contextmanager
def inlined_call(eqn: Eqn) -> Iterator[None]:
    """Enters the name stack of an inlined ``jit`` equation."""
    name = eqn.params.get("name", eqn.primitive.name)
    stack = _source_info.current_name_stack() + eqn.source_info.name_stack
    with _source_info.set_name_stack(stack.extend(f"jit({name})")):
        yield


def bind(eqn: Eqn, operands: Sequence[Any], params: dict[str, Any] | None = None) -> list[Any]:
    """Binds the primitive of ``eqn`` to other operands and returns a list of results.

    Call inside :class:`EquationContext`.

    Args:
        eqn: the equation.
        operands: new operands.
        params: new parameters; those of ``eqn`` if omitted.
    """
    if params is None:
        copied = _copied(eqn, operands, _source_info.current())
        if copied is not None:
            return copied
        params = eqn.params
    out = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(params))
    return list(out) if eqn.primitive.multiple_results else [out]


def bind_again(eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    """Binds as :func:`bind` does, but outside of the slow :class:`EquationContext`."""
    source = eqn.source_info
    if outer := _source_info.current_name_stack().stack:
        source = source.replace(name_stack=NameStack(outer + source.name_stack.stack))
    copied = _copied(eqn, operands, source)
    if copied is not None:
        return copied
    with EquationContext(eqn):
        return bind(eqn, operands)


def _copied(eqn: Eqn, operands: Sequence[Any], source: Any) -> list[Any] | None:
    """Returns the results of ``eqn``, copied into the jaxpr under way, or ``None``.

    This works for a first-order equation without effects whose operands have their old types. Then
    its results have their old types too. Binding would derive them again and take three times as
    long.
    """
    trace, outs = _private_core.trace_ctx.trace, eqn.outvars
    first_order = len(outs) == 1 and not eqn.primitive.multiple_results and not eqn.effects
    if type(trace) is not _staging.DynamicJaxprTrace or not first_order:
        return None
    if type(outs[0].aval) is not ShapedArray:
        return None
    staged: list[Any] = []
    for atom, operand in zip(eqn.invars, operands, strict=True):
        if type(operand) is _staging.DynamicJaxprTracer and operand._trace is trace:
            if type(operand.aval) is not ShapedArray or operand.aval != atom.aval:
                return None
            staged.append(operand)
        elif type(atom) is Literal and operand is atom.val:
            staged.append(_staging.DynamicJaxprTracer(trace, atom.aval, atom, source))
        else:
            return None
    return trace.emit_eqn(
        staged, [outs[0].aval], eqn.primitive, eqn.params, eqn.effects, source, eqn.ctx
    )


class BoundOnce:
    """Calls functions that bind one equation: a cast, a dot with derivatives of its own.

    For operands of the same types as before, it copies the equation instead of tracing the function
    again. ``jax.jit`` does so too, but takes ten times as long to recognize a call.
    """

    def __init__(self) -> None:
        self._bound: dict[Any, Any] = {}

    def __call__(self, function: Callable[..., Any], operands: Sequence[Any], *statics: Any) -> Any:
        """Returns ``function(*operands, *statics)``, one array, of statics that have a hash."""
        trace = _private_core.trace_ctx.trace
        if type(trace) is not _staging.DynamicJaxprTrace or not all(
            type(x) is _staging.DynamicJaxprTracer and x._trace is trace for x in operands
        ):
            return function(*operands, *statics)
        key = (function, *[x.aval for x in operands], statics, _config.trace_context())
        try:
            bound = self._bound.get(key)
        except TypeError:  # a static has none
            return function(*operands, *statics)
        if bound is not None:
            avals, primitive, params, effects = bound
            source = _source_info.current()
            return trace.emit_eqn(operands, avals, primitive, params, effects, source)[0]
        result = function(*operands, *statics)
        eqn = getattr(result, "parent", None)
        if eqn is not None and list(map(id, eqn.in_tracers)) == list(map(id, operands)):
            avals = [var.aval for var in eqn.outvars]
            self._bound[key] = (avals, eqn.primitive, eqn.params, eqn.effects)
        return result


def convert(operand: Any, dtype: Any, weak_type: bool = False) -> Any:
    """Binds ``convert_element_type``, which can also make a value weakly typed."""
    return _primitives.convert_element_type_p.bind(
        operand, new_dtype=np.dtype(dtype), weak_type=weak_type, sharding=None
    )


NO_SOURCE = "unknown"
"""The source line of an equation for which JAX knows none."""


def source_line(eqn: Eqn) -> str:
    """Returns the user's ``file:line (function)``, and after `` > `` that of a library it calls."""
    frames = list(_source_info.user_frames(eqn.source_info.traceback))
    own = next((f for f in frames if not LIBRARIES & set(Path(f.file_name).parts)), None)
    lines = [_source_info._summarize_frame(f) for f in dict.fromkeys((own, *frames[:1])) if f]
    return " > ".join(lines) or NO_SOURCE


def scope_names(stack: NameStack) -> tuple[str, ...]:
    """Returns the user's name scopes in a name stack, outermost first, without transformations."""
    return tuple(element.name for element in stack.stack if isinstance(element, _source_info.Scope))


def stack_names(stack: NameStack) -> tuple[tuple[str, bool], ...]:
    """Returns each name in a name stack, outermost first, and whether it is a transformation's."""
    return tuple((e.name, not isinstance(e, _source_info.Scope)) for e in stack.stack)


def scan_layout(eqn: Eqn) -> tuple[int, int]:
    """Returns the number of constants and of carries among the operands of a ``scan``."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = (len(tree) for tree in eqn.params["ft_in"].unpack())
    return consts, carry


def is_jitted(function: Callable[..., Any]) -> bool:
    """Returns True if a function is one that ``jax.jit`` returned."""
    return hasattr(function, "trace") and hasattr(function, "lower")


def has_compiler_options(function: Callable[..., Any]) -> bool:
    """Returns True if a function that ``jax.jit`` returned has compiler options."""
    return bool(getattr(getattr(function, "_jit_info", None), "compiler_options_kvs", ()))


def donated_arguments(jaxpr: ClosedJaxpr) -> tuple[int, ...]:
    """Returns the positions of arguments that an inner ``jit`` donates and nothing else reads."""
    body, name = open_jaxpr(jaxpr), "donated_invars"
    given = (zip(e.invars, e.params[name], strict=True) for e in body.eqns if name in e.params)
    donated = {id(atom) for pairs in given for atom, gone in pairs if gone}
    atoms = [atom for e in body.eqns for atom in e.invars] + [*body.outvars] if donated else []
    reads = Counter(map(id, atoms))
    return tuple(i for i, v in enumerate(body.invars) if id(v) in donated and reads[id(v)] == 1)


def jit_options(eqn: Eqn) -> dict[str, Any]:
    """Returns the arguments of ``jax.jit`` with which a ``jit`` equation was made and that matter.

    It is empty if inlining loses nothing; :mod:`duotone.jaxpr.running.run` handles donation.
    """
    params, options = eqn.params, {}
    for name in ("in_shardings", "out_shardings"):
        unspecified = [type(s).__name__ == "UnspecifiedValue" for s in params.get(name, ())]
        if not all(unspecified):
            pairs = zip(params[name], unspecified, strict=True)
            options[name] = tuple(None if is_open else s for s, is_open in pairs)
    layouts = (*params.get("in_layouts", ()), *params.get("out_layouts", ()))
    if any(layout is not None for layout in layouts):
        options["layouts"] = True
    return options


def is_concrete(value: Any) -> bool:
    """Returns True if the elements of ``value`` can be read now, on this process."""
    return not isinstance(value, Tracer) and getattr(value, "is_fully_addressable", True)


def is_differentiated(arrays: Sequence[Any]) -> bool:
    """Checks if JAX differentiates a call with these arrays now, and not a trace of it later."""
    if type(_private_core.trace_ctx.trace) is _staging.DynamicJaxprTrace:
        return False
    of = [x.val if isinstance(x, _batching.BatchTracer) else x for x in arrays]
    return any(isinstance(x, (_ad.JVPTracer, _ad.LinearizeTracer)) for x in of)


def on_known(function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """Calls a function outside of the trace in which JAX calls the rule of a ``custom_jvp``.

    Such a trace splits each ``jit`` into a known and an unknown part, and traces it once more.
    """
    trace = _private_core.trace_ctx.trace
    splits = type(trace) is _staging.JaxprTrace
    if splits and not any(getattr(x, "_trace", None) is trace for x in arrays):
        trace = trace.parent_trace
    with _private_core.set_current_trace(trace):
        return function(*arrays)


def is_operand(leaf: Any) -> bool:
    """Checks if JAX traces a leaf that is not an array: a Ref, a token, a registered type."""
    try:
        aval = leaf if isinstance(leaf, _private_core.AbstractValue) else jax.typeof(leaf)
    except (TypeError, ValueError):  # JAX knows no such type
        return False
    return not isinstance(aval, ShapedArray)


def known_primitives() -> frozenset[str]:
    """Returns the names of all primitives that JAX exports."""
    exported = [getattr(_primitives, name) for name in dir(_primitives)]
    return frozenset(primitive.name for primitive in exported if isinstance(primitive, Primitive))


def shard_map_arguments(eqn: Eqn) -> dict[str, Any]:
    """Returns the keyword arguments with which ``jax.shard_map`` makes this equation again."""
    params = eqn.params
    axes = params.get("newly_manual_axes", params.get("manual_axes"))
    return {
        "mesh": params["mesh"],
        **{name: tuple(params[name]) for name in ("in_specs", "out_specs")},
        "check_vma": params["check_vma"],
        "axis_names": set(axes),
    }


PLUGIN_LOG = _bridge.__name__
"""The name of the logger on which JAX reports device plugins that fail."""


def cuda_plugin() -> str | None:
    """Returns the module of JAX's CUDA plugin, or ``None`` if it is not installed."""
    for name in ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"):
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(name) is not None:
                return name
    return None


def load_cuda_plugin() -> None:
    """Loads the CUDA plugin without a driver; set ``JAX_SKIP_CUDA_CONSTRAINTS_CHECK`` before."""
    name = cuda_plugin()
    _bridge._discover_and_register_pjrt_plugins()
    if name is not None and "cuda" not in _bridge._topology_factories:
        importlib.import_module(name).initialize()


def is_outermost(arrays: Sequence[Any]) -> bool:
    """Checks if a ``jit`` function of these arrays is compiled by itself, in no other trace."""
    return _private_core.trace_state_clean() and not any(isinstance(x, Tracer) for x in arrays)


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns ``function`` under another name, which JAX shows in profiles and errors."""
    function.__name__ = function.__qualname__ = name
    return function
