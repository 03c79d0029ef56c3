"""Random programs of the supported primitives, parameters reused at random.

50 programs by default; with EQX_MLP_LONG_TESTS set, 1000.
"""

import os

import jax
import jax.numpy as jnp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

D = 3
PROGRAMS = 1000 if "EQX_MLP_LONG_TESTS" in os.environ else 50

# Each takes parameters and a state [rows, D] and gives a state of the same shape.
STEPS = {
    "right": lambda p, h: h @ p["w"],
    "left": lambda p, h: jnp.tanh(p["w"] @ h.T).T,
    "transposed": lambda p, h: h @ p["w"].T,
    "bias": lambda p, h: h + p["b"][None],
    "vmapped bias": lambda p, h: jax.vmap(lambda r: r - p["b"])(h),
    "scale": lambda p, h: h * p["b"][None],
    "scalar": lambda p, h: p["s"] * h,
    "divide": lambda p, h: h / (2 + jnp.square(p["b"]))[None],
    "product": lambda p, h: h @ (p["w"] @ p["v"]),
    "cast": lambda p, h: h @ p["w"].astype(jnp.float32).astype(h.dtype),
    "reshape": lambda p, h: h @ p["w"].reshape(-1)[::-1].reshape(D, D),
    "slice": lambda p, h: (
        h + (h @ p["w"][:, :1]) - h @ p["w"][1:].T.sum(1, keepdims=True)
    ),
    "concatenate": lambda p, h: h + h @ jnp.concatenate([p["b"][None], p["v"][:2]]),
    "normed": lambda p, h: h @ (p["v"] / jnp.linalg.norm(p["v"])),
    "embed": lambda p, h: h + p["v"][jnp.argmax(h, axis=1)],
    "one row": lambda p, h: h + p["v"][jnp.argmax(h[0])][None],
    "scan": lambda p, h: jax.lax.scan(
        lambda c, r: (jnp.tanh(p["w"] @ c + r), c * p["b"]), p["b"], h
    )[1],
    "stacked scan": lambda p, h: jax.lax.scan(
        lambda c, w: (jnp.tanh(c @ w.T + p["b"][None]), None), h, p["k"]
    )[0],
    "jit": lambda p, h: jax.jit(lambda w, h: jnp.sin(h @ w.T))(p["w"], h),
    "remat": lambda p, h: jax.checkpoint(lambda w, h: jnp.sin(h @ w))(p["v"], h),
    "stacked remat": lambda p, h: jax.lax.scan(
        jax.checkpoint(lambda c, w: (jnp.tanh(c @ w + p["b"][None]), None)), h, p["k"]
    )[0],
    "cond": lambda p, h: jax.lax.cond(
        h[0, 0] > 0, lambda p, h: h @ p["w"], lambda p, h: h + p["b"][None], p, h
    ),
    "stopped": lambda p, h: h @ jax.lax.stop_gradient(p["w"]),
    "batched": lambda p, h: jnp.einsum("kij,tj->ti", p["k"], h),
    "select": lambda p, h: jnp.where(h > 0, h, p["b"][None]),
    "maximum": lambda p, h: jnp.maximum(h, p["s"]),
    "softmax": lambda p, h: jax.nn.softmax(h @ p["v"]),
    "penalty": lambda p, h: h + 0.1 * jnp.sum(jnp.square(p["w"])),
    "attend": lambda p, h: jax.nn.softmax(h @ p["w"] @ h.T) @ h,
    "conv": lambda p, h: h + jnp.convolve(h[:, 0], p["b"], "full")[1:-1, None],
    "image": lambda p, h: (
        h + jax.lax.conv(h[None, None], p["k"][:1, None, 1:], (1, 1), "SAME")[0, 0]
    ),
}


@settings(
    max_examples=PROGRAMS,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5),
    rows=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_a_random_program_agrees_with_vmap(routes_agree, double, steps, rows, seed):
    with double(True):
        k = iter(jax.random.split(jax.random.key(seed), 9))
        draw = lambda *shape: jax.random.normal(next(k), shape, jnp.float64)
        params = {
            "w": draw(D, D).astype(jnp.float32).astype(jnp.float64),
            "v": draw(D, D),
            "b": draw(D),
            "s": draw(),
            "k": draw(2, D, D),
        }

        def loss(p, x):
            for step in steps:
                x = STEPS[step](p, x)
            return jnp.sum(jnp.sin(x))

        # A gradient that went through a cast to float32 is no better than that.
        low = {"norm_tol": 3e-6, "sum_tol": 3e-6} if "cast" in steps else {}
        routes_agree(loss, params, draw(2, rows, D), **low)
    if PROGRAMS > 50:
        jax.clear_caches()  # a thousand compiled programs are more than a process maps
