"""Small programs of many kinds, with values of several element types that take equal bytes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from toast_lab import frontends
from toast_lab.ir.model import Model

S = jax.ShapeDtypeStruct
Arguments = tuple[jax.ShapeDtypeStruct, ...]


def _whole_numbers() -> tuple[Callable, Arguments]:
    """Values of equal bytes: whatever a price reads of one but its bytes differs."""

    def f(c, b, a):
        return jnp.cumsum(c * 2, 0), jnp.cumsum(b * 2, 0), jnp.cumsum(a * 2, 0)

    return f, (S((512, 2048), "int8"), S((512, 1024), "int16"), S((512, 512), "int32"))


def _products() -> tuple[Callable, Arguments]:
    """A product's sum may be gathered behind it, which multiplies what the product takes."""

    def f(a, b, c, d):
        return a @ a, b @ b.T, a @ d[:512, :512].astype("float32"), b.T @ c

    return f, (
        S((512, 512), "float32"),
        S((512, 1024), "bfloat16"),
        S((512, 1024), "bfloat16"),
        S((512, 2048), "int8"),
    )


def _doubles() -> tuple[Callable, Arguments]:
    def f(a, b, c):
        x = a.T @ b
        return x / jnp.linalg.norm(x, axis=0), (c.T * 2).astype("float32") @ c.astype("float32")

    return f, (S((256, 256), "float64"), S((256, 256), "float64"), S((512, 256), "float32"))


def _convolution() -> tuple[Callable, Arguments]:
    def convolved(x, w, stride):
        names = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=names)

    def loss(v, w, x):
        y = jax.nn.relu(convolved(x, v, 1)).astype(jnp.bfloat16)
        return convolved(y, w, 2).astype("float32").sum()

    return jax.grad(loss, argnums=(0, 1)), (
        S((3, 3, 16, 64), "float32"),
        S((3, 3, 64, 32), "bfloat16"),
        S((16, 32, 32, 16), "float32"),
    )


def _decoding() -> tuple[Callable, Arguments]:
    def f(x, wq, wo, keys, values, position):
        q, now = (x @ wq).reshape(8, 8, 64), jnp.asarray(position, "int32")
        zero = jnp.zeros_like(now)
        new_key = q[:, None].astype(keys.dtype)
        keys = lax.dynamic_update_slice(keys, new_key, (zero, now, zero, zero))
        scores = jnp.einsum("bhd,bthd->bht", q, keys.astype(q.dtype))
        shares = jax.nn.softmax(jnp.where(jnp.arange(512) <= now, scores, -1e9))
        out = jnp.einsum("bht,bthd->bhd", shares, values.astype(q.dtype))
        return out.reshape(8, 512) @ wo, keys

    return f, (
        S((8, 512), "bfloat16"),
        S((512, 512), "bfloat16"),
        S((512, 512), "bfloat16"),
        S((8, 512, 8, 64), "int8"),
        S((8, 512, 8, 64), "bfloat16"),
        S((), "int32"),
    )


def _look_ups() -> tuple[Callable, Arguments]:
    def f(table, rows, updates):
        found = table[rows].astype("float32") * updates
        sums = jax.ops.segment_sum(found, rows, num_segments=1024)
        return sums, table.at[rows].add(found.astype(table.dtype))

    return f, (S((1024, 64), "bfloat16"), S((4096,), "int32"), S((4096, 64), "float32"))


def _embeddings() -> tuple[Callable, Arguments]:
    """The update of a scatter is a broadcast, which is written only if no copy of it is read."""

    def loss(table, rows, weights):
        return jnp.tanh(table[rows].mean(axis=1) @ weights).sum()

    return jax.grad(loss), (
        S((20000, 256), "float32"),
        S((1024, 32), "int32"),
        S((256, 256), "float32"),
    )


def _fourier() -> tuple[Callable, Arguments]:
    def f(x, w):
        return jnp.fft.irfft2(jnp.fft.rfft2(x.astype("float32")) * w).astype(x.dtype)

    return f, (S((16, 64, 64), "bfloat16"), S((64, 33), "complex64"))


def _branches_and_loops() -> tuple[Callable, Arguments]:
    def f(flag, x, w):
        y = lax.cond(flag > 0, lambda x: jnp.tanh(x @ w), lambda x: x * 2, x)
        return lax.fori_loop(0, 3, lambda _, y: (y @ w).astype(y.dtype), y)

    return f, (S((), "int32"), S((512, 512), "bfloat16"), S((512, 512), "bfloat16"))


def _scanned() -> tuple[Callable, Arguments]:
    def loss(weights, x):
        def layer(h, w):
            return jax.nn.gelu(h @ w.astype(h.dtype)), h.mean()

        h, means = lax.scan(layer, x, weights)
        return (h**2).astype("float32").mean() + means.astype("float32").sum()

    return jax.grad(loss), (S((4, 128, 128), "float32"), S((256, 128), "bfloat16"))


MIXED = {
    "whole numbers": _whole_numbers,
    "products": _products,
    "doubles": _doubles,
    "convolution": _convolution,
    "decoding": _decoding,
    "look-ups": _look_ups,
    "embeddings": _embeddings,
    "Fourier": _fourier,
    "branches and loops": _branches_and_loops,
    "scanned": _scanned,
}


def mixed_model(name: str) -> Model:
    """The program of a name, with 64-bit types kept."""
    function, arguments = MIXED[name]()
    with jax.enable_x64(name == "doubles"):
        return frontends.from_jax(function, *arguments)
