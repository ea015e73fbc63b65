"""Programs with calls, loops, conditionals and JAX's transformations of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from evaluation.certification.case import F32, S, always, case, positive

_STACK = (S((4, 16, 16), F32), S((8, 16), F32))


@jax.jit
def _dense(x, w):
    return jnp.tanh(x @ w)


def calls(x, w1, w2):
    return _dense(_dense(x, w1), w2) + _dense(x, w1)


def _layers(ws, x):
    return lax.scan(lambda h, w: (jnp.tanh(h @ w) + h, jnp.sum(h, axis=1)), x, ws)


def scan_forward(ws, x):
    return _layers(ws, x)


def scan_gradient(ws, x):
    return jax.value_and_grad(lambda w: jnp.mean(_layers(w, x)[0] ** 2))(ws)


def scan_checkpoint(ws, x):
    body = jax.checkpoint(lambda h, w: (jnp.tanh(h @ w) + h, None))
    return jax.value_and_grad(lambda w: jnp.mean(lax.scan(body, x, w)[0] ** 2))(ws)


def nested_scan(ws, xs):
    def outer(carry, x):
        h, total = lax.scan(lambda h, w: (jnp.tanh(h @ w), jnp.sum(h)), x, ws)
        return carry + h, total

    return lax.scan(outer, jnp.zeros_like(xs[0]), xs)


def fori(x, w):
    return lax.fori_loop(0, 5, lambda i, h: h + 0.1 * jnp.tanh(h @ w) * (i + 1), x)


def fori_dynamic_bound(n, x, w):
    return lax.fori_loop(0, n, lambda i, h: h + 0.1 * jnp.tanh(h @ w), x)


def while_until_small(x, w):
    """Halve until the norm is small: the trip count depends on the data."""

    def body(state):
        h, n = state
        return 0.5 * jnp.tanh(h @ w) + 0.1 * h, n + 1

    return lax.while_loop(lambda s: (jnp.max(jnp.abs(s[0])) > 1e-3) & (s[1] < 20), body, (x, 0))


def cond_and_switch(flag, which, x, w):
    a = lax.cond(flag, lambda h: h @ w, lambda h: h * 2.0, x)
    return lax.switch(which, [jnp.sin, lambda h: h @ w.T, lambda h: h - jnp.mean(h, axis=0)], a)


def loop_with_conditional(x, w):
    def body(i, h):
        return lax.cond(
            i % 2 == 0,
            lambda v: jnp.tanh(v @ w),
            lambda v: v + jnp.sum(v, axis=1, keepdims=True),
            h,
        )

    return lax.fori_loop(0, 4, body, x)


def checkpointed_mlp(params, x):
    def loss(p):
        h = x
        for w in p:
            h = jax.checkpoint(lambda v, w: jax.nn.gelu(v @ w) + v)(h, w)
        return jnp.mean(h**2)

    return jax.value_and_grad(loss)(params)


@jax.custom_jvp
def _softplus(x):
    return jnp.log1p(jnp.exp(x))


@_softplus.defjvp
def _softplus_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return _softplus(x), jax.nn.sigmoid(x) * t


@jax.custom_vjp
def _clipped(x):
    return x * 1.5


_clipped.defvjp(lambda x: (_clipped(x), x), lambda x, g: (jnp.clip(g, -0.01, 0.01) + 0.0 * x,))


def custom_derivatives(x, w):
    return jax.value_and_grad(lambda w: jnp.sum(_softplus(_clipped(x @ w)) ** 2))(w)


def vmap_of_loops(xs, w):
    def one(x):
        h = lax.fori_loop(0, 3, lambda i, h: jnp.tanh(w @ h), x)
        h = lax.cond(x[0] > 0, lambda v: v + 1.0, lambda v: v * 2.0, h)
        return _softplus(h), lax.scan(lambda c, y: (c + y, c * y), 0.0, h)[1]

    return jax.vmap(one)(xs)


def vmap_of_gradients(xs, w):
    return jax.vmap(jax.grad(lambda x, w: jnp.sum(jnp.tanh(w @ x) ** 2)), in_axes=(0, None))(xs, w)


def vmap_of_while(xs):
    def one(x):
        return lax.while_loop(
            lambda s: jnp.sum(s[0]) > 1.0, lambda s: (s[0] * 0.5, s[1] + 1), (x, 0)
        )

    return jax.vmap(one)(xs)


def barrier(x, w1, w2):
    a, b = lax.optimization_barrier((x @ w1, x @ w2))
    return jnp.exp(a) + b, lax.optimization_barrier(a * b)


def ode_loop(y, k):
    """Runge-Kutta of order 4 for a reaction-diffusion system."""

    def slope(y):
        diffusion = jnp.roll(y, 1, axis=0) + jnp.roll(y, -1, axis=0) - 2 * y
        return 0.5 * diffusion + (y @ k) * (1 - y)

    def step(i, y):
        h = 0.05
        a = slope(y)
        b = slope(y + h / 2 * a)
        c = slope(y + h / 2 * b)
        d = slope(y + h * c)
        return y + h / 6 * (a + 2 * b + 2 * c + d)

    return lax.fori_loop(0, 6, step, y)


CASES = [
    case(
        "calls",
        calls,
        S((8, 16), F32),
        S((16, 16), F32),
        S((16, 16), F32),
        exercises="dot_general tanh",
    ),
    case(
        "scan_forward", scan_forward, *_STACK, exercises="while dynamic_slice dynamic_update_slice"
    ),
    case(
        "scan_gradient",
        scan_gradient,
        *_STACK,
        exercises="while dynamic_slice dynamic_update_slice",
    ),
    case("scan_checkpoint", scan_checkpoint, *_STACK, exercises="while optimization_barrier"),
    case("nested_scan", nested_scan, S((2, 8, 8), F32), S((4, 8, 8), F32), exercises="while"),
    case("fori", fori, S((8, 16), F32), S((16, 16), F32), exercises="while"),
    case(
        "fori_dynamic_bound",
        fori_dynamic_bound,
        S((), jnp.int32),
        S((8, 16), F32),
        S((16, 16), F32),
        exercises="while",
        inputs={"n": always(4)},
        why_inputs="a bound of 0 or 1 would hardly run the body",
    ),
    case(
        "while_until_small",
        while_until_small,
        S((8, 16), F32),
        S((16, 16), F32),
        exercises="while reduce",
    ),
    case(
        "cond_and_switch",
        cond_and_switch,
        S((), jnp.bool_),
        S((), jnp.int32),
        S((8, 16), F32),
        S((16, 16), F32),
        exercises="case",
        inputs={"flag": always(True), "which": always(2)},
        why_inputs="the branches that mix dims, not the elementwise ones",
    ),
    case(
        "loop_with_conditional",
        loop_with_conditional,
        S((8, 16), F32),
        S((16, 16), F32),
        exercises="while case",
    ),
    case(
        "checkpointed_mlp",
        checkpointed_mlp,
        [S((16, 16), F32)] * 2,
        S((8, 16), F32),
        exercises="optimization_barrier",
    ),
    case(
        "custom_derivatives",
        custom_derivatives,
        S((8, 16), F32),
        S((16, 8), F32),
        exercises="exponential log_plus_one maximum",
    ),
    case(
        "vmap_of_loops", vmap_of_loops, S((8, 16), F32), S((16, 16), F32), exercises="while select"
    ),
    case("vmap_of_gradients", vmap_of_gradients, S((8, 16), F32), S((8, 16), F32)),
    case(
        "vmap_of_while",
        vmap_of_while,
        S((8, 16), F32),
        exercises="while",
        inputs={"xs": positive},
        why_inputs="so that the loop runs, a different number of times for each row",
    ),
    case(
        "barrier",
        barrier,
        S((8, 16), F32),
        S((16, 8), F32),
        S((16, 8), F32),
        exercises="optimization_barrier",
    ),
    case("ode_loop", ode_loop, S((16, 8), F32), S((8, 8), F32), exercises="while concatenate"),
]
