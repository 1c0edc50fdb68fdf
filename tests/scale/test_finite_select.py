"""The finite check, and keeping or replacing a tree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.scale import all_finite, select_tree

# ---- all_finite


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2", "float32", "complex64"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_bad_number_anywhere_is_found(dtype: str, bad: float):
    good = jnp.ones((3, 5)).astype(dtype)
    tree = {"a": [good, jnp.arange(3)], "b": (good, None)}
    assert bool(all_finite(tree))
    tree["a"][0] = good.at[2, 4].set(bad)
    assert not bool(all_finite(tree))


def test_bad_imaginary_part_is_found():
    assert not bool(all_finite(jnp.asarray([complex(0, np.nan)], jnp.complex64)))


@pytest.mark.parametrize(
    "tree",
    [
        {},
        None,
        [],
        jnp.zeros((0, 4)),
        jnp.arange(4),
        np.zeros(3, jax.dtypes.float0),
        jax.random.key(0),
        [jnp.asarray(True), "text", jax.nn.relu],
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_a_tree_without_numbers_is_finite(tree: Any):
    finite = all_finite(tree)
    assert bool(finite)
    assert (finite.shape, finite.dtype) == ((), jnp.bool_)


def test_the_largest_numbers_are_finite():
    largest = [jnp.finfo(t).max for t in (jnp.float16, jnp.bfloat16, jnp.float32)]
    assert bool(all_finite([largest, 1.0, np.float32(3)]))
    assert not bool(all_finite([largest, float("nan")]))


def test_no_leaf_is_cast_or_copied():
    program = str(jax.make_jaxpr(all_finite)([jnp.ones(4, jnp.float16), jnp.ones(4)]))
    assert "convert_element_type" not in program
    assert program.count("is_finite") == 2


def test_devices_agree_over_a_named_axis():
    rows = jnp.array([[1.0, 2.0], [jnp.inf, 2.0]])
    apart = jax.vmap(all_finite, axis_name="data")(rows)
    agreed = jax.vmap(lambda row: all_finite(row, axis_name="data"), axis_name="data")(rows)
    assert apart.tolist() == [True, False]
    assert agreed.tolist() == [False, False]


@pytest.mark.parametrize("wrong", [3, [0], {"data"}, b"data"])
def test_axis_name_of_the_wrong_type(wrong: Any):
    with pytest.raises(ArgumentTypeError, match="axis_name must be"):
        all_finite(jnp.ones(2), axis_name=wrong)


# ---- select_tree


def test_every_leaf_is_kept_or_replaced_exactly():
    def tree(seed: int) -> dict[str, Any]:
        return {
            "half": jnp.full(3, seed, jnp.bfloat16),
            "int": jnp.asarray(seed),
            "bool": jnp.asarray(seed == 1),
            "complex": jnp.asarray(seed * 1j),
            "key": jax.random.key(seed),
            "float0": np.zeros(2, jax.dtypes.float0),
            "none": None,
            "activation": jax.nn.relu,
            "name": "adam",
            "python": seed,
        }

    new, old = tree(1), tree(2)
    static = {"activation": None, "name": None}
    for pred, kept in ((True, new), (False, old)):
        out = select_tree(pred, new, old)
        assert out["activation"] is jax.nn.relu
        assert out["name"] == "adam"
        compiled = jax.jit(lambda p: select_tree(p, new | static, old | static))(pred)
        for got in (out, compiled):
            np.testing.assert_array_equal(
                jax.random.key_data(got["key"]), jax.random.key_data(kept["key"])
            )
            for name in ("half", "int", "bool", "complex", "python"):
                np.testing.assert_array_equal(got[name], kept[name])
        assert out["half"].dtype == jnp.bfloat16
        assert out["float0"].dtype == jax.dtypes.float0


def test_infinities_of_the_tree_not_chosen_do_not_leak():
    bad = {"w": jnp.full(4, jnp.nan, jnp.float16)}
    good = {"w": jnp.arange(4, dtype=jnp.float16)}
    np.testing.assert_array_equal(select_tree(False, bad, good)["w"], good["w"])


def test_inside_vmap_each_row_chooses():
    out = jax.vmap(select_tree)(jnp.array([True, False]), jnp.ones((2, 3)), jnp.zeros((2, 3)))
    assert out.tolist() == [[1, 1, 1], [0, 0, 0]]


def test_weak_and_strong_types_of_one_dtype_meet():
    assert float(select_tree(jnp.asarray(True), 2.0, jnp.float32(3))) == 2


@pytest.mark.parametrize("wrong", [1, None, jnp.ones(2, bool), jnp.asarray(1)])
def test_pred_must_be_one_boolean(wrong: Any):
    with pytest.raises(ArgumentTypeError, match="pred must be one boolean"):
        select_tree(wrong, jnp.ones(2), jnp.ones(2))


@pytest.mark.parametrize(
    ("new", "old", "message"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, r"on_true has leaf \['b'\], which on_false does not have"),
        (
            {"a": 1},
            {"a": 1, "c": [2, 3]},
            r"on_false has leaf \['c'\]\[0\], which on_true does not have",
        ),
        (jnp.ones(2), [jnp.ones(2)], "on_true has a single leaf, which on_false does not have"),
        ([1, 2], (1, 2), r"on_true is PyTreeDef\(\[\*, \*\]\) and on_false is"),
    ],
)
def test_trees_of_another_structure(new: Any, old: Any, message: str):
    with pytest.raises(ArgumentError, match=message):
        select_tree(True, new, old)


def test_a_leaf_of_another_dtype_is_named():
    new, old = {"w": [jnp.ones(3, jnp.float32)]}, {"w": [jnp.ones(3, jnp.float16)]}
    with pytest.raises(ArgumentError, match=r"leaf \['w'\]\[0\] is float32\[3\].*float16\[3\]"):
        select_tree(True, new, old)
    fixed = jax.tree.map(lambda n, o: n.astype(o.dtype), new, old)  # the advice
    assert select_tree(True, fixed, old)["w"][0].dtype == jnp.float16


def test_a_leaf_of_another_shape_is_named():
    with pytest.raises(ArgumentError, match=r"\(the whole tree\) is float32\[3\].*float32\[1\]"):
        select_tree(True, jnp.ones(3), jnp.ones(1))


def test_a_leaf_that_is_no_array_must_be_the_same():
    with pytest.raises(ArgumentError, match="Only arrays can be chosen"):
        select_tree(True, {"name": "adam"}, {"name": "sgd"})
