"""The integer programs that mcts solves from the best plan of each start."""

import time

import numpy as np
import pytest

from tests.helpers import analysed, small_transformer
from toast_lab.cost.problem import Problem, price
from toast_lab.pipeline import search
from toast_lab.search.contract import Budget, Recorder, Status
from toast_lab.search.integer_program import background_solver, solver
from toast_lab.search.mcts import improvement, polish

MESH = {"data": 4, "model": 2}
HANG = "time:sleep"
BUDGET = Budget(seconds=None, evaluations=20_000)


@pytest.fixture(scope="module")
def problem():
    return Problem(small_transformer(layers=2, batch=16, mode="forward"), MESH, "tpu-v3")


def labels(result):
    return [s.actions[-1] for s in result.trace.simulations if s.actions]


def solved(result):
    return [text for text in labels(result) if text.startswith(("colours: ", "roles: "))]


def recorder_at_root(problem, budget=BUDGET):
    recorder = Recorder(problem, budget)
    recorder.start()
    return recorder


def test_solving_from_the_unsharded_plan_is_better_and_priced_as_a_plan(problem):
    recorder = recorder_at_root(problem, Budget(seconds=60))
    start = recorder.incumbent.plan()
    arrays = polish.Polish(recorder).improve((start.op_factor, start.value_dim), recorder.best_rank)
    plan = recorder.incumbent.plan()
    assert (plan.op_factor == arrays[0]).all()
    assert (plan.value_dim == arrays[1]).all()
    plan.check()
    assert price(problem, plan).score == pytest.approx(recorder.best.score, rel=1e-12)
    assert recorder.best.score < 0.9 * price(problem, start).score


def test_a_plan_that_is_better_than_all_that_is_solved_is_kept(problem):
    best = search(problem, seed=0, budget=BUDGET, solve=False).plan
    recorder = recorder_at_root(problem)
    rank = (0.0, price(problem, best).score * 0.5, 0)  # pretend that it is much better
    arrays = polish.Polish(recorder).improve((best.op_factor, best.value_dim), rank)
    assert arrays[0] is best.op_factor
    assert arrays[1] is best.value_dim


def test_the_whole_program_is_solved_for_all_axes_and_then_with_parts_of_a_layer_apart(
    problem, monkeypatch
):
    monkeypatch.setattr(polish, "MAX_LOCAL_COLUMNS", 10**9)  # nothing is solved in a child process
    recorder = recorder_at_root(problem, Budget(seconds=60))
    start = recorder.incumbent.plan()
    arrays = polish.Polish(recorder).solve_whole(
        (start.op_factor, start.value_dim), recorder.best_rank
    )
    rows = [recorder.trace.simulation(number) for number in range(recorder.trace.row.n)]
    texts = [row.actions[-1] for row in rows if row.actions]
    free = [text for text in texts if " free" in text]
    assert free
    assert {text.partition(":")[0] for text in free} == {"colours", "roles"}
    assert all(": all axes free, " in text for text in free)
    assert (recorder.incumbent.plan().op_factor == arrays[0]).all()
    assert recorder.best.score < 0.9 * price(problem, start).score


def test_the_finer_grain_waits_for_what_the_coarser_one_finds(problem, monkeypatch):
    monkeypatch.setattr(polish, "MAX_LOCAL_COLUMNS", 10**9)
    recorder = recorder_at_root(problem, Budget(seconds=60))
    start = recorder.incumbent.plan()
    arrays = start.op_factor, start.value_dim
    much_better = (0.0, price(problem, start).score * 0.01, 0)
    solving = polish.Polish(recorder)
    assert solving.solve_whole(arrays, much_better) is arrays
    rows = [recorder.trace.simulation(number) for number in range(recorder.trace.row.n)]
    assert {row.actions[-1].partition(":")[0] for row in rows if row.actions} == {"colours"}


