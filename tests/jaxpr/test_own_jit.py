"""``own_jit``: who compiles has the compiler options where they gain, and only there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.core import Tracer

import duotone
from duotone.devices import options
from duotone.jaxpr import pipeline
from duotone.jaxpr.running.own_jit import half_work, own_jit
from duotone.policy.policy import Policy

ORDER = ("NHWC", "HWIO", "NHWC")
IMAGES, KERNEL = (4, 16, 16, 32), (3, 3, 32, 32)
SMALL = (1, 4, 4, 32)
ON, OFF = {options.ONEDNN: True}, None


def convolve(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=ORDER)


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The compiler options of each ``jit`` function that is called with arrays or lowered."""
    seen: list[Any] = []
    make = jax.jit

    def jit(function: Callable[..., Any], **settings: Any) -> Any:
        made = make(function, **settings)

        class Jitted:
            trace = staticmethod(made.trace)
            __wrapped__ = function

            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                if not any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs))):
                    seen.append(settings.get("compiler_options") or OFF)
                return made(*args, **kwargs)

            def lower(self, *args: Any, **kwargs: Any) -> Any:
                seen.append(settings.get("compiler_options") or OFF)
                return made.lower(*args, **kwargs)

        return Jitted()

    monkeypatch.setattr(jax, "jit", jit)
    return seen


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that are painted."""
    seen: list[Any] = []
    paint = pipeline.paint_jaxpr

    def counted(jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(paint(jaxpr, *args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(pipeline, "paint_jaxpr", counted)
    return seen


def test_without_options_it_is_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "cpu_flags", frozenset[str])
    assert type(own_jit(jnp.sin)) is type(jax.jit(jnp.sin))


def test_the_options_are_set_where_they_gain(on_fast_cpu: None, compiled: list[Any]) -> None:
    images, kernel = arrays(IMAGES, KERNEL)
    step = duotone.autocast(convolve)
    result = step(images, kernel)
    step(images, kernel)
    assert compiled == [ON, ON]
    np.testing.assert_allclose(result, convolve(images, kernel), atol=0.3)


def test_each_signature_is_decided_for_itself(on_fast_cpu: None, compiled: list[Any]) -> None:
    step = duotone.autocast(convolve)
    for shape in (SMALL, IMAGES, SMALL, IMAGES):
        step(*arrays(shape, KERNEL))
    assert compiled == [OFF, ON, OFF, ON]


def test_a_program_without_fast_convolutions_has_none(
    on_fast_cpu: None, compiled: list[Any]
) -> None:
    duotone.autocast(jnp.dot)(*arrays((512, 512), (512, 512)))
    duotone.autocast(convolve)(*arrays(SMALL, KERNEL))
    assert compiled == [OFF, OFF]


def test_dots_are_not_rounded_for_a_small_gain(on_fast_cpu: None, compiled: list[Any]) -> None:
    """A dot of ten times the convolution's work: 1.1 times as much would be half."""

    def both(x: Any, w: Any, v: Any) -> Any:
        return convolve(x, w), v @ v

    duotone.autocast(both)(*arrays(IMAGES, KERNEL, (460, 460)))
    assert compiled == [OFF]


def test_a_named_half_type_is_painted_as_everywhere_and_has_none(
    on_fast_cpu: None, compiled: list[Any]
) -> None:
    duotone.autocast(convolve, dtype="bfloat16")(*arrays(IMAGES, KERNEL))
    assert compiled == [OFF]


@pytest.mark.parametrize(("asked", "expected"), [(None, ON), (True, ON), (False, OFF)])
def test_the_policy_switches_them_off(
    asked: bool | None, expected: Any, on_fast_cpu: None, compiled: list[Any]
) -> None:
    step = duotone.autocast(convolve, policy=Policy(compiler_options=asked))
    step(*arrays(IMAGES, KERNEL))
    assert compiled == [expected]


