"""``duotone.advise`` lists what makes a step slow on a device, most expensive first.

::

    take the step as it runs there: rewritten, or as written if it has half types of its own
    estimate its kernels             (duotone.cost.estimate)
    run the checks on them           (duotone.advising.checks)
    compile it for its time          if the compiler of the device is installed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from duotone import _jax
from duotone.advising.advice import AdviceRecord
from duotone.advising.advice_view import AdviceView
from duotone.advising.checks.all_checks import found_in
from duotone.advising.checks.widths import is_half_by_hand
from duotone.advising.step_model import StepArgument, StepModel
from duotone.comparing.comparison import DUOTONE, FLOAT32, WRITTEN
from duotone.comparing.variants import Form, Forms
from duotone.cost.doubts import doubt_about
from duotone.devices.half_type import default_device
from duotone.devices.specifications import TARGETS, Target, find_target
from duotone.errors import ArgumentTypeError, CompilationError, MissingExtraError, shown
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.reading.signature import Signature, argument_names, flatten_call
from duotone.policy.policy import Policy
from duotone.text.lines import Viewed
from duotone.transforms.autocast import settings_of
from duotone.transforms.compile_for import compile_for

USUAL = "h100"
"""The default target if the speed of the default device is not known."""
ESTIMATE = (
    "The figures are estimated from the traced program; nothing was compiled or run. The cost of a "
    "finding is the most that its remedy could save. Findings may overlap."
)
COMPILED = (
    "The time of the step is the roofline of the compiled program's kernels. The cost of a finding "
    "is an estimate of the most that its remedy could save. Findings may overlap."
)
DOUBT = (
    "Only a compiler can tell the time of the step (python -m pip install 'duotone[{}]'): {} take "
    "much of it, and an estimate of those may be far off."
)


class Advice(Viewed, AdviceRecord):
    """The findings of a step, most expensive first; ``print`` them.

    ``findings`` are data; :meth:`to_json` writes all. See
    :class:`duotone.advising.advice.AdviceRecord` for the attributes.
    """

    def __rich__(self) -> AdviceView:
        return AdviceView(self)


def advise(
    step: Callable[..., Any],
    *args: Any,
    target: str | Target | None = None,
    dtype: Any = None,
    policy: Policy | None = None,
    calls: Sequence[tuple[Any, ...]] = (),
    **kwargs: Any,
) -> Advice:
    """Lists what makes a step slow on a device, with remedies, most expensive first.

    The device need not be present, and nothing is run. If the compiler of the device is installed
    (``duotone[cuda]``, ``duotone[tpu]``), the step is compiled for its time; otherwise the time is
    estimated, or left out where an estimate may be far off. A float32 step is analyzed as
    :func:`duotone.autocast` rewrites it. A step that is already rewritten, or has half types of its
    own, is analyzed as written.

    Args:
        step: a function, one that ``jax.jit`` returned, or one that calls
            :func:`duotone.autocast`, :func:`duotone.grad` or the like.
        *args: its arguments: arrays or ``jax.ShapeDtypeStruct``, whose shardings matter.
        target: a name as for :func:`duotone.compile_for`, or a :class:`duotone.Target`. ``None``
            takes the default device if its speed is known, else an H100.
        dtype: as for :func:`duotone.autocast`.
        policy: as for :func:`duotone.autocast`.
        calls: positional arguments of other calls, one tuple each, to check whether they need
            separate programs.
        **kwargs: keyword arguments of ``step``, the same in all calls. For a function with an
            argument of a name above, pass ``functools.partial(step, policy=...)``.

    Returns:
        A record with the findings; print it.

    Raises:
        UnknownTargetError: no such target.
        ArgumentTypeError, ArgumentError: as for :func:`duotone.compare`; or ``calls`` contains
            something other than tuples.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> x = jax.ShapeDtypeStruct((8192, 2048), jnp.float32)
        >>> w = jax.ShapeDtypeStruct((2048, 4099), jnp.float32)
        >>> found = duotone.advise(lambda x, w: jax.nn.relu(x @ w), x, w, target="h100")
        >>> found.findings[0].kind, found.findings[0].operation
        ('tiles', 'dot_general')
    """
    where = _target(target)
    forms = Forms("advise", step, args, kwargs, dtype, policy)
    forms.half(where)  # refuses float32
    asked = dtype is not None or policy is not None
    form = DUOTONE if asked else _form(forms, where)
    record = forms.record(where, form)
    half = forms.half(where) if form == DUOTONE else record.summary.half_dtype
    calls_made, programs = _calls(step, [(call, kwargs) for call in _tuples(calls, args)])
    model = StepModel(
        record=record,
        target=where,
        half=half if half in HALF_TYPES else "",
        arguments=tuple(_arguments(forms, args, kwargs)),
        results=frozenset(_results(forms)),
        calls=calls_made,
        programs=programs,
    )
    seconds, moved, how = _cost(forms[form], model)
    return Advice(
        function=forms.name,
        target=where.name,
        device=where.description,
        half=model.half,
        seconds=seconds,
        bytes=moved,
        findings=found_in(model),
        notes=(*how, _form_in_words(form, model)),
        compiled=how == (COMPILED,),
    )


def _cost(form: Form, model: StepModel) -> tuple[float, int, tuple[str, ...]]:
    """Returns the seconds and bytes of a step, compiled if possible, and where they come from."""
    target = model.target
    try:
        if target.bandwidth:
            found = compile_for(form.function, *form.args, target=target, **form.kwargs)
            return found.seconds, found.bytes, (COMPILED,)
    except (MissingExtraError, CompilationError):
        pass
    doubt = doubt_about(model.kernels, target)
    if doubt:
        return 0.0, 0, (ESTIMATE, DOUBT.format(target.platform, doubt))
    return model.seconds, model.bytes, (ESTIMATE,)


def _target(asked: str | Target | None) -> Target:
    if asked is not None:
        return find_target(asked)
    kind = default_device().device_kind
    known = (t for t in TARGETS.values() if t.description == kind and t.bandwidth)
    return next(known, TARGETS[USUAL])


def _form(forms: Forms, target: Target) -> str:
    """Returns the default form of a step: as written if it already computes in half."""
    same = forms.same_as(target).get(WRITTEN)
    if same is None:
        return WRITTEN  # rewritten programs inside
    if same == DUOTONE:
        return DUOTONE
    plain = StepModel(forms.record(target, FLOAT32), target, "")
    return WRITTEN if is_half_by_hand(plain) else DUOTONE


def _form_in_words(form: str, model: StepModel) -> str:
    if form == WRITTEN:
        return "The step was analyzed as written: it has half types or rewritten parts."
    if not model.half:
        return f"No half type is fast on {model.target.name}: the step was analyzed in float32."
    return "The step was analyzed as duotone.autocast rewrites it."


def _arguments(
    forms: Forms, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[StepArgument]:
    """Yields the arrays of the call; weights given to ``autocast`` come first."""
    arrays, _ = flatten_call(forms.name, args, kwargs)
    names, avals = forms.traced.arguments(), _jax.open_jaxpr(forms.traced.jaxpr).invars
    laid_out = [None] * (len(names) - len(arrays)) + [_layout(array) for array in arrays]
    for name, var, layout in zip(names, avals, laid_out, strict=True):
        devices, whole = layout or (1, True)
        shape = tuple(map(str, getattr(var.aval, "shape", ())))
        yield StepArgument(name, shape, str(getattr(var.aval, "dtype", "none")), devices, whole)


def _layout(array: Any) -> tuple[int, bool] | None:
    """Returns over how many devices an array is laid out, and whether it is replicated."""
    sharding = getattr(array, "sharding", None)
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return None
    return sharding.mesh.size, sharding.is_fully_replicated


def _results(forms: Forms) -> Iterator[tuple[str, ...]]:
    for atom in _jax.open_jaxpr(forms.traced.jaxpr).outvars:
        yield tuple(map(str, getattr(atom.aval, "shape", ())))


def _tuples(calls: Any, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    wrong = {"calls": calls}
    if isinstance(calls, Sequence):
        wrong = {f"calls[{i}]": call for i, call in enumerate(calls) if not isinstance(call, tuple)}
    for name, value in wrong.items():
        raise ArgumentTypeError(
            f"advise: {name} is {shown(value)}; pass a list with a tuple of arguments for each call"
        )
    return [args, *calls]


def _calls(
    step: Callable[..., Any], calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
) -> tuple[dict[str, tuple[str, ...]], int]:
    """Returns the arguments that differ between calls, and how many programs there are."""
    cache_size = getattr(step, "_cache_size", None)  # functions of jax.jit have it
    name = getattr(step, "__name__", "step")
    signatures = [_signature(step, name, *call) for call in calls]
    distinct = list({tuple(sorted(s.items())): s for s in signatures}.values())
    if len(distinct) < 2:
        return {}, cache_size() if callable(cache_size) else 1  # pyright: ignore[reportReturnType]
    differing = {}
    for argument in dict.fromkeys(key for signature in distinct for key in signature):
        kinds = tuple(dict.fromkeys(s.get(argument, "absent") for s in distinct))
        if len(kinds) > 1:
            differing[argument] = kinds
    return differing, len(distinct)


def _signature(
    step: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, str]:
    """Returns by name the part of each leaf of a call that selects its program.

    ``jax.jit`` takes a Python number as an array of its type. For duotone the number is a
    constant of the program.
    """
    arrays, signature = flatten_call(name, args, kwargs)
    names = argument_names(step, signature)
    found = {}
    for n, aval in zip(names, map(jax.typeof, arrays), strict=True):
        found[n] = aval.str_short() + " (weak)" * bool(getattr(aval, "weak_type", False))
    as_arrays = settings_of(step) is None and hasattr(step, "lower")
    everything = argument_names(step, Signature(signature.tree, ()))
    for position, leaf in signature.statics:
        number = isinstance(leaf.value, bool | int | float | complex)
        kind = type(leaf.value).__name__ if as_arrays and number else repr(leaf.value)
        found[everything[position]] = kind
    return found
