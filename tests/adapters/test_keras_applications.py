"""The table of keras.applications: its parts, two architectures, and its committed page."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import duotone
from benchmarks import _keras_applications as bench
from duotone.adapters.keras import enable

ROOT = Path(__file__).parents[2]

pytestmark = [
    # Of Keras' own: Variable.numpy() with NumPy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]


def _script() -> Any:
    path = ROOT / "scripts" / "keras_applications.py"
    spec = importlib.util.spec_from_file_location("keras_applications", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


script = _script()


@pytest.fixture(autouse=True)
def _fresh_keras():
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")


def small(dropout=0.5):
    """Every kind of layer that the measurement treats apart: float32[4, 8, 8, 3] to 10 classes."""
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 3)),
            keras.Sequential([keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]),
            keras.layers.LayerNormalization(),
            keras.layers.BatchNormalization(scale=False),
            keras.layers.Flatten(),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(bench.CLASSES),
        ]
    )


def plain_images(images):
    return images


SAME = types.SimpleNamespace(preprocess_input=plain_images)


# What is measured.


def test_architectures_are_found_not_listed(monkeypatch):
    known = bench.architectures()
    assert {"MobileNet", "ConvNeXtXLarge", "NASNetLarge"} <= set(known)
    assert not {"mobilenet", "resnet"} & set(known), "modules are not architectures"
    monkeypatch.setattr(keras.applications, "NewNet", lambda **_: None, raising=False)
    assert set(bench.architectures()) == {*known, "NewNet"}


def test_the_input_is_the_smallest_that_is_taken():
    def build(size):
        if size < 71:
            raise ValueError("too small")
        return keras.Sequential([keras.layers.Input((size, size, 3)), keras.layers.Flatten()])

    assert bench.smallest_input(build).input_shape == (None, 71, 71, 3)
    with pytest.raises(ValueError, match="no input of 64 to 70 pixels is taken") as caught:
        bench.smallest_input(build, 70)
    assert str(caught.value.__cause__) == "too small"


def test_the_input_is_larger_where_a_batch_normalisation_would_see_one_pixel():
    def build(size):
        layers = [keras.layers.MaxPool2D(48), keras.layers.BatchNormalization()]
        return keras.Sequential([keras.layers.Input((size, size, 3)), *layers])

    assert bench.fewest_pixels(build(64)) == 1
    assert bench.smallest_input(build).input_shape == (None, 96, 96, 3)


def test_batches_are_preprocessed_as_the_architecture_asks():
    module = types.SimpleNamespace(preprocess_input=lambda images: images / 127.5 - 1)
    raw, labels = bench.batch_of(SAME, 33, 0)
    images, same_labels = bench.batch_of(module, 33, 0)
    np.testing.assert_allclose(images, raw / 127.5 - 1)
    np.testing.assert_array_equal(labels, same_labels)
    assert raw.shape == (bench.BATCH, 33, 33, 3)
    assert raw.dtype == np.float32
    assert 0 <= raw.min() < 50 < 200 < raw.max() <= 255
    assert np.any(raw != bench.batch_of(SAME, 33, 1)[0])


def test_the_shifted_start_differs_in_batch_normalisations_only():
    model = small()
    starts = bench.starts_of(model)
    changed = {
        variable.path: (old.flat[0], new.flat[0])
        for variable, old, new in zip(
            model.variables, starts["initial"], starts["shifted"], strict=True
        )
        if np.any(old != new)
    }
    assert [path.split("/")[-1] for path in changed] == ["beta", "beta"]
    assert list(changed.values()) == [(0, 2), (0, 2)]
    assert all("batch_normalization" in path for path in changed)
    for variable, value in zip(model.variables, starts["initial"], strict=True):
        np.testing.assert_array_equal(variable.value, value)


@pytest.mark.parametrize("half", bench.HALF_TYPES)
def test_rounding_is_to_the_half_type_and_of_float32_only(half):
    epsilon = bench.HALF_TYPES[half]
    values = [np.array([1 + epsilon, 1 + 0.4 * epsilon], "float32"), np.array([7], "uint32")]
    one, seed = bench.rounded(values, half)
    assert one.tolist() == [1 + epsilon, 1]
    assert one.dtype == np.float32
    assert seed is values[1]


def test_dots_are_counted_wherever_they_hide():
    def program(x, w):
        full = x @ w
        y = jax.jit(lambda x: x.astype("float16") @ w.astype("float16"))(full)
        return jax.lax.cond(y[0, 0] > 0, lambda: y @ y, lambda: y * 2), jnp.dot(y, w)

    x = jnp.ones((3, 3))
    assert bench.count_dots(jax.make_jaxpr(program)(x, x), "float16") == (4, 2)

    def widened(x, w):  # full values, half values
        return x.astype("float32") @ w, x.astype("float32") @ w.astype("float16").astype("float32")

    seen = jax.make_jaxpr(widened)(x.astype("float16"), x)
    assert bench.count_dots(seen, "float16") == (2, 1)

    def convolution(x, w):
        return jax.lax.conv(x, w, (1, 1), "SAME")

    images, kernel = jnp.ones((1, 2, 4, 4), "bfloat16"), jnp.ones((2, 2, 3, 3), "bfloat16")
    seen = jax.make_jaxpr(convolution)(images, kernel)
    assert bench.count_dots(seen, "bfloat16") == (1, 1)
    assert bench.count_dots(seen, "float16") == (1, 0)


def test_relative_errors_of_gradients():
    exact = [np.array([3.0, 0]), np.array([[4.0]])]
    found = [np.array([3.0, 0.5]), np.array([[4.0]])]
    each = bench.squares(found, exact)
    assert bench.relative(each.sum(0)) == 0.1  # of 5
    assert [bench.relative(one) for one in each] == [0.5 / 3, 0]
    nothing = bench.squares([np.zeros(2), np.zeros((1, 1))], exact)
    assert bench.relative(nothing.sum(0)) == 1
    assert bench.relative(np.array([0.0, 0])) == 0
    assert bench.relative(np.array([1.0, 0])) == math.inf
    assert math.isnan(bench.relative(bench.squares([np.array([math.nan])], [np.ones(1)])[0]))


def test_a_step_gives_loss_and_gradients_to_the_bit():
    """Fails where the momentum or the update is read in place of the gradient."""
    model = small(dropout=0.0)
    values = bench.starts_of(model)["initial"]
    batch = bench.batch_of(SAME, 8, 0)
    state = [[jnp.asarray(v.value) for v in part] for part in _variables(model)]

    @jax.jit
    def loss_of(trainable):
        logits = model.stateless_call(trainable, state[1], batch[0], training=True)[0]
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(batch[1], logits)

    expected, gradients = jax.value_and_grad(loss_of)(state[0])
    step = bench.Step(model, keras.optimizers.SGD(1.0, momentum=0.5))
    for _ in range(2):  # the second run starts from the same values, momenta and metrics
        loss, skipped = step.run(values, batch)
        assert (loss, skipped) == (pytest.approx(float(expected), rel=1e-6), 0)
        found = bench.squares(step.gradients(), [np.asarray(g) for g in gradients])
        assert bench.relative(found.sum(0)) < 1e-5


def _variables(model):
    return model.trainable_variables, model.non_trainable_variables


@pytest.mark.parametrize("way", ["duotone", "by hand"])
def test_skipped_steps_are_counted_and_leave_no_trace(way):
    """Fails where a skipped step moves a dropout seed or a statistic before the one taken."""
    model = small()
    starts = bench.starts_of(model)
    images, labels = bench.batch_of(SAME, 8, 0)
    plain = bench.Step(model, keras.optimizers.SGD(1.0, momentum=0.5))
    expected, _ = plain.run(starts["shifted"], (images, labels))
    exact = list(plain.gradients())
    # A scale from which every gradient overflows at first.
    if way == "duotone":
        inner = keras.optimizers.SGD(1.0, momentum=0.5)
        scaled = enable(inner, duotone.DynamicLossScale(2.0**24), dtype="float16")
    else:
        keras.config.set_dtype_policy("mixed_float16")
        model = small()
        keras.config.set_dtype_policy("float32")
        inner = keras.optimizers.SGD(1.0, momentum=0.5)
        scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**24)
    step = bench.Step(model, scaled)
    loss, skipped = step.run(starts["shifted"], (images, labels))
    assert skipped > 0
    assert loss == pytest.approx(expected, rel=8 * bench.HALF_TYPES["float16"])
    error = bench.relative(bench.squares(step.gradients(), exact).sum(0))
    assert 0 < error < 16 * bench.HALF_TYPES["float16"]
    _, skipped = step.run(starts["shifted"], (images, labels))
    assert skipped == 0, "the scale stays where it was found"


def test_a_step_that_is_never_taken_is_an_error():
    model = small()
    values = bench.starts_of(model)["initial"]
    images, labels = bench.batch_of(SAME, 8, 0)
    step = bench.Step(model, enable(keras.optimizers.SGD(1.0, momentum=0.5), dtype="float16"))
    with pytest.raises(bench.NeverTakenError, match="30 steps in a row"):
        step.run(values, (np.full_like(images, np.inf), labels))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "half"), [("MobileNetV3Small", "float16"), ("VGG16", "bfloat16")])
def test_every_dot_of_an_architecture_is_half(name, half):
    """Traced, not compiled: the architecture of the fewest parameters and the shortest one."""
    function = bench.architectures()[name]
    model = function(weights=None, input_shape=(32, 32, 3), classes=10, classifier_activation=None)
    step = bench.Step(model, enable(keras.optimizers.SGD(1.0, momentum=0.5), dtype=half))
    program, seconds = step.trace(bench.batch_of(SAME, 32, 0))
    dots, in_half = bench.count_dots(program, half)
    assert in_half == dots > 40
    assert seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNet", "MobileNetV2", "VGG16"])
def test_an_architecture_passes(name):
    record = bench.measure(name)
    assert script.passes(record), script.page(_data({name: record}))


# What is judged.


def found(**changes):
    """What a measurement of one half type finds, all within the fixed limits of float16."""
    ways = {
        way: {
            start: {"loss": 1e-4, "gradient": 0.01, "lost": 0, "skipped": 0}
            for start in bench.SEEDS
        }
        for way in ("duotone", "by hand", "rounded")
    }
    result: dict[str, Any] = {"dots": 9, "half": 9, "seconds": 1.0, **ways}
    for path, value in changes.items():
        *parts, last = path.split("__")
        inner = result
        for part in parts:
            inner = inner[part.replace("_", " ")]
        inner[last] = value
    return result


def record_of(**changes):
    halves = {"float16": found(**changes), "bfloat16": found()}
    shape = {"parameters": 1_500_000, "variables": 100, "input": 32, "trace seconds": 1.0}
    return {**shape, "halves": halves, "seconds": 9.0, "memory GiB": 0.5}


def _data(records):
    return {
        "figures": records,
        "architectures": list(records),
        "environment": {"keras": "3.15.1", "jax": "0.10.2"},
    }


PASS = [
    {},
    {"duotone__shifted__gradient": 0.0156},
    {"duotone__shifted__gradient": 0.124, "by_hand__shifted__gradient": 0.1},
    {"duotone__shifted__lost": 5, "by_hand__shifted__lost": 3},
    {"duotone__initial__gradient": 1.2, "by_hand__initial__gradient": 1.0},
    {"by_hand__shifted__gradient": math.nan, "by_hand__initial__gradient": math.nan},
]
FAIL = [
    {"half": 8},
    {"duotone__shifted__loss": 0.01},
    {"duotone__shifted__loss": math.nan},
    {"duotone__shifted__gradient": 0.016},
    {"duotone__shifted__gradient": 0.126, "by_hand__shifted__gradient": 0.1},
    {"duotone__shifted__lost": 6, "by_hand__shifted__lost": 3},
    {"duotone__shifted__gradient": 1.0, "by_hand__shifted__gradient": 1.0},  # of zeros
    {"duotone__shifted__gradient": math.nan, "by_hand__shifted__gradient": math.nan},
    {"duotone__initial__gradient": 1.26, "by_hand__initial__gradient": 1.0},
    {"duotone__initial__gradient": 0.02, "by_hand__initial__gradient": math.nan},
]


@pytest.mark.parametrize("changes", PASS, ids=str)
def test_within_limits(changes):
    assert script.passes(record_of(**changes))


@pytest.mark.parametrize("changes", FAIL, ids=str)
def test_out_of_limits(changes):
    record = record_of(**changes)
    assert not script.passes(record)
    page = script.page(_data({"Net": record}))
    assert "**0 of 1 pass.**" in page
    row = next(line for line in page.splitlines() if line.startswith("| Net"))
    assert row.count("**") == 4, "one figure and the verdict are bold"
    assert row.endswith("| **fails** |")


def test_the_page_says_what_was_needed_and_what_crashed():
    by_hand = {"duotone__shifted__gradient": 0.02, "by_hand__shifted__gradient": 0.02}
    records = {
        "Late": {"error": "not done after 9 s"},
        "Large": record_of(**by_hand) | {"parameters": 9e9},
        "Little": record_of(),
    }
    page = script.page(_data(records))
    rows = [line for line in page.splitlines() if line.startswith("| L")]
    names = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert names == ["Little", "Large", "Late"] * 2 + ["Little", "Large"]
    assert rows[0].endswith("| fixed |")
    assert rows[1].endswith("| by hand |")
    assert rows[2].endswith("| **failed**: not done after 9 s |")
    assert len({row.count(" | ") for row in rows[:6]}) == 1
    assert "**2 of 3 pass.**" in page
    assert "{" not in page.replace("```", "").split("## float16")[1]


# The run.

AROUND = {"python": "3.11", "jax": "0.10.2", "flax": "0.12", "processor": "x", "cores": "2"}


def test_a_process_that_crashes_or_takes_too_long_is_a_row():
    assert script.measured_apart("NoSuchNet", 300) == {
        "error": "exit status 1: KeyError: 'NoSuchNet'"
    }
    assert script.measured_apart("VGG16", 0.01) == {"error": "not done after 0.01 s"}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The script with three architectures, and its files elsewhere."""
    known = dict.fromkeys(["A", "B", "C"])
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(script, "RECORDS", tmp_path / "results" / "records.json")
    monkeypatch.setattr(script, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(script, "architectures", lambda: known)
    monkeypatch.setattr(script, "environment", lambda: AROUND)
    asked: list[str] = []

    def measured(name, limit):
        # Everything before is on the disk already: an interrupted run loses nothing.
        if asked:
            assert asked[-1] in json.loads(script.RECORDS.read_text())["figures"]
            assert f"| {asked[-1]} |" in script.PAGE.read_text()
        asked.append(name)
        return {"error": "exit status -9: killed"} if limit < 1 else record_of()

    monkeypatch.setattr(script, "measured_apart", measured)
    return asked


def test_all_are_measured_and_written(files, capsys):
    assert script.main([]) == 0
    assert files == ["A", "B", "C"]
    assert "**3 of 3 pass.**" in script.PAGE.read_text()
    data = json.loads(script.RECORDS.read_text())
    assert data["bars"][0]["kept"]
    assert "B: passes" in capsys.readouterr().out
    readme = (script.PAGE.parent / "README.md").read_text()
    assert "[Tables](results/records.txt)" in readme
    assert script.RECORDS.with_suffix(".txt").read_text() == script.PAGE.read_text()


def test_a_failure_is_the_exit_status_and_is_tried_again(files, capsys):
    assert script.main(["--only", "B", "--limit", "0.5"]) == 1
    assert "fail: B" in capsys.readouterr().out
    assert script.main(["--resume"]) == 0
    assert files == ["B", "A", "B", "C"]
    assert script.main(["--resume"]) == 0
    assert files == ["B", "A", "B", "C"], "nothing is left to do"


def test_what_is_missing_is_reported(files, capsys):
    assert script.main(["--only", "C"]) == 0
    assert "**1 of 3 pass; not measured yet: A, B.**" in script.PAGE.read_text()
    bar = json.loads(script.RECORDS.read_text())["bars"][0]
    assert (bar["value"], bar["kept"]) == (2, False)
    assert script.main(["--page"]) == 1
    assert "not measured: A, B" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        script.main(["--only", "D"])
    assert "keras.applications has no D; it has A, B, C" in capsys.readouterr().err


def test_records_of_other_settings_are_not_mixed_in(files, monkeypatch):
    assert script.main(["--only", "A"]) == 0
    monkeypatch.setattr(script, "BATCH", 64)
    assert script.main(["--only", "B"]) == 0
    assert list(script.read()) == ["B"]


def test_the_committed_page_is_of_the_committed_records_and_nothing_fails():
    data = json.loads(script.RECORDS.read_text())
    assert script.PAGE.read_text() == script.page(data), "run scripts/keras_applications.py --page"
    assert [name for name, record in data["figures"].items() if not script.passes(record)] == []
    if data["environment"]["keras"] == keras.__version__:
        # The page may be unfinished, and says so by name.
        assert [n for n in bench.architectures() if n not in script.PAGE.read_text()] == []


OUT_OF_LIMIT = {"duotone__shifted__gradient": 0.016}


@pytest.mark.parametrize("more", [{}, OUT_OF_LIMIT], ids=["more pass", "more fail too"])
def test_more_batches_decide_where_two_are_out_of_a_limit(files, monkeypatch, more, capsys):
    asked = []

    def measured(name, limit, *options):
        asked.append((name, *options))
        if options:
            return record_of(**more) | {"batches": bench.MORE_BATCHES}
        return record_of(**(OUT_OF_LIMIT if name == "B" else {}))

    monkeypatch.setattr(script, "measured_apart", measured)
    assert script.main([]) == (1 if more else 0)
    assert asked == [("A",), ("B",), ("B", "--more"), ("C",)]
    assert "10 batches decide (B)." in script.PAGE.read_text()
    script.main(["--only", "C", "--more"])
    assert asked[4:] == [("C", "--more")]
