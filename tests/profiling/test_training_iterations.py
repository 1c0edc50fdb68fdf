"""Cutting a trace into iterations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.profiling.asked import ProfileChoices
from duotone.profiling.programs import Fact
from duotone.profiling.trace_events import EventKind, Trace
from duotone.profiling.training_iterations import Iterations, cut

Ran = tuple[str, float, float]
"""Operation as ``module/name``, begin and end in nanoseconds."""


def trace_of(
    ran: Sequence[Ran], compiled: Sequence[tuple[float, float]] = (), device: str = "GPU:0"
) -> Trace:
    kinds: dict[EventKind, int] = {}
    columns = []
    for name, start, end in sorted(ran, key=lambda r: r[1]):
        module, _, operation = name.rpartition("/")
        kind = EventKind(device, f"kernel of {operation}", operation, module, 1)
        columns.append((kinds.setdefault(kind, len(kinds)), start, end))
    kind, start, end = np.array(columns).T
    compilations = np.array(compiled, float).reshape(-1, 2)
    return Trace(tuple(kinds), kind.astype(int), start, end, compilations, {}, {}, {})


def a_fact(loop: tuple[str, ...] = (), kind: str = "fusion") -> Fact:
    return Fact(kind, "", "", "", "f32", 0.0, (), False, "", loop, False)


def steps(count: int, every: float = 100.0, at: float = 0.0) -> list[Ran]:
    """A step of three operations: one of them twice, since it is in a loop."""
    found: list[Ran] = []
    for n in range(count):
        begin = at + n * every
        found += [
            ("jit_step/first", begin, begin + 10),
            ("jit_step/inside", begin + 10, begin + 30),
            ("jit_step/inside", begin + 30, begin + 50),
            ("jit_step/last", begin + 50, begin + 60),
        ]
    return found


FACTS = {1: {"first": a_fact(), "last": a_fact(), "inside": a_fact(("while.1",))}}


def spans(found: Iterations) -> list[tuple[float, float]]:
    return [(c.start, c.end) for c in found.cuts]


def counted(found: Iterations) -> list[int]:
    return [c.index for c in found.cuts if c.counted]


def test_an_iteration_begins_with_the_first_operation_that_runs_once() -> None:
    """Catches: an iteration of half the length, by an operation of a loop."""
    found = cut(trace_of(steps(5)), FACTS, ProfileChoices())
    assert found.key == "jit_step/first"
    assert spans(found) == [(0, 100), (100, 200), (200, 300), (300, 400), (400, 460)]
    assert counted(found) == [1, 2, 3, 4]
    assert found.notes == ()


def test_without_programs_the_commonest_count_decides() -> None:
    found = cut(trace_of(steps(5)), {}, ProfileChoices())
    assert found.key == "jit_step/first"
    assert len(found.cuts) == 5


def test_a_program_that_runs_once_is_cut_by_its_loop() -> None:
    """Steps in one ``lax.scan``, with a loop over layers inside."""
    ran: list[Ran] = [("jit_all/before", 0, 5), ("jit_all/after", 1000, 1005)]
    facts = {"before": a_fact(), "after": a_fact()}
    for n in range(6):
        ran.append(("jit_all/step", 10 + 100 * n, 20 + 100 * n))
        ran += [("jit_all/layer", 20 + 100 * n + 20 * i, 39 + 100 * n + 20 * i) for i in range(3)]
    facts |= {"step": a_fact(("while.1",)), "layer": a_fact(("while.1", "while.2"))}
    found = cut(trace_of(ran), {1: facts}, ProfileChoices())
    assert found.key == "jit_all/step"
    assert len(found.cuts) == 6


def test_small_programs_around_the_step_do_not_decide() -> None:
    ran = steps(4) + [("jit_add/add", n * 10.0 + 3, n * 10.0 + 4) for n in range(40)]
    assert cut(trace_of(ran), FACTS, ProfileChoices()).key == "jit_step/first"


def test_an_expensive_program_that_runs_once_does_not_decide() -> None:
    """Catches: the random numbers of the first weights taken for an iteration."""
    ran = [("jit_init/normal", 0, 5000), *steps(4, at=6000)]
    found = cut(trace_of(ran), FACTS, ProfileChoices())
    assert found.key == "jit_step/first"
    assert cut(trace_of(ran[:1]), FACTS, ProfileChoices()).key == "jit_init/normal"


def test_what_runs_after_the_last_step_belongs_to_no_iteration() -> None:
    """Catches: an evaluation that makes the last iteration long."""
    ran = [*steps(4), ("jit_eval/score", 5000, 5100)]
    assert spans(cut(trace_of(ran), FACTS, ProfileChoices()))[-1] == (300, 360)


def test_iterations_that_compile_are_left_out() -> None:
    found = cut(trace_of(steps(6), [(150, 160), (350, 360)]), FACTS, ProfileChoices())
    assert [c.index for c in found.cuts if c.compiled] == [1, 3]
    assert counted(found) == [2, 4, 5]


def test_where_most_iterations_compile_they_count() -> None:
    found = cut(
        trace_of(steps(4), [(n * 100 + 80, n * 100 + 90) for n in range(3)]),
        FACTS,
        ProfileChoices(),
    )
    assert counted(found) == [1, 2, 3]


def test_operations_that_share_a_kernel_make_no_iterations() -> None:
    """On a GPU the layers of a model share kernels, which run several times in each iteration."""
    ran = [
        (f"jit_step/{name}", 100 * n + at, 100 * n + at + 2)
        for n in range(4)
        for layer in range(3)
        for place, name in enumerate(("dot", "norm", "sum"))
        for at in [10 + 20 * layer + 5 * place]
    ]
    ran += [(f"jit_step/{name}", 100 * n, 100 * n + 5) for n in range(4) for name in ("in", "out")]
    facts = {1: {name: a_fact() for name in ("dot", "norm", "sum", "in", "out")}}
    found = cut(trace_of(ran), facts, ProfileChoices())
    assert found.key == "jit_step/in"
    assert len(found.cuts) == 4


def test_few_iterations_all_count() -> None:
    assert counted(cut(trace_of(steps(2)), FACTS, ProfileChoices())) == [0, 1]


def test_a_program_that_is_compiled_again_keeps_its_key() -> None:
    """Another shape is another program, of the same name."""
    for count in (3, 1):  # 1: the program of the last iteration ran in none before
        found = cut(compiled_again(count), FACTS | {2: FACTS[1]}, ProfileChoices())
        assert len(found.cuts) == 3 + count
        assert found.cuts[-1].end == 260 + 100 * count


def compiled_again(count: int) -> Trace:
    """Three steps, and so many more of a program of the same name."""
    first, second = trace_of(steps(3)), trace_of(steps(count, at=300))
    again = [EventKind(k.device, k.kernel, k.operation, k.module, 2) for k in second.kinds]
    return Trace(
        (*first.kinds, *again),
        np.concatenate([first.kind, second.kind + len(first.kinds)]),
        np.concatenate([first.start, second.start]),
        np.concatenate([first.end, second.end]),
        first.compilations,
        {},
        {},
        {},
    )


def test_each_device_is_cut_by_its_own_key() -> None:
    first, second = trace_of(steps(4)), trace_of(steps(4, at=7), device="GPU:1")
    both = Trace(
        first.kinds + second.kinds,
        np.concatenate([first.kind, second.kind + len(first.kinds)]),
        np.concatenate([first.start, second.start]),
        np.concatenate([first.end, second.end]),
        first.compilations,
        {},
        {},
        {},
    )
    found = cut(both, FACTS, ProfileChoices())
    assert [(c.device, c.start) for c in found.cuts if c.index == 2] == [
        ("GPU:0", 200),
        ("GPU:1", 207),
    ]


@pytest.mark.parametrize("name", ["last", "jit_step/last", "*/last", "kernel of last", "la*"])
def test_a_key_that_is_named(name: str) -> None:
    found = cut(trace_of(steps(4)), FACTS, ProfileChoices(key_node=name))
    assert found.key == "jit_step/last"
    assert spans(found)[0] == (50, 150)


def test_a_key_that_never_ran_leaves_one_iteration_and_says_what_did() -> None:
    found = cut(trace_of(steps(4)), FACTS, ProfileChoices(key_node="lost"))
    assert spans(found) == [(0, 360)]
    assert counted(found) == [0]
    (note,) = found.notes
    assert note == (
        "the key operation lost never ran, so that all is one iteration. What ran: "
        "jit_step/inside, jit_step/first, jit_step/last; found by itself: jit_step/first"
    )
    proposed = note.rpartition(": ")[2]  # the advice, followed
    assert len(cut(trace_of(steps(4)), FACTS, ProfileChoices(key_node=proposed)).cuts) == 4


@pytest.mark.parametrize(
    ("start", "stop", "numbers", "says"),
    [
        (2, None, [2, 3, 4, 5], ""),
        (None, 1, [0, 1], ""),
        (2, 3, [2, 3], ""),
        (4, 9, [4, 5], "there is no iteration 9: the last one is 5"),
        (9, None, [1, 2, 3, 4, 5], "there is no iteration from 9 on: the trace has 0 to 5"),
        (7, 9, [1, 2, 3, 4, 5], "there is no iteration from 7 to 9: the trace has 0 to 5"),
    ],
)
def test_a_range(start: int | None, stop: int | None, numbers: list[int], says: str) -> None:
    found = cut(trace_of(steps(6)), FACTS, ProfileChoices(iter_start=start, iter_stop=stop))
    assert counted(found) == numbers
    assert says in " ".join(found.notes)


def test_nothing_ran() -> None:
    empty = np.zeros(0)
    nothing = Trace((), empty.astype(int), empty, empty, empty.reshape(0, 2), {}, {}, {})
    assert cut(nothing, {}, ProfileChoices(key_node="x")) == Iterations("", ())


def test_what_cannot_be_asked() -> None:
    with pytest.raises(ArgumentError, match="iter_stop is 2, before iter_start, which is 5"):
        ProfileChoices(iter_start=5, iter_stop=2)
    with pytest.raises(ArgumentError, match="iter_start is -1; pass at least 0"):
        ProfileChoices(iter_start=-1)
    with pytest.raises(ArgumentTypeError, match=r"iter_stop is 1\.5"):
        ProfileChoices(iter_stop=1.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match="key_node is 3"):
        ProfileChoices(key_node=3)  # pyright: ignore[reportArgumentType]
