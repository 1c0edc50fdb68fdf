"""What goes wrong before a program is painted: each error names the argument and the remedy.

Each test that can follows the remedy and sees that it helps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
import traceback
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.errors import (
    ArgumentError,
    ArgumentTypeError,
    DuotoneError,
    LeakedTracerError,
    OutputError,
    PolicyError,
    PolicyTypeError,
    RewriteError,
    UnknownOperationError,
)

FORCED = duotone.Policy(ignore_performance=True)
X = np.eye(8, dtype=np.float32)


def mixed(function: Any, **edits: Any) -> Any:
    return duotone.autocast(function, dtype="float16", policy=FORCED.replace(**edits))


def dense(x: Any, w: Any = X) -> Any:
    return jnp.tanh(x @ w) @ w


# The function


@pytest.mark.parametrize("fn", [3, "loss", X, object()], ids=["int", "str", "array", "object"])
@pytest.mark.parametrize("entry", ["autocast", "explain", "compile_for", "calibrate"])
def test_not_a_callable(entry: str, fn: Any):
    says = rf"{entry}: fn is .*not callable; pass the function itself, not what it returns"
    with pytest.raises(ArgumentTypeError, match=says):
        getattr(duotone, entry)(fn, *([[X]] if entry == "calibrate" else []))


@pytest.mark.parametrize("entry", ["autocast", "explain", "compile_for", "calibrate"])
def test_of_an_array_a_message_shows_the_type_only(entry: str):
    with pytest.raises(ArgumentTypeError, match=r"fn is an array of float32\[100, 100\], which"):
        getattr(duotone, entry)(jnp.zeros((100, 100)), *([[X]] if entry == "calibrate" else []))


def test_the_result_of_a_function_instead_of_the_function():
    with pytest.raises(ArgumentTypeError, match="pass the function itself"):
        duotone.autocast(dense(X))  # pyright: ignore[reportArgumentType]
    assert mixed(dense)(X).shape == (8, 8)


def test_an_error_of_ours_is_also_the_builtin_one():
    with pytest.raises(TypeError):
        duotone.autocast(3)  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(ValueError, match="half type"):
        duotone.autocast(dense, dtype="float64")


# The dtype


@pytest.mark.parametrize("dtype", ["float64", jnp.float64, np.int8, "float8_e4m3fn", complex])
@pytest.mark.parametrize("entry", ["autocast", "explain"])
def test_a_dtype_that_is_no_half_type(entry: str, dtype: Any):
    with pytest.raises(ArgumentError, match=r"dtype is .*not a half type.*float16.*bfloat16"):
        getattr(duotone, entry)(dense, *([X] if entry == "explain" else []), dtype=dtype)


@pytest.mark.parametrize("dtype", ["half precision", object(), "fp8"])
def test_a_dtype_that_is_none(dtype: Any):
    with pytest.raises(ArgumentTypeError, match=r"dtype is .*not a dtype.*float16"):
        duotone.autocast(dense, dtype=dtype)


@pytest.mark.parametrize("dtype", [jnp.float16, "bfloat16", np.dtype("float16"), np.float16])
def test_every_spelling_of_a_half_type_is_taken(dtype: Any):
    assert duotone.autocast(dense, dtype=dtype, policy=FORCED)(X).dtype == np.float32


def test_the_dtype_in_the_policys_place():
    with pytest.raises(ArgumentTypeError, match=r"policy is .*pass a duotone\.Policy"):
        duotone.autocast(dense, policy="float16")  # pyright: ignore[reportArgumentType, reportCallIssue]


# Arguments of the user's function that are called like ours


def named(
    x: Any, dtype: Any = None, policy: Any = None, target: Any = None, calibration: Any = None
) -> Any:
    given = jax.tree.leaves([dtype, policy, target, calibration])
    return sum([array for array in given if not isinstance(array, type)], x @ X)


@pytest.mark.parametrize(
    ("entry", "given", "says"),
    [
        ("explain", {"policy": {"w": X}}, r"policy is a dict; .*partial\(fn, policy=\.\.\.\)"),
        ("explain", {"dtype": jnp.float64}, r"dtype is float64.*partial\(fn, dtype=\.\.\.\)"),
        ("explain", {"dtype": X}, r"dtype is an array of float32\[8, 8\], .*partial\(fn, dtype="),
        (
            "compile_for",
            {"target": X},
            r"target an array of float32\[8, 8\] is not known\. Known: ",
        ),
        (
            "explain",
            {"calibration": X},
            r"calibration is an array.*partial\(fn, calibration=\.\.\.\)",
        ),
        ("compile_for", {"target": X}, r"cpu; .*functools\.partial\(fn, target=\.\.\.\)"),
        ("cast_params", {"policy": {"w": X}}, r"cast_params: policy is a dict; .*partial\(fn, pol"),
    ],
)
def test_an_argument_that_is_called_like_ours(entry: str, given: Any, says: str):
    with pytest.raises((ArgumentTypeError, ArgumentError), match=says):
        getattr(duotone, entry)(named, X, **given)
    ours = {"target": "cpu"} if entry == "compile_for" else {"dtype": "float16"}
    assert getattr(duotone, entry)(functools.partial(named, **given), X, **ours)


# The policy


def test_an_unknown_operation_name_is_met_with_a_close_one():
    with pytest.raises(UnknownOperationError, match=r"deny_add.*dot_general") as raised:
        mixed(dense, deny_add={"dot_genral"})(X)
    assert "dot_genral" in str(raised.value)
    denied = mixed(dense, deny_add={"dot_general"})
    assert "float16" not in str(jax.make_jaxpr(denied)(X))


@pytest.mark.parametrize(
    ("name", "hint"), [("MatMul", "dot_general"), ("Conv2D", "conv_general_dilated")]
)
def test_a_tensorflow_name_is_met_with_jaxs(name: str, hint: str):
    with pytest.raises(UnknownOperationError, match=hint):
        mixed(dense, allow_add={name})(X)


def test_an_own_primitive_in_the_program_is_a_known_name():
    def f(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((8, 8), np.float32)
        return jax.pure_callback(np.sin, shape, dense(x), vmap_method="sequential")

    assert mixed(f, deny_add={"pure_callback"})(X).shape == (8, 8)


def test_one_string_for_a_list():
    with pytest.raises(PolicyTypeError, match=r"deny_add='exp'.*deny_add=\['exp'\]"):
        duotone.Policy(deny_add="exp")  # pyright: ignore[reportArgumentType]
    assert duotone.Policy(deny_add=["exp"]).deny_add == {"exp"}


def test_an_operation_on_two_lists():
    with pytest.raises(PolicyError, match=r"'exp'.*allow_add.*deny_add.*keep it in one"):
        duotone.Policy(allow_add=["exp"], deny_add=["exp"])


def test_an_operation_added_and_removed():
    with pytest.raises(PolicyError, match=r"'exp'.*added.*removed.*[Dd]rop it from one"):
        duotone.Policy(deny_add=["exp"], deny_remove=["exp"])


def test_a_pattern_kept_full_and_half():
    with pytest.raises(PolicyError, match=r"keep_full.*keep_half.*drop it from one"):
        duotone.Policy(keep_full=["*/head/*"], keep_half=["*/head/*"])


def test_two_patterns_that_meet_in_one_operation():
    def f(x: Any) -> Any:
        with jax.named_scope("model"), jax.named_scope("head"):
            return dense(x)

    both = {"keep_full": ["*head*"], "keep_half": ["model/*"]}
    with pytest.raises(
        PolicyError, match=r"model/head.*'\*head\*'.*'model/\*'.*narrower"
    ) as raised:
        mixed(f, **both)(X)
    assert Path(__file__).name in str(raised.value), "the user's line is named"
    assert mixed(f, keep_full=["*head/dot_general"], keep_half=["model/head/tanh"])(X).shape == (
        8,
        8,
    )


def test_a_pattern_against_a_region():
    def f(x: Any) -> Any:
        with jax.named_scope("head"), duotone.keep_half():
            return dense(x)

    with pytest.raises(PolicyError, match=r"'\*head\*'.*region keep_half\(\).*remove one"):
        mixed(f, keep_full=["*head*"])(X)
    assert mixed(f)(X).shape == (8, 8)


def test_nested_regions_are_no_contradiction():
    def f(x: Any) -> Any:
        with duotone.keep_half():
            y = x @ X
            with duotone.keep_full():
                return jnp.exp(y) @ X

    assert mixed(f)(X).dtype == np.float32


def test_half_forced_on_what_does_not_take_it():
    def f(x: Any) -> Any:
        return jax.lax.reduce(x @ X, np.float32(0), lambda a, b: a + b * 0.5, (0,)) @ X

    with pytest.raises(RewriteError, match=r"reduce at .*keep_full\(\)") as raised:
        mixed(f, allow_add={"reduce"})(X)
    assert Path(__file__).name in str(raised.value)

    def kept(x: Any) -> Any:
        with duotone.keep_full():
            return f(x)

    assert mixed(kept, allow_add={"reduce"})(X).shape == (8,)


# Results that cannot leave


def test_a_generator():
    def f(x: Any) -> Any:
        return (row @ X for row in x)

    with pytest.raises(OutputError, match=r"autocast\(.*f\) returned a generator.*list or tuple"):
        mixed(f)(X)
    assert len(mixed(lambda x: list(f(x)))(X)) == 8


def test_a_generator_function():
    def f(x: Any) -> Any:
        yield x @ X

    with pytest.raises(OutputError, match="generator"):
        mixed(f)(X)


def test_an_iterator():
    with pytest.raises(OutputError, match=r"returned a map"):
        mixed(lambda x: map(jnp.sin, x))(X)


def test_a_coroutine():
    async def f(x: Any) -> Any:
        return x @ X

    with pytest.raises(OutputError, match=r"returned a coroutine.*return arrays"):
        mixed(f)(X)


class Holder:
    """JAX does not take it apart."""

    def __init__(self, array: Any) -> None:
        self.array = array


class Slotted:
    """The same without a ``__dict__``."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array


