"""``duotone.compile_for``: on the CPU at hand, and what it says when it cannot."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone import _jax
from duotone.cost import compile
from duotone.devices import topology
from duotone.devices.specifications import TARGETS, find_target
from duotone.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompilationError,
    MissingExtraError,
    UnknownTargetError,
)

X = jax.ShapeDtypeStruct((64, 32), jnp.float32)
W = jax.ShapeDtypeStruct((32, 32), jnp.float32)


def layer(x, w):
    return jnp.tanh(x @ w)


def test_the_cpu_at_hand():
    seen = duotone.compile_for(layer, X, W, target="cpu")
    assert isinstance(seen, duotone.CompiledRecord)
    assert seen.target == "cpu"
    assert seen.compiled_on_device
    assert seen.total_flops == 2 * 64 * 32 * 32
    assert sum(seen.dots.values()) == 1
    # The operands and the result at least; what lies between depends on what is fused.
    assert 4 * (64 * 32 + 32 * 32 + 64 * 32) <= seen.bytes <= 4 * (32 * 32 + 5 * 64 * 32)
    assert seen.argument_bytes == 4 * (64 * 32 + 32 * 32)
    assert seen.output_bytes == 4 * 64 * 32
    assert seen.peak_bytes == seen.argument_bytes + seen.output_bytes + seen.temporary_bytes
    assert seen.kernel_count == sum(kernel.runs for kernel in seen.kernels)
    assert seen.bytes == sum(kernel.bytes * kernel.runs for kernel in seen.kernels)
    assert "ENTRY" in seen.text
    assert seen.casts == 0
    assert seen.seconds == 0  # nothing is known of the speed of an unnamed CPU


def test_loops_count_their_trips():
    def layers(x, w):
        return jax.lax.scan(lambda x, _: (layer(x, w), None), x, length=9)[0]

    once = duotone.compile_for(layer, X, W, target="cpu")
    seen = duotone.compile_for(layers, X, W, target="cpu")
    assert seen.total_flops == 9 * once.total_flops
    assert sum(seen.dots.values()) == 9
    assert max(kernel.runs for kernel in seen.kernels) == 9


def test_arrays_stand_for_their_shapes_and_nothing_runs():
    def failing(x):
        jax.debug.callback(lambda: pytest.fail("it ran"))
        return x @ x.T

    by_shape = duotone.compile_for(failing, X, target="cpu")
    by_array = duotone.compile_for(failing, np.zeros((64, 32), np.float32), target="cpu")
    assert by_array.bytes == by_shape.bytes


def test_what_is_no_array_stays_as_it_is():
    def power(x, name, *, exponent):
        assert name == "cube"
        assert isinstance(exponent, int)
        return {"result": x**exponent, "name": name}

    seen = duotone.compile_for(power, X, "cube", exponent=3, target="cpu")
    assert seen.output_bytes == 4 * 64 * 32


def test_a_function_without_arrays():
    weights = jnp.ones((8, 8))
    for fn in (lambda: weights @ weights, jax.jit(lambda: weights @ weights)):
        assert duotone.compile_for(fn, target="cpu").output_bytes == 4 * 64


def test_static_arguments_of_a_jitted_function():
    def power(x, exponent):
        return x**exponent

    jitted = jax.jit(power, static_argnums=1)
    assert duotone.compile_for(jitted, X, 3, target="cpu").output_bytes == 4 * 64 * 32


def test_a_key_and_numpy_scalars_are_arguments():
    def noise(key, x, scale):
        return x + scale * jax.random.normal(key, x.shape)

    key = jax.eval_shape(lambda: jax.random.key(0))
    for fn in (noise, jax.jit(noise)):
        seen = duotone.compile_for(fn, key, X, np.float32(0.1), target="cpu")
        assert seen.argument_bytes >= 4 * 64 * 32 + 8
    static = jax.jit(noise, static_argnums=2)
    duotone.compile_for(static, key, X, np.float32(0.1), target="cpu")


def test_donation_is_kept():
    def update(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.sum(layer(x, w)))(w)

    jitted = jax.jit(update, donate_argnums=0)
    for fn in (jitted, duotone.autocast(jitted, dtype=jnp.bfloat16)):
        assert duotone.compile_for(fn, W, X, target="cpu").alias_bytes == 4 * 32 * 32
    assert duotone.compile_for(update, W, X, target="cpu").alias_bytes == 0


def test_a_record_can_be_read_printed_and_kept():
    def grad(x, w):
        return jax.grad(lambda w: jnp.sum(layer(x, w)))(w)

    seen = duotone.compile_for(duotone.autocast(grad, dtype="float16"), X, W, target="cpu")
    largest = seen.largest(2)
    assert len(largest) == 2
    assert largest[0].total_bytes == max(kernel.total_bytes for kernel in seen.kernels)
    for by in ("bytes", "seconds", "flops"):
        assert len(seen.largest(1, by=by)) == 1
    for by in ("bites", "op", "runs"):
        with pytest.raises(ArgumentError, match="it takes 'bytes', 'seconds', 'flops'"):
            seen.largest(by=by)
    text = str(seen)
    for part in ("bytes moved", "casts", largest[0].op, "temporary", "compiled on it"):
        assert part in text
    data = json.loads(seen.to_json())
    assert data["bytes"] == seen.bytes
    assert data["peak_bytes"] == seen.peak_bytes
    assert len(data["kernels"]) == len(seen.kernels)
    assert "text" not in data
    assert "kernels" not in json.loads(seen.to_json(kernels=False))
    assert "ENTRY" in json.loads(seen.to_json(text=True))["text"]
    assert 0 <= seen.half_flops_share <= 1


def test_an_unknown_target_names_the_known_and_the_nearest():
    with pytest.raises(UnknownTargetError, match="did you mean 'h200'") as caught:
        duotone.compile_for(layer, X, W, target="h20O")
    for name in TARGETS:
        assert name in str(caught.value)
    assert duotone.compile_for(layer, X, W, target="CPU").target == "cpu"  # the advice, any case


def test_an_unknown_target_without_a_near_name():
    with pytest.raises(UnknownTargetError, match=r"target 'mi300' is not known\. Known: b200, "):
        duotone.compile_for(layer, X, W, target="mi300")


@pytest.mark.parametrize("target", [3, None, b"cpu"])
def test_a_target_that_is_no_name(target):
    with pytest.raises(UnknownTargetError, match="is not known"):
        duotone.compile_for(layer, X, W, target=target)


def test_what_is_no_function():
    with pytest.raises(ArgumentTypeError, match="not callable"):
        duotone.compile_for(3, X, target="cpu")  # type: ignore[arg-type]


def _fresh(name):
    """A target that nothing has asked for."""
    return dataclasses.replace(find_target(name))


def test_a_missing_extra_names_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(_jax, "cuda_plugin", lambda: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'duotone\[cuda\]'"):
        duotone.compile_for(layer, X, W, target=_fresh("h200"))
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'duotone\[tpu\]'"):
        duotone.compile_for(layer, X, W, target=_fresh("v5e"))


def test_a_gpu_that_cuda_13_no_longer_assembles_for(monkeypatch):
    monkeypatch.setattr(_jax, "cuda_plugin", lambda: "jax_plugins.xla_cuda13")
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="nvidia-cuda-nvcc-cu12"):
        topology._gpu_options(find_target("v100"))
    assert topology._gpu_options(find_target("t4")) == {"xla_gpu_autotune_level": 0}


def test_a_compiler_that_does_not_start(monkeypatch):
    def broken(target, count):
        raise RuntimeError("no such library")

    monkeypatch.setattr(topology, "_tpus", broken)
    with pytest.raises(CompilationError, match=r"'v6e'.*no such library"):
        duotone.compile_for(layer, X, W, target=_fresh("v6e"))


def test_a_program_that_the_compiler_refuses():
    strange = dataclasses.replace(find_target("cpu"), options={"no_such_option": True})
    with pytest.raises(CompilationError, match="no_such_option"):
        duotone.compile_for(layer, X, W, target=strange)


def test_a_program_that_jax_cannot_read():
    """A compiler newer than JAX writes what JAX does not know."""

    class Compiled:
        def as_text(self):
            raise jax.errors.JaxRuntimeError("INTERNAL: async-update instruction")

    class Silent:
        def as_text(self):
            return None

    with pytest.raises(CompilationError, match=r"v5p.*async-update.*install the one that JAX"):
        compile._text_of(Compiled(), find_target("v5p"))
    with pytest.raises(CompilationError, match="v5p gives no program text"):
        compile._text_of(Silent(), find_target("v5p"))


def test_variables_for_the_time_of_a_start_are_taken_back(monkeypatch):
    monkeypatch.setenv("DUOTONE_TEST_SET", "mine")
    monkeypatch.delenv("DUOTONE_TEST_FREE", raising=False)
    with topology._environment({"DUOTONE_TEST_SET": "a", "DUOTONE_TEST_FREE": "b"}):
        assert topology.os.environ["DUOTONE_TEST_SET"] == "mine"
        assert topology.os.environ["DUOTONE_TEST_FREE"] == "b"
    assert "DUOTONE_TEST_FREE" not in topology.os.environ


def test_a_device_that_is_present_is_used(monkeypatch):
    @dataclasses.dataclass
    class Device:
        platform: str
        device_kind: str

    there = Device("gpu", "NVIDIA H200")
    monkeypatch.setattr(topology.jax, "local_devices", lambda: [Device("gpu", "other"), there])
    found = topology.find(_fresh("h200"))
    assert found.devices == (there,)
    assert found.present
    assert not found.options  # with the device, kernels are measured and chosen


class _Refusing:
    """A lowered program whose compiler refuses Triton's dots."""

    def __init__(self, reason):
        self.reason, self.options = reason, []

    def lower(self, **_):
        return self

    def compile(self, compiler_options):
        self.options.append(compiler_options)
        if compiler_options.get("xla_gpu_enable_triton_gemm", True):
            raise jax.errors.JaxRuntimeError(self.reason)
        return "compiled"


def absent(**options):
    return topology.CompileDevices((), False, options)


def test_dots_that_triton_has_no_tiles_for_are_compiled_without_it_and_it_is_reported():
    program, notes = _Refusing("INTERNAL: Couldn't find output tile sizes that satisfy hlo"), []
    target = find_target("h200")
    made = compile._compile(program, target, absent(a=1), notes)
    assert made == "compiled"
    assert program.options == [{"a": 1}, {"a": 1, "xla_gpu_enable_triton_gemm": False}]
    assert len(notes) == 1
    assert "Triton" in notes[0]


def test_other_refusals_are_errors():
    for reason, found in (
        ("RESOURCE_EXHAUSTED: memory", absent()),
        ("INTERNAL: Couldn't find output tile sizes", topology.CompileDevices((), True, {})),
    ):
        program, notes = _Refusing(reason), []
        with pytest.raises(CompilationError, match="refused the program"):
            compile._compile(program, find_target("h200"), found, notes)
        assert len(program.options) == 1
        assert not notes
