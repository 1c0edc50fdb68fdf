"""Cluster program: compiles each distinct cluster once, in threads, and runs all parts in order.

A value lives from the part that makes it to the last part that reads it. If all parts of a cluster
are the last readers of an operand and make a result of its type, the operand's buffer is donated.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from duotone import _jax
from duotone.compiling.cluster_parts import Cluster, ClusterPart, Clusters, Sizes, find_clusters
from duotone.compiling.listing import LITERALS, Listing, count_equations, list_program
from duotone.errors import UnknownOperationError
from duotone.jaxpr.policy_of_program import known_names
from duotone.policy.operation_hints import advice

_INLINED_FROM = 32
"""A ``jit`` function inside the program is inlined if it has at least this many operations."""


@dataclasses.dataclass(frozen=True, slots=True)
class PartRun:
    """One part of a run.

    Attributes:
        program: the compiled cluster.
        reads: numbers of its operands.
        makes: numbers of its results.
        drops: numbers of the values that no later part reads.
    """

    program: Callable[..., Any]
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    drops: tuple[int, ...]


class ClusterProgram:
    """A program whose parts are compiled, ready to run.

    Attributes:
        most_bytes: the peak memory: arguments, constants, values between parts, and the temporary
            memory of the running part if the compiler reports it.
    """

    def __init__(self, listing: Listing, steps: Sequence[PartRun], fixed: dict[int, Any]) -> None:
        self.most_bytes = _most_bytes(listing, steps)
        self._listing, self._steps, self._fixed = listing, tuple(steps), fixed
        given = _jax.open_jaxpr(listing.jaxpr)
        self._first_argument = -1 - len(given.constvars)

    def __call__(self, *leaves: Any) -> list[Any]:
        """Runs the parts on the arguments of the program; returns its results."""
        values = dict(self._fixed)
        for position, leaf in enumerate(leaves):
            values[self._first_argument - position] = leaf
        for step in self._steps:
            made = step.program(*[values[number] for number in step.reads])
            values.update(zip(step.makes, made, strict=True))
            for number in step.drops:
                del values[number]
        return [values[number] for number in self._listing.outputs]


def clusters_of(jaxpr: _jax.ClosedJaxpr, sizes: Sizes) -> Clusters:
    """Returns a program in clusters, with its ``jit`` functions inlined.

    Raises:
        UnknownOperationError: neither JAX nor the program has an excluded operation.
    """
    listing = list_program(inlined(jaxpr))
    known = known_names() | {eqn.primitive.name for eqn in listing.eqns}
    for name in sorted(sizes.excluded - known):
        raise UnknownOperationError(
            f"cluster_jit: exclude_ops names {name!r}: {advice(name, known)}"
        )
    return find_clusters(listing, sizes)


def compile_clusters(
    clusters: Clusters,
    arrays: Sequence[Any],
    donated: frozenset[int],
    threads: int,
    options: dict[str, bool] | None = None,
) -> ClusterProgram:
    """Compiles each cluster once; the buffers of the arguments at ``donated`` may be reused."""
    listing = clusters.listing
    given = len(_jax.open_jaxpr(listing.jaxpr).constvars)
    last = _last_parts(clusters, frozenset(-1 - given - position for position in donated))
    device = _device(arrays)
    fixed = _fixed(clusters, device)
    types = [
        [_type(listing, number, device) for number in cluster.operands(cluster.parts[0])]
        for cluster in clusters.clusters
    ]
    programs = [
        jax.make_jaxpr(_program(listing, cluster))(*operands)
        for cluster, operands in zip(clusters.clusters, types, strict=True)
    ]
    shared = _shared(clusters, programs)
    jobs = []
    for cluster, program, operands in zip(clusters.clusters, programs, types, strict=True):
        run = _jax.named(_as_function(program), "duotone_cluster")
        given_away = _given_away(listing, cluster, last, shared)
        compiled_with = jax.jit(run, donate_argnums=given_away, compiler_options=options)
        jobs.append(compiled_with.lower(*operands))
    compiled: dict[int, Callable[..., Any]] = {}
    with concurrent.futures.ThreadPoolExecutor(threads, "duotone_cluster") as pool:
        waiting = [pool.submit(job.compile) for job in jobs]
        for cluster, future in zip(clusters.clusters, waiting, strict=True):
            try:
                program = future.result()
            except Exception as error:
                for other in waiting:
                    other.cancel()
                error.add_note(f"cluster_jit: while compiling {describe(listing, cluster)}")
                raise
            compiled.update({part.start: program for part in cluster.parts})
    return ClusterProgram(listing, list(_steps(clusters, compiled, last)), fixed)


def _most_bytes(listing: Listing, steps: Sequence[PartRun]) -> int:
    live = {number: listing.bytes_of(number) for number in listing.atoms if LITERALS < number < 0}
    most = sum(live.values())
    for step in steps:
        live.update({number: listing.bytes_of(number) for number in step.makes})
        analysis = getattr(step.program, "memory_analysis", lambda: None)()
        most = max(most, sum(live.values()) + getattr(analysis, "temp_size_in_bytes", 0))
        for number in step.drops:
            del live[number]
    return most


def describe(listing: Listing, cluster: Cluster) -> str:
    """Returns a cluster in words."""
    part = cluster.parts[0]
    where = _jax.source_line(listing.eqns[part.start])
    size = int(listing.weights[part.start : part.end].sum())
    count = len(cluster.parts)
    return f"{count} {'copy' if count == 1 else 'copies'} of {size} operations at {where}"


def inlined(jaxpr: _jax.ClosedJaxpr) -> _jax.ClosedJaxpr:
    """Inlines the functions that a program calls, except small ones.

    The program is not differentiated any more, so derivative rules are not needed.
    """
    opened = _jax.open_jaxpr(jaxpr)
    if not any(_is_inlined(eqn) for eqn in opened.eqns):
        return jaxpr
    types = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type)
        for v in opened.invars
    ]
    return jax.make_jaxpr(lambda *leaves: _evaluated(jaxpr, leaves))(*types)


_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr"}
"""Primitives that call one program, and the parameter that has it."""


def _is_inlined(eqn: _jax.Eqn) -> bool:
    name = eqn.primitive.name
    if name not in _CALLS or (name != "custom_jvp_call" and _jax.jit_options(eqn)):
        return False
    return count_equations(eqn) >= _INLINED_FROM


def _evaluated(jaxpr: _jax.ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
    opened = _jax.open_jaxpr(jaxpr)
    given = zip(
        (*opened.constvars, *opened.invars), (*_jax.consts_of(jaxpr), *arguments), strict=True
    )
    values: dict[Any, Any] = dict(given)

    def read(atom: Any) -> Any:
        return atom.val if _jax.is_literal(atom) else values[atom]

    for eqn in opened.eqns:
        operands = [read(atom) for atom in eqn.invars]
        if _is_inlined(eqn):
            with _jax.inlined_call(eqn):
                results = _evaluated(eqn.params[_CALLS[eqn.primitive.name]], operands)
        else:
            results = _jax.bind_again(eqn, operands)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in opened.outvars]


def _program(listing: Listing, cluster: Cluster) -> Callable[..., list[Any]]:
    """Returns the function of a cluster: takes its operands, returns its results."""
    part = cluster.parts[0]
    base = int(listing.first[part.start])

    def program(*operands: Any) -> list[Any]:
        count = len(part.reads)
        values = dict(zip(part.reads, operands[:count], strict=True))
        passed = dict(zip(cluster.passed, operands[count:], strict=True))
        literals = 0
        for position in range(part.start, part.end):
            read = []
            for number in listing.reads(position):
                if number > LITERALS:
                    read.append(values[number])
                else:
                    read.append(passed.get(literals, listing.atoms[number].val))
                    literals += 1
            results = _jax.bind_again(listing.eqns[position], read)
            values.update(zip(listing.results(position), results, strict=True))
        return [values[base + offset] for offset in part.results]

    return program


def _as_function(jaxpr: _jax.ClosedJaxpr) -> Callable[..., list[Any]]:
    run = _jax.jaxpr_as_fun(jaxpr)
    return lambda *operands: run(*operands)


def _shared(clusters: Clusters, programs: Sequence[_jax.ClosedJaxpr]) -> frozenset[int]:
    """Returns values that may share their buffer with another value, so that it may not be donated.

    ``jit`` returns an argument itself if a program returns it, and one array for equal results.
    """
    found: set[int] = set()
    for cluster, program in zip(clusters.clusters, programs, strict=True):
        opened = _jax.open_jaxpr(program)
        takes = {id(var): position for position, var in enumerate(opened.invars)}
        counts = collections.Counter(map(id, opened.outvars))
        for position, var in enumerate(opened.outvars):
            if id(var) not in takes and counts[id(var)] == 1:
                continue
            for part in cluster.parts:
                found.add(int(clusters.listing.first[part.start]) + part.results[position])
                if id(var) in takes:
                    found.add(cluster.operands(part)[takes[id(var)]])
    return frozenset(found)


def _steps(
    clusters: Clusters, compiled: dict[int, Callable[..., Any]], last: dict[int, int]
) -> Iterator[PartRun]:
    listing = clusters.listing
    for part, cluster in _in_order(clusters):
        base = int(listing.first[part.start])
        makes = tuple(base + offset for offset in part.results)
        drops = [n for n in dict.fromkeys(part.reads) if last.get(n) == part.start]
        yield PartRun(compiled[part.start], cluster.operands(part), makes, tuple(drops))


def _in_order(clusters: Clusters) -> list[tuple[ClusterPart, Cluster]]:
    pairs = [(part, cluster) for cluster in clusters.clusters for part in cluster.parts]
    return sorted(pairs, key=lambda pair: pair[0].start)


def _last_parts(clusters: Clusters, donated: frozenset[int]) -> dict[int, int]:
    """Maps each value that may be dropped to the first equation of its last reading part."""
    kept, last = set(clusters.listing.outputs), {}
    for part, _ in _in_order(clusters):
        for number in part.reads:
            if number not in kept and (number >= 0 or number in donated):
                last[number] = part.start
    return last


def _given_away(
    listing: Listing, cluster: Cluster, last: dict[int, int], shared: frozenset[int]
) -> tuple[int, ...]:
    """Returns the operands whose buffers all parts may reuse for a result of the same type."""
    first = cluster.parts[0]
    base = int(listing.first[first.start])
    wanted = collections.Counter(_kind(listing, base + offset) for offset in first.results)
    found = []
    for index in range(len(first.reads)):
        if all(
            last.get(part.reads[index]) == part.start and part.reads[index] not in shared
            for part in cluster.parts
        ):
            kind = _kind(listing, first.reads[index])
            if wanted[kind]:
                wanted[kind] -= 1
                found.append(index)
    return tuple(found)


def _kind(listing: Listing, number: int) -> Any:
    aval = listing.atoms[number].aval
    return aval.shape, aval.dtype


def _fixed(clusters: Clusters, device: Any) -> dict[int, Any]:
    """Returns the constants of the program, and the literals that are operands, on the device."""
    listing = clusters.listing
    consts = _jax.consts_of(listing.jaxpr)
    values = {-1 - position: const for position, const in enumerate(consts)}
    for cluster in clusters.clusters:
        for part in cluster.parts:
            for number in cluster.operands(part)[len(part.reads) :]:
                values[number] = np.asarray(
                    listing.atoms[number].val, listing.atoms[number].aval.dtype
                )
    for number in listing.outputs:
        if number <= LITERALS:
            atom = listing.atoms[number]
            values[number] = _jax.convert(
                np.asarray(atom.val, atom.aval.dtype), atom.aval.dtype, atom.aval.weak_type
            )
    return {number: jax.device_put(value, device) for number, value in values.items()}


def _device(arrays: Sequence[Any]) -> Any:
    """Returns the device that arguments are committed to; ``None`` if none is committed."""
    for array in arrays:
        if isinstance(array, jax.Array) and array.committed:
            return next(iter(array.devices()))
    return None


def _type(listing: Listing, number: int, device: Any) -> jax.ShapeDtypeStruct:
    aval = listing.atoms[number].aval
    where = None if device is None else jax.sharding.SingleDeviceSharding(device)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=where)
