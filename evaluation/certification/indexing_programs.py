"""Programs that look up, cut, glue and order.

Gathers, scatters, slices, windows, sorts, reshapes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from evaluation.certification.case import F32, S, always, below, case, spread

I32 = jnp.int32


def embedding_gradient(table, tokens, w):
    """A lookup and its gradient, which is a scatter-add."""
    return jax.value_and_grad(lambda t: jnp.mean((t[tokens] @ w) ** 2))(table)


def take_along(x, indices):
    return jnp.take_along_axis(x, indices, axis=1), jnp.argmax(x, axis=1)


def take_along_gradient(x, indices):
    return jax.grad(lambda x: jnp.sum(jnp.take_along_axis(x, indices, axis=1) ** 2))(x)


def cross_entropy(logits, labels):
    """The label's logit picked with an index, as training code does."""

    def loss(z):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), labels[:, None], axis=1))

    return jax.value_and_grad(loss)(logits)


def scatters(x, rows, updates):
    return (
        x.at[rows].set(updates, unique_indices=True),
        x.at[rows].max(updates),
        x.at[rows].multiply(updates),
        x.at[rows, :4].add(updates[:, :4]),
    )


def segment_sum(x, segments, w):
    """Messages of a graph network: edge values summed at their nodes."""
    return jax.value_and_grad(
        lambda x: jnp.sum(jax.ops.segment_sum(x @ w, segments, num_segments=8) ** 2)
    )(x)


def kv_cache(cache_k, cache_v, position, x, wq, wk, wv):
    """One decoding step.

    The new key and value go into the cache, attention reads what is there so far.
    """
    q = jnp.einsum("bd,dhk->bhk", x, wq)
    k = lax.dynamic_update_slice(
        cache_k, jnp.einsum("bd,dhk->bhk", x, wk)[:, None], (0, position, 0, 0)
    )
    v = lax.dynamic_update_slice(
        cache_v, jnp.einsum("bd,dhk->bhk", x, wv)[:, None], (0, position, 0, 0)
    )
    scores = jnp.einsum("bhk,bshk->bhs", q, k)
    scores = jnp.where(jnp.arange(cache_k.shape[1]) <= position, scores, -1e9)
    return jnp.einsum("bhs,bshk->bhk", jax.nn.softmax(scores), v), k, v


def dynamic_windows(x, i, j):
    a = lax.dynamic_slice(x, (i, j), (8, 8))
    b = lax.dynamic_index_in_dim(x, i, 0, keepdims=False)
    return a * 2.0, b, lax.dynamic_update_slice(x, a + 1.0, (j, i))


def sorts(x, y):
    a, b = lax.sort((x, y), dimension=1, num_keys=1)
    return a, b, jnp.argsort(x, axis=0), jnp.sort(y, axis=0)


def top_k(x, w):
    values, places = lax.top_k(x, 4)
    return values @ w, places, lax.top_k(x.T, 2)[0]


def reshapes(x, w):
    heads = (x @ w).reshape(8, 16, 4, 8)  # split
    merged = (heads * 2.0).reshape(8, 16, 32) + x.reshape(8, 16, 32)
    flat = merged.reshape(128, 32)  # merge
    return flat.reshape(8, 512).sum(axis=0), merged.transpose(1, 0, 2).reshape(16, 256)


def glue(x, y):
    a = jnp.concatenate([x, y, x[:, ::-1]], axis=0)
    b = jnp.pad(x, ((1, 2), (0, 3)), constant_values=1.5)
    c = lax.pad(y, jnp.float32(0), ((0, 0, 1), (-1, 2, 0)))  # interior and negative padding
    return (
        a[1:17] * 2.0,
        b,
        c,
        x[::2, 1::3],
        jnp.roll(y, 3, axis=1),
        jnp.concatenate([x, y], axis=1),
    )


def windows(x):
    """Pooling of every kind; the gradient of max pooling is select_and_scatter."""
    pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    mean = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") / 9.0
    gradient = jax.grad(
        lambda x: jnp.sum(
            lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2
        )
    )(x)
    return pooled, mean, gradient


def cumulative(x):
    return (
        jnp.cumsum(x, axis=1),
        lax.cummax(x, axis=0),
        lax.associative_scan(lambda a, b: a * 0.5 + b, x, axis=1),
    )


