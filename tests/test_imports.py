"""The fences between the rooms, the size of files, and what ``import duotone`` gives and loads."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import duotone

PACKAGE = Path(duotone.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE = 400
NO_OPENING = re.compile(r"(What|Whether|Of|That)\b", re.IGNORECASE)

# Every part may read the table of facts about operations, which imports nothing.
FACTS = "ops"
# Which parts of duotone a part may import, itself aside. A room that is not here yet has no right.
MAY_IMPORT = {
    "_by_policy": {
        "_jax",
        "calibration",
        "errors",
        "graph",
        "jaxpr",
        "policy",
        "targets",
    },
    "_arguments": {"_dtypes", "calibration", "errors", "graph", "policy"},
    "_beside_keras": {"adapters", "errors"},
    "_decorator": {"_arguments", "errors"},
    "_dtypes": set(),
    "_environment": {"errors", "graph"},
    "_files": {"errors"},
    "_jax": set(),
    "_nvtx": {"_environment"},
    "_on_import": set(),
    "_operation_hints": {"errors"},
    "_saying": set(),
    "_switches": {"_dtypes", "_environment"},
    "_version": set(),
    "errors": set(),
    "policy": {
        "_environment",
        "_operation_hints",
        "_policy_file",
        "_policy_text",
        "_policy_values",
        "calibration",
        "errors",
    },
    "_policy_file": {"calibration", "errors"},
    "_policy_text": {"policy"},
    "_policy_values": {
        "_dtypes",
        "_environment",
        "calibration",
        "errors",
        "graph",
    },
    "_suspects": {"_jax", "graph", "jaxpr", "regions"},
    "_blaming": {
        "_arguments",
        "_forms",
        "_suspects",
        "api",
        "errors",
        "graph",
        "jaxpr",
        "_mixed",
        "policy",
        "targets",
        "views",
    },
    "_healing": {
        "_blaming",
        "_jax",
        "errors",
        "graph",
        "jaxpr",
        "policy",
        "regions",
        "scale",
        "views",
    },
    "calibration": {"_files", "errors", "graph", "views"},
    "_measuring": {"_arguments", "api", "calibration", "errors", "graph", "jaxpr", "policy"},
    "regions": {"errors"},
    "_modules": set(),
    "graph": {"errors"},
    "ops": set(),
    "jaxpr": {"_jax", "errors", "graph", "_modules", "regions"},
    "scale": {"_jax", "errors", "regions"},
    "adapters": {
        "_arguments",
        "_decorator",
        "_dtypes",
        "_saying",
        "api",
        "_blaming",
        "_healing",
        "calibration",
        "errors",
        "_measuring",
        "_modules",
        "policy",
        "regions",
        "scale",
    },
    "enable": {"_arguments", "_dtypes", "_switches", "adapters", "errors", "policy", "scale"},
    # Doorways: the public names of an adapter, nothing else.
    "keras": {"adapters"},
    "linen": {"adapters"},
    "nnx": {"adapters"},
    "targets": {"_jax", "errors", "graph"},
    "tensorflow": {"_dtypes", "_files", "errors", "graph", "policy"},
    "onnx": {"_dtypes", "_files", "errors", "graph", "policy", "views"},
    "_batches": {"errors", "targets"},
    "advice": {"errors", "graph", "targets"},
    "_forms": {
        "_arguments",
        "_dtypes",
        "_jax",
        "api",
        "errors",
        "graph",
        "jaxpr",
        "policy",
        "targets",
    },
    "_advising": {
        "_forms",
        "_jax",
        "advice",
        "api",
        "errors",
        "graph",
        "jaxpr",
        "policy",
        "targets",
        "views",
    },
    "_comparing": {
        "_batches",
        "_dtypes",
        "_forms",
        "compiled",
        "errors",
        "graph",
        "policy",
        "targets",
        "views",
    },
    "compiling": {"_arguments", "_environment", "_files", "_jax", "errors", "jaxpr"},
    "compiled": {"_arguments", "errors", "inference", "targets", "views"},
    "exporting": {
        "_arguments",
        "_files",
        "_version",
        "api",
        "errors",
        "graph",
        "jaxpr",
        "onnx",
        "policy",
        "targets",
    },
    "profiler": {"_files", "errors", "targets"},
    "_profiling": {"_files", "errors", "profiler", "views"},
    "_reporting": {
        "_files",
        "api",
        "errors",
        "graph",
        "jaxpr",
        "policy",
        "targets",
        "views",
    },
    "views": {"_files", "_version", "errors", "graph", "profiler", "targets", "tensorflow"},
    "_dumps": {"_files", "_jax", "errors", "graph"},
    "_road": {
        "_by_policy",
        "_jax",
        "_dumps",
        "errors",
        "graph",
        "jaxpr",
        "policy",
        "targets",
    },
    "gradients": {"_arguments", "api", "calibration", "errors", "policy", "scale"},
    "_explanation": {"_files", "graph", "views"},
    "inference": {"api", "policy", "_weights", "targets"},
    "_weights": {"_jax", "errors", "graph", "jaxpr", "policy"},
    "api": {
        "_arguments",
        "_decorator",
        "_dtypes",
        "_explanation",
        "calibration",
        "errors",
        "graph",
        "jaxpr",
        "_mixed",
        "policy",
        "_records",
        "_road",
        "_weights",
        "targets",
        "views",
    },
    "_mixed": {
        "_arguments",
        "_jax",
        "_nvtx",
        "_saying",
        "errors",
        "graph",
        "jaxpr",
        "policy",
        "regions",
        "_road",
        "_weights",
        "targets",
        "views",
    },
    "_records": {"_jax", "graph", "jaxpr", "_road"},
    "samples": {"_files", "errors", "public"},
    "__main__": {"cli"},
    "cli": {
        "_environment",
        "_files",
        "_on_import",
        "_switches",
        "_version",
        "adapters",
        "_comparing",
        "compiling",
        "errors",
        "graph",
        "onnx",
        "policy",
        "_profiling",
        "profiler",
        "public",
        "samples",
        "targets",
        "tensorflow",
        "views",
    },
    "public": {
        "_advising",
        "_beside_keras",
        "_jax",
        "_on_import",
        "_version",
        "adapters",
        "api",
        "_blaming",
        "calibration",
        "_comparing",
        "compiled",
        "compiling",
        "enable",
        "errors",
        "exporting",
        "gradients",
        "inference",
        "_measuring",
        "policy",
        "_profiling",
        "regions",
        "_reporting",
        "scale",
        "targets",
        "_weights",
    },
}
# Libraries that a room may not import, and why.
FORBIDDEN = {
    "advice": {"jax": "finders read records"},
    "graph": {"jax": "the painter works for every front end", "jaxlib": "likewise"},
    "errors": {"jax": "errors are raised everywhere, before JAX too"},
    "tensorflow": {"jax": "who has TensorFlow graphs only needs no JAX to paint them"},
    "onnx": {"jax": "who has ONNX models only needs no JAX to paint them"},
    "views": {"jax": "views read records and compute nothing"},
}
PRIVATE_JAX = ("jax._src", "jax.extend", "jax.interpreters")

PUBLIC_NAMES = [
    "Advice",
    "Blame",
    "Calibration",
    "CastParams",
    "Comparison",
    "CompiledRecord",
    "DuotoneError",
    "DynamicLossScale",
    "Explanation",
    "Exported",
    "ExportedOnnx",
    "ExportedSavedModel",
    "FixedLossScale",
    "LossScale",
    "LossScaleMonitor",
    "Minimized",
    "MixedPrecisionLossScaleOptimizer",
    "MixedPrecisionOptimizer",
    "NoLossScale",
    "Policy",
    "Profile",
    "ScaledGrad",
    "SkipState",
    "Target",
    "advise",
    "all_finite",
    "autocast",
    "blame",
    "bucketed",
    "calibrate",
    "cast_params",
    "check_xla_flags",
    "cluster_jit",
    "cluster_scope",
    "clusters",
    "compare",
    "compile_for",
    "dynamic_loss_scale",
    "enable_mixed_precision_graph_rewrite",
    "explain",
    "export",
    "fixed_loss_scale",
    "grad",
    "keep_full",
    "keep_half",
    "log_compilations",
    "optimizer_from_environment",
    "profile",
    "read_export",
    "read_profile",
    "report",
    "reroll",
    "select_tree",
    "skip_nonfinite",
    "use_cache",
    "value_and_grad",
]


def part_of(file: Path) -> str:
    """The room or top-level module that a file belongs to."""
    first = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "public" if first == "__init__" else first


def imported_names(file: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, also inside functions and type checks."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: import by the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def attribute_names(file: Path) -> Iterator[str]:
    """Dotted names that a file reads, such as ``jax.interpreters.mlir``."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def starts_with(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def relative(file: Path) -> str:
    return file.relative_to(PACKAGE.parent).as_posix()


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_a_part_imports_only_what_its_fence_allows(file):
    part = part_of(file)
    assert part in MAY_IMPORT, f"{part} is new: say in MAY_IMPORT what it may import"
    for name in imported_names(file):
        if not starts_with(name, ("duotone",)):
            continue
        parts = name.split(".")
        known = len(parts) > 1 and (
            (PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").is_file()
        )
        imported = parts[1] if known else "public"
        assert imported in {part, FACTS, *MAY_IMPORT[part]}, (
            f"{relative(file)} imports {name}: {part} may import {sorted(MAY_IMPORT[part])}"
        )


@pytest.mark.parametrize("part", FORBIDDEN)
def test_a_room_without_a_library_stays_without_it(part):
    for file in FILES:
        if part_of(file) == part:
            for name in imported_names(file):
                library = name.split(".")[0]
                assert library not in FORBIDDEN[part], (
                    f"{relative(file)} imports {name}: {FORBIDDEN[part][library]}"
                )


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_private_jax_is_touched_by_one_file_only(file):
    if file.name == "_jax.py":
        return
    touched = [
        name
        for name in (*imported_names(file), *attribute_names(file))
        if starts_with(name, PRIVATE_JAX)
    ]
    assert not touched, f"{relative(file)} uses {touched}: go through duotone/_jax.py"


def test_at_most_twelve_public_modules_stand_at_the_top():
    """What is public has a doorway there; all else has an underscore, or a room."""
    public = sorted(path.stem for path in PACKAGE.glob("[!_]*.py"))
    assert len(public) <= 12, public


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_a_file_stays_short_and_says_what_it_is(file):
    text = file.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    assert ast.get_docstring(ast.parse(text)), f"{relative(file)} has no module docstring"


def openings(text: str) -> list[str]:
    """First lines of the docstrings that begin with a word in :data:`NO_OPENING`."""
    strings = [
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    found = [string.strip() for string in strings if isinstance(string, str)]
    return [string.splitlines()[0] for string in found if NO_OPENING.match(string)]


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_docstrings_begin_with_what_a_thing_is_or_does(file):
    """A subject or a verb comes first: "True if it fits", "The bytes read", "Finds the loops"."""
    assert not openings(file.read_text())


def test_a_docstring_that_begins_with_a_clause_is_found():
    text = '"""What it is."""\nx = 1\n"""Of one edge."""\ndef f():\n    """Whatever fits."""\n'
    assert openings(text) == ["What it is.", "Of one edge."]


def test_public_names():
    assert sorted(duotone.__all__) == PUBLIC_NAMES
    for name in PUBLIC_NAMES:
        assert getattr(duotone, name) is not None
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", duotone.__version__)


def test_a_public_name_is_what_a_type_checker_takes_it_for():
    """The names stand twice in the file: for type checkers, and where they are loaded from."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    named = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert named == {name: f"duotone.{home}" for name, home in duotone._MODULE_OF.items()}
    assert sorted(named) == PUBLIC_NAMES
    assert set(PUBLIC_NAMES) <= set(dir(duotone))
    assert not hasattr(duotone, "no_such_name")


def printed_by(code: str, **environ: str) -> str:
    """What a new process prints."""
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **environ}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def test_importing_duotone_loads_no_library():
    heavy = "jax typer sklearn matplotlib plotext flax equinox haiku keras tensorboard".split()
    code = f"import sys, duotone; print([m for m in {heavy!r} if m in sys.modules])"
    assert printed_by(code) == "[]"
    assert printed_by(f"{code}; print('duotone.cli' in sys.modules)").endswith("False")


def test_jax_may_be_set_up_after_duotone_is_imported():
    code = """
import os, duotone
os.environ["JAX_ENABLE_X64"] = "1"
import jax
print(jax.config.jax_enable_x64)
"""
    assert printed_by(code) == "True"


def test_a_trace_in_which_duotone_is_first_used_is_made_once():
    """Catches: a context of duotone's, made inside of a trace, which changes its key."""
    code = """
import duotone, jax, jax.numpy as jnp
@jax.jit
def step(x):
    print("traced")
    return duotone.autocast(lambda y: y @ y, dtype="float16")(x)
for _ in range(3):
    step(jnp.ones((2, 2)))
"""
    assert printed_by(code) == "traced"
