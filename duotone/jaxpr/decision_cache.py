"""The decision cache: decisions on disk, for an equal program in a later process.

If JAX's persistent cache is on, a second process compiles nothing, and without this cache it would
still decide everything again.

::

    key  = digest of (duotone's source code, graph, policy, assumptions, weights)
    file = digest of its content, content: the decisions without the graph, compressed

Decisions follow from these alone. The key has no source lines, only which nodes share one, so the
user may move code. Another version of duotone has other keys. The folder keeps the entries that
were used last. An entry that is damaged is written again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import io
import logging
import marshal
import operator
import pickle
import sys
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from duotone._files import write_atomically
from duotone._version import __version__
from duotone.errors import WriteError
from duotone.graph.graph import Graph, Node, Paint, Value
from duotone.graph.magnitude import Magnitude
from duotone.ops.traits import Traits
from duotone.precision.pipeline import Capabilities, Decisions, decide
from duotone.precision.ranges.find import Assumptions
from duotone.precision.resolved import Resolved

logger = logging.getLogger("duotone")

FOLDER = "duotone"
"""The folder of decisions, in that of JAX's persistent cache."""
FEWEST_NODES = 500
"""Programs with fewer nodes are decided again: that takes no longer than to read a file."""
MOST_ENTRIES = 512
"""The number of entries that are kept."""
DECIDING = ("graph", "ops", "precision", "text")
"""The folders of duotone whose code decides: ``precision`` imports from no others."""

_DIGEST = hashlib.sha256().digest_size


def decide_once(
    graph: Graph,
    resolved: Resolved,
    can: Capabilities,
    *,
    assumptions: Assumptions,
    weights: Sequence[int],
) -> Decisions:
    """Returns the decisions of :func:`~duotone.precision.pipeline.decide`, cached if possible.

    Args:
        graph: the program.
        resolved: the user's policy.
        can: the capabilities of JAX programs.
        assumptions: the ranges that are stated or were measured.
        weights: values that are the same at every call.

    Raises:
        PolicyError, RangeError: as ``decide`` does.
    """
    folder = _folder() if len(graph.nodes) >= FEWEST_NODES else None
    path = folder and folder / key_of(graph, resolved, assumptions, weights)
    found = path and _read(path, graph)
    if found is None:
        found = decide(graph, resolved, can, assumptions=assumptions, weights=weights)
        if path is not None:
            _write(path, found)
    return found


def _folder() -> Path | None:
    """Returns the folder of decisions, if JAX's persistent cache is on and a folder of files."""
    name: str | None = jax.config.values["jax_compilation_cache_dir"]
    if not name or "://" in name or not jax.config.values["jax_enable_compilation_cache"]:
        return None
    return Path(name).expanduser() / FOLDER


def key_of(
    graph: Graph, resolved: Resolved, assumptions: Assumptions, weights: Sequence[int]
) -> str:
    """Returns a digest of everything from which decisions follow.

    It is the same in every process and on every machine.
    """
    digest = hashlib.sha256(_code())
    for part in _parts(graph):
        digest.update(marshal.dumps(part, 2))  # a version without references to equal objects
    others = (graph.bodies, graph.outputs, resolved, assumptions, weights)
    digest.update(marshal.dumps(_plain(others), 2))
    return digest.hexdigest()


@functools.cache
def _code() -> bytes:
    """Returns a digest of the versions of Python and duotone, and of the code that decides."""
    digest = hashlib.sha256(repr((sys.version_info[:2], __version__)).encode())
    root = Path(__file__).parents[1]
    for path in sorted(path for folder in DECIDING for path in (root / folder).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.digest()


def _fields(cls: type[Any], without: Collection[str] = ()) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls) if f.name not in without)


# A program has thousands of nodes and values.
_of_node = operator.attrgetter(*_fields(Node, ("source", "traits", "attributes")))
_of_value = operator.attrgetter(*_fields(Value, ("shape", "constant", "given")))
_of_constant = operator.attrgetter(*_fields(Magnitude))


