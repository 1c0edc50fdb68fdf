"""The environment variables that duotone reads: their names, their meanings and their parsers.

This module takes the environment as a mapping. The variables are those of TensorFlow's automatic
mixed precision, each also under a duotone name. To add one, add a row to ``VARIABLES`` and to the
table in ``docs/environment.md`` (a test compares the two).

This happens for each row::

    if the duotone name is set:  read it alone             (an empty value counts as set)
    else:                        read the TensorFlow names that are set
                                 (of the two names of a list both, as TensorFlow does)

If a variable that is read has a value it does not accept, this raises
:class:`~duotone.errors.EnvironmentVariableError`, even if the code overrides that value.
Variables that are not read may contain anything.

References:
    tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h (``UpdateList``: the old list
    names are applied after the new ones); tensorflow/core/util/env_var.cc (``ReadBoolFromEnvVar``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from duotone.errors import EnvironmentVariableError
from duotone.precision.removable import REMOVABLE
from duotone.text.suggestions import did_you_mean

Painter = Literal["duotone", "mincut", "tensorflow"]
Level = Literal["TENSOR_CORES_ONLY", "TREAT_INFER_AS_DENY", "UNSAFE_FORCE_ALL"]
Math = Literal["tf32", "float16", "bfloat16", "exact"]
SegmentSums = Literal["full", "half"]
PAINTERS: tuple[Painter, ...] = get_args(Painter)
LEVELS: tuple[Level, ...] = get_args(Level)
MATHS: tuple[Math, ...] = get_args(Math)
REDUCE_DTYPES = ("float32", "float16", "bfloat16")
SEGMENT_SUMS: tuple[SegmentSums, ...] = get_args(SegmentSums)

logger = logging.getLogger("duotone")

PAINTER = "DUOTONE_PAINTER"
POLICY_FILE = "DUOTONE_POLICY_FILE"
"""The variable with the path of a policy file, whose fields the variables below override."""
NVTX = "DUOTONE_NVTX"
"""The variable for NVTX ranges, which :mod:`duotone.transforms.nvtx` reads."""
_PREFIX = "DUOTONE_"
_REPORTED: set[str] = set()
"""The unknown variables that were already reported."""
_TENSORFLOW_PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
_OLD_LIST_NAMES = {"ALLOW": "WHITELIST", "INFER": "GRAYLIST", "DENY": "BLACKLIST"}
_LOGGED_MODULE = "auto_mixed_precision"
_DECISION_LOG_LEVEL = 2  # from here on TensorFlow logs one line per painting decision


class Variable(NamedTuple):
    """One setting that an environment variable can set.

    Attributes:
        field: The field of :class:`~duotone.policy.policy.Policy` that it sets.
        duotone: duotone's name, which is read instead of the others.
        takes: The accepted values, in words; error messages and the docs quote it.
        effect: The effect of setting it, in words.
        example: A value that it takes.
        parse: Called with the variable's name and value; returns the value of the field.
        original: TensorFlow's name, or None.
        old: The name that TensorFlow used before, or None.
    """

    field: str
    duotone: str
    takes: str
    effect: str
    example: str
    parse: Callable[[str, str], Any]
    original: str | None = None
    old: str | None = None


class MathVariable(NamedTuple):
    """A variable of TensorFlow or NVIDIA that sets the algorithm of float32 math.

    Attributes:
        name: Its name; duotone's own are ``DUOTONE_FLOAT32_MATH`` and ``DUOTONE_CONVOLUTION_MATH``.
        fields: The fields of :class:`~duotone.policy.policy.Policy` that it sets; none for those of
            cuDNN's recurrent networks, which in JAX are loops of dots.
        when: The truth value that sets them.
        value: The value of these fields then.
    """

    name: str
    fields: tuple[str, ...]
    when: bool
    value: Math | None


class Setting(NamedTuple):
    """A value found in the environment: the field it sets, the value, the variable's name."""

    field: str
    value: Any
    variable: str


