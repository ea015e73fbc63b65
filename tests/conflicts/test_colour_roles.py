"""The parts that colours play, in programs that no rule was written for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from toast_lab.conflicts.analysis import analyse
from toast_lab.conflicts.colour_roles import ROLES, ColourRoles, roles
from toast_lab.frontends import from_jax, load


def shape(*sizes: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def key_shape() -> Any:
    return jax.eval_shape(lambda: jax.random.PRNGKey(0))


def roles_of(fn: Any, *args: Any, **options: Any) -> ColourRoles:
    return roles(analyse(from_jax(fn, *args, **options)))


def sizes(parts: ColourRoles, role: str) -> list[int]:
    return sorted(row.size for row in parts.played if row.role == role)


def sgd(loss: Any) -> Any:
    def step(params: Any, *inputs: Any) -> Any:
        gradient = jax.grad(loss)(params, *inputs)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    return step


# -- built-in models -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"kv_heads": 2}, {"scan": True}, {"remat": True}])
def test_a_transformer(options: dict[str, Any]) -> None:
    parts = roles(analyse(load("transformer", layers=2, **options)))
    expected = {
        "batch": "batch",
        "sequence": "sequence",
        "vocab": "vocabulary",
        "d_model": "features",
        "hidden": "hidden",
        "kv_heads" if "kv_heads" in options else "heads": "heads",
        "key": "key",
        "value": "key",
    }
    assert {name: parts.of(name) for name in expected} == expected
    assert bool(parts.groups("layers")) == ("scan" in options)
    assert not parts.groups("cache", "experts", "nodes", "channels", "outputs", "router")


def test_the_names_of_dims_play_no_part() -> None:
    """Only a colour that is called "batch" is taken at its word."""
    model = load("transformer", layers=2)
    analysis = analyse(model)
    renamed = analysis.renamed({"batch": "p", "heads": "q", "hidden": "r", "d_model": "s"})
    by_name = {row.group: row.role for row in roles(analysis).played}
    assert {row.group: row.role for row in roles(renamed).played} == by_name


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_decoding_has_a_cache(mode: str) -> None:
    parts = roles(analyse(load("itx", layers=2, mode=mode)))
    named = {name: parts.of(name) for name in ("batch", "positions", "heads", "hidden", "d_model")}
    assert named == {
        "batch": "batch",
        "positions": "cache",
        "heads": "heads",
        "hidden": "hidden",
        "d_model": "features",
    }
    assert not parts.is_cache_by_heads, "all heads share a key and a value"
    assert len(parts.arguments.caches) == 4


def test_a_graph_has_nodes_and_edges_and_no_batch() -> None:
    parts = roles(analyse(load("gns", steps=2)))
    assert (parts.of("nodes"), parts.of("edges")) == ("nodes", "edges")
    assert not parts.groups("batch")
    assert "edges of a graph" in parts.doubt
    assert parts.of("latent") == "features"
    assert parts.of("edge_hidden1") == "hidden"


def test_a_convolutional_net() -> None:
    parts = roles(analyse(load("unet", mode="forward")))
    assert (parts.of("batch"), parts.of("height"), parts.of("heads")) == ("batch", "space", "heads")
    assert parts.of("channels0") == "features"
    assert parts.of("down0_inner") == "channels"


def test_attention_alone_has_a_sequence_and_no_batch() -> None:
    parts = roles(analyse(load("attention", sequence=256)))
    assert parts.of("S") == "sequence"
    assert "attention looks along it" in parts.doubt
    text = str(parts)
    assert "both dims of attention scores: their conflict" in text
    assert "No batch: S leads the data" in text
    assert "No colour plays: batch" in text


# -- plain JAX -------------------------------------------------------------------------------------

MLP = {"w1": shape(24, 96), "w2": shape(96, 40)}


@pytest.mark.parametrize("is_typed", [False, True])
def test_a_random_key_is_never_the_batch(is_typed: bool) -> None:
    def loss(params: Any, x: Any, y: Any, key: Any) -> Any:
        hidden = jax.nn.relu(x @ params["w1"])
        hidden = jnp.where(jax.random.bernoulli(key, 0.9, hidden.shape), hidden, 0.0)
        return jnp.mean((hidden @ params["w2"] - y) ** 2)

    key = jax.eval_shape(lambda: jax.random.key(0)) if is_typed else key_shape()
    parts = roles_of(sgd(loss), MLP, shape(16, 24), shape(16, 40), key)
    assert len(parts.arguments.keys) == 1
    assert sizes(parts, "batch") == [16]
    assert sizes(parts, "hidden") == [96]


def test_counters_and_small_tables_are_no_data() -> None:
    """Whole numbers come before other inputs, but not those that few values depend on."""

    def loss(params: Any, x: Any, y: Any, count: Any, periods: Any) -> Any:
        rate = 1.0 / (1.0 + count[0] % jnp.prod(periods)).astype("float32")
        return rate * jnp.mean((jax.nn.relu(x @ params["w1"]) @ params["w2"] - y) ** 2)

    counters = shape(1, dtype="int32"), shape(12, dtype="int32")
    parts = roles_of(sgd(loss), MLP, shape(16, 24), shape(16, 40), *counters)
    assert sizes(parts, "batch") == [16]
    assert len(parts.arguments.scalars) == 1


def experts_loss(params: Any, x: Any, y: Any) -> Any:
    scores = jax.nn.softmax(x @ params["router"])
    best = jnp.argmax(scores, axis=-1)
    chosen = jax.nn.one_hot(best, 8)
    place = (jnp.cumsum(chosen, axis=0) - 1.0) * chosen
    sent = jax.nn.one_hot(place.sum(-1).astype("int32"), 16)[:, None, :] * chosen[:, :, None]
    each = jnp.einsum("tec,td->ecd", sent, x)
    inner = jax.nn.relu(jnp.einsum("ecd,edf->ecf", each, params["up"]))
    outputs = jnp.einsum("ecf,efd->ecd", inner, params["down"])
    mixed = jnp.einsum("tec,ecd->td", sent * scores.max(-1)[:, None, None], outputs)
    return jnp.mean((x + mixed - y) ** 2)


def test_a_mixture_of_experts_has_experts_and_a_router() -> None:
    params = {"router": shape(32, 8), "up": shape(8, 32, 128), "down": shape(8, 128, 32)}
    parts = roles_of(sgd(experts_loss), params, shape(64, 32), shape(64, 32))
    assert sizes(parts, "experts") == [8]
    assert sizes(parts, "router") == [8]
    assert sizes(parts, "batch") == [64]
    assert sizes(parts, "hidden") == [128]
    assert sizes(parts, "features") == [32]
    assert not parts.groups("vocabulary", "sequence", "heads")


def ragged_loss(params: Any, x: Any, y: Any) -> Any:
    chances, expert = jax.lax.top_k(jax.nn.softmax(x @ params["router"]), 2)
    flat = expert.reshape(-1)
    order = jnp.argsort(flat)
    rows = jnp.bincount(flat, length=8)
    inner = jax.nn.silu(jax.lax.ragged_dot(x[order // 2], params["up"], rows))
    outputs = jax.lax.ragged_dot(inner, params["down"], rows)
    scaled = outputs * chances.reshape(-1)[order][:, None]
    return jnp.mean((x.at[order // 2].add(scaled) - y) ** 2)


def test_groups_of_ragged_products_are_experts() -> None:
    params = {"router": shape(32, 8), "up": shape(8, 32, 128), "down": shape(8, 128, 32)}
    model = from_jax(sgd(ragged_loss), params, shape(64, 32), shape(64, 32), platform="tpu")
    assert "chlo.ragged_dot" in model.program.kind
    parts = roles(analyse(model))
    assert set(sizes(parts, "experts")) == {8}
    assert sizes(parts, "router") == [8]
    assert sizes(parts, "features") == [32]
    assert sizes(parts, "hidden") == [128]


def test_an_ensemble_has_no_experts() -> None:
    """Members that nothing chooses among are not experts."""

    def step(params: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.mean((jax.nn.relu(x @ p["w1"]) @ p["w2"] - y) ** 2)

        gradient = jax.vmap(jax.grad(loss))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    members = {"w1": shape(6, 24, 96), "w2": shape(6, 96, 40)}
    parts = roles_of(step, members, shape(16, 24), shape(16, 40))
    assert not parts.groups("experts")
    assert sizes(parts, "batch") == [16]


def attend(params: Any, x: Any, keys: Any, values: Any) -> Any:
    q = jnp.einsum("bd,dhk->bhk", x, params["wq"])
    weights = jax.nn.softmax(jnp.einsum("bhk,bthk->bht", q, keys))
    mixed = jnp.einsum("bht,bthk->bhk", weights, values)
    x = x + jnp.einsum("bhk,hkd->bd", mixed, params["wo"])
    x = x + jax.nn.relu(x @ params["up"]) @ params["down"]
    return x @ params["embed"].T


def decode_by_slice(params: Any, cache: Any, token: Any, position: Any) -> Any:
    x = params["embed"][token]
    fresh = [jnp.einsum("bd,dhk->bhk", x, params[name]) for name in ("wk", "wv")]
    cache = [
        jax.lax.dynamic_update_slice_in_dim(old, new[:, None], position, 1)
        for old, new in zip(cache, fresh, strict=True)
    ]
    return attend(params, x, *cache), cache


def decode_by_scatter(params: Any, cache: Any, token: Any, positions: Any) -> Any:
    x = params["embed"][token]
    rows = jnp.arange(token.shape[0])
    fresh = [jnp.einsum("bd,dhk->bhk", x, params[name]) for name in ("wk", "wv")]
    cache = [old.at[rows, positions].set(new) for old, new in zip(cache, fresh, strict=True)]
    return attend(params, x, *cache), cache


DECODER = {
    "embed": shape(512, 64),
    **{name: shape(64, 4, 16) for name in ("wq", "wk", "wv")},
    "wo": shape(4, 16, 64),
    "up": shape(64, 256),
    "down": shape(256, 64),
}


@pytest.mark.parametrize("decode", [decode_by_slice, decode_by_scatter])
@pytest.mark.parametrize("donate_argnums", [(), (1,)])
def test_a_cache_is_known_however_it_is_written(decode: Any, donate_argnums: Any) -> None:
    cache = [shape(8, 128, 4, 16)] * 2
    position = shape(8 if decode is decode_by_scatter else 1, dtype="int32")
    if decode is decode_by_slice:
        position = shape(dtype="int32")
    inputs = DECODER, cache, shape(8, dtype="int32"), position
    parts = roles_of(decode, *inputs, donate_argnums=donate_argnums)
    assert set(sizes(parts, "cache")) == {128}
    assert len(parts.arguments.caches) == 2
    assert sizes(parts, "batch") == [8]
    assert set(sizes(parts, "heads")) == {4}
    assert sizes(parts, "hidden") == [256]
    assert sizes(parts, "features") == [64]
    assert sizes(parts, "vocabulary") == [512]
    assert parts.is_cache_by_heads


def test_frozen_weights_of_a_training_step_are_weights() -> None:
    def step(adapters: Any, frozen: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            hidden = jax.nn.relu(x @ (frozen["w1"] + p["a"] @ p["b"]))
            return jnp.mean((hidden @ frozen["w2"] - y) ** 2)

        gradient = jax.grad(loss)(adapters)
        return jax.tree.map(lambda p, g: p - 0.1 * g, adapters, gradient)

    adapters = {"a": shape(24, 4), "b": shape(4, 96)}
    parts = roles_of(step, adapters, MLP, shape(16, 24), shape(16, 40))
    assert len(parts.arguments.weights) == 4
    assert sizes(parts, "batch") == [16]
    assert sizes(parts, "hidden") == [96]


def test_both_towers_of_a_contrastive_loss_are_batched() -> None:
    def loss(params: Any, images: Any, texts: Any) -> Any:
        left = jax.nn.relu(images @ params["u1"]) @ params["u2"]
        right = jax.nn.relu(texts @ params["v1"]) @ params["v2"]
        return -jnp.mean(jnp.diag(jax.nn.log_softmax(left @ right.T)))

    params = {
        "u1": shape(24, 96),
        "u2": shape(96, 32),
        "v1": shape(20, 80),
        "v2": shape(80, 32),
    }
    parts = roles_of(sgd(loss), params, shape(64, 24), shape(64, 20))
    assert sizes(parts, "batch") == [64, 64]
    assert not parts.groups("sequence")


def test_steps_that_a_loop_walks_are_a_sequence() -> None:
    def loss(params: Any, x: Any) -> Any:
        def cell(h: Any, now: Any) -> Any:
            h = jnp.tanh(now @ params["w"] + h @ params["u"])
            return h, h

        _, states = jax.lax.scan(cell, jnp.zeros((16, 48)), x)
        return jnp.mean((states @ params["out"]) ** 2)

    params = {"w": shape(24, 48), "u": shape(48, 48), "out": shape(48, 40)}
    parts = roles_of(sgd(loss), params, shape(10, 16, 24))
    assert set(sizes(parts, "sequence")) == {10}
    assert sizes(parts, "batch") == [16]
    assert sizes(parts, "hidden") == [48]
    assert sizes(parts, "outputs") == [40]


def test_an_optimizer_that_multiplies_matrices_makes_no_sequence() -> None:
    """Muon's products of gradients are no attention scores."""

    def step(params: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.mean((jax.nn.relu(x @ p["w1"]) @ p["w2"] - y) ** 2)

        gradient = jax.grad(loss)(params)
        turned = jax.tree.map(lambda g: g - 0.5 * (g @ g.T) @ g, gradient)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, turned)

    parts = roles_of(step, MLP, shape(16, 24), shape(16, 40))
    assert not parts.groups("sequence", "heads", "key")
    assert sizes(parts, "hidden") == [96]


