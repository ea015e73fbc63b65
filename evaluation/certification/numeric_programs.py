"""Programs of special numerics.

Random numbers, FFT, linear algebra, complex, integer and low precision types.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from evaluation.certification.case import (
    F32,
    Case,
    S,
    case,
    positive,
    separated_eigenvalues,
    spd,
    triangular,
)
from toast_lab import frontends

C64 = jnp.complex64


def dropout(key, x, w):
    """Random numbers are drawn inside the program, and must be the same however it is sharded."""

    def loss(w):
        h = jax.nn.relu(x @ w)
        keep = jax.random.bernoulli(key, 0.8, h.shape)
        noise = jax.random.normal(jax.random.fold_in(key, 1), h.shape)
        return jnp.mean((jnp.where(keep, h / 0.8, 0.0) + 0.1 * noise) ** 2)

    return jax.value_and_grad(loss)(w)


def random_bits(key, x):
    return lax.rng_bit_generator(key, (8, 16))[1] % 1000 + x


def spectrum(x, h):
    """A convolution by FFT, in one and in two dims."""
    wide = jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(h), n=x.shape[-1])
    flat = jnp.fft.fft2(x.reshape(8, 4, 8))
    return wide, jnp.abs(flat), jnp.fft.ifft(flat, axis=1).real


def cholesky_solve(a, b):
    factor = jnp.linalg.cholesky(a)
    y = lax.linalg.triangular_solve(factor, b, left_side=True, lower=True)
    return (
        factor,
        y,
        lax.linalg.triangular_solve(factor, b, left_side=True, lower=True, transpose_a=True),
    )


def cholesky_gradient(a):
    return jax.value_and_grad(
        lambda a: jnp.sum(jnp.linalg.cholesky(a) ** 2 * 0.5 + jnp.linalg.cholesky(a))
    )(a)


def triangular_right(a, b):
    return lax.linalg.triangular_solve(a, b, left_side=False, lower=True)


def qr(a, b):
    q, r = jnp.linalg.qr(a)
    # Q and R are determined up to signs: products that the signs do not reach.
    return q @ jnp.swapaxes(q, -1, -2) @ b, jnp.abs(r)


def eigh(a, b):
    values, vectors = jnp.linalg.eigh(a)
    return values, (vectors * jnp.exp(-values)[..., None, :]) @ jnp.swapaxes(vectors, -1, -2) @ b


def complex_numbers(a, b, x):
    c = (a @ b) * jnp.exp(1j * x.astype(C64))
    return (
        jnp.conj(c),
        c.real,
        jnp.abs(c),
        jnp.angle(c + 4.0),
        lax.complex(x, x * 2.0),
        jnp.sum(c, axis=0),
    )


def _signed(rng, shape):
    return rng.integers(-20, 20, shape)


def integers(a, b, u):
    c = a @ b
    return (
        c % 7,
        c // 3,
        lax.shift_right_logical(u, jnp.uint32(5)) ^ u,
        lax.population_count(u),
        jnp.clip(a, -5, 5),
        jnp.sum(a, axis=0),
        jnp.max(b, axis=1),
        lax.reduce_and(u, (0,)),
        lax.reduce_or(u, (1,)),
        a.astype(jnp.int8),
        lax.bitcast_convert_type(u, jnp.float32) > 0,
        lax.clz(u),
    )


def special_functions(x, y):
    return (
        lax.erf(x),
        lax.erf_inv(jnp.tanh(x)),
        lax.lgamma(y),
        lax.digamma(y),
        lax.cbrt(y),
        jnp.arctan2(x, y),
        jnp.sinh(x),
        lax.rsqrt(y),
        jnp.log1p(y),
        jnp.expm1(x),
        lax.nextafter(x, y),
        jnp.round(x * 4.0),
        jnp.sign(x),
        jnp.isfinite(x),
        jnp.tan(x),
        jnp.power(y, x),
        lax.reduce_precision(x, 8, 7),
        lax.top_k(y, 1)[0] * 0.0 + lax.erfc(x),
    )


def scalars_and_nothing(scale, empty, x):
    """Rank 0, sizes 0 and 1."""
    a = jnp.sum(x) * scale
    b = jnp.concatenate([empty, x[:, :0]], axis=1)
    return a, b, jnp.sum(empty), x[:1] * scale, empty @ jnp.zeros((0, 8)) + a, jnp.max(x[0, 0])


def half(x, w):
    """float16 and float64 in one program need no more than casts."""
    y = (x.astype(jnp.float16) @ w.astype(jnp.float16)).astype(F32)
    return jnp.tanh(y), y.astype(jnp.bfloat16)


_MATRICES = S((8, 8, 8), F32)


def _as_for_tpu(name, fn, *args):
    """The model as JAX lowers it for TPUs.

    StableHLO's own linear algebra instead of calls of LAPACK.
    """
    text = jax.jit(fn).trace(*args).lower(lowering_platforms=("tpu",)).as_text(debug_info=True)
    return frontends.from_stablehlo(text, name=name)


CASES = [
    case(
        "dropout",
        dropout,
        S((2,), jnp.uint32),
        S((16, 8), F32),
        S((8, 16), F32),
        exercises="erf_inv shift_right_logical",
    ),
    case(
        "random_bits",
        random_bits,
        S((4,), jnp.uint32),
        S((8, 16), jnp.uint32),
        exercises="rng_bit_generator",
    ),
    case("fft", spectrum, S((8, 32), F32), S((8, 32), F32), exercises="fft"),
    case(
        "cholesky",
        cholesky_solve,
        _MATRICES,
        _MATRICES,
        exercises="custom_call",
        inputs={"a": spd},
        why_inputs="only a positive definite matrix has a factor",
    ),
    case(
        "cholesky_gradient",
        cholesky_gradient,
        _MATRICES,
        exercises="custom_call",
        inputs={"a": spd},
        why_inputs="only a positive definite matrix has a factor",
    ),
    Case(
        "cholesky_as_op",
        lambda: _as_for_tpu("cholesky_as_op", cholesky_solve, _MATRICES, _MATRICES),
        ("cholesky", "triangular_solve"),
        {"a": spd},
        "only a positive definite matrix has a factor",
    ),
    case(
        "triangular_right",
        triangular_right,
        _MATRICES,
        _MATRICES,
        exercises="custom_call",
        inputs={"a": triangular},
        why_inputs="a random triangle is nearly singular",
    ),
    case(
        "qr",
        qr,
        _MATRICES,
        _MATRICES,
        exercises="custom_call",
        inputs={"a": spd},
        why_inputs="a well-conditioned matrix has a well-determined Q",
    ),
    case(
        "eigh",
        eigh,
        _MATRICES,
        _MATRICES,
        exercises="custom_call",
        inputs={"a": separated_eigenvalues},
        why_inputs="eigenvectors of near eigenvalues are not determined",
    ),
    case(
        "complex",
        complex_numbers,
        S((8, 16), C64),
        S((16, 8), C64),
        S((8, 8), F32),
        exercises="complex real",
    ),
    case(
        "integers",
        integers,
        S((8, 16), jnp.int32),
        S((16, 8), jnp.int32),
        S((8, 16), jnp.uint32),
        exercises="popcnt shift_right_logical remainder",
        inputs={"a": _signed, "b": _signed},
        why_inputs="negative numbers too, for the signs of remainders",
    ),
    case(
        "special_functions",
        special_functions,
        S((8, 16), F32),
        S((8, 16), F32),
        exercises="power cbrt top_k erf_inv",
        inputs={"y": positive},
        why_inputs="logarithms and roots want positive numbers",
    ),
    case(
        "scalars_and_nothing",
        scalars_and_nothing,
        S((), F32),
        S((8, 0), F32),
        S((8, 16), F32),
        inputs={"x": positive},
        why_inputs="one sum of all would come near zero with signs",
    ),
    case("half", half, S((8, 16), F32), S((16, 8), F32), exercises="convert"),
]
