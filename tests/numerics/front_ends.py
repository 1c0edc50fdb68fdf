"""Front ends of mainstream models, as people write them: positions, audio, geometry, images.

Each program takes ``dot`` (an einsum of its networks) and its arguments.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

R = np.random.default_rng(0)


def normal(*shape: int, scale: float = 1.0) -> Any:
    return (R.normal(size=shape) * scale).astype(np.float32)


POSITIONS = np.arange(3000, 3512, dtype=np.int32)
RATES = (10000.0 ** -(np.arange(16) / 16)).astype(np.float32)
SLOPES = (2.0 ** -np.arange(1, 9)).astype(np.float32)
FLOATS = POSITIONS.astype(np.float32)

# ---------------------------------------------------------------- positions


def rotary_by_einsum(dot: Any, positions: Any, rates: Any) -> Any:
    angles = jnp.einsum("t,d->td", positions.astype(rates.dtype), rates)
    return jnp.cos(angles), jnp.sin(angles)


def rotary_by_outer(dot: Any, positions: Any, rates: Any) -> Any:
    return jnp.sin(jnp.outer(positions.astype(rates.dtype), rates))


def rotary_by_matmul(dot: Any, positions: Any, rates: Any) -> Any:
    return jnp.sin(positions.astype(rates.dtype)[:, None] @ rates[None])


def rotary_by_tensordot(dot: Any, positions: Any, rates: Any) -> Any:
    return jnp.sin(jnp.tensordot(positions.astype(rates.dtype), rates, axes=0))


def rotary_by_vmap(dot: Any, positions: Any, rates: Any) -> Any:
    angle = jax.vmap(jax.vmap(jnp.multiply, (None, 0)), (0, None))
    return jnp.sin(angle(positions.astype(rates.dtype), rates))


def rotary_by_vmapped_dot(dot: Any, positions: Any, rates: Any) -> Any:
    angle = jax.vmap(lambda p: jnp.dot(p[None], rates[None]))
    return jnp.sin(angle(positions.astype(rates.dtype)))


def rotary_of_a_batch(dot: Any, positions: Any, rates: Any) -> Any:
    ids = jnp.stack([positions, positions[::-1]])
    return jnp.cos(jnp.einsum("bt,d->btd", ids.astype(rates.dtype), rates))


def rotary_of_grid(dot: Any, positions: Any, rates: Any) -> Any:
    grid = jnp.stack([positions // 32, positions % 32, positions], -1).astype(rates.dtype)
    freqs = jnp.stack([rates, rates * 0.5, rates * 0.25])
    return jnp.cos(grid @ freqs)


def positions_by_cumsum(dot: Any, mask: Any, rates: Any) -> Any:
    positions = jnp.cumsum(mask, -1) - 1 + 3000
    return jnp.sin(jnp.einsum("bt,d->btd", positions.astype(rates.dtype), rates))


def positions_by_float_cumsum(dot: Any, mask: Any, rates: Any) -> Any:
    positions = jnp.cumsum(mask.astype(rates.dtype), -1) - 1 + 3000
    return jnp.sin(positions[..., None] * rates), jnp.sin(positions[..., None] @ rates[None])


def positions_by_gather(dot: Any, table: Any, which: Any, rates: Any) -> Any:
    return jnp.sin(jnp.einsum("t,d->td", table[which].astype(rates.dtype), rates))


def positions_of_packed(dot: Any, starts: Any, rates: Any) -> Any:
    at = jnp.arange(starts.shape[0])
    positions = at - lax.cummax(jnp.where(starts, at, 0))
    return jnp.sin(jnp.einsum("t,d->td", positions.astype(rates.dtype) + 3000, rates))


def time2vec(dot: Any, t: Any, w: Any, b: Any) -> Any:
    return jnp.sin(t.astype(w.dtype)[:, None] @ w + b)


def time2vec_of_stamps(dot: Any, t: Any, w: Any) -> Any:
    hours = t.astype(w.dtype) / 3600.0
    return jnp.sin(jnp.stack([hours, hours / 24, hours / 168], -1) @ w)


def alibi(dot: Any, i: Any, slopes: Any) -> Any:
    far = (i[:, None] - i[None]).astype(slopes.dtype)
    bias = jnp.einsum("ij,h->hij", far, slopes)
    return jax.nn.softmax(jnp.where(far <= 0, bias, -1e9), -1)


def alibi_by_matmul(dot: Any, i: Any, slopes: Any) -> Any:
    far = -jnp.abs(i[:, None] - i[None]).astype(slopes.dtype)
    bias = (far[..., None] @ slopes[None]).transpose(2, 0, 1)
    return jax.nn.log_softmax(bias, -1)


def timesteps(dot: Any, t: Any, w1: Any, w2: Any) -> Any:
    rates = jnp.exp(-np.log(10000.0) * jnp.arange(16, dtype=t.dtype) / 16)
    angles = jnp.einsum("b,d->bd", t * 1000.0, rates)
    h = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1)
    return dot("bd,dk->bk", jax.nn.silu(dot("bd,dk->bk", h, w1)), w2)


def timesteps_of_integers(dot: Any, t: Any, w1: Any, w2: Any) -> Any:
    rates = jnp.exp(-np.log(10000.0) * jnp.arange(16, dtype=w1.dtype) / 16)
    angles = jnp.outer(t.astype(w1.dtype), rates)
    h = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1)
    return dot("bd,dk->bk", jax.nn.silu(dot("bd,dk->bk", h, w1)), w2)


def buckets(dot: Any, x: Any, table: Any, w: Any) -> Any:
    """Attention with T5's relative buckets."""
    n = x.shape[0]
    far = jnp.abs(jnp.arange(n)[:, None] - jnp.arange(n)[None])
    large = 8 + (jnp.log(far.astype(x.dtype) / 8 + 1e-6) / np.log(128 / 8) * 8).astype(jnp.int32)
    bucket = jnp.where(far < 8, far, jnp.minimum(large, 15))
    q, k = dot("td,dk->tk", x, w), dot("td,dk->tk", x, w.T)
    scores = dot("ik,jk->ij", q, k) / 4 + table[bucket]
    return dot("ij,jd->id", jax.nn.softmax(scores, -1), x)


