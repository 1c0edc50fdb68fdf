"""Values that a loop carries and never changes."""

import numpy as np
import onnx
import pytest

import duotone.onnx
from duotone.onnx.invariants import without_invariants
from duotone.onnx.protos import graphs_in
from tests.onnx import kinds
from tests.onnx.kinds import normal

WEIGHTS = {"w": normal(16, 16) / 4, "n": np.int64(5), "t": np.array(True)}
FEED = {"x": normal(4, 16)}
STATE = "float[4, 16] {0}, float[16, 16] {1}"


def loop(body, arguments="h0, v0", results="h1, v1", outputs="h, u", initial="k, w"):
    """A ``Loop`` that carries an activation and a weight."""
    (h0, v0), (h1, v1) = arguments.split(", "), results.split(", ")
    return f"""{outputs} = Loop (n, t, {initial}) <body = b (int64 i, bool c0,
        {STATE.format(h0, v0)}) => (bool c1, {STATE.format(h1, v1)}) {{
        c1 = Identity(c0)  {body} }}>"""


def model(nodes, result="float[4, 16] y", **weights):
    return kinds.built(f"f (float[4, 16] x) => ({result}) {{ {nodes} }}", WEIGHTS | weights)


BODY = "a = MatMul(h0, v0)  h1 = Tanh(a)"
BEFORE, AFTER = "k = MatMul(x, w)", "y = MatMul(h, w)"
TAKEN_OUT = {
    "copied": model(f"{BEFORE}  {loop(f'{BODY}  v1 = Identity(v0)')}  {AFTER}"),
    "returned as it is": model(f"{BEFORE}  {loop(BODY, results='h1, v0')}  {AFTER}"),
    "copied twice": model(
        f"{BEFORE}  {loop(f'{BODY}  v2 = Identity(v0)  v1 = Identity(v2)')}  {AFTER}"
    ),
    "read after the loop": model(
        f"{BEFORE}  {loop(f'{BODY}  v1 = Identity(v0)')}  y = MatMul(h, u)"
    ),
    "the result of the model": model(
        f"{BEFORE}  {loop(f'{BODY}  v1 = Identity(v0)')}", "float[4, 16] h, float[16, 16] u"
    ),
    "under the same name": model(
        f"{BEFORE}  {loop('a = MatMul(h0, w)  h1 = Tanh(a)  v1 = Identity(w)', 'h0, w')}  {AFTER}"
    ),
    "through two loops": model(
        f"{BEFORE}  {loop(f'{BODY}  v1 = Identity(v0)')}  "
        + loop(
            "e = MatMul(g0, z0)  g1 = Tanh(e)  z1 = Identity(z0)",
            "g0, z0", "g1, z1", "g, q", "h, u",
        ).replace("c0", "d0").replace("c1", "d1").replace("int64 i", "int64 j")
        + "  y = MatMul(g, q)"
    ),
    "in a nested loop": model(
        BEFORE + "  " + loop(
            loop("e = MatMul(g0, z0)  g1 = Tanh(e)  z1 = Identity(z0)",
                 "g0, z0", "g1, z1", "h1, v1", "h0, v0")
            .replace("c0", "d0").replace("c1", "d1").replace("int64 i", "int64 j")
        ) + f"  {AFTER}"
    ),
    "by a scan": model(
        f"""{BEFORE}
        h, u, all = Scan <num_scan_inputs = 1, body = b
            (float[16] h0, float[16, 16] v0, float[16] r)
            => (float[16] h1, float[16, 16] v1, float[16] o) {{
            m = Unsqueeze(h0, a0)  p = MatMul(m, v0)  q = Squeeze(p, a0)  s = Add(q, r)
            h1 = Tanh(s)  o = Relu(h1)  v1 = Identity(v0) }}> (z, w, k)
        y = MatMul(all, w)""",
        a0=np.array([0]), z=np.zeros(16),
    ),
}  # fmt: skip
KEPT = {
    "changed": model(f"{BEFORE}  {loop(f'{BODY}  v1 = Neg(v0)')}  {AFTER}"),
    "another state": model(
        f"""{BEFORE}  p, q, r = Loop (n, t, k, w, v) <body = b (int64 i, bool c0, float[4, 16] h0,
            float[16, 16] a0, float[16, 16] b0)
            => (bool c1, float[4, 16] h1, float[16, 16] a1, float[16, 16] b1) {{
            c1 = Identity(c0)  m = MatMul(h0, a0)  h1 = Tanh(m)  a1 = Identity(b0)
            b1 = Identity(a0) }}>
        y = MatMul(p, w)""",
        v=normal(16, 16, seed=2) / 4,
    ),
    "hidden by a name inside": model(
        f"{BEFORE}  {loop('w = Neg(v0)  a = MatMul(h0, w)  h1 = Tanh(a)  v1 = Identity(v0)')}"
        f"  {AFTER}"
    ),
}


def casts_in_bodies(graph, *, inside=False):
    """What casts in the bodies of loops read."""
    found = [node.input[0] for node in graph.node if node.op_type == "Cast" and inside]
    for node in graph.node:
        for inner in graphs_in(node):
            found += casts_in_bodies(inner, inside=True)
    return found


@pytest.mark.parametrize("name", TAKEN_OUT)
def test_a_weight_that_does_not_change_is_stored_once_and_cast_outside(name):
    made = duotone.onnx.rewrite(TAKEN_OUT[name])
    onnx.checker.check_model(made.model, full_check=True)
    if name != "the result of the model":
        assert made.bytes_after < 0.55 * made.bytes_before
    assert "w" not in casts_in_bodies(made.model.graph)
    assert kinds.error_of(TAKEN_OUT[name], FEED) < 5e-3


@pytest.mark.parametrize("name", [n for n in TAKEN_OUT if n != "under the same name"])
def test_the_model_without_them_gives_the_same_numbers(name):
    taken = without_invariants(TAKEN_OUT[name])
    for first, second in zip(kinds.run(TAKEN_OUT[name], FEED), kinds.run(taken, FEED), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", KEPT)
def test_a_state_that_may_change_stays(name):
    assert without_invariants(KEPT[name]) is KEPT[name]
