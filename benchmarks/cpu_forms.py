# python -m benchmarks.cpu_forms
"""Which form of a dot is fast on this CPU, by layout and size?

Each dot starts from float32 operands, as in a painted program, so that casts count. Forms: the dot
in float32; its operands cast to bfloat16 with a float32 or a bfloat16 result; and ``rows``, the
form that duotone binds (``duotone/jaxpr/rules/dots.py``). ``options`` is a bfloat16 result in a
program that is compiled with ``duotone.compiler_options()``. For convolutions, both are what
duotone makes of them, which may be another float32 form. They run in turn, round after round; a
figure is the median over rounds of float32's time over the form's: above 1 is faster than float32.
"fails" is a program that compiles and then raises when it runs.

The table in ``duotone/devices/table.py`` (which form, and below which size a dot is left alone)
rests on this. Run it once for each version of JAX: each has its own table in the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import duotone
from benchmarks._common import Result, median, table, take_no_options, with_part, write
from duotone.devices.half_choice import FAST_CPU_FLAGS, cpu_flags
from duotone.devices.table import TABLE
from duotone.jaxpr.rules.dots import Dims, rows_dot

QUESTION = "Which form of a dot is fast on this CPU, by layout and size?"
OPTIONS = "options"
FORMS = ("bf16 to f32", "bf16 to bf16", "rows", OPTIONS)
ROUNDS = 21
_SHORTEST = 4e-3


class Dot(NamedTuple):
    """A dot to measure: what it is in a training step, and its shapes."""

    name: str
    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    dims: Dims

    @property
    def flops(self) -> float:
        """Two for a multiply-add."""
        shape = jax.eval_shape(self.function("float32"), *self.operands()).shape
        inner = _product(self.lhs[axis] for axis in self.dims[0][0])
        return 2.0 * _product(shape) * inner

    @property
    def intensity(self) -> float:
        """Floating point operations for each element of the operands."""
        return self.flops / (_product(self.lhs) + _product(self.rhs))

    def operands(self) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """Both are float32."""
        return jax.ShapeDtypeStruct(self.lhs, jnp.float32), jax.ShapeDtypeStruct(
            self.rhs, jnp.float32
        )

    def function(self, form: str) -> Callable[[Any, Any], Any]:
        """The dot in a form, from float32 operands to a float32 result."""
        dims, half = self.dims, jnp.bfloat16

        def dot(lhs: Any, rhs: Any) -> Any:
            if form == "float32":
                return lax.dot_general(lhs, rhs, dims)
            lhs, rhs = lhs.astype(half), rhs.astype(half)
            if form == "rows":
                return rows_dot(lhs, rhs, dims, "float32", ())
            result = jnp.float32 if form == "bf16 to f32" else half
            product = lax.dot_general(lhs, rhs, dims, preferred_element_type=result)
            return product.astype(jnp.float32)

        return dot


def _product(sizes: Any) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


_MATMUL: Dims = (((1,), (0,)), ((), ()))
_BY_ROWS: Dims = (((1,), (1,)), ((), ()))
_WEIGHT_GRADIENT: Dims = (((0,), (0,)), ((), ()))


def step_dots(tokens: int, width: int) -> list[Dot]:
    """The dots of a dense layer with four times its width, forward and backward."""
    wide = 4 * width
    return [
        Dot("forward", (tokens, width), (width, wide), _MATMUL),
        Dot("input gradient", (tokens, wide), (width, wide), _BY_ROWS),
        Dot("weight gradient", (tokens, width), (tokens, wide), _WEIGHT_GRADIENT),
        Dot("weight gradient, as JAX writes it", (tokens, wide), (tokens, width), _WEIGHT_GRADIENT),
        Dot(
            "weight gradient of (batch, length, width)",
            (4, tokens // 4, wide),
            (4, tokens // 4, width),
            (((0, 1), (0, 1)), ((), ())),
        ),
    ]


def attention_dots(batch: int, length: int, heads: int, width: int) -> list[Dot]:
    """The dots of attention as Flax and its derivative write them."""
    tokens, scores = (batch, length, heads, width), (batch, heads, length, length)
    size = f"{length} x {heads} x {width}"
    return [
        Dot(f"attention scores {size}", tokens, tokens, (((3,), (3,)), ((0, 2), (0, 2)))),
        Dot(f"attention values {size}", tokens, scores, (((1,), (3,)), ((0, 2), (0, 1)))),
        Dot(f"attention values' gradient {size}", scores, tokens, (((2,), (1,)), ((0, 1), (0, 2)))),
    ]


def sized_dots() -> list[Dot]:
    """From small to large, and with few rows: where does half begin to gain?"""
    squares = [Dot(f"square {n}", (n, n), (n, n), _MATMUL) for n in (32, 64, 96, 128, 256, 512)]
    rows = [
        Dot(f"{m} rows by 1024 x 1024", (m, 1024), (1024, 1024), _MATMUL)
        for m in (1, 4, 16, 32, 64, 128)
    ]
    inner = [Dot(f"1024 x {k} x 1024", (1024, k), (k, 1024), _MATMUL) for k in (1, 8, 64)]
    return squares + rows + inner


def cases() -> list[Dot]:
    """All dots of the table."""
    return [
        *step_dots(1024, 512),
        *step_dots(512, 768),
        *attention_dots(2, 128, 8, 64),
        *attention_dots(2, 256, 8, 64),
        *attention_dots(2, 197, 12, 64),
        *sized_dots(),
    ]


class Convolution(NamedTuple):
    """A convolution to measure, or one of its gradients."""

    name: str
    images: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int = 1
    groups: int = 1
    gradient: int | None = None

    def function(self) -> Callable[[Any, Any], Any]:
        """The convolution of images and kernel, or its gradient with respect to one of them."""

        def conv(images: Any, kernel: Any) -> Any:
            return lax.conv_general_dilated(
                images,
                kernel,
                (self.stride, self.stride),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=self.groups,
            )

        if self.gradient is None:
            return conv
        one, shapes = self.gradient, (self.images, self.kernel)
        wrong = jax.random.normal(jax.random.key(2), jax.eval_shape(conv, *self.operands()).shape)

        def gradient(images: Any, kernel: Any) -> Any:
            pair = [images, kernel]

            def of_one(operand: Any) -> Any:
                return conv(*[*pair[:one], operand, *pair[one + 1 :]])

            zeros = jax.ShapeDtypeStruct(shapes[one], images.dtype)
            (found,) = jax.linear_transpose(of_one, zeros)(wrong.astype(images.dtype))
            return found

        return gradient

    def operands(self) -> tuple[Any, Any]:
        """Both are float32."""
        keys = jax.random.split(jax.random.key(0))
        shapes = self.images, self.kernel
        first, second = (jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True))
        return first, second


def convolutions() -> list[Convolution]:
    """Convolutions of every kind of which the table of devices knows something."""
    conv, of_input, of_filter = Convolution, 0, 1
    middle, three, both = (8, 28, 28, 64), (3, 3, 64, 64), (of_input, of_filter)
    sixteen = (16, 4, 4, 512), (3, 3, 512, 512)
    groups = [
        (conv("convolution 3 x 3, 64 to 64, 28 x 28", middle, three), both),
        (conv("3 x 3, 128 to 128, 32 x 32", (16, 32, 32, 128), (3, 3, 128, 128)), ()),
        (conv("3 x 3, stride 2", middle, three, 2), both),
        (conv("4 x 4, 64 to 128, 64 x 64, stride 2", (8, 64, 64, 64), (4, 4, 64, 128), 2), both),
        (conv("1 x 1, 256 to 512, stride 2", (8, 28, 28, 256), (1, 1, 256, 512), 2), both),
        (conv("3 x 3 on 2 x 2, 512 to 512", (16, 2, 2, 512), (3, 3, 512, 512)), (of_input,)),
        (conv("4 x 4, stride 2: input gradient", *sixteen, 2, gradient=of_input), ()),
        (conv("3 x 3, 32 groups of one feature", (8, 28, 28, 32), (3, 3, 1, 32), 1, 32), both),
        (conv("7 x 7, 96 groups of one", (4, 14, 14, 96), (7, 7, 1, 96), 1, 96), (of_filter,)),
        (conv("3 x 3, 512 groups of one", (2, 14, 14, 512), (3, 3, 1, 512), 1, 512), ()),
        (conv("3 x 3, 4 groups of 16", middle, (3, 3, 16, 64), 1, 4), ()),
        (conv("3 x 3, 8 to 8, 8 x 8", (1, 8, 8, 8), (3, 3, 8, 8)), ()),
        (conv("convolution 1 x 1, 64 to 256, 28 x 28", middle, (1, 1, 64, 256)), ()),
        (conv("patches of 4 x 4, 64 to 256, 28 x 28", middle, (4, 4, 64, 256), 4), ()),
    ]
    names = "its input gradient", "its filter gradient"
    return [
        one
        for plain, gradients in groups
        for one in (plain, *(plain._replace(name=names[g], gradient=g) for g in gradients))
    ]


def ratios(
    ways: dict[str, Callable[[Any, Any], Any]], args: tuple[Any, Any], rounds: int = ROUNDS
) -> dict[str, float | None]:
    """float32's seconds, then for each other way its median speed-up; ``None`` where it fails."""
    compiled: dict[str, Any] = {}
    for name, function in ways.items():
        options = duotone.compiler_options() if name == OPTIONS else None
        program = jax.jit(function, compiler_options=options).lower(*args).compile()
        try:
            jax.block_until_ready(program(*args))
        except jax.errors.JaxRuntimeError:
            continue
        compiled[name] = program
    repeats = max(1, round(_SHORTEST / max(_seconds(compiled["float32"], args, 1), 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for _ in range(rounds):
        for name, program in compiled.items():
            times[name].append(_seconds(program, args, repeats))
    plain = times["float32"]
    found: dict[str, float | None] = {"float32": median(plain)}
    for name in ways:
        if name != "float32":
            taken = times.get(name)
            pairs = zip(plain, taken, strict=True) if taken else ()
            found[name] = median([a / b for a, b in pairs]) if taken else None
    return found


def _seconds(program: Any, args: tuple[Any, Any], repeats: int) -> float:
    start = time.perf_counter()
    results = [program(*args) for _ in range(repeats)]
    jax.block_until_ready(results[-1])
    return (time.perf_counter() - start) / repeats


def measure(dots: Sequence[Dot], rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """One row for each dot."""
    rows = []
    for dot in dots:
        keys = jax.random.split(jax.random.key(0))
        args = tuple(
            jax.random.normal(key, x.shape) for key, x in zip(keys, dot.operands(), strict=True)
        )
        ways = {form: dot.function(form) for form in ("float32", *FORMS)}
        found = ratios(ways, (args[0], args[1]), rounds)
        row = {"dot": dot.name, "lhs": dot.lhs, "rhs": dot.rhs, "flops": dot.flops}
        rows.append({**row, "intensity": dot.intensity, "painted": _painted(dot), **found})
        print(_line(rows[-1]), flush=True)
    return rows


def _painted(dot: Dot) -> bool:
    """Returns True if the table paints the dot."""
    profitability = TABLE["cpu-bfloat16"].profitability
    return dot.flops >= profitability.min_flops and dot.intensity >= profitability.min_intensity


def measure_convolutions(
    cases: Sequence[Convolution], rounds: int = ROUNDS
) -> list[dict[str, Any]]:
    """One row for each convolution: bfloat16 against float32."""
    rows = []
    for case in cases:
        conv, (images, kernel) = case.function(), case.operands()

        def in_half(x: Any, w: Any, conv: Callable[[Any, Any], Any] = conv) -> Any:
            return conv(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)).astype(jnp.float32)

        ways = {"float32": conv, "bf16 to bf16": in_half}
        policies = {"rows": duotone.Policy(), OPTIONS: duotone.Policy(compiler_options=True)}
        for form, policy in policies.items():
            painted = duotone.autocast(conv, policy=policy)
            program = str(jax.make_jaxpr(painted)(images, kernel))
            if "bf16" in program or "optimization_barrier" in program:
                ways[form] = painted
        found = ratios(ways, (images, kernel), rounds)
        rows.append({"dot": case.name, "painted": "rows" in ways or OPTIONS in ways, **found})
        print(_line(rows[-1]), flush=True)
    return rows


def _line(row: dict[str, Any]) -> list[Any]:
    speeds = [
        "-" if form not in row else "fails" if row[form] is None else f"{row[form]:.2f}"
        for form in FORMS
    ]
    size = f"{row['flops'] / 1e6:.1f}" if "flops" in row else "-"
    dense = f"{row['intensity']:.0f}" if "intensity" in row else "-"
    milliseconds = f"{row['float32'] * 1e3:.3f}"
    return [row["dot"], size, dense, milliseconds, *speeds, "yes" if row["painted"] else "no"]


def result(rows: Sequence[dict[str, Any]]) -> Result:
    """The tables of all versions of JAX, this one's new."""
    flags = sorted(FAST_CPU_FLAGS & cpu_flags())
    found = with_part("cpu_forms", {"jax": jax.__version__, "flags": flags, "rows": list(rows)})
    header = ["float32 ms", *FORMS, "painted"]
    tables = [
        table(
            [f"JAX {part['jax']}", "MFLOP", "FLOP/element", *header],
            [_line(row) for row in part["rows"]],
        )
        + f"\nCPU flags: {', '.join(part['flags']) or 'none of those with bfloat16'}."
        for part in found.values()
    ]
    command = "python -m benchmarks.cpu_forms"
    return Result("cpu_forms", QUESTION, command, [], "\n\n".join(tables), found)


def main() -> None:
    """Measures, prints and writes."""
    take_no_options(QUESTION)
    write(result([*measure(cases()), *measure_convolutions(convolutions())]))


if __name__ == "__main__":
    main()
