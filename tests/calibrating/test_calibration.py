"""Stated ranges and calibration, from the public names: what they do, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.errors import (
    ArgumentTypeError,
    CalibrationError,
    PolicyError,
    PolicyTypeError,
    RangeError,
    WriteError,
)

RNG = np.random.default_rng(5)
X = RNG.normal(size=(12, 8)).astype(np.float32)
W = RNG.normal(size=(8, 8)).astype(np.float32)
FORCED = duotone.Policy(ignore_performance=True)


def energy(params: dict[str, Any], x: Any) -> Any:
    """A cube of activations, whose range nobody can prove."""
    with jax.named_scope("cube"):
        cubed = (x @ params["w"]) ** 3
    return jnp.tanh(cubed @ params["w"]) @ params["w"]


PARAMS = {"w": W}


def rules(function: Any, *args: Any, **changes: Any) -> dict[str, tuple[str, str]]:
    """Rule and reason of each operation, the last of each name."""
    policy = FORCED.replace(**changes)
    seen = duotone.explain(function, *args, dtype="float16", policy=policy)
    return {o.operation: (o.rule, o.reason) for o in seen.operations}


# ----------------------------------------- stated ranges


def test_a_stated_range_denies_what_overflows_and_says_so() -> None:
    square = lambda x: x * x + 1.0  # noqa: E731
    rule, reason = rules(square, X, ranges={"x": (-1e3, 1e3)})["mul"]
    assert rule == "overflow"
    assert "float16 ends at 65504" in reason
    assert rules(square, X, ranges={"x": (-100, 100)})["mul"][0] != "overflow"


def test_an_overflow_that_is_stated_is_kept_from_happening() -> None:
    """Rewritten without the statement, the square is infinite."""

    def function(x: Any) -> Any:
        h = x @ jnp.eye(8) * 300.0
        return (h * h) @ jnp.eye(8) * 1e-3

    x = np.ones((4, 8), np.float32)
    denied = FORCED.replace(deny_remove=["square"], infer_add=["square"])
    plain = duotone.autocast(function, dtype="float16", policy=denied)(x)
    assert not np.isfinite(plain).all()
    stated = denied.replace(ranges={"mul": (0, 9e4)})
    careful = duotone.autocast(function, dtype="float16", policy=stated)(x)
    np.testing.assert_allclose(careful, function(x), rtol=1e-2)


def test_names_of_arguments_follow_the_pytree_and_scopes_the_patterns() -> None:
    for name in ("x", "params/w", "params/*", "cube/dot_general", "*/integer_pow", "tanh"):
        rules(energy, PARAMS, X, ranges={name: (-1e9, 1e9)})
    keyword = duotone.explain(
        lambda *, images: images + 1,
        images=X,
        dtype="float16",
        policy=FORCED.replace(ranges={"images": (0, 255)}),
    )
    assert keyword.operations


def test_a_range_of_something_that_does_not_exist() -> None:
    with pytest.raises(RangeError, match="Did you mean 'params/w'") as caught:
        rules(energy, PARAMS, X, ranges={"param/w": (-1, 1)})
    assert "float32 arguments are: params/w, x" in str(caught.value)
    rules(energy, PARAMS, X, ranges={"params/w": (-1, 1)})
    with pytest.raises(RangeError, match="no float32 argument"):
        duotone.autocast(energy, dtype="float16", policy=duotone.Policy(ranges={"y": (0, 1)}))(
            PARAMS, X
        )


def test_a_range_in_a_derivative_rule_need_not_exist_there() -> None:
    """A function with its own derivative is painted by itself, where the argument has no name."""
    policy = FORCED.replace(ranges={"x": (-2, 2)})
    loss = lambda x, w: jnp.sum(jax.nn.silu(x @ w))  # noqa: E731
    mixed = duotone.autocast(loss, dtype="float16", policy=policy)
    assert np.isfinite(jax.grad(mixed, 1)(X, W)).all()


@pytest.mark.parametrize(
    ("ranges", "error", "words"),
    [
        (3, PolicyTypeError, "a dict of names and bounds"),
        (("x",), PolicyTypeError, "a dict of names and bounds"),
        ({1: (0, 1)}, PolicyTypeError, "by str"),
        ({"x": 1}, PolicyTypeError, "two numbers"),
        ({"x": (1, 2, 3)}, PolicyTypeError, "two numbers"),
        ({"x": (2, 1)}, PolicyError, "no larger than the second"),
        ({"x": (float("nan"), 1)}, PolicyError, "neither NaN"),
    ],
)
def test_ranges_that_are_none(ranges: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        duotone.Policy(ranges=ranges)


def test_a_policy_with_ranges_is_a_value() -> None:
    one = duotone.Policy(ranges={"b": (0, 1), "a": (-1, 1)})
    assert one == duotone.Policy(ranges={"a": (-1.0, 1.0), "b": (0, 1)})
    assert hash(one) == hash(one.replace(ranges=one.ranges))
    assert one.describe() == "policy: assumes a in [-1, 1], b in [0, 1]"


# ----------------------------------------- calibration


def test_a_calibration_records_least_greatest_and_what_underflows() -> None:
    def function(x: Any) -> Any:
        return x * 1e-6

    batches = [np.array([0.0, 1.0], np.float32), np.array([-3.0, 100.0, 1e-3], np.float32)]
    measured = duotone.calibrate(function, batches)
    x, product = measured.values
    assert (x.name, x.low, x.high, x.small) == ("x", -3.0, 100.0, 0.0)
    assert product.name == "mul"
    assert product.high == pytest.approx(1e-4)
    assert product.small == pytest.approx(0.75)
    assert product.lost == pytest.approx(0.25)
    assert measured.batches == 2
    assert measured.title == (
        "calibration of test_a_calibration_records_least_greatest_and_what_underflows.<locals>."
        "function (2 values, 2 batches)"
    )


def test_a_calibration_prints_as_a_table_that_marks_what_float16_cannot_hold() -> None:
    def function(params: dict[str, Any], x: Any) -> Any:
        with jax.named_scope("Net/layers/0/attention/query/of/a/deep/model"):
            hidden = x @ params["w"]
        return jnp.square(hidden), hidden * 1e-9, jnp.zeros_like(x)

    function.__qualname__ = "function"
    x = np.array([[300.0, 1.0], [0.0, 0.0]], np.float32)
    measured = duotone.calibrate(function, [({"w": np.eye(2, dtype=np.float32)}, x)])
    dot = next(v for v in measured.values if v.name.endswith("dot_general"))
    assert (dot.shape, dot.smallest, dot.largest, dot.over) == ((2, 2), 1.0, 300.0, 0.0)
    square = next(v for v in measured.values if v.name == "square")
    assert (square.largest, square.over, square.smallest) == (90000.0, 0.5, 1.0)

    text = str(measured).splitlines()
    assert max(map(len, text)) <= 80
    assert text[0] == measured.title
    assert text[1].split() == ["value", "shape", "smallest", "largest", "tiny", "huge", "float16"]
    rows = {line.split()[0]: line.split()[1:] for line in text}
    assert rows["square"] == ["2x2", "1", "9e+04", ".", "50.0%", "overflows"]
    assert rows["mul"] == ["2x2", "1e-09", "3e-07", "100.0%", ".", "underflows"]
    assert rows["x"] == ["2x2", "1", "300", ".", "."]
    assert "1 of 6 values overflow, 1 of 6 values underflow in float16." in text
    assert "/of/a/deep/model/dot_general" in "".join(line.split(" ")[0] for line in text)


def test_several_calibrations_serve_several_programs(caplog: pytest.LogCaptureFixture) -> None:
    def square(x: Any) -> Any:
        return x * x + 1.0

    def cube(x: Any) -> Any:
        return x * x * x + 1.0

    def other(x: Any) -> Any:
        return jnp.sin(x) * x

    x = np.full(3, 1e3, np.float32)
    measured = [duotone.calibrate(fn, [x]) for fn in (square, cube)]
    policy = FORCED.replace(calibration=measured)
    assert policy.calibrations == tuple(measured)
    assert policy.describe().count("calibration of") == 2
    for fn in (square, cube):
        assert rules(fn, x, calibration=measured)["mul"][0] == "overflow"
    assert not caplog.messages
    for _ in range(2):
        assert rules(other, x, calibration=measured)["mul"][0] != "overflow"
    (message,) = caplog.messages
    assert "square" in message
    assert "painted without" in message
    with pytest.raises(PolicyTypeError, match="a list of such"):
        duotone.Policy(calibration=[measured[0], 3])  # pyright: ignore[reportArgumentType]


def test_a_calibration_sees_loops_and_branches() -> None:
    def function(x: Any) -> Any:
        def body(c: Any, row: Any) -> Any:
            return c * 2, jnp.where(c[0] > 4, c * row, row)

        last, rows = jax.lax.scan(body, jnp.ones(8), x, reverse=True)
        turned = jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] - 1), (0, last))
        return jax.lax.cond(x[0, 0] > 1e9, lambda: rows * 0 - 77.0, lambda: rows) + turned[1]

    measured = duotone.calibrate(function, [(np.ones((4, 8), np.float32),)])
    largest: dict[str, float] = {}
    for value in measured.values:
        largest[value.name] = max(value.largest, largest.get(value.name, 0.0))
    assert largest["mul"] == 16.0
    assert largest["loop.carry"] == 16.0
    assert measured.values[-1].high == function(jnp.ones((4, 8))).max()
    assert 77.0 not in largest.values(), "a branch that is not taken has no values"


def test_a_calibration_lifts_and_denies() -> None:
    plain = rules(energy, PARAMS, X)["integer_pow"]
    assert plain[0] == "deny"
    measured = duotone.calibrate(energy, [(PARAMS, X)])
    assert rules(energy, PARAMS, X, calibration=measured)["integer_pow"][0] != "overflow"
    large = duotone.calibrate(energy, [(PARAMS, X), (PARAMS, X * 30)])
    rule, reason = rules(energy, PARAMS, X, calibration=large)["integer_pow"]
    assert rule == "overflow"
    assert "4 times the measurement" in reason


def test_a_calibration_is_used_by_autocast_with_other_sizes() -> None:
    measured = duotone.calibrate(energy, [(PARAMS, X * 30)])
    mixed = duotone.autocast(energy, dtype="float16", calibration=measured)
    for rows in (12, 8):
        x = 30 * X[:rows]
        np.testing.assert_allclose(mixed(PARAMS, x), energy(PARAMS, x), atol=0.2)
    decorated = duotone.autocast(dtype="float16", calibration=measured)(energy)
    assert np.isfinite(decorated(PARAMS, X)).all()
    again = duotone.calibrate(mixed, [(PARAMS, X * 30)])
    assert again == measured, "of an autocast function, the one inside is measured"


def test_a_function_with_a_calibration_is_pickled_after_a_call_too() -> None:
    """Catches: the index by value that painting made, which pickle refused."""
    measured = duotone.calibrate(energy, [(PARAMS, X)])
    duotone.autocast(energy, dtype="float16", calibration=measured)(PARAMS, X)
    assert measured.measured
    assert pickle.loads(pickle.dumps(measured)) == measured


def test_a_calibration_of_another_function() -> None:
    measured = duotone.calibrate(energy, [(PARAMS, X)])
    with pytest.raises(
        CalibrationError, match=r"calibration belongs to another function: energy was measured"
    ):
        duotone.autocast(jnp.tanh, dtype="float16", calibration=measured)(X)
    loss = jax.grad(lambda p, x: energy(p, x).sum())
    with pytest.raises(CalibrationError, match="derivatives included"):
        duotone.autocast(loss, dtype="float16", calibration=measured)(PARAMS, X)
    mixed = duotone.autocast(energy, dtype="float16", calibration=measured)
    gradient = jax.grad(lambda p, x: mixed(p, x).sum())(PARAMS, X)
    assert np.isfinite(gradient["w"]).all()


class Pair(NamedTuple):
    """A batch that is one argument."""

    left: Any
    right: Any


def test_a_named_tuple_is_one_argument() -> None:
    measured = duotone.calibrate(lambda pair: pair.left + pair.right, [Pair(X, X)])
    assert [v.name for v in measured.values] == ["pair/left", "pair/right", "add"]
    assert duotone.calibrate(jnp.add, [(X, X)]).values[-1].high == 2 * X.max()


def test_nan_in_the_data() -> None:
    bad = X.copy()
    bad[1, 1] = np.nan
    with pytest.raises(CalibrationError, match=r"calibrate\(energy\): x of batch 1 holds NaN"):
        duotone.calibrate(energy, [(PARAMS, X), (PARAMS, bad)])


def test_nan_and_infinity_that_the_function_makes_are_left_out() -> None:
    measured = duotone.calibrate(lambda x: jnp.where(x > 0, jnp.log(x), 0.0), [X])
    assert "log" not in {v.name for v in measured.values}
    assert measured.values[-1].name.endswith("select_n")


def test_no_batches_and_no_iterable_and_no_function() -> None:
    with pytest.raises(CalibrationError, match="there is no batch"):
        duotone.calibrate(energy, [])
    with pytest.raises(ArgumentTypeError, match="cannot be iterated over"):
        duotone.calibrate(energy, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match=r"batches is a dict; .* such as \[batch\]"):
        duotone.calibrate(energy, {"x": X})
    with pytest.raises(ArgumentTypeError, match="not callable"):
        duotone.calibrate(3, [X])  # pyright: ignore[reportArgumentType]


def test_data_that_are_none() -> None:
    with pytest.raises(ArgumentTypeError, match="x of batch 0 is a ShapeDtypeStruct"):
        duotone.calibrate(energy, [(PARAMS, jax.ShapeDtypeStruct((4, 8), jnp.float32))])
    with pytest.raises(ArgumentTypeError, match=r"outside of jax\.jit"):
        jax.jit(lambda x: duotone.calibrate(jnp.tanh, [x]).batches)(X)


def test_batches_that_make_it_another_program() -> None:
    def function(x: Any, deep: bool = False) -> Any:
        return jnp.tanh(jnp.tanh(x)) if deep else jnp.tanh(x)

    with pytest.raises(CalibrationError, match="batch 1 gives another program"):
        duotone.calibrate(function, [(X,), (X, True)])
    assert duotone.calibrate(function, [(X, True), (X[:2], True)]).batches == 2


@pytest.mark.parametrize("function", [lambda x, n: x * n, lambda x, n: x**n])
def test_batches_with_another_number_in_the_program(function: Any) -> None:
    with pytest.raises(CalibrationError, match="batch 1 gives another program"):
        duotone.calibrate(function, [(X, 3), (X, 4)])
    numbers = [(X, jnp.float32(3)), (X, jnp.float32(4))]  # as an argument it may change
    assert duotone.calibrate(function, numbers).batches == 2


def test_a_calibration_of_a_sum_over_another_axis() -> None:
    measured = duotone.calibrate(lambda x: jnp.sum(x, 0) @ x, [W])
    with pytest.raises(CalibrationError, match="another function"):
        duotone.autocast(lambda x: jnp.sum(x, 1) @ x, dtype="float16", calibration=measured)(W)


def test_a_loss_is_calibrated_with_batches_of_other_sizes() -> None:
    def loss(params: Any, x: Any) -> Any:
        return jnp.mean((energy(params, x) - 1.0) ** 2)

    step = jax.value_and_grad(loss)
    measured = duotone.calibrate(step, [(PARAMS, X), (PARAMS, X[:2])])
    assert measured.batches == 2
    mixed = duotone.autocast(step, dtype="float16", calibration=measured)
    assert np.isfinite(mixed(PARAMS, X[:3])[0])


def test_policy_takes_no_other_calibration() -> None:
    with pytest.raises(PolicyTypeError, match=r"duotone\.calibrate or Calibration\.load"):
        duotone.Policy(calibration="c.json")  # pyright: ignore[reportArgumentType]


# ----------------------------------------- files


def _with(data: Any, **changes: Any) -> str:
    """The file with its first value changed."""
    first, *others = data["values"]
    return json.dumps({**data, "values": [{**first, **changes}, *others]})


@pytest.fixture
def measured() -> duotone.Calibration:
    return duotone.calibrate(energy, [(PARAMS, X)])


def test_saved_and_loaded_it_is_the_same(measured: duotone.Calibration, tmp_path: Path) -> None:
    file = tmp_path / "energy.json"
    measured.save(file)
    again = duotone.Calibration.load(file)
    assert again == measured
    assert hash(again) == hash(measured)
    assert duotone.Policy(calibration=again) == duotone.Policy(calibration=measured)
    assert list(tmp_path.iterdir()) == [file], "no temporary file stays behind"
    measured.save(file)  # replaces


def test_a_folder_that_does_not_exist(measured: duotone.Calibration, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="there is no folder"):
        measured.save(tmp_path / "no" / "energy.json")


def test_a_folder_in_the_place_of_a_file(measured: duotone.Calibration, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="is a folder; name a file, such as ") as caught:
        measured.save(tmp_path)
    advised = str(caught.value).rpartition(" ")[2]
    measured.save(advised)
    assert duotone.Calibration.load(advised) == measured
    with pytest.raises(CalibrationError, match="cannot load a calibration"):
        duotone.Calibration.load(tmp_path)


def test_a_value_that_the_program_does_not_have(
    measured: duotone.Calibration, tmp_path: Path
) -> None:
    file = tmp_path / "energy.json"
    measured.save(file)
    file.write_text(_with(json.loads(file.read_text()), value=10_000))
    damaged = duotone.Calibration.load(file)
    with pytest.raises(CalibrationError, match="contains value 10000 of a program that has"):
        duotone.autocast(energy, dtype="float16", calibration=damaged)(PARAMS, X)


def test_an_interrupted_save_leaves_the_old_file(
    measured: duotone.Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "energy.json"
    measured.save(file)
    before = file.read_text()

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        measured.save(file)
    assert file.read_text() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: "{", "is not JSON"),
        (lambda data: "[]", "does not say that it holds"),
        (lambda data: json.dumps({**data, "format": "another"}), "does not say that it holds"),
        (lambda data: json.dumps({**data, "version": 99}), "version 99"),
        (lambda data: json.dumps({k: v for k, v in data.items() if k != "values"}), "damaged"),
        (lambda data: json.dumps({**data, "values": [{"value": 0}]}), "damaged"),
        (
            lambda data: json.dumps(
                {**data, "values": [{**data["values"][0], "low": float("nan")}]}
            ),
            "not finite",
        ),
        (
            lambda data: json.dumps({**data, "values": [{**data["values"][0], "low": 1e9}]}),
            "above its greatest",
        ),
        (lambda data: json.dumps({**data, "batches": float("inf")}), "batches is inf"),
        (lambda data: json.dumps({**data, "batches": -1}), "batches is -1"),
        (lambda data: json.dumps({**data, "batches": "1"}), "batches is '1'"),
        (lambda data: _with(data, value=float("inf")), "value is inf"),
        (lambda data: _with(data, value=-5), "value is -5"),
        (lambda data: _with(data, value=1.5), "value is 1.5"),
        (lambda data: _with(data, high=10**400), "OverflowError"),
        (lambda data: _with(data, small=7), "small 7, which is not a share"),
        (lambda data: _with(data, lost=-0.1), "lost -0.1, which is not a share"),
        (lambda data: "[" * 100_000, "is not JSON"),
    ],
)
def test_a_file_that_is_no_calibration(
    measured: duotone.Calibration, tmp_path: Path, change: Any, words: str
) -> None:
    file = tmp_path / "energy.json"
    measured.save(file)
    file.write_text(change(json.loads(file.read_text())))
    with pytest.raises(CalibrationError, match=words):
        duotone.Calibration.load(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="cannot load a calibration from"):
        duotone.Calibration.load(tmp_path / "nothing.json")


def test_a_name_that_is_too_long_is_named_with_the_remedy(tmp_path):
    measured = duotone.calibrate(jnp.tanh, [(jnp.ones(2),)])
    with pytest.raises(WriteError, match="300 bytes: give it a shorter one"):
        measured.save(tmp_path / ("x" * 300))
    measured.save(tmp_path / ("x" * 250))
    assert duotone.Calibration.load(tmp_path / ("x" * 250)) == measured
