"""Old names are errors that say the new one."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import duotone
from duotone import _renamed

W, X = jnp.ones((8, 8)), jnp.ones((2, 8))


def predict(w: Any, x: Any) -> Any:
    return x @ w


@pytest.mark.parametrize(("old", "new"), _renamed.NAMES.items())
def test_an_old_name(old: str, new: str):
    assert new in duotone.__all__
    assert old not in dir(duotone)
    with pytest.raises(AttributeError, match=rf"^duotone\.{old} is now duotone\.{new}$"):
        getattr(duotone, old)


@pytest.mark.parametrize(("function", "argument"), _renamed.ARGUMENTS)
def test_an_old_argument(function: str, argument: str):
    call: Any = getattr(duotone, function)
    with pytest.raises(TypeError, match=rf"^{function}: {argument}= is now \w+="):
        call(predict, **{argument: W})


def test_what_was_never_a_name_is_not_in_the_way():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = duotone.nothing
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        duotone.autocast(predict, nothing=3)  # type: ignore[call-overload]


def test_a_function_of_the_user_may_have_an_argument_of_the_old_name():
    def own(x: Any, static: Any) -> Any:
        return x @ static

    seen = duotone.explain(own, X, static=W, dtype="float16")
    assert seen.summary.allow_half == 1
    assert duotone.autocast(own, dtype="float16")(X, static=W).shape == (2, 8)