def attention_with_alibi(dot: Any, x: Any, w: Any, i: Any, slopes: Any) -> Any:
    far = (i[:, None] - i[None]).astype(slopes.dtype)
    q = dot("td,hdk->htk", x, w)
    scores = dot("hik,hjk->hij", q, q) / 4 + jnp.einsum("ij,h->hij", -jnp.abs(far), slopes)
    return dot("hij,jd->hid", jax.nn.softmax(scores, -1), x)


def attention_with_rotary(dot: Any, x: Any, w: Any, positions: Any, rates: Any) -> Any:
    angles = jnp.einsum("t,d->td", positions.astype(rates.dtype), rates)
    cos, sin = jnp.cos(angles), jnp.sin(angles)

    def turned(h: Any) -> Any:
        a, b = jnp.split(h, 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    q, k = turned(dot("td,dk->tk", x, w)), turned(dot("td,dk->tk", x, w.T))
    return dot("ij,jd->id", jax.nn.softmax(dot("ik,jk->ij", q, k) / 6, -1), x)


def nerf_encoding(dot: Any, points: Any) -> Any:
    angles = jnp.einsum("nc,f->ncf", points, 2.0 ** jnp.arange(10, dtype=points.dtype) * np.pi)
    return jnp.sin(angles), jnp.cos(angles)


def fourier_features(dot: Any, points: Any, w: Any) -> Any:
    angles = 2 * np.pi * points @ w
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


def image_positions(dot: Any, side: Any, rates: Any) -> Any:
    x, y = jnp.meshgrid(jnp.arange(24) * side, jnp.arange(24) * side)
    return jnp.concatenate(
        [jnp.sin(jnp.einsum("m,d->md", p.reshape(-1).astype(rates.dtype), rates)) for p in (x, y)],
        1,
    )


def distances_of_a_grid(dot: Any, rows: Any, columns: Any) -> Any:
    at = jnp.stack([rows, columns], -1).astype(jnp.float32)
    square = jnp.sum(at**2, -1)
    return square[:, None] + square[None] - 2 * at @ at.T


def expected_position(dot: Any, logits: Any, positions: Any) -> Any:
    return jax.nn.softmax(logits, -1) @ positions.astype(logits.dtype)


def expected_positions(dot: Any, logits: Any, positions: Any) -> Any:
    both = jnp.stack([positions, positions[::-1]], -1)
    return jax.nn.softmax(logits, -1) @ both.astype(logits.dtype)


def linear_trend(dot: Any, t: Any, y: Any) -> Any:
    t = t.astype(y.dtype)
    design = jnp.stack([t, jnp.ones_like(t)], -1)
    return jnp.linalg.lstsq(design, y)[0]


P16 = POSITIONS.astype(np.uint16)
MASK = (R.random((2, 512)) < 0.9).astype(np.int32)
PLACES = {
    "rotary by einsum": (rotary_by_einsum, (POSITIONS, RATES)),
    "rotary by einsum of uint16": (rotary_by_einsum, (P16, RATES)),
    "rotary by einsum of floats": (rotary_by_einsum, (FLOATS, RATES)),
    "rotary by outer": (rotary_by_outer, (POSITIONS, RATES)),
    "rotary by matmul": (rotary_by_matmul, (POSITIONS, RATES)),
    "rotary by tensordot": (rotary_by_tensordot, (POSITIONS, RATES)),
    "rotary by vmapped dot": (rotary_by_vmapped_dot, (POSITIONS, RATES)),
    "rotary of a batch": (rotary_of_a_batch, (POSITIONS, RATES)),
    "rotary of a grid": (rotary_of_grid, (POSITIONS, RATES)),
    "positions by cumsum": (positions_by_cumsum, (MASK, RATES)),
    "positions by float cumsum": (positions_by_float_cumsum, (MASK, RATES)),
    "positions by gather": (positions_by_gather, (POSITIONS, POSITIONS[::-1] - 3000, RATES)),
    "positions of packed": (positions_of_packed, (R.random(512) < 0.01, RATES)),
    "time2vec": (time2vec, (POSITIONS, normal(1, 16), normal(16))),
    "time2vec of floats": (time2vec, (FLOATS / 7, normal(1, 16), normal(16))),
    "time2vec of stamps": (time2vec_of_stamps, (POSITIONS * 1000, normal(3, 16))),
    "alibi": (alibi, (POSITIONS[::4], SLOPES)),
    "alibi by matmul": (alibi_by_matmul, (POSITIONS[::4], SLOPES)),
    "timesteps": (
        timesteps,
        (R.random(64).astype("f"), normal(32, 32, scale=0.2), normal(32, 16, scale=0.2)),
    ),
    "timesteps of integers": (
        timesteps_of_integers,
        (
            R.integers(0, 1000, 64).astype("i4"),
            normal(32, 32, scale=0.2),
            normal(32, 16, scale=0.2),
        ),
    ),
    "buckets": (buckets, (normal(64, 32), normal(16), normal(32, 32, scale=0.3))),
    "attention with alibi": (
        attention_with_alibi,
        (normal(64, 32), normal(8, 32, 16, scale=0.2), POSITIONS[:64], SLOPES),
    ),
    "attention with rotary": (
        attention_with_rotary,
        (normal(512, 32), normal(32, 32, scale=0.2), POSITIONS, RATES),
    ),
    "nerf encoding": (nerf_encoding, (normal(128, 3),)),
    "fourier features of 12": (fourier_features, (normal(128, 12), normal(12, 16, scale=10))),
    "image positions": (image_positions, (np.int32(16), RATES)),
    "distances of a grid": (distances_of_a_grid, (POSITIONS[:64], POSITIONS[64:128] - 2000)),
    "expected position": (expected_position, (normal(32, 512), POSITIONS)),
    "expected positions": (expected_positions, (normal(32, 512), POSITIONS)),
}

# ---------------------------------------------------------------- audio

BANK = np.maximum(0, 1 - np.abs(np.arange(201)[:, None] - np.linspace(0, 200, 40)) / 6).astype("f")
SPECTRA = (10.0 ** R.uniform(-5, 0, (32, 201))).astype("f")
TIME = np.linspace(0, 1, 8000)
SOUND = (np.sin(2 * np.pi * 440 * TIME) * 10 ** (-4 * TIME) + 1e-5 * R.normal(size=8000)).astype(
    "f"
)
COSINES = (
    np.cos(np.pi / 40 * (np.arange(40)[:, None] + 0.5) * np.arange(13)) * np.sqrt(2 / 40)
).astype("f")
WINDOW = np.hanning(400).astype("f")


def frames(x: Any) -> Any:
    return x[: x.shape[0] // 400 * 400].reshape(-1, 400)


def log_mel(dot: Any, s: Any, bank: Any) -> Any:
    return jnp.log(jnp.maximum((s * s) @ bank, 1e-10))


def log_mel_with_offset(dot: Any, s: Any, bank: Any) -> Any:
    return jnp.log(jnp.einsum("tf,fm->tm", jnp.square(s), bank) + 1e-6)


def log10_mel_of_stft(dot: Any, x: Any, bank: Any) -> Any:
    s = jnp.abs(jnp.fft.rfft(frames(x) * jnp.hanning(400).astype(x.dtype)))
    return jnp.log10(jnp.clip(s**2 @ bank, 1e-10))


def power_to_db(dot: Any, x: Any, bank: Any) -> Any:
    s = jnp.abs(jnp.fft.rfft(frames(x))) ** 2 @ bank
    db = 10 * jnp.log10(jnp.maximum(s, 1e-10)) - 10 * jnp.log10(jnp.maximum(s.max(), 1e-10))
    return jnp.maximum(db, db.max() - 80)


def whisper(dot: Any, x: Any, bank: Any) -> Any:
    s = jnp.abs(jnp.fft.rfft(frames(x))) ** 2
    mel = bank.T @ s.T
    log = jnp.log10(jnp.maximum(mel, 1e-10))
    log = jnp.maximum(log, log.max() - 8.0)
    return (log + 4.0) / 4.0


def log1p_mel(dot: Any, s: Any, bank: Any) -> Any:
    return jnp.log1p((s * s) @ bank)


def log1p_mel_scaled(dot: Any, s: Any, bank: Any) -> Any:
    return jnp.log1p(1e4 * (s @ bank))


def mfcc(dot: Any, s: Any, bank: Any, cosines: Any) -> Any:
    return dot("tm,mk->tk", jnp.log(jnp.maximum((s * s) @ bank, 1e-10)), cosines)


def mel_by_dft(dot: Any, x: Any, bank: Any) -> Any:
    k = jnp.arange(400, dtype=x.dtype)[:, None] * jnp.arange(201, dtype=x.dtype) * 2 * jnp.pi / 400
    re, im = frames(x) @ jnp.cos(k), frames(x) @ jnp.sin(k)
    return jnp.log(jnp.maximum((re**2 + im**2) @ bank, 1e-10))


def mel_by_conv(dot: Any, x: Any, kernels: Any, bank: Any) -> Any:
    s = lax.conv_general_dilated(x[None, None], kernels, (160,), "VALID")[0]
    power = s[:65] ** 2 + s[65:] ** 2
    return jnp.log(power.T @ bank + 1e-10)


def band_energies(dot: Any, x: Any, kernels: Any) -> Any:
    s = lax.conv_general_dilated(x[None, None], kernels, (1,), "VALID")[0]
    return jnp.log(jnp.mean(s.reshape(s.shape[0], -1, 8) ** 2, -1) + 1e-12)


def cube_root(dot: Any, s: Any, bank: Any) -> Any:
    return jnp.cbrt((s * s) @ bank), ((s * s) @ bank) ** 0.3


def pcen(dot: Any, s: Any, bank: Any) -> Any:
    e = (s * s) @ bank

    def smooth(m: Any, e: Any) -> Any:
        m = 0.975 * m + 0.025 * e
        return m, m

    m = lax.scan(smooth, e[0], e)[1]
    return (e / (1e-6 + m) ** 0.98 + 2.0) ** 0.5 - 2.0**0.5


def cube_root_of_power(dot: Any, s: Any, bank: Any) -> Any:
    return jnp.cbrt((s * s) @ bank)


def compressed_power(dot: Any, s: Any, bank: Any) -> Any:
    return (jnp.square(s) @ bank + 1e-6) ** 0.3


def spectral_contrast(dot: Any, s: Any, bank: Any) -> Any:
    mel = jnp.sqrt((s * s) @ bank)
    return 20 * jnp.log10(mel + 1e-9)


def forward_algorithm(dot: Any, start: Any, move: Any, emit: Any, seen: Any) -> Any:
    def step(a: Any, y: Any) -> Any:
        a = (a @ move) * emit[:, y].T
        total = a.sum(-1, keepdims=True)
        return a / total, jnp.log(total[:, 0])

    return lax.scan(step, start, seen)[1].sum(0)


def forward_at_the_end(dot: Any, start: Any, move: Any, emit: Any, seen: Any) -> Any:
    def step(a: Any, y: Any) -> Any:
        return (a @ move) * emit[:, y].T, None

    return jnp.log(lax.scan(step, start, seen)[0].sum(-1))


def viterbi(dot: Any, start: Any, move: Any, emit: Any, seen: Any) -> Any:
    def step(a: Any, y: Any) -> Any:
        return jnp.max(a[:, :, None] + jnp.log(move), 1) + jnp.log(emit[:, y].T), None

    return lax.scan(step, jnp.log(start), seen)[0]


def mixture(dot: Any, x: Any, w: Any, shares: Any) -> Any:
    p = jax.nn.softmax(dot("bd,dkv->bkv", x, w), -1)
    return jnp.log(jnp.einsum("bk,bkv->bv", shares, p))


def spectral_flatness(dot: Any, s: Any, bank: Any) -> Any:
    mel = (s * s) @ bank
    return jnp.exp(jnp.mean(jnp.log(mel + 1e-10), -1)) / jnp.mean(mel, -1)


def log_spectral_loss(dot: Any, x: Any, y: Any, bank: Any) -> Any:
    a, b = (jnp.log((jnp.abs(jnp.fft.rfft(frames(v))) ** 2) @ bank + 1e-7) for v in (x, y))
    return jnp.mean(jnp.abs(a - b), -1)


def prob(*shape: Any) -> Any:
    p = R.random(shape) ** 4 + 1e-4
    return (p / p.sum(-1, keepdims=True)).astype("f")


K = np.arange(128)[:, None] * np.arange(65) * 2 * np.pi / 128
KERNELS = np.concatenate([np.cos(K), np.sin(K)], 1).T[:, None].astype("f")
AUDIO = {
    "log mel": (log_mel, (SPECTRA, BANK)),
    "log mel of 16 bit": (log_mel, (SPECTRA * 32768, BANK)),
    "log mel with offset": (log_mel_with_offset, (SPECTRA, BANK)),
    "log10 mel of stft": (log10_mel_of_stft, (SOUND, BANK)),
    "power to db": (power_to_db, (SOUND, BANK)),
    "whisper": (whisper, (SOUND, BANK)),
    "log1p mel": (log1p_mel, (SPECTRA, BANK)),
    "log1p mel of 16 bit": (log1p_mel, (SPECTRA * 32768, BANK)),
    "log1p mel scaled": (log1p_mel_scaled, (SPECTRA, BANK)),
    "mfcc": (mfcc, (SPECTRA, BANK, COSINES)),
    "mel by dft": (mel_by_dft, (SOUND, BANK)),
    "mel by conv": (mel_by_conv, (SOUND, KERNELS, BANK[:65])),
    "band energies": (band_energies, (SOUND[:1127], KERNELS[:16])),
    "cube root of 16 bit": (cube_root_of_power, (SPECTRA * 32768, BANK)),
    "compressed power of 16 bit": (compressed_power, (SPECTRA * 32768, BANK)),
    "pcen of 16 bit": (pcen, (SPECTRA * 32768, BANK)),
    "decibels of root": (spectral_contrast, (SPECTRA, BANK)),
    "forward algorithm": (
        forward_algorithm,
        (prob(8, 16), prob(16, 16), prob(16, 10), R.integers(0, 10, (40, 8)).astype("i4")),
    ),
    "forward at the end": (
        forward_at_the_end,
        (prob(8, 16), prob(16, 16), prob(16, 10), R.integers(0, 10, (12, 8)).astype("i4")),
    ),
    "mixture of softmaxes": (mixture, (normal(8, 16), normal(16, 12, 32, scale=0.5), prob(8, 12))),
    "spectral flatness": (spectral_flatness, (SPECTRA, BANK)),
}

# ---------------------------------------------------------------- geometry

INTRINSICS = np.array([[1200.0, 0, 960], [0, 1200, 540], [0, 0, 1]], "f")
POINTS = normal(200, 3)
HOMOGENEOUS = np.concatenate([POINTS, np.ones((200, 1))], 1).astype("f")
POSE = np.eye(4, dtype="f")
POSE[:3, :3] = np.linalg.qr(R.normal(size=(3, 3)))[0]
POSE[2, 3] = 6


def camera(dot: Any, points: Any, pose: Any, k: Any) -> Any:
    q = (points @ pose.T)[:, :3] @ k.T
    return q[:, :2] / q[:, 2:]


def camera_by_einsum(dot: Any, points: Any, pose: Any, k: Any) -> Any:
    q = jnp.einsum("ij,jk,nk->ni", k, pose[:3], points)
    return q[:, :2] / q[:, 2:]


def camera_by_vmap(dot: Any, points: Any, pose: Any, k: Any) -> Any:
    def project(p: Any) -> Any:
        q = k @ (pose[:3, :3] @ p[:3] + pose[:3, 3])
        return q[:2] / q[2]

    return jax.vmap(project)(points)


def cameras_of_a_batch(dot: Any, points: Any, pose: Any, k: Any) -> Any:
    poses = jnp.stack([pose] * 4)
    batch = jnp.stack([points] * 4)
    q = jnp.einsum("bij,bnj->bni", k @ poses[:, :3], batch)
    return q[..., :2] / q[..., 2:]


def reprojection_gradient(dot: Any, points: Any, pose: Any, k: Any, seen: Any) -> Any:
    def loss(points: Any, pose: Any) -> Any:
        return jnp.mean((camera(dot, points, pose, k) - seen) ** 2)

    return jax.grad(loss, (0, 1))(points, pose)


def arm(dot: Any, angles: Any) -> Any:
    def joint(a: Any) -> Any:
        c, s = jnp.cos(a), jnp.sin(a)
        o, one = jnp.zeros_like(a), jnp.ones_like(a)
        return jnp.stack(
            [
                jnp.stack(r, -1)
                for r in ([c, -s, o, 100 * c], [s, c, o, 100 * s], [o, o, one, o], [o, o, o, one])
            ],
            -2,
        )

    def step(t: Any, a: Any) -> Any:
        t = t @ joint(a)
        return t, t[:, :3, 3]

    start = jnp.broadcast_to(jnp.eye(4, dtype=angles.dtype), (angles.shape[1], 4, 4))
    return lax.scan(step, start, angles)[1]


def quaternions(dot: Any, q: Any, v: Any) -> Any:
    q = q / jnp.linalg.norm(q, axis=-1, keepdims=True)
    t = 2 * jnp.cross(q[:, 1:], v)
    return v + q[:, :1] * t + jnp.cross(q[:, 1:], t)


def quaternion_matrices(dot: Any, q: Any, v: Any) -> Any:
    w, x, y, z = jnp.moveaxis(q / jnp.linalg.norm(q, axis=-1, keepdims=True), -1, 0)
    m = jnp.stack(
        [
            jnp.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], -1),
            jnp.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], -1),
            jnp.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1),
        ],
        -2,
    )
    return jnp.einsum("nij,nj->ni", m, v), jnp.einsum("nij,mj->nmi", m, v)


