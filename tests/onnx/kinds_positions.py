"""Positions and distances: grids, boxes and counters, computed from half values and not."""

import numpy as np

from tests.onnx.kinds import kind, normal, smooth

S = 256


def base_grid(size=S):
    """Normalized coordinates of each pixel."""
    y, x = np.meshgrid(*[np.linspace(-1, 1, size)] * 2, indexing="ij")
    return np.stack([x, y], -1)[None]


def image_weights(**more):
    """The weights of a network before and after a sampling."""
    return {"w": normal(8, 4, 1, 1) / 2, "v": normal(4, 8, 1, 1, seed=1) / 3, **more}


FLOW = image_weights(wf=normal(2, 4, 1, 1), k=np.float32(0.02), base=base_grid())
IMAGE = {"x": smooth(1, 4, S, S)}
TYPES = "f (float[1, 4, 256, 256] x) => (float[1, 4, a, b] y)"


@kind("positions")
def a_grid_and_a_flow():
    """An image warped by a predicted flow, as in video super resolution."""
    text = f"""{TYPES} {{
        h = Conv(x, w)  f0 = Conv(x, wf)  f1 = Transpose<perm=[0, 2, 3, 1]>(f0)
        f2 = Mul(f1, k)  grid = Add(base, f2)
        g = GridSample<align_corners = 1, padding_mode = "border">(h, grid)
        y = Conv(g, v) }}"""
    return text, FLOW, IMAGE


@kind("positions")
def a_grid_in_pixels():
    """Flow in pixels, normalized by the size of the image after the addition."""
    weights = FLOW | {"pixels": (base_grid() + 1) * 127.5, "scale": np.float32(127.5), "one": 1.0}
    text = f"""{TYPES} {{
        h = Conv(x, w)  f0 = Conv(x, wf)  f1 = Transpose<perm=[0, 2, 3, 1]>(f0)
        p = Add(pixels, f1)  q = Div(p, scale)  grid = Sub(q, one)
        g = GridSample<align_corners = 1, padding_mode = "border">(h, grid)
        y = Conv(g, v) }}"""
    return text, weights, IMAGE


@kind("positions")
def a_grid_by_range():
    """Coordinates from counters of the image's sides."""
    weights = FLOW | {
        "i0": np.int64(0),
        "i1": np.int64(1),
        "iS": np.int64(S),
        "half": np.float32(127.5),
        "one": np.float32(1),
        "s2": np.array([1, S, S, 1]),
        "a1": np.array([1]),
        "a0": np.array([0]),
        "a3": np.array([0, 1, 3]),
        "a4": np.array([0, 2, 3]),
    }
    text = f"""{TYPES} {{
        h = Conv(x, w)  f0 = Conv(x, wf)  f1 = Transpose<perm=[0, 2, 3, 1]>(f0)  f2 = Mul(f1, k)
        r = Range(i0, iS, i1)  c = Cast<to = 1>(r)  d = Div(c, half)  e = Sub(d, one)
        xs = Unsqueeze(e, a3)  ys = Unsqueeze(e, a4)  xe = Expand(xs, s2)  ye = Expand(ys, s2)
        b = Concat<axis = 3>(xe, ye)  grid = Add(b, f2)
        g = GridSample<align_corners = 1, padding_mode = "border">(h, grid)
        y = Conv(g, v) }}"""
    return text, weights, IMAGE


@kind("positions")
def a_flow_of_two_steps():
    """A flow, refined by another: a sum of two large arrays that leads to positions."""
    weights = FLOW | {"wg": normal(2, 8, 1, 1, seed=5)}
    text = f"""{TYPES} {{
        h = Conv(x, w)  f0 = Conv(x, wf)  f1 = Transpose<perm=[0, 2, 3, 1]>(f0)  f2 = Mul(f1, k)
        g1 = Add(base, f2)
        s = GridSample<align_corners = 1, padding_mode = "border">(h, g1)
        d0 = Conv(s, wg)  d1 = Transpose<perm=[0, 2, 3, 1]>(d0)  d2 = Mul(d1, k)
        g2 = Add(g1, d2)
        g = GridSample<align_corners = 1, padding_mode = "border">(h, g2)
        y = Conv(g, v) }}"""
    return text, weights, IMAGE


