"""Spectra: filter banks and logarithms in front of an acoustic model, as programs write them."""

import numpy as np

from tests.onnx.kinds import kind, normal

FRAME, HOP, BINS, BANDS = 64, 32, 33, 16


def transform():
    """Cosines and sines of a windowed Fourier transform, as filters of a convolution."""
    phase = 2 * np.pi * np.outer(np.arange(BINS), np.arange(FRAME)) / FRAME
    window = np.hanning(FRAME)
    return np.cos(phase) * window, -np.sin(phase) * window


def bank():
    """Triangular filters."""
    centers = np.linspace(0, BINS - 1, BANDS + 2)
    left, center, right = centers[:-2, None], centers[1:-1, None], centers[2:, None]
    bins = np.arange(BINS)[None]
    return np.maximum(
        0, np.minimum((bins - left) / (center - left), (right - bins) / (right - center))
    )


def audio(scale=1.0, quiet=1e-3):
    """A loud tone and quiet noise."""
    t = np.arange(4000)
    return {"x": ((np.sin(t * 0.3) + quiet * normal(4000)) * scale).astype(np.float32)[None, None]}


COS, SIN = transform()
CONSTANTS = {
    "wc": COS[:, None], "ws": SIN[:, None], "bank": bank(), "bank_t": bank().T,
    "bank_conv": bank()[:, :, None], "eps": np.float32(1e-10), "tiny": np.float32(1e-6),
    "one": np.float32(1), "two": np.float32(2), "ten": np.float32(10 / np.log(10)),
    "eighty": np.float32(80), "four": np.float32(4), "eight": np.float32(8),
    "log10": np.float32(1 / np.log(10)), "dct": normal(BANDS, 8) / 4, "third": np.float32(0.33),
    "w": normal(8, BANDS, 3) / 8, "wd": normal(8, 8, 3) / 5, "clip_low": np.float32(1e-5),
    "clip_high": np.float32(1e12), "small": np.float32(1 / 32768), "a1": np.array([1]),
    "pre": np.array([[[-0.97, 1.0]]]), "both": np.concatenate([COS, SIN])[:, None],
    "halves": np.array([BINS, BINS]), "a2": np.array([2]),
}  # fmt: skip
TYPES = "f (float[1, 1, 4000] x) => (float[a, b, c] y)"
PARTS = "re = Conv<strides = [32]>(x, wc)  im = Conv<strides = [32]>(x, ws)"
POWER = f"{PARTS}  r2 = Mul(re, re)  i2 = Mul(im, im)  p = Add(r2, i2)"
NETWORK = "h = Conv(f, w)  g = Relu(h)  y = Conv(g, wd)"


def features(name, nodes, feed=None):
    """Registers a network that reads the features which ``nodes`` compute as ``f``."""

    def make():
        return f"{TYPES} {{ {nodes}  {NETWORK} }}", CONSTANTS, feed or audio()

    make.__name__ = name
    kind("spectra")(make)


