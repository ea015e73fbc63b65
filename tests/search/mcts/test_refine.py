"""Refinement gives plans that are no worse, with correct prices.

Arguments and results keep the shardings that colour actions gave them.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.helpers import analysed, from_python
from toast_lab.cost import reprice
from toast_lab.cost.problem import Problem, price
from toast_lab.pipeline import search
from toast_lab.plan_verbs import Plan
from toast_lab.search.contract import Budget, Recorder
from toast_lab.search.mcts import improvement, mcts, refine, rollout
from toast_lab.search.mcts import tree as tr
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.state import State, legal_rows

SIZES = {"layers": 2, "batch": 16, "vocab": 4096, "sequence": 1024}
BUDGET = Budget(seconds=None, evaluations=30_000)


@pytest.fixture(scope="module")
def found():
    problem = Problem(analysed("transformer", **SIZES), {"data": 8, "model": 2}, "tpu-v3")
    return problem, search(problem, seed=1, budget=BUDGET, restarts=0, actions_within=0.0)


def refined(result):
    return [
        s for s in result.trace.simulations if s.actions and s.actions[-1].startswith("refined in ")
    ]


def test_what_was_refined_is_said_and_counts(found):
    problem, result = found
    steps = refined(result)
    assert steps
    assert all(s.improved for s in steps)
    before = search(problem, seed=1, budget=BUDGET, restarts=0, refine=0)
    assert result.cost.score < before.cost.score * (1 - 1e-6)
    assert result.evaluations > before.evaluations
    assert not refined(before)


def test_the_plan_is_valid_and_its_price_is_the_full_price(found):
    problem, result = found
    last = [step for step in result.trace.simulations if step.improved][-1]
    result.plan.check()
    cost = price(problem, result.plan)
    assert cost.score == result.cost.score == pytest.approx(last.score, rel=1e-9)
    assert cost.peak_bytes == pytest.approx(last.peak_bytes, rel=1e-9)


def test_parameters_come_back_as_they_went_in(found):
    """An updated parameter has the sharding of the old one, since they share colours.

    So do the optimizer's moments.
    """
    problem, result = found
    program = problem.analysis.program
    specs, results = result.plan.argument_specs(), result.plan.result_specs()
    tied = [
        (path, out)
        for path in specs
        for out in results
        if out.endswith(path.removeprefix("params"))
    ]
    assert len(tied) > 10
    assert all(specs[path] == results[out] for path, out in tied if "params" in path)
    base = Plan.from_actions(problem, refined(result)[-1].actions[:-1])
    assert (result.plan.op_factor != base.op_factor).any()
    assert program.n_arguments == len(specs)


def test_finer_rows_keep_arguments_and_results_together_and_say_the_same_of_a_state(found):
    problem, _ = found
    fine, coarse, program = refine.make_fine(problem), problem.space.alike, problem.analysis.program
    assert len(fine.alike.ops.first) > len(coarse.ops.first)
    outside = np.concatenate([np.arange(program.n_arguments), program.outputs]).astype(int)
    pairs = {(int(coarse.values.label[v]), int(fine.alike.values.label[v])) for v in outside}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    rng = np.random.default_rng(0)
    for _ in range(5):
        state = State(problem.space)
        for _ in range(6):
            rows = legal_rows(state)
            state.apply_row(*rows[rng.integers(len(rows))].tolist())
        ops, values = refine.rows_of(fine, state)
        op_factor, value_dim = fine.alike.whole(program, ops, values)
        assert (op_factor == state.op_factor).all()
        assert (value_dim == state.value_dim).all()
        quick = problem.pricer().quick(state)
        time_s, peak_bytes, _, _ = fine.repricer.price(ops, values, None)
        assert (time_s, peak_bytes) == (
            pytest.approx(quick.time_s, rel=1e-12),
            pytest.approx(quick.peak_bytes),
        )


def test_what_loops_carry_is_left_alone():
    problem = Problem(analysed("transformer", layers=3, scan=True), {"data": 2, "model": 2})
    program, fine = problem.analysis.program, refine.make_fine(problem)
    near, alike = fine.neighbourhood, fine.alike
    n_ops = len(alike.ops.first)
    carried = np.flatnonzero(program.owner != np.arange(program.n_ops))
    assert len(carried)
    rows = set(alike.ops.label[np.concatenate([carried, program.owner[carried]])].tolist())
    values = [v for op in (*carried, *program.owner[carried]) for v in program.results(int(op))]
    rows |= {int(r) + n_ops for r in alike.values.label[values]}
    assert rows.isdisjoint(near.free.tolist())
    assert len(near.free)


def test_rows_near_each_other_share_a_definition_or_a_use():
    problem = Problem(analysed("mlp"), {"a": 2})
    alike = problem.space.alike
    near = refine.neighbourhood(problem.space, alike)
    program, n_ops = problem.analysis.program, len(alike.ops.first)
    expected = set()
    for op in range(program.n_ops):
        for value in [*program.results(op), *program.operands(op)]:
            expected.add((int(alike.ops.label[op]), int(alike.values.label[value]) + n_ops))
    rows = np.repeat(np.arange(len(near.ptr) - 1), np.diff(near.ptr))
    pairs = set(zip(rows.tolist(), near.neighbour.tolist(), strict=True))
    assert pairs == expected | {(b, a) for a, b in expected}


def test_annealing_cools_down_and_the_worst_begin_again_where_the_best_are():
    heats = [refine.warmth(share) for share in (0, 0.5, 1)]
    assert heats[0] == refine.WARMEST
    assert heats == sorted(heats, reverse=True)
    assert heats[2] == pytest.approx(refine.COLDEST)
    n = refine.CHAINS
    numbers = [np.arange(n, dtype=float).reshape(n, 1) for _ in range(7)]
    pools = [np.full((n + 2, 1), -1.0) for _ in range(2)]
    chains = refine.Chains(*numbers, *pools, np.arange(n), np.zeros(n))
    scores = 10.0 + np.arange(n)
    scores[[3, 5]], scores[[0, 1]] = (1, 2), (99, 98)
    refine.exchange(chains, scores)
    expected = [3, 5, *range(2, n - 2), 2, 4]  # a quarter: copies of the best replace the worst
    expected[n - 1], expected[n - 2] = 2, 4
    assert chains.ops[:, 0].tolist() == expected
    assert chains.origin.tolist() == expected
    chains.best_ops[:] *= 2
    chains.best_values[:] *= 3
    refine.mix(chains)
    assert chains.pool_ops[:, 0].tolist() == [*(2.0 * x for x in expected), -1, -1]
    assert chains.pool_values[:, 0].tolist() == [*(3.0 * x for x in expected), -1, -1]


def test_recolouring_gives_an_axis_to_another_name_and_to_none_where_that_is_not(found):
    problem, _ = found
    fine, space = refine.make_fine(problem), problem.space
    near, n_axes = fine.neighbourhood, len(problem.mesh.axes)
    state, longest = State(space), np.diff(space.alike.op_effects.ptr)
    for axis in range(n_axes):
        rows = [r for r in legal_rows(state).tolist() if r[1] == axis]
        state.apply_row(*max(rows, key=lambda row: int(longest[row[0]])))
    ops, values = refine.rows_of(fine, state)
    generator, recoloured, emptied = np.array([77], np.uint64), 0, 0
    for number in range(300):
        new_ops, new_values = ops.copy(), values.copy()
        changed = from_python(refine._recolour)(near, space.moves, generator, new_ops, new_values)
        rows = np.concatenate([new_ops != ops, new_values != values])
        assert changed == rows.any(axis=1).sum()
        assert rows.sum() == changed  # one axis in each row
        assert (rows.any(axis=0).sum() == 1) == (changed > 0)
        before = np.concatenate([ops, values])[rows]
        after = np.concatenate([new_ops, new_values])[rows]
        assert (before >= 0).all()
        recoloured, emptied = recoloured + int((after >= 0).sum()), emptied + int((after < 0).sum())
        if number % 10 == 0:  # checking a whole plan is slow
            arrays = fine.alike.whole(space.analysis.program, new_ops, new_values)
            ShardingPlan(space.analysis.program, problem.mesh, Sharding(*arrays)).check()
    assert recoloured > 100
    assert emptied > 100


def test_half_of_the_chains_begin_with_the_first_quarter_of_the_actions(found, monkeypatch):
    problem, _ = found
    origins = []
    real = improvement.Improvement._set_origins

    def watched(self, codes):
        origins.append(codes)
        real(self, codes)

    monkeypatch.setattr(improvement.Improvement, "_set_origins", watched)
    search(
        problem,
        budget=Budget(seconds=600),
        seed=1,
        restarts=0,
        cancel=lambda: bool(origins),
    )
    lengths = [len(codes) for codes in origins[0]]
    half = len(lengths) // 2
    assert lengths[half:] == [(n + 3) // 4 for n in lengths[:half]]
    assert max(lengths) > 4


def test_memory_is_left_out_for_what_takes_too_long_and_never_for_what_is_taken(found):
    problem, _ = found
    repricer = problem.pricer().repricer
    state = State(problem.space)
    time_s, peak_bytes, _, root = repricer.price(state.ops, state.values, None)
    _, _, _, after = repricer.price(state.ops, state.values, root)
    for enough_s, expected in (
        (np.inf, peak_bytes),
        (time_s, peak_bytes),
        (time_s * (1 - 1e-9), np.inf),
    ):
        found_s, found_bytes, _ = reprice.reprice(
            repricer.inputs,
            state.ops,
            state.values,
            enough_s,
            False,
            root,
            after,
            repricer._scratch(),
        )
        assert (found_s, found_bytes) == (time_s, expected)
    limit = problem.memory_limit_bytes
    pricing = rollout.Pricing(
        repricer.inputs,
        2.0,
        8.0 * limit,
        limit,
        10.0,
        root,
    )
    for current in (np.array([1.0, limit * 0.5]), np.array([1.0, limit * 1.5])):
        for allowance in (0.0, 0.1):
            enough_s = refine._enough_s.py_func(pricing, current, allowance)
            for proposed in (
                np.array([t, limit * m]) for t in (0.9, 1.05, 1.2, 5.0) for m in (0.9, 1.1)
            ):
                if refine._better.py_func(pricing, proposed, current, allowance):
                    assert proposed[0] <= enough_s, (current, proposed, allowance)


def test_a_refinement_that_was_interrupted_goes_on_to_the_same_end():
    # This model needs a quarter of the evaluations of a training step, with as many improvements
    problem = Problem(analysed("itx"), {"data": 8, "model": 2}, "tpu-v3")
    settings = {"seed": 1, "restarts": 0}
    partial = search(problem, budget=Budget(seconds=None, evaluations=2000), **settings)
    while not refined(partial):  # until it stops in the refinement
        partial = search(problem, resume=partial, budget=Budget(seconds=None, evaluations=300))
    to_its_end = Budget(seconds=None, evaluations=10_000_000)
    resumed = search(problem, resume=partial, budget=to_its_end)
    single_run = search(problem, budget=to_its_end, **settings)
    assert (resumed.status, resumed.evaluations) == (single_run.status, single_run.evaluations)
    assert resumed.plan.key == single_run.plan.key
    assert [s.score for s in resumed.trace.simulations] == [
        s.score for s in single_run.trace.simulations
    ]
    assert len(refined(resumed)) > len(refined(partial)) + 20


def test_every_chain_keeps_the_state_that_its_best_price_belongs_to(found):
    problem, _ = found
    recorder = Recorder(problem, Budget())
    recorder.start()
    settings = tr.SteeringSettings(
        np.uint64(0), 30, 0.3, 0.0001, 2.0, 0.7, 0.4, min_names=1, usable=np.zeros(0, np.int64)
    )
    with ThreadPoolExecutor(1) as pool:
        search_ = mcts._Search(recorder, settings, pool, threads=1, refine_steps=1)
        improvement = search_.improvement
        fine = improvement.fine
        rows = refine.rows_of(fine, State(problem.space))
        chains = refine.start([rows], [fine.repricer.price(*rows, None)[:2]], [rows], 3)
        unsharded_s = float(chains.best[0, 0])
        for _ in range(10):
            refine.anneal(
                fine.neighbourhood,
                problem.space.moves,
                improvement.fine_pricing,
                improvement.workers[0],
                chains,
                0,
                refine.CHAINS,
                16,
                0.01,
            )
    for j in range(refine.CHAINS):
        for ops, values, price_ in (
            (chains.ops[j], chains.values[j], chains.price[j]),
            (chains.best_ops[j], chains.best_values[j], chains.best[j]),
        ):
            time_s, peak_bytes, _, _ = fine.repricer.price(ops, values, None)
            assert (time_s, peak_bytes) == (
                pytest.approx(price_[0], rel=1e-9),
                pytest.approx(price_[1], rel=1e-9),
            )
        assert chains.best[j, 0] <= chains.price[j, 0]
        assert chains.best[j, 0] < unsharded_s
    assert len({chains.best_ops[j].tobytes() for j in range(refine.CHAINS)}) > 1
