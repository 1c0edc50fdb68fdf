"""Random programs as lines of Python, so that they can be shown, cut down and run elsewhere.

A program is named by its seed: :func:`random_program` makes the same one each time. The shapes of
its values are found by tracing each line; a line that does not fit the value it was drawn for is
drawn again.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.fuzzing import blocks, solvers
from benchmarks.fuzzing.steps import STEPS, Step

_LARGEST = 20_000
"""Elements of a value."""
_ROWS, _COLUMNS = (5, 8, 8, 9, 10, 12, 14, 16), (6, 8, 10, 12, 16, 18, 24, 32)
"""Sides of a program's matrices. Most fill a matrix instruction (:mod:`duotone.graph.products`),
else their dots would be float32 and nothing would be judged; one in eight does not."""
_LONG_ROWS, _LONG_COLUMNS = 64, 128
_LONG = 0.07
"""Share of the axes that are long."""
_TRIES = 30
_BLOCKS = {**vars(blocks), **vars(solvers)}
_NAMESPACE: dict[str, Any] = {"jax": jax, "jnp": jnp, "lax": jax.lax, **_BLOCKS}
_NAME = re.compile(r"\b[vxwic]\d+\b")


@dataclasses.dataclass(frozen=True)
class Input:
    """An argument.

    Attributes:
        shape: its shape.
        kind: how it is drawn, see :func:`draw`.
    """

    shape: tuple[int, ...]
    kind: str


@dataclasses.dataclass(frozen=True)
class Line:
    """One value: ``target = expression``.

    Attributes:
        target: its name.
        step: name of the operation.
        expression: Python.
        shape: of the value.
    """

    target: str
    step: str
    expression: str
    shape: tuple[int, ...]

    @property
    def reads(self) -> list[str]:
        """The names in the expression."""
        return _NAME.findall(self.expression)

    def substituted(self, name: str, other: str) -> str:
        """The expression with one name for another."""
        return re.sub(rf"\b{name}\b", other, self.expression)


@dataclasses.dataclass(frozen=True)
class Program:
    """A function from its inputs to a tuple of its outputs.

    Attributes:
        inputs: by name.
        lines: in order.
        outputs: names of values.
    """

    inputs: Mapping[str, Input]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]

    def pruned(self) -> Program:
        """Without lines and inputs that no output needs."""
        needed, kept = set(self.outputs), []
        for line in reversed(self.lines):
            if line.target in needed:
                needed.update(line.reads)
                kept.append(line)
        inputs = {name: given for name, given in self.inputs.items() if name in needed}
        return Program(inputs, tuple(reversed(kept)), self.outputs)

    def steps(self) -> set[str]:
        """The operations in it."""
        return {line.step for line in self.lines}

    def source(self) -> str:
        """The function as Python."""
        body = [f"    {line.target} = {line.expression}" for line in self.lines]
        head = f"def program({', '.join(self.inputs)}):"
        return "\n".join([head, *body, f"    return ({', '.join(self.outputs)},)"])

    def blocks(self) -> str:
        """The source of the blocks that it calls, and of those that they call."""
        needed: dict[str, str] = {}
        waiting = [line.expression for line in self.lines]
        while waiting:
            text = waiting.pop()
            for name, block in _BLOCKS.items():
                called = inspect.isfunction(block) and re.search(rf"\b{name}\(", text)
                if called and name not in needed:
                    needed[name] = inspect.getsource(block)
                    waiting.append(needed[name])
        return "\n\n".join(reversed(needed.values()))

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """The function."""
        space = dict(_NAMESPACE)
        exec(compile(self.source(), "<random program>", "exec"), space)
        return space["program"]

    def floats(self) -> tuple[int, ...]:
        """Positions of the arguments that have a gradient."""
        kinds = [given.kind for given in self.inputs.values()]
        return tuple(i for i, kind in enumerate(kinds) if kind != "int")


def draw(program: Program, seed: Sequence[int]) -> list[np.ndarray]:
    """Arguments of a program, drawn with a seed of NumPy's generator."""
    random = np.random.default_rng(list(seed))
    return [_drawn(random, given.shape, given.kind) for given in program.inputs.values()]