@kind("positions")
def predicted_positions():
    """A network that predicts the positions themselves."""
    text = f"""{TYPES} {{
        h = Conv(x, w)  f0 = Conv(x, wf)  f1 = Transpose<perm=[0, 2, 3, 1]>(f0)
        grid = Tanh(f1)
        g = GridSample<align_corners = 1, padding_mode = "border">(h, grid)
        y = Conv(g, v) }}"""
    return text, FLOW, IMAGE


@kind("positions")
def two_flows_added():
    """A sum of two predicted flows, both large, leads to positions after a scale."""
    weights = FLOW | {"wg": normal(2, 8, 1, 1, seed=5)}
    text = f"""{TYPES} {{
        h = Conv(x, w)  f0 = Conv(x, wf)  d0 = Conv(h, wg)  s = Add(f0, d0)
        f1 = Transpose<perm=[0, 2, 3, 1]>(s)  f2 = Mul(f1, k)  grid = Add(base, f2)
        g = GridSample<align_corners = 1, padding_mode = "border">(h, grid)
        y = Conv(g, v) }}"""
    return text, weights, IMAGE


@kind("positions")
def an_affine_grid():
    """A spatial transformer: a dense layer predicts an affine map near the identity."""
    weights = image_weights(
        wt=normal(6, 8) / 20,
        bt=np.array([1, 0, 0, 0, 1, 0.0]),
        s23=np.array([1, 2, 3]),
        size=np.array([1, 4, S, S]),
    )
    text = f"""{TYPES} {{
        h = Conv(x, w)  m = GlobalAveragePool(h)  z = Flatten(m)  t = Gemm<transB = 1>(z, wt, bt)
        theta = Reshape(t, s23)  grid = AffineGrid(theta, size)
        g = GridSample<padding_mode = "border">(h, grid)
        y = Conv(g, v) }}"""
    return text, weights, IMAGE


def boxes():
    """Anchors in pixels and the weights that predict offsets from them."""
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 180, (16, 2))
    anchors = np.concatenate([corners, corners + rng.uniform(40, 70, (16, 2))], 1)
    return image_weights(
        wb=normal(64, 8),
        anchors=anchors,
        s=np.array([16, 4]),
        batch=np.zeros(16, np.int64),
        zero=np.zeros((16, 1)),
    )


HEAD = """h = Conv(x, w)  m = GlobalAveragePool(h)  z = Flatten(m)
        d0 = Gemm<transB = 1>(z, wb)  d1 = Reshape(d0, s)  b = Add(anchors, d1)"""
POOLED = "f (float[1, 4, 256, 256] x) => (float[16, 4, a, b] y)"


@kind("positions")
def boxes_for_roi_align():
    """The second stage of a detector."""
    text = f"""{POOLED} {{ {HEAD}
        p = RoiAlign<output_height = 7, output_width = 7, sampling_ratio = 2>(h, b, batch)
        y = Conv(p, v) }}"""
    return text, boxes(), IMAGE


@kind("positions")
def boxes_for_max_roi_pool():
    """The same with the older pooling."""
    text = f"""{POOLED} {{ {HEAD}
        r = Concat<axis = 1>(zero, b)
        p = MaxRoiPool<pooled_shape = [7, 7]>(h, r)
        y = Conv(p, v) }}"""
    return text, boxes(), IMAGE


@kind("positions")
def boxes_for_suppression():
    """Boxes of a grid of strides 8, of which the best are returned."""
    y, x = np.meshgrid(np.arange(32), np.arange(32), indexing="ij")
    weights = image_weights(
        wb=normal(4, 8, 8, 8) / 8,
        ws=normal(1, 8, 8, 8, seed=3) / 8,
        two=np.float32(2),
        cells=np.stack([x, y])[None].astype(np.float32),
        stride=np.float32(8),
        s1=np.array([1, 1, 1024]),
        most=np.array([40]),
        iou=np.array([0.45], np.float32),
        least=np.array([0.5], np.float32),
        split=np.array([2, 2]),
        s4=np.array([1, 4, 1024]),
    )
    text = f"""{TYPES.replace("a, b", "a")} {{
        h = Conv(x, w)  o = Conv<strides = [8, 8]>(h, wb)  q = Conv<strides = [8, 8]>(h, ws)
        s0 = Sigmoid(o)  xy0, wh0 = Split<axis = 1>(s0, split)
        xy1 = Add(xy0, cells)  xy = Mul(xy1, stride)  wh1 = Mul(wh0, two)  wh2 = Mul(wh1, wh1)
        wh = Mul(wh2, stride)  b0 = Concat<axis = 1>(xy, wh)
        b1 = Reshape(b0, s4)  y = Transpose<perm = [0, 2, 1]>(b1)
        p0 = Sigmoid(q)  scores = Reshape(p0, s1)
        chosen = NonMaxSuppression<center_point_box = 1>(y, scores, most, iou, least) }}"""
    return text, weights, IMAGE


