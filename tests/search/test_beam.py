"""Beam search finds proven optima from every seed.

It keeps one node for each state, and refines the sequences that it is given.
"""

import numpy as np
import pytest

from tests.helpers import analysed, small_transformer
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.pipeline import search
from toast_lab.search.beam import BeamSearch
from toast_lab.search.contract import Budget, Recorder, Status
from toast_lab.sharding.state import legal_rows

MESH = {"data": 2, "model": 2}


@pytest.mark.parametrize("case", ["mlp", "attention", "transformer"])
def test_finds_the_optimum_from_twenty_seeds(case):
    sizes = {"layers": 1, "mode": "forward", "batch": 2} if case == "transformer" else {}
    problem = Problem(analysed(case, **sizes), MESH)
    best = search(problem, "exhaustive", budget=Budget(seconds=60))
    assert best.status is Status.COMPLETE
    for seed in range(20):
        result = search(problem, "beam", seed=seed, budget=Budget(None, 5000))
        assert result.cost.score == pytest.approx(best.cost.score, rel=1e-12)


def beam_on(problem, seed=0, depth=30):
    recorder = Recorder(problem, Budget(None, 10_000))
    recorder.start()
    return BeamSearch(recorder, np.random.default_rng(seed), depth, 0)


def test_a_refined_sequence_cannot_be_improved_by_any_one_change():
    beam = beam_on(Problem(small_transformer(mode="train"), MESH))
    start = tuple(beam.choices[:3])
    refined = beam.refine(start)
    assert beam.rank(refined) < beam.rank(start)
    moves = [refined[:i] + refined[i + 1 :] for i in range(len(refined))]
    moves += [
        (*refined[:i], c, *refined[i + j :])
        for i in range(len(refined) + 1)
        for c in beam.choices
        for j in (0, 1)
    ]
    assert min(map(beam.rank, moves)) >= beam.rank(refined)


def test_changes_are_removals_swaps_replacements_and_insertions():
    beam = beam_on(Problem(analysed("attention"), MESH))
    rows = tuple(beam.choices[:3])
    n, c = 3, len(beam.choices)
    changes = list(beam._changes(rows))
    assert len(changes) == n + n * (n - 1) // 2 + n * c + (n + 1) * c
    assert {(rows[1], rows[0], rows[2]), (rows[2], rows[1], rows[0]), rows[1:]} <= set(changes)
    assert all(
        len(x) <= n for x in beam_on(Problem(analysed("attention"), MESH), depth=3)._changes(rows)
    )


def test_the_beam_goes_through_a_worse_state_to_a_better_one():
    """Even with width 1, which is greedy, it goes on where no single action helps."""
    beam = beam_on(Problem(small_transformer(mode="train"), MESH))
    reached = beam.descend(1)
    assert [beam.rank(rows) for rows in reached] == sorted(beam.rank(rows) for rows in reached)
    lengths = {n.depth for n in beam.recorder.trace.nodes}
    assert max(lengths) > len(reached[0])


def test_the_beam_keeps_the_best_of_each_length():
    """It keeps the states of a plain beam search: extend every kept state, keep the best."""
    problem = Problem(analysed("attention"), MESH)
    for width in (1, 3):
        beam = beam_on(problem)
        level, priced = [()], {beam.root.key}
        for length in range(1, 4):
            longer = {}
            for rows in level:
                for row in legal_rows(beam.state_after(rows)[0]).tolist():
                    state, taken = beam.state_after((*rows, tuple(row)))
                    if state.key not in priced:
                        priced.add(state.key)
                        longer[taken] = beam.rank(taken)
            level = sorted(longer, key=lambda rows: (longer[rows], rows))[:width]
            assert len(level) == width
            tried = beam_on(problem, depth=length)
            tried.descend(width)
            assert {n.key for n in tried.recorder.trace.nodes} == priced


def test_stops_by_itself_where_restarts_bring_nothing():
    problem = Problem(analysed("attention"), MESH)
    result = search(problem, "beam", patience=3, budget=Budget(seconds=60))
    assert result.status is Status.CONVERGED
    longer = search(problem, "beam", patience=30, budget=Budget(seconds=60))
    assert longer.evaluations > result.evaluations


def test_nodes_are_distinct_states_also_after_going_on():
    problem = Problem(analysed("attention"), MESH)
    first = search(problem, "beam", budget=Budget(None, 200))
    resumed = search(problem, resume=first, budget=Budget(None, 400))
    keys = [n.key for n in resumed.trace.nodes]
    assert len(set(keys)) == len(keys) > len(first.trace.nodes)
    assert resumed.cost.score <= first.cost.score


def test_bad_options_are_refused():
    with pytest.raises(
        InvalidProblem, match=r"width=0 must be at least 1; patience=0 must be at least 1"
    ):
        search(Problem(analysed("mlp"), MESH), "beam", width=0, patience=0)