def test_a_grain_of_which_the_optimum_is_known_is_not_solved_again(problem, monkeypatch):
    recorder = recorder_at_root(problem, Budget(seconds=60))
    start = recorder.incumbent.plan()
    arrays = start.op_factor, start.value_dim
    solving = polish.Polish(recorder)
    solving.solve_whole(arrays, recorder.best_rank)
    known = [own for own in solving.solvers.values() if own.optimum is not None]
    assert known
    monkeypatch.setattr(solver.Solver, "solve_axes", lambda *_, **__: pytest.fail("it was solved"))
    monkeypatch.setattr(polish, "_GRAINS", [own.grain for own in known])
    rank = recorder.best_rank
    improved = solving.improve(arrays, (*rank[:1], np.inf, 0))
    assert price(problem, start).score > rank[1]
    assert (improved[0] == recorder.incumbent.plan().op_factor).all()


def test_axes_have_all_the_time_that_all_of_them_at_once_would_not_end_in(problem, monkeypatch):
    recorder = recorder_at_root(problem, Budget(seconds=60))
    start = recorder.incumbent.plan()
    shares, wholes = [], []
    monkeypatch.setattr(solver.Solver, "solve_axes", lambda _, share: shares.append(share))
    monkeypatch.setattr(solver.Solver, "solve_whole", lambda own: wholes.append(own.grain))
    for rate, share in ((0.0, 0.5), (1e9, 1.0)):
        solving = polish.Polish(recorder)
        solving.rate = rate
        solving.improve((start.op_factor, start.value_dim), recorder.best_rank)
        assert shares == [share, share]
        shares.clear()
    assert wholes == ["colours", "roles"]


def test_mcts_solves_the_whole_program_once_before_it_refines(problem):
    small = Problem(problem.analysis, {"data": 4}, problem.machine)  # few enough columns
    texts = labels(search(small, seed=3, budget=BUDGET))
    begins = [i for i, text in enumerate(texts) if text.endswith(": by an integer program")]
    assert begins
    refined = [i for i, text in enumerate(texts) if text.startswith("refined in ")]
    assert begins[-1] < (refined or [len(texts)])[0]
    assert len(begins) <= len(polish.WHOLE_PROGRAM_SHARES)


def test_mcts_solves_once_a_start_and_never_ends_worse(problem):
    result = search(problem, seed=3, budget=BUDGET)
    assert any("by an integer program from this start" in text for text in solved(result))
    assert any(" free, " in text for text in solved(result))
    without = search(problem, seed=3, budget=BUDGET, solve=False)
    assert not solved(without)
    assert not solved(search(problem, seed=3, budget=BUDGET, refine=0))
    # The first start is the same until its integer programs begin
    texts, solved_texts = labels(result), set(solved(result))
    first = next(i for i, text in enumerate(texts) if text in solved_texts)
    assert texts[:first] == labels(without)[:first]
    assert result.refined.cost.score <= result.trace.simulations[first - 1].best_score * (1 + 1e-9)


def test_a_budget_of_evaluations_bounds_the_programs_that_are_solved(problem, monkeypatch):
    columns, real = [], solver.ip.solve

    def watched(program, *limits):
        columns.append((len(program.cost), limits[-1]))
        return real(program, *limits)

    monkeypatch.setattr(solver.ip, "solve", watched)
    monkeypatch.setattr(solver, "MAX_LOCAL_COLUMNS", 10**9)
    search(problem, seed=3, budget=BUDGET)
    assert columns
    most = max(polish._COUNTED, polish._COUNTED_EACH * BUDGET.evaluations)
    assert max(n for n, _ in columns) <= most
    assert {nodes for _, nodes in columns} == {solver.NODES}


def test_cancelled_within_a_program_it_keeps_what_it_has_and_goes_on(problem, monkeypatch):
    now = {"solving": False}
    real = polish.Polish.improve

    def improve(self, arrays, rank):
        now["solving"] = True
        return real(self, arrays, rank)

    monkeypatch.setattr(polish.Polish, "improve", improve)
    partial = search(problem, seed=3, budget=Budget(seconds=60), cancel=lambda: now["solving"])
    assert partial.status is Status.CANCELLED
    monkeypatch.setattr(polish.Polish, "improve", real)
    resumed = search(problem, resume=partial, budget=BUDGET)
    assert resumed.cost.score <= partial.cost.score
    assert any(" free, " in text for text in solved(resumed))