@kind("positions")
def a_resize_by_computed_scales():
    """Scales from the sides of the image, as exporters write them."""
    weights = image_weights(
        target=np.array([100.0, 300.0]), ones=np.ones(2), a=np.array([2]), e=np.array([4])
    )
    text = f"""{TYPES} {{
        h = Conv(x, w)  s = Shape(h)  t = Slice(s, a, e)  c = Cast<to = 1>(t)  d = Div(target, c)
        scales = Concat<axis = 0>(ones, d)
        g = Resize<mode = "linear">(h, , scales)
        y = Conv(g, v) }}"""
    return text, weights, IMAGE


@kind("positions")
def a_crop_by_a_predicted_region():
    """A region in normalized coordinates, cut out and resized."""
    weights = image_weights(
        wr=normal(4, 8) / 4,
        zeros=np.zeros(2),
        ones=np.ones(2),
        half=np.float32(0.45),
        sizes=np.array([1, 8, 64, 64]),
        one=np.array([4]),
        n=np.float32(0.5),
    )
    text = f"""{TYPES} {{
        h = Conv(x, w)  m = GlobalAveragePool(h)  z = Flatten(m)  r0 = Gemm<transB = 1>(z, wr)
        r1 = Sigmoid(r0)  r2 = Reshape(r1, one)  two = Constant<value_ints = [2, 2]>()
        l, hi = Split<axis = 0>(r2, two)  l1 = Mul(l, half)  h1 = Mul(hi, half)  h2 = Add(h1, n)
        roi = Concat<axis = 0>(zeros, l1, ones, h2)
        g = Resize<mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize">
            (h, roi, , sizes)
        y = Conv(g, v) }}"""
    return text, weights, IMAGE


@kind("positions")
def offsets_of_a_deformable_convolution():
    """Offsets in pixels, which are of the type of the features."""
    weights = image_weights(wo=normal(18, 4, 1, 1), wd=normal(8, 8, 3, 3) / 8)
    text = f"""{TYPES} {{
        h = Conv(x, w)  o = Conv(x, wo)
        g = DeformConv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(h, wd, o)
        y = Conv(g, v) }}"""
    return text, weights, IMAGE


@kind("positions")
def coordinates_that_a_loop_carries():
    """An optical flow, refined in each iteration of a loop."""
    weights = FLOW | {"n": np.int64(6), "t": np.array(True), "wg": normal(2, 8, 1, 1)}
    text = f"""{TYPES} {{
        h = Conv(x, w)
        grid = Loop (n, t, base) <body = b
            (int64 i, bool c0, float[1, 256, 256, 2] g0)
            => (bool c1, float[1, 256, 256, 2] g1) {{
            c1 = Identity(c0)
            s = GridSample<align_corners = 1, padding_mode = "border">(h, g0)
            f0 = Conv(s, wg)  f1 = Transpose<perm=[0, 2, 3, 1]>(f0)  f2 = Mul(f1, k)
            g1 = Add(g0, f2) }}>
        g = GridSample<align_corners = 1, padding_mode = "border">(h, grid)
        y = Conv(g, v) }}"""
    return text, weights, IMAGE


@kind("positions")
def a_grid_out_of_a_branch():
    """A grid with a flow or without, by a flag."""
    text = f"""{TYPES.replace("x)", "x, bool warp)")} {{
        h = Conv(x, w)  f0 = Conv(x, wf)
        grid = If (warp) <
            then_branch = a () => (float[1, 256, 256, 2] g1) {{
                f1 = Transpose<perm=[0, 2, 3, 1]>(f0)  f2 = Mul(f1, k)  g1 = Add(base, f2) }},
            else_branch = b () => (float[1, 256, 256, 2] g2) {{ g2 = Identity(base) }}>
        g = GridSample<align_corners = 1, padding_mode = "border">(h, grid)
        y = Conv(g, v) }}"""
    return text, FLOW, IMAGE | {"warp": np.array(True)}


# ------------------------------------------------------------------ counters

