"""Tuned: what :func:`duotone.tune` found best for one function on one device, as a record to keep.

It holds the reforms that are in effect and name-scope patterns that stay full. A policy takes it
(``Policy(tuned=...)``); it counts for the function, half type and kind of device that it was found
for. What goes wrong: a file that is no such record, or is damaged, raises
:class:`~duotone.errors.TuningError` when it is loaded.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duotone._files import write_atomically
from duotone.errors import TuningError
from duotone.graph.reforms.registry import REFORMS
from duotone.views.lines import Viewed
from duotone.views.tuned import Trial, TunedView

_FORMAT = "duotone tuned"
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Tuned(Viewed):
    """The best choice found for one function on one device; ``print`` shows the trials.

    Attributes:
        function: its name, for people.
        fingerprint: of its graph; tells another function. Sizes of arrays are not part of it.
        target: the device that it was compiled for.
        device: the kind of device that it holds for.
        half: the half type that it holds for.
        reforms: names of those in effect (``docs/reforms.md``).
        keep_full: name-scope patterns whose operations stay full.
        trials: what was compiled, in order; the first one is duotone's own choice.
    """

    function: str
    fingerprint: str
    target: str
    device: str
    half: str
    reforms: frozenset[str]
    keep_full: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()

    @property
    def title(self) -> str:
        """One line: the function, the device, and what was changed."""
        kept = [trial.change for trial in self.trials[1:] if trial.kept]
        changes = ", ".join(kept) or "duotone's own choice"
        return f"{self.function} on {self.target} ({self.half}): {changes}"

    def __rich__(self) -> TunedView:
        return TunedView(self.title, self.trials)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the record to a JSON file; a reader never sees half of it.

        Args:
            path: the file; its folder exists. A file that is there is replaced.

        Raises:
            WriteError: the file system refuses it.
        """
        data = dataclasses.asdict(self) | {"reforms": sorted(self.reforms)}
        text = json.dumps({"format": _FORMAT, "version": _VERSION} | data, indent=1)
        write_atomically(Path(path), text + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tuned:
        """Reads a record that :meth:`save` wrote.

        Args:
            path: the file.

        Returns:
            An equal record.

        Raises:
            TuningError: there is no such file, or it holds something else.
        """
        file = Path(path)
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise TuningError(f"cannot load {file}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise TuningError(f"{file} is not JSON ({error}); {_REMEDY}") from error
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise TuningError(f"{file} does not say that it holds a {_FORMAT}; {_REMEDY}")
        if data.get("version") != _VERSION:
            raise TuningError(
                f"{file} is of version {data.get('version')!r}, and this duotone reads version "
                f"{_VERSION}; {_REMEDY}"
            )
        try:
            return _read(data)
        except (KeyError, TypeError, ValueError) as error:
            raise TuningError(
                f"{file} is damaged ({type(error).__name__}: {error}); {_REMEDY}"
            ) from error


_REMEDY = "save one with duotone.tune(step, *args, target=...).save(path)"


def _read(data: Mapping[str, Any]) -> Tuned:
    names = {name: data[name] for name in ("function", "fingerprint", "target", "device", "half")}
    if not all(isinstance(name, str) for name in names.values()):
        raise TypeError("a name is no text")
    for field in ("reforms", "keep_full"):
        if not isinstance(data[field], list) or not all(isinstance(x, str) for x in data[field]):
            raise TypeError(f"{field} is no list of names")
    if unknown := set(data["reforms"]) - set(REFORMS):
        raise ValueError(f"no reform is called {', '.join(sorted(unknown))}")
    trials = tuple(Trial(**trial) for trial in data["trials"])
    return Tuned(
        **names,
        reforms=frozenset(data["reforms"]),
        keep_full=tuple(data["keep_full"]),
        trials=trials,
    )
