"""Branches and loops whose results, constants or states are too large for half."""

import numpy as np

from tests.onnx.kinds import kind, normal

X = {"x": normal(4, 16)}
W = {"w": normal(16, 16) / 4, "v": normal(16, 16, seed=1) / 4}
BIG = np.full((4, 16), 1e6, np.float32)
BIG[:, ::2] = -2e5


def branches(then, other, after, *, before="", result="float[4, 16]"):
    """A model with an ``If`` between two products."""
    return f"""f (float[4, 16] x, bool c) => (float[a, b] y) {{
        h = MatMul(x, w)  {before}
        g = If (c) <then_branch = t () => ({result} p) {{ {then} }},
                    else_branch = e () => ({result} q) {{ {other} }}>
        {after} }}"""


def both(text, **weights):
    """The two directions of the ``If`` share a model: the condition is an input."""
    return text, W | weights, X


for taken in (True, False):
    FLAG = {"c": np.array(taken)}
    NAME = "taken" if taken else "not_taken"

    def registered(make, flag=FLAG, name=NAME):
        """Registers a model once for each value of its condition."""

        def made():
            text, weights, feed = make()
            return text, weights, feed | flag

        made.__name__ = f"{make.__name__}_{name}"
        return kind("branches")(made)

    @registered
    def a_large_constant():
        """A branch returns a constant; the sum with it is read by a sigmoid."""
        text = branches("p = Identity(big)", "q = MatMul(h, v)", "s = Add(h, g)  y = MatMul(s, v)")
        return both(text, big=BIG)

    @registered
    def a_large_constant_node():
        """The same with a constant inside the branch."""
        text = branches(
            "p = ConstantOfShape<value = float[1] {1000000}>(sh)",
            "q = MatMul(h, v)",
            "s = Add(h, g)  y = MatMul(s, v)",
            before="sh = Shape(h)",
        )
        return both(text)

    @registered
    def a_large_number():
        """A number by which something is scaled, chosen by a flag."""
        text = branches(
            "p = Constant<value = float {100000}>()",
            "q = Constant<value = float {1}>()",
            "s = Mul(h, g)  y = MatMul(s, v)",
            result="float",
        )
        return both(text)

    @registered
    def a_mask_that_is_added():
        """The mask of an attention: -1e9 or nothing."""
        text = branches(
            "p = Where(m, low, zero)",
            "q = Mul(h, zero)",
            "s = Add(h, g)  r = Softmax<axis=1>(s)\ny = MatMul(r, v)",
        )
        return both(
            text, m=np.arange(64).reshape(4, 16) % 3 == 0, low=np.float32(-1e9), zero=np.float32(0)
        )

    @registered
    def an_operation_of_large_constants():
        """A branch computes with large constants."""
        text = branches(
            "p = Mul(h, big)", "q = MatMul(h, v)", "s = Div(g, scale)  y = MatMul(s, v)"
        )
        return both(text, big=BIG, scale=np.float32(1e6))

    @registered
    def branches_in_branches():
        """An inner branch returns a large constant."""
        text = branches(
            """p = If (c) <then_branch = t2 () => (float[4, 16] p2) { p2 = Identity(big) },
                           else_branch = e2 () => (float[4, 16] q2) { q2 = Relu(h) }>""",
            "q = MatMul(h, v)",
            "s = Div(g, scale)  y = MatMul(s, v)",
        )
        return both(text, big=BIG, scale=np.float32(1e6))

    @registered
    def a_large_result_that_is_divided():
        """What a branch returns is scaled down at once."""
        text = branches("p = Identity(big)", "q = Relu(h)", "s = Div(g, scale)  y = MatMul(s, v)")
        return both(text, big=BIG, scale=np.float32(1e6))

    @registered
    def a_large_constant_outside():
        """A constant of the outer graph, the result of a branch by name."""
        text = branches(
            "p = Identity(z)",
            "q = MatMul(h, v)",
            "t = Relu(g) s = Div(t, scale)\n y = MatMul(s, v)",
            before="z = Neg(big)",
        )
        return both(text, big=-BIG, scale=np.float32(1e6))


LOOP = "f (float[4, 16] x) => (float[a, b] y)"
STEPS = {"n": np.int64(4), "t": np.array(True)}


