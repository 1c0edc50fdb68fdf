"""Small models in ONNX's own text form, shared by the tests."""

from onnx import parser


def model(text: str, opset: int = 17, ir: int = 8):
    """A model of one graph."""
    return parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]>\n{text}')


def numbers(count):
    """So many numbers below 1, as ONNX's text has them."""
    return ", ".join(str((i * 37 % 19 - 9) / 16) for i in range(count))


MLP = (
    """
f (float[4, 8] x) => (float[4, 3] y)
<float[8, 16] w = {W1}, float[16] b = {B}, float[16, 3] v = {V}>
{
    h = MatMul(x, w)
    a = Add(h, b)
    r = Relu(a)
    z = MatMul(r, v)
    y = Softmax<axis = 1>(z)
}
""".replace("W1", numbers(128))
    .replace("B}", numbers(16) + "}")
    .replace("V}", numbers(48) + "}")
)

BRANCHES = """
f (float[8, 8] x, bool c) => (float[8, 8] y)
<float[8, 8] w = {W}>
{
    h = MatMul(x, w)
    g = If (c) <
        then_branch = t () => (float[8, 8] p) { p = MatMul(h, w) },
        else_branch = e () => (float[8, 8] q) { k = Exp(h)  q = Mul(k, h) }
    >
    y = MatMul(g, w)
}
""".replace("{W}", "{" + numbers(64) + "}")

LOOP = """
f (float[8, 8] x, int64 n, bool c) => (float[8, 8] y, float[s, 8, 8] all)
<float[8, 8] w = {W}>
{
    y, all = Loop (n, c, x) <
        body = b (int64 i, bool go, float[8, 8] h) => (bool on, float[8, 8] next, float[8, 8] out) {
            on = Identity(go)
            m = MatMul(h, w)
            next = Relu(m)
            out = Exp(next)
        }
    >
}
""".replace("{W}", "{" + numbers(64) + "}")

FUNCTION = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
f (float[8, 8] x, float[8, 8] w) => (float[8, 8] y) { y = own.twice(x, w) }
<domain: "own", opset_import: ["" : 17]>
twice (a, b) => (c) { d = MatMul(a, b)  c = MatMul(d, b) }
"""

OLD = """
f (float[8, 8] x, float[8, 8] w, float[8] b) => (float[8, 8] y)
<float[8, 8] w = {W}, float[8] b = {B}>
{ h = MatMul(x, w)  a = Add(h, b)  y = Relu(a) }
""".replace("W}", numbers(64) + "}").replace("B}", "FIRST, 0.5, -1, 2, 0, 1, -2, 0.75}")


def old(first="0.25"):
    """A model of IR version 3, whose weights are inputs too; with the first element of a bias."""
    return model(OLD.replace("FIRST", first), opset=9, ir=3)


CONVOLUTION = (
    "f (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) <float[8, 8, 1, 1] w = {W}> "
    "{ h = Conv(x, w)  y = Relu(h) }"
).replace("W}", numbers(64) + "}")