# The power spectrum, a filter bank as a product, and a logarithm.
features("a_mel_spectrum", f"{POWER}  m = MatMul(bank, p)  e = Max(m, eps)  f = Log(e)")
features("a_mel_spectrum_with_eps", f"{POWER}  m = MatMul(bank, p)  e = Add(m, tiny)  f = Log(e)")
features(
    "a_clipped_mel_spectrum",
    f"{POWER}  m = MatMul(bank, p)  e = Clip(m, clip_low, clip_high)  f = Log(e)",
)
features("log1p_of_a_mel_spectrum", f"{POWER}  m = MatMul(bank, p)  e = Add(m, one)  f = Log(e)")
features(
    "audio_of_16_bits",
    f"{POWER}  m = MatMul(bank, p)  e = Max(m, eps)  f = Log(e)",
    audio(30000.0),
)
features(
    "scaled_audio_of_16_bits",
    f"v = Mul(x, small)  {POWER.replace('Conv<strides = [32]>(x', 'Conv<strides = [32]>(v')}"
    "  m = MatMul(bank, p)  e = Max(m, eps)  f = Log(e)",
    audio(30000.0),
)
# Filter banks as convolutions, transposed products, dense layers and Einstein sums.
features("a_bank_by_convolution", f"{POWER}  m = Conv(p, bank_conv)  e = Max(m, eps)  f = Log(e)")
features(
    "a_transposed_bank",
    f"{POWER}  t = Transpose<perm = [0, 2, 1]>(p)  m = MatMul(t, bank_t)  e = Max(m, eps)"
    "  l = Log(e)  f = Transpose<perm = [0, 2, 1]>(l)",
)
features(
    "a_bank_by_gemm",
    f"{POWER}  t = Transpose<perm = [0, 2, 1]>(p)  s = Squeeze(t, a0)"
    "  m = Gemm<transB = 1>(s, bank)  e = Max(m, eps)  l = Log(e)"
    "  n = Transpose<perm = [1, 0]>(l)  f = Unsqueeze(n, a0)",
)
features(
    "a_bank_by_einsum",
    f'{POWER}  m = Einsum<equation = "mf,bft->bmt">(bank, p)  e = Max(m, eps)  f = Log(e)',
)
# Powers and magnitudes in other words.
features(
    "powers_by_pow",
    f"{PARTS}  r2 = Pow(re, two)  i2 = Pow(im, two)  p = Add(r2, i2)  m = MatMul(bank, p)"
    "  e = Max(m, eps)  f = Log(e)",
)
features(
    "a_magnitude",
    f"{POWER}  a = Add(p, eps)  q = Sqrt(a)  m = MatMul(bank, q)  e = Max(m, clip_low)  f = Log(e)",
)
features(
    "a_magnitude_by_a_norm",
    "ri = Conv<strides = [32]>(x, both)  z0, z1 = Split<axis = 1>(ri, halves)"
    "  u0 = Unsqueeze(z0, a3)  u1 = Unsqueeze(z1, a3)  u = Concat<axis = 3>(u0, u1)"
    "  q = ReduceL2<keepdims = 0>(u, a3)  m = MatMul(bank, q)  e = Max(m, clip_low)  f = Log(e)",
)
features(
    "a_power_by_a_sum_of_squares",
    "ri = Conv<strides = [32]>(x, both)  z0, z1 = Split<axis = 1>(ri, halves)"
    "  u0 = Unsqueeze(z0, a3)  u1 = Unsqueeze(z1, a3)  u = Concat<axis = 3>(u0, u1)"
    "  p = ReduceSumSquare<keepdims = 0>(u, a3)  m = MatMul(bank, p)  e = Max(m, eps)  f = Log(e)",
)
features(
    "squares_of_both_parts_at_once",
    "ri = Conv<strides = [32]>(x, both)  s = Mul(ri, ri)  z0, z1 = Split<axis = 1>(s, halves)"
    "  p = Add(z0, z1)  m = MatMul(bank, p)  e = Max(m, eps)  f = Log(e)",
)
# Decibels and what follows the logarithm.
features(
    "decibels_below_the_maximum",
    f"{POWER}  m = MatMul(bank, p)  e = Max(m, eps)  l = Log(e)  d = Mul(l, ten)"
    "  top = ReduceMax<keepdims = 1>(d)  low = Sub(top, eighty)  k = Max(d, low)"
    "  f = Div(k, eighty)",
)
features(
    "as_whisper_does",
    f"{POWER}  m = MatMul(bank, p)  e = Max(m, eps)  l = Log(e)  d = Mul(l, log10)"
    "  top = ReduceMax<keepdims = 1>(d)  low = Sub(top, eight)  k = Max(d, low)  n = Add(k, four)"
    "  f = Div(n, four)",
)
features(
    "cepstral_coefficients",
    f"{POWER}  m = MatMul(bank, p)  e = Max(m, eps)  l = Log(e)"
    "  t = Transpose<perm = [0, 2, 1]>(l)  c = MatMul(t, dct)  z = Concat<axis = 2>(c, c)"
    "  f = Transpose<perm = [0, 2, 1]>(z)",
)
features(
    "normalized_by_mean_and_deviation",
    f"{POWER}  m = MatMul(bank, p)  e = Max(m, eps)  l = Log(e)"
    "  mu = ReduceMean<keepdims = 1>(l, a2)  d = Sub(l, mu)  v = Mul(d, d)"
    "  va = ReduceMean<keepdims = 1>(v, a2)  ve = Add(va, clip_low)  sd = Sqrt(ve)  f = Div(d, sd)",
)
features(
    "a_power_law",
    f"{POWER}  m = MatMul(bank, p)  e = Max(m, eps)  f = Pow(e, third)",
)
features(
    "a_root_of_the_bands",
    f"{POWER}  m = MatMul(bank, p)  e = Max(m, eps)  f = Sqrt(e)",
)
# Before the transform.
features(
    "with_preemphasis",
    f"v = Conv(x, pre)  {POWER.replace('Conv<strides = [32]>(x', 'Conv<strides = [32]>(v')}"
    "  m = MatMul(bank, p)  e = Max(m, eps)  f = Log(e)",
)
features(
    "without_a_bank",
    f"{POWER}  e = Max(p, eps)  l = Log(e)  z0, z1 = Split<axis = 1>(l, bins)  f = Identity(z0)",
)
CONSTANTS |= {"a0": np.array([0]), "a3": np.array([3]), "bins": np.array([BANDS, BINS - BANDS])}