def test_a_solver_that_dies_does_not_end_the_search(problem, monkeypatch):
    monkeypatch.setattr(solver, "MAX_LOCAL_COLUMNS", 0)
    monkeypatch.setattr(solver, "SOLVE_FUNCTION", "os:abort")
    result = search(problem, seed=3, budget=BUDGET)
    assert result.status is not Status.CRASHED
    assert not any(" free, " in text for text in solved(result))
    without = search(problem, seed=3, budget=BUDGET, solve=False)
    assert result.refined.cost.score <= without.refined.cost.score * (1 + 1e-3)


def test_prices_that_take_too_long_are_given_up(problem, monkeypatch):
    calls = []

    def slow(problem, grain, most, check):
        calls.append(grain)
        while True:
            time.sleep(0.01)
            check()

    monkeypatch.setattr(polish, "price_choices", slow)
    result = search(problem, seed=3, budget=Budget(seconds=6))
    assert sorted(calls) == ["colours", "roles"]  # once each, not at every start
    assert not solved(result)
    assert result.elapsed_s < 7


def test_programs_with_nothing_to_choose_are_left_alone():
    problem = Problem(analysed("mlp"), {"a": 3})
    recorder = recorder_at_root(problem)
    arrays = recorder.incumbent.plan().op_factor, recorder.incumbent.plan().value_dim
    assert polish.Polish(recorder).improve(arrays, recorder.best_rank) is arrays
    assert recorder.trace.row.n == 1


def test_the_same_seed_gives_the_same_result_with_any_number_of_threads(problem):
    one, two = (search(problem, seed=5, budget=BUDGET, threads=n) for n in (1, 2))
    assert solved(one) == solved(two)
    assert (one.plan.op_factor == two.plan.op_factor).all()
    assert np.array_equal(one.trace.row["score"], two.trace.row["score"])


@pytest.fixture
def beside(monkeypatch):
    """Solve even small programs in a child process, beside the search."""
    monkeypatch.setattr(polish, "MAX_LOCAL_COLUMNS", 0)


def by_grain(result, grain):
    return [
        (simulation.elapsed_s, simulation.actions[-1])
        for simulation in result.trace.simulations
        if simulation.actions and simulation.actions[-1].startswith(f"{grain}: ")
    ]


def test_what_is_solved_beside_the_search_is_recorded_while_it_goes_on(problem, beside):
    result = search(problem, seed=3, budget=Budget(seconds=60))
    texts = labels(result)
    begin = texts.index("roles: by an integer program beside")
    all_axes = next(i for i, text in enumerate(texts) if text.startswith("roles: all axes free, "))
    between = texts[begin:all_axes]
    assert any(" free, " in text for text in between if text.startswith("roles: "))  # axis by axis
    assert any(not text.startswith(("roles: ", "colours: ")) for text in between)
    alone = search(problem, method="alpa", budget=Budget(seconds=60))
    assert result.refined.cost.score <= alone.refined.cost.score * (1 + 1e-9)


class Ready:
    """Replaces the programs beside the search; its plan arrives when ``arrives()`` is true."""

    def __init__(self, solver, plan, arrives):
        self.solver, self.plan, self.arrives = solver, plan, arrives
        self.under_way, self.is_on_axes, self.is_interrupted = True, True, False

    def look(self):
        if self.arrives():
            choice = self.solver.choices.choice_of(self.plan.op_factor, self.plan.value_dim)
            self.solver.price_choice(choice, "roles: arrived")
            self.under_way = False

    def stop(self):
        self.under_way = False


