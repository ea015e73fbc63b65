"""Functions as users write them, for the tests of comparisons."""

import jax
import jax.numpy as jnp

S = jax.ShapeDtypeStruct


def step(w, moment, x):
    """A training step whose second moment must not be negative; parameters can be donated."""
    gradient = x.T @ (x @ w)
    return w - 0.1 * gradient / jnp.sqrt(moment), jnp.sum(gradient**2)


def scores(w, x):
    return jnp.tanh(x @ w["in"]) @ w["out"]


def make_scores(batch=16):
    weights = {"in": S((32, 64), "float32"), "out": S((64, 8), "float32")}
    names = {"x": ("batch", "features"), "in": ("features", "hidden"), "out": ("hidden", "classes")}
    return scores, (weights, S((batch, 32), "float32")), {"dim_names": names}


def loss(w, x):
    return jnp.mean(scores(w, x) ** 2)
