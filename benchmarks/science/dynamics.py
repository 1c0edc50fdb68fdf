"""Differential equations, particles, simulators, symmetries."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.science.case import Program, layers, module, network, normal, random, with_gradient


def robertson(seed: int, half: Any = None) -> Any:
    """Diffrax: Robertson's stiff chemistry with an implicit solver."""
    dfx = module("diffrax")

    def rates(t: Any, y: jax.Array, k: jax.Array) -> jax.Array:
        first = -k[0] * y[0] + k[2] * y[1] * y[2]
        last = k[1] * y[1] ** 2
        return jnp.stack([first, -first - last, last])

    def react(start: jax.Array, k: jax.Array) -> Any:
        found = dfx.diffeqsolve(
            dfx.ODETerm(rates), dfx.Kvaerno5(), 0.0, 100.0, 2e-4, start, args=k,
            saveat=dfx.SaveAt(ts=jnp.array([1.0, 10.0, 100.0])), max_steps=2000, throw=False,
            stepsize_controller=dfx.PIDController(rtol=1e-5, atol=1e-7),
        )  # fmt: skip
        return {"masses": found.ys, "small mass": found.ys[:, 1]}

    k = np.array([0.04, 3e7, 1e4], "f") * np.float32(1 + 0.1 * seed)
    return react, (np.array([1, 0, 0], "f"), k)


def heat_implicit(seed: int, half: Any = None) -> Any:
    """Diffrax: reaction and diffusion with a dense matrix of differences, implicit steps."""
    dfx = module("diffrax")
    rng = random(seed)
    n = 32
    matrix = (np.eye(n, k=1) - 2 * np.eye(n) + np.eye(n, k=-1)).astype("f") * n**2 * 0.01

    def react(start: jax.Array, matrix: jax.Array) -> Any:
        field = lambda t, u, m: m @ u + u - u**3  # noqa: E731
        found = dfx.diffeqsolve(
            dfx.ODETerm(field), dfx.Kvaerno3(), 0.0, 1.0, 0.01, start, args=matrix, throw=False,
            max_steps=500, stepsize_controller=dfx.PIDController(rtol=1e-4, atol=1e-6),
        )  # fmt: skip
        return {"solution": found.ys}

    return react, (normal(rng, n), matrix)


def two_bodies(seed: int, half: Any = None) -> Any:
    """Diffrax: a planet's orbit; its path and the drift of its energy."""
    dfx = module("diffrax")

    def fall(t: Any, y: jax.Array, _: Any) -> jax.Array:
        place, speed = y[:2], y[2:]
        return jnp.concatenate([speed, -place / jnp.dot(place, place) ** 1.5])

    def orbit(start: jax.Array) -> Any:
        found = dfx.diffeqsolve(
            dfx.ODETerm(fall), dfx.Tsit5(), 0.0, 20.0, 0.02, start,
            saveat=dfx.SaveAt(ts=jnp.linspace(0.0, 20.0, 50)), max_steps=2000, throw=False,
        )  # fmt: skip
        energy = jax.vmap(lambda y: y[2:] @ y[2:] / 2 - 1 / jnp.linalg.norm(y[:2]))(found.ys)
        return {"path": found.ys, "energy": energy}

    return orbit, (np.array([1, 0, 0, 0.8 + 0.1 * seed], "f"),)


def neural_ode(seed: int, half: Any = None) -> Any:
    """Diffrax: a neural differential equation, its loss and gradient."""
    dfx = module("diffrax")
    rng = random(seed)

    def loss(weights: Any, start: jax.Array, target: jax.Array) -> jax.Array:
        found = dfx.diffeqsolve(
            dfx.ODETerm(lambda t, y, w: network(y, w, half)), dfx.Tsit5(), 0.0, 1.0, 0.05, start,
            args=weights, max_steps=32, throw=False,
        )  # fmt: skip
        return jnp.mean((found.ys[0] - target) ** 2)

    return with_gradient(loss), (layers(rng, 16, 128, 16), normal(rng, 64, 16), normal(rng, 64, 16))


