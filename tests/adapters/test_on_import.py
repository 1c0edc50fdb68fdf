"""A function is called when a library is imported, neither before nor twice."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import pytest

from duotone.adapters.on_import import when_imported


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library that nobody has imported: its name."""
    name = "imported_late"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("answer = 42\n")
    (tmp_path / name / "data.txt").write_text("inside")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield name
    sys.modules.pop(name, None)


def test_called_after_the_import_and_once(library):
    calls = []
    when_imported(library, lambda: calls.append(sys.modules[library].answer))
    assert calls == []
    module = importlib.import_module(library)
    assert calls == [42]
    importlib.reload(module)
    assert calls == [42]


def test_not_called_for_a_library_whose_import_is_blocked(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    when_imported(library, lambda: pytest.fail("nothing was imported"))
    with pytest.raises(ImportError):
        importlib.import_module(library)


def test_called_at_once_for_what_is_imported_already(library):
    importlib.import_module(library)
    calls = []
    when_imported(library, lambda: calls.append("now"))
    assert calls == ["now"]


def test_the_library_does_not_notice(library):
    when_imported(library, lambda: None)
    module: Any = importlib.import_module(library)
    assert module.__spec__.loader is module.__loader__
    assert type(module.__loader__).__module__ == "_frozen_importlib_external"
    assert module.__loader__.get_data(f"{module.__path__[0]}/data.txt") == b"inside"


def test_other_libraries_are_left_alone(library):
    when_imported("a_name_that_nobody_has", lambda: pytest.fail("called"))
    assert importlib.import_module(library).answer == 42
    assert importlib.util.find_spec("another_name_that_nobody_has") is None


def test_a_library_that_is_missing_is_missing(library):
    when_imported("a_name_that_nobody_has", lambda: pytest.fail("called"))
    with pytest.raises(ModuleNotFoundError, match="a_name_that_nobody_has"):
        importlib.import_module("a_name_that_nobody_has")


def test_an_error_of_the_function_reaches_who_imports(library):
    def fail() -> None:
        raise RuntimeError("no hook today")

    when_imported(library, fail)
    with pytest.raises(RuntimeError, match="no hook today"):
        importlib.import_module(library)


def test_who_asks_for_the_library_does_not_use_up_the_call(library):
    """Catches: a script that looks with find_spec whether Keras is there trains in float32."""
    calls = []
    when_imported(library, lambda: calls.append("now"))
    assert importlib.util.find_spec(library) is not None
    importlib.import_module(library)
    assert calls == ["now"]


def test_an_import_that_fails_may_be_tried_again(library, tmp_path):
    calls = []
    when_imported(library, lambda: calls.append("now"))
    file = tmp_path / library / "__init__.py"
    file.write_text("raise ImportError('no backend')\n")
    with pytest.raises(ImportError, match="no backend"):
        importlib.import_module(library)
    assert calls == []
    file.write_text("answer = 42  # and of another size\n")
    importlib.import_module(library)
    assert calls == ["now"]


def test_several_functions_for_one_library_are_called_in_order(library):
    """Catches: two hooks for Keras (duotone's own, that of `duotone run`) that ask each other."""
    calls = []
    when_imported(library, lambda: calls.append("first"))
    when_imported(library, lambda: calls.append("second"))
    module: Any = importlib.import_module(library)
    assert calls == ["first", "second"]
    assert type(module.__loader__).__module__ == "_frozen_importlib_external"


def test_an_import_that_fails_is_shown_to_the_other_function(library, tmp_path):
    when_imported(library, lambda: pytest.fail("called"), lambda error: error.add_note("remedy"))
    file = tmp_path / library / "__init__.py"
    file.write_text("import a_name_that_nobody_has\n")
    with pytest.raises(ModuleNotFoundError, match="a_name_that_nobody_has") as caught:
        importlib.import_module(library)
    assert caught.value.__notes__ == ["remedy"]
