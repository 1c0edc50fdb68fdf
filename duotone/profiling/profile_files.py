"""Writes a profile as CSV, JSON and SQLite next to its trace.

::

    DIR/profile.json                the record
    DIR/profile.sqlite              a table each for summary, advice, notes and the others
    DIR/iterations.csv, …           a file for each table
    DIR/plugins/profile/…           the trace, in TensorBoard's layout
"""

from __future__ import annotations

import csv
import dataclasses
import io
import sqlite3
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from duotone._files import write_atomically
from duotone.profiling import profile_record as records
from duotone.profiling.profile_record import TABLES, ProfileRecord

_ROWS = {
    "iterations": records.IterationRow,
    "operations": records.OperationRow,
    "kernels": records.KernelRow,
    "scopes": records.ScopeRow,
    "dtypes": records.DtypeRow,
}
_SQL = {int: "INTEGER", bool: "INTEGER", float: "REAL"}


def write_profile(record: ProfileRecord, folder: Path) -> None:
    """Writes all files of a profile.

    Raises:
        WriteError: the file system refuses a file.
    """
    write_atomically(folder / "profile.json", record.to_json())
    write_atomically(folder / "profile.sqlite", _database(record))
    for name in TABLES:
        write_atomically(folder / f"{name}.csv", _csv(name, record.table(name)))


def _columns(name: str) -> list[str]:
    return [field.name for field in dataclasses.fields(_ROWS[name])]


def _csv(name: str, rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(name), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _database(record: ProfileRecord) -> bytes:
    """Makes a SQLite file of the tables."""
    database = sqlite3.connect(":memory:")
    try:
        for name in TABLES:
            types = typing.get_type_hints(_ROWS[name])
            rows = [tuple(row.values()) for row in record.table(name)]
            _fill(database, name, {c: _sql_type(types[c]) for c in _columns(name)}, rows)
        summary = dataclasses.asdict(record.summary)
        hints = typing.get_type_hints(records.ProfileSummary)
        _fill(
            database,
            "summary",
            {name: _sql_type(hints[name]) for name in summary},
            [tuple(summary.values())],
        )
        for name in ("advice", "notes"):
            _fill(database, name, {"text": "TEXT"}, [(line,) for line in getattr(record, name)])
        database.commit()
        return database.serialize()
    finally:
        database.close()


def _sql_type(hint: Any) -> str:
    """Returns the SQL type of a column, which may be optional."""
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)]
    return _SQL.get(kinds[0], "TEXT")


def _fill(
    database: sqlite3.Connection,
    name: str,
    columns: Mapping[str, str],
    rows: Sequence[tuple[Any, ...]],
) -> None:
    """Makes a table. Its name and columns never come from the user, so they need no escape."""
    described = ", ".join(f"{column} {kind}" for column, kind in columns.items())
    database.execute(f"CREATE TABLE {name} ({described})")
    parameters = ", ".join("?" * len(columns))
    database.executemany(f"INSERT INTO {name} VALUES ({parameters})", rows)
