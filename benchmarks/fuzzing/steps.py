"""The operations of random programs: templates of Python expressions, by name.

In a template ``{x}`` stands for a value of any shape, ``{m}`` for a matrix and ``{n}`` for another
of the same shape, ``{y}`` for a value of the shape of ``{x}``, ``{s}`` for any value that is
broadcast, ``{axis}`` for an axis of ``{x}`` and ``{k}`` for a small number; names in ``weights``
for new inputs: their shapes are written in ``T`` and ``F``, rows and columns of ``{m}``.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation.

    Attributes:
        name: in tables.
        template: of the expression.
        weights: new inputs by name: a shape and a kind, ``"F F"`` or ``"F 4F"``; ``"int T"`` for
            whole numbers, ``"one F"`` for numbers near one.
        likely: how often it is taken, as compared with others.
    """

    name: str
    template: str
    weights: dict[str, str] = dataclasses.field(default_factory=dict)
    likely: float = 1.0


_POINTWISE = """
tanh: jnp.tanh({x})
sigmoid: jax.nn.sigmoid({x})
relu: jax.nn.relu({x})
gelu: jax.nn.gelu({x})
exact gelu: jax.nn.gelu({x}, approximate=False)
silu: jax.nn.silu({x})
softplus: jax.nn.softplus({x})
elu: jax.nn.elu({x})
leaky relu: jax.nn.leaky_relu({x})
hard swish: jax.nn.hard_swish({x})
mish: jax.nn.mish({x})
log sigmoid: jax.nn.log_sigmoid({x})
selu: jax.nn.selu({x})
squareplus: jax.nn.squareplus({x})
soft sign: jax.nn.soft_sign({x})
exp: jnp.exp(-jnp.abs({x}))
exp of tanh: jnp.exp(jnp.tanh({x}))
expm1: jnp.expm1(0.1 * jnp.tanh({x}))
log: jnp.log(jnp.abs({x}) + 0.5)
log1p: jnp.log1p(jnp.square({x}))
log of sigmoid: jnp.log(jax.nn.sigmoid({x}) + 1e-6)
sqrt: jnp.sqrt(jnp.abs({x}) + 0.01)
rsqrt: jax.lax.rsqrt(jnp.square({x}) + 0.1)
cbrt: jnp.cbrt({x} + 3.0)
square: jnp.square(jnp.tanh({x}))
cube: jnp.tanh({x}) ** 3
power: (jnp.abs({x}) + 0.1) ** 1.5
reciprocal: 1.0 / (1.0 + jnp.abs({x}))
sin: jnp.sin({x})
cos: jnp.cos(0.5 * {x})
sinc: jnp.sinc({x})
atan: jnp.arctan({x})
asinh: jnp.arcsinh({x})
erf: jax.lax.erf({x})
logit: logit({x})
scale: {x} * {k}
shift: {x} + {k}
negative: -{x}
abs: jnp.abs({x})
one minus: 1.0 - {x}
clip: jnp.clip({x}, -1.5, 1.5)
maximum: jnp.maximum({x}, 0.1)
round: {x} + jnp.round({x} * 0.25)
where: jnp.where({x} > 0.2, {x}, 0.1 * {x})
select finite: jnp.where(jnp.isfinite({x}), {x}, 0.0)
stop gradient: {x} + jax.lax.stop_gradient(jnp.tanh({x}))
xlogy: jax.scipy.special.xlogy(jax.nn.sigmoid({x}), jax.nn.sigmoid({x}))
lgamma: jax.scipy.special.gammaln(jnp.abs({x}) + 1.0)
normal cdf: jax.scipy.stats.norm.cdf({x})
log normal cdf: jax.scipy.stats.norm.logcdf(2.0 * {x})
entropy: jax.scipy.special.entr(jax.nn.sigmoid({x}))
inverse error function: jax.scipy.special.erfinv(0.9 * jnp.tanh({x}))
digamma: jax.scipy.special.digamma(jnp.abs({x}) + 1.0)
bessel: jax.scipy.special.i0e({x})
student logpdf: jax.scipy.stats.t.logpdf({x}, 4.0)
gamma logpdf: jax.scipy.stats.gamma.logpdf(jnp.abs({x}) + 0.1, 2.0)
laplace logpdf: jax.scipy.stats.laplace.logpdf({x})
mapped: jax.lax.map(jnp.tanh, {x})
polynomial: jnp.polyval(jnp.array([0.1, -0.5, 1.0]), {x})
interpolate: jnp.interp({x}, jnp.arange(-3.0, 4.0), jnp.array([0.0, 1.0, -1.0, 2.0, 0.5, 0.0, 1.0]))
double where: jnp.where({x} > 0, jnp.sqrt(jnp.where({x} > 0, {x}, 1.0)), 0.0)
soft cap: 5.0 * jnp.tanh({x} / 5.0)
log1mexp: jnp.log1p(-jnp.exp(-jnp.abs({x}) - 0.1))
exp of large: jnp.exp(jnp.clip({x}, -8.0, 8.0)) * 1e-3
remainder: jnp.mod({x}, 1.5)
angle: jnp.cos(6.2831853 * {x})
large offset: ({x} + 1000.0) - 1000.0
tiny: {x} * 1e-6
normal logpdf: jax.scipy.stats.norm.logpdf({x}, 0.5, 1.5)
"""