def rays(dot: Any, k: Any, pose: Any) -> Any:
    y, x = jnp.meshgrid(jnp.arange(16) * 60, jnp.arange(16) * 100, indexing="ij")
    pixels = jnp.stack([x, y, jnp.ones_like(x)], -1).astype(k.dtype)
    directions = jnp.einsum("ij,hwj->hwi", pose[:3, :3].T @ jnp.linalg.inv(k), pixels)
    return directions / jnp.linalg.norm(directions, axis=-1, keepdims=True)


def planes(dot: Any, origins: Any, directions: Any, normals: Any, offsets: Any) -> Any:
    return (offsets - origins @ normals.T) / (directions @ normals.T)


def triangles(dot: Any, origins: Any, directions: Any, corner: Any, e1: Any, e2: Any) -> Any:
    h = jnp.cross(directions, e2)
    s = origins - corner
    q = jnp.cross(s, e1)
    return jnp.einsum("ni,ni->n", e2, q) / jnp.einsum("ni,ni->n", e1, h)


def homography(dot: Any, h: Any, image: Any) -> Any:
    y, x = jnp.meshgrid(jnp.arange(24), jnp.arange(24), indexing="ij")
    at = jnp.stack([x, y, jnp.ones_like(x)], -1).reshape(-1, 3).astype(image.dtype) @ h.T
    at = at[:, :2] / at[:, 2:]
    return jax.scipy.ndimage.map_coordinates(image, [at[:, 1], at[:, 0]], order=1)


