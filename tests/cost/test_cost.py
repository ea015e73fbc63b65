"""Prices checked by hand: roofline, collectives, live ranges, fusion, the paper's C(s)."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import analysed, plan, small_transformer, traced
from tests.machines.plain import PLAIN
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidProblem
from toast_lab.pipeline import replicated
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.state import State, legal_actions

S = jax.ShapeDtypeStruct
F = jnp.float32


def cost_of(fn, *shapes, mesh=None, actions=(), on=PLAIN, donate_argnums=(), **options):
    analysis = traced(fn, *(S(s, F) for s in shapes), donate_argnums=donate_argnums)
    problem = Problem(analysis, mesh or {"a": 2}, on, **options)
    return price(problem, plan(problem, *actions))


def test_a_dot_takes_the_longer_of_compute_and_memory():
    flops, moved = 2 * 64 * 32 * 16, 4 * (64 * 32 + 32 * 16 + 64 * 16)
    assert cost_of(jnp.matmul, (64, 32), (32, 16)).time_s == pytest.approx(
        max(flops / 1e6, moved / 1e3)
    )
    fast_memory = dataclasses.replace(PLAIN, memory_bytes_per_s=1e12)
    assert cost_of(jnp.matmul, (64, 32), (32, 16), on=fast_memory).time_s == pytest.approx(
        flops / 1e6
    )


def test_a_sharded_dot_does_its_share():
    whole = cost_of(jnp.matmul, (64, 32), (32, 16))
    half = cost_of(jnp.matmul, (64, 32), (32, 16), actions=[("a.0", "a")])
    moved = 4 * (32 * 32 + 32 * 16 + 32 * 16)
    assert half.time_s == pytest.approx(max(2 * 32 * 32 * 16 / 1e6, moved / 1e3))
    assert half.time_s < whole.time_s


def test_an_elementwise_chain_is_one_pass_over_memory():
    chain = cost_of(lambda x: jnp.sin(jnp.cos(jnp.tanh(x))), (1000,))
    assert chain.time_s == pytest.approx(2 * 4000 / 1e3)  # read once, written once
    assert chain.peak_bytes == 2 * 4000


def test_a_value_used_twice_is_written():
    def fn(x):
        y = jnp.tanh(x)
        return jnp.sin(y) @ y

    cost = cost_of(fn, (50, 50))
    size = 4 * 2500
    # tanh: read, write; sin: read, write (a dot takes no fused operand); dot: two reads, one write
    assert cost.time_s == pytest.approx(7 * size / 1e3)


def test_constants_and_views_cost_nothing():
    plain = cost_of(lambda x: x + 1.0, (10, 10))
    assert plain.time_s == pytest.approx(2 * 400 / 1e3)
    assert cost_of(
        lambda x: jnp.broadcast_to(x[None], (5, 10, 10)) + 1.0, (10, 10)
    ).time_s == pytest.approx((400 + 2000) / 1e3)


def test_paper_mode_prices_dots_only():
    assert cost_of(lambda x: jnp.sin(x), (100,), paper_mode=True).time_s == 0.0
    with_dot = cost_of(lambda x: jnp.sin(x @ x), (10, 10), paper_mode=True)
    assert with_dot.time_s == pytest.approx(max(2000 / 1e6, 3 * 400 / 1e3))


def test_collective_of_the_listing_is_the_one_priced():
    cost = cost_of(lambda x, w: x @ w, (64, 32), (32, 16), mesh={"a": 4}, actions=[("x.1", "a")])
    (row,) = cost.collectives
    assert (row.kind, row.axes, row.local_bytes) == ("all_reduce", ("a",), 4 * 64 * 16)
    assert row.time_s == pytest.approx(2 * (3 / 4) * 4 * 64 * 16 / 1e2)
    assert cost.comm_s == row.time_s
    assert cost.time_s == pytest.approx(cost.compute_s + cost.comm_s)


# -- memory ----------------------------------------------------------------------------------------


def test_peak_of_a_chain_of_dots_by_hand():
    """The peak of x @ w1 @ w2 @ w3 is at the second dot.

    All arguments stay and the result has its own place; the operand and the result of that dot are
    alive.
    """
    cost = cost_of(lambda x, a, b, c: ((x @ a) @ b) @ c, (8, 8), (8, 80), (80, 40), (40, 8))
    arguments = 4 * (64 + 640 + 3200 + 320)
    assert cost.peak_bytes == arguments + 4 * (8 * 80 + 8 * 40 + 8 * 8)


def test_donated_arguments_are_freed_after_their_last_use():
    def fn(x, w):
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    kept = cost_of(fn, (100, 10), (10, 10))
    donated = cost_of(fn, (100, 10), (10, 10), donate_argnums=0)
    assert kept.peak_bytes - donated.peak_bytes == pytest.approx(4000)


def test_an_elementwise_update_reuses_its_donated_operand():
    def step(p, g):
        return p - 0.1 * g

    assert cost_of(step, (1000,), (1000,)).peak_bytes == 12_000
    assert cost_of(step, (1000,), (1000,), donate_argnums=0).peak_bytes == 8_000


def test_a_gathered_copy_lives_until_its_last_use():
    def fn(x, w):
        return (x @ w) @ w

    analysis = traced(fn, S((64, 64), F), S((64, 64), F), dim_names={"x": ("batch", "d")})
    problem = Problem(analysis, {"a": 4}, PLAIN)
    state = plan(problem, ("batch", "a"))
    sharded = price(problem, state)
    quarter, whole = 4 * 64 * 64 / 4, 4 * 64 * 64
    assert sharded.peak_bytes == pytest.approx(whole + 3 * quarter)
    fsdp = price(problem, plan(problem, ("batch", "a"), ("d", "a")))
    assert fsdp.count("all_gather") == 1  # gathered once for both dots
    assert fsdp.peak_bytes >= whole + quarter


def test_a_gathered_copy_is_held_between_its_uses():
    """w is gathered for the first dot, used again by the last one, and held in between.

    The peak is at a dot between them.
    """

    def fn(x, w, u, v):
        return (((x @ w) @ u) @ v) @ w

    shapes = [S(s, F) for s in ((8, 16), (16, 16), (16, 400), (400, 16))]
    analysis = traced(fn, *shapes, dim_names={"x": ("batch", "d"), "w": ("d", "h")})
    problem = Problem(analysis, {"a": 2}, PLAIN)
    cost = price(problem, plan(problem, ("batch", "a"), ("d", "a")))
    assert [c.value for c in cost.collectives if c.kind == "all_gather"] == ["w", "v"]
    arguments = 4 * (4 * 16 + 8 * 16 + 16 * 400 + 400 * 8)
    copies, operand_bytes, result_bytes = 4 * (16 * 16 + 400 * 16), 4 * 4 * 400, 4 * 4 * 16
    assert (
        cost.peak_bytes == arguments + copies + operand_bytes + result_bytes
    )  # r lies in the result's place


def test_a_copy_made_in_a_branch_is_not_held_for_uses_after_it():
    """w is gathered in a branch and again after it, and is not held at the dot in between."""

    def fn(c, x, w, v):
        y = jax.lax.cond(c, lambda: x @ w, lambda: x)
        return ((y @ v) @ w) @ w

    square = S((64, 64), F)
    analysis = traced(fn, S((), bool), square, square, square, dim_names={"x": ("batch", "d")})
    problem = Problem(analysis, {"a": 4}, PLAIN)
    cost = price(problem, plan(problem, ("batch", "a"), ("d", "a")))
    assert [c.value for c in cost.collectives if c.kind == "all_gather"] == ["w", "v", "w"]
    between = [op for op in analysis.program.ops() if analysis.program.kind[op] == "dot_general"][1]
    quarter, whole = 4 * 64 * 64 / 4, 4 * 64 * 64
    # arguments x, w, v; the copy of v; the operand and the result, one in the final result's place
    assert cost.timeline_bytes[between] == pytest.approx(3 * quarter + whole + 2 * quarter, abs=8)


def test_timeline_peaks_where_the_cost_says():
    analysis = small_transformer(mode="train")
    problem = Problem(analysis, {"a": 2})
    cost = price(problem, plan(problem, ("batch", "a")))
    assert cost.timeline_bytes.max() == cost.peak_bytes
    assert cost.timeline_bytes[cost.peak_op] == cost.peak_bytes
    assert cost.timeline_bytes[-1] > 0


# -- the paper's cost ------------------------------------------------------------------------------


def test_unsharded_costs_one():
    problem = Problem(analysed("mlp"), {"a": 2})
    cost = price(problem, replicated(problem))
    assert cost.relative_time == 1.0
    assert cost.memory_penalty == 0.0
    assert cost.score == 1.0
    assert cost.collectives == ()


def test_memory_penalty_is_the_papers():
    free = Problem(analysed("mlp"), {"a": 2})
    base = price(free, replicated(free)).peak_bytes
    tight = Problem(analysed("mlp"), {"a": 2}, memory_limit_bytes=base / 2, memory_weight=3.0)
    cost = price(tight, replicated(tight))
    assert not cost.fits
    assert cost.memory_penalty == pytest.approx(3.0 * (base - base / 2) / base)
    assert cost.score == pytest.approx(1.0 + cost.memory_penalty)


def test_quick_and_full_prices_agree():
    problem = Problem(small_transformer(mode="train"), {"a": 2, "b": 4})
    rng = np.random.default_rng(0)
    pricer = problem.pricer()
    for _ in range(20):
        state = State(problem.space)
        for _ in range(6):
            if actions := legal_actions(state):
                state.apply(actions[rng.integers(len(actions))])
        quick, full = pricer.quick(state), price(problem, Plan.from_state(state))
        assert (quick.score, quick.time_s) == pytest.approx((full.score, full.time_s), rel=1e-12)
        assert quick.peak_bytes == full.peak_bytes
        assert sum(c.time_s for c in full.collectives) == pytest.approx(full.comm_s)
        assert sum(o.time_s for o in full.ops) == pytest.approx(full.compute_s)
        assert 0 < full.overlapped_s <= full.time_s * (1 + 1e-9)
        assert full.overlapped_s >= max(full.compute_s, full.comm_s) * (1 - 1e-9)


def test_bad_limits_are_refused():
    with pytest.raises(InvalidProblem, match="memory_limit_bytes must be above 0"):
        Problem(analysed("mlp"), {"a": 2}, memory_limit_bytes=0)


def test_a_problem_holds_still_and_shares_what_pins_do_not_touch():
    problem = Problem(analysed("mlp"), {"data": 4, "model": 2})
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.pins = None
    space = problem.space
    pinned = problem.what_if(["B->data"])
    assert problem.pins is None
    assert pinned.pins is not None
    assert pinned.prices is problem.prices
    assert pinned.space is not space
    assert pinned.unpinned.space is space
    assert pinned.unpinned.pins is None
    assert pinned.baseline == problem.baseline
    reloaded = pickle.loads(pickle.dumps(pinned))
    assert reloaded.pins.texts == pinned.pins.texts
    assert reloaded.baseline == problem.baseline


def test_on_another_mesh_it_costs_what_a_new_problem_does_and_shares_the_program() -> None:
    """Fusion and live ranges of a program are computed once, however many meshes are tried."""
    analysis = small_transformer()
    problem = Problem(
        analysis, {"data": 2, "model": 2}, memory_limit_bytes=2.0**20, memory_weight=3.0
    ).pin(("batch", "data"))
    for mesh in ({"data": 4, "model": 2}, "2x8"):
        on_other_mesh = problem.on_mesh(mesh)
        fresh = Problem(analysis, mesh, memory_limit_bytes=2.0**20, memory_weight=3.0)
        assert on_other_mesh.mesh == fresh.mesh
        assert on_other_mesh.pins is None
        assert on_other_mesh.baseline == fresh.baseline
        assert on_other_mesh.prices.by_rule.facts is problem.prices.by_rule.facts
        axis = on_other_mesh.mesh.axes[-1]
        moved_cost, fresh_cost = (
            price(one, plan(one, ("batch", axis))) for one in (on_other_mesh, fresh)
        )
        assert moved_cost.time_s == fresh_cost.time_s
        assert moved_cost.score == fresh_cost.score
        assert moved_cost.peak_bytes == fresh_cost.peak_bytes < on_other_mesh.baseline[1]


def test_a_problem_says_what_it_is() -> None:
    problem = Problem(analysed("mlp"), {"data": 2, "model": 4}, memory_limit_bytes=2.0**30)
    assert repr(problem) == "<Problem mlp on data=2,model=4 of tpu-v5e, 1 GiB a device>"
    assert repr(problem.pin(("B", "data"))).endswith("1 GiB a device, with pins>")
    unlimited = Problem(analysed("mlp"), {"data": 2}, memory_limit_bytes=float("inf"))
    assert "no memory limit" in repr(unlimited)
