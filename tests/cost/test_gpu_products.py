"""How a GPU's compiler handles the ops before and after matrix products."""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers import traced
from toast_lab.cost.problem import Problem, price
from toast_lab.cost.read_as_is import free_casts, free_transposes
from toast_lab.sharding import steps as st
from toast_lab.sharding.plan import unsharded_plan

ROWS, WIDTH, HIDDEN = 4096, 2048, 8192
NARROW, WIDE = "bfloat16", "float32"


def array(*dims, dtype=NARROW):
    return jax.ShapeDtypeStruct(dims, dtype)


X, W, TURNED = array(ROWS, WIDTH), array(WIDTH, HIDDEN), array(HIDDEN, WIDTH)


def priced(function, *arguments, machine="h100"):
    """Price a function unsharded; return (cost, analysis)."""
    analysis = traced(function, *arguments)
    problem = Problem(analysis, {"a": 2}, machine)
    return price(problem, unsharded_plan(analysis, problem.mesh)), analysis


def time_s(function, *arguments, machine="h100"):
    return priced(function, *arguments, machine=machine)[0].time_s


def turns(function, *arguments):
    """Return, for each transpose in program order, whether it is free."""
    program = traced(function, *arguments).program
    free = free_transposes(program, st.tables(program))
    return [bool(free[op]) for op in program.ops() if program.kind[op] == "transpose"]


# -- transposes ------------------------------------------------------------------------------------
def test_a_weight_is_read_in_either_order() -> None:
    plain = time_s(lambda x, w: x @ w, X, W)
    assert time_s(lambda x, w: x @ w.T, X, TURNED) == pytest.approx(plain, rel=1e-9)


def test_also_through_a_cast() -> None:
    wide = array(WIDTH, HIDDEN, dtype=WIDE), array(HIDDEN, WIDTH, dtype=WIDE)
    plain = time_s(lambda x, w: x @ w.astype(NARROW), X, wide[0])
    assert time_s(lambda x, w: x @ w.T.astype(NARROW), X, wide[1]) == pytest.approx(plain)


def test_what_others_read_too_is_moved() -> None:
    assert turns(lambda x, w: x @ w.T, X, TURNED) == [True]

    def both(other):
        def function(x, w):
            turned = w.T
            return x @ turned, other(turned)

        return turns(function, X, TURNED)

    assert both(lambda turned: turned.sum()) == both(lambda turned: turned) == [False]


def test_a_gradient_is_written_turned() -> None:
    def gradient(x, y):
        return jax.lax.dot_general(y, x, (((0,), (0,)), ((), ()))).T * 2

    assert turns(gradient, X, array(ROWS, HIDDEN)) == [True]


def test_batch_dims_have_to_come_first() -> None:
    heads = array(8, 512, 16, 64)  # batch, sequence, heads, features

    def scores(q, k, to_heads=(0, 2, 1, 3), to_keys=(0, 2, 3, 1)):
        q, k = jnp.transpose(q, to_heads), jnp.transpose(k, to_keys)
        return jax.lax.dot_general(q, k, (((3,), (2,)), ((0, 1), (0, 1))))

    assert turns(scores, heads, heads) == [False, False]
    lying = array(8, 16, 512, 64)
    assert turns(lambda q, k: scores(q, k, (0, 1, 2, 3), (0, 1, 3, 2)), lying, lying)[-1]


def test_rows_of_two_dims_stay_in_their_order() -> None:
    def product(x, w, order):
        return jnp.transpose(x, order) @ w

    pairs = array(16, 512, WIDTH)
    assert turns(lambda x, w: product(x, w, (1, 0, 2)), pairs, W) == [False]
    columns_first = array(WIDTH, 16, 512)
    assert turns(lambda x, w: product(x, w, (1, 2, 0)), columns_first, W) == [True]


def test_dims_of_one_are_put_anywhere() -> None:
    assert turns(lambda x: jnp.transpose(x, (1, 0, 2)) + 1, array(1, ROWS, WIDTH)) == [True]
    assert turns(lambda x: jnp.transpose(x, (1, 0, 2)) + 1, array(2, ROWS, WIDTH)) == [False]


