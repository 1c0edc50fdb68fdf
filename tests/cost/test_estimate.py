"""Estimates without a compiler: what is fused, what bounds it, and the roofline they share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import duotone
from duotone.cost import estimate as bound
from duotone.cost import fused
from duotone.cost.compiled_record import Kernel
from duotone.cost.estimate import Bound, bound_of, short_name
from duotone.cost.roofline import kernel_seconds, peak_of, time_by
from duotone.devices.assumed import assuming
from duotone.devices.specifications import find_target

H100 = find_target("h100")
N = 512
X = jax.ShapeDtypeStruct((N, N), jnp.float32)
SIZE = 4 * N * N
"""Bytes of one array in float32."""


def estimated(fn, *args, target=H100, dtype="float32") -> Bound:
    with assuming(target.device()):
        record = duotone.explain(fn, *args, dtype=dtype)
    return bound_of(record, target, 0, 0, 0)


def normed(x):
    return (x - x.mean(1, keepdims=True)) * jax.lax.rsqrt(x.var(1, keepdims=True) + 1e-6)


PROGRAMS = {
    # Both arguments in, one result out: however many operations.
    "chain": (lambda x, y: jnp.tanh(x + y) * 2 + jnp.exp(x), (X, X), 3 * SIZE, 1),
    "dot": (lambda x, y: x @ y, (X, X), 3 * SIZE, 1),
    "shape": (lambda x: (x @ x).reshape(N * N).reshape(4, -1).sum(0), (X,), None, 2),
    # The first dot computes the activation, which nothing else reads.
    "between dots": (lambda x, y: jax.nn.relu(x @ y) @ y, (X, X), 3 * SIZE + 3 * SIZE, 2),
    # The result of the dot is read twice, so it is written, and the activation apart.
    "read twice": (
        lambda x, y: (jnp.tanh(d := x @ y) @ y, d),
        (X, X),
        3 * SIZE + 2 * SIZE + 3 * SIZE,
        3,
    ),
    # Read for the sum, then again for the result.
    "sum": (lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x)), (X,), SIZE + 4 + SIZE + 4 + SIZE, 2),
    "picked": (lambda x: jax.lax.dynamic_slice(x, (0, 0), (2, N)), (X,), 2 * 2 * N * 4, 1),
    "placed": (
        lambda x, y: jax.lax.dynamic_update_slice(x, y[:2], (3, 0)),
        (X, X),
        None,
        1,
    ),
    # In each iteration a dot, and the counter.
    "loop": (
        lambda x: jax.lax.scan(lambda h, _: (jnp.tanh(h @ x), None), x, length=5)[0],
        (X,),
        5 * (3 * SIZE + 8),
        10,
    ),
    # And a kernel that writes the carried state, which is stacked too.
    "stack": (
        lambda x: jax.lax.scan(lambda h, _: ((h := h @ x), h), x, length=5)[1],
        (X,),
        5 * (3 * SIZE + 2 * SIZE + 8),
        15,
    ),
    # The first result is written, though the kernel of the second one could compute it.
    "results": (lambda x, m: ((y := 0.9 * m + x), x * y - 1), (X, X), 4 * SIZE, 1),
    # Two readers of two parts read the whole.
    "parts": (lambda x: (jnp.tanh(x[:256]), jnp.tanh(x[256:])), (X,), 2 * SIZE, 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_fused_moves_once(name):
    fn, args, moved, kernels = PROGRAMS[name]
    seen = estimated(fn, *args)
    if moved is not None:
        assert seen.estimate.bytes == moved
    assert seen.estimate.kernel_count == kernels


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [*PROGRAMS, "norm"])
def test_the_estimate_lies_between_its_bounds(name, dtype):
    fn, args, *_ = PROGRAMS.get(name, (jax.grad(lambda x: (normed(x) @ x).sum()), (X,)))
    seen = estimated(fn, *args, dtype=dtype)
    assert seen.least_seconds <= seen.estimate.seconds <= seen.most_seconds


def test_the_flops_are_those_of_the_compiled_program():
    def loss(w, x):
        return jnp.sum(jax.nn.softmax(jax.nn.gelu(x @ w) @ w.T) ** 2)

    step = jax.value_and_grad(loss)
    seen = estimated(step, X, X).estimate
    compiled = duotone.compile_for(step, X, X, target="cpu")
    assert seen.total_flops == compiled.total_flops
    assert sum(seen.dots.values()) == sum(compiled.dots.values())


@pytest.mark.parametrize("where", ["_FUSIBLE", "_REDUCTIONS", "_PICKED"])
def test_a_planted_fault_in_the_model_is_seen(monkeypatch, where):
    def wrong() -> set[str]:
        seen = {name: estimated(p[0], *p[1]).estimate for name, p in PROGRAMS.items()}
        return {
            name
            for name, (_, _, moved, kernels) in PROGRAMS.items()
            if seen[name].kernel_count != kernels or moved not in (None, seen[name].bytes)
        }

    assert not wrong()
    monkeypatch.setattr(fused, where, frozenset())
    assert wrong() >= {"_FUSIBLE": {"chain"}, "_REDUCTIONS": {"sum"}, "_PICKED": {"picked"}}[where]


def test_half_moves_half_and_dots_run_at_their_peak():
    full, half = (estimated(lambda x: x @ x, X, dtype=d) for d in ("float32", "bfloat16"))
    assert full.estimate.flops == {"f32×f32→f32": 2 * N**3}
    assert list(half.estimate.flops) in (["bf16×bf16→f32"], ["bf16×bf16→bf16"])
    assert half.estimate.half_flops_share == 1
    assert full.least_seconds == pytest.approx(2 * N**3 / H100.peak["tf32"])
    assert half.least_seconds == pytest.approx(2 * N**3 / H100.peak["bf16"])
    v100 = find_target("v100")
    seen = estimated(lambda x: x @ x, X, target=v100)
    assert seen.least_seconds == pytest.approx(2 * N**3 / v100.peak["f32"])


@pytest.mark.parametrize(
    ("precision", "math", "passes"),
    [
        ("highest", "f32", 1),
        ("default", "tf32", 1),
        (jax.lax.DotAlgorithmPreset.TF32_TF32_F32, "tf32", 1),
        (jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3, "bf16", 3),
    ],
)
def test_a_precision_that_was_asked_for_takes_its_time(precision, math, passes):
    seen = estimated(lambda x: jnp.dot(x, x, precision=precision), X)
    assert seen.least_seconds == pytest.approx(2 * N**3 * passes / H100.peak[math])


def test_a_cast_of_an_argument_is_a_kernel():
    seen = estimated(lambda x: x @ x, X, dtype="bfloat16").estimate
    assert seen.casts == 1
    (cast,) = (kernel for kernel in seen.kernels if kernel.casts)
    assert cast.bytes == SIZE + SIZE // 2


def test_layers_on_one_line_are_one_kernel_with_their_runs():
    def layers(x):
        for _ in range(4):
            x = jnp.sin(x) @ x
        return x

    seen = estimated(layers, X).estimate
    assert sorted((k.op, k.runs) for k in seen.kernels) == [("dot_general", 4), ("sin", 4)]
    assert "test_estimate.py" in seen.kernels[0].source


def test_a_rewritten_program_inside_is_half_in_the_estimate():
    step = jax.grad(lambda x: duotone.autocast(lambda y: jnp.tanh(y @ y), dtype="float16")(x).sum())
    seen = estimated(step, X).estimate
    assert seen.half_flops_share > 0.6
    assert seen.total_flops == 3 * 2 * N**3


def test_where_the_time_goes():
    kernel = Kernel("k", "dot", 0, 1e12, "f32", 0.0, 2, "")

    def of(moved, calculating):
        seconds = kernel_seconds(H100, moved, calculating)
        return Kernel("k", "dot", moved, 0.0, "", seconds, 2, "")

    second = int(H100.bandwidth)
    shares = time_by([of(second, 3.0), of(second, 0.5), of(second, 1.0)], H100)
    assert shares["dots"] == pytest.approx(3 / 5, abs=1e-5)
    assert shares["bandwidth"] == pytest.approx(2 / 5, abs=1e-5)
    assert sum(shares.values()) == pytest.approx(1)
    assert time_by([of(0, 0.0)], H100)["launches"] == 1
    assert time_by([kernel], find_target("cpu")) == {}
    assert time_by([], H100) == {}


def test_peaks_and_names():
    assert peak_of(find_target("v5e"), "default") == find_target("v5e").peak["bf16"]
    assert peak_of(H100, "f8e4m3fn") == H100.peak["f8"]
    assert peak_of(find_target("v100"), "bf16") == find_target("v100").peak["f32"]
    assert (short_name("uint8"), short_name("key<fry>")) == ("u8", "key<fry>")
    assert bound.bits_of("bool") == 8


def test_what_does_not_run_costs_nothing():
    nothing = jax.ShapeDtypeStruct((0, N), jnp.float32)
    seen = estimated(lambda x: jax.lax.scan(lambda h, _: (h @ h, None), x, length=0)[0], X)
    assert seen.estimate.total_flops == 0
    assert estimated(lambda x: jnp.sin(x), nothing).estimate.bytes == 0


def test_what_an_optimizer_writes_is_one_kernel_that_reads_the_gradient_once():
    def update(weight, moment, gradient):
        return weight - 0.1 * gradient, 0.9 * moment + gradient

    # Three arrays in, two results out; a kernel for each result would read two or three.
    seen = estimated(update, X, X, X).estimate
    assert (seen.kernel_count, seen.bytes) == (1, 5 * SIZE)


def test_a_result_that_needs_a_sum_is_a_kernel_of_its_own():
    seen = estimated(lambda x: (x - jnp.sum(x), x + 1), X).estimate
    assert seen.kernel_count == 2  # the sum, and both results


def test_siblings_with_a_kernel_between_them_do_not_merge():
    seen = estimated(lambda x: jnp.exp(x) + jnp.sum(jnp.tanh(x) @ x, 0), X).estimate
    # The result reads x as tanh does, and needs the sum of the dot, which needs tanh.
    assert seen.kernel_count == 4


def test_a_scatter_computes_its_updates():
    where = jnp.arange(N) % 4
    seen = estimated(lambda x: jnp.zeros((4, N)).at[where].add(jnp.tanh(x) * 2), X).estimate
    names = [kernel.name for kernel in seen.kernels]
    assert "scatter-add" in names
    assert "mul" not in names


def test_the_one_line_step_is_faster_in_half_in_the_estimate():
    optax = pytest.importorskip("optax")
    optimizer = duotone.enable_mixed_precision_graph_rewrite(optax.adam(1e-3))

    def loss(weights, x):
        for weight in weights:
            x = jax.nn.relu(x @ weight)
        return jnp.mean(x**2)

    def step(weights, state, x):
        return optimizer.minimize(loss, weights, state, x)

    weights = [jax.ShapeDtypeStruct((4096, 4096), jnp.float32)] * 4
    state = jax.eval_shape(optimizer.init, weights)
    seen = duotone.compare(step, weights, state, weights[0], targets="h100", exact=False)
    assert 1.4 < (seen.row("h100").speedup or 0.0) < 1.8
    # Each array of weights, moments and gradients is read and written a few times at most.
    assert seen.row("h100").bytes < 80 * 4 * 4096**2
    for row in seen.rows:
        assert row.seconds < (row.most_seconds or 0.0)


DOUBTED = {
    "short kernels in loops": (
        lambda x: jax.lax.scan(lambda h, _: (jnp.tanh(h) + 1, None), x[:4], length=50)[0],
        (X,),
    ),
    "sorts": (lambda x: jnp.sort(x), (X,)),
    "convolutions in groups": (
        lambda x, w: jax.lax.conv_general_dilated(x, w, (1,), "SAME", feature_group_count=64),
        (
            jax.ShapeDtypeStruct((8, 64, N), jnp.float32),
            jax.ShapeDtypeStruct((64, 1, 8), "float32"),
        ),
    ),
    "half dots of odd sizes": (
        lambda x: jax.numpy.einsum("bij,bkj->bik", x, x),
        (jax.ShapeDtypeStruct((64, 197, 197), jnp.float32),),
    ),
    "dots that wait for memory": (lambda x, y: x @ y, (X, X)),
}


@pytest.mark.parametrize("reason", DOUBTED)
def test_no_figure_where_an_estimate_may_be_far_off(reason):
    fn, args = DOUBTED[reason]
    seen = duotone.compare(fn, *args, targets="h100", dtype="bfloat16", exact=False)
    row = seen.row("h100")
    assert reason in row.doubt
    assert (row.seconds, row.bytes, row.speedup, row.most_expensive) == (0, 0, None, ())
    assert (row.least_seconds or 0.0) < (row.most_seconds or 0.0)
    assert any("no estimate of" in note and reason in note for note in seen.notes)


def test_a_loop_of_long_kernels_has_an_estimate():
    large = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)

    def layers(x):
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ x), None), x, length=5)[0]

    assert not estimated(layers, large).doubt


def test_one_kernel_computes_a_softmax_of_half_rows():
    def softmax(x, y):
        return jax.nn.softmax(x @ y) @ y

    full, half = (estimated(softmax, X, X, dtype=d).estimate for d in ("float32", "bfloat16"))
    rows = {"reduce_max", "reduce_sum"}
    assert rows & {kernel.name for kernel in full.kernels}
    assert not rows & {kernel.name for kernel in half.kernels}


def test_a_scatter_reads_no_more_than_its_operand():
    where = jnp.arange(N) % 4
    seen = estimated(lambda x: jnp.zeros((4, N)).at[where].add(x), X).estimate
    (kernel,) = (kernel for kernel in seen.kernels if kernel.name == "scatter-add")
    # The updates are read and added to 4 rows; the indices are a constant.
    assert 2 * SIZE < kernel.bytes < 2.1 * SIZE


@pytest.mark.parametrize(("image", "window"), [(2, 1), (1, 2)])
def test_a_dilated_operand_is_filled_with_zeros_on_a_gpu(image, window):
    def forward(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), [(0, 0)] * 2, (image,) * 2, (window,) * 2)

    args = (
        jax.ShapeDtypeStruct((8, 64, 32, 32), jnp.float32),
        jax.ShapeDtypeStruct((64, 64, 4, 4), jnp.float32),
    )
    gpu, tpu = (estimated(forward, *args, target=find_target(t)).estimate for t in ("h100", "v5e"))
    more = 4 if image == 2 else (7 / 4) ** 2
    assert gpu.total_flops == pytest.approx(more * tpu.total_flops)
    assert ("pad" in {kernel.name for kernel in gpu.kernels}) == (image == 2)


def test_a_dilated_convolution_counts_no_products_with_zeros():
    def forward(x, w):
        return jax.lax.conv_general_dilated(x, w, (2, 2), "SAME")

    def back(x, w):
        return jax.grad(lambda x: forward(x, w).sum())(x)

    args = (jax.ShapeDtypeStruct((8, 64, 32, 32), jnp.float32), jnp.ones((64, 64, 4, 4)))
    once = estimated(forward, *args).estimate.total_flops
    assert estimated(back, *args).estimate.total_flops == 2 * once  # forward, and its transpose
