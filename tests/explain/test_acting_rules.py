"""Which rules of the price act on an op, and what it costs without each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import toast_lab as tl
from tests.helpers import traced
from toast_lab.errors import ToastError


@pytest.fixture(scope="module")
def problem() -> tl.Problem:
    def step(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w).sum(0)

    shapes = ((64, 4096), (4096, 4096))
    analysis = traced(step, *(jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes))
    return tl.Problem(analysis, {"d": 4}, "tpu-v5e")


def test_prices_without_a_rule_are_those_of_a_problem_without_it(problem: tl.Problem) -> None:
    plan = tl.replicated(problem)
    (rules,) = tl.price_rules(problem, plan, "dot_general")
    cost = tl.price(problem, plan)
    assert rules.plan_time_s == pytest.approx(cost.time_s)
    assert rules.time_s == pytest.approx(sum(r.time_s for r in cost.ops if r.op == rules.op))
    assert "memory_sustained" in [effect.name for effect in rules.effects]
    for effect in rules.effects:
        without = tl.price(problem.without_rules(effect.name), plan)
        assert effect.plan_time_s == pytest.approx(without.time_s)
        assert effect.plan_peak_bytes == pytest.approx(without.peak_bytes)
        time_s = sum(row.time_s for row in without.ops if row.op == rules.op)
        assert effect.time_s == pytest.approx(time_s) != rules.time_s
    assert "gpu_waves" not in str(rules)
    assert "memory_sustained" in str(rules)


def test_moves_of_an_op_count_with_it(problem: tl.Problem) -> None:
    plan = tl.Plan.from_actions(problem, [("features", "d")])
    (rules,) = tl.price_rules(problem, plan, "dot_general")
    rows = tl.price(problem, plan)
    times_s = [row.time_s for row in (*rows.ops, *rows.collectives) if row.op == rules.op]
    assert len(times_s) > 1
    assert rules.time_s == pytest.approx(sum(times_s))


def test_ops_are_named_by_number_kind_result_or_line(problem: tl.Problem) -> None:
    plan, program = tl.replicated(problem), problem.analysis.program
    (rules,) = tl.price_rules(problem, plan, "tanh")
    assert [row.op for row in tl.price_rules(problem, plan, rules.op)] == [rules.op]
    assert [row.op for row in tl.price_rules(problem, plan, str(rules.op))] == [rules.op]
    (result,) = program.results(rules.op)
    assert tl.price_rules(problem, plan, program.value_name[result])[0].op == rules.op
    line = rules.where.rpartition("/")[2]
    assert rules.op in [row.op for row in tl.price_rules(problem, plan, line)]


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("dot_generl", "did you mean .dot_general"),
        (0, "this program has no op 0: its ops have the numbers 2 to"),
        ("99", "no op 99"),
    ],
)
def test_what_no_op_has_is_refused(problem: tl.Problem, which: int | str, message: str) -> None:
    with pytest.raises(ToastError, match=message):
        tl.price_rules(problem, tl.replicated(problem), which)
