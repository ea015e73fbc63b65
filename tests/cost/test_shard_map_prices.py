"""Plans are searched and priced around shard_maps, whose insides are priced as they are written."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.shard_map_programs import PROGRAMS, SIZES, abstract_mesh, struct
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.explain.why import why
from toast_lab.frontends import from_jax
from toast_lab.lowering.listing import listing, listing_lines
from toast_lab.machines.collectives import named_time_s
from toast_lab.pipeline import search
from toast_lab.plan_verbs import Plan
from toast_lab.search.gap.certify import lower_bound
from toast_lab.search.limits import Budget
from toast_lab.sharding.plan import plan_of_state, unsharded_plan
from toast_lab.sharding.state import State, legal_actions


@functools.cache
def problem_of(name: str) -> Problem:
    fn, shapes = PROGRAMS[name](abstract_mesh())
    return Problem(analyse(from_jax(fn, *shapes)), SIZES, machine="tpu-v5e")


def of(body: Any, in_specs: Any, out_specs: Any, *shapes: Any) -> Problem:
    fn = jax.shard_map(
        body, mesh=abstract_mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
    return Problem(analyse(from_jax(fn, *shapes)), SIZES, machine="tpu-v5e")


def whole_cost(problem: Problem) -> Any:
    return price(problem, unsharded_plan(problem.analysis, problem.mesh))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("method", ["mcts", "beam", "alpa"])
def test_searches_plan_around_them(name: str, method: str) -> None:
    """No plan is worse than the unsharded one, nor touches what the user wrote."""
    problem = problem_of(name)
    result = search(problem, method=method, seed=0, budget=Budget(evaluations=300))
    assert result.cost.score <= 1.0 + 1e-9
    program, mesh = problem.analysis.program, problem.mesh
    lowered = result.plan.lowered
    for shard_map in program.shard_maps:
        assert (result.plan.op_factor[shard_map.op] == -1).all()
        for use, spec in zip(program.uses(shard_map.op), shard_map.operand_specs, strict=True):
            in_order = tuple(tuple(sorted(dim, key=mesh.axes.index)) for dim in spec)
            assert lowered.used[use] == in_order
    by_hand = [row for row in result.cost.collectives if row.by_hand]
    assert by_hand == [row for row in whole_cost(problem).collectives if row.by_hand]
    assert len(by_hand) == sum(len(row.body.collectives) for row in program.shard_maps)


def test_the_quick_price_of_a_search_is_the_full_one() -> None:
    """Classes of alike ops and values keep apart what shard_maps take and leave."""
    random = np.random.default_rng(0)
    for name in PROGRAMS:
        problem = problem_of(name)
        pricer = problem.pricer()
        for _ in range(8):
            state, actions = State(problem.space), []
            for _ in range(int(random.integers(0, 5))):
                legal = legal_actions(state)
                if legal:
                    actions.append(legal[int(random.integers(len(legal)))])
                    state.apply(actions[-1])
            cost = pricer.full(plan_of_state(state, actions))
            quick = pricer.quick(state)
            assert quick.time_s == pytest.approx(cost.time_s, rel=1e-9)
            assert quick.peak_bytes == pytest.approx(cost.peak_bytes, rel=1e-9)


def test_exhaustive_search_proves_its_plan() -> None:
    problem = of(
        lambda x, w: jax.lax.psum(x @ w, "model"),
        (P("data", "model"), P("model", None)),
        P("data", None),
        struct(1024, 512),
        struct(512, 512),
    )
    best = search(problem, method="exhaustive")
    assert str(best.status) == "Status.COMPLETE"
    # Arguments as the specs say: nothing is left but the sum that the user wrote.
    assert [(row.kind, row.axes) for row in best.cost.collectives] == [("all_reduce", ("model",))]
    assert best.cost.score <= search(problem, method="mcts", seed=1).cost.score + 1e-9


def test_rows_add_up_and_follow_each_other() -> None:
    for name in PROGRAMS:
        cost = whole_cost(problem_of(name))
        assert sum(row.time_s for row in cost.ops) == pytest.approx(cost.compute_s)
        assert sum(row.time_s for row in cost.collectives) == pytest.approx(cost.comm_s)
        assert cost.compute_s + cost.comm_s == pytest.approx(cost.time_s)
        ends = cost.collective_start_s + [row.time_s for row in cost.collectives]
        by_start = np.argsort(cost.collective_start_s, kind="stable")
        assert (ends[by_start][:-1] <= cost.collective_start_s[by_start][1:] + 1e-12).all()


def test_collectives_inside_have_the_price_of_ours() -> None:
    problem = of(lambda x: jax.lax.psum(x, ("data", "model")), P("data"), P(), struct(4096, 1024))
    (row,) = [row for row in whole_cost(problem).collectives if row.by_hand]
    assert (row.kind, row.axes, row.local_bytes) == ("all_reduce", ("data", "model"), 4 * 2**20)
    assert row.time_s == named_time_s(
        "all_reduce", ("data", "model"), row.local_bytes, mesh=problem.mesh, links=problem.links
    )
    assert row.where.endswith("test_shard_map_prices.py:" + row.where.rpartition(":")[2])


def test_rounds_inside_and_around_multiply() -> None:
    ring = whole_cost(problem_of("ring_attention")).collectives
    assert [row.times for row in ring if row.by_hand] == [4.0, 4.0]
    layers = whole_cost(problem_of("recomputed_layers")).collectives
    assert {row.times for row in layers if row.by_hand} == {3.0}


def test_work_inside_is_that_of_one_device() -> None:
    """The body's product on local shapes takes as long as the same product planned by us."""

    def product(x: Any, w: Any) -> Any:
        return x @ w

    shapes = struct(4096, 1024), struct(1024, 2048)
    by_hand = of(product, (P("data"), P(None, "model")), P("data", "model"), *shapes)
    inside = [row for row in whole_cost(by_hand).ops if row.kind == "dot_general"]
    planned = Problem(analyse(from_jax(product, *shapes)), SIZES, machine="tpu-v5e")
    plan = Plan.from_actions(planned, [("x_rows", "data"), ("w_out", "model")])
    ours = [row for row in price(planned, plan).ops if row.kind == "dot_general"]
    assert [(row.flops, row.time_s) for row in inside] == [
        (pytest.approx(row.flops), pytest.approx(row.time_s)) for row in ours
    ]