def pendulum(name: str, backend: str, steps: int) -> Any:
    """Brax: observations of an environment under given actions."""

    def make(seed: int, half: Any = None) -> Any:
        env = module("brax.envs").get_environment(name, backend=backend)
        key = jax.random.PRNGKey(seed)
        inner = jax.jit(env.reset)(key).pipeline_state
        actions = random(seed).uniform(-1, 1, (steps, env.action_size)).astype("f")

        def roll(key: jax.Array, q: jax.Array, qd: jax.Array, actions: jax.Array) -> Any:
            first = env.reset(key).replace(pipeline_state=env.pipeline_init(q, qd))

            def step(state: Any, action: jax.Array) -> Any:
                state = env.step(state, action)
                return state, (state.obs, state.reward)

            _, (seen, rewards) = jax.lax.scan(step, first, actions)
            return {"observations": seen, "reward": jnp.sum(rewards)}

        return roll, (key, np.asarray(inner.q), np.asarray(inner.qd), actions)

    return make


def particles(seed: int, half: Any = None) -> Any:
    """JAX MD: Lennard-Jones particles at constant energy; its drift."""
    md = module("jax_md")
    side = np.stack(np.meshgrid(*[np.arange(4)] * 3), -1).reshape(-1, 3) * 1.2
    place = (side + 0.02 * normal(random(seed), 64, 3)).astype("f")

    def simulate(place: jax.Array, speed: jax.Array) -> Any:
        displacement, shift = md.space.periodic(4.8)
        energy = md.energy.lennard_jones_pair(displacement)
        begin, advance = md.simulate.nve(energy, shift, 2e-3)
        state = begin(jax.random.PRNGKey(0), place, kT=0.0)
        state = state.set(momentum=speed)

        def step(state: Any, _: Any) -> Any:
            state = advance(state)
            kinetic = 0.5 * jnp.sum(state.momentum**2 / state.mass)
            return state, energy(state.position) + kinetic

        state, energies = jax.lax.scan(step, state, None, length=100)
        return {"energy": energies, "momentum": state.momentum}

    return simulate, (place, 0.3 * normal(random(seed + 10), 64, 3))


def equivariance(seed: int, half: Any = None) -> Any:
    """e3nn: how far a tensor product and a linear map are from commuting with rotations."""
    e3nn = module("e3nn_jax")
    rng = random(seed)
    angles = rng.uniform(0, 3, 3).astype("f")

    def defect(x: jax.Array, y: jax.Array, mix: jax.Array, angles: jax.Array) -> Any:
        irreps = "4x0e + 4x1o + 4x2e"

        def layer(x: Any, y: Any) -> Any:
            product = e3nn.tensor_product(x, y, filter_ir_out=[e3nn.Irrep("1o")])
            return jnp.einsum("buc,uv->bvc", product.chunks[0], mix)

        one, two = e3nn.IrrepsArray(irreps, x), e3nn.IrrepsArray("0e + 1o + 2e", y)
        turn = lambda a: a.transform_by_angles(*angles)  # noqa: E731
        before = layer(turn(one), turn(two))
        after = layer(one, two) @ e3nn.Irrep("1o").D_from_angles(*angles).T
        scale = jnp.sqrt(jnp.mean(after**2))
        return {"equivariance": (before - after) / scale}

    return defect, (normal(rng, 16, 36), normal(rng, 16, 9), normal(rng, 16, 8), angles)


PROGRAMS = (
    Program("stiff chemistry, Kvaerno5", robertson, "diffrax"),
    Program("reaction-diffusion, implicit", heat_implicit, "diffrax"),
    Program("orbit, Tsit5", two_bodies, "diffrax", chaotic=True),
    Program("neural ODE", neural_ode, "diffrax", network=True),
    Program(
        "inverted pendulum, spring",
        pendulum("inverted_pendulum", "spring", 50),
        "brax",
        chaotic=True,
    ),
    Program("reacher, generalized", pendulum("reacher", "generalized", 20), "brax", chaotic=True),
    Program("Lennard-Jones particles", particles, "jax_md", chaotic=True),
    Program("equivariance of a tensor product", equivariance, "e3nn_jax", known=True),
)