def linear_recurrence(a, b):
    """The parallel form of h[t] = a[t] h[t-1] + b[t], as state space models use it."""

    def combine(left, right):
        return left[0] * right[0], left[1] * right[0] + right[1]

    return lax.associative_scan(combine, (jax.nn.sigmoid(a), b), axis=1)[1]


def several_operands(x):
    """One reduction over two operands, whose combiner is no plain sum."""
    index = lax.broadcasted_iota(I32, x.shape, 1)

    def pick(a, b):
        first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    best = lax.reduce((x, index), (jnp.float32(-jnp.inf), jnp.int32(2**31 - 1)), pick, (1,))
    return (
        *best,
        jnp.argmax(x, axis=0),
        jnp.any(x > 30.0, axis=1),
        jnp.all(x > -1.0, axis=0),
        jnp.prod(x / 64, axis=1),
    )


CASES = [
    case(
        "embedding_gradient",
        embedding_gradient,
        S((32, 16), F32),
        S((8, 16), I32),
        S((16, 8), F32),
        exercises="gather scatter",
    ),
    case(
        "take_along",
        take_along,
        S((8, 16), F32),
        S((8, 8), I32),
        exercises="gather",
        inputs={"x": spread, "indices": below(16)},
        why_inputs="an argmax of near ties depends on rounding",
    ),
    case(
        "take_along_gradient",
        take_along_gradient,
        S((8, 16), F32),
        S((8, 8), I32),
        exercises="gather scatter",
        inputs={"indices": below(16)},
        why_inputs="every column is to be hit",
    ),
    case(
        "cross_entropy",
        cross_entropy,
        S((16, 32), F32),
        S((16,), I32),
        exercises="gather scatter",
        inputs={"labels": below(32)},
        why_inputs="every class is to be met",
    ),
    case(
        "scatters",
        scatters,
        S((16, 8), F32),
        S((8,), I32),
        S((8, 8), F32),
        exercises="scatter",
        inputs={"rows": lambda rng, shape: rng.permutation(16)[:8]},
        why_inputs="set with repeated rows may keep either update",
    ),
    case(
        "segment_sum",
        segment_sum,
        S((32, 16), F32),
        S((32,), I32),
        S((16, 16), F32),
        exercises="scatter gather",
        inputs={"segments": below(8)},
        why_inputs="every node gets messages",
    ),
    case(
        "kv_cache",
        kv_cache,
        S((8, 16, 4, 8), F32),
        S((8, 16, 4, 8), F32),
        S((), I32),
        S((8, 16), F32),
        S((16, 4, 8), F32),
        S((16, 4, 8), F32),
        S((16, 4, 8), F32),
        donate_argnums=(0, 1),
        exercises="dynamic_update_slice",
        inputs={"position": always(5)},
        why_inputs="a place inside the cache",
    ),
    case(
        "dynamic_windows",
        dynamic_windows,
        S((16, 16), F32),
        S((), I32),
        S((), I32),
        exercises="dynamic_slice dynamic_update_slice",
        inputs={"i": always(5), "j": always(3)},
        why_inputs="windows that lie across shards",
    ),
    case(
        "sorts",
        sorts,
        S((8, 16), F32),
        S((8, 16), F32),
        exercises="sort",
        inputs={"x": spread, "y": spread},
        why_inputs="the order of near ties depends on rounding",
    ),
    case(
        "top_k",
        top_k,
        S((8, 16), F32),
        S((4, 8), F32),
        exercises="top_k",
        inputs={"x": spread},
        why_inputs="the order of near ties depends on rounding",
    ),
    case("reshapes", reshapes, S((128, 32), F32), S((32, 32), F32), exercises="reshape transpose"),
    case("glue", glue, S((8, 16), F32), S((8, 16), F32), exercises="concatenate pad reverse slice"),
    case(
        "windows",
        windows,
        S((8, 8, 8, 8), F32),
        exercises="reduce_window select_and_scatter",
        inputs={"x": spread},
        why_inputs="the place of a maximum decides where its gradient goes",
    ),
    case("cumulative", cumulative, S((8, 16), F32), exercises="reduce_window concatenate"),
    case(
        "linear_recurrence",
        linear_recurrence,
        S((8, 16, 8), F32),
        S((8, 16, 8), F32),
        exercises="slice pad",
    ),
    case(
        "several_operands",
        several_operands,
        S((8, 16), F32),
        exercises="reduce",
        inputs={"x": spread},
        why_inputs="an argmax of near ties depends on rounding",
    ),
]