def test_every_part_is_documented() -> None:
    from toast_lab.conflicts import colour_roles as module

    assert module.__doc__ is not None
    for role in ROLES:
        assert role in module.__doc__


# -- programs of packages --------------------------------------------------------------------------


def test_a_flax_net_of_convolutions() -> None:
    linen = pytest.importorskip("flax.linen")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            for width in (32, 64):
                x = linen.relu(linen.Conv(width, (3, 3))(x))
                y = linen.relu(linen.Conv(2 * width, (1, 1))(x))
                x = x + linen.Conv(width, (1, 1))(y)
                x = linen.avg_pool(x, (2, 2), (2, 2))
            return linen.Dense(10)(x.mean((1, 2)))

    net = Net()
    params = jax.eval_shape(net.init, key_shape(), shape(1, 16, 16, 3))

    def loss(params: Any, x: Any, labels: Any) -> Any:
        likely = jax.nn.log_softmax(net.apply(params, x))
        return -jnp.mean(jnp.take_along_axis(likely, labels[:, None], axis=-1))

    inputs = shape(8, 16, 16, 3), shape(8, dtype="int32")
    parts = roles_of(sgd(loss), params, *inputs)
    assert sizes(parts, "batch") == [8]
    assert set(sizes(parts, "space")) == {16}
    assert {64, 128} <= set(sizes(parts, "channels"))
    assert {32, 64} <= set(sizes(parts, "features"))
    assert sizes(parts, "vocabulary") == [10]
    assert not parts.groups("nodes", "edges", "sequence", "heads")


