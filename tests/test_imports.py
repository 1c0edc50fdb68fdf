"""The fences between the rooms, the size of files, and what ``import duotone`` gives and loads."""

from __future__ import annotations

import ast
import functools
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
NO_VERB = re.compile(r"(The|An?|True|False|How|Why|Where|Which|All|Every|Each|One)\b")

# A folder or module imports only from the lines above its own: no circles, no upward arrows.
LAYERS = (
    ("errors", "ops", "_version", "_jax"),
    ("_checks", "_files"),
    ("graph", "text"),
    ("precision",),
    ("policy", "devices"),
    ("cost", "explaining", "measuring", "scale"),
    ("jaxpr", "onnx", "tensorflow"),
    ("transforms",),
    ("comparing",),
    ("advising", "blaming", "calibrating", "compiling", "exporting", "profiling"),
    ("adapters", "reporting"),
    ("keras", "linen", "nnx"),
    ("public",),
    ("samples",),
    ("cli",),
    ("__main__",),
)
LAYER_OF = {part: number for number, parts in enumerate(LAYERS) for part in parts}
# Folders in which nothing but what is named may look.
ENTERED_BY = {"compiling": {"cli", "public"}, "samples": {"cli"}, "cli": {"__main__"}}
# Libraries that a room may not import, and why.
FORBIDDEN = {
    "graph": {"jax": "the graph serves every front end"},
    "precision": {"jax": "the painter serves every front end"},
    "explaining": {"jax": "views read records and compute nothing"},
    "text": {"jax": "it formats text"},
    "errors": {"jax": "errors are raised everywhere, before JAX too"},
    "tensorflow": {"jax": "who has TensorFlow graphs only needs no JAX to paint them"},
    "measuring": {"jax": "models of other libraries run without it"},
    "onnx": {"jax": "who has ONNX models only needs no JAX to paint them"},
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
    "compiler_options",
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


@functools.cache
def nodes_of(text: str) -> list[ast.AST]:
    """All nodes of a source, parsed once for all tests; the first is the module."""
    return list(ast.walk(ast.parse(text)))


def imported_names(file: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, also inside functions and type checks."""
    for node in nodes_of(file.read_text()):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: import by the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def attribute_names(file: Path) -> Iterator[str]:
    """Dotted names that a file reads, such as ``jax.interpreters.mlir``."""
    for node in nodes_of(file.read_text()):
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        if names and isinstance(node, ast.Name):
            yield ".".join((node.id, *names))


def starts_with(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def relative(file: Path) -> str:
    return file.relative_to(PACKAGE.parent).as_posix()


def imported_parts(file: Path) -> Iterator[str]:
    """The folders and top-level modules of duotone that a file imports."""
    for name in imported_names(file):
        if starts_with(name, ("duotone",)):
            parts = name.split(".")
            known = len(parts) > 1 and (
                (PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").is_file()
            )
            yield parts[1] if known else "public"


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_a_part_imports_from_lower_layers_only(file):
    part = part_of(file)
    assert part in LAYER_OF, f"{part} is new: say in LAYERS what is below it"
    for imported in set(imported_parts(file)) - {part}:
        assert LAYER_OF[imported] < LAYER_OF[part], f"{relative(file)} imports {imported}"
        assert part in ENTERED_BY.get(imported, {part}), f"{relative(file)} imports {imported}"


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


def test_the_modules_at_the_top():
    """Everything else is in a folder."""
    assert sorted(path.stem for path in PACKAGE.glob("*.py")) == [
        "__init__",
        "__main__",
        "_checks",
        "_files",
        "_jax",
        "_version",
        "errors",
        "keras",
        "linen",
        "nnx",
    ]


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_a_file_stays_short_and_says_what_it_is(file):
    text = file.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    (module,) = (node for node in nodes_of(text) if isinstance(node, ast.Module))
    assert ast.get_docstring(module), f"{relative(file)} has no module docstring"


def openings(text: str) -> list[str]:
    """First lines of the docstrings that begin with a word in :data:`NO_OPENING`."""
    strings = [
        node.value.value
        for node in nodes_of(text)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    found = [string.strip() for string in strings if isinstance(string, str)]
    return [string.splitlines()[0] for string in found if NO_OPENING.match(string)]


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_docstrings_begin_with_what_a_thing_is_or_does(file):
    """A subject or a verb comes first: "The bytes read", "Finds the loops"."""
    assert not openings(file.read_text())


def nouns(text: str) -> list[str]:
    """First lines of the docstrings of functions that begin with a noun; properties may."""
    functions = [node for node in nodes_of(text) if isinstance(node, ast.FunctionDef)]
    methods = [f for f in functions if not any("property" in ast.dump(d) for d in f.decorator_list)]
    found = [ast.get_docstring(function) or "" for function in methods]
    return [string.splitlines()[0] for string in found if NO_VERB.match(string)]


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_docstrings_of_functions_begin_with_a_verb(file):
    """As in JAX and Optax: "Returns the bytes read", "Finds the loops"."""
    assert not nouns(file.read_text())


def test_a_docstring_that_begins_with_a_noun_is_found():
    named = '@property\ndef size(self):\n    """The size."""\ndef f():\n    """The sizes."""\n'
    assert nouns(named) == ["The sizes."]


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
    heavy = "jax typer sklearn matplotlib flax equinox haiku keras tensorboard".split()
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


def test_tensorflow_graphs_need_no_jax():
    """Catches: a module that TensorFlow's optimizers use and that imports JAX through another."""
    names = ["tensorflow", "tensorflow.live.switch", "onnx"]
    names += ["adapters.enable", "adapters.tensorflow.rule"]
    program = "import sys; sys.modules['jax'] = sys.modules['optax'] = None; import "
    program += ", ".join(f"duotone.{name}" for name in names)
    subprocess.run([sys.executable, "-c", program], cwd=PACKAGE.parent, check=True)