def kabsch(dot: Any, p: Any, q: Any) -> Any:
    a, b = p - p.mean(0), q - q.mean(0)
    u, _, vt = jnp.linalg.svd(a.T @ b)
    return (a @ u) @ vt + q.mean(0)


def epipolar(dot: Any, x1: Any, x2: Any, f: Any) -> Any:
    return jnp.einsum("ni,ij,nj->n", x2, f, x1), jnp.sum((x1 @ f.T) * x2, -1)


def skinning(dot: Any, vertices: Any, weights: Any, poses: Any) -> Any:
    blended = jnp.einsum("vj,jab->vab", weights, poses)
    return jnp.einsum("vab,vb->va", blended, vertices)[:, :3]


def pose_gradient(dot: Any, xi: Any, points: Any, seen: Any) -> Any:
    def exponential(xi: Any) -> Any:
        angle = jnp.sqrt(jnp.sum(xi[:3] ** 2) + 1e-12)
        o = jnp.zeros_like(xi[0])
        skew = jnp.stack(
            [
                jnp.stack([o, -xi[2], xi[1]]),
                jnp.stack([xi[2], o, -xi[0]]),
                jnp.stack([-xi[1], xi[0], o]),
            ]
        )
        return (
            jnp.eye(3)
            + jnp.sin(angle) / angle * skew
            + (1 - jnp.cos(angle)) / angle**2 * skew @ skew
        )

    def residual(xi: Any) -> Any:
        p = points @ exponential(xi).T + xi[3:] + jnp.array([0, 0, 8.0])
        return (1000 * p[:, :2] / p[:, 2:] - seen).ravel()

    j = jax.jacfwd(residual)(xi)
    return jnp.linalg.solve(j.T @ j + 1e-3 * jnp.eye(6), j.T @ residual(xi))