_OF_TWO = """
add: {x} + {y}
subtract: {x} - {y}
multiply: {x} * jnp.tanh({y})
divide: {x} / (1.0 + jnp.abs({y}))
larger: jnp.maximum({x}, {y})
hypot: jnp.sqrt({x} * {x} + {y} * {y} + 1e-3)
logaddexp: jnp.logaddexp({x}, {y})
arctan2: jnp.arctan2({x}, jnp.abs({y}) + 0.5)
lerp: {x} + 0.25 * ({y} - {x})
gate: jax.nn.sigmoid({x}) * {y}
squared difference: jnp.square({x} - {y})
choose: jnp.where({y} > 0, {x}, {y})
broadcast add: {x} + {s}
broadcast multiply: {x} * jnp.tanh({s})
broadcast subtract: {x} - {s}
"""

_ALONG = """
masked softmax: jax.nn.softmax({x}, axis={axis}, where={x} > -0.5)
median: jnp.median({x}, axis={axis})
quantile: jnp.quantile({x}, 0.3, axis={axis})
trapezoid: jnp.trapezoid({x}, axis={axis})
geometric mean: jnp.exp(jnp.mean(jnp.log(jnp.abs({x}) + 0.1), axis={axis}))
sum of squares: jnp.sum(jnp.square({x}), axis={axis})
log of sum: jnp.log(jnp.sum(jnp.exp({x}), axis={axis}))
naive variance: jnp.mean(jnp.square({x}), axis={axis}) - jnp.square(jnp.mean({x}, axis={axis}))
cumulative mean: cumulative_mean({x}, {axis})
spectrum: jnp.abs(jnp.fft.rfft({x}, axis={axis})) ** 2
softmax: jax.nn.softmax({x}, axis={axis})
log softmax: jax.nn.log_softmax({x}, axis={axis})
logsumexp: jax.nn.logsumexp({x}, axis={axis}, keepdims=True)
sum: jnp.sum({x}, axis={axis}) * 0.5
mean: jnp.mean({x}, axis={axis})
kept mean: {x} - jnp.mean({x}, axis={axis}, keepdims=True)
variance: jnp.var({x}, axis={axis})
deviation: jnp.std({x} + 0.1 * jnp.tanh({x}), axis={axis}, keepdims=True) + 0.1
max: jnp.max({x}, axis={axis})
min: jnp.min({x}, axis={axis}, keepdims=True)
product: jnp.prod(1.0 + 0.1 * jnp.tanh({x}), axis={axis})
norm: jnp.linalg.norm({x} + 0.01, axis={axis}, keepdims=True)
normalise: {x} / (jnp.linalg.norm({x}, axis={axis}, keepdims=True) + 1e-3)
divide by largest: {x} / jnp.maximum(jnp.max(jnp.abs({x}), axis={axis}, keepdims=True), 1e-6)
standardise: jax.nn.standardize({x}, axis={axis})
cumsum: jnp.cumsum({x}, axis={axis}) * 0.3
cumprod: jnp.cumprod(1.0 + 0.1 * jnp.tanh({x}), axis={axis})
cummax: jax.lax.cummax({x}, axis={axis})
cumlogsumexp: jax.lax.cumlogsumexp({x}, axis={axis})
sort: jnp.sort({x}, axis={axis})
argsort: jnp.take_along_axis({x}, jnp.argsort({x}, axis={axis}), axis={axis})
flip: jnp.flip({x}, axis={axis})
roll: jnp.roll({x}, 1, axis={axis})
diff: jnp.diff({x}, axis={axis}, prepend=0.0)
concatenate: jnp.concatenate([{x}, {y}], axis={axis})
stack: jnp.stack([{x}, {y}], axis={axis}).mean({axis})
repeat: jnp.repeat({x}, 2, axis={axis})
halves: sum(jnp.array_split({x}, 2, axis={axis})[:1])
expand: jnp.expand_dims({x}, {axis})
glu: jax.nn.glu(jnp.concatenate([{x}, {y}], axis={axis}), axis={axis})
"""