def test_an_nnx_step_with_dropout() -> None:
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.up = nnx.Linear(24, 96, rngs=rngs)
            self.drop = nnx.Dropout(0.1, rngs=rngs)
            self.down = nnx.Linear(96, 40, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.down(self.drop(jax.nn.relu(self.up(x))))

    net = Net(nnx.Rngs(0))
    graph, state = nnx.split(net)
    optimizer = optax.adam(1e-3)
    params = nnx.filter_state(state, nnx.Param)
    rest = nnx.filter_state(state, nnx.Not(nnx.Param))
    moments = jax.eval_shape(optimizer.init, params)

    def step(params: Any, rest: Any, moments: Any, x: Any, y: Any) -> Any:
        model = nnx.merge(graph, params, rest)
        gradient = nnx.grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        updates, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, updates), moments

    parts = roles_of(step, params, rest, moments, shape(16, 24), shape(16, 40))
    assert len(parts.arguments.keys) == 1
    assert sizes(parts, "batch") == [16]
    assert sizes(parts, "hidden") == [96]


def test_an_equinox_perceptron() -> None:
    equinox = pytest.importorskip("equinox")
    net = equinox.filter_eval_shape(equinox.nn.MLP, 24, 40, 96, 2, key=key_shape())
    arrays, static = equinox.partition(net, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def forward(arrays: Any, x: Any) -> Any:
        return jax.vmap(equinox.combine(arrays, static))(x)

    parts = roles_of(forward, arrays, shape(16, 24))
    assert sizes(parts, "batch") == [16]
    assert sizes(parts, "features") == [24]
    assert sizes(parts, "hidden") == [96, 96]
    assert sizes(parts, "outputs") == [40]