def read_settings(environ: Mapping[str, str]) -> tuple[Setting, ...]:
    """Returns all settings in `environ`, in the order of ``VARIABLES``.

    Returns:
        One setting per variable that was read; none for variables that are not set.

    Raises:
        EnvironmentVariableError: A variable holds a value that it does not take.

    Example:
        >>> for setting in read_settings({"DUOTONE_LEVEL": "tensor_cores_only"}):
        ...     print(setting.field, setting.value)
        level TENSOR_CORES_ONLY
    """
    warn_of_unknown(environ)
    settings = _math_settings(environ)
    for variable in VARIABLES:
        names: tuple[str | None, ...] = (variable.duotone,)
        if variable.duotone not in environ:
            names = (variable.original, variable.old)
        for name in names:
            if name is not None and name in environ:
                settings.append(Setting(variable.field, variable.parse(name, environ[name]), name))
    return tuple(settings)


def _math_settings(environ: Mapping[str, str]) -> list[Setting]:
    """Returns float32 math settings from TensorFlow's and NVIDIA's variables, strongest last."""
    own = {variable.field: variable.duotone for variable in VARIABLES}
    settings = []
    for variable in MATH_VARIABLES:
        fields = [field for field in variable.fields if own[field] not in environ]
        if variable.name not in environ or (variable.fields and not fields):
            continue
        text = environ[variable.name]
        # NVIDIA's variable may hold anything: only 0 says something.
        said = parse_boolean(variable.name, text) if variable.name[:3] == "TF_" else text != "0"
        if said is variable.when:
            settings += [Setting(field, variable.value, variable.name) for field in fields]
    return settings


def warn_of_unknown(environ: Mapping[str, str]) -> None:
    """Warns once about each variable with duotone's prefix that does not exist.

    It is no error, since another release of duotone may have the variable.
    """
    for name in environ:
        if not name.startswith(_PREFIX) or name in KNOWN or name in _REPORTED:
            continue
        _REPORTED.add(name)
        logger.warning(
            "environment variable %s: duotone has none of this name; %s The page Environment "
            "variables of the documentation lists all.",
            name,
            did_you_mean(name, sorted(KNOWN), "none is like it."),
        )


def environment_error(name: str, value: str, problem: str, takes: str) -> EnvironmentVariableError:
    """Returns the error for a value that a variable does not accept, with the remedy."""
    end = "" if problem.endswith(("?", ".")) else "."
    text = f"{problem}{end} It takes {takes}. Set it to that, or unset {name}."
    return EnvironmentVariableError(f"environment variable {name} is {value!r}: {text}")


_LIST_TAKES = "operation names separated by commas, such as exp,dot_general (empty: none)"


def _entries(value: str) -> frozenset[str]:
    return frozenset(entry.strip() for entry in value.split(",")) - {""}


def _parse_list(name: str, value: str) -> frozenset[str]:
    entries = _entries(value)
    for entry in sorted(entries):
        # Users wrote "BiasAdd|Softmax", which TensorFlow silently took as one unknown name.
        if re.search(r"[\s|;\"']", entry):
            problem = f"{entry!r} is not one operation name"
            raise environment_error(name, value, problem, _LIST_TAKES)
    return entries


def _some_of(field: str) -> Variable:
    """Returns the variable that switches things off by name."""
    kind, known = field.removesuffix("_remove"), REMOVABLE[field]
    example = ",".join(sorted(known)[:2])
    takes = f"names of {kind} separated by commas, such as {example} (empty: none)"

    def parse(name: str, value: str) -> frozenset[str]:
        entries = _entries(value)
        for entry in sorted(entries.difference(known)):
            meant = did_you_mean(entry, known, "none is like it.")
            problem = f"{entry!r} is not one of the {kind}; {meant}"
            raise environment_error(name, value, problem, takes)
        return entries

    effect = f"switches {kind} off (docs/{kind}.md)"
    return Variable(field, f"DUOTONE_{field.upper()}", takes, effect, example, parse)