def _drawn(random: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    normal = random.normal(size=shape)
    match kind:
        case "int":
            return random.integers(0, 1000, shape).astype(np.int32)
        case "weight":
            normal /= np.sqrt(shape[-2] if len(shape) > 1 else 4.0)
        case "one":
            normal = 1 + 0.1 * normal
        case "heavy":
            normal = np.clip(random.standard_t(3, shape), -30, 30)
        case "positive":
            normal = random.uniform(0.0, 1.0, shape)
        case "offset":
            normal += 4.0
        case "large":
            normal *= 8.0
        case "small":
            normal *= 0.05
        case _:
            pass
    return np.asarray(normal, np.float32)


_KINDS = ("normal",) * 6 + ("heavy", "positive", "offset", "large", "small")


def random_program(seed: int) -> Program:
    """The program of a seed."""
    return _Builder(np.random.default_rng([seed, 1])).build()


class _Builder:
    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.inputs: dict[str, Input] = {}
        self.lines: list[Line] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.likely = np.array([step.likely for step in STEPS])
        self.likely /= self.likely.sum()

    def build(self) -> Program:
        rows, columns = self._size(_ROWS, _LONG_ROWS), self._size(_COLUMNS, _LONG_COLUMNS)
        for kind in self.random.choice(_KINDS, 2):
            self._input((rows, columns), str(kind))
        if self.random.random() < 0.3:
            self._input((2, rows, columns), "normal")
        for _ in range(int(self.random.integers(2, 11))):
            self._extend()
        values = [line.target for line in self.lines]
        read = {name for line in self.lines for name in line.reads}
        loose = [name for name in values[:-1] if name not in read]
        others = self.random.permutation(loose)[: self.random.integers(0, 2)]
        outputs = (*values[-1:], *[str(name) for name in others])
        return Program(self.inputs, tuple(self.lines), outputs).pruned()

    def _size(self, usual: tuple[int, ...], long: int) -> int:
        """Returns the size of an axis, now and then one over which sums are long."""
        return long if self.random.random() < _LONG else int(self.random.choice(usual))

    def _input(self, shape: tuple[int, ...], kind: str) -> str:
        letter = {"int": "i", "weight": "w", "one": "w"}.get(kind, "x")
        name = f"{letter}{len(self.inputs)}"
        self.inputs[name] = Input(shape, kind)
        if letter == "x":
            self.shapes[name] = shape
        return name

    def _extend(self) -> None:
        """Adds a line; none if nothing fits."""
        for _ in range(_TRIES):
            step = STEPS[self.random.choice(len(STEPS), p=self.likely)]
            inputs, expression = dict(self.inputs), None
            try:
                expression = self._filled(step)
                shape = None if expression is None else self._shape(expression)
            except (TypeError, ValueError, IndexError, ZeroDivisionError, AssertionError):
                shape = None
            if shape is not None and 0 < np.prod(shape, dtype=int) <= _LARGEST:
                name = f"v{len(self.lines)}"
                self.lines.append(Line(name, step.name, expression or "", shape))
                self.shapes[name] = shape
                return
            self.inputs = inputs
            self.shapes = {k: v for k, v in self.shapes.items() if k in inputs or k[0] == "v"}

    def _filled(self, step: Step) -> str | None:
        """The expression of a step with operands chosen; ``None`` if there are none that fit."""
        template = step.template
        matrix = "{m}" in template
        first = self._pick(lambda shape: len(shape) == 2 and min(shape) > 1 if matrix else True)
        if first is None:
            return None
        shape = self.shapes[first]
        fill: dict[str, Any] = {"x": first, "m": first, "k": self._number()}
        if "{axis}" in template:
            if not shape:
                return None
            fill["axis"] = int(self.random.integers(0, len(shape)))
        if "{y}" in template or "{n}" in template:
            fill["y"] = fill["n"] = self._same(first)
        if "{s}" in template:
            fill["s"] = self._pick(lambda other: _broadcasts(other, shape))
        for key, weight in step.weights.items():
            fill[key] = self._weight(weight, shape)
        return template.format(**fill)

    def _number(self) -> float:
        return float(self.random.choice([0.5, 2.0, 0.1, 3.0, -1.5, 1e-3, 20.0]))

    def _pick(self, fits: Callable[[tuple[int, ...]], bool]) -> str | None:
        """A value that fits, rather one of the last."""
        names = [name for name, shape in self.shapes.items() if fits(shape)]
        if not names:
            return None
        back = min(int(self.random.geometric(0.45)), len(names))
        return names[-back]

    def _same(self, first: str) -> str:
        shape = self.shapes[first]
        others = [n for n, other in self.shapes.items() if other == shape and n != first]
        if others and self.random.random() < 0.8:
            return str(self.random.choice(others))
        return self._input(shape, "normal")

    def _weight(self, text: str, shape: tuple[int, ...]) -> str:
        words = text.split()
        kind = words.pop(0) if words[0] in ("int", "one") else "weight"
        sizes = {"T": shape[0], "F": shape[-1]}
        dims = []
        for word in words:
            digits, letter = re.fullmatch(r"(\d*)([TF]?)", word).groups()  # type: ignore[union-attr]
            dims.append(int(digits or 1) * sizes.get(letter, 1))
        return self._input(tuple(dims), kind)

    def _shape(self, expression: str) -> tuple[int, ...] | None:
        names = sorted(set(_NAME.findall(expression)))
        function = eval(f"lambda {', '.join(names)}: {expression}", dict(_NAMESPACE))
        found = jax.eval_shape(function, *[self._described(name) for name in names])
        return found.shape if getattr(found, "dtype", None) == np.float32 else None

    def _described(self, name: str) -> jax.ShapeDtypeStruct:
        given = self.inputs.get(name)
        if given is None:
            return jax.ShapeDtypeStruct(self.shapes[name], np.float32)
        return jax.ShapeDtypeStruct(given.shape, np.int32 if given.kind == "int" else np.float32)


def _broadcasts(other: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(other, shape) == shape
    except ValueError:
        return False
