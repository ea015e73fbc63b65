"""The scores that users are shown are those by which the search chooses."""

import numpy as np
import pytest

from tests.helpers import analysed, from_python
from toast_lab.cost.problem import Problem
from toast_lab.pipeline import search
from toast_lab.search.confidence import WARMTHS, Steering, priors, rewards, upper_bounds
from toast_lab.search.contract import Budget, Recorder
from toast_lab.search.mcts import mcts, selection, tree
from toast_lab.search.methods import Mcts


@pytest.fixture(scope="module")
def problem():
    return Problem(analysed("attention"), {"data": 4, "model": 2})


def test_the_highest_score_is_what_the_kernel_walks(problem):
    """In a real search's tree, the kernel takes the action of the highest shown score."""
    recorder = Recorder(problem, Budget(seconds=None, evaluations=10_000))
    recorder.start()
    captured = {}
    original = mcts._Search.end_round

    def end_round(self, patience):
        captured["search"] = self
        raise KeyboardInterrupt

    mcts._Search.end_round = end_round
    try:
        with pytest.raises(KeyboardInterrupt):
            Mcts(threads=1).run(recorder, 3)
    finally:
        mcts._Search.end_round = original
    t = captured["search"]._tree()
    settings = captured["search"].settings
    steering = Steering(settings.exploration, settings.length_penalty, settings.prior_visits)
    with np.errstate(invalid="ignore"):
        prior = priors(t.seen[:, 1] / t.seen[:, 0])
    highest = from_python(tree.level)(t)
    compared = 0
    choose = from_python(selection._choose)
    for node in np.flatnonzero(t.choices[: t.number[tree.NODES]] > 1)[:40].tolist():
        span = slice(t.choice[node], t.choice[node] + t.choices[node])
        open_ = ~np.array([c >= 0 and t.closed[c] for c in t.child[span].tolist()])
        for warmth in WARMTHS:
            n = t.tried[span]
            with np.errstate(invalid="ignore"):
                mean = t.total[span] / n
            scores = upper_bounds(
                n, mean, t.best[span], prior[t.action[span]], t.elite_reward[0], steering, (warmth,)
            )
            chosen = choose(t, settings, node, warmth, highest)
            if chosen >= 0:
                compared += 1
                best = np.where(open_, scores, -np.inf)
                assert best[chosen - span.start] == pytest.approx(best.max(), rel=1e-12)
    assert compared > 20


def test_rewards_are_those_of_the_search(problem):
    trace = search(problem, seed=0, budget=Budget(seconds=None, evaluations=200), refine=0).trace
    shown_rewards = rewards(trace, trace.row.n, Steering().length_penalty)
    for i in (0, 7, trace.row.n - 1):
        s = trace.simulation(i)
        assert shown_rewards[i] == pytest.approx(
            -np.log(s.score) - 0.0001 * len(s.actions) - (0 if s.fits else 0.5)
        )


def test_what_is_not_known_counts_fully():
    assert priors(np.array([np.nan, -1.0, 0.0])).tolist() == [1.0, np.exp(-1.0), 1.0]
    assert priors(np.array([np.nan])).tolist() == [1.0]
