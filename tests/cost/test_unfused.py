"""On a TPU, kernels of a single op are slow on large arrays, and so are those that fill memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import traced
from toast_lab.cost.problem import Problem, price
from toast_lab.pipeline import replicated


def matrix(side, dtype="float32"):
    return jax.ShapeDtypeStruct((side, side), dtype)


def compute_s(function, *args, machine="tpu-v5e"):
    problem = Problem(traced(function, *args), {"d": 1}, machine)
    return price(problem, replicated(problem)).compute_s


# libtpu 0.0.42.1's estimates for v5e and v6e in microseconds; the rule was derived without sides
# of 8,192.
@pytest.mark.parametrize(
    ("function", "dtypes", "v5e_us", "v6e_us"),
    [
        (jnp.exp, ("float32",), 1347.6, 946.8),
        (lambda x: jnp.exp(x) + 1, ("float32",), 817.1, 405.9),
        (lambda x: x.astype(jnp.float32), ("bfloat16",), 1165.7, 864.9),
        (lambda x: x.astype(jnp.bfloat16), ("float32",), 1529.6, 1028.7),
        (lambda x: x.sum(-1), ("float32",), 1347.6, 946.8),
        (lambda x: x.sum(0), ("float32",), 1347.6, 946.8),
        (lambda x, y: x + y, ("float32", "float32"), 1711.5, 1110.7),
        (lambda x: jnp.pad(x, ((0, 8), (0, 0))), ("float32",), 1350.3, 948.6),
    ],
)
def test_times_are_the_compilers(function, dtypes, v5e_us, v6e_us) -> None:
    args = [matrix(8192, dtype) for dtype in dtypes]
    for machine, compiled_us in (("tpu-v5e", v5e_us), ("tpu-v6e", v6e_us)):
        priced_us = 1e6 * compute_s(function, *args, machine=machine)
        assert priced_us == pytest.approx(compiled_us, rel=0.1)


def test_small_ones_are_no_slower_than_their_traffic() -> None:
    """At side 512, one op takes 4.1 us, and 4.3 with another op."""
    alone, joined = (
        compute_s(function, matrix(512)) for function in (jnp.exp, lambda x: jnp.exp(x) + 1)
    )
    assert alone == joined


def test_what_is_cut_out_on_the_way_is_not_alone() -> None:
    """Cutting a part out of a whole argument makes a second op in the kernel of a cast."""

    def cast(x):
        return x.astype(jnp.bfloat16)

    problem = Problem(traced(cast, matrix(8192), dim_names={"x": ("B", "D")}), {"d": 2}, "tpu-v5e")
    program, plan = problem.analysis.program, replicated(problem)
    (op,) = np.flatnonzero(problem.prices.by_rule.facts.op.unfused_numbers)
    (result,) = program.results(op)
    factor, kept = plan.op_factor.copy(), plan.value_dim.copy()
    factor[op, 0], kept[result, 0] = program.def_names(result)[0], 0
    in_part_s = problem.prices.totals(factor, kept).compute_s
    kept[program.operands(op)[0], 0] = 0
    in_half_s = problem.prices.totals(factor, kept).compute_s
    assert in_half_s == pytest.approx(0.5 * compute_s(cast, matrix(8192)), rel=0.01)
    traffic_s = (4 + 2 + 4) * 8192 * 4096 / problem.prices.by_rule.rates.product_bytes_per_s
    assert in_part_s == pytest.approx(traffic_s, rel=0.01) != in_half_s


def test_a_table_of_which_few_rows_change_is_filled_first() -> None:
    """The gradient of a lookup fills a table of 100,000 rows of 2,048 numbers, 819 MB of zeros."""

    def gradient(rows, where):
        table = jnp.zeros((100_000, 2048), jnp.float32)
        return table.at[where].add(rows)

    def args(count):
        return (
            jax.ShapeDtypeStruct((count, 2048), "float32"),
            jax.ShapeDtypeStruct((count,), "int32"),
        )

    problem = Problem(traced(gradient, *args(1024)), {"d": 1}, "tpu-v5e")
    assert problem.prices.by_rule.facts.op.filled.sum() == 1
    # Updates as large as the table are sorted and summed, and the table is written once.
    many = Problem(traced(gradient, *args(100_000)), {"d": 1}, "tpu-v5e")
    assert not many.prices.by_rule.facts.op.filled.any()
    numbers = 100_000 * 2048
    rate = problem.machine.unfused_numbers_per_s
    filling_s = numbers / rate + 4 * numbers / (0.95 * problem.machine.memory_bytes_per_s)
    priced_s = price(problem, replicated(problem)).compute_s
    assert filling_s < priced_s < 1.05 * filling_s
    assert 1e6 * filling_s == pytest.approx(14.66e-6 * numbers, rel=0.05), "by libtpu 0.0.42.1"
