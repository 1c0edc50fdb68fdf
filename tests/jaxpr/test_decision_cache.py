"""The decision cache: equal decisions for equal programs, and for no others."""

from __future__ import annotations

import dataclasses
import enum
import functools
import io
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import duotone
from duotone.graph.graph import Body, Graph, Node, Paint, Value
from duotone.jaxpr import decision_cache, pipeline
from duotone.jaxpr.decision_cache import FOLDER, _Reader, key_of
from duotone.ops.traits import Trait
from duotone.precision.pipeline import Decisions, decide
from duotone.precision.ranges.find import NO_ASSUMPTIONS, Assumptions
from duotone.precision.resolved import Resolved

X, W = jnp.ones((64, 64)), jnp.full((64, 64), 0.1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of decisions; small programs are cached too."""
    monkeypatch.setattr(decision_cache, "FEWEST_NODES", 0)
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path / FOLDER
    jax.config.update("jax_compilation_cache_dir", before)


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    for _ in range(3):
        with jax.named_scope("layer"):
            h = jnp.tanh(x @ w)
        x = x + h / jnp.sqrt(jnp.mean(h * h, axis=-1, keepdims=True) + 1e-6)
    return jnp.mean(jax.nn.softmax(x) * x)


def recurrent(w: jax.Array, x: jax.Array) -> jax.Array:
    def step(h: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(row @ w + h @ w)
        return h, jnp.sum(h)

    return jnp.sum(jax.lax.scan(step, jnp.zeros(64), x)[1])


def descended(w: jax.Array, x: jax.Array) -> jax.Array:
    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        w, _ = state
        gradient = jax.grad(lambda w: jnp.mean((x @ w - x) ** 2))(w)
        return w - 0.1 * gradient, jnp.linalg.norm(gradient)

    return jnp.sum(
        jax.lax.while_loop(lambda state: state[1] > 0.1, step, (w, jnp.array(jnp.inf)))[0]
    )


def attended(w: jax.Array, x: jax.Array) -> jax.Array:
    scores = jnp.where(jnp.tri(64, dtype=bool), (x @ w) @ x.T, -1e9)
    return jnp.sum(jax.nn.softmax(scores) @ x)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "values": loss,
    "gradients": jax.grad(loss),
    "scan": jax.value_and_grad(recurrent),
    "while": descended,
    "attention": jax.grad(attended),
    "checkpoint": jax.grad(jax.checkpoint(loss)),
}


def painted(function: Callable[..., Any], half: str = "bfloat16", **options: Any) -> Any:
    """A painted program, before it is rewritten."""
    jaxpr = jax.make_jaxpr(function)(W, X)
    policy = duotone.Policy(ignore_performance=True, **options)
    return pipeline.paint_jaxpr(jaxpr, policy, duotone.graph.graph.HALF_TYPES[half])


def never(*_: Any, **__: Any) -> Decisions:
    raise AssertionError("decided again")


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_cached_program_is_the_same(
    name: str, half: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = painted(PROGRAMS[name], half)
    assert list(folder.iterdir())
    monkeypatch.setattr(decision_cache, "decide", never)
    again = painted(PROGRAMS[name], half)
    for field in ("classes", "painting", "plan", "optimizations"):
        assert getattr(again, field) == getattr(first, field)
    assert first.painting.changed is (name != "while")


def test_calls_explain_and_blame_use_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = duotone.Policy(ignore_performance=True)
    made = functools.partial(duotone.autocast, policy=policy, dtype="bfloat16")
    before = [str(jax.make_jaxpr(made(loss))(W, X)), str(duotone.explain(made(loss), W, X))]
    duotone.blame(made(loss), W, X)
    monkeypatch.setattr(decision_cache, "decide", never)
    assert before == [
        str(jax.make_jaxpr(made(loss))(W, X)),
        str(duotone.explain(made(loss), W, X)),
    ]
    duotone.blame(made(loss), W, X)


def test_weights_that_are_cast_beforehand_are_given_in_half(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predicted() -> Any:
        site = pipeline.CallSite(weights=1)
        jaxpr = jax.make_jaxpr(loss)(W, X)
        half = duotone.graph.graph.HALF_TYPES["bfloat16"]
        return pipeline.paint_jaxpr(jaxpr, duotone.Policy(), half, site=site)

    first = predicted()
    assert first.given == (Paint.HALF, Paint.FULL)
    monkeypatch.setattr(decision_cache, "decide", never)
    again = predicted()
    assert (again.given, again.painting) == (first.given, first.painting)
    assert again.built.graph.values == first.built.graph.values


def test_nothing_is_cached_without_a_folder_or_for_a_small_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_cache, "FEWEST_NODES", 10_000)
    painted(loss)
    monkeypatch.setattr(decision_cache, "FEWEST_NODES", 0)
    jax.config.update("jax_enable_compilation_cache", False)
    painted(loss)
    jax.config.update("jax_enable_compilation_cache", True)
    for name in ("gs://bucket/folder", None):
        jax.config.update("jax_compilation_cache_dir", name)
        painted(loss)
    assert not folder.exists()


# The key.


def graph_of(function: Callable[..., Any] = loss) -> Graph:
    return painted(function).built.graph


def key(graph: Graph, resolved: Resolved, **changes: Any) -> str:
    given: dict[str, Any] = {"assumptions": NO_ASSUMPTIONS, "weights": (), **changes}
    return key_of(graph, resolved, **given)


def changed(part: Any) -> Any:
    """Another value of the same type."""
    match part:
        case bool():
            return not part
        case enum.Enum():
            return next(other for other in type(part) if other is not part)
        case int() | float():
            return part + 1
        case str():
            return part + "another"
        case tuple():
            return (*part, *part[:1], 7) if part else (7,)
        case frozenset():
            return part ^ {Trait.SUMS}
        case None:
            return "something"
        case Mapping():
            return {**part, "another": 1.0}
        case _ if dataclasses.is_dataclass(part) and not isinstance(part, type):
            name = dataclasses.fields(part)[-1].name
            return dataclasses.replace(part, **{name: changed(getattr(part, name))})
    raise AssertionError(f"no other value of {part!r}")


@pytest.mark.parametrize(("listed", "cls"), [("nodes", Node), ("values", Value), ("bodies", Body)])
def test_each_field_of_a_graph_is_in_the_key(listed: str, cls: type[Any]) -> None:
    program = painted(jax.grad(recurrent))
    graph, resolved = program.built.graph, program.resolved
    own = key(graph, resolved)
    records = getattr(graph, listed)
    for field in dataclasses.fields(cls):
        position = len(records) // 2
        if field.name == "source":
            continue  # below
        if field.name == "given":
            position = graph.inputs[0]
        if field.name == "constant":
            position = next(v.index for v in graph.values if v.constant is not None)
        new = changed(getattr(records[position], field.name))
        other = dataclasses.replace(records[position], **{field.name: new})
        others = (*records[:position], other, *records[position + 1 :])
        assert key(dataclasses.replace(graph, **{listed: others}), resolved) != own, field.name


def test_nodes_that_share_a_line_are_in_the_key() -> None:
    program = painted(loss)
    graph, resolved = program.built.graph, program.resolved

    def with_lines(*lines: str) -> Graph:
        pairs = zip(graph.nodes, lines, strict=False)
        nodes = [dataclasses.replace(node, source=line) for node, line in pairs]
        return dataclasses.replace(graph, nodes=tuple(nodes))

    assert key(with_lines("a", "b", "a"), resolved) == key(with_lines("c", "a", "c"), resolved)
    assert key(with_lines("a", "b", "a"), resolved) != key(with_lines("a", "b", "b"), resolved)


def test_each_field_of_a_policy_is_in_the_key() -> None:
    program = painted(loss)
    graph, resolved = program.built.graph, program.resolved
    own = key(graph, resolved)
    for field in dataclasses.fields(Resolved):
        new = changed(getattr(resolved, field.name))
        assert key(graph, dataclasses.replace(resolved, **{field.name: new})) != own, field.name
    assert key(graph, resolved, weights=(1,)) != own
    stated = Assumptions({0: (0.0, 1.0)}, {}, {})
    assert key(graph, resolved, assumptions=stated) != own


def test_outputs_and_inputs_are_in_the_key() -> None:
    program = painted(loss)
    graph, resolved = program.built.graph, program.resolved
    others = [
        dataclasses.replace(graph, inputs=graph.inputs[::-1]),
        dataclasses.replace(graph, outputs=()),
        dataclasses.replace(graph, outputs=tuple((v, changed(b)) for v, b in graph.outputs)),
    ]
    assert len({key(other, resolved) for other in (graph, *others)}) == 4


def test_signs_of_zeros_are_in_the_key() -> None:
    def plus(zero: float) -> Graph:
        return graph_of(lambda w, x: jnp.sum(x @ w / zero))

    resolved = painted(loss).resolved
    assert key(plus(0.0), resolved) != key(plus(-0.0), resolved)


def test_the_source_code_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    program = painted(loss)
    own = key(program.built.graph, program.resolved)
    monkeypatch.setattr(decision_cache, "_code", lambda: b"another version")
    assert key(program.built.graph, program.resolved) != own


SCRIPT = """
import jax, jax.numpy as jnp, duotone
from duotone.jaxpr import pipeline
from duotone.jaxpr.decision_cache import key_of
from duotone.graph.graph import HALF_TYPES
from duotone.precision.ranges.find import NO_ASSUMPTIONS
def loss(w, x):
    for _ in range(3):
        x = x + jax.nn.softmax(x @ w) @ w
    return jnp.mean(x)
jaxpr = jax.make_jaxpr(jax.grad(loss))(jnp.ones((8, 8)), jnp.ones((8, 8)))
program = pipeline.paint_jaxpr(jaxpr, duotone.Policy(), HALF_TYPES["float16"])
print(key_of(program.built.graph, program.resolved, NO_ASSUMPTIONS, ()))
"""


def test_the_key_is_the_same_in_every_process_and_place(tmp_path: Path) -> None:
    found = set()
    for seed in ("1", "2"):
        script = tmp_path / f"moved{seed}.py"
        script.write_text("\n" * int(seed) + textwrap.dedent(SCRIPT))
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True
        )
        assert not run.returncode, run.stderr
        found.add(run.stdout.strip())
    assert len(found) == 1
    assert len(found.pop()) == 64


# The files.


def test_a_damaged_entry_is_written_again(folder: Path) -> None:
    first = painted(loss)
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    for damaged in (b"", whole[:-5], whole[:40] + b"?" + whole[41:]):
        entry.write_bytes(damaged)
        assert painted(loss).painting == first.painting
        assert entry.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_logged_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("a file")
    with caplog.at_level(logging.WARNING, "duotone"):
        assert painted(loss).painting.changed
        assert painted(attended).painting.changed
    (line,) = [record.getMessage() for record in caplog.records]
    assert str(folder) in line
    assert "duotone.use_cache" in line


def test_the_entries_that_were_used_last_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_cache, "MOST_ENTRIES", 2)
    painted(loss)
    (used,) = folder.iterdir()
    painted(attended)
    for age, path in enumerate(folder.iterdir()):
        os.utime(path, (age, age))
    painted(loss)  # read, so that it is the newest
    painted(recurrent)
    assert len(list(folder.iterdir())) == 2
    assert used.exists()


class _Attack:
    def __reduce__(self) -> Any:
        return (os.getcwd, ())


@pytest.mark.parametrize(
    "thing",
    [_Attack(), Path("x"), subprocess.Popen, decide, duotone.autocast],
    ids=["call", "path", "class", "function", "public function"],
)
def test_a_file_runs_no_code(thing: object, folder: Path) -> None:
    with pytest.raises(pickle.UnpicklingError, match="not a record of duotone"):
        _Reader(io.BytesIO(pickle.dumps(thing, 5))).load()
    painted(loss)
    (entry,) = folder.iterdir()
    content = zlib.compress(pickle.dumps(thing, 5))
    entry.write_bytes(sha256(content).digest() + content)
    with pytest.raises(pickle.UnpicklingError):
        painted(loss)
