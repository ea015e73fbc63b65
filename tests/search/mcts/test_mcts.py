"""The parallel search does not depend on threads, resumes bit for bit, and prices exactly."""

import numpy as np
import pytest

from tests.helpers import analysed
from tests.search.retrace import replay
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.pipeline import search
from toast_lab.search.contract import Budget, Status
from toast_lab.search.mcts import mcts, rollout
from toast_lab.search.mcts import tree as tr
from toast_lab.sharding.state import State, legal_actions, legal_rows

SIZES = {"layers": 1, "batch": 2}


@pytest.fixture(scope="module")
def problem():
    return Problem(analysed("transformer", **SIZES), {"data": 4, "model": 2})


def evaluations(n):
    return Budget(seconds=None, evaluations=n)


@pytest.fixture
def made(monkeypatch):
    """The inner states of all searches of a test, in order."""
    searches = []
    real = mcts._Search.__init__

    def init(self, *args, **settings):
        searches.append(self)
        real(self, *args, **settings)

    monkeypatch.setattr(mcts._Search, "__init__", init)
    return searches


def told(trace):
    return [s._replace(elapsed_s=0.0) for s in trace.simulations]


def test_what_is_found_does_not_depend_on_the_number_of_threads(problem, monkeypatch):
    from toast_lab.search.mcts import mcts

    monkeypatch.setattr(mcts, "WORTH_SHARING_S", 0.0)  # share out even quick work
    one, three = (search(problem, seed=7, budget=evaluations(2000), threads=n) for n in (1, 3))
    assert told(one.trace) == told(three.trace)
    assert list(one.trace.nodes) == list(three.trace.nodes)
    other = search(problem, seed=8, budget=evaluations(2000))
    assert told(one.trace) != told(other.trace)


def test_two_mesh_axes_change_places_in_all_actions_or_in_two():
    n_axes = 3
    codes = [move * n_axes + axis for move in range(5) for axis in range(n_axes)]
    codes.remove(4 * n_axes + 2)
    settings = tr.SteeringSettings(
        seed=np.uint64(0),
        depth=8,
        exploration=1.0,
        length_penalty=0.0,
        prior_visits=1.0,
        vary=1.0,
        boldness=0.0,
        min_names=1,
        usable=np.asarray(codes),
    )
    before = np.asarray([move * n_axes + move % 2 for move in range(5)])
    swapped = {
        (a, b): [
            code - axis + {a: b, b: a}.get(axis, axis)
            for code, axis in zip(before.tolist(), (before % n_axes).tolist(), strict=True)
        ]
        for a, b in ((0, 1), (0, 2), (1, 2))
    }
    # The last move cannot use axis 2, and stays on axis 0.
    swapped[0, 2][4] = before[4]
    exchanges = set()
    for seed in range(1, 400):
        wanted, generator = before.copy(), np.asarray([seed * 2**40 + 1], np.uint64)
        rollout.exchange_axes(settings, generator, wanted, len(wanted), n_axes)
        assert set(wanted.tolist()) <= set(codes)
        places = np.flatnonzero(wanted != before)
        if len(places) == 2 and sorted(before[places] % n_axes) == sorted(wanted[places] % n_axes):
            exchanges.add("two")
        elif len(places):
            exchanges |= {pair for pair, codes_of in swapped.items() if wanted.tolist() == codes_of}
            assert wanted.tolist() in swapped.values()
    assert exchanges == {"two", *swapped}


def test_a_search_that_was_interrupted_goes_on_to_the_same_end(problem, tmp_path):
    uninterrupted = search(problem, seed=3, budget=evaluations(4000))
    partial = search(problem, seed=3, budget=evaluations(1500))
    partial.save(tmp_path / "search.json")
    resumed = search(
        problem,
        resume=tmp_path / "search.json",
        budget=evaluations(4000 - partial.evaluations),
    )
    assert (resumed.status, resumed.evaluations) == (
        uninterrupted.status,
        uninterrupted.evaluations,
    )
    assert told(resumed.trace) == told(uninterrupted.trace)
    assert list(resumed.trace.nodes) == list(uninterrupted.trace.nodes)
    assert resumed.plan.key == uninterrupted.plan.key