@pytest.mark.parametrize("kind", [Holder, Slotted])
def test_an_object_that_hides_a_traced_value(kind: Any):
    with pytest.raises(LeakedTracerError, match=rf"{kind.__name__} that contains a traced value"):
        mixed(lambda x: kind(x @ X))(X)


def test_a_closure_that_hides_a_traced_value():
    def f(x: Any) -> Any:
        y = x @ X
        return lambda: y

    with pytest.raises(LeakedTracerError, match="function"):
        mixed(f)(X)
    assert mixed(lambda x: jax.tree_util.Partial(dense, x @ X))(X)().shape == (8, 8)


def test_a_registered_object_may_leave():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Result:
        array: Any

    assert mixed(lambda x: Result(x @ X))(X).array.shape == (8, 8)


def test_an_object_without_traced_values_may_leave():
    holder = Holder(X)
    assert mixed(lambda x: (x @ X, holder))(X)[1] is holder


class Converts:
    """No array, but JAX would make one of it."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __jax_array__(self) -> Any:
        return jnp.asarray(self.array)


def test_a_result_that_converts_to_an_array():
    with pytest.raises(OutputError, match=r"returned a Converts.*return its array"):
        mixed(lambda x: Converts(x @ X))(X)


def test_an_argument_that_converts_to_an_array():
    with pytest.raises(ArgumentTypeError, match=r"argument 1\['w'\] is a Converts.*pass its array"):
        mixed(lambda x, p: x @ p["w"])(X, {"w": Converts(X)})
    with pytest.raises(ArgumentTypeError, match=r"argument w is a Converts"):
        mixed(lambda x, w: x @ w)(X, w=Converts(X))
    assert mixed(lambda x, p: x @ p["w"])(X, {"w": Converts(X).array}).shape == (8, 8)


# Traced values that leak


def test_a_value_that_an_earlier_call_left_behind():
    left: list[Any] = []

    def keeps(x: Any) -> Any:
        left.append(x @ X)
        return x

    def uses(x: Any) -> Any:
        return x @ left[0]

    mixed(keeps)(X)
    with pytest.raises(LeakedTracerError, match=r"autocast\(.*uses\).*pass it as an argument"):
        mixed(uses)(X)
    assert mixed(lambda x, y: x @ y)(X, X).shape == (8, 8)


def test_an_argument_that_its_trace_left_behind():
    left: list[Any] = []
    jax.make_jaxpr(lambda x: left.append(x))(X)
    with pytest.raises(LeakedTracerError, match="an argument is a traced value"):
        mixed(dense)(left[0])


def test_a_leak_is_jax_s_error_too_and_passes_through_another_autocast() -> None:
    left: list[Any] = []
    mixed(lambda x: left.append(x @ X))(X)
    inner = mixed(lambda x: x @ left[0])
    with pytest.raises(jax.errors.UnexpectedTracerError, match="earlier trace left") as found:
        mixed(lambda x: inner(x) + 1)(X)
    assert type(found.value) is LeakedTracerError
    assert isinstance(found.value, DuotoneError)
    assert pickle.loads(pickle.dumps(found.value)).args == found.value.args


def _in_nondiff_argnums(s: Any, x: Any) -> Any:
    times = jax.custom_vjp(lambda s, x: s * x, nondiff_argnums=(0,))
    times.defvjp(lambda s, x: (s * x, None), lambda s, _, g: (s * g,))
    return jnp.sum(times(s, x @ x))


def _in_a_composite(s: Any, x: Any) -> Any:
    return jax.lax.composite(lambda x, s: s * x, "scaled")(x @ x, s=s)


def _in_a_condition(s: Any, x: Any) -> Any:
    return x @ x if jnp.sum(s) > 0 else x


@pytest.mark.parametrize("function", [_in_nondiff_argnums, _in_a_composite, _in_a_condition])
@pytest.mark.parametrize("outside", [lambda f: f, jax.jit, lambda f: jax.grad(f, argnums=1)])
def test_other_errors_about_traced_values_are_jax_s_own(function: Any, outside: Any) -> None:
    def raised(wrapped: Any) -> Exception:
        with pytest.raises(TypeError) as found:
            wrapped(X, X)
        return found.value

    plain, half = raised(outside(jax.jit(function))), raised(outside(mixed(function)))
    assert type(half) is type(plain)
    assert str(half).split(".")[0] == str(plain).split(".")[0]


def test_a_method_that_stores_a_traced_value_is_caught_when_it_is_used():
    class Model:
        def __call__(self, x: Any) -> Any:
            self.hidden = x @ X
            return self.hidden @ X

        def probe(self, x: Any) -> Any:
            return self.hidden + x

    model = Model()
    mixed(model)(X)
    with pytest.raises(LeakedTracerError):
        mixed(model.probe)(X)


def test_a_closure_over_an_outer_trace_is_no_leak():
    def outer(w: Any, x: Any) -> Any:
        return jnp.sum(mixed(lambda x: dense(x, w))(x))

    gradient = jax.jit(jax.grad(outer))(X, X)
    np.testing.assert_allclose(gradient, jax.grad(lambda w: jnp.sum(dense(X, w)))(X), atol=0.05)


# Errors in user code


def raise_in_user_code(x: Any) -> Any:
    y = x @ X
    return jnp.dot(y, jnp.ones((3, 3)))  # the user's line


def _lines_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("wrap", ["plain", "jit", "grad", "scan", "vmap"])
def test_an_error_in_user_code_keeps_its_line(wrap: str):
    function: Any = {
        "plain": mixed(raise_in_user_code),
        "jit": jax.jit(mixed(raise_in_user_code)),
        "grad": jax.grad(lambda x: jnp.sum(mixed(raise_in_user_code)(x))),
        "scan": mixed(
            lambda x: jax.lax.scan(lambda c, _: (raise_in_user_code(c), None), x, None, 2)
        ),
        "vmap": jax.vmap(mixed(raise_in_user_code)),
    }[wrap]
    with pytest.raises(TypeError, match="dot_general requires contracting dimensions") as raised:
        function(np.stack([X, X]) if wrap == "vmap" else X)
    assert "the user's line" in _lines_of(raised.value)
    assert "raise_in_user_code" in _lines_of(raised.value)


def test_an_exception_of_the_users_own_passes_through():
    class UsersError(Exception):
        pass

    def f(x: Any) -> Any:
        raise UsersError("of the user")

    with pytest.raises(UsersError, match="of the user"):
        mixed(f)(X)


@pytest.mark.parametrize("mode", ["remove_frames", "tracebackhide", "off"])
def test_below_the_users_line_stands_nothing_of_duotone(mode: str):
    with pytest.raises(TypeError) as raised, _traceback_filtering(mode):
        mixed(raise_in_user_code)(X)
    frames = traceback.extract_tb(raised.value.__traceback__)
    (place,) = [i for i, frame in enumerate(frames) if frame.name == "raise_in_user_code"]
    ours = str(Path(duotone.__file__).parent)
    assert not [frame for frame in frames[place:] if frame.filename.startswith(ours)]


@contextlib.contextmanager
def _traceback_filtering(mode: str) -> Any:
    before = jax.config.jax_traceback_filtering  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_traceback_filtering", mode)
    yield
    jax.config.update("jax_traceback_filtering", before)


def test_a_branch_on_a_traced_value_is_jaxs_own_error():
    with pytest.raises(jax.errors.TracerBoolConversionError, match="bad_input"):
        mixed(lambda x: x if x[0, 0] > 0 else -x)(X)


def test_wrong_number_of_arguments_is_pythons_own_error():
    with pytest.raises(TypeError, match="positional argument"):
        mixed(dense)()
