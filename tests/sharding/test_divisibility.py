"""The divisibility report: sizes that a mesh does not divide, and arguments that stay whole."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from tests.helpers import analysed, plan, small_transformer, traced
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan
from toast_lab.sharding.divisibility import Miss, divisibility
from toast_lab.sharding.mesh import make_mesh
from toast_lab.sharding.state import State

HEADS_12 = {"heads": 12, "d_model": 192}


def s(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_heads_that_do_not_divide_say_what_would_do() -> None:
    report = Problem(small_transformer(**HEADS_12), "data=8").divisibility()
    (heads,) = [row for row in report.dims if row.colour == "heads"]
    assert (heads.size, heads.divided_by) == (12, ())
    assert heads.misses == (Miss("data", 8, 4, 16),)
    assert str(heads.misses[0]) == "data=8: pad to 16, or an axis of 4"
    assert heads.arguments[:2] == ("params['layers'][0]['wo']", "params['layers'][0]['wq']")
    # An axis of the size that the report proposes divides everything.
    assert Problem(small_transformer(**HEADS_12), "data=4").divisibility().dims == ()


def test_a_size_that_some_axes_divide_stands_apart() -> None:
    report = Problem(small_transformer(**HEADS_12), "data=4,model=8").divisibility()
    assert report.dims == ()
    (heads,) = report.partly
    assert (heads.colour, heads.divided_by) == ("heads", ("data",))
    assert [miss.axis for miss in heads.misses] == ["model"]


@pytest.mark.parametrize(
    ("size", "axis", "common", "padded"), [(12, 8, 4, 16), (7, 4, 1, 8), (2, 8, 2, 8)]
)
def test_what_would_do(size: int, axis: int, common: int, padded: int) -> None:
    report = divisibility(traced(lambda x: jnp.tanh(x), s(size)), make_mesh({"m": axis}))
    (row,) = report.dims
    assert row.misses == (Miss("m", axis, common, padded),)
    assert ("or an axis" in str(row.misses[0])) == (common > 1)


def test_slices_of_a_colour_are_told_by_size() -> None:
    report = divisibility(
        traced(lambda x: jnp.tanh(x[:7]) + jnp.tanh(x[1:]), s(8)), make_mesh({"m": 4})
    )
    assert [(row.colour, row.size, row.arguments) for row in report.dims] == [("batch", 7, ())]


def test_arguments_that_nothing_can_cut() -> None:
    def f(x: jax.Array, w: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        return x @ w + b + c

    analysis = traced(f, s(64, 35), s(35, 21), s(21), s())
    report = divisibility(analysis, make_mesh({"m": 4}))
    (row,) = report.arguments
    total = 4 * (64 * 35 + 35 * 21 + 21 + 1)
    assert (row.argument, row.type, row.bytes) == ("w", "f32[35, 21]", 4 * 35 * 21)
    assert row.bytes_share == pytest.approx(4 * 35 * 21 / total)
    assert row.why == "dim 0 (features) = 35, m=4: pad to 36. dim 1 (outputs) = 21, m=4: pad to 24"
    assert report.whole_arguments == 2, "b is below 2% of the bytes; a scalar is nothing to cut"
    assert report.whole_bytes == 4 * (35 * 21 + 21)
    assert "and 1 smaller arguments" in str(report)
    assert divisibility(analysis, make_mesh({"m": 1})).dims == ()
    assert divisibility(analysis, make_mesh({"m": 1})).arguments[0].why == (
        "every axis of the mesh has size 1"
    )


def test_no_action_cuts_what_the_report_calls_whole() -> None:
    """The report and the action space agree, argument by argument."""
    analysis = small_transformer(**HEADS_12, hidden=130, vocab=254)
    problem = Problem(analysis, "data=8")
    program = analysis.program
    cut = set()
    for move in range(problem.space.n_moves):
        state = State(problem.space)
        state.apply_row(move, 0)
        cut |= {
            program.value_name[a]
            for a in range(program.n_arguments)
            if (state.value_dim[a] >= 0).any()
        }
    tensors = {
        program.value_name[a]
        for a in range(program.n_arguments)
        if program.nbytes(a) > program.itemsize[a]
    }
    report = problem.divisibility()
    assert report.whole_arguments == len(tensors - cut)
    assert {row.argument for row in report.arguments} <= tensors - cut


def test_a_plan_reports_what_it_keeps_whole() -> None:
    problem = Problem(analysed("mlp", batch=64, inputs=32, hidden=64, outputs=16), {"d": 2, "m": 2})
    report = problem.divisibility(plan(problem, ("B", "d"), ("U", "m")))
    assert report.planned
    assert (report.arguments, report.whole_bytes) == ((), 0.0)
    report = problem.divisibility(plan(problem, ("B", "d")))
    assert [row.argument for row in report.arguments] == ["w1", "w2"], "largest first"
    assert report.arguments[1].why == "no action of the plan cuts it; U->d, U->m, W->d, W->m could"
    assert report.whole_bytes == 4 * (32 * 64 + 64 * 16)


def test_a_plan_for_another_mesh_is_refused() -> None:
    analysis = analysed("mlp")
    other = Problem(analysis, {"d": 4})
    with pytest.raises(InvalidPlan, match="mesh d=4"):
        Problem(analysis, {"d": 2}).divisibility(plan(other))
    with pytest.raises(InvalidPlan, match="this plan is for the program mlp"):
        Problem(small_transformer(), {"d": 4}).divisibility(plan(other))


def test_all_is_well() -> None:
    report = Problem(small_transformer(), "data=4,model=2").divisibility()
    assert str(report) == (
        "Divisibility: every axis of data=4,model=2 divides every size; every argument can be cut."
    )