def test_fixed_weights_have_them_too(on_fast_cpu: None, compiled: list[Any]) -> None:
    images, kernel = arrays(IMAGES, KERNEL)

    def predict(weights: Any, images: Any) -> Any:
        return convolve(images, weights)

    result = duotone.autocast(predict, weights=kernel)(images)
    assert compiled == [ON]
    np.testing.assert_allclose(result, convolve(images, kernel), atol=0.3)


def test_weights_are_cast_as_a_call_with_them_reads_them(
    on_fast_cpu: None, compiled: list[Any]
) -> None:
    x, w = arrays(IMAGES, KERNEL)
    swapped = lambda w, x: convolve(x, w)  # noqa: E731
    record = duotone.cast_params(swapped, w, x)
    assert record.params.dtype == jnp.bfloat16
    found = duotone.autocast(swapped, weights=record)(x)
    np.testing.assert_array_equal(found, duotone.autocast(swapped)(w, x))
    assert compiled == [ON, ON]


def test_compile_for_has_them_as_a_call_has(on_fast_cpu: None) -> None:
    images, kernel = arrays(IMAGES, KERNEL)
    compile_for = functools.partial(duotone.compile_for, target="cpu")
    assert "bf16" in compile_for(duotone.autocast(convolve), images, kernel).text
    weights = duotone.autocast(lambda w, x: convolve(x, w), weights=kernel)
    assert "bf16" in compile_for(weights, images).text


def test_compile_for_takes_the_options_of_a_jit_of_the_user(on_fast_cpu: None) -> None:
    images, kernel = arrays(IMAGES, KERNEL)
    step = duotone.autocast(convolve, policy=Policy(compiler_options=True))
    fast = jax.jit(step, compiler_options=duotone.compiler_options())
    assert "bf16" in duotone.compile_for(fast, images, kernel, target="cpu").text
    plain = jax.jit(duotone.autocast(convolve))
    assert "bf16" not in duotone.compile_for(plain, images, kernel, target="cpu").text


def layers(x: Any, w: Any) -> Any:
    """Three rewritten programs in one that is not."""
    for _ in range(3):
        x = jnp.tanh(LAYER(x, w))
    return x


LAYER = duotone.autocast(convolve)
OWNERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "own_jit": own_jit,
    "reroll": duotone.reroll,
    "bucketed": functools.partial(duotone.bucketed, axis=0, sizes=[4]),
    "cluster_jit, whole": duotone.cluster_jit,
    "cluster_jit": functools.partial(duotone.cluster_jit, min_cluster_size=1),
    "autocast around it": duotone.autocast,
}


@pytest.mark.parametrize("name", OWNERS)
def test_every_owner_of_a_jit_sets_them(name: str, on_fast_cpu: None, compiled: list[Any]) -> None:
    images, kernel = arrays(IMAGES, KERNEL)
    kernel = 0.05 * kernel
    result = OWNERS[name](layers)(images, kernel)
    assert compiled
    assert all(map(bool, compiled))
    expected = images
    for _ in range(3):
        expected = jnp.tanh(convolve(expected, kernel))
    np.testing.assert_allclose(result, expected, atol=0.3)


@pytest.mark.parametrize("name", OWNERS)
def test_an_owner_does_not_set_them_for_a_float32_program(
    name: str, on_fast_cpu: None, compiled: list[Any]
) -> None:

    def step(x: Any, w: Any) -> Any:
        return duotone.autocast(convolve, enabled=False)(x, w)

    OWNERS[name](step)(*arrays(IMAGES, KERNEL))
    assert not any(compiled)


def test_a_derivative_inside_of_an_owner(on_fast_cpu: None, compiled: list[Any]) -> None:
    images, kernel = arrays(IMAGES, KERNEL)

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(convolve(x, w) ** 2)

    def step(w: Any, x: Any) -> Any:
        return w - jax.grad(duotone.autocast(loss))(w, x)

    result = own_jit(step, donate_argnums=0)(kernel + 0, images)
    assert compiled == [ON]
    np.testing.assert_allclose(result, kernel - jax.grad(loss)(kernel, images), atol=0.02)


