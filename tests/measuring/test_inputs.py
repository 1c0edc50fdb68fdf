"""Generated inputs: the sizes of open sides, the shapes that a user sets, and refusals."""

import numpy as np
import pytest

from duotone.errors import ArgumentError
from duotone.measuring.generate import generate
from duotone.measuring.inputs import Asked, fitted, parse_shapes

PICTURE = Asked("x", np.float32, ("n", 3, "h", "w"), "tensor(float)")
TOKENS = Asked("ids", np.int64, ("n", "t"), "tensor(int64)")


def always(feed):
    return 0


def refusing(*shapes):
    """Runs only with inputs of these shapes."""

    def run(feed):
        if tuple(array.shape for array in feed.values()) not in shapes:
            raise ArgumentError("the model does not run.")
        return 0

    return run


def test_open_sides_get_a_size_and_a_batch_is_one():
    found = generate([PICTURE, TOKENS], always)
    assert found.feed["x"].shape == (1, 3, 32, 32)
    assert found.feed["ids"].shape == (1, 32)
    assert found.feed["ids"].max() == 7
    assert found.side == 32
    assert "open sides: 32" in found.notes[0]
    assert generate([Asked("s", np.float32, ("t",), "")], always).feed["s"].shape == (32,)
    signal = Asked("s", np.float32, (1, 1, "t"), "")
    assert generate([signal], always).feed["s"].shape == (1, 1, 16000)
    assert generate([signal], refusing(((1, 1, 64),))).side == 64
    assert generate([signal, TOKENS], always).side == 32
    batch = generate([Asked("x", np.float32, ("n", 3), "")], always)
    assert (batch.feed["x"].shape, batch.side) == ((1, 3), None)
    closed = generate([Asked("x", np.float32, (2, 3), "")], always)
    assert (closed.side, closed.notes) == (None, ())


def test_an_integer_for_each_element_of_a_batch_is_a_length():
    """Catches: 3 of 320 samples, whose features are all padding."""
    waves = Asked("waves", np.float32, ("n", "t"), "tensor(float)")
    lengths = Asked("lengths", np.int64, ("n",), "tensor(int64)")
    assert generate([waves, lengths], always).feed["lengths"] == [16000]
    found = generate([waves, lengths], always, shapes={"waves": (2, 640)})
    assert list(found.feed["lengths"]) == [640, 640]

    def speakers(feed):
        if feed["lengths"].max() > 7:
            raise ArgumentError("no such speaker.")
        return 0

    assert generate([waves, lengths], speakers).feed["lengths"] < 8


def test_sizes_are_tried_until_the_model_runs():
    assert generate([TOKENS], refusing(((1, 48),))).feed["ids"].shape == (1, 48)
    assert generate([PICTURE], refusing(((1, 3, 1, 64),))).feed["x"].shape == (1, 3, 1, 64)


@pytest.mark.parametrize(
    ("collapsed", "side"),
    [
        ({32: 2, 64: 1, 128: 0}, 128),
        ({32: 2, 64: 2, 128: 0}, 32),  # a side that is 1 at every size
        ({32: 3, 64: 2, 128: 1, 256: 1}, 128),
        ({32: 4, 64: 3, 128: 2, 256: 1}, 256),  # the largest
    ],
)
def test_sides_grow_while_fewer_inner_sides_collapse(collapsed, side):
    found = generate([PICTURE], lambda feed: collapsed[feed["x"].shape[-1]])
    assert found.feed["x"].shape == (1, 3, side, side)
    assert found.side == side


def test_a_model_that_does_not_run_with_more_keeps_what_it_runs_with():
    def run(feed):
        if feed["x"].shape[-1] > 32:
            raise ArgumentError("too large.")
        return 1

    assert generate([PICTURE], run).side == 32


def test_the_users_shapes():
    mask = Asked("mask", np.float32, ("n", 1, "h", "w"), "tensor(float)")
    found = generate([PICTURE, mask], always, shapes={"x": (2, 3, 320, 640)})
    assert found.feed["x"].shape == (2, 3, 320, 640)
    assert found.feed["mask"].shape == (2, 1, 320, 640)  # the same symbols
    assert found.side is None


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"y": (1,)}, "no input 'y'; it has 'x'"),
        ({"x": 3}, "x=3 does not fit the input"),
        ({"x": np.ones((2, 3))}, r"x=an array of float64\[2, 3\] does not fit the input"),
        ({"x": (1, 3, 32)}, r"x=1,3,32 does not fit the input, tensor\(float\)\[n, 3, h, w\]"),
        ({"x": (1, 4, 32, 32)}, "does not fit"),
        ({"x": (1, 3, 0, 32)}, "does not fit"),
    ],
)
def test_shapes_that_do_not_fit(shapes, words):
    with pytest.raises(ArgumentError, match=words):
        generate([PICTURE], always, shapes=shapes)


def test_nothing_can_be_guessed():
    with pytest.raises(ArgumentError) as caught:
        generate([PICTURE], refusing())
    text = str(caught.value)
    assert "--shapes 'x=1,3,320,320'" in text
    assert "--data" in text
    assert "tensor(float)[n, 3, h, w]" in text
    with pytest.raises(ArgumentError, match=r"'s' is tensor\(string\); give it"):
        generate([Asked("s", None, (1,), "tensor(string)")], always)


@pytest.mark.parametrize("text", ["f32[2,3]", "x", "=1", "x=1,a", "x=1,-3"])
def test_the_text_of_shapes_is_checked(text):
    assert parse_shapes("a:0=1,3 b= c/d=7") == {"a:0": (1, 3), "b": (), "c/d": (7,)}
    with pytest.raises(ArgumentError, match="--shapes 'x=1,3,320,640"):
        parse_shapes(text)


def test_inputs_are_converted():
    found = fitted([TOKENS], {"ids": np.ones((2, 3), np.int32), "more": 1})
    assert found["ids"].dtype == np.int64
    assert [*found] == ["ids"]