def _parts(graph: Graph) -> Iterator[list[object]]:
    """Yields the nodes, their traits, the values and the inputs as plain data."""
    lines: dict[str, int] = {}
    traits: dict[Traits, int] = {}
    nodes: list[object] = []
    for node in graph.nodes:
        nodes.append(_of_node(node))
        nodes.append(lines.setdefault(str(node.source), node.index))
        nodes.append(traits.setdefault(node.traits, len(traits)))
        if node.attributes:
            nodes.append(repr(sorted(node.attributes.items())))
    yield nodes
    yield [_plain(own) for own in traits]
    values: list[object] = []
    for value in graph.values:
        values.append(_of_value(value))
        values.append(repr(value.shape))  # a side may be symbolic
        if value.constant is not None:
            values.append(_of_constant(value.constant))
    yield values
    yield [(value, graph.values[value].given is Paint.HALF) for value in graph.inputs]


_PLAIN = frozenset({type(None), bool, int, float, str})


def _plain(part: object) -> Any:
    """Returns records as tuples of strings and numbers, and sets in an order of their own."""
    kind = type(part)
    if kind in _PLAIN:
        return part
    if isinstance(part, tuple | list):
        return tuple(map(_plain, part))
    if isinstance(part, frozenset):
        return _ordered(part)
    if isinstance(part, enum.Enum):
        return (kind.__name__, part.name)
    if isinstance(part, Mapping):
        return tuple(sorted((repr(_plain(key)), _plain(part[key])) for key in part))
    if dataclasses.is_dataclass(part):
        return (kind.__name__, *(_plain(getattr(part, name)) for name in _fields(kind)))
    return repr(part)


@functools.lru_cache(maxsize=1024)  # many operations have the same traits
def _ordered(part: frozenset[object]) -> tuple[str, ...]:
    return ("set", *sorted(repr(_plain(one)) for one in part))


def _read(path: Path, graph: Graph) -> Decisions | None:
    """Returns the decisions of an entry; ``None`` if there is none, or it is damaged."""
    try:
        found = path.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a folder may be read-only
        path.touch()
    digest, content = found[:_DIGEST], found[_DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        return None
    given, *stages = _Reader(io.BytesIO(zlib.decompress(content))).load()
    if given:
        values = list(graph.values)
        for value in given:
            values[value] = dataclasses.replace(values[value], given=Paint.HALF)
        graph = dataclasses.replace(graph, values=tuple(values))
    return Decisions(graph, *stages)


def _write(path: Path, decisions: Decisions) -> None:
    """Writes an entry; the oldest ones beyond :data:`MOST_ENTRIES` are removed."""
    graph = decisions.graph
    given = [value for value in graph.inputs if graph.values[value].given is Paint.HALF]
    stages = (getattr(decisions, name) for name in _fields(Decisions, ("graph",)))
    content = zlib.compress(pickle.dumps((given, *stages), 5), 1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, hashlib.sha256(content).digest() + content)
        _remove_oldest(path.parent)
    except (OSError, WriteError) as error:
        _warn_once(str(path.parent), str(error))


@functools.cache
def _warn_once(folder: str, reason: str) -> None:
    logger.warning(
        "decisions cannot be cached in %s: %s. Each process decides again; "
        "duotone.use_cache checks such a folder.",
        folder,
        reason,
    )


def _remove_oldest(folder: Path) -> None:
    entries = list(folder.iterdir())
    if len(entries) <= MOST_ENTRIES:
        return
    with contextlib.suppress(FileNotFoundError):  # another process removed it
        for path in sorted(entries, key=lambda path: path.stat().st_mtime)[:-MOST_ENTRIES]:
            path.unlink()


class _Reader(pickle.Unpickler):
    """Reads records and enumerations of duotone only: a file of a shared folder runs no code."""

    def find_class(self, module: str, name: str) -> type[Any]:
        """Returns a class of duotone that holds data."""
        if module.startswith("duotone.") and "." not in name:
            found: Any = super().find_class(module, name)
            is_data = isinstance(found, type) and (
                dataclasses.is_dataclass(found) or issubclass(found, enum.Enum | tuple)
            )
            if is_data and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is not a record of duotone")