def test_a_search_of_another_problem_is_not_resumed(problem):
    first = search(problem, budget=evaluations(100))
    other = Problem(analysed("transformer", **SIZES), {"data": 2, "model": 2})
    with pytest.raises(InvalidProblem, match=r"mesh 'data=4,model=2', not 'data=2,model=2'"):
        search(other, resume=first)
    with pytest.raises(InvalidProblem, match=r"method 'mcts', not 'exhaustive'"):
        search(problem, "exhaustive", resume=first)


def test_every_simulation_replays_to_the_price_that_it_says(problem):
    result = search(problem, seed=1, budget=evaluations(3000), refine=0)
    replayed = list(replay(problem, result.trace))
    assert len(replayed) == len(result.trace.simulations)
    for simulation, _, quick in replayed:
        assert (simulation.time_s, simulation.peak_bytes) == (quick.time_s, quick.peak_bytes)
        assert simulation.score == pytest.approx(quick.score, rel=1e-12)
        assert simulation.fits == quick.fits
    ends = {r.state.key for r in replayed}
    assert abs(len(ends) - result.evaluations) <= 1


def test_replay_refuses_a_trace_of_another_program(problem):
    trace = search(
        Problem(analysed("transformer", layers=1), {"data": 4, "model": 2}), budget=evaluations(300)
    ).trace
    with pytest.raises(InvalidPlan, match="made for another problem"):
        list(replay(problem, trace))


def test_nodes_hold_what_went_through_them(problem, made):
    trace = search(problem, seed=2, budget=evaluations(2000)).trace
    nodes = trace.nodes
    priced = {r.state.key: r.quick.score for r in replay(problem, trace)}
    for node in nodes[1:]:
        assert node.score == pytest.approx(priced[node.key], rel=1e-12)
        assert node.visits >= 1
        assert node.best_score <= node.score
        assert node.best_score >= nodes[0].best_score
    through = np.zeros(len(nodes), int)
    for simulation in trace.simulations:
        for n in simulation.nodes:
            through[n] += 1
    assert (through >= np.array([0, *(n.visits > 0 for n in nodes[1:])])).all()
    assert not made[0].tree["under_way"].any()  # no virtual visit is left


def test_nothing_outside_the_pruned_actions_is_taken(problem):
    least = int(np.median(problem.space.n_names)) + 1
    allowed = {problem.space.text(a) for a in legal_actions(State(problem.space), least)}
    result = search(problem, budget=evaluations(500), min_names=least)
    taken = {a for s in result.trace.simulations for a in s.actions}
    assert taken
    assert taken <= allowed
    assert len(allowed) < len(legal_rows(State(problem.space)))


def test_a_small_space_is_searched_to_its_end():
    problem = Problem(analysed("xxt"), {"a": 2, "b": 2})
    result = search(problem, restarts=1000)
    assert result.status is Status.COMPLETE
    exhausted = search(problem, "exhaustive", bounded=False)
    assert result.evaluations == exhausted.evaluations


def test_depth_is_kept(problem):
    result = search(problem, depth=2, refine=0, budget=evaluations(400))
    assert max(len(s.actions) for s in result.trace.simulations) == 2


def test_a_search_that_starts_anew_leaves_a_place_that_a_single_start_does_not(made):
    """More starts are never worse with the same seed, are really made, and help for some seed.

    With so few trajectories a round, a single start soon stops improving.
    """
    problem = Problem(analysed("transformer", **SIZES), {"a": 2, "b": 2, "c": 2})
    settings = {"trajectories": 8, "refine": 0, "budget": evaluations(50_000)}
    pairs = [
        [search(problem, seed=seed, restarts=n, **settings) for n in (0, 6)] for seed in range(4)
    ]
    for few, many in pairs:
        assert many.cost.score <= few.cost.score
        assert many.evaluations > few.evaluations
    assert all(int(search.tree["number"][tr.START]) >= 6 for search in made[1::2])
    assert any(many.cost.score < few.cost.score * (1 - 1e-6) for few, many in pairs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0, "depth": 0}, r"depth=0 must be at least 1; threads=0 must be at least 1"),
        (
            {"vary": 1.5, "boldness": -1},
            r"vary=1.5 must be from 0 to 1; boldness=-1 must be from 0 to 1",
        ),
        ({"exploration": float("nan")}, r"option exploration must be a finite number, got nan"),
        ({"prior_visits": 0}, "prior_visits=0 must be above 0"),
    ],
)
def test_impossible_settings_are_all_named(problem, options, message):
    with pytest.raises(InvalidProblem, match=message):
        search(problem, **options)