def loop(body, initial, after, *, before="", state="float[4, 16]"):
    """A model with a ``Loop`` of four iterations."""
    return f"""{LOOP} {{ h = MatMul(x, w)  {before}
        g = Loop (n, t, {initial}) <body = b (int64 i, bool c0, {state} s0)
            => (bool c1, {state} s1) {{ c1 = Identity(c0)  {body} }}>
        {after} }}"""


@kind("loops")
def a_state_that_begins_large():
    """A state that starts above half's largest number and falls."""
    text = loop("a = MatMul(h, v)  b = Add(s0, a)  s1 = Div(b, ten)", "big", "y = MatMul(g, v)")
    return text, W | STEPS | {"big": BIG, "ten": np.float32(10)}, X


@kind("loops")
def a_state_that_grows():
    """A state that is multiplied in each iteration, and scaled down after the loop."""
    text = loop(
        "a = Mul(s0, hundred)  b = MatMul(h, v)  s1 = Add(a, b)",
        "h",
        "d = Div(g, scale)  y = MatMul(d, v)",
    )
    return text, W | STEPS | {"hundred": np.float32(100), "scale": np.float32(1e8)}, X


@kind("loops")
def a_running_minimum():
    """The least of products, from a large number on."""
    text = loop("a = MatMul(h, v)  s1 = Min(s0, a)", "big", "y = MatMul(g, v)")
    return text, W | STEPS | {"big": np.abs(BIG)}, X


@kind("loops")
def a_running_sum():
    """A sum over iterations."""
    text = loop("a = MatMul(h, v)  s1 = Add(s0, a)", "zero", "y = MatMul(g, v)")
    return text, W | STEPS | {"n": np.int64(400), "zero": np.zeros((4, 16))}, X


@kind("loops")
def a_recurrent_network():
    """A plain recurrence, whose weights come from outside."""
    text = loop("a = MatMul(s0, v)  b = Add(a, h)  s1 = Tanh(b)", "h", "y = MatMul(g, v)")
    return text, W | STEPS, X


@kind("loops")
def a_recurrence_of_carried_weights():
    """The same with weights that the loop carries unchanged, as tf2onnx writes them."""
    text = f"""{LOOP} {{ h = MatMul(x, w)  k = MatMul(h, v)
        g, u = Loop (n, t, k, v) <body = b (int64 i, bool c0, float[4, 16] s0, float[16, 16] v0)
            => (bool c1, float[4, 16] s1, float[16, 16] v1) {{
            c1 = Identity(c0)  a = MatMul(s0, v0)  b = Add(a, h)  s1 = Tanh(b)
            v1 = Identity(v0) }}>
        y = MatMul(g, w) }}"""
    return text, W | STEPS, X


@kind("loops")
def large_constants_that_a_loop_carries():
    """A constant above half's largest number, carried unchanged."""
    text = f"""{LOOP} {{ h = MatMul(x, w)
        g, u = Loop (n, t, h, big) <body = b (int64 i, bool c0, float[4, 16] s0, float[4, 16] v0)
            => (bool c1, float[4, 16] s1, float[4, 16] v1) {{
            c1 = Identity(c0)  a = MatMul(s0, w)  m = Mul(a, v0)  s1 = Div(m, scale)
            v1 = Identity(v0) }}>
        y = MatMul(g, w) }}"""
    return text, W | STEPS | {"big": np.abs(BIG), "scale": np.float32(5e5)}, X


@kind("loops")
def a_scan_over_rows():
    """A scan with a carried state, a slice and a stacked result."""
    text = """f (float[8, 16] xs) => (float[a, b] y) {
        h = MatMul(xs, w)
        last, all = Scan <num_scan_inputs = 1, body = b (float[16] s0, float[16] r)
            => (float[16] s1, float[16] o) {
            m = Unsqueeze(s0, a0)  p = MatMul(m, v)  q = Squeeze(p, a0)  z = Add(q, r)
            s1 = Tanh(z)  o = Mul(s1, big) }> (zero, h)
        d = Div(all, big)  y = MatMul(d, v) }"""
    weights = W | {"a0": np.array([0]), "zero": np.zeros(16), "big": np.float32(1e6)}
    return text, weights, {"xs": normal(8, 16)}
