"""Loops, branches and shards of a program that runs with its float32 reference.

A carry has a separate reference only if its initial value or the body makes one. Tracing the body
until nothing changes finds these carries. It also finds the sites of the body, since a loop carries
one row for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from duotone import _jax
from duotone.blaming.reference_run import Handler, Names, Reference, References, rejoined
from duotone.jaxpr.nesting.nested import is_mapped, keep_finished


def _packed(
    references: Iterable[Reference], shared: Sequence[bool], avals: Sequence[Any]
) -> list[Any]:
    """Returns the arrays of values: one if a value is its own reference, otherwise two."""
    arrays: list[Any] = []
    for reference, one, aval in zip(references, shared, avals, strict=True):
        pair = rejoined(reference.plain, reference.full, aval)
        arrays.extend(pair[:1] if one else pair)
    return arrays


def _unpacked(
    arrays: Sequence[Any], shared: Sequence[bool], like: Sequence[int]
) -> list[Reference]:
    """Inverts :func:`_packed`; ``like`` has the site of each value."""
    rest = iter(arrays)
    found = []
    for one, site in zip(shared, like, strict=True):
        plain = next(rest)
        found.append(Reference(plain, plain if one else next(rest), site))
    return found


def _spread(t: References, sites: Sequence[int], rows: Any, among: Sequence[int]) -> Any:
    """Scatters rows of ``sites`` into neutral rows of ``among``."""
    return t.kind.neutral(len(among)).at[np.searchsorted(among, sites)].set(rows)


class _Body:
    """The body of a loop, traced until its carries are known.

    Attributes:
        shared: which carries are their own references.
        keys: the sites in the body.
    """

    def __init__(
        self,
        t: References,
        run: Callable[[list[Reference], Sequence[Any]], list[Reference]],
        first: Sequence[Reference],
        avals: Sequence[Any],
    ) -> None:
        self._t, self._run, self._avals = t, run, avals
        self.first = first
        self.sites = [reference.site for reference in first]
        self.shared = [reference.shared for reference in first]
        self.after: list[Reference] = []
        self.keys: list[int] = []

    def find_carries(self, x: Sequence[Any]) -> None:
        """Finds which carries are shared; ``x`` has the other arguments of an iteration."""
        while True:
            arrays = _packed(self.first, self.shared, self._avals)
            jax.eval_shape(lambda a: self(a, x, jnp.int32(0), jnp.int32(0))[:2], arrays)
            count = len(self.shared)
            shared = [
                now and reference.shared
                for now, reference in zip(self.shared, self.after[:count], strict=True)
            ]
            if shared == self.shared:
                return
            self.shared = shared

    def __call__(
        self, arrays: Sequence[Any], x: Sequence[Any], tick: Any, iteration: Any
    ) -> tuple[list[Any], Any, Any, list[Reference]]:
        """Runs one iteration; returns new carries, rows, tick and further results."""
        carry = _unpacked(arrays, self.shared, self.sites)
        after, left = self._t.apart(lambda: self._run(carry, x), tick + 1, iteration)
        self.after, (self.keys, rows, tick) = after, left
        count = len(self.shared)
        arrays = _packed(after[:count], self.shared, self._avals)
        return arrays, rows, tick, after[count:]

    def start(self) -> tuple[list[Any], Any]:
        """Returns the carries before the loop, and neutral rows."""
        arrays = _packed(self.first, self.shared, self._avals)
        return arrays, self._t.kind.neutral(len(self.keys))

    def results(self, arrays: Sequence[Any]) -> list[Reference]:
        """Returns the carries after the loop."""
        sites = [reference.site for reference in self.after[: len(self.shared)]]
        return _unpacked(arrays, self.shared, sites)


def _scan(
    t: References, eqn: Any, operands: list[Reference], names: Names, path: tuple[int, ...]
) -> list[Reference]:
    jaxpr, length = eqn.params["jaxpr"], eqn.params["length"]
    num_consts, num_carry = _jax.scan_layout(eqn)
    split = num_consts + num_carry
    consts, first, xs = operands[:num_consts], operands[num_consts:split], operands[split:]
    opened = _jax.open_jaxpr(jaxpr)
    sliced = [reference.shared for reference in xs]
    sites = [reference.site for reference in xs]

    def run(carry: list[Reference], x: Sequence[Any]) -> list[Reference]:
        return t.run(jaxpr, [*consts, *carry, *_unpacked(x, sliced, sites)], names, path)

    body = _Body(t, run, first, [var.aval for var in opened.invars[num_consts:split]])
    slices = [array for reference in xs for array in reference.arrays]
    if not length:
        return _empty(eqn, operands)
    body.find_carries([s[0] if _extended(s) else jnp.zeros(s.shape[1:], s.dtype) for s in slices])
    keys, avals = body.keys, [var.aval for var in opened.outvars[num_carry:]]
    stacked = [reference.shared for reference in body.after[num_carry:]]

    def step(state: Any, x: Any) -> tuple[Any, Any]:
        arrays, rows, tick, iteration = state
        arrays, new, tick, rest = body(arrays, x, tick, iteration)
        rows = t.kind.joined(rows, new)
        return (arrays, rows, tick, iteration + 1), _packed(rest, stacked, avals)

    start = (*body.start(), t.tick, jnp.int32(0))
    (arrays, rows, tick, _), ys = lax.scan(
        step, start, slices, length=length, reverse=eqn.params["reverse"]
    )
    _leave(t, keys, rows, tick)
    after = [reference.site for reference in body.after[num_carry:]]
    return [*body.results(arrays), *_unpacked(ys, stacked, after)]


def _extended(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.extended)


def _empty(eqn: Any, operands: list[Reference]) -> list[Reference]:
    """Runs a scan of length 0."""
    with _jax.EquationContext(eqn):
        plains = _jax.bind(eqn, [operand.plain for operand in operands])
    num_consts, num_carry = _jax.scan_layout(eqn)
    carried = operands[num_consts : num_consts + num_carry]
    return [*carried, *[Reference(plain, plain) for plain in plains[num_carry:]]]


def _leave(t: References, keys: Sequence[int], rows: Any, tick: Any) -> None:
    """Adds the rows of a loop or branch to the run."""
    t.left.append((keys, rows))
    t.tick = tick + 1


def _while(
    t: References, eqn: Any, operands: list[Reference], names: Names, path: tuple[int, ...]
) -> list[Reference]:
    of_cond, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    condition, jaxpr = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    cond_consts = [reference.plain for reference in operands[:of_cond]]
    consts, first = operands[of_cond : of_cond + of_body], operands[of_cond + of_body :]

    def run(carry: list[Reference], x: Sequence[Any]) -> list[Reference]:
        return t.run(jaxpr, [*consts, *carry], names, path)

    body = _Body(t, run, first, [var.aval for var in _jax.open_jaxpr(jaxpr).invars[of_body:]])
    body.find_carries(())
    mapped = is_mapped(eqn)

    def goes_on(arrays: Sequence[Any]) -> Any:
        carry = _unpacked(arrays, body.shared, body.sites)
        (found,) = _jax.jaxpr_as_fun(condition)(
            *cond_consts, *[reference.plain for reference in carry]
        )
        return found

    def step(state: Any) -> Any:
        arrays, rows, tick, iteration = state
        new, found, tick, _ = body(arrays, (), tick, iteration)
        if mapped:
            new = keep_finished(goes_on(arrays), arrays, new)
        return new, t.kind.joined(rows, found), tick, iteration + 1

    keys = body.keys
    start = (*body.start(), t.tick, jnp.int32(0))
    arrays, rows, tick, _ = lax.while_loop(lambda s: jnp.any(goes_on(s[0])), step, start)
    _leave(t, keys, rows, tick)
    return body.results(arrays)


def _cond(
    t: References, eqn: Any, operands: list[Reference], names: Names, path: tuple[int, ...]
) -> list[Reference]:
    index, rest = operands[0], operands[1:]
    avals = [var.aval for var in eqn.outvars]
    shared, keys = [True] * len(avals), set[int]()
    sites = [-1] * len(avals)

    def branch(number: int) -> tuple[list[Reference], Any]:
        jaxpr = eqn.params["branches"][number]
        return t.apart(lambda: t.run(jaxpr, rest, names, (*path, number)), t.tick, t.iteration)

    def look(number: int) -> Any:
        results, (inside, _, _) = branch(number)
        keys.update(inside)
        for position, reference in enumerate(results):
            shared[position] &= reference.shared
            sites[position] = max(sites[position], reference.site)
        return [reference.plain for reference in results]

    numbers = range(len(eqn.params["branches"]))
    for number in numbers:
        jax.eval_shape(lambda number=number: look(number))
    ordered = sorted(keys)

    def taken(number: int) -> Callable[[], Any]:
        def run() -> Any:
            results, (inside, rows, tick) = branch(number)
            rows = _spread(t, inside, rows, ordered)
            return _packed(results, shared, avals), rows, jnp.int32(tick)

        return run

    arrays, rows, tick = lax.switch(index.plain.astype(jnp.int32), [taken(p) for p in numbers])
    _leave(t, ordered, rows, tick - 1)
    return _unpacked(arrays, shared, sites)


def _shard_map(
    t: References, eqn: Any, operands: list[Reference], names: Names, path: tuple[int, ...]
) -> list[Reference]:
    """Runs a ``shard_map`` without notes inside; each result is one site."""
    arguments = _jax.shard_map_arguments(eqn)
    jaxpr = eqn.params["jaxpr"]
    shared = [reference.shared for reference in operands]
    local = [var.aval for var in _jax.open_jaxpr(jaxpr).outvars]
    enter = [
        s for s, one in zip(arguments["in_specs"], shared, strict=True) for _ in range(2 - one)
    ]
    leave = [spec for spec in arguments["out_specs"] for _ in range(2)]

    def run(*shards: Any) -> tuple[Any, ...]:
        t.watching = False
        inside = _unpacked(shards, shared, [-1] * len(shared))
        results, _ = t.apart(lambda: t.run(jaxpr, inside, names, path), jnp.int32(0), None)
        t.watching = True
        return tuple(_packed(results, [False] * len(results), local))

    given = [array for reference in operands for array in reference.arrays]
    specs = {"in_specs": tuple(enter), "out_specs": tuple(leave)}
    arrays = jax.shard_map(run, **{**arguments, **specs})(*given)
    results = _unpacked(arrays, [False] * len(local), [-1] * len(local))
    reads = [reference.site for reference in operands]
    return [t.note((path, k), eqn, names, reference, reads) for k, reference in enumerate(results)]


HANDLERS: Mapping[str, Handler] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
}
"""By primitive name."""
