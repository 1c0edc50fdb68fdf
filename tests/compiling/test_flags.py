"""Flags of the guide: what XLA knows, what TensorFlow's mean, the cache, the log."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import duotone
from duotone.compiling.flags import (
    GUIDE_XLA_FLAGS,
    TF_XLA_FLAGS,
    _output_of_xla,
    apply_tf_xla_flags,
    check_xla_flags,
    read_tf_xla_flags,
)
from duotone.compiling.log import asks_for_log
from duotone.errors import ArgumentError, ArgumentTypeError, EnvironmentVariableError, WriteError

PAGE = (Path(__file__).parents[2] / "docs" / "compile-time.md").read_text()


@pytest.fixture
def no_cache() -> object:
    yield
    duotone.use_cache(None)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def test_the_installed_xla_knows_what_the_table_says() -> None:
    text = " ".join(f"--{flag.name}={flag.value}" for flag in GUIDE_XLA_FLAGS)
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: (.*)", _output_of_xla(text) or "")
    assert unknown is not None
    names = [word.lstrip("-").partition("=")[0] for word in unknown[1].split()]
    assert names == [flag.name for flag in GUIDE_XLA_FLAGS if not flag.known]


def test_the_page_has_every_flag() -> None:
    for flag in GUIDE_XLA_FLAGS:
        row = f"`--{flag.name}`" if flag.known else f"| `--{flag.name}` | {flag.use} |"
        assert row in PAGE
    for flag in TF_XLA_FLAGS:
        assert f"| `--{flag.name}` | {flag.here} |" in PAGE


def test_flags_are_tried_in_another_process() -> None:
    check_xla_flags("--xla_cpu_multi_thread_eigen=false")
    with pytest.raises(EnvironmentVariableError, match="did you mean '--xla_dump_to"):
        check_xla_flags("--xla_dump_too=/tmp")


@pytest.mark.slow
def test_flags_that_were_replaced_and_values_that_are_wrong() -> None:
    with pytest.raises(EnvironmentVariableError, match="use instead: xla_dump_to"):
        check_xla_flags("--xla_generate_hlo_text_to=/tmp")
    with pytest.raises(
        EnvironmentVariableError, match="xla_dump_hlo_as_text does not take 'maybe'"
    ):
        check_xla_flags("--xla_dump_hlo_as_text=maybe")


@pytest.mark.parametrize("value", ["-1", "0", "1", "2", "fusible"])
def test_every_value_of_auto_jit(value: str) -> None:
    said: list[str] = []
    apply_tf_xla_flags(f"--tf_xla_auto_jit={value}", said.append)
    assert said == [f"--tf_xla_auto_jit={value}: {TF_XLA_FLAGS[0].here}"]


def test_unknown_flags_and_values_of_tensorflow() -> None:
    with pytest.raises(EnvironmentVariableError, match="did you mean '--tf_xla_auto_jit"):
        read_tf_xla_flags("--tf_xla_auto_jit=2 --tf_xla_auto_git=2")
    with pytest.raises(EnvironmentVariableError, match="tf_xla_auto_jit=3: it takes"):
        read_tf_xla_flags("--tf_xla_auto_jit=3")
    with pytest.raises(
        EnvironmentVariableError, match="min_cluster_size=: it takes a whole number"
    ):
        read_tf_xla_flags("--tf_xla_min_cluster_size")
    with pytest.raises(EnvironmentVariableError, match="cannot be read"):
        read_tf_xla_flags("'--tf_xla_auto_jit=2")


def test_the_persistent_cache_of_the_flag(tmp_path: Path, no_cache: object) -> None:
    said: list[str] = []
    apply_tf_xla_flags(f"--tf_xla_persistent_cache_directory={tmp_path / 'new'}", said.append)
    assert "persistent cache is there" in said[0]
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "new")


def test_programs_are_kept_and_a_damaged_entry_is_a_miss(tmp_path: Path, no_cache: object) -> None:
    duotone.use_cache(tmp_path, min_seconds=0)
    fn = lambda x: jnp.sin(x) * 3.25 + 0.125  # noqa: E731
    expected = jax.jit(fn)(jnp.ones(3))
    entries = [path for path in tmp_path.iterdir() if path.name.endswith("-cache")]
    assert entries
    for entry in entries:
        entry.write_bytes(b"no program")
    jax.clear_caches()
    duotone.use_cache(tmp_path, min_seconds=0)
    with pytest.warns(UserWarning, match="persistent compilation cache"):
        assert (jax.jit(fn)(jnp.ones(3)) == expected).all()


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below"):
        with pytest.raises(WriteError, match=r"cannot be kept in .*: it is a file"):
            duotone.use_cache(folder)
    with pytest.raises(ArgumentError, match="min_seconds is -1"):
        duotone.use_cache(tmp_path, min_seconds=-1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(WriteError, match="Name a folder in which you may write"):
        duotone.use_cache(tmp_path)


@pytest.fixture
def logged() -> object:
    yield duotone.log_compilations()
    duotone.log_compilations(False)


def test_each_compilation_is_logged(logged: object, caplog: pytest.LogCaptureFixture) -> None:
    duotone.log_compilations()
    with caplog.at_level(logging.INFO, logger="duotone"):
        jax.jit(lambda x: x * 1.75 - 3)(jnp.ones(3))
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("compiled ")]
    one = [line for line in lines if "lambda" in line]
    assert len(one) == 1
    assert re.fullmatch(r"compiled .+ in \d+\.\d+ s; \d+ programs in \d+\.\d+ s so far", one[0])
    duotone.log_compilations(False)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="duotone"):
        jax.jit(lambda x: x * 1.75 - 4)(jnp.ones(3))
    assert not caplog.records


def test_who_asks_for_the_log() -> None:
    assert asks_for_log("xla_compilation_cache=1")
    assert not asks_for_log("xla_compilation_cache=0")
    assert not asks_for_log("auto_mixed_precision=2")


def test_flags_are_the_defaults_of_cluster_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    from duotone.compiling.defaults import DEFAULTS, ClusterDefaults

    for name in ("min_cluster_size", "max_cluster_size", "background"):
        monkeypatch.setattr(DEFAULTS, name, getattr(ClusterDefaults(), name))
    flags = "--tf_xla_min_cluster_size=8 --tf_xla_max_cluster_size=20 --tf_xla_async_compilation"
    apply_tf_xla_flags(flags, lambda line: None)
    assert ClusterDefaults(8, 20, True) == DEFAULTS
    with pytest.raises(
        duotone.DuotoneError, match="max_cluster_size is 4, below min_cluster_size, 8"
    ):
        duotone.cluster_jit(lambda x: x, max_cluster_size=4)
    duotone.cluster_jit(lambda x: x, min_cluster_size=2, max_cluster_size=4)
    apply_tf_xla_flags("--tf_xla_async_compilation=false", lambda line: None)
    assert not DEFAULTS.background


def test_names_of_the_cache(
    tmp_path: Path, no_cache: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    duotone.use_cache("~/programs", min_seconds=0)
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "programs")
    assert not (tmp_path / "~").exists()
    with pytest.raises(ArgumentError, match="folder has no name; pass a path"):
        duotone.use_cache("")
    wrong: Any = 3
    with pytest.raises(ArgumentTypeError, match="folder is 3; pass a path"):
        duotone.use_cache(wrong)