@pytest.mark.parametrize("around", [jax.jit, jax.vmap, jax.linearize], ids=lambda f: f.__name__)
def test_inside_a_transformation_there_are_none(
    around: Callable[..., Any], on_fast_cpu: None
) -> None:
    """JAX refuses options of a ``jit`` that is not the outermost one."""
    images, kernel = arrays(IMAGES, KERNEL)
    step = duotone.autocast(lambda x: convolve(x, kernel))
    step(images)
    if around is jax.linearize:
        assert jax.linearize(step, images)[0].shape == images.shape
    elif around is jax.vmap:
        assert jax.vmap(step)(images[None]).shape == (1, *images.shape)
    else:
        assert "bf16" not in str(jax.make_jaxpr(jax.jit(step))(images))


def test_where_nothing_is_compiled_there_are_none(on_fast_cpu: None) -> None:
    images, kernel = arrays(IMAGES, KERNEL)
    with jax.disable_jit():
        np.testing.assert_array_equal(
            duotone.autocast(convolve)(images, kernel), convolve(images, kernel)
        )


def test_the_function_is_traced_once_and_painted_at_most_twice(
    on_fast_cpu: None, painted: list[Any]
) -> None:
    traces = []

    def step(x: Any, w: Any) -> Any:
        traces.append(None)
        return convolve(x, w)

    duotone.autocast(step)(*arrays(IMAGES, KERNEL))
    assert (len(traces), len(painted)) == (1, 2)
    duotone.autocast(lambda x: step(x, x).sum())(*arrays((3, 3, 3, 3)))
    assert len(traces) == 2
    del painted[:]
    duotone.autocast(jnp.dot)(*arrays((512, 512), (512, 512)))
    assert len(painted) == 1


def test_a_trace_is_shared_only_within_one_decision(on_fast_cpu: None) -> None:
    """The next signature, and a later change of what the function closes over, are traced anew."""
    scale = [1.0]
    step = duotone.autocast(lambda x, w: scale[0] * convolve(x, w))
    images, kernel = arrays(IMAGES, KERNEL)
    first = step(images, kernel)
    scale[0] = 2.0
    jax.clear_caches()
    np.testing.assert_allclose(step(images, kernel), 2 * first, rtol=1e-2)


def test_a_trace_is_not_shared_between_settings_of_jax(on_fast_cpu: None) -> None:
    """Planted fault: without the context in the key, the second call's precision is lost."""
    inner = duotone.autocast(convolve)

    def step(x: Any, w: Any) -> Any:
        first = inner(x, w)
        with jax.default_matmul_precision("float32"):
            return first, inner(x, w)

    images, kernel = arrays(IMAGES, KERNEL)
    first, second = own_jit(step)(images, kernel)
    expected = convolve(images, kernel)
    assert abs(first - expected).max() > 1e-3  # in half
    np.testing.assert_allclose(second, expected, atol=1e-4)


def test_the_first_line_is_about_the_program_that_runs(
    on_fast_cpu: None, caplog: pytest.LogCaptureFixture
) -> None:
    images, kernel = arrays((4, 16, 16, 48), (3, 3, 48, 48))
    with caplog.at_level("INFO", logger="duotone"):
        duotone.autocast(convolve)(images, kernel)
    (line,) = caplog.messages
    assert "100.0% of FLOPs in half" in line
    assert "compiler_options" not in line


def test_half_work_counts_runs() -> None:
    def program(x: Any, w: Any, v: Any) -> Any:
        x = jax.lax.scan(lambda x, _: (convolve(x, w), None), x, length=3)[0]
        y = jax.jit(lambda v: v @ v)(v)
        return x, y, v.astype(jnp.float32) @ v.astype(jnp.float32)

    images, kernel, v = (x.astype(jnp.bfloat16) for x in arrays(IMAGES, KERNEL, (8, 8)))
    one = 2 * images.size * 9 * 32
    found = half_work(jax.make_jaxpr(program)(images, kernel, v))
    assert found == 3 * one + 2 * 8**3