def point_attention(dot: Any, h: Any, wq: Any, rotations: Any, translations: Any, ws: Any) -> Any:
    """Invariant point attention, in frames 100 units from the origin."""
    p = dot("nd,dk->nk", h, wq).reshape(h.shape[0], -1, 3)
    p = jnp.einsum("nij,npj->npi", rotations, p) + translations[:, None]
    far = jnp.sum((p[:, None] - p[None]) ** 2, (-1, -2))
    return jax.nn.softmax(dot("nd,md->nm", h, dot("nd,dk->nk", h, ws)) / 6 - 0.05 * far, -1)


def moved_points(dot: Any, points: Any, rotation: Any, translation: Any) -> Any:
    """A cloud in metres of a map grid."""
    return points @ rotation.T + translation - jnp.array([4.0e3, 5.0e3, 0])


ROT = np.stack([np.linalg.qr(R.normal(size=(3, 3)))[0] for _ in range(24)]).astype("f")
POSES = np.zeros((24, 4, 4), "f")
POSES[:, :3, :3] = ROT
POSES[:, :3, 3] = normal(24, 3)
POSES[:, 3, 3] = 1
GEOMETRY = {
    "camera": (camera, (HOMOGENEOUS, POSE, INTRINSICS)),
    "camera by einsum": (camera_by_einsum, (HOMOGENEOUS, POSE, INTRINSICS)),
    "camera by vmap": (camera_by_vmap, (HOMOGENEOUS, POSE, INTRINSICS)),
    "cameras of a batch": (cameras_of_a_batch, (HOMOGENEOUS, POSE, INTRINSICS)),
    "arm": (arm, (normal(12, 16),)),
    "quaternions": (quaternions, (normal(64, 4), normal(64, 3, scale=100))),
    "quaternion matrices": (quaternion_matrices, (normal(64, 4), normal(64, 3, scale=100))),
    "rays": (rays, (INTRINSICS, POSE)),
    "planes": (planes, (normal(64, 3), normal(64, 3), normal(32, 3), normal(32) + 9)),
    "homography": (
        homography,
        (np.array([[1.02, 0.05, 2], [-0.04, 0.97, 3], [1e-4, 2e-4, 1]], "f"), normal(30, 30)),
    ),
    "kabsch": (kabsch, (POINTS, POINTS @ ROT[0] + 20)),
    "epipolar": (epipolar, (normal(64, 3), normal(64, 3), normal(3, 3))),
    "pose gradient": (pose_gradient, (normal(6, scale=0.1), POINTS, normal(200, 2, scale=100))),
    "point attention": (
        point_attention,
        (
            normal(24, 32),
            normal(32, 12, scale=0.2),
            ROT,
            normal(24, 3, scale=3) + 100,
            normal(32, 32, scale=0.2),
        ),
    ),
    "moved points": (moved_points, (POINTS * 30, ROT[0], np.array([4e3, 5e3, 20], "f"))),
}