# -- casts -----------------------------------------------------------------------------------------
def test_a_table_that_is_looked_up_and_multiplied_with_is_cast_once() -> None:
    table = array(HIDDEN, WIDTH, dtype=WIDE)
    where = array(64, dtype="int32")

    def logits(table, where):
        return table.astype(NARROW)[where] @ table.T.astype(NARROW)

    def once(table, where):
        cast = table.astype(NARROW)
        return cast[where] @ cast.T

    assert time_s(logits, table, where) == pytest.approx(time_s(once, table, where))


def test_but_not_to_two_types() -> None:
    table = array(ROWS, WIDTH, dtype=WIDE)

    def cast(second):
        def both(table, x, y):
            return x @ table.astype(NARROW), y @ table.astype(second)

        return time_s(both, table, array(64, ROWS), array(64, ROWS, dtype=second))

    assert cast("float16") > cast(NARROW) * 1.1


def test_an_argument_is_not_written_over() -> None:
    def added(x, w, b):
        return x @ w + b

    cost, analysis = priced(added, X, W, array(ROWS, HIDDEN))
    program = analysis.program
    (add,) = (row for row in cost.ops if program.kind[row.op] == "add")
    assert add.time_s > 2 * 2 * ROWS * HIDDEN / 3.35e12


# -- products --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("machine", "share"), [("h100", 0.75 / 0.94), ("tpu-v5e", 1.0)])
def test_float32_reaches_a_smaller_share(machine, share) -> None:
    side = 16384

    def seconds(dtype):
        wide = array(side, 2048, dtype=dtype), array(2048, 2048, dtype=dtype)
        cost, analysis = priced(lambda x, w: x @ w, *wide, machine=machine)
        return next(
            row.time_s for row in cost.ops if analysis.program.kind[row.op] == "dot_general"
        )

    peak = {"h100": 494 / 989, "tpu-v5e": 1.0}[machine]
    assert seconds(NARROW) / seconds(WIDE) == pytest.approx(peak * share, rel=0.1)


# -- casts made by their readers, and products that are not matrix products ------------------------
def casts(function, *arguments):
    """Return, for each cast in program order, whether it is free."""
    program = traced(function, *arguments).program
    free = free_casts(program, st.tables(program), has_bfloat16=True)
    return [bool(free[op]) for op in program.ops() if program.kind[op] == "convert"]


def test_rows_that_are_looked_up_are_cast_not_the_table() -> None:
    table, where = array(HIDDEN, WIDTH, dtype=WIDE), array(64, dtype="int32")
    assert casts(lambda table, where: table.astype(NARROW)[where], table, where)[0]
    rows = time_s(lambda table, where: table[where].astype(NARROW), table, where)
    assert time_s(lambda table, where: table.astype(NARROW)[where], table, where) < 1.5 * rows


def test_products_of_narrow_numbers_sum_wide() -> None:
    def product(x, w):
        return x.astype(WIDE) @ w.astype(WIDE)

    assert casts(product, X, W) == [True, True]
    # A wide operand is not narrowed, and an operand that others read too is really cast
    assert casts(product, array(ROWS, WIDTH, dtype=WIDE), W) == [False]

    def twice(x, w):
        wide = x.astype(WIDE)
        return wide @ w.astype(WIDE), wide * 2

    assert casts(twice, X, W) == [False, True]


def test_a_product_with_a_vector_casts_the_matrix_on_the_way() -> None:
    """In a decoding step, each of 64 queries is multiplied with a cache of its own."""
    keys, query = array(64, ROWS, 128), array(64, 128, dtype=WIDE)

    def scores(query, keys):
        return jnp.einsum("bd,bsd->bs", query, keys.astype(WIDE))

    cost, _ = priced(scores, query, keys)
    assert cost.peak_bytes < 1.1 * 64 * ROWS * 128 * 2
    assert cost.time_s < 1.2 * 64 * ROWS * 128 * 2 / 3.35e12
    # Many queries make a matrix product, which cannot cast on the way
    many, _ = priced(
        lambda q, k: jnp.einsum("bqd,bsd->bqs", q, k.astype(WIDE)),
        array(64, 8, 128, dtype=WIDE),
        keys,
    )
    assert many.peak_bytes > 3 * 64 * ROWS * 128 * 2
