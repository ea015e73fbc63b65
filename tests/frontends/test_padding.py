"""Padded programs compute what the programs do, whatever is padded."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from tests import gpt2_model
from toast_lab.errors import InvalidProblem
from toast_lab.frontends import padded_function as on_padded
from toast_lab.frontends.padded_models import padded_model
from toast_lab.ir.model import Function, Model

ROWS, COLUMNS, VOCABULARY = 7, 5, 13


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


def ids(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, VOCABULARY, shape).astype("int32")


def padded(fn: Any, arguments: tuple[Any, ...], starts: Any) -> on_padded.Padded:
    jaxpr = jax.make_jaxpr(fn)(*arguments)
    return on_padded.padded(jaxpr, [on_padded.Start(*start) for start in starts])


def assert_same(fn: Any, arguments: tuple[Any, ...], starts: Any) -> on_padded.Padded:
    """The padded function has the results of ``fn``, with zeros around them."""
    made = padded(fn, arguments, starts)
    leaves = jax.tree.leaves(arguments)
    given = [
        on_padded.pad(jnp.asarray(x), own) for x, own in zip(leaves, made.arguments, strict=True)
    ]
    assert (
        any(x.shape != np.shape(leaf) for x, leaf in zip(given, leaves, strict=True))
        or made.results
    )
    results = jax.jit(made.call)(*given)
    expected = jax.tree.leaves(jax.jit(fn)(*arguments))
    for result, wanted, own in zip(results, expected, made.results, strict=True):
        cut = np.asarray(on_padded.cut(result, own))
        assert cut.shape == wanted.shape
        assert cut.dtype == wanted.dtype
        np.testing.assert_allclose(cut, wanted, rtol=3e-5, atol=3e-5)
        again = on_padded.pad(jnp.asarray(cut), own)
        np.testing.assert_array_equal(np.asarray(result), np.asarray(again), "padding is zero")
    return made


# -- programs --------------------------------------------------------------------------------------
def softmax(x: Any) -> Any:
    return jax.nn.softmax(x @ x.T, axis=-1), jax.nn.logsumexp(x, axis=0)


def layer_norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)


def statistics(x: Any) -> Any:
    return x.mean(0), x.var(1), x.std(), x.max(0), x.min(1), x.prod(0), jnp.linalg.norm(x)


def indices_of_extremes(x: Any) -> Any:
    return jnp.argmax(x, 0), jnp.argmin(x, 1), jax.lax.top_k(x, 3), jnp.argmax(-jnp.abs(x), 1)


def cumulated(x: Any) -> Any:
    backwards = jax.lax.cumsum(x, 1, reverse=True), jax.lax.cummax(x, 0, reverse=True)
    return jnp.cumsum(x, 0), jnp.cumprod(x, 1), jax.lax.cumlogsumexp(x, 0), backwards


def predicates(x: Any) -> Any:
    return (x > 0).any(0), (x > -9).all(1), jnp.isfinite(x), jnp.where(x > 0, x, -jnp.inf).max(0)


def rearranged(x: Any) -> Any:
    return x.T, x[::-1], x[1:], x[::2], x.reshape(-1), jnp.stack([x, x]), jnp.concatenate([x, x])


def padded_and_rolled(x: Any) -> Any:
    return jnp.pad(x, ((1, 2), (0, 0))), jnp.roll(x, 1, 0), jnp.repeat(x, 2, 0), jnp.tile(x, (2, 1))


def sorted_and_median(x: Any) -> Any:
    return jnp.sort(x, 0), jnp.argsort(x, 1), jnp.median(x, 0)


def solved(x: Any) -> Any:
    return jnp.linalg.inv(x.T @ x + jnp.eye(COLUMNS))


def divided_by_nothing(x: Any) -> Any:
    """Zeros in the padding become infinities and no numbers, which must not get out."""
    return (1.0 / x).sum(0), jnp.log(jnp.abs(x)) @ x.T, (x / jnp.abs(x).sum(1, keepdims=True)).sum()


def looped(x: Any) -> Any:
    def goes_on(carry: Any) -> Any:
        return (carry[0] < 5) & (jnp.abs(carry[1]).sum() < 1e3)

    def body(carry: Any) -> Any:
        return carry[0] + 1, jnp.exp(-jnp.abs(carry[1]))

    return jax.lax.while_loop(goes_on, body, (0, x))[1].sum(0)


def branched(x: Any) -> Any:
    which = (x.sum() > 0).astype("int32")
    switched = jax.lax.switch(which, [jnp.exp, jnp.cos], x)
    return switched.sum(1), jax.lax.cond(which > 0, lambda x: x * 2, lambda x: 1 / x, x)


def drawn(x: Any) -> Any:
    return x * jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)


OF_MATRIX = (
    *(softmax, layer_norm, statistics, indices_of_extremes, cumulated, predicates, rearranged),
    *(padded_and_rolled, sorted_and_median, solved, divided_by_nothing, looped, branched, drawn),
)
DIMS = [(0, 0, ROWS, 8), (0, 1, COLUMNS, 8)]
CHOSEN = [DIMS[:1], DIMS[1:], DIMS]


@pytest.mark.parametrize("starts", CHOSEN, ids=["rows", "columns", "both"])
@pytest.mark.parametrize("fn", OF_MATRIX, ids=lambda fn: fn.__name__)
def test_results_are_the_same(fn: Any, starts: Any) -> None:
    assert_same(fn, (normal(ROWS, COLUMNS),), starts)


@pytest.mark.parametrize("starts", CHOSEN, ids=["rows", "columns", "both"])
@pytest.mark.parametrize(
    "fn",
    [softmax, layer_norm, statistics, cumulated, divided_by_nothing],
    ids=lambda fn: fn.__name__,
)
def test_gradients_are_the_same(fn: Any, starts: Any) -> None:
    def gradient(x: Any) -> Any:
        return jax.grad(lambda x: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(fn(x))))(x)

    assert_same(gradient, (normal(ROWS, COLUMNS) / 3 + 1.0,), starts)


def tied(table: Any, mixing: Any, tokens: Any, labels: Any) -> Any:
    def loss(table: Any, mixing: Any) -> Any:
        logits = jnp.tanh(table[tokens] @ mixing) @ table.T
        likelihoods = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(likelihoods, labels[:, None], axis=-1).mean()

    return jax.value_and_grad(loss, argnums=(0, 1))(table, mixing)


def test_a_vocabulary_that_embeds_and_classifies() -> None:
    arguments = normal(VOCABULARY, COLUMNS), normal(COLUMNS, COLUMNS), ids(9), ids(9)
    both = [(0, 0, VOCABULARY, 16), (2, 0, 9, 12)]
    for starts in (both[:1], both[1:], both):
        made = assert_same(tied, arguments, starts)
        assert made.alone == []


def test_indices_out_of_bounds_stay_out_of_bounds() -> None:
    rows = np.asarray([0, 6, 7, 9, -1], "int32")

    def read(x: Any) -> Any:
        return [x.at[rows].get(mode=mode) for mode in ("fill", "clip")]

    def write(x: Any) -> Any:
        return [x.at[rows].add(1.0), *(x.at[rows].set(2.0, mode=mode) for mode in ("drop", "clip"))]

    def moved(x: Any) -> Any:
        row = jax.lax.dynamic_slice(x, (5, 0), (3, COLUMNS))
        return row, jax.lax.dynamic_update_slice(x, row * 2, (6, 0))

    for fn in (read, write, moved):
        assert_same(fn, (normal(ROWS, COLUMNS),), DIMS[:1])


def causal(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        h = x
        for own in weights:
            fused = own["qkv"]
            h = layer_norm(h + gpt2_model.attention(h, {**own, "qkv": fused}, 5))
        return (h**3).mean()

    return jax.value_and_grad(loss)(weights)


@pytest.mark.parametrize("with_positions", [False, True])
def test_heads_of_a_fused_projection(with_positions: bool) -> None:
    layer = {
        "qkv": normal(20, 60) / 4,
        "qkv_bias": normal(60),
        "out": normal(20, 20) / 4,
        "out_bias": normal(20),
    }
    arguments = [layer] * 2, normal(3, ROWS, 20)
    # Leaves are sorted: "out" is the first of each layer
    starts = [(0, 0, 5, 8), (4, 0, 5, 8), *([(8, 1, ROWS, 8)] if with_positions else [])]
    made = assert_same(causal, arguments, starts)
    assert made.arguments[0] == {0: (1, 20, 32)}
    assert made.arguments[2] == {1: (3, 20, 32)}, "each of the three projections has its padding"
    assert made.alone == []


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_layers_in_a_loop(is_checkpointed: bool) -> None:
    def layer(h: Any, own: Any) -> Any:
        return h + jnp.tanh(h @ own) @ own.T, h.sum()

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            body = jax.checkpoint(layer) if is_checkpointed else layer
            h, sums = jax.lax.scan(body, x, weights)
            return jax.nn.logsumexp(h, 0).sum() + (sums**2).mean()

        return jax.value_and_grad(loss)(weights)

    arguments = normal(3, COLUMNS, COLUMNS) / 3, normal(ROWS, COLUMNS)
    for starts in ([(0, 1, COLUMNS, 8)], [(1, 0, ROWS, 8)], [(0, 1, COLUMNS, 8), (1, 0, ROWS, 8)]):
        made = assert_same(step, arguments, starts)
        assert made.alone == []


def test_what_is_computed_again_still_is() -> None:
    def step(x: Any, weights: Any) -> Any:
        def layer(h: Any, own: Any) -> Any:
            return jnp.tanh(jnp.sin(h @ own))

        def loss(x: Any) -> Any:
            for own in weights:
                x = jax.checkpoint(layer)(x, own)
            return x.sum()

        return jax.grad(loss)(x)

    arguments = normal(ROWS, COLUMNS), [normal(COLUMNS, COLUMNS)] * 2
    made = assert_same(step, arguments, DIMS[:1])
    text = jax.jit(made.call).lower(
        *(
            on_padded.pad(x, own)
            for x, own in zip(jax.tree.leaves(arguments), made.arguments, strict=True)
        )
    )
    assert text.as_text().count("tanh") == jax.jit(step).lower(*arguments).as_text().count("tanh")
    assert "optimization_barrier" in text.as_text()


def test_weights_stay_padded_with_zeros_without_masks() -> None:
    """What an optimizer makes of zeros is known to be zero."""

    def adam(weights: Any, first: Any, second: Any, gradient: Any) -> Any:
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        step = (first / 0.19) / (jnp.sqrt(second / 0.0199) + 1e-8)
        return weights - 1e-3 * step - 1e-2 * weights, first, second

    arguments = (normal(ROWS, COLUMNS),) * 4
    starts = [(i, 0, ROWS, 8) for i in range(4)]
    made = assert_same(adam, (*arguments[:2], arguments[2] ** 2, arguments[3]), starts)
    given = [on_padded.pad(x, own) for x, own in zip(arguments, made.arguments, strict=True)]
    assert "select" not in str(jax.make_jaxpr(made.call)(*given))


def test_an_op_without_a_rule_sees_its_own_sizes_and_is_told() -> None:
    made = assert_same(solved, (normal(ROWS, COLUMNS),), DIMS[1:])
    assert {row.op for row in made.alone} >= {"lu"}
    assert made.alone[0].sizes == ("5 of 8",)
    (tile,) = assert_same(padded_and_rolled, (normal(ROWS, COLUMNS),), DIMS[1:]).alone
    assert str(tile).startswith("tile at ")
    assert "test_padding.py" in tile.where


def test_what_no_argument_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no dim of size 11 is made of dim 0 of argument 0"):
        padded(softmax, (normal(ROWS, COLUMNS),), [(0, 0, 11, 12)])


# -- models ----------------------------------------------------------------------------------------
SIZES = {"layers": 2, "batch": 4, "positions": 7, "heads": 5, "key": 4, "vocabulary": 13}


def drawn_for(model: Model) -> list[Any]:
    """Arguments of a model of GPT-2: small weights, and tokens of its vocabulary."""
    program = model.program
    arrays = []
    for argument in range(program.n_arguments):
        shape, dtype = program.dims(argument), program.value_dtype[argument]
        draw = ids if dtype == "i32" else normal
        arrays.append(jnp.asarray(np.asarray(draw(*shape)) if shape else np.asarray(3, "int32")))
    return arrays


@pytest.mark.parametrize("make", [gpt2_model.training, gpt2_model.decoding])
def test_a_padded_model_computes_the_same(make: Any) -> None:
    fn, arguments, options = make(**SIZES, dtype="float32")
    model = tl.from_jax(fn, *arguments, **options)
    analysis = tl.analyse(model)
    names = [group.name for group in analysis.groups]
    vocabulary = next(name for name in names if name in ("vocabulary", "vocab"))
    own = tl.padded(model, {vocabulary: 16, "heads": 8})
    assert own.program.value_name[:5] == model.program.value_name[:5]
    assert own.padding is not None
    assert own.padding.alone == ()
    assert isinstance(model.function, Function)
    assert isinstance(own.function, Function)
    given = jax.tree.unflatten(jax.tree.structure(model.function.given), drawn_for(model))
    expected = jax.jit(model.function.call)(*given)
    results = jax.jit(own.function.call)(*tl.padded_arguments(own, *given))
    cut = tl.cut_results(own, results)
    for result, wanted in zip(jax.tree.leaves(cut), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-4, atol=2e-5)
    # What is kept from step to step is padded when it is given and when it is taken
    kept = own.function.given[:2] if make is gpt2_model.training else own.function.given[1:2]
    taken = [leaf.shape for leaf in jax.tree.leaves(kept)]
    given_back = [leaf.shape for leaf in jax.tree.leaves(results) if leaf.ndim]
    assert given_back[-len(taken) :] == taken


def test_what_cannot_be_padded_is_said() -> None:
    x = jax.ShapeDtypeStruct((ROWS, COLUMNS), "float32")
    model = tl.from_jax(lambda x: jnp.tanh(x @ x.T), x, name="products")
    with pytest.raises(InvalidProblem, match="no colour is called 'rows'"):
        tl.padded(model, {"rows": 8})
    name = tl.analyse(model).groups[0].name
    with pytest.raises(InvalidProblem, match=f"{name} cannot be padded to 3: its sizes are"):
        tl.padded(model, {name: 3})
    own = tl.padded(model, {name: 8})
    with pytest.raises(InvalidProblem, match="is padded already"):
        tl.padded(own, {name: 16})
    with pytest.raises(InvalidProblem, match="products is not padded"):
        tl.cut_results(model, 1.0)
    with pytest.raises(InvalidProblem, match="has 1 arrays in its arguments, these are 2"):
        tl.padded_arguments(own, 1.0, 2.0)
    with pytest.raises(InvalidProblem, match="no function that could be traced again"):
        padded_model(tl.from_stablehlo(model.stablehlo), [(0, 0, ROWS, 8)])


def test_a_model_of_another_process_is_padded_there() -> None:
    model = tl.load("tests/gpt2_model.py:decoding", **SIZES)
    own = tl.padded(model, {"heads": 8})
    cache = own.program.value_name.index("cache[0][0]")
    assert own.program.dims(cache) == (4, 7, 8, 4)
    assert own.lowered_for("tpu").program.dims(0) == own.program.dims(0)