@pytest.mark.sampled(1)
@pytest.mark.parametrize("refining", [True, False])
def test_refinement_goes_on_from_a_plan_that_arrives(beside, monkeypatch, refining):
    problem = Problem(small_transformer(mode="train"), MESH, "tpu-v3")
    known = search(problem, method="alpa", budget=Budget(seconds=60))
    running, taken, begun_after_arrival = [], [], []
    begin, take_in = improvement.Improvement.begin, improvement.refine.take_in

    def began(self, elites, start):
        running[:] = [self]
        arrived = self.arrived
        begin(self, elites, start)
        if any("arrived" in text for text in labels(self.recorder)):
            begun_after_arrival.append(arrived)

    def watched(chains, rows, price, scores):
        take_in(chains, rows, price, scores)
        worst = np.argsort(scores, kind="stable")[-(improvement.refine.CHAINS // 4) :]
        assert (chains.ops[worst] == rows[0]).all()
        assert (chains.best_values[worst] == rows[1]).all()
        assert (chains.best[worst] == price).all()
        taken.append(price)

    def arrives():
        return bool(running) and (running[0].chains is not None) == refining

    monkeypatch.setattr(improvement.Improvement, "begin", began)
    monkeypatch.setattr(improvement.refine, "take_in", watched)
    monkeypatch.setattr(
        polish, "BackgroundSolver", lambda solver: Ready(solver, known.plan, arrives)
    )
    monkeypatch.setattr(
        polish.Polish, "_solve_grain", lambda _, grain, arrays, rank: (arrays, rank, False)
    )
    monkeypatch.setattr(polish.Polish, "improve", lambda _, arrays, rank: arrays)
    result = search(
        problem, seed=3, budget=Budget(seconds=60), refine=10, trajectories=64, patience=1
    )
    assert result.refined.cost.score <= known.cost.score
    assert len(taken) == refining
    if not refining:
        rows = known.plan.op_factor[running[0].fine.alike.ops.first]
        assert (begun_after_arrival[0][0] == rows).all()


def test_a_search_that_ends_leaves_no_child_and_one_that_is_resumed_begins_it_again(
    problem, beside, monkeypatch
):
    children = []

    class Watched(background_solver.ChildWorker):
        def __init__(self, *args, **kwargs):
            super().__init__(HANG, 60.0, activity=kwargs["activity"])
            children.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(background_solver, "ChildWorker", Watched)
        partial = search(problem, seed=3, budget=Budget(seconds=60), cancel=lambda: bool(children))
    assert partial.status is Status.CANCELLED
    assert len(children) == 1
    assert children[0].process.poll() is not None
    assert not any(" free, " in text for _, text in by_grain(partial, "roles"))
    resumed = search(problem, resume=partial, budget=Budget(seconds=60))
    begun = labels(resumed)[len(labels(partial)) :]
    assert begun[0] == "roles: by an integer program beside"
    assert any(" free, " in text for _, text in by_grain(resumed, "roles"))
    assert resumed.cost.score <= partial.cost.score
    # Answers from beside the search come at the same steps in a replay.
    monkeypatch.setattr(background_solver, "ChildWorker", None)
    again = search(problem, resume=resumed, budget=Budget(seconds=0))
    assert labels(again) == labels(resumed)


def test_a_child_beside_that_dies_is_not_tried_again(problem, beside, monkeypatch):
    children = []

    class Watched(background_solver.ChildWorker):
        def __init__(self, _, *args, **kwargs):
            super().__init__("os:abort", activity=kwargs["activity"])
            children.append(self)

    monkeypatch.setattr(background_solver, "ChildWorker", Watched)
    result = search(problem, seed=3, budget=Budget(seconds=60))
    assert result.status is Status.CONVERGED
    assert len(children) == 1
    assert any("by an integer program from this start" in text for text in solved(result))


def test_where_evaluations_are_counted_nothing_is_solved_beside(problem, beside):
    small = Problem(problem.analysis, {"data": 4}, problem.machine)  # few enough columns
    for budget, is_beside in ((BUDGET, False), (Budget(seconds=60), True)):
        texts = labels(search(small, seed=3, budget=budget))
        assert any(text.startswith("colours: all axes free, ") for text in texts)
        assert ("roles: by an integer program beside" in texts) == is_beside
