"""The tables, of a trace in which all times are known."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from duotone.profiling.asked import ProfileChoices
from duotone.profiling.profile_advice import advise
from duotone.profiling.profile_files import write_profile
from duotone.profiling.profile_record import TABLES, ProfileRecord, ProfileSummary
from duotone.profiling.profile_tables import tabulate
from duotone.profiling.programs import Fact
from duotone.profiling.shapes import MatrixProduct
from duotone.profiling.time_sums import Sum
from duotone.profiling.trace_events import EventKind, Trace
from duotone.profiling.training_iterations import cut

USES, NOT, NEW = "ampere_bf16_s16816gemm_tn", "ampere_sgemm_128x64_tn", "next_years_kernel"
SECOND = 1e9


def dot(dtype: str, scope: str, side: int = 64, loop: tuple[str, ...] = ()) -> Fact:
    product = MatrixProduct(64, side, 64, (dtype, dtype))
    types = f"{dtype}×{dtype}→f32"
    return Fact(
        "__cublas$gemm", scope, "dot_general", "train.py:7", types, 100.0, (product,), False, "",
        loop, False,
    )  # fmt: skip


def plain(scope: str = "", kind: str = "fusion", casts: bool = False) -> Fact:
    return Fact(kind, scope, "add", "train.py:9", "f32", 0.0, (), False, "", (), casts)


FACTS = {
    1: {
        "half": dot("bf16", "encoder/layer_0"),
        "full": dot("f32", "encoder/layer_1"),
        "new": dot("bf16", "head"),
        "add": plain("encoder"),
        "loop": plain(kind="while"),
    }
}


def trace_of(ran: list[tuple[str, str, float, float]], device: str = "GPU:0") -> Trace:
    """What ran: operation, kernel, begin and end in seconds."""
    kinds: dict[EventKind, int] = {}
    columns = []
    for operation, kernel, start, end in sorted(ran, key=lambda r: r[2]):
        kind = EventKind(device, kernel, operation, "jit_step" if operation else "", 1)
        columns.append((kinds.setdefault(kind, len(kinds)), start * SECOND, end * SECOND))
    kind, start, end = np.array(columns).T
    return Trace(
        tuple(kinds), kind.astype(int), start, end, np.zeros((0, 2)), {}, {}, {"jax_version": "1"}
    )


def a_step(at: float) -> list[tuple[str, str, float, float]]:
    """Ten seconds, of which two are idle, and one has two kernels next to each other."""
    return [
        ("add", "loop_add_fusion", at, at + 1),
        ("half", USES, at + 1, at + 4),
        ("full", NOT, at + 4, at + 5),
        ("new", NEW, at + 4, at + 6),
        ("", "MemcpyD2H", at + 7, at + 9),
    ]


def table(
    ran: list[tuple[str, str, float, float]], device: str = "GPU:0"
) -> tuple[ProfileRecord, tuple[Sum, ...]]:
    trace = trace_of(ran, device)
    return tabulate(trace, FACTS, cut(trace, FACTS, ProfileChoices(key_node="add")))


@pytest.fixture
def record() -> ProfileRecord:
    return table([one for n in range(5) for one in a_step(10.0 * n)])[0]


def test_the_summary(record: ProfileRecord) -> None:
    seen = record.summary
    assert (seen.platform, seen.devices, seen.iterations, seen.counted) == ("GPU", 1, 5, 4)
    assert seen.key_node == "jit_step/add"
    # The last one ends with its last operation.
    assert seen.wall_seconds == pytest.approx((3 * 10 + 9) / 4)
    assert seen.busy_seconds == pytest.approx(8)
    assert seen.idle == pytest.approx(1 - 8 * 4 / 39)
    assert seen.flops == pytest.approx(300)
    assert seen.eligible_seconds == pytest.approx(6)
    assert seen.tensor_core_seconds == pytest.approx(3)
    assert seen.unknown_seconds == pytest.approx(2)
    assert seen.tensor_core_efficiency == pytest.approx(3 / 4)
    assert seen.versions == "jax 1"


def test_each_iteration(record: ProfileRecord) -> None:
    assert [row.counted for row in record.iterations] == [False, True, True, True, True]
    row = record.iterations[1]
    assert (row.device, row.iteration, row.kernels) == ("GPU:0", 1, 5)
    assert (row.start, row.seconds, row.busy_seconds) == pytest.approx((10, 10, 8))
    assert row.tensor_core_seconds == pytest.approx(3)


def test_each_operation_and_kernel(record: ProfileRecord) -> None:
    rows = {row.operation: row for row in record.operations}
    assert list(rows) == ["half", "new", "MemcpyD2H", "add", "full"]
    half = rows["half"]
    assert (half.scope, half.primitive, half.source) == (
        "encoder/layer_0",
        "dot_general",
        "train.py:7",
    )
    assert (half.calls, half.eligible) == (4, True)
    assert half.seconds == pytest.approx(12)
    assert half.share == pytest.approx(12 / 36)
    assert half.flops == pytest.approx(400)
    used = {name: row.tensor_core_seconds for name, row in rows.items()}
    assert used == pytest.approx({"half": 12, "new": 0, "MemcpyD2H": 0, "add": 0, "full": 0})
    assert rows["new"].unknown_seconds == pytest.approx(8)
    kernels = {row.kernel: row.tensor_cores for row in record.kernels}
    assert kernels[USES] == "yes"
    assert kernels[NOT] == "no"
    assert kernels[NEW] == "unknown"


def test_a_scope_holds_what_is_inside_of_it(record: ProfileRecord) -> None:
    rows = {row.scope: row for row in record.scopes}
    assert list(rows) == ["encoder", "encoder/layer_0", "encoder/layer_1", "", "head"]
    assert rows["encoder"].seconds == pytest.approx(20)
    assert rows["encoder"].depth == 1
    assert rows["encoder"].tensor_core_seconds == pytest.approx(12)
    assert sum(row.seconds for row in rows.values() if row.depth < 2) == pytest.approx(36)


def test_each_dtype(record: ProfileRecord) -> None:
    found = {row.dtype: row.seconds for row in record.dtypes}
    assert found == pytest.approx({"bf16×bf16→f32": 20, "": 8, "f32": 4, "f32×f32→f32": 4})


def test_a_loop_counts_by_what_is_inside_of_it() -> None:
    """Catches: time that is counted twice, once as the loop and once as its body."""
    ran = [("add", "k", 0.0, 1.0), ("loop", "k", 1.0, 5.0), ("half", USES, 1.5, 4.5)]
    record, _ = table(ran)
    assert [row.operation for row in record.operations] == ["half", "add"]
    alone, _ = table(ran[:2])
    assert {row.operation: row.seconds for row in alone.operations} == {"loop": 4, "add": 1}


@pytest.mark.parametrize("device", ["CPU:0", "TPU:0"])
def test_other_devices_have_no_tensor_core_columns(device: str) -> None:
    record, _ = table([one for n in range(4) for one in a_step(10.0 * n)], device)
    assert record.summary.tensor_core_efficiency is None
    assert record.summary.eligible_seconds is None
    for name in TABLES:
        for row in record.table(name):
            told = [row[column] for column in row if "core" in column or "eligible_s" in column]
            assert told == [None] * len(told)


def test_all_files_hold_the_same(record: ProfileRecord, tmp_path: Path) -> None:
    record = record.with_advice(("do this",))
    write_profile(record, tmp_path)
    whole = json.loads((tmp_path / "profile.json").read_text())
    assert whole["summary"]["wall_seconds"] == record.summary.wall_seconds
    assert whole["advice"] == ["do this"]
    database = sqlite3.connect(tmp_path / "profile.sqlite")
    database.row_factory = sqlite3.Row
    for name in TABLES:
        rows = record.table(name)
        assert whole[name] == list(rows)
        in_sql = [dict(row) for row in database.execute(f"SELECT * FROM {name}")]
        assert in_sql == list(rows)
        with (tmp_path / f"{name}.csv").open() as file:
            in_csv = list(csv.DictReader(file))
        assert [list(row) for row in in_csv] == [list(row) for row in rows]
        for written, row in zip(in_csv, rows, strict=True):
            for column, value in row.items():
                expected = "" if value is None else str(value)
                assert written[column] == expected, column
    (efficiency,) = database.execute("SELECT tensor_core_efficiency FROM summary").fetchone()
    assert efficiency == record.summary.tensor_core_efficiency
    assert [row["text"] for row in database.execute("SELECT text FROM advice")] == ["do this"]
    database.close()


def test_an_empty_profile_is_written_too(tmp_path: Path) -> None:
    write_profile(ProfileRecord(ProfileSummary(), notes=("nothing",)), tmp_path)
    assert json.loads((tmp_path / "profile.json").read_text())["notes"] == ["nothing"]
    assert (tmp_path / "kernels.csv").read_text().startswith("kernel,operations,calls")


def advice_for(*ran: tuple[str, str, float, float], times: int = 5) -> str:
    every = max(end for *_, end in ran)
    steps = [
        (operation, kernel, n * every + start, n * every + end)
        for n in range(times)
        for operation, kernel, start, end in ran
    ]
    return "\n".join(advise(*table(steps)))


ADD = ("add", "loop_add_fusion", 0.0, 1.0)


def test_advice_finds_what_was_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    full = advice_for(ADD, ("full", NOT, 1.0, 5.0))
    assert full.startswith("80% of the time is in float32 dots and convolutions without Tensor")
    assert "encoder/layer_1/dot_general at train.py:7" in full
    copies = advice_for(ADD, ("", "MemcpyH2D", 1.0, 2.0))
    assert copies.startswith("50% of the time is in copies between host and device")
    waits = advice_for(ADD, ("half", USES, 3.0, 4.0))
    assert waits.startswith("the device is idle for 5")
    assert "waits for the host" in waits
    short = advice_for(("add", "k", 0.0, 2e-6), ("half", USES, 8e-6, 10e-6))
    assert "launches bound it" in short
    monkeypatch.setitem(FACTS[1], "odd", dot("bf16", "head", side=63))
    assert "not multiples of 8" in advice_for(ADD, ("odd", NOT, 1.0, 3.0))
    monkeypatch.setitem(FACTS[1], "cast", plain("head", casts=True))
    assert "kernels that only cast, first head/add" in advice_for(ADD, ("cast", "c", 1.0, 3.0))


def test_no_advice_for_a_step_without_a_fault() -> None:
    assert advice_for(ADD, ("half", USES, 1.0, 9.0)) == ""


def test_compiling_in_every_step_is_reported() -> None:
    trace = trace_of([one for n in range(5) for one in a_step(10.0 * n)])
    trace = Trace(
        **{
            **{name: getattr(trace, name) for name in Trace.__dataclass_fields__},
            "compilations": np.array([(n * 10 + 9.2, n * 10 + 9.9) for n in range(5)]) * SECOND,
        }
    )
    record, sums = tabulate(trace, FACTS, cut(trace, FACTS, ProfileChoices(key_node="add")))
    assert advise(record, sums)[0].startswith("3 of 4 iterations compile something")
