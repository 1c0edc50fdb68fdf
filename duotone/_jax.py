"""The one file that touches private JAX and knows how JAX versions differ.

Everything else in duotone uses public JAX and the names below. Supported: JAX 0.10 to 0.12. What
differs between them ends here: ``ClosedJaxpr`` and ``Jaxpr`` are one class from 0.11 on, ``scan``
describes its operands by counts or by trees, some names moved.

Who extends this: whoever adds a JAX version. What goes wrong: an unsupported version usually fails
in one of these functions, with an ``AttributeError`` or ``KeyError`` that names the change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
import numpy as np
from jax._src import array as _array
from jax._src import source_info_util as _source_info
from jax.core import Tracer
from jax.extend import core as _core
from jax.extend.core import primitives as _primitives

Eqn = Any
"""A ``JaxprEqn``."""
OpenJaxpr = Any
"""A ``Jaxpr`` without constants attached (before 0.11), or any ``Jaxpr``."""
ClosedJaxpr = Any
"""A jaxpr with its constants."""
Atom = Any
"""A ``Var`` or a ``Literal``."""

ARRAY_TYPES = frozenset({_array.ArrayImpl})
"""The concrete type of JAX arrays, for a test that is quicker than ``isinstance``."""

Literal = _core.Literal
NameStack = _source_info.NameStack
check_jaxpr = _core.check_jaxpr
jaxpr_as_fun = _core.jaxpr_as_fun

_JAXLIB = tuple(int(part) for part in jaxlib.version.__version__.split(".")[:2])

# User frames in source lines and filtered tracebacks are the user's, not duotone's.
_HERE = Path(__file__).resolve().parent
for _name in ("_jax.py", "adapters", "api.py", "regions.py", "jaxpr", "scale"):
    _source_info.register_exclusion(str(_HERE / _name))


def is_literal(atom: Atom) -> bool:
    """Whether an atom is a constant written into the jaxpr."""
    return isinstance(atom, Literal)


def open_jaxpr(jaxpr: Any) -> OpenJaxpr:
    """The jaxpr itself, closed or not (one class from JAX 0.11 on)."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def consts_of(jaxpr: Any) -> Sequence[Any]:
    """The constants attached to a jaxpr; none for an open one."""
    return getattr(jaxpr, "consts", ())


def holds_jaxpr(param: Any) -> bool:
    """Whether an equation's parameter is, or holds, a jaxpr."""
    if isinstance(param, (tuple, list)):
        return any(holds_jaxpr(element) for element in param)
    return hasattr(open_jaxpr(param), "eqns")


def rewritten_parameter(old: Any, new: ClosedJaxpr) -> Any:
    """``new`` in the form in which ``old`` stood in an equation's parameters.

    ``remat2`` and ``shard_map`` hold an open jaxpr before JAX 0.11.
    """
    if type(old) is type(new):
        return new
    if consts_of(new):
        raise ValueError("an open jaxpr cannot hold constants")
    return new.jaxpr


class EquationContext:
    """What is bound inside has the source line, name stack, device and metadata of an equation.

    A class and not a generator: one is entered for every equation of a program.
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
    """The name stack inside an inlined ``jit`` equation."""
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
    params = eqn.params if params is None else params
    out = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(params))
    return list(out) if eqn.primitive.multiple_results else [out]


def convert(operand: Any, dtype: Any, *, weak_type: bool = False) -> Any:
    """``convert_element_type`` that can also make a value weakly typed."""
    return _primitives.convert_element_type_p.bind(
        operand, new_dtype=np.dtype(dtype), weak_type=weak_type, sharding=None
    )


def operands_for_wide_dot(operands: Sequence[Any]) -> list[Any]:
    """Half operands in a form in which a dot with a float32 result runs on the default device.

    On CPUs, jaxlib before 0.12 compiles some bfloat16 dots with a float32 result (those whose
    result is transposed, or whose left operand is contracted on its leading dimension) to code that
    fails when it runs. There the rounded operands are widened; products and sums stay the same,
    since a product of two bfloat16 numbers is exact in float32.
    """
    old_cpu = jax.default_backend() == "cpu" and _JAXLIB < (0, 12)
    if old_cpu and any(operand.dtype == jax.numpy.bfloat16 for operand in operands):
        return [convert(operand, np.float32) for operand in operands]
    return list(operands)


def source_line(eqn: Eqn) -> str:
    """``file:line (function)`` of the user's code that made ``eqn``."""
    return _source_info.summarize(eqn.source_info)


def scope_names(stack: NameStack) -> tuple[str, ...]:
    """The user's name scopes in a name stack, outermost first, without transformations."""
    return tuple(element.name for element in stack.stack if isinstance(element, _source_info.Scope))


def scan_layout(eqn: Eqn) -> tuple[int, int]:
    """Number of constants and of carries among the operands of a ``scan``."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = (len(tree) for tree in eqn.params["ft_in"].unpack())
    return consts, carry


def jit_options(eqn: Eqn) -> dict[str, Any]:
    """The arguments of ``jax.jit`` with which a ``jit`` equation was made and that matter.

    Empty if the equation may be inlined with nothing lost. Donation matters on the outermost
    ``jit`` only, where :mod:`duotone.jaxpr.run` takes care of it.
    """
    params, options = eqn.params, {}
    for name in ("in_shardings", "out_shardings"):
        given = params.get(name, ())
        if any(type(s).__name__ != "UnspecifiedValue" for s in given):
            options[name] = tuple(
                None if type(s).__name__ == "UnspecifiedValue" else s for s in given
            )
    if any(
        layout is not None for n in ("in_layouts", "out_layouts") for layout in params.get(n, ())
    ):
        options["layouts"] = True
    return options


def function_name(jaxpr: ClosedJaxpr) -> str:
    """The name of the function that a jaxpr was traced from; empty if unknown."""
    info = getattr(open_jaxpr(jaxpr), "debug_info", None)
    name = getattr(info, "func_name", "") or ""
    return name if name.isidentifier() else ""


def is_concrete(value: Any) -> bool:
    """Whether the elements of ``value`` can be read now, on this process."""
    if isinstance(value, Tracer):
        return False
    return getattr(value, "is_fully_addressable", True)


def known_primitives() -> frozenset[str]:
    """The names of all primitives that JAX exports."""
    return frozenset(
        primitive.name
        for name in dir(_primitives)
        if isinstance(primitive := getattr(_primitives, name), _core.Primitive)
    )


def shard_map_arguments(eqn: Eqn) -> dict[str, Any]:
    """The keyword arguments with which ``jax.shard_map`` makes this equation again."""
    params = eqn.params
    axes = params.get("newly_manual_axes", params.get("manual_axes"))
    return {
        "mesh": params["mesh"],
        "in_specs": tuple(params["in_specs"]),
        "out_specs": tuple(params["out_specs"]),
        "check_vma": params["check_vma"],
        "axis_names": set(axes),
    }


def same_type(a: Any, b: Any) -> bool:
    """Whether two avals agree in shape, dtype and weak type."""
    names = ("shape", "dtype", "weak_type")
    return all(getattr(a, name, None) == getattr(b, name, None) for name in names)


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``function`` under another name, which JAX shows in profiles and error messages."""
    function.__name__ = function.__qualname__ = name
    return function