_BOOLEAN_TAKES = "0, 1, true or false"


def parse_boolean(name: str, value: str) -> bool:
    """Returns the truth value of the variable called `name`."""
    truth = {"0": False, "false": False, "1": True, "true": True}.get(value.lower())
    if truth is None:
        raise environment_error(name, value, "not a truth value", _BOOLEAN_TAKES)
    return truth


_FOLDER_TAKES = "a folder that exists (empty: none)"


def _parse_folder(name: str, value: str) -> Path | None:
    if not value:
        return None
    problem = folder_problem(Path(value).expanduser())
    if problem is not None:
        raise environment_error(name, value, problem, _FOLDER_TAKES)
    return Path(value)


def folder_problem(path: Path) -> str | None:
    """Returns why `path` cannot take files, or None if it is a folder."""
    if not path.exists():
        return f"there is no folder {path} (create it with: mkdir -p {path})"
    if not path.is_dir():
        return f"{path} is a file and not a folder"
    return None


_VMODULE_TAKES = f"module=level pairs separated by commas, such as {_LOGGED_MODULE}=2"


def _parse_vmodule(name: str, value: str) -> bool:
    """Checks if painting decisions are logged. As in TensorFlow, the last entry of a module counts.

    TF_CPP_VMODULE belongs to all of TensorFlow, so its entries for other modules are ignored. In
    DUOTONE_VMODULE another module can only be a mistake.
    """
    log_level = 0
    for entry in filter(None, (part.strip() for part in value.split(","))):
        module, _, level = (part.strip() for part in entry.partition("="))
        if module != _LOGGED_MODULE:
            if name.startswith("TF_"):
                continue
            problem = f"the only module that duotone logs is {_LOGGED_MODULE}, not {module!r}"
            raise environment_error(name, value, problem, _VMODULE_TAKES)
        if not re.fullmatch(r"[+-]?[0-9]+", level):
            problem = f"{entry!r} does not give a whole number as the level"
            raise environment_error(name, value, problem, _VMODULE_TAKES)
        log_level = int(level)
    return log_level >= _DECISION_LOG_LEVEL


def _list_variable(which: str, edit: str, example: str) -> Variable:
    old = _OLD_LIST_NAMES.get(which)
    effects = {
        "ADD": f"puts operations on the {which.lower()} list and takes them off any other",
        "REMOVE": f"takes operations off the {which.lower()} list; they are then on none",
    }
    return Variable(
        field=f"{which}_{edit}".lower(),
        original=f"{_TENSORFLOW_PREFIX}{which}LIST_{edit}",
        old=f"{_TENSORFLOW_PREFIX}{old}_{edit}" if old is not None else None,
        duotone=f"DUOTONE_{which}LIST_{edit}",
        takes=_LIST_TAKES,
        effect=effects[edit],
        example=example,
        parse=_parse_list,
    )


def _word(
    field: str, effect: str, choices: tuple[str, ...], example: str, problem: str, empty: str = ""
) -> Variable:
    """Returns the variable of a field that takes one of some words, or may be empty."""
    takes = f"{', '.join(choices[:-1])} or {choices[-1]}" + (f" (empty: {empty})" if empty else "")

    def parse(name: str, value: str) -> str | None:
        if empty and not value.strip():
            return None
        for choice in choices:
            if value.strip().lower() == choice.lower():
                return choice
        raise environment_error(name, value, problem, takes)

    return Variable(field, f"DUOTONE_{field.upper()}", takes, effect, example, parse)


def _math(field: str, effect: str) -> Variable:
    return _word(field, effect, MATHS, "tf32", "no such arithmetic", "left to JAX")