@kind("spectra")
def by_the_fourier_transform_of_onnx():
    """``STFT`` gives real and imaginary parts in the last axis."""
    text = f"""f (float[1, 4000] x) => (float[a, b, c] y) {{
        s = STFT(x, hop, window)  s2 = Mul(s, s)  p0 = ReduceSum<keepdims = 0>(s2, a3)
        p = Transpose<perm = [0, 2, 1]>(p0)  m = MatMul(bank, p)  e = Max(m, eps)  f = Log(e)
        {NETWORK} }}"""
    weights = CONSTANTS | {"hop": np.int64(HOP), "window": np.hanning(FRAME)}
    return text, weights, {"x": audio()["x"][0]}


@kind("spectra")
def by_frames_and_a_product():
    """Frames by a gather, a window, and a product with a matrix of cosines and sines."""
    text = f"""f (float[4000] x) => (float[a, b, c] y) {{
        fr = Gather(x, at)  wi = Mul(fr, window)
        re = MatMul(wi, c_t)  im = MatMul(wi, s_t)  r2 = Mul(re, re)  i2 = Mul(im, im)
        p0 = Add(r2, i2)  m = MatMul(p0, bank_t)  e = Max(m, eps)  l = Log(e)
        n = Transpose<perm = [1, 0]>(l)  f = Unsqueeze(n, a0)
        {NETWORK} }}"""
    at = np.arange(0, 4000 - FRAME, HOP)[:, None] + np.arange(FRAME)
    phase = 2 * np.pi * np.outer(np.arange(FRAME), np.arange(BINS)) / FRAME
    more = {"at": at, "window": np.hanning(FRAME), "c_t": np.cos(phase), "s_t": np.sin(phase)}
    return text, CONSTANTS | more, {"x": audio()["x"][0, 0]}


@kind("spectra")
def the_power_itself_is_the_input():
    """A model that begins with the power spectrum."""
    text = f"""f (float[1, 33, 124] p) => (float[a, b, c] y) {{
        m = MatMul(bank, p)  e = Max(m, eps)  f = Log(e)  {NETWORK} }}"""
    return text, CONSTANTS, {"p": normal(1, 33, 124) ** 2 * 1e4}
