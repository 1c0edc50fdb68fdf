"""Module paths: the modules of Flax NNX and Equinox as name scopes, while duotone traces.

Linen, Haiku and Keras push the names of their modules on JAX's name stack; ``"*/attention/*"`` in a
policy matches them. NNX pushes nothing, and Equinox only the classes of its own layers. So while
duotone traces, the methods of their modules run in ``jax.named_scope``::

    the outermost called module              its class              Net
    an attribute of a known module           the path to it         Net/layers/0/attention
    any other module called by a module      its class              Net/Block

``nnx.remat`` and ``eqx.filter_checkpoint`` copy modules, and no known module contains the copy.
duotone then searches the modules whose methods are on the call stack.

Neither library has a hook for this. So duotone replaces the methods of the modules' classes during
a trace, as Flax's own ``nnx.capture`` does. In a thread in which duotone does not trace, the
replacement calls the method directly.

duotone imports neither library; it inspects the modules that the user's program has loaded. The NNX
adapter calls :func:`holding`, because only it sees the user's objects.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jax

Path = tuple[str, ...]
Known = dict[int, tuple[Any, Path]]
"""Modules by ``id``, each with its path; it keeps them alive, so that no id is reused."""

_LIBRARIES = ("flax.nnx", "equinox")
_OWN_SCOPES = "equinox.nn."
"""Prefix of the modules that open a scope named after their class themselves."""
_TRACER = "duotone.jaxpr.reading.trace"
"""The module that calls the user's function."""
_KEPT = "__duotone_named__"
"""The attribute of a method that keeps its replacement, so that it is the same for every trace."""


class _Naming(threading.local):
    """The state of this thread: traces, the known modules, the running module, and its path."""

    def __init__(self) -> None:
        self.traces = 0
        self.known: list[Known] = []
        self.current: Any = None
        self.path: Path = ()


_naming = _Naming()
_lock = threading.Lock()
_traces = 0
_replaced: dict[tuple[type, str], tuple[Any, Any]] = {}
"""While any thread traces: by class and name, the method and its replacement."""


@contextlib.contextmanager
def named_modules(*arguments: Any) -> Iterator[None]:
    """Traces the operations of each module in a name scope with the module's path.

    The arguments are the function and its arguments; the modules in them become known by paths.
    """
    if not _module_classes():
        yield
        return
    global _traces
    with _lock:
        _traces += 1
        _replace_methods()
    _naming.traces += 1
    try:
        with holding(*arguments):
            yield
    finally:
        _naming.traces -= 1
        with _lock:
            _traces -= 1
            if not _traces:
                _restore_methods()


@contextlib.contextmanager
def holding(*trees: Any) -> Iterator[None]:
    """Makes the modules in pytrees and containers known by their paths, if duotone is tracing."""
    if not _naming.traces:
        yield
        return
    kinds = _module_classes()
    known: Known = {}
    for root in jax.tree.leaves(trees, is_leaf=lambda node: isinstance(node, kinds)):
        if isinstance(root, kinds):
            _know(root, (*_naming.path, type(root).__name__), known)
    _naming.known.append(known)
    try:
        yield
    finally:
        _naming.known.pop()


@contextlib.contextmanager
def inside(module: Any) -> Iterator[None]:
    """Returns a context in the scope of an NNX or Equinox module, if duotone is tracing."""
    if not _naming.traces or module is _naming.current:
        yield
        return
    before = _naming.current, _naming.path
    path = _path_of(module)
    new: Known = {}
    if path is None:
        path, new = _new_path(module)
    scope = _beyond(before[1], path)
    if not before[1] and len(path) == 1 and type(module).__module__.startswith(_OWN_SCOPES):
        scope = ""
    _naming.known.append(new)
    _naming.current, _naming.path = module, path
    try:
        with jax.named_scope(scope) if scope else contextlib.nullcontext():
            yield
    finally:
        _naming.current, _naming.path = before
        _naming.known.pop()


def _module_classes() -> tuple[type, ...]:
    """Returns the base classes of modules of the libraries that are loaded."""
    found = (getattr(sys.modules.get(name), "Module", None) for name in _LIBRARIES)
    return tuple(kind for kind in found if isinstance(kind, type))


def _path_of(module: Any) -> Path | None:
    for known in reversed(_naming.known):
        if id(module) in known:
            return known[id(module)][1]
    return None


def _new_path(module: Any) -> tuple[Path, Known]:
    """Returns the path of an unknown module, and the modules that become known with it."""
    known: Known = {}
    holder = _holder(module)
    if holder is not None:
        copied = type(holder) is type(_naming.current)
        around = _naming.path if copied else (*_naming.path, type(holder).__name__)
        _know(holder, around, known)
    else:
        _know(module, (*_naming.path, type(module).__name__), known)
    return known[id(module)][1], known