_MOVES = """
reshape: {x}.reshape(-1)
transpose: {x}.T
swap axes: jnp.swapaxes({x}, 0, -1)
pad: jnp.pad({x}, 1)
squeeze: jnp.squeeze({x}[None], 0)
tile: jnp.tile({x}, 2)
barrier: jax.lax.optimization_barrier({x})
first: {x}[0]
every second: {x}[::2]
top k: jax.lax.top_k({x}, 2)[0]
take: jnp.take({x}, jnp.array([0, 1, 0]), axis=0)
set: {x}.at[0].set(0.5)
update: {x}.at[..., 0].add(1.0)
updated by row: {x}.at[0].multiply({x}[-1])
rounded argument: {x}.astype(jnp.bfloat16).astype(jnp.float32)
"""

_MATRIX = """
dot: {m} @ {w} | w F F
projection: {m} @ {w} | w F 12
dense: {m} @ {w} + {b} | w F F, b F
dense tanh: jnp.tanh({m} @ {w} + {b}) | w F F, b F
gram: {m} @ {m}.T / {m}.shape[1]
covariance: ({m} - {m}.mean(0)).T @ ({m} - {m}.mean(0)) / {m}.shape[0]
cosine: cosine({m}, {n})
batched dot: jnp.einsum("ij,ik->ijk", {m}, {n}).mean(0)
row dot: jnp.einsum("ij,ij->i", {m}, {n})
bilinear: jnp.einsum("ij,jk,ik->i", {m}, {w}, {n}) | w F F
matrix vector: {m} @ {v} | v F
vector matrix: {v} @ {m} | v T
outer: jnp.outer({m}[0], {m}[:, 0])
tensor dot: jnp.tensordot({m}, {n}, 2) * jnp.ones(3)
low rank: ({m} @ {w}) @ {w}.T | w F 8
triangle: jnp.tril({m} @ {n}.T) @ {n}
trace: jnp.trace({m} @ {n}.T) * {m}
embedding: {e}[{i} % 9] * 0.5 + {m} | e 9 F, i int T
embedding sum: {e}[{i} % 9].sum(0) + {m} | e 9 F, i int T
one hot: jax.nn.one_hot({i} % 9, 9) @ {e} + {m} | e 9 F, i int T
gather rows: {m}[{i} % {m}.shape[0]] | i int T
scatter rows: jnp.zeros_like({m}).at[{i} % {m}.shape[0]].add({m}) | i int T
scatter max: {n}.at[{i} % {m}.shape[0]].max({m}) | i int T
dynamic slice: jax.lax.dynamic_slice_in_dim({m}, {i}[0], 2) | i int T
layer norm: layer_norm({m}, {g}, {b}) | g one F, b F
fast layer norm: fast_layer_norm({m}, {g}, {b}) | g one F, b F
rms norm: rms_norm({m}, {g}) | g one F
batch norm: batch_norm({m}, {g}, {b}) | g one F, b F
group norm: group_norm({m}, {g}) | g one F
attention: attention({m}, {q}, {k}, {v}) | q F F, k F F, v F F
causal attention: causal_attention({m}, {q}, {k}, {v}) | q F F, k F F, v F F
padded attention: padded_attention({m}, {n}, {w}) | w F F
alibi attention: alibi_attention({m}, {w}) | w F F
linear attention: linear_attention({m}, {q}, {k}) | q F F, k F F
rotary: rotary({m})
mlp: mlp({m}, {w}, {b}, {u}) | w F 2F, b 2F, u 2F F
gated mlp: gated_mlp({m}, {w}, {v}, {u}) | w F 2F, v F 2F, u 2F F
residual mlp: {m} + mlp(layer_norm({m}, {g}, 0.0), {w}, {b}, {u}) | g one F, w F 2F, b 2F, u 2F F
moe: moe({m}, {r}, {e}) | r F 8, e 8 F F
switch moe: switch_moe({m}, {r}, {e}) | r F 8, e 8 F F
rnn: rnn({m}, {u}, {w}) | u F F, w F F
lstm: lstm({m}, {u}, {w}, {b}) | u F 4F, w F 4F, b 4F
gru: gru({m}, {u}, {w}) | u F 3F, w F 3F
linear recurrence: linear_recurrence({m}, {w}) | w F F
associative scan: associative({m})
layers: layers({m}, {w}) | w 3 F F
checkpointed layers: checkpointed_layers({m}, {w}) | w 2 F F
accumulated: accumulated({m}, {w}) | w 3 F F
fori loop: fori({m}, {w}) | w F F
euler: euler({m}, {w}) | w F F
runge kutta: runge_kutta({m}, {w}) | w F F
leapfrog: leapfrog({m}, {w}) | w F F
inner steps: inner_steps({m}, {n}, {w}) | w F F
ridge: ridge({m}, {n})
kernel: kernel({m}, {n})
gaussian process: gaussian_process({m}, {n})
whitened: whitened({m})
singular values: spectral({m})
eigenvalues: principal({m})
qr: orthogonal({m})
log determinant: log_determinant({m})
determinant: determinant({m})
inverse: inverse({m})
expm: exponential({m}, {w}) | w F F
conjugate gradient: conjugate_gradient({m}, {n})
newton: newton({m})
pseudo-inverse: {m} @ jnp.linalg.pinv({m} + 0.5 * {n}) @ {n}
least squares: jnp.linalg.lstsq({m}.T @ {m} + jnp.eye({m}.shape[1]), {v})[0] | v F
tridiagonal: tridiagonal({m})
lu solve: lu_solve({m}, {v}) | v F
kron: jnp.kron({m}[:2, :2], {n}[:2, :2])
vandermonde: jnp.vander(jnp.tanh({m}[0]), 4)
cross product: jnp.cross({m}[:, :3], {n}[:, :3])
rotation: rotation({m})
quaternions: quaternions({m})
library attention: library_attention({m}, {q}, {k}, {v}) | q F F, k F F, v F F
softmax one: softmax_one({m}, {w}) | w F F
dropout: jnp.where(jnp.sin(100.0 * {i})[:, None] > -0.5, {m} / 0.75, 0.0) | i int T
while: halved({m}, {w}) | w F F
implicit: implicit({m}, {w}) | w F F
weight norm: {m} @ ({w} / jnp.linalg.norm({w}, axis=0) * {g}) | w F F, g one F
spectral norm: spectral_norm({m}, {w}) | w F F
custom gradient: clipped_gradient({m}) @ {w} | w F F
perceiver: perceiver({m}, {q}, {w}) | q 8 F, w F F
squeeze excite: {m} * jax.nn.sigmoid(jnp.mean({m}, 0) @ {w}) | w F F
factorisation machine: factorisation_machine({m}, {w}) | w F 8
energy: energy({m})
potential: potential({m})
kalman: kalman({m}, {w}) | w F F
forward algorithm: forward_algorithm({m}, {w}) | w F F
adam: adam({m}, {n}, {w}) | w F F
mixture: mixture({m}, {e}) | e 8 F
upsample: jax.image.resize({m}, (2 * {m}.shape[0], {m}.shape[1]), "linear")
normalised forward algorithm: forward_scores({m}, {w}) | w F F
convolution: convolution({m}, {w}) | w 3 F F
depthwise: depthwise({m}, {w}) | w 3 1 F
convolution 2d: convolution_2d({m}, {w}) | w 2 1 3 3
max pool: max_pool({m})
mean pool: mean_pool({m})
cross entropy: cross_entropy({m}, {i}) | i int T
smoothed cross entropy: smoothed_cross_entropy({m}, {i}) | i int T
focal: focal({m}, {i}) | i int T
contrastive: contrastive({m}, {n})
gaussian nll: gaussian_nll({m}, {w}) | w F F
kl divergence: kl_divergence({m}, {n})
huber: huber({m}, {n})
segments: segments({m}, {i}) | i int T
graph convolution: graph_convolution({m}, {w}, {i}) | w F F, i int T
vector quantised: vector_quantised({m}, {e}) | e 8 F
sinkhorn: sinkhorn({m}, {n})
fourier features: fourier_features({m}, {w}) | w F F
straight through: straight_through({m})
branches: branches({m}, {w}) | w F F
vmapped: vmapped({m}, {w}) | w F F
input gradient: input_gradient({m}, {w}) | w F F
divergence: divergence({m}, {w}) | w F F
"""


def _steps(text: str, likely: float) -> list[Step]:
    """One step for each line ``name: template | weight shape, ...``."""
    found = []
    for line in text.strip().splitlines():
        name, rest = line.split(": ", 1)
        template, _, weights = rest.partition(" | ")
        pairs = [weight.split(" ", 1) for weight in weights.split(", ") if weight]
        found.append(Step(name, template, dict(pairs), likely))
    return found


STEPS: tuple[Step, ...] = (
    *_steps(_POINTWISE, 1.0),
    *_steps(_OF_TWO, 2.0),
    *_steps(_ALONG, 1.3),
    *_steps(_MOVES, 1.0),
    *_steps(_MATRIX, 2.2),
)
"""All of them."""
