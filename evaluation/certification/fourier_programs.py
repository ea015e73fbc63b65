"""Programs around Fourier transforms.

Every kind, one to three transformed dims, ranks 1 to 4, inner and outer dims.

Transforms of inner dims stand between transposes, which is what makes XLA's CPU compiler choose
memory layouts for them that it then refuses; see ``toast_lab.ir.fourier``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from evaluation.certification.case import F32, S, case

C64 = jnp.complex64


def there_and_back(x):
    """Along a dim in the middle."""
    return jnp.fft.irfft(jnp.fft.rfft(x, axis=1), axis=1)


def every_kind(x, z):
    """All four kinds, along the first and the last dim."""
    forward = jnp.fft.fft(z, axis=0) * jnp.fft.rfft(x, n=14, axis=0)
    back = jnp.fft.ifft(forward, axis=0)
    return back, jnp.fft.irfft(back, axis=0), jnp.fft.ihfft(x).real, jnp.fft.hfft(z)


def spectral_layer(weights, x):
    """A layer of a Fourier neural operator: the lowest modes times a matrix each."""
    modes = weights.shape[1]
    spectrum = jnp.fft.rfft(x, axis=1)
    low = jnp.einsum("bmi,mio->bmo", spectrum[:, :modes], weights[0] + 1j * weights[1])
    out = jnp.zeros((*spectrum.shape[:2], low.shape[-1]), low.dtype).at[:, :modes].set(low)
    return jnp.tanh(jnp.fft.irfft(out, n=x.shape[1], axis=1))


def spectral_step(weights, x, y):
    """A training step of one such layer."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((spectral_layer(w, x) - y) ** 2))(
        weights
    )
    return loss, weights - 0.1 * gradient


def spectral_layers_2d(weights, x):
    """Layers in two dims, one after the other in a loop."""

    def layer(h, w):
        spectrum = jnp.fft.rfft2(h, axes=(1, 2))
        mixed = jnp.einsum("bxyi,io->bxyo", spectrum, w + 0j)
        return h + jnp.tanh(jnp.fft.irfft2(mixed, s=h.shape[1:3], axes=(1, 2))), None

    return lax.scan(layer, x, weights)[0]


def planes(x):
    """Two dims, the last ones and the first ones."""
    return jnp.abs(jnp.fft.fft2(x)), jnp.abs(jnp.fft.ifft2(x, axes=(0, 1)))


def cube(x):
    """All three dims: no dim is left to be split."""
    return jnp.fft.ifftn(jnp.fft.fftn(x) * 2).real


def cubes_gradient(x):
    """Three of four dims, and the gradient through them."""

    def energy(x):
        spectrum = jnp.fft.rfftn(x, axes=(1, 2, 3))
        return jnp.sum(jnp.fft.irfftn(spectrum * jnp.conj(spectrum), axes=(1, 2, 3)) ** 2)

    return jax.value_and_grad(energy)(x)


def one_dim(x):
    """A convolution of vectors, with every value of one dim."""
    return jnp.fft.irfft(jnp.fft.rfft(jnp.tanh(x)) ** 2, n=x.shape[0])


_STEP = (S((2, 4, 8, 8), F32), S((8, 16, 8), F32), S((8, 16, 8), F32))

CASES = [
    case("fft_there_and_back", there_and_back, S((8, 16, 16), F32), exercises="fft transpose"),
    case("fft_kinds", every_kind, S((8, 16), F32), S((8, 16), C64), exercises="fft"),
    case("fft_step", spectral_step, *_STEP, exercises="fft dot_general"),
    case(
        "fft_loop",
        spectral_layers_2d,
        S((2, 8, 8), F32),
        S((8, 8, 8, 8), F32),
        exercises="fft while",
    ),
    case("fft_planes", planes, S((8, 8, 8), F32), exercises="fft"),
    case("fft_cube", cube, S((8, 8, 8), F32), exercises="fft"),
    case("fft_cubes_gradient", cubes_gradient, S((8, 8, 8, 4), F32), exercises="fft"),
    case("fft_one_dim", one_dim, S((32,), F32), exercises="fft"),
]
