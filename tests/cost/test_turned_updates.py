"""Weights whose gradient comes turned are copied for their update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import plan, traced
from toast_lab.cost.problem import Problem, price
from toast_lab.cost.turned_updates import turned_updates
from toast_lab.sharding import steps as st

ROWS, WIDTH, HIDDEN = 4096, 1024, 8192


def weights(*dims, dtype="float32"):
    return jax.ShapeDtypeStruct(dims, dtype)


def stepped(loss, w, *batch, update=lambda w, g: w - 0.1 * g):
    """The analysis of a training step; the batch is called B."""

    def step(w, *batch):
        return jax.tree.map(update, w, jax.grad(loss)(w, *batch))

    names = {"batch[0]": tuple("BCDE"[: len(batch[0].shape)])}
    return traced(step, w, *batch, dim_names=names)


def copies(analysis):
    """(arguments, results) that are copied for each product that is one of these."""
    program = analysis.program
    numbers = np.array([np.prod(program.dims(value)) for value in range(program.n_values)], float)
    turned = turned_updates(program, st.tables(program), numbers)
    products = [op for op in range(program.n_ops) if turned.results[op]]
    sizes = [numbers[program.results(op)[0]] for op in products]
    return [
        (turned.arguments[op] / size, turned.results[op] / size)
        for op, size in zip(products, sizes, strict=True)
    ]


def squares(w, x):
    return ((x @ w) ** 2).sum()


X = weights(ROWS, WIDTH)


def test_descent_turns_the_weight_and_what_becomes_of_it() -> None:
    assert copies(stepped(squares, weights(WIDTH, HIDDEN), X)) == [(1, 1)]


def test_a_gradient_that_is_a_result_is_turned_alone() -> None:
    analysis = stepped(squares, weights(WIDTH, HIDDEN), X, update=lambda w, g: g)
    assert copies(analysis) == [(0, 1)]


def test_so_is_what_an_optimizer_remembers() -> None:
    def step(w, mean, square, x):
        gradient = jax.grad(squares)(w, x)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.9 * square + 0.1 * gradient**2
        return w - mean / jnp.sqrt(square + 1e-6), mean, square

    w = weights(WIDTH, HIDDEN)
    assert copies(traced(step, w, w, w, X)) == [(3, 3)]


def test_a_weight_that_is_kept_turned_is_not() -> None:
    """Two transposes that cancel each other out."""
    analysis = stepped(lambda w, x: squares(w.T, x), weights(HIDDEN, WIDTH), X)
    assert copies(analysis) == []


def test_a_matrix_of_few_columns_is_not() -> None:
    """It lies turned already."""
    assert copies(stepped(squares, weights(WIDTH, 64), X)) == []


def test_in_a_loop_nothing_is() -> None:
    def loss(w, x):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=4)[0].sum()

    assert copies(stepped(loss, weights(WIDTH, WIDTH), X)) == []


def turning_s(scale, columns, *actions):
    """By how much computing takes longer for a weight that has to be turned, with that dim cut."""
    problems = [
        Problem(analysis, {"d": 4}, "tpu-v5e")
        for analysis in (
            stepped(squares, weights(scale * WIDTH, columns), weights(ROWS, scale * WIDTH)),
            stepped(
                lambda w, x: squares(w.T, x),
                weights(columns, scale * WIDTH),
                weights(ROWS, scale * WIDTH),
            ),
        )
    ]
    turned, kept = (price(problem, plan(problem, *actions)).compute_s for problem in problems)
    return turned - kept, problems[0].machine.transposed_numbers_per_s


def test_it_takes_time_only_where_the_gradient_is_summed_over_devices() -> None:
    assert turning_s(1, HIDDEN)[0] == pytest.approx(0.0, abs=1e-9)
    turning, rate = turning_s(1, HIDDEN, ("B", "d"))
    # Out of vector memory half as long, into it half of the time not at all.
    assert turning == pytest.approx(0.75 * WIDTH * HIDDEN / rate, rel=1e-6)
    # What does not fit there is copied in memory, both ways.
    turning, rate = turning_s(4, HIDDEN, ("B", "d"))
    assert turning == pytest.approx(2 * 4 * WIDTH * HIDDEN / rate, rel=1e-6)


def test_products_with_batch_dims_turn_theirs_always() -> None:
    def loss(w, x):
        return (jnp.einsum("erk,ekn->ern", x, w) ** 2).sum()

    analysis = stepped(loss, weights(8, WIDTH, HIDDEN), weights(8, ROWS, WIDTH))
    assert copies(analysis) == [(1, 1)]
    on_tpu = Problem(analysis, {"d": 2}, "tpu-v5e")
    cost = price(on_tpu, plan(on_tpu))
    (row,) = [row for row in cost.ops if row.kind == "dot_general" and "jvp" not in row.where][-1:]
    flops_s = row.flops / on_tpu.machine.peak_flops("f32")
    numbers = 8 * WIDTH * HIDDEN
    assert row.time_s > flops_s + 2 * numbers / on_tpu.machine.transposed_numbers_per_s
