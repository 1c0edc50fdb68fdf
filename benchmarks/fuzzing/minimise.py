"""Cuts a finding down to the lines that it needs, and writes it as a program of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from benchmarks.fuzzing.judge import Case, Verdict, judge
from benchmarks.fuzzing.programs import Input, Line, Program


def minimised(case: Case) -> tuple[Case, Verdict]:
    """The smallest case found that is a finding of the same kind, and its verdict.

    A case that is no finding is returned as it is.
    """
    verdict = judge(case)
    found = verdict.is_finding
    while found:
        found = False
        for smaller in _smaller(case.program):
            attempt = dataclasses.replace(case, program=smaller)
            judged = judge(attempt)
            if judged.kind == verdict.kind:
                case, verdict, found = attempt, judged, True
                break
    return case, verdict


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with one output, one line or one peculiar input less, boldest first."""
    if len(program.outputs) > 1:
        for output in program.outputs:
            rest = tuple(name for name in program.outputs if name != output)
            yield dataclasses.replace(program, outputs=rest).pruned()
    for index, line in enumerate(program.lines):
        if len(program.lines) > 1:
            if line.target in program.outputs:
                yield from _without_output(program, line)
            else:
                yield _as_input(program, index)
        shapes = {earlier.target: earlier.shape for earlier in program.lines}
        shapes |= {name: given.shape for name, given in program.inputs.items()}
        for name in dict.fromkeys(line.reads):
            if shapes[name] == line.shape and line.target not in program.outputs:
                yield _renamed(program, index, name)
    for name, given in program.inputs.items():
        if given.kind not in ("normal", "weight", "int", "one"):
            inputs = {**program.inputs, name: Input(given.shape, "normal")}
            yield dataclasses.replace(program, inputs=inputs)


def _without_output(program: Program, line: Line) -> Iterator[Program]:
    """Yields programs that return an operand of a returned line in its place."""
    computed = {earlier.target for earlier in program.lines}
    for name in dict.fromkeys(line.reads):
        if name in computed:
            outputs = [name if output == line.target else output for output in program.outputs]
            yield dataclasses.replace(program, outputs=tuple(dict.fromkeys(outputs))).pruned()


def _as_input(program: Program, index: int) -> Program:
    """A line's value becomes an argument."""
    line = program.lines[index]
    name = f"x{line.target.removeprefix('v')}00"
    shortened = _renamed(program, index, name)
    inputs = {**program.inputs, name: Input(line.shape, "normal")}
    return Program(inputs, shortened.lines, program.outputs).pruned()


def _renamed(program: Program, index: int, name: str) -> Program:
    """Without a line; what read its value reads ``name``."""
    gone = program.lines[index].target
    lines = [
        dataclasses.replace(line, expression=line.substituted(gone, name))
        for line in program.lines
        if line.target != gone
    ]
    return Program(program.inputs, tuple(lines), program.outputs).pruned()


_HEAD = """\
import jax, jax.numpy as jnp, jax.scipy as jsp, numpy as np
from jax import lax
from typing import Any
import duotone
"""


def reproducer(case: Case) -> str:
    """A self-contained program that prints the errors of float32 and of duotone against float64."""
    lines = [_HEAD, case.program.blocks(), "", case.program.source(), ""]
    lines.append("random = np.random.default_rng(0)")
    drawn = {
        "int": "random.integers(0, 1000, {0}).astype('i')",
        "one": "(1 + 0.1 * random.normal(size={0})).astype('f')",
        "weight": "(random.normal(size={0}) / {1}).astype('f')",
        "heavy": "np.clip(random.standard_t(3, {0}), -30, 30).astype('f')",
        "positive": "random.uniform(0, 1, {0}).astype('f')",
        "offset": "(random.normal(size={0}) + 4).astype('f')",
        "large": "(random.normal(size={0}) * 8).astype('f')",
        "small": "(random.normal(size={0}) * 0.05).astype('f')",
    }
    for name, given in case.program.inputs.items():
        fan_in = (given.shape[-2] if len(given.shape) > 1 else 4) ** 0.5
        text = drawn.get(given.kind, "random.normal(size={0}).astype('f')")
        lines.append(f"{name} = {text.format(given.shape, round(fan_in, 3))}")
    lines.append(f"args = [{', '.join(case.program.inputs)}]")
    lines.append((_AS_CHOSEN if case.way == "default" else _FORCED).format(half=case.way))
    lines.append(_FORMS[case.form].format(positions=case.program.floats()))
    lines.append(_TAIL)
    return "\n".join(lines)


_FORCED = """\
policy = duotone.Policy(ignore_performance=True)
paint = lambda f: duotone.autocast(f, dtype='{half}', policy=policy)"""
_AS_CHOSEN = """\
from duotone.devices.assumed import AssumedDevice, assuming
def paint(f):
    def on_an_h200(*args):
        with assuming(AssumedDevice('h200', 'cuda', '9.0')):
            return duotone.autocast(f)(*args)
    return on_an_h200"""
_LOSS = """\
factors = [np.random.default_rng(7).normal(size=o.shape).astype('f') for o in program(*args)]
loss = lambda *args: sum((o * c).sum() for o, c in zip(program(*args), factors))
plain = jax.value_and_grad(loss, {positions})"""
_FORMS = {
    "forward": "plain, painted = program, paint(program)",
    "autocast(value_and_grad(f))": f"{_LOSS}\npainted = paint(plain)",
    "value_and_grad(autocast(f))": (
        f"{_LOSS}\npainted = jax.value_and_grad(paint(loss), {{positions}})"
    ),
}
_TAIL = """\
arrays = lambda tree: [np.asarray(x) for x in jax.tree.leaves(tree)]
with jax.enable_x64(True):
    truth = arrays(plain(*[np.asarray(a, 'd') if a.dtype == 'f' else a for a in args]))
for t, p, h in zip(truth, arrays(plain(*args)), arrays(painted(*args))):
    size = np.abs(t).max() + 1e-30
    print(f"float32 {np.abs(p - t).max() / size:.2g}  painted {np.abs(h - t).max() / size:.2g}")"""