# ---------------------------------------------------------------- images and moments

IMAGE, OTHER = 5 + normal(1, 24, 24, 1, scale=0.01), 5 + normal(1, 24, 24, 1, scale=0.01)
BOX = np.full((5, 5, 1, 1), 1 / 25, "f")
GAUSS = np.exp(-(np.arange(-5, 6) ** 2) / 4.5)
GAUSS = (GAUSS / GAUSS.sum()).astype("f")


def conv(x: Any, w: Any, groups: Any = 1, padding: Any = "VALID") -> Any:
    return lax.conv_general_dilated(
        x,
        w,
        (1, 1),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def blur(x: Any, g: Any) -> Any:
    c = x.shape[-1]
    w = jnp.tile(g[:, None, None, None], (1, 1, 1, c))
    return conv(conv(x, w, c), w.transpose(1, 0, 2, 3), c)


def local_variance(dot: Any, x: Any, w: Any) -> Any:
    return conv(x * x, w) - conv(x, w) ** 2


def local_variance_clipped(dot: Any, x: Any, w: Any) -> Any:
    return jnp.sqrt(jnp.maximum(conv(jnp.square(x), w) - jnp.square(conv(x, w)), 0.0) + 1e-8)


def local_variance_unbiased(dot: Any, x: Any, w: Any) -> Any:
    return 25 / 24 * (conv(x**2, w) - conv(x, w) ** 2)


def local_variance_by_sums(dot: Any, x: Any, w: Any) -> Any:
    s, q = conv(x, jnp.ones_like(w)), conv(x * x, jnp.ones_like(w))
    return (q - s * s / 25) / 24


def local_covariance(dot: Any, x: Any, y: Any, w: Any) -> Any:
    return conv(x * y, w) - conv(x, w) * conv(y, w)


def ssim(dot: Any, x: Any, y: Any, g: Any) -> Any:
    mx, my = blur(x, g), blur(y, g)
    xx, yy, xy = blur(x * x, g) - mx**2, blur(y * y, g) - my**2, blur(x * y, g) - mx * my
    c1, c2 = 1e-4, 9e-4
    return ((2 * mx * my + c1) * (2 * xy + c2)) / ((mx**2 + my**2 + c1) * (xx + yy + c2))


def ssim_gradient(dot: Any, x: Any, y: Any, g: Any) -> Any:
    return jax.grad(lambda x: jnp.mean(ssim(dot, x, y, g)))(x)


def contrast(dot: Any, x: Any, w: Any) -> Any:
    """Local contrast normalization."""
    mean = conv(x, w, padding="SAME")
    var = conv(x**2, w, padding="SAME") - mean**2
    return (x - mean) / jnp.sqrt(jnp.maximum(var, 1e-6))


def guided(dot: Any, x: Any, p: Any, w: Any) -> Any:
    mx, mp = conv(x, w), conv(p, w)
    a = (conv(x * p, w) - mx * mp) / (conv(x * x, w) - mx * mx + 1e-4)
    return a, mp - a * mx


def variance_by_dots(dot: Any, x: Any, w: Any) -> Any:
    return (x * x) @ w - jnp.square(x @ w)


def windowed_covariance(dot: Any, x: Any, y: Any, w: Any) -> Any:
    return jnp.einsum("nt,tw->nw", x * y, w) - (x @ w) * (y @ w)


def rolling_variance(dot: Any, x: Any, k: Any) -> Any:
    f = lambda v: jnp.convolve(v, k, mode="valid")  # noqa: E731
    return f(x * x) - f(x) ** 2


def rolling_variance_of_rows(dot: Any, x: Any, k: Any) -> Any:
    f = jax.vmap(lambda v: jnp.convolve(v, k, mode="valid"))
    return f(x * x) - f(x) ** 2


def covariance_less_means(dot: Any, x: Any) -> Any:
    m = x.mean(0)
    return x.T @ x / x.shape[0] - jnp.outer(m, m)


def covariance_less_sums(dot: Any, x: Any) -> Any:
    m = x.sum(0)
    return (jnp.einsum("ni,nj->ij", x, x) - m[:, None] * m / x.shape[0]) / (x.shape[0] - 1)


def covariance_of_two(dot: Any, x: Any, y: Any) -> Any:
    return x.T @ y - x.shape[0] * jnp.outer(x.mean(0), y.mean(0))


def channel_gram(dot: Any, x: Any) -> Any:
    f = x.reshape(-1, x.shape[-1])
    mean = jnp.mean(f, 0, keepdims=True)
    return f.T @ f / f.shape[0] - mean.T @ mean


def weighted_variance(dot: Any, x: Any, p: Any) -> Any:
    mean = p @ x
    return p @ x**2 - mean**2


def whitening(dot: Any, x: Any) -> Any:
    c = (x - x.mean(0)).T @ (x - x.mean(0)) / x.shape[0]
    factor = jnp.linalg.cholesky(c)
    return jax.scipy.linalg.solve_triangular(factor, (x - x.mean(0)).T, lower=True)


def mahalanobis(dot: Any, x: Any) -> Any:
    d = x - x.mean(0)
    inverse = jnp.linalg.inv(jnp.cov(x.T))
    return jnp.einsum("ni,ij,nj->n", d, inverse, d)


def template(dot: Any, x: Any, t: Any) -> Any:
    """Normalised cross-correlation."""
    n = t.size
    ones = jnp.ones_like(t)
    s, q = conv(x, ones), conv(x * x, ones)
    top = conv(x, t - t.mean())
    return top / jnp.sqrt((q - s * s / n) * jnp.sum((t - t.mean()) ** 2))


def adaptive_norm(dot: Any, x: Any, p: Any) -> Any:
    """Attentive statistics pooling: a mean and a deviation by weights."""
    mean = jnp.einsum("bt,btd->bd", p, x)
    return jnp.sqrt(jnp.clip(jnp.einsum("bt,btd->bd", p, x**2) - mean**2, 1e-7))


def shared_statistics(dot: Any, x: Any, p: Any) -> Any:
    mean = jnp.einsum("kt,td->kd", p, x)
    return jnp.einsum("kt,td->kd", p, x * x) - mean * mean


def harris(dot: Any, x: Any, w: Any) -> Any:
    dx, dy = x[:, 1:, :-1] - x[:, :-1, :-1], x[:, :-1, 1:] - x[:, :-1, :-1]
    a, b, c = conv(dx * dx, w), conv(dy * dy, w), conv(dx * dy, w)
    return (a * b - c * c - 0.04 * (a + b) ** 2) * 1e6


FLAT = 5 + normal(64, 16, scale=0.01)
MOMENTS = {
    "local variance clipped": (local_variance_clipped, (IMAGE, BOX)),
    "local variance unbiased": (local_variance_unbiased, (IMAGE, BOX)),
    "local variance by sums": (local_variance_by_sums, (IMAGE, BOX)),
    "local covariance": (local_covariance, (IMAGE, OTHER, BOX)),
    "ssim": (ssim, (IMAGE, OTHER, GAUSS)),
    "ssim of channels": (
        ssim,
        (5 + normal(1, 24, 24, 3, scale=0.01), 5 + normal(1, 24, 24, 3, scale=0.01), GAUSS),
    ),
    "ssim gradient": (ssim_gradient, (IMAGE, OTHER, GAUSS)),
    "contrast": (contrast, (IMAGE, BOX)),
    "guided": (guided, (IMAGE, OTHER, BOX)),
    "variance by dots": (variance_by_dots, (FLAT, np.full((16, 4), 1 / 16, "f"))),
    "windowed covariance": (
        windowed_covariance,
        (FLAT, FLAT[::-1].copy(), np.full((16, 4), 1 / 16, "f")),
    ),
    "rolling variance": (rolling_variance, (5 + normal(200, scale=0.01), np.full(20, 1 / 20, "f"))),
    "rolling variance of rows": (
        rolling_variance_of_rows,
        (5 + normal(4, 200, scale=0.01), np.full(20, 1 / 20, "f")),
    ),
    "covariance less sums": (covariance_less_sums, (FLAT,)),
    "covariance of two": (covariance_of_two, (FLAT, FLAT[::-1].copy())),
    "channel gram": (channel_gram, (5 + normal(1, 8, 8, 16, scale=0.01),)),
    "weighted variance": (weighted_variance, (FLAT, prob(12, 64))),
    "whitening": (whitening, (FLAT,)),
    "attentive statistics": (adaptive_norm, (5 + normal(4, 32, 16, scale=0.01), prob(4, 32))),
    "shared statistics": (shared_statistics, (FLAT, prob(12, 64))),
}
