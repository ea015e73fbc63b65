"""Small networks.

Convolutions with their gradients, recurrent, mixture of experts, mixed precision.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import lax

from evaluation.certification.case import F32, S, below, case, positive

BF16 = jnp.bfloat16
_NHWC = ("NHWC", "HWIO", "NHWC")


def _conv(x, w, stride=1, groups=1, dilation=1):
    return lax.conv_general_dilated(
        x,
        w,
        (stride, stride),
        "SAME",
        rhs_dilation=(dilation, dilation),
        feature_group_count=groups,
        dimension_numbers=_NHWC,
    )


def conv_kinds(x, plain, grouped, depthwise, transposed):
    a = _conv(x, plain)
    b = _conv(x, grouped, groups=2)
    c = _conv(x, depthwise, groups=8, dilation=2)
    d = lax.conv_transpose(x, transposed, (2, 2), "SAME", dimension_numbers=_NHWC)
    return a, b, c, d, _conv(x, plain, stride=2)


def conv_gradients(x, plain, grouped):
    def loss(x, plain, grouped):
        return jnp.mean(_conv(jax.nn.relu(_conv(x, plain, stride=2)), grouped, groups=2) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1, 2))(x, plain, grouped)


def conv_net_step(params, x, labels):
    """Convolutions, batch norm, max pooling and a linear layer: one step of gradient descent."""

    def loss(p):
        h = _conv(x, p["conv1"])
        mean, var = jnp.mean(h, axis=(0, 1, 2)), jnp.var(h, axis=(0, 1, 2))
        h = (h - mean) * lax.rsqrt(var + 1e-3) * p["scale"] + p["bias"]
        h = lax.reduce_window(
            jax.nn.relu(h), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
        h = jax.nn.relu(_conv(h, p["conv2"], stride=2))
        logits = jnp.mean(h, axis=(1, 2)) @ p["out"]
        return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, 8) * jax.nn.log_softmax(logits), axis=1))

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


_ADAM = optax.adam(1e-3)


def gru_step(params, state, xs, targets):
    """A GRU unrolled by scan, trained with Adam."""

    def loss(p):
        def cell(h, x):
            gates = jax.nn.sigmoid(x @ p["wx"] + h @ p["wh"])
            z, r = jnp.split(gates, 2, axis=-1)
            n = jnp.tanh(x @ p["nx"] + (r * h) @ p["nh"])
            h = (1 - z) * n + z * h
            return h, h

        _, hs = lax.scan(cell, jnp.zeros((xs.shape[1], p["nh"].shape[0])), xs)
        return jnp.mean((hs @ p["out"] - targets) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    updates, state = _ADAM.update(grads, state, params)
    return value, optax.apply_updates(params, updates), state


_GRU = {
    "wx": S((8, 32), F32),
    "wh": S((16, 32), F32),
    "nx": S((8, 16), F32),
    "nh": S((16, 16), F32),
    "out": S((16, 8), F32),
}


def mixture_of_experts(x, router, w1, w2):
    """Each token goes to its two best of four experts, through one-hot dispatch with a capacity."""

    def loss(router, w1, w2):
        gates = jax.nn.softmax(x @ router)
        best, chosen = lax.top_k(gates, 2)
        hot = jax.nn.one_hot(chosen, 4)  # token, choice, expert
        place = (jnp.cumsum(hot.reshape(-1, 4), axis=0).reshape(hot.shape) - 1.0) * hot
        slot = jax.nn.one_hot(jnp.sum(place, axis=-1).astype(jnp.int32), 8)
        dispatch = jnp.einsum("tce,tcs->tes", hot, slot)
        combine = jnp.einsum("tce,tcs,tc->tes", hot, slot, best)
        inside = jnp.einsum("tes,td->esd", dispatch, x)
        out = jnp.einsum("esh,ehd->esd", jax.nn.gelu(jnp.einsum("esd,edh->esh", inside, w1)), w2)
        return jnp.mean(jnp.einsum("tes,esd->td", combine, out) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1, 2))(router, w1, w2)


def mixed_precision_step(params, state, x, y):
    """bfloat16 compute on float32 parameters with loss scaling, trained with Adam."""

    def loss(p):
        low = jax.tree.map(lambda w: w.astype(BF16), p)
        h = jax.nn.gelu(x.astype(BF16) @ low["w1"])
        out = (h @ low["w2"]).astype(F32)
        return jnp.mean((out - y) ** 2) * 128.0

    value, grads = jax.value_and_grad(loss)(params)
    grads = jax.tree.map(lambda g: g / 128.0, grads)
    updates, state = _ADAM.update(grads, state, params)
    return value / 128.0, optax.apply_updates(params, updates), state, grads


_TWO = {"w1": S((16, 32), F32), "w2": S((32, 16), F32)}


def layer_norm_mlp_step(params, x, y):
    """Layer norm, dropout-free MLP with tied scale, gradient clipping by the global norm."""

    def loss(p):
        h = x @ p["w1"]
        h = (
            (h - h.mean(-1, keepdims=True))
            * lax.rsqrt(h.var(-1, keepdims=True) + 1e-3)
            * p["scale"]
        )
        return jnp.mean((jax.nn.silu(h) @ p["w2"] - y) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return (
        value,
        jax.tree.map(lambda p, g: p - 0.1 * g / jnp.maximum(norm, 1.0), params, grads),
        norm,
    )


CASES = [
    case(
        "conv_kinds",
        conv_kinds,
        S((8, 8, 8, 8), F32),
        S((3, 3, 8, 16), F32),
        S((3, 3, 4, 8), F32),
        S((3, 3, 1, 8), F32),
        S((3, 3, 8, 8), F32),
        exercises="convolution",
    ),
    case(
        "conv_gradients",
        conv_gradients,
        S((8, 8, 8, 8), F32),
        S((3, 3, 8, 8), F32),
        S((3, 3, 4, 8), F32),
        exercises="convolution reverse",
    ),
    case(
        "conv_net_step",
        conv_net_step,
        {
            "conv1": S((3, 3, 4, 8), F32),
            "scale": S((8,), F32),
            "bias": S((8,), F32),
            "conv2": S((3, 3, 8, 16), F32),
            "out": S((16, 8), F32),
        },
        S((8, 8, 8, 4), F32),
        S((8,), jnp.int32),
        donate_argnums=(0,),
        exercises="convolution reduce_window select_and_scatter rsqrt",
        inputs={"labels": below(8), "params['scale']": positive},
        why_inputs="every class; scales near 1 as in practice",
    ),
    case(
        "gru_step",
        gru_step,
        _GRU,
        jax.eval_shape(_ADAM.init, _GRU),
        S((4, 8, 8), F32),
        S((4, 8, 8), F32),
        donate_argnums=(0, 1),
        exercises="while tanh sqrt",
    ),
    case(
        "mixture_of_experts",
        mixture_of_experts,
        S((16, 8), F32),
        S((8, 4), F32),
        S((4, 8, 16), F32),
        S((4, 16, 8), F32),
        exercises="top_k dot_general",
    ),
    case(
        "mixed_precision_step",
        mixed_precision_step,
        _TWO,
        jax.eval_shape(_ADAM.init, _TWO),
        S((8, 16), F32),
        S((8, 16), F32),
        donate_argnums=(0, 1),
        exercises="convert sqrt",
    ),
    case(
        "layer_norm_mlp_step",
        layer_norm_mlp_step,
        {**_TWO, "scale": S((32,), F32)},
        S((8, 16), F32),
        S((8, 16), F32),
        exercises="rsqrt sqrt",
    ),
]