def _holder(module: Any) -> Any:
    """Returns the module that contains an unknown one, among unknown modules on the call stack."""
    kinds = _module_classes()
    frame = sys._getframe(1)
    frames = 0
    while frame is not None and frame.f_globals.get("__name__") != _TRACER:
        code = frame.f_code
        if code is _STAND_IN:
            frames += 1
            if frames > 1:  # the outer known module's frame; the first is the module's own
                return None
        elif code.co_argcount:
            owner = frame.f_locals.get(code.co_varnames[0])
            wrapper = _is_plumbing(type(owner))
            if isinstance(owner, kinds) and owner is not module and not wrapper:
                known: Known = {}
                _know(owner, (), known)
                if id(module) in known:
                    return owner
        frame = frame.f_back
    return None


def _know(module: Any, path: Path, known: Known) -> None:
    """Adds a module and the modules in its attributes and containers, by their shortest paths."""
    kinds = _module_classes()
    left: deque[tuple[Any, Path]] = deque([(module, path)])
    while left:
        thing, path = left.popleft()
        if isinstance(thing, kinds):
            if id(thing) in known:
                continue
            known[id(thing)] = thing, path
            pairs = vars(thing).items()
        else:
            pairs = thing.items() if isinstance(thing, dict) else enumerate(thing)
        left.extend(
            (value, (*path, str(name)))
            for name, value in pairs
            if isinstance(value, (*kinds, list, tuple, dict))
        )


def _beyond(around: Path, path: Path) -> str:
    """Returns the part of a path beyond its common prefix with the current path."""
    same = 0
    while same < min(len(around), len(path)) and around[same] == path[same]:
        same += 1
    return "/".join(path[same:])


def _replace_methods() -> None:
    for kind in _classes():
        for name, method in list(vars(kind).items()):
            kept = _replaced.get((kind, name))
            if (kept is None or kept[1] is not method) and _is_method(kind, name, method):
                stand_in = _stand_in(method)
                _replaced[kind, name] = method, stand_in
                type.__setattr__(kind, name, stand_in)


def _restore_methods() -> None:
    for (kind, name), (method, stand_in) in _replaced.items():
        if vars(kind).get(name) is stand_in:
            type.__setattr__(kind, name, method)
    _replaced.clear()


def _classes() -> set[type]:
    """Returns all module classes whose methods get a scope."""
    found: set[type] = set()
    left = list(_module_classes())
    while left:
        for kind in type.__subclasses__(left.pop()):
            if kind not in found:
                found.add(kind)
                left.append(kind)
    return {kind for kind in found if not _is_plumbing(kind)}


def _is_plumbing(kind: type) -> bool:
    """Returns True for Equinox's own wrappers, and for Keras, which names its layers itself."""
    if any(base.__module__.startswith("keras.") for base in kind.__mro__):
        return True
    return kind.__module__.startswith("equinox.") and not kind.__module__.startswith(_OWN_SCOPES)


def _is_method(kind: type, name: str, method: Any) -> bool:
    """Returns True if a class attribute is a public method or ``__call__``."""
    if name in getattr(kind, "__dataclass_fields__", ()):
        return False
    if name == "__call__":  # `nnx.jit` and `eqx.filter_jit` leave a descriptor there
        return callable(method) and hasattr(type(method), "__get__")
    return isinstance(method, types.FunctionType) and not name.startswith("_")


def _stand_in(method: Any) -> Callable[..., Any]:
    """Returns the function that runs a method in the scope of its module."""
    kept = getattr(method, _KEPT, None)
    if kept is not None and kept.__wrapped__ is method:
        return kept

    @functools.wraps(method)
    def named(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with inside(self):
            return method.__get__(self, type(self))(*args, **kwargs)

    if isinstance(method, types.FunctionType):
        setattr(method, _KEPT, named)
    return named


_STAND_IN = next(
    code for code in _stand_in.__code__.co_consts if getattr(code, "co_name", "") == "named"
)


_NNX_STATES = ("State", "FlatState", "GraphState", "NodeStates")
"""Classes of ``flax.nnx`` that hold variables by value: what ``nnx.split`` gives."""


def nnx_object_in(tree: Any) -> tuple[Any, Any] | None:
    """Returns path and object of the first NNX object in a tree, except ``nnx.split`` results."""
    nnx, mutable = sys.modules.get("flax.nnx"), nnx_classes()
    if not mutable:
        return None
    stops = (*mutable, *(getattr(nnx, state) for state in _NNX_STATES if hasattr(nnx, state)))
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda n: isinstance(n, stops))
    return next(((path, leaf) for path, leaf in leaves if isinstance(leaf, mutable)), None)


def nnx_classes() -> tuple[type, ...]:
    """Returns the classes of NNX objects; none where NNX was not imported."""
    nnx = sys.modules.get("flax.nnx")
    return tuple(getattr(nnx, name) for name in ("Pytree", "Variable") if hasattr(nnx, name))