def test_temporaries_inside_count_in_the_peak() -> None:
    def wide(x: Any) -> Any:
        square = jnp.einsum("i,j->ij", x, x)
        return jnp.linalg.norm(jax.lax.sort(square, dimension=0), axis=0)

    problem = of(wide, P("data"), P("data"), struct(16384))
    local = 16384 // 4
    assert whole_cost(problem).peak_bytes > 4 * local * local


def test_axes_in_another_order_cost_a_permute() -> None:
    def cost(axes: tuple[str, ...]) -> Any:
        problem = of(jnp.sin, P(axes), P("data"), struct(4096, 64))
        return whole_cost(problem)

    assert [row.kind for row in cost(("data", "model")).collectives if row.by_hand] == []
    (moved,) = [row for row in cost(("model", "data")).collectives if row.by_hand]
    assert (moved.kind, moved.axes) == ("permute", ("model", "data"))


def test_the_listing_shows_the_body_with_local_shapes() -> None:
    problem = problem_of("vocabulary_loss")
    plan = unsharded_plan(problem.analysis, problem.mesh)
    text = listing(problem, plan)
    assert "    logits" in text
    assert ": [8, 128] = matmul(hidden_, params['table']_)" in text
    assert "= all_reduce {model} " in text
    lines = [line for line in listing_lines(problem, plan) if line.collective]
    assert len(lines) == len(price(problem, plan).collectives)


def test_why_says_who_wrote_it() -> None:
    problem = problem_of("vocabulary_loss")
    plan = unsharded_plan(problem.analysis, problem.mesh)
    (first, *_) = why(problem, plan, 0)
    assert "written so inside the shard_map" in first.because
    assert first.causes == ("the program",)
    assert why(problem, plan, "all_gather")[0].causes == ("the specs of the shard_map",)


def test_other_actions_and_specs_leave_them_alone() -> None:
    problem = problem_of("vocabulary_loss")
    plan = Plan.from_specs(problem, {"x": ("data",), "params['in']": (None, "model")})
    assert price(problem, plan).time_s > 0
    pinned = problem.pin(("x_in", "data"))
    result = search(pinned, method="beam", budget=Budget(evaluations=100))
    assert pinned.pins is not None
    assert pinned.pins.broken(*result.plan.sharding) == []


def test_bounds_hold_around_them() -> None:
    for name in PROGRAMS:
        problem = problem_of(name)
        best = search(problem, method="beam", budget=Budget(evaluations=200)).cost.score
        assert 0.5 * best < lower_bound(problem).score <= best * (1 + 1e-9)
