"""Policy: all options for painting a graph, in one frozen value.

A policy is checked once, when it is made. It hashes and compares by value, so it can be part of a
cache key. Only :meth:`Policy.merged_with_environment` reads these options from the environment
(``duotone/policy/switches.py`` reads the variables that switch duotone on). A new option is a field
here with a check, a phrase in ``describe`` and a row in ``duotone/policy/environment.py`` if it can
be set from outside.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duotone._checks import path_of
from duotone.errors import PolicyError, PolicyTypeError, UnknownOperationError, shown
from duotone.policy.calibration import Calibration
from duotone.policy.environment import (
    LEVELS,
    MATHS,
    PAINTERS,
    POLICY_FILE,
    SEGMENT_SUMS,
    VARIABLES,
    Level,
    Math,
    Painter,
    SegmentSums,
    read_settings,
)
from duotone.policy.file import read_policy_file
from duotone.policy.operation_hints import LEAVE_IT, SHOWS_NAMES, advice
from duotone.policy.text import FILE, VARIABLE, described
from duotone.policy.values import (
    ONE_FORM,
    Names,
    Origin,
    StatedRanges,
    check_boolean,
    check_choice,
    check_names,
    removed,
    strings,
)

LISTS = ("allow", "infer", "deny", "clear")
LIST_FIELDS = tuple(f"{which}_{edit}" for which in LISTS for edit in ("add", "remove"))
REMOVE_FIELDS = ("rules_remove", "optimizations_remove")
SET_FIELDS = (*LIST_FIELDS, *REMOVE_FIELDS)
PATTERN_FIELDS = ("keep_full", "keep_half")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """Options for painting: the painter, changes to its lists, exceptions, assumptions and logs.

    *List edits* name operations as the front end does: JAX primitives, such as ``dot_general``.
    ``x_add`` puts an operation on list x and takes it off any other list; ``x_remove`` takes it
    off list x, and it then is on no list.

    *Precedence.* The environment is merged in when a function is painted
    (:meth:`merged_with_environment`). List edits of code and environment are united. A scalar that
    is set in code wins over the environment, and a default value counts as not set: ``level=None``
    leaves ``DUOTONE_LEVEL`` in force. Name-scope patterns, ranges and a calibration are set in code
    and in a policy file (``DUOTONE_POLICY_FILE``, :meth:`from_file`). Variables override that file.

    Args:
        painter: ``"duotone"``; ``"tensorflow"`` for the four passes of TensorFlow's pass; or, for
            saved graphs and ONNX models, ``"mincut"``: the precisions that move the fewest bytes.
        level: None, or one of TensorFlow's levels: ``"TENSOR_CORES_ONLY"`` empties the infer,
            deny and clear lists, ``"TREAT_INFER_AS_DENY"`` denies the infer list,
            ``"UNSAFE_FORCE_ALL"`` paints nearly everything half, safe or not.
        ignore_performance: Rewrite also where half is not faster (most CPUs), for tests.
        allow_add: Operations to put on the allow list; like all list edits, any iterable of str.
        allow_remove: Operations to take off the allow list.
        infer_add: Operations to put on the infer list.
        infer_remove: Operations to take off the infer list.
        deny_add: Operations to put on the deny list.
        deny_remove: Operations to take off the deny list.
        clear_add: Operations to put on the clear list.
        clear_remove: Operations to take off the clear list.
        keep_full: Name-scope patterns whose operations stay full: shell wildcards over names, such
            as ``"*/attention/*"``. One that matches nothing is logged once.
        keep_half: Name-scope patterns whose operations are painted half.
        rules_remove: Names of rules to switch off (``docs/rules.md``), at your own risk.
        optimizations_remove: Names of optimizations to switch off (``docs/optimizations.md``).
        float32_math: The algorithm of float32 dots and convolutions on a GPU or TPU: ``"tf32"``,
            ``"float16"``, ``"bfloat16"`` (operands rounded to it, sums in float32) or ``"exact"``.
            Dtypes stay as they are. None leaves it to JAX. (``docs/policy.md``)
        convolution_math: The same for convolutions alone, where they differ from dots.
        reduce_dtype: The dtype in which devices add up gradients: float32 or half
            (``docs/scale.md``).
        segment_sums: ``"half"`` adds half values into positions (``jax.ops.segment_sum``) in half.
        ranges: Bounds of arguments and results: ``{name: (low, high)}``. Names are patterns
            (``"images"``, ``"params/*/kernel"``, name scopes). See ``docs/ranges.md``.
        calibration: What :func:`duotone.calibrate` measured for the function, or a list of such
            records. A program without a record in the list is painted without one (logged once).
        compiler_options: True if your ``jit`` has :func:`duotone.compiler_options`, False if not.
        log_path: An existing folder for the graph before and after painting and the paint buckets.
            A relative path starts at the folder that is current when the policy is made.
        log_decisions: Write one log line per painting decision.
        heal: Keep an operation full after it overflowed in this many steps in a row, or in four
            times as many with good steps between. For optimizers. True is three, 0 is off.

    Raises:
        PolicyError: A value that is not accepted, or two edits that contradict each other.
        PolicyTypeError: A value of the wrong type, or an unknown field; also a TypeError.
        UnknownOperationError: When a program is painted: a list names an operation that the
            front end does not know.

    Example:
        >>> from duotone import Policy
        >>> policy = Policy(deny_add={"logistic"}, keep_full=["*/attention/*"])
        >>> print(policy.describe())
        policy: deny list + logistic; keeps full */attention/*
        >>> policy == Policy(keep_full=("*/attention/*",), deny_add=("logistic",))
        True

    References:
        tensorflow/core/grappler/optimizers/auto_mixed_precision.cc, whose settings these are.
    """

    painter: Painter = "duotone"
    level: Level | None = None
    ignore_performance: bool = False
    allow_add: frozenset[str] = frozenset()
    allow_remove: frozenset[str] = frozenset()
    infer_add: frozenset[str] = frozenset()
    infer_remove: frozenset[str] = frozenset()
    deny_add: frozenset[str] = frozenset()
    deny_remove: frozenset[str] = frozenset()
    clear_add: frozenset[str] = frozenset()
    clear_remove: frozenset[str] = frozenset()
    keep_full: tuple[str, ...] = ()
    keep_half: tuple[str, ...] = ()
    rules_remove: frozenset[str] = frozenset()
    optimizations_remove: frozenset[str] = frozenset()
    float32_math: Math | None = None
    convolution_math: Math | None = None
    reduce_dtype: str | None = None
    segment_sums: SegmentSums = "full"
    ranges: StatedRanges = ()
    calibration: Calibration | tuple[Calibration, ...] | None = None
    compiler_options: bool | None = None
    log_path: Path | None = None
    log_decisions: bool = False
    heal: int = 0
    # Excluded from `==`: two policies that paint alike are equal, wherever they came from.
    _origins: tuple[Origin, ...] = dataclasses.field(default=(), repr=False, compare=False)

    if TYPE_CHECKING:  # what may be passed is wider than what is kept

        def __init__(
            self,
            *,
            painter: Painter = "duotone",
            level: Level | None = None,
            ignore_performance: bool = False,
            allow_add: Names = (),
            allow_remove: Names = (),
            infer_add: Names = (),
            infer_remove: Names = (),
            deny_add: Names = (),
            deny_remove: Names = (),
            clear_add: Names = (),
            clear_remove: Names = (),
            keep_full: Names = (),
            keep_half: Names = (),
            rules_remove: Names = (),
            optimizations_remove: Names = (),
            float32_math: Math | None = None,
            convolution_math: Math | None = None,
            reduce_dtype: Any = None,
            segment_sums: SegmentSums = "full",
            ranges: Mapping[str, tuple[float, float]] | StatedRanges = (),
            calibration: Calibration | Iterable[Calibration] | None = None,
            compiler_options: bool | None = None,
            log_path: str | os.PathLike[str] | None = None,
            log_decisions: bool = False,
            heal: bool | int = False,
        ) -> None: ...

    if not TYPE_CHECKING:  # a type checker is to see the arguments of `__init__`

        def __new__(cls, *args: Any, **fields: Any) -> Policy:
            """Checks the names of fields first, so that an error suggests the right one."""
            if args:
                raise PolicyTypeError(
                    f"Policy takes its fields by name and got {shown(args[0])} by position; write "
                    "Policy(deny_add=[...])."
                )
            check_names(fields.keys() - {"_origins"}, _DEFAULTS)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        """Checks every field, and converts lists, patterns and the path to their normal form."""
        for field, choices in _CHOICES.items():
            check_choice(field, getattr(self, field), choices, none=_DEFAULTS[field] is None)
        for field in ("ignore_performance", "compiler_options", "log_decisions"):
            check_boolean(field, getattr(self, field), none=_DEFAULTS[field] is None)
        for field in LIST_FIELDS:
            object.__setattr__(self, field, frozenset(strings(field, getattr(self, field))))
        for field in PATTERN_FIELDS:
            object.__setattr__(self, field, strings(field, getattr(self, field)))
        for field in REMOVE_FIELDS:
            object.__setattr__(self, field, removed(field, getattr(self, field)))
        for field, form in ONE_FORM.items():
            object.__setattr__(self, field, form(getattr(self, field)))
        self._check_list_edits()
        self._check_patterns()

    @property
    def calibrations(self) -> tuple[Calibration, ...]:
        """The calibrations in :attr:`calibration`, one or several."""
        given = self.calibration
        return given if isinstance(given, tuple) else () if given is None else (given,)

    def merged_with_environment(self, environ: Mapping[str, str] = os.environ) -> Policy:
        """Returns this policy with the settings of the environment; the class states precedence.

        Each variable has a duotone name and most a TensorFlow name (lists also an older one), see
        ``docs/environment.md``. Where the duotone name is set, even to nothing, others are not
        read. Entries of both TensorFlow names of a list are united, as TensorFlow does.

        Args:
            environ: Variable names and values.

        Returns:
            A policy; this one if the environment has no settings. Merging again changes nothing.

        Raises:
            EnvironmentVariableError: A variable that is read has a value it does not accept.
            PolicyError: The merged edits contradict each other.

        Example:
            >>> from duotone import Policy
            >>> environ = {"DUOTONE_DENYLIST_ADD": "tanh", "DUOTONE_LEVEL": "TENSOR_CORES_ONLY"}
            >>> policy = Policy(level="TREAT_INFER_AS_DENY").merged_with_environment(environ)
            >>> policy.level, sorted(policy.deny_add)
            ('TREAT_INFER_AS_DENY', ['tanh'])
        """
        found = [(s.field, s.value, VARIABLE + s.variable) for s in read_settings(environ)]
        if (path := environ.get(POLICY_FILE, "")).strip():
            read = Policy.from_file(path)._set_fields()
            found = [*((field, value, f"{FILE}{path}") for field, value in read.items()), *found]
        if not found:
            return self
        changes: dict[str, Any] = {}
        origins = list(self._origins)
        for field, value, source in found:
            if field in SET_FIELDS or field in PATTERN_FIELDS:
                for entry in sorted(value):
                    if entry in getattr(self, field):  # asked for here too, not only out there
                        origins += [Origin(field, entry, s) for s in self._sources(field, entry)]
                    origins.append(Origin(field, entry, source))
                known = changes.get(field, getattr(self, field))
                changes[field] = known | value if field in SET_FIELDS else (*known, *value)
            elif field == "ranges":  # name by name
                changes[field] = dict(value) | dict(self.ranges)
                origins.append(Origin(field, "", source))
            elif getattr(self, field) == _DEFAULTS[field] and (
                value != _DEFAULTS[field] or field in changes
            ):
                changes[field] = value
                origins.append(Origin(field, "", source))
        return dataclasses.replace(self, **changes, _origins=tuple(dict.fromkeys(origins)))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Policy:
        """Returns the policy that a TOML or JSON file holds; ``docs/policy.md`` has one.

        Args:
            path: the file, with fields of this class; its paths are relative to the file.

        Raises:
            PolicyError: the file is missing or invalid; the message names it.
            CalibrationError: the calibration that it names cannot be loaded.
        """
        fields = read_policy_file(path_of("Policy.from_file", "path", path), _DEFAULTS)
        try:
            return cls(**fields)
        except PolicyError as error:
            raise type(error)(f"{path}: {error}") from error

    def _set_fields(self) -> dict[str, Any]:
        """Returns the value of each field that differs from its default."""
        found = {field: getattr(self, field) for field in _DEFAULTS}
        return {field: value for field, value in found.items() if value != _DEFAULTS[field]}

    def check_names(self, known: Collection[str], shows: str = SHOWS_NAMES) -> None:
        """Raises if a list edit names an operation that the front end does not know.

        Args:
            known: The names of all operations that the front end knows.
            shows: The call or command that shows the names in a program.

        Raises:
            UnknownOperationError: Names every unknown operation, where each comes from (code or
                which variable), and what was probably meant.

        Example:
            >>> from duotone import Policy
            >>> Policy(deny_add={"exp"}).check_names(["exp", "log"])
        """
        if not any(getattr(self, field) for field in LIST_FIELDS):
            return
        names = frozenset(known)
        problems = []
        for field in LIST_FIELDS:
            for entry in sorted(getattr(self, field) - names):
                sources = self._sources(field, entry)
                problem = f"{entry!r} in {' and '.join(sources)}: {advice(entry, names, shows)}"
                if any(" TF_" in source for source in sources):
                    problem += LEAVE_IT.format(_DUOTONE_NAME[field])
                problems.append(problem)
        if problems:
            what = "an unknown operation" if len(problems) == 1 else "unknown operations"
            lines = [f"the policy's lists name {what}:", *problems]
            raise UnknownOperationError("\n  ".join(lines))

    def replace(self, **changes: Any) -> Policy:
        """Returns a copy with some fields changed, checked like a new policy.

        Args:
            **changes: New values by field name.

        Returns:
            The new policy.

        Raises:
            PolicyError, PolicyTypeError: as for a new policy.

        Example:
            >>> from duotone import Policy
            >>> Policy(level="TENSOR_CORES_ONLY").replace(level=None) == Policy()
            True
        """
        check_names(changes, _DEFAULTS)
        origins = tuple(o for o in self._origins if o.field not in changes)
        return dataclasses.replace(self, **changes, _origins=origins)

    def describe(self) -> str:
        """Returns all that differs from the defaults, on one line, for logs.

        Example:
            >>> from duotone import Policy
            >>> Policy().describe()
            'policy: all defaults'
            >>> Policy(painter="tensorflow", allow_add=["exp"], allow_remove=["mul"]).describe()
            'policy: painter tensorflow; allow list + exp - mul'
        """
        return described(self._set_fields(), LISTS, (o.source for o in self._origins))

    def _sources(self, field: str, entry: str) -> list[str]:
        """Returns the sources of an entry: the argument in code, environment variables or both."""
        found = [o.source for o in self._origins if (o.field, o.entry) == (field, entry)]
        return found or [f"Policy({field}=...)"]

    def _check_list_edits(self) -> None:
        adds = [f"{which}_add" for which in LISTS]
        for entry in sorted(frozenset().union(*(getattr(self, field) for field in adds))):
            added_by = [field for field in adds if entry in getattr(self, field)]
            if len(added_by) > 1:
                raise PolicyError(
                    f"{entry!r} is added to more than one list: by {self._cite(added_by, entry)}. "
                    "An operation is on one list at most: keep it in one of these only."
                )
            which = added_by[0].removesuffix("_add")
            if entry in getattr(self, f"{which}_remove"):
                both = self._cite([f"{which}_add", f"{which}_remove"], entry)
                raise PolicyError(
                    f"{entry!r} is both added to the {which} list and removed from it: by {both}. "
                    "Drop it from one of these."
                )

    def _cite(self, fields: list[str], entry: str) -> str:
        return " and by ".join(s for field in fields for s in self._sources(field, entry))

    def _check_patterns(self) -> None:
        for pattern in filter(self.keep_half.__contains__, self.keep_full):
            places = (s for field in PATTERN_FIELDS for s in self._sources(field, pattern))
            raise PolicyError(
                f"the pattern {pattern!r} is in {' and in '.join(places)}: drop it from one of "
                "these, or make one narrower."
            )


# This has the default of each field that a user can set.
_DEFAULTS: dict[str, Any] = {
    field.name: field.default
    for field in dataclasses.fields(Policy)
    if not field.name.startswith("_")
}
_CHOICES: dict[str, tuple[str, ...]] = {"painter": PAINTERS, "level": LEVELS}
_CHOICES |= {"segment_sums": SEGMENT_SUMS, "float32_math": MATHS, "convolution_math": MATHS}
_DUOTONE_NAME = {variable.field: variable.duotone for variable in VARIABLES}
