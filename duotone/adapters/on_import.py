"""Calls a function as soon as a library has been imported, or at once if it has been.

``duotone run`` must hook into Keras before the script makes a model and after the script has chosen
Keras' backend, so neither before nor after the script is the time: only the import itself is. A
finder at the front of ``sys.meta_path`` lets the others find the library, and steps out of the way
once it is imported. Who only asks whether there is such a library does not use it up.

Several calls for one library are made in the order in which they were asked for. Called by
``duotone`` itself and by ``duotone.cli.run``.
"""

from __future__ import annotations

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
        failed: called with the ``ImportError`` of an import that fails, which goes on afterwards:
            the place to add a note.

    Example:
        >>> from duotone.adapters.on_import import when_imported
        >>> when_imported("sys", lambda: print("there it is"))
        there it is
    """
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Finder(name, then, failed))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(
        self, name: str, then: Callable[[], None], failed: Callable[[ImportError], None] | None
    ) -> None:
        self._name, self._then, self._failed = name, then, failed

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        # Those that come after: another one of ours, for the same library, would ask this one back.
        others = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def is_there(self) -> None:
        """Calls the function, the first time."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then()

    def is_missing(self, error: ImportError) -> None:
        """Lets the other function see why the library cannot be imported."""
        if self._failed is not None:
            self._failed(error)


class _Loader(importlib.abc.Loader):
    """The library's own loader, and the call afterwards."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        # The library sees its own loader: it may look for its resources with it.
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        try:
            self._loader.exec_module(module)
        except ImportError as error:
            self._finder.is_missing(error)
            raise
        self._finder.is_there()