VARIABLES: tuple[Variable, ...] = (
    _list_variable("ALLOW", "ADD", "cumsum"),
    _list_variable("ALLOW", "REMOVE", "conv_general_dilated"),
    _list_variable("INFER", "ADD", "reduce_sum,log"),
    _list_variable("INFER", "REMOVE", "tanh"),
    _list_variable("DENY", "ADD", "logistic,erf"),
    _list_variable("DENY", "REMOVE", "exp"),
    _list_variable("CLEAR", "ADD", "abs"),
    _list_variable("CLEAR", "REMOVE", "gather"),
    _word("level", "how far the rewrite goes", LEVELS, LEVELS[0], "no such level", "none")._replace(
        original=f"{_TENSORFLOW_PREFIX}LEVEL"
    ),
    Variable(
        "ignore_performance",
        "DUOTONE_IGNORE_PERFORMANCE",
        _BOOLEAN_TAKES,
        "rewrites also where half precision is not faster",
        "1",
        parse_boolean,
        f"{_TENSORFLOW_PREFIX}IGNORE_PERFORMANCE",
    ),
    Variable(
        field="log_path",
        original=f"{_TENSORFLOW_PREFIX}LOG_PATH",
        duotone="DUOTONE_LOG_PATH",
        takes=_FOLDER_TAKES,
        effect="writes the graph before and after, and the paint buckets, into the folder",
        example="/tmp",
        parse=_parse_folder,
    ),
    Variable(
        field="log_decisions",
        original="TF_CPP_VMODULE",
        duotone="DUOTONE_VMODULE",
        takes=_VMODULE_TAKES,
        effect="from level 2 on, logs one line per painting decision",
        example="auto_mixed_precision=2",
        parse=_parse_vmodule,
    ),
    _word(
        "painter",
        "the painter: duotone's rules or TensorFlow's passes; for graph files a minimum cut",
        PAINTERS,
        "tensorflow",
        "no such painter",
    ),
    _some_of("rules_remove"),
    _some_of("optimizations_remove"),
    _math("float32_math", "the algorithm of float32 dots and convolutions"),
    _math("convolution_math", "the same for convolutions alone"),
    _word(
        "reduce_dtype",
        "the dtype in which devices add up gradients",
        REDUCE_DTYPES,
        "float32",
        "no such dtype",
        "as painted",
    ),
    _word(
        "segment_sums",
        "the precision of sums over segments, such as the messages of a graph network",
        SEGMENT_SUMS,
        "half",
        "no such precision",
    ),
)
"""Every variable, in the order in which they are read and documented."""

SWITCH_NAMES = (
    "DUOTONE_ENABLE",
    "DUOTONE_ENABLE_GRAPH_REWRITE",
    "DUOTONE_ENABLE_LOSS_SCALING",
    "DUOTONE_DTYPE",
    "DUOTONE_LOSS_SCALE",
)
"""The variables that :mod:`duotone.policy.switches` reads."""

KNOWN = (*(variable.duotone for variable in VARIABLES), POLICY_FILE, NVTX, *SWITCH_NAMES)
"""Every name with duotone's prefix."""

MATH_VARIABLES = (
    MathVariable("NVIDIA_TF32_OVERRIDE", ("float32_math", "convolution_math"), False, "exact"),
    MathVariable("TF_ENABLE_CUBLAS_TENSOR_OP_MATH_FP32", ("float32_math",), True, "float16"),
    MathVariable("TF_ENABLE_CUDNN_TENSOR_OP_MATH_FP32", ("convolution_math",), True, "float16"),
    MathVariable("TF_ENABLE_CUDNN_RNN_TENSOR_OP_MATH_FP32", (), True, None),
    MathVariable("TF_DISABLE_CUBLAS_TENSOR_OP_MATH", ("float32_math",), True, "exact"),
    MathVariable("TF_DISABLE_CUDNN_TENSOR_OP_MATH", ("convolution_math",), True, "exact"),
    MathVariable("TF_DISABLE_CUDNN_RNN_TENSOR_OP_MATH", (), True, None),
)
"""The variables in the order in which they are read. Later ones override earlier ones."""
