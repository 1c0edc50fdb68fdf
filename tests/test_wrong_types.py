"""Arguments of the wrong type: each public function names the argument and what it takes.

``test_bad_input.py`` has the mistakes that need more than a type.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import duotone
from duotone.devices import find_target
from duotone.errors import ArgumentError, ArgumentTypeError, DuotoneError
from duotone.tensorflow.protos import new_graph

X = jnp.ones((8, 8))


def loss(w: Any, x: Any = X) -> Any:
    return jnp.mean(jnp.tanh(x @ w))


@functools.cache
def explained() -> duotone.Explanation:
    return duotone.explain(loss, X, dtype="float16")


@functools.cache
def optimizer() -> duotone.MixedPrecisionOptimizer:
    return duotone.enable_mixed_precision_graph_rewrite(optax.sgd(0.1))


def minimize(**given: Any) -> Any:
    return optimizer().minimize(loss, X, optimizer().init(X), **given)


SWITCHES: dict[str, tuple[str, Callable[..., Any]]] = {
    "autocast": ("enabled", functools.partial(duotone.autocast, loss)),
    "decorator": ("enabled", duotone.autocast),
    "grad": ("enabled", functools.partial(duotone.grad, loss)),
    "value_and_grad": ("enabled", functools.partial(duotone.value_and_grad, loss)),
    "optimizer": (
        "enabled",
        functools.partial(duotone.enable_mixed_precision_graph_rewrite, optax.sgd(0.1)),
    ),
    "log_compilations": ("enabled", duotone.log_compilations),
    "minimize": ("has_aux", minimize),
    "bucketed": ("verify", functools.partial(duotone.bucketed, loss, 0)),
    "in the background": ("background", functools.partial(duotone.bucketed, loss, 0)),
    "cluster_jit": ("background", functools.partial(duotone.cluster_jit, loss)),
    "clusters": ("compile", functools.partial(duotone.clusters, loss, X)),
    "compare": ("exact", functools.partial(duotone.compare, loss, X, targets="cpu")),
    "report": ("overwrite", functools.partial(duotone.report, loss, X)),
    "rewrite of a graph": ("compiled", functools.partial(duotone.tensorflow.rewrite, new_graph())),
}


@pytest.mark.parametrize("word", ["no", "0", "false", "yes", 1, np.ones(2), object()])
@pytest.mark.parametrize("call", SWITCHES)
def test_a_switch_is_true_or_false_and_no_word(call: str, word: Any) -> None:
    name, function = SWITCHES[call]
    with pytest.raises(ArgumentTypeError, match=rf"{name} is .*; pass True or False"):
        function(**{name: word})


def test_a_switch_of_numpy_is_taken() -> None:
    off: Any = np.bool_(False)
    assert duotone.autocast(loss, enabled=off)(X) == loss(X)


PATHS: dict[str, Callable[[Any], Any]] = {
    "from_file": duotone.Policy.from_file,
    "load": duotone.Calibration.load,
    "save": lambda path: duotone.calibrate(loss, [X]).save(path),
    "to_tensorboard": lambda path: explained().to_tensorboard(path),
    "to_model_explorer": lambda path: explained().to_model_explorer(path),
    "export": lambda path: duotone.export(loss, X, path=path),
    "read_export": duotone.read_export,
    "profile": duotone.profile,
    "read_profile": duotone.read_profile,
    "monitor": lambda path: duotone.LossScaleMonitor(logdir=path),
    "report": lambda path: duotone.report(loss, X, out=path),
    "use_cache": duotone.use_cache,
    "graph file": duotone.tensorflow.rewrite_file,
}


@pytest.mark.parametrize("path", [3, b"here", [], X, object()], ids=type)
@pytest.mark.parametrize("call", PATHS)
def test_a_path_is_a_string_or_a_path(call: str, path: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r" is .*; pass a path"):
        PATHS[call](path)


@pytest.mark.parametrize("call", PATHS)
def test_the_empty_string_is_not_the_current_folder(call: str) -> None:
    with pytest.raises(ArgumentError, match="has no name; pass a path"):
        PATHS[call]("")


OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "dtype an array": (
        lambda: duotone.autocast(loss, dtype=X),
        r"dtype is an array of float32\[8, 8\].*pass jnp.float16",
    ),
    "rows where": (lambda: explained().rows(3), "where is 3; pass a string"),  # pyright: ignore[reportArgumentType]
    "rows rule": (lambda: explained().rows(rule=[]), "rule is a list; pass a string"),  # pyright: ignore[reportArgumentType]
    "rows most": (lambda: explained().rows(most=2.5), "most is 2.5; pass a whole number"),  # pyright: ignore[reportArgumentType]
    "rows below 0": (lambda: explained().rows(most=-1), "most is -1; pass at least 0"),
    "title": (lambda: explained().to_html(title=3), "title is 3; pass a string"),  # pyright: ignore[reportArgumentType]
    "extra_args": (lambda: minimize(extra_args=3), "extra_args is 3; pass a dictionary"),
    "extra_args by number": (lambda: minimize(extra_args={3: 3}), "with strings as keys"),
    "mask": (lambda: duotone.bucketed(loss, 0, mask=3), "mask is 3; pass a string"),  # pyright: ignore[reportArgumentType]
    "programs": (lambda: duotone.bucketed(loss, 0, programs=0), "programs is 0; pass at least 1"),
    "exclude_ops": (
        lambda: duotone.cluster_jit(loss, exclude_ops="exp"),
        "exclude_ops is 'exp'; pass a list of strings",
    ),
    "donate_argnums": (
        lambda: duotone.cluster_jit(loss, donate_argnums=None),  # pyright: ignore[reportArgumentType]
        "donate_argnums is None; pass a whole number",
    ),
    "donate_argnums below 0": (
        lambda: duotone.cluster_jit(loss, donate_argnums=-1),
        "donate_argnums is -1; pass at least 0",
    ),
    "batch": (
        lambda: duotone.compare(loss, X, targets="cpu", batch=2.5),  # pyright: ignore[reportArgumentType]
        "batch is 2.5; pass the positions",
    ),
    "largest": (
        lambda: duotone.compile_for(loss, X, target="cpu").largest("2"),  # pyright: ignore[reportArgumentType]
        "count is '2'; pass a whole number",
    ),
    "flags": (lambda: duotone.check_xla_flags(3), "text is 3; pass a string"),  # pyright: ignore[reportArgumentType]
    "min_seconds": (
        lambda: duotone.use_cache(None, min_seconds="1"),  # pyright: ignore[reportArgumentType]
        "min_seconds is '1'; pass a number of seconds",
    ),
    "batches": (
        lambda: duotone.calibrate(loss, X),
        r"batches is an array of float32\[8, 8\]; pass a list of batches",
    ),
    "platforms": (
        lambda: duotone.export(loss, X, path="unwritten", platforms=3),  # pyright: ignore[reportArgumentType]
        "platforms is 3; pass a list of strings",
    ),
    "calls": (
        lambda: duotone.advise(loss, X, target="h100", calls=[(X,), X]),  # pyright: ignore[reportArgumentType]
        r"calls\[1\] is an array of float32\[8, 8\]; pass a list with a tuple",
    ),
    "platform": (
        lambda: dataclasses.replace(find_target("h200"), platform="vulkan"),
        "platform is 'vulkan'; it takes 'cuda', 'tpu', 'cpu'",
    ),
    "half": (
        lambda: dataclasses.replace(find_target("h200"), half="float8"),
        "half is 'float8'; it takes 'float16', 'bfloat16', None",
    ),
    "on_stage": (
        lambda: duotone.tensorflow.rewrite_file("graph.pb", on_stage=3),  # pyright: ignore[reportArgumentType]
        "on_stage is 3, which is not callable",
    ),
    "graph": (lambda: duotone.tensorflow.rewrite({}), "graph_def is a dict; pass a GraphDef"),
    "measured": (
        lambda: duotone.tensorflow.rewrite(new_graph(), measured=3),  # pyright: ignore[reportArgumentType]
        "measured is 3; pass what duotone.tensorflow.calibrate returned",
    ),
    "measured by name": (
        lambda: duotone.tensorflow.rewrite(new_graph(), measured={"x:0": 3}),  # pyright: ignore[reportArgumentType]
        "measured is a dict; pass what duotone.tensorflow.calibrate returned",
    ),
    "fetch": (
        lambda: duotone.tensorflow.rewrite(new_graph(), fetch="y"),
        "fetch is 'y'; pass a list of strings",
    ),
    "device": (
        lambda: duotone.tensorflow.rewrite(new_graph(), device="gpu"),  # pyright: ignore[reportArgumentType]
        r"device is 'gpu'; pass duotone.tensorflow.Device",
    ),
    "capability": (
        lambda: duotone.tensorflow.Device("gpu", 8.0),  # pyright: ignore[reportArgumentType]
        r"compute_capability=8.0\): it takes two whole numbers",
    ),
    "version": (lambda: duotone.tensorflow.Device(cuda="12"), "cuda is '12'; pass a whole number"),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("call", OTHERS)
def test_other_types(call: str) -> None:
    function, says = OTHERS[call]
    with pytest.raises(DuotoneError, match=says):
        function()
