"""``duotone.report`` writes which operations of a step are half, and why, as an HTML page.

::

    explain the step for the target    (duotone.transforms.autocast)
    assemble the page                  (duotone.explaining.page)
    write it atomically                (duotone._files)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from duotone._checks import check_switch, path_of
from duotone._files import check_free, write_atomically
from duotone.advising.advice import AdviceRecord
from duotone.blaming.findings import BlameRecord
from duotone.comparing.comparison import SideBySide
from duotone.devices import Target, assuming, find_target
from duotone.explaining.page.assemble import make_page
from duotone.jaxpr.reading.signature import name_of
from duotone.policy.policy import Policy
from duotone.transforms import autocast as api


def report(
    step: Callable[..., Any],
    *args: Any,
    out: str | PathLike[str] = "report.html",
    target: str | Target | None = None,
    dtype: Any = None,
    policy: Policy | None = None,
    title: str | None = None,
    comparison: SideBySide | None = None,
    blame: BlameRecord | None = None,
    advice: AdviceRecord | Sequence[Mapping[str, str]] | None = None,
    history: Mapping[str, Any] | str | PathLike[str] | None = None,
    overwrite: bool = False,
    **kwargs: Any,
) -> Path:
    """Writes a page that shows which operations of a step are half, and why.

    The page is one self-contained HTML file. It has an overview, the operations by name scope to
    zoom into and search, a table of them to sort and filter, and the optional sections below.
    Nothing is compiled or run.

    Args:
        step: a function, as for :func:`duotone.explain`.
        *args: its arguments: arrays or ``jax.ShapeDtypeStruct``.
        out: the file to write.
        target: the device to paint for, present or not: a name as for
            :func:`duotone.compile_for`, or a :class:`duotone.Target`. ``None`` is the default
            device here.
        dtype: as for :func:`duotone.explain`.
        policy: as for :func:`duotone.explain`.
        title: the title of the page; the name of ``step`` if omitted.
        comparison: the result of :func:`duotone.compare`.
        blame: the result of :func:`duotone.blame`.
        advice: the result of :func:`duotone.advise`; or your own findings, dicts of texts by
            ``"title"`` and optionally ``"where"``, ``"cost"`` and ``"remedy"``.
        history: curves of a training, such as loss and loss scale: a dict from names to numbers or
            to pairs (step, number); or the name of a CSV file with a column for each curve and
            optionally one named ``step``. The page marks numbers that are not finite.
        overwrite: whether to replace an existing file.
        **kwargs: keyword arguments of ``step``. For a function with an argument of a name above,
            pass ``functools.partial(step, policy=...)``.

    Returns:
        The file.

    Raises:
        ArgumentError: the file exists, a section does not have the form above, or the CSV file
            cannot be read.
        ArgumentTypeError: an argument has the wrong type, or as for :func:`duotone.explain`.
        UnknownTargetError: no such target.
        WriteError: the file cannot be written.

    Example:
        >>> import jax, jax.numpy as jnp, duotone, tempfile
        >>> x = jax.ShapeDtypeStruct((128, 128), jnp.float32)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = duotone.report(lambda x: jnp.exp(x @ x), x, out=f"{folder}/report.html")
        ...     page = file.read_text()
        >>> page.startswith("<!DOCTYPE html>")
        True
    """
    path = path_of("report", "out", out)
    check_switch("report", "overwrite", overwrite)
    check_free(path, overwrite=overwrite)
    device = None if target is None else find_target(target)
    with assuming(None if device is None else device.device()):
        seen = api.explain(step, *args, dtype=dtype, policy=policy, **kwargs)
    painted_for = "" if device is None else f", painted for {device.description}"
    page = make_page(
        seen,
        title=title or name_of(step).rpartition("<locals>.")[2],
        about=f"{seen.summary.half_dtype}{painted_for}",
        comparison=comparison,
        blame=blame,
        advice=advice,
        history=history,
    )
    write_atomically(path, page)
    return path