N = 3000
SEQUENCE = {"x": normal(N, 16)}
TEXT = "f (float[3000, 16] x) => (float[a, b] y)"
COUNTED = {
    "w": normal(16, 16) / 4,
    "u": normal(32, 16) / 6,
    "f": np.geomspace(1, 1e-3, 16)[None],
    "z": np.float32(0),
    "n": np.float32(N),
    "one": np.float32(1),
    "a1": np.array([1]),
    "axis": np.int64(0),
    "ones": np.ones(N, np.float32),
    "zi": np.int64(0),
    "ni": np.int64(N),
    "ii": np.int64(1),
    "v": normal(16, 1) / 4,
    "shape": np.array([N]),
    "w0": normal(1, 16),
}
ANGLES = "s = Sin(a)  c = Cos(a)  e = Concat<axis = 1>(s, c)  h = MatMul(x, w)  p = MatMul(e, u)"


@kind("positions")
def angles_of_a_float_range():
    """Sinusoidal positions, from a counter of floats."""
    text = f"""{TEXT} {{
        r = Range(z, n, one)  q = Unsqueeze(r, a1)  a = Mul(q, f)  {ANGLES}  y = Add(h, p) }}"""
    return text, COUNTED, SEQUENCE


@kind("positions")
def angles_by_a_matrix_product():
    """The outer product of positions and frequencies, as rotary embeddings are exported."""
    text = f"""{TEXT} {{
        r = Range(z, n, one)  q = Unsqueeze(r, a1)  a = MatMul(q, f)  {ANGLES}  y = Add(h, p) }}"""
    return text, COUNTED, SEQUENCE


@kind("positions")
def angles_of_a_running_sum():
    """Positions counted by a running sum of ones."""
    text = f"""{TEXT} {{
        r = CumSum(ones, axis)  q = Unsqueeze(r, a1)  a = Mul(q, f)  {ANGLES}  y = Add(h, p) }}"""
    return text, COUNTED, SEQUENCE


@kind("positions")
def angles_of_a_running_sum_of_a_shape():
    """The same where the ones are made in the model."""
    text = f"""{TEXT} {{
        o = ConstantOfShape<value = float[1] {{1}}>(shape)
        r = CumSum(o, axis)  q = Unsqueeze(r, a1)  a = MatMul(q, f)  {ANGLES}  y = Add(h, p) }}"""
    return text, COUNTED, SEQUENCE


@kind("positions")
def positions_into_a_dense_layer():
    """A dense layer reads raw positions."""
    text = f"""{TEXT} {{
        r = Range(zi, ni, ii)  c = Cast<to = 1>(r)  q = Unsqueeze(c, a1)  a = MatMul(q, w0)
        h = MatMul(x, w)  y = Add(h, a) }}"""
    return text, COUNTED, SEQUENCE


@kind("positions")
def a_mean_position():
    """A soft argmax: the mean position under a softmax."""
    text = f"""{TEXT} {{
        h = MatMul(x, w)  t = Transpose<perm=[1, 0]>(h)  s = Softmax<axis = 1>(t)
        r = Range(z, n, one)  q = Unsqueeze(r, a1)  y = MatMul(s, q) }}"""
    return text, COUNTED, SEQUENCE


@kind("positions")
def distances_added_to_scores():
    """A penalty for the distance of positions (ALiBi), added to the scores of an attention."""
    weights = COUNTED | {"slope": np.float32(-0.004), "n": np.float32(600), "a0": np.array([0])}
    text = """f (float[600, 16] x) => (float[a, b] y) {
        h = MatMul(x, w)  k = Transpose<perm=[1, 0]>(h)  s = MatMul(h, k)
        r = Range(z, n, one)  q = Unsqueeze(r, a1)  p = Unsqueeze(r, a0)  d = Sub(q, p)
        b0 = Abs(d)  b = Mul(b0, slope)  t = Add(s, b)  m = Softmax<axis = 1>(t)
        y = MatMul(m, h) }"""
    return text, weights, {"x": normal(600, 16) / 2}


@kind("positions")
def durations_to_frames():
    """A length regulator: predicted durations, whose running sums are the frames' ends."""
    weights = COUNTED | {"two": np.float32(2.0), "a0": np.array([0])}
    text = """f (float[64, 16] x) => (float[a, b] y) {
        h = MatMul(x, w)  l = MatMul(h, v)  e = Exp(l)  d0 = Mul(e, two)  d = Ceil(d0)
        flat = Reshape(d, m1)  ends = CumSum(flat, axis)  total = ReduceMax<keepdims = 0>(ends)
        r = Range(z, total, one)  q = Unsqueeze(r, a0)  en = Unsqueeze(ends, a1)
        b = Less(q, en)  path = Cast<to = 1>(b)  t = Transpose<perm = [1, 0]>(path)
        y = MatMul(t, h) }"""
    return text, weights | {"m1": np.array([-1])}, {"x": normal(64, 16) / 2}


