"""Squared distances and variances as exporters write them: powers, norms, and sums inside a dot."""

import numpy as np

from tests.onnx.kinds import kind, normal

CODES = normal(16, 64, seed=5) / 2 + 10
CONSTANTS = {
    "codes": CODES,
    "squares": np.sum(CODES**2, axis=1),
    "two": np.float32(2),
    "axis": np.array([1]),
}


def to_codes(nodes, *more):
    used = {name: CONSTANTS[name] for name in ("codes", "squares", *more)}
    text = f"f (float[32, 64] x) => (float[32, 16] y) {{ {nodes} }}"
    return text, used, {"x": normal(32, 64, seed=3) / 2 + 10}


@kind("distances")
def squares_by_a_power():
    """PyTorch: ``x.pow(2).sum(1, keepdim=True) + c.pow(2).sum(1) - 2 * x @ c.T``."""
    return to_codes(
        "p = Pow(x, two)  a = ReduceSum<keepdims = 1>(p, axis)  s = Add(a, squares)"
        "  z = Mul(x, two)  c = Transpose<perm = [1, 0]>(codes)  m = MatMul(z, c)  y = Sub(s, m)",
        *("two", "axis"),
    )


@kind("distances")
def squares_of_a_norm():
    """PyTorch: ``x.norm(dim=1, keepdim=True)**2``."""
    return to_codes(
        "n = ReduceL2(x, axis)  p = Pow(n, two)  s = Add(p, squares)"
        "  c = Transpose<perm = [1, 0]>(codes)  m = MatMul(x, c)  z = Mul(m, two)  y = Sub(s, z)",
        *("two", "axis"),
    )


@kind("distances")
def squares_of_a_root():
    """A norm written out, and squared again."""
    return to_codes(
        "q = Mul(x, x)  a = ReduceSum<keepdims = 1>(q, axis)  n = Sqrt(a)  p = Mul(n, n)"
        "  s = Add(p, squares)  c = Transpose<perm = [1, 0]>(codes)  m = MatMul(x, c)"
        "  z = Mul(m, two)  y = Sub(s, z)",
        *("two", "axis"),
    )


@kind("distances")
def squares_that_a_product_adds():
    """skl2onnx's KMeans: a ``Gemm`` of weight -2."""
    return to_codes(
        "a = ReduceSumSquare(x, axis)  m = Gemm<alpha = -2.0, transB = 1>(x, codes, a)"
        "  y = Add(squares, m)",
        "axis",
    )


@kind("distances")
def squares_next_to_a_product():
    """skl2onnx's KMeans adds the squares after its ``Gemm``."""
    return to_codes(
        "a = ReduceSumSquare(x, axis)  m = Gemm<alpha = -2.0, transB = 1>(x, codes)"
        "  b = Add(a, m)  y = Add(squares, b)",
        "axis",
    )


@kind("distances")
def squares_in_an_operand():
    """``torch.cdist``: ``concat(-2 * x, sum(x**2), 1) @ concat(c, 1, sum(c**2)).T``."""
    ones = np.ones((32, 1))
    rows = np.concatenate([CODES, np.ones((16, 1)), np.sum(CODES**2, 1, keepdims=True)], 1)
    text = """f (float[32, 64] x) => (float[32, 16] y) {
        p = Pow(x, two)  a = ReduceSum<keepdims = 1>(p, axis)  z = Mul(x, factor)
        j = Concat<axis = 1>(z, a, ones)  y = MatMul(j, rows) }"""
    constants = {"two": CONSTANTS["two"], "axis": CONSTANTS["axis"], "factor": np.float32(-2)}
    weights = {**constants, "ones": ones, "rows": rows.T}
    return text, weights, {"x": normal(32, 64, seed=3) / 2 + 10}


@kind("distances")
def a_variance_by_powers():
    """``conv(x.pow(2)) - conv(x).pow(2)``."""
    text = """f (float[1, 1, 32, 32] x) => (float[1, 1, 28, 28] y) {
        p = Pow(x, two)  a = Conv(p, w)  m = Conv(x, w)  q = Pow(m, two)  y = Sub(a, q) }"""
    weights = {"w": np.full((1, 1, 5, 5), 1 / 25), "two": CONSTANTS["two"]}
    return text, weights, {"x": normal(1, 1, 32, 32, seed=3) / 2 + 10}


@kind("distances")
def a_rest_inside_of_a_product():
    """``torch.addmm(x, a, x, alpha=-1)``: a graph's Laplacian."""
    links = np.exp(normal(32, 32))
    text = """f (float[32, 16] x) => (float[32, 16] y) {
        y = Gemm<alpha = -1.0>(links, x, x) }"""
    weights = {"links": links / links.sum(1, keepdims=True)}
    return text, weights, {"x": normal(32, 16, seed=3) / 10 + 50}
