# python -m benchmarks.onnx_agreement
"""Is an ONNX model painted as the JAX function that it was exported from?

Each function is explained by ``duotone.explain`` in float16, exported to ONNX in float32 by
jax2onnx, and explained there by ``duotone.onnx.explain``. Compared are dots, convolutions,
exponentials and sums. Two forms are exported: *traced* is the program of JAX's own primitives, each
of which becomes one ONNX operation or a few; *native* is the function as jax2onnx exports it, which
makes one ``Softmax``, ``LayerNormalization`` or ``ReduceLogSumExp`` of what is several operations
in JAX.

Operations of one kind are matched in the order of the program by the number of elements of their
results, as many as can be; where ONNX does not know a size, any fits. An operation of JAX with no
counterpart is counted as such: it is inside of another one (an exponential in a ``Softmax``) or
written otherwise (a product with a vector as ``Mul`` and ``ReduceSum``, which are not dots).

The functions are the forward passes, with loss, of the zoo at its smallest size. Errors are
relative to the largest element of a result, in ONNX Runtime: *exported* is that of jax2onnx's
float32 model to the function in JAX, *rewritten* that of the half model to the float32 one; empty
where ONNX Runtime does not run the float32 model. Where *exported* is large, jax2onnx wrote another
function; only the painting is compared there.

It needs jax2onnx, whose orbax-checkpoint is older than duotone's: an environment of its own, with
``pip install '.[jax2onnx,flax]'``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np
from rich.progress import track

import duotone
import duotone.onnx
from benchmarks._common import Bar, Result, table, write
from benchmarks.onnx_models import error_of
from benchmarks.zoo import MODELS
from duotone.errors import OnnxError
from duotone.onnx import running
from duotone.precision.record import OperationRecord, Record

ERROR = 0.01
QUESTION = "Is an ONNX model painted as the JAX function that it was exported from?"
COMMAND = "python -m benchmarks.onnx_agreement"
PACKAGES = ("jax2onnx", "onnx", "onnxruntime")
KINDS = {
    "dots": ("dot_general", "MatMul", "Gemm", "Einsum"),
    "convolutions": ("conv_general_dilated", "Conv", "ConvTranspose"),
    "exponentials": ("exp", "Exp"),
    "sums": ("reduce_sum", "ReduceSum", "ReduceSumSquare"),
}
FORMS = ("traced", "native")
ERRORS = ("exported", "rewritten")
Pair = tuple[OperationRecord, OperationRecord]


class Function(NamedTuple):
    """A function of arrays.

    Attributes:
        name: for tables.
        call: the function.
        args: arrays.
    """

    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]


def functions() -> Iterator[Function]:
    """The losses of the zoo at its smallest size, their parameters constants."""
    for name, make in MODELS.items():
        case = make(None, "tiny")
        params = case.init(jax.random.key(0))
        leaves, tree = jax.tree.flatten(case.batch(jax.random.key(1), "ordinary"))

        def call(*leaves: Any, case: Any = case, params: Any = params, tree: Any = tree) -> Any:
            return case.loss(params, jax.tree.unflatten(tree, leaves))

        yield Function(f"zoo: {name}", call, tuple(leaves))


def traced(function: Function) -> Callable[..., Any]:
    """The function as its traced program, in which no name of a library is left to replace."""
    program = jax.make_jaxpr(function.call)(*function.args)
    return lambda *args: jax.core.eval_jaxpr(program.jaxpr, program.consts, *args)


def size_of(operation: OperationRecord) -> int:
    """The number of elements of a result; 0 where it is not known."""
    known = all(side.isdigit() for side in operation.shape)
    return math.prod(map(int, operation.shape)) if known else 0


def matched(first: Sequence[OperationRecord], second: Sequence[OperationRecord]) -> list[Pair]:
    """As many pairs as there can be, in order, of equal or unknown sizes."""
    sizes = [size_of(one) for one in first], [size_of(one) for one in second]
    fits = [[a == b or not a or not b for b in sizes[1]] for a in sizes[0]]
    most = np.zeros((len(first) + 1, len(second) + 1), int)
    for i in reversed(range(len(first))):
        for j in reversed(range(len(second))):
            most[i, j] = max(most[i + 1, j], most[i, j + 1], (most[i + 1, j + 1] + 1) * fits[i][j])
    pairs: list[Pair] = []
    i = j = 0
    while i < len(first) and j < len(second):
        if fits[i][j] and most[i, j] == most[i + 1, j + 1] + 1:
            pairs.append((first[i], second[j]))
            i, j = i + 1, j + 1
        elif most[i + 1, j] >= most[i, j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def compared(jax_record: Record, onnx_record: Record) -> dict[str, Any]:
    """By kind: operations of JAX, those with a counterpart, and those painted alike."""
    found: dict[str, Any] = {"other": []}
    for kind, names in KINDS.items():
        first, second = (
            [one for one in record.operations if one.operation in names]
            for record in (jax_record, onnx_record)
        )
        pairs = matched(first, second)
        other = [(a, b) for a, b in pairs if a.paint != b.paint]
        found[kind] = [len(first), len(pairs), len(pairs) - len(other)]
        found["other"] += [
            f"{kind}: {a.paint} by {a.rule} in JAX, {b.paint} by {b.rule} in ONNX" for a, b in other
        ]
    return found


def measure(function: Function, form: str, export: Callable[..., Any]) -> dict[str, Any]:
    """Counts of one function in one form, or why there are none."""
    shapes = [jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in function.args]
    call = traced(function) if form == "traced" else function.call
    try:
        model = export(call, shapes)
    except Exception as error:  # jax2onnx's own, of many kinds
        return {"failed": f"jax2onnx: {str(error).splitlines()[0]}"}
    seen = duotone.explain(function.call, *function.args, dtype="float16")
    done = duotone.onnx.rewrite(model)
    expected = [np.asarray(x) for x in jax.tree.leaves(jax.jit(function.call)(*function.args))]
    try:
        plain = ran(model, function.args)
    except OnnxError as error:
        return compared(seen, done.record) | {"refused": str(error).splitlines()[0]}
    found: dict[str, Any] = compared(seen, done.record) | {"exported": error_of(expected, plain)}
    try:
        return found | {"rewritten": error_of(plain, ran(done.model, function.args))}
    except OnnxError as error:
        return found | {"rewritten": math.inf, "other": [*found["other"], str(error)]}


def ran(model: Any, args: Sequence[Any]) -> list[Any]:
    """Results of a model in ONNX Runtime."""
    session = running.session(model)
    named = zip((asked.name for asked in session.get_inputs()), args, strict=True)
    return running.run(session, None, {name: np.asarray(x) for name, x in named})


def text_of(records: dict[str, dict[str, Any]]) -> str:
    """The table and, below, each disagreement and each function that was not exported."""
    rows, below = [], []
    for name, forms in records.items():
        for form in FORMS:
            one = forms[form]
            if "failed" in one:
                below.append(f"{name}, {form}: {one['failed']}")
                continue
            cells = ["{2} of {1} ({0})".format(*one[kind]) for kind in KINDS]
            errors = [f"{one[key]:.1e}" if key in one else "" for key in ERRORS]
            rows.append([f"{name}, {form}", *cells, *errors])
            if "refused" in one:
                below.append(f"{name}, {form}, as exported: {one['refused']}")
            below += [f"{name}, {form}: {text}" for text in one["other"]]
    said = "painted alike, of those with a counterpart (of all in JAX)"
    return "\n".join([said, table(["function", *KINDS, *ERRORS], rows), "", *below])


def bars_of(records: dict[str, dict[str, Any]]) -> list[Bar]:
    """Shares of all operations of a form, in percent."""
    bars = []
    for form in FORMS:
        ran = [forms[form] for forms in records.values() if "failed" not in forms[form]]
        total, pairs, alike = (sum(one[k][i] for one in ran for k in KINDS) for i in range(3))
        bars.append(Bar(f"{form}: painted otherwise", 100 * (1 - alike / pairs), 1.0, "%"))
        if form == "traced":
            bars.append(Bar("traced: without counterpart", 100 * (1 - pairs / total), 5.0, "%"))
        right = [one for one in ran if one.get("exported", math.inf) <= ERROR]
        worse = sum(not one["rewritten"] <= ERROR for one in right)
        bars.append(Bar(f"{form}: rewritten with an error above {ERROR}", worse, 0, "functions"))
    return bars


def main() -> None:
    """Exports and compares all functions, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="functions with this in their name; not written")
    only = parser.parse_args().only
    try:
        export = importlib.import_module("jax2onnx").to_onnx
    except ImportError:
        print("left out: jax2onnx is not installed (the head of this file says how)")
        return
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    records: dict[str, dict[str, Any]] = {}
    chosen = [one for one in functions() if only in one.name]
    for function in track(chosen, "functions"):
        records[function.name] = {form: measure(function, form, export) for form in FORMS}
    bars, text = bars_of(records), text_of(records)
    if only:
        print(text)
        return
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    write(
        Result("onnx_agreement", QUESTION, COMMAND, bars, text, {"functions": records, **versions})
    )


if __name__ == "__main__":
    main()
