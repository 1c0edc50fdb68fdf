"""The zoo: public sizes, the same parameters by hand, steps that run; and the painter's table."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from benchmarks import _common, _painter_rows, _ways, painter, painter_error
from benchmarks.zoo import MODELS, names_of
from benchmarks.zoo.case import INPUTS, SIZES
from benchmarks.zoo.layers import attend, causal_mask
from benchmarks.zoo.llama import rotate
from benchmarks.zoo.moe import route
from benchmarks.zoo.unet import STEPS, noised
from tests.benchmarks.zoo_steps import DOTS, check_steps, dot_types, slow_but

# As published, where it was; the mixture of experts is ours.
PARAMETERS = {
    "resnet50": 25_557_032,
    "convnext": 28_589_128,
    "vit": 86_567_656,
    "unet": 35_746_307,
    "gpt2": 124_439_808,
    "gpt2_scan": 124_439_808,
    "llama": 1_235_814_400,
    "moe": 308_711_424,
    "lstm": 66_022_000,
    "gan": 3_576_704 + 2_765_568,
    "mixer": 18_528_264,
    "efficientnet": 5_288_548,
    "t5": 60_506_624,
    "swin": 28_288_354,
    "actor_critic": 1_687_719,
}
# A router, the states of a scan, and the letters of a CTC loss stay float32 by hand too.
WIDE_DOTS = ("moe", "mamba", "conformer")
QUICK = ("gpt2", "lstm", "dlrm")


# They build whole models: what a user needs to trust the build is elsewhere.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", PARAMETERS)
def test_models_are_of_the_published_size(name):
    params, _ = MODELS[name](None, "full").shapes()
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == PARAMETERS[name]


@pytest.mark.parametrize("name", slow_but(MODELS, QUICK))
@pytest.mark.parametrize("size", SIZES)
def test_a_step_keeps_the_state_and_is_the_same_by_hand_but_for_its_dots(name, size):
    plain, by_hand = MODELS[name](None, size), MODELS[name](jnp.float16, size)
    shapes = check_steps(plain, by_hand)
    wide = {"float32"} if name in WIDE_DOTS else set()
    assert dot_types(by_hand.step, shapes) - wide == {"float16"}


@pytest.mark.parametrize("name", slow_but(MODELS, QUICK))
def test_explain_knows_every_step(name):
    case = MODELS[name](None, "tiny")
    policy = duotone.Policy(ignore_performance=True)
    seen = duotone.explain(case.step, *case.step_shapes(), dtype=jnp.float16, policy=policy)
    dots = [row for row in seen.operations if row.operation in DOTS]
    assert dots
    assert sum(row.paint == "half" for row in dots) > len(dots) / 2


@pytest.mark.parametrize("name", slow_but(MODELS, QUICK))
def test_losses_by_hand_and_painted_are_those_of_float32(name):
    plain, by_hand = MODELS[name](None, "tiny"), MODELS[name](jnp.bfloat16, "tiny")
    arguments = plain.init(jax.random.key(0)), plain.batch(jax.random.key(1), "ordinary")
    policy = duotone.Policy(ignore_performance=True)
    painted = duotone.autocast(plain.loss, dtype=jnp.bfloat16, policy=policy)
    losses = [jax.jit(loss)(*arguments) for loss in (plain.loss, by_hand.loss, painted)]
    assert {str(loss.dtype) for loss in losses} == {"float32"}
    assert len({float(loss) for loss in losses}) > 1, "nothing is half"
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_steps_run_and_learn_alike(name):
    def losses(step, case):
        state, batch = case.start(jax.random.key(0)), case.batch(jax.random.key(1), "ordinary")
        step, found = jax.jit(step), []
        for _ in range(3):
            state, loss = step(state, batch)
            found.append(float(loss))
        return found

    plain = MODELS[name](None, "tiny")
    policy = duotone.Policy(ignore_performance=True)
    reference = losses(plain.step, plain)
    assert reference[-1] < reference[0]
    for step in (
        MODELS[name](jnp.bfloat16, "tiny").step,
        duotone.autocast(plain.step, dtype=jnp.bfloat16, policy=policy),
    ):
        np.testing.assert_allclose(losses(step, plain), reference, rtol=0.05)


@pytest.mark.parametrize("name", slow_but(MODELS, ("lstm", "dlrm")))
@pytest.mark.parametrize("inputs", ["ordinary", "heavy tails"])
def test_gradients_of_tiny_models_are_worth_comparing(name, inputs):
    case = MODELS[name](None, "tiny")
    params = case.weights(case.init(jax.random.key(0)), inputs)
    gradient = jax.jit(jax.grad(case.loss))(params, case.batch(jax.random.key(1), inputs))
    norms = [float(jnp.linalg.norm(leaf)) for leaf in jax.tree.leaves(gradient)]
    assert all(math.isfinite(norm) for norm in norms)
    assert np.mean([norm > 0 for norm in norms]) > 0.8


@pytest.mark.parametrize("name", ["gpt2", "lstm"])
def test_hostile_inputs_replace_one_embedding(name):
    case = MODELS[name](None, "tiny")
    params = case.init(jax.random.key(0))
    hostile = case.weights(params, "large (x 1000)")
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), params, hostile)
    assert sum(jax.tree.leaves(changed)) == 1
    assert case.weights(params, "ordinary") is params


def test_attention_in_groups_is_attention_with_repeated_keys():
    drawn = jax.random.normal(jax.random.key(0), (3, 2, 5, 4, 8))
    query, key, value = drawn[0], drawn[1, :, :, :2], drawn[2, :, :, :2]
    repeated = attend(
        query, jnp.repeat(key, 2, axis=2), jnp.repeat(value, 2, axis=2), causal_mask(5)
    )
    grouped = attend(query, key, value, causal_mask(5))
    np.testing.assert_allclose(grouped, repeated, atol=1e-6)


def test_rotary_dots_depend_on_the_distance_alone():
    row = jnp.ones((1, 6, 1, 8))
    turned = rotate(row)[0, :, 0]
    dots = turned @ turned.T
    np.testing.assert_allclose(dots[1:, 1:], dots[:-1, :-1], rtol=1e-5)


def test_experts_take_what_they_have_room_for():
    scores = jax.random.normal(jax.random.key(0), (2, 12, 4))
    sent, weights, balance = route(scores, chosen=2, capacity=3)
    assert sent.shape == (2, 12, 4, 3)
    assert float(sent.sum(axis=1).max()) == 1.0, "one token for a place"
    assert float(sent.sum(axis=(2, 3)).max()) <= 2.0
    assert bool(jnp.all((weights > 0) <= (sent > 0)))
    assert float(balance) > 0
    all_sent, all_weights, _ = route(scores, chosen=2, capacity=24)
    np.testing.assert_allclose(all_sent.sum(axis=(2, 3)), 2.0)
    np.testing.assert_allclose(all_weights.sum(axis=(2, 3)), 1.0, rtol=1e-6)


def test_noise_grows_with_time():
    images = jnp.ones((256, 2, 2, 1))
    mixed, noise, times = noised(images, jnp.uint32(3))
    assert 0 <= int(times.min()) < 50 < STEPS - 50 < int(times.max()) < STEPS
    late = times > 900
    np.testing.assert_allclose(mixed[late], noise[late], atol=0.1)


def records(ratio, models=("gpt2", "vit")):
    made = {}
    for model in models:
        for half in ("float16", "bfloat16"):
            for job in painter.jobs([model], ["h200"], [half]):
                ours = dict.fromkeys(_ways.FORMS.values(), ratio * 1000000000.0)
                size = {"float32": 2e9, "by hand": 1e9, **ours}.get(job.way)
                made[job.key] = {"absent": "not installed"}
                if size:
                    made[job.key] = {
                        "bytes": size,
                        "temporary": size,
                        "kernels": 7,
                        "casts": 3,
                        "half share": 0.5,
                        "seconds": 1e-3,
                        "compile seconds": 2.0,
                    }
    return made


@pytest.mark.parametrize(("ratio", "kept"), [(0.9, True), (0.97, False), (1.2, False)])
def test_bars_of_the_first_half(ratio, kept):
    bars = _painter_rows.bars_of(records(ratio))
    whole = [bar for bar in bars if "first half, whole: " in bar.name]
    # For each half type and of bytes and memory: two models and two means.
    assert len(whole) == 2 * 2 * 4
    by_hand = [bar for bar in whole if "by hand, geometric mean" in bar.name]
    assert all(bar.value == pytest.approx(ratio) and bar.kept is kept for bar in by_hand)
    assert all(bar.kept is (ratio <= 1) for bar in whole if bar.name.endswith("by hand, gpt2"))
    over_float32 = [bar for bar in bars if "over float32" in bar.name]
    assert [bar.value for bar in over_float32] == pytest.approx([ratio / 2] * 4)
    assert not any("second half" in bar.name for bar in bars)


@pytest.mark.parametrize(
    ("ratio", "each", "bytes_mean", "memory_mean"),
    [
        (0.8, True, True, True),
        (0.9, True, True, False),
        (1.04, True, False, False),
        (1.1,) + (False,) * 3,
    ],
)
@pytest.mark.parametrize("form", _ways.FORMS)
def test_bars_of_the_second_half(ratio, each, bytes_mean, memory_mean, form):
    bars = _painter_rows.bars_of(records(ratio, ("swin", "nerf")))
    found = [bar for bar in bars if f"bfloat16, second half, {form}: " in bar.name]
    assert [bar.kept for bar in found] == [each, each, bytes_mean, memory_mean]
    assert not any("first half" in bar.name or "float32" in bar.name for bar in bars)


def test_halves_have_tables_and_means_of_their_own():
    made = records(0.9, ("gpt2", "swin"))
    first, second = _painter_rows.text_of(made).split("h200, float16, ")[1:]
    assert first.startswith("first half")
    assert "gpt2, duotone" in first
    assert "swin" not in first
    assert "swin, value_and_grad(autocast(f))" in second
    assert "geometric mean of 1, value_and_grad(autocast(f))" in second


def test_every_model_is_in_one_half():
    first, second = names_of("first"), names_of("second")
    assert sorted((*first, *second)) == sorted(MODELS)
    assert abs(len(first) - len(second)) <= 4


@pytest.mark.parametrize(
    ("options", "ways"),
    [
        (["--form", "short"], ["float32", "by hand", _ways.SHORT, "mpx"]),
        (["--form", "whole"], ["float32", "by hand", "duotone", "mpx"]),
        ([], [*_ways.WAYS]),
    ],
)
def test_half_and_form_choose_what_is_measured(options, ways, monkeypatch):
    monkeypatch.setattr("sys.argv", ["painter", "--half", "second", *options])
    chosen = painter._options()
    assert chosen.models == list(names_of("second"))
    assert chosen.ways == ways


def test_the_short_form_paints_the_loss_alone(monkeypatch):
    tiny = MODELS["mixer"]
    monkeypatch.setitem(MODELS, "mixer", lambda dtype, size: tiny(dtype, "tiny"))
    made = _ways.painted_loss("mixer", "bfloat16")
    assert "bfloat16" in dot_types(made.step, made.arguments)
    assert _ways.WAYS[_ways.SHORT] is _ways.painted_loss
    with pytest.raises(_ways.Absent, match="not one gradient function"):
        _ways.painted_loss("dlrm", "bfloat16")


def test_a_step_that_failed_is_counted_and_shown():
    made = records(0.9)
    made["gpt2/h200/float16/duotone"] = {"failed": "no such kernel"}
    bars = _painter_rows.bars_of(made)
    assert bars[-1].value == 1
    assert not bars[-1].kept
    text = _painter_rows.text_of(made)
    assert "gpt2/h200/float16/duotone: no such kernel" in text
    assert "vit, duotone" in text
    assert "gpt2, duotone" in text.split("h200, bfloat16")[1]


def test_in_list_order_only_the_order_differs():
    job = painter.Job("gpt2", _painter_rows.LIST_ORDER, "duotone", "bfloat16")
    plain, ordered = painter._target(dataclasses.replace(job, target="v5e")), painter._target(job)
    assert dict(ordered.options) == {**plain.options, "xla_memory_scheduler": "list"}
    assert plain.name == ordered.name == "v5e"
    ways = [job.way for job in painter.jobs(["gpt2"], [_painter_rows.LIST_ORDER], ["bfloat16"])]
    assert ways == ["by hand", "duotone"]


def test_the_painter_writes_each_record_at_once(tmp_path, monkeypatch):
    folder, made = tmp_path / "results", records(0.9)
    monkeypatch.setattr(painter, "measured_apart", lambda job: made[job.key])
    todo = list(painter.jobs(["gpt2"], ["h200"], ["float16"]))
    painter.run(todo[:2], {}, folder)
    assert list(painter.load(folder)) == [job.key for job in todo[:2]]
    painter.run(todo[2:], {}, folder)
    assert set(painter.load(folder)) == {job.key for job in todo}
    assert painter.load(tmp_path / "nowhere") == {}


def test_a_measurement_reads_the_compiled_program(monkeypatch):
    case = MODELS["dlrm"](None, "tiny")
    made = _ways.Made(jax.jit(case.step, donate_argnums=0), case.step_shapes())
    monkeypatch.setitem(_ways.WAYS, "float32", lambda model, half: made)
    seen = painter.measure(painter.Job("dlrm", "cpu", "float32", ""))
    assert seen["bytes"] > 0
    assert seen["half share"] == 0
    assert json.loads(json.dumps(seen)) == seen
    monkeypatch.setitem(_ways.WAYS, "mpx", _ways.mpx)
    gap = painter.measure(painter.Job("dlrm", "cpu", "mpx", "float16"))
    assert "absent" in gap


def test_the_source_of_a_record_is_what_it_was_made_from():
    assert painter.source("float32") == painter.source("by hand") != painter.source("duotone")


def test_a_model_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr("sys.argv", ["painter", "--only", "gpt5"])
    with pytest.raises(SystemExit, match="no model gpt5; there are resnet50"):
        painter.main()


def test_painter_error_of_a_tiny_model(monkeypatch, tmp_path):
    monkeypatch.setattr(painter_error, "INPUTS", {"ordinary": INPUTS["ordinary"]})
    monkeypatch.setattr(painter_error, "HALF_TYPES", ("float16",))
    rows = painter_error.measure("dlrm", seeds=1)
    assert {bar.name.split(":")[0] for bar in painter_error.bars_of({"dlrm": rows})} == {
        "dlrm, ordinary"
    }
    rows["float16"][0]["by hand"] = math.inf
    _common.write(painter_error.result_of({"dlrm": rows}, 1), tmp_path / "results")
    assert painter_error.load(tmp_path / "results") == {"dlrm": rows}
