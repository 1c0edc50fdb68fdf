"""Calls a function as soon as a library has been imported, or at once if it has been.

``duotone run`` must hook into Keras after the script has chosen Keras' backend and before it
makes a model. So the hook must run at the import itself. A finder at the front of
``sys.meta_path`` lets the other finders find the library, and removes itself once the library is
imported. Checking whether the library is importable does not trigger the hook.

Several functions for one library run in the order in which they were registered.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence


def when_imported(
    name: str,
    then: Callable[[], None],
    failed: Callable[[ImportError], None] | None = None,
) -> None:
    """Calls `then` once, after the module `name` has been imported.

    Args:
        name: a top-level module, such as ``"keras"``.
        then: called without arguments.
        failed: called with the ``ImportError`` of a failed import before it propagates, for
            instance to add a note.

    Example:
        >>> from duotone.adapters.on_import import when_imported
        >>> when_imported("sys", lambda: print("there it is"))
        there it is
    """
    if sys.modules.get(name) is not None:  # None blocks the import
        then()
    else:
        sys.meta_path.insert(0, _Finder(name, then, failed))


@dataclasses.dataclass(eq=False)
class _Finder(importlib.abc.MetaPathFinder):
    name: str
    then: Callable[[], None]
    failed: Callable[[ImportError], None] | None

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        # Only later finders: another duotone finder for the same library would call this one.
        others = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def imported(self) -> None:
        """Calls the function after the first import."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self.then()


@dataclasses.dataclass(eq=False)
class _Loader(importlib.abc.Loader):
    """The library's own loader; notifies the finder afterwards."""

    loader: importlib.abc.Loader
    finder: _Finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        # Restores the library's own loader, which it may use to find its resources.
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        try:
            self.loader.exec_module(module)
        except ImportError as error:
            if self.finder.failed is not None:
                self.finder.failed(error)
            raise
        self.finder.imported()