@kind("positions")
def a_time_step():
    """The time of a diffusion model, up to 1000, times frequencies."""
    text = """f (float[4, 1] t, float[4, 16] x) => (float[a, b] y) {
        a = MatMul(t, f)  s = Sin(a)  c = Cos(a)  e = Concat<axis = 1>(s, c)
        h = MatMul(x, w)  p = MatMul(e, u)  y = Add(h, p) }"""
    feed = {"t": np.array([[999.0], [501.3], [37.7], [3.0]], np.float32), "x": normal(4, 16)}
    return text, COUNTED, feed


@kind("positions")
def coordinates_far_from_zero():
    """Differences of predicted coordinates, 2000 away from the origin."""
    weights = {
        "w": normal(16, 8) / 4,
        "v": normal(7, 8, seed=1),
        "far": np.float32(2000),
        "last": np.array([0, 0]),
        "first": np.array([1, 1]),
        "ends": np.array([63, 7]),
        "all": np.array([64, 8]),
    }
    text = """f (float[64, 16] x) => (float[a, b] y) {
        h = MatMul(x, w)  p = Add(h, far)
        a = Slice(p, first, all)  b = Slice(p, last, ends)  d = Sub(a, b)  t = Tanh(d)
        y = MatMul(t, v) }"""
    return text, weights, {"x": normal(64, 16, seed=2)}


@kind("positions")
def places_by_a_triangle():
    """Places in the buffer of an expert: a triangle times one-hot rows."""
    weights = {
        "triangle": np.tril(np.ones((3001, 3001), np.float32)),
        "depth": np.array(8),
        "values": np.array([0.0, 1.0], np.float32),
        "v": normal(8, 8),
    }
    text = """f (int64[3001] i) => (float[3001, 8] y) {
        e = OneHot<axis = -1>(i, depth, values)  c = MatMul(triangle, e)
        r = Mod<fmod = 1>(c, two)  y = Mul(r, e) }"""
    return text, weights | {"two": np.float32(2)}, {"i": np.full(3001, 3)}


@kind("positions")
def products_of_bytes():
    """A quantized layer with zero points, of integers as numbers."""
    numbers = np.random.default_rng(0)
    weights = {
        "b8": numbers.integers(100, 140, (256, 16)).astype(np.uint8),
        "za": np.float32(128),
        "zb": np.float32(120),
        "rest": np.float32(256 * 128 * 120),
        "scale": np.float32(1e-3),
        "rows": np.array([0]),
        "columns": np.array([1]),
        "v": normal(16, 8) / 4,
    }
    text = """f (uint8[64, 256] a8) => (float[64, 8] y) {
        a = Cast<to = 1>(a8)  b = Cast<to = 1>(b8)  p = MatMul(a, b)
        sa = ReduceSum(a, columns)  sb = ReduceSum(b, rows)  ca = Mul(sa, zb)  cb = Mul(sb, za)
        q = Sub(p, ca)  r = Sub(q, cb)  t = Add(r, rest)  u = Mul(t, scale)  y = MatMul(u, v) }"""
    return text, weights, {"a8": numbers.integers(100, 156, (64, 256)).astype(np.uint8)}


@kind("distances")
def distances_to_codes():
    """Squared distances by a product; the sums of squares read their axes as an operand."""
    codes = normal(16, 64, seed=5) / 2 + 10
    weights = {"w": np.eye(64), "codes": codes, "two": np.float32(2), "axis": np.array([1])}
    text = """f (float[32, 64] x) => (float[32, 16] y) {
        h = MatMul(x, w)  c = Transpose<perm = [1, 0]>(codes)  p = MatMul(h, c)  q = Mul(p, two)
        a0 = Mul(h, h)  a = ReduceSum<keepdims = 1>(a0, axis)
        b0 = Mul(codes, codes)  b = ReduceSum<keepdims = 0>(b0, axis)
        s = Add(a, b)  d = Sub(s, q)  y = Neg(d) }"""
    return text, weights, {"x": normal(32, 64, seed=3) / 2 + 10}
