"""``duotone.report``: what is half in a step and why, as a page that a browser shows.

::

    explain the step                 (duotone.transforms.autocast), as for the target
    put the page together            (duotone.explaining.page), with what else is given
    write it, whole or not at all    (duotone._files)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from duotone._files import check_free, write_atomically
from duotone.advising.advice import AdviceRecord
from duotone.blaming.findings import BlameRecord
from duotone.comparing.comparison import SideBySide
from duotone.devices import Target, assuming, find_target
from duotone.errors import ArgumentTypeError, shown
from duotone.explaining.page.assemble import make_page
from duotone.jaxpr.reading.signature import describe_callable
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
    """Writes a page about a step: what is half in it, what is not, and why.

    The page is one HTML file that loads nothing: an overview, the operations by name scope to zoom
    into and to search, a table of them to sort and to filter, and what else is given here. Nothing
    is compiled or run.

    Args:
        step: a function, as for :func:`duotone.explain`.
        *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place.
        out: the file to write.
        target: paint as for this device, which need not be here: a name as for
            :func:`duotone.compile_for`, or a :class:`duotone.Target`. ``None`` is the device here.
        dtype: as for :func:`duotone.explain`.
        policy: likewise.
        title: of the page; the name of ``step`` if omitted.
        comparison: what :func:`duotone.compare` returned, to be shown.
        blame: what :func:`duotone.blame` returned, to be shown.
        advice: what :func:`duotone.advise` returned, to be shown; or findings of your own, of each
            a dict of texts: ``"title"`` and perhaps ``"where"``, ``"cost"`` and ``"remedy"``.
        history: curves of a training, such as loss and loss scale: by name numbers, or pairs (step,
            number); or the name of a CSV file with a column for each curve and perhaps one named
            ``step``. Numbers that are not finite are marked.
        overwrite: whether a file that is there may be replaced.
        **kwargs: keyword arguments of ``step``. For a function with an argument of a name above,
            pass ``functools.partial(step, policy=...)``.

    Returns:
        The file.

    Raises:
        ArgumentError: the file exists, or what is to be shown has not the form above.
        ArgumentTypeError: something has the wrong type; as for :func:`duotone.explain`.
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
    if not isinstance(out, str | PathLike) or not str(out):
        raise ArgumentTypeError(f"report: out is {shown(out)}; pass the name of a file")
    path = Path(out)
    check_free(path, overwrite=overwrite)
    device = None if target is None else find_target(target)
    with assuming(None if device is None else device.device()):
        seen = api.explain(step, *args, dtype=dtype, policy=policy, **kwargs)
    painted_for = "" if device is None else f", painted for {device.description}"
    name = describe_callable(step).removeprefix("autocast(").removesuffix(")")
    page = make_page(
        seen,
        title=title or name.rpartition("<locals>.")[2],
        about=f"{seen.summary.half_dtype}{painted_for}",
        comparison=comparison,
        blame=blame,
        advice=advice,
        history=history,
    )
    write_atomically(path, page)
    return path
