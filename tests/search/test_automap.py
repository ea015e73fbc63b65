"""The rival that searches over argument shardings: its plans, and the states it tells apart."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import analysed, small_transformer, traced
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.pipeline import search
from toast_lab.search import automap
from toast_lab.search.contract import Budget, Recorder, Status

MESH = {"data": 2, "model": 2}


def recorder(problem: Problem) -> Recorder:
    return Recorder(problem, Budget())


def random_walk(moves: automap.ArgumentMoves, rng: np.random.Generator, longest: int = 6):
    state, taken = moves.propagation.unsharded(), []
    for _ in range(rng.integers(1, longest + 1)):
        legal = moves.legal(state)
        if not len(legal):
            break
        taken.append(int(rng.choice(legal)))
        assert moves.take(state, taken[-1]) > 0, "a legal action must change something"
    return state, taken


def best_of_all_sequences(problem: Problem) -> float:
    """Return the lowest score over all sequences of moves; states are whole shardings."""
    moves, evaluator = automap.argument_moves(recorder(problem)), automap.Evaluator(problem)
    frontier, seen, best = [moves.propagation.unsharded()], set(), np.inf
    while frontier:
        deeper = []
        for state in frontier:
            key = (state.op_factor.tobytes(), state.value_dim.tobytes())
            if key in seen:
                continue
            seen.add(key)
            best = min(best, evaluator.price(state).score)
            for move in moves.legal(state):
                child = state.copy()
                moves.take(child, int(move))
                deeper.append(child)
        frontier = deeper
    return float(best)


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_over_all_sequences_of_an_mlp_is_found(seed):
    problem = Problem(analysed("mlp"), MESH, "tpu-v3")
    result = search(problem, "automap", seed=seed, budget=Budget(seconds=60), min_names=1)
    assert result.status in (Status.COMPLETE, Status.CONVERGED)
    assert result.cost.score == pytest.approx(best_of_all_sequences(problem), rel=1e-12)


def test_completeness_is_claimed_only_where_all_sequences_were_told_apart():
    problem = Problem(analysed("xxt"), {"a": 2}, "tpu-v3")
    complete = search(problem, "automap", budget=Budget(seconds=60), min_names=1)
    assert complete.status is Status.COMPLETE
    cut = search(problem, "automap", budget=Budget(seconds=60), min_names=1, depth=1)
    few = search(
        Problem(analysed("mlp"), MESH), "automap", budget=Budget(seconds=60), min_names=1, depth=1
    )
    assert cut.cost.score >= complete.cost.score
    assert few.status is Status.CONVERGED


VECTOR = jax.ShapeDtypeStruct((8,), "float32")


def test_a_state_is_known_by_its_arguments_alone():
    """Five shardings of an outer product are four states, since only arguments tell states apart.

    Each vector would shard the product along its own dim; the first one sharded decides.
    """
    problem = Problem(traced(lambda x, y: x[:, None] * y[None], VECTOR, VECTOR), {"a": 2}, "tpu-v3")
    result = search(problem, "automap", budget=Budget(seconds=60), min_names=1)
    assert len(result.trace.nodes) == 4
    assert {len(s.actions) for s in result.trace.simulations} == {0, 1, 2}
    # The fifth sharding was not priced, except perhaps in a rollout, so completeness is not
    # claimed.
    assert result.status is Status.CONVERGED


def test_completeness_is_not_claimed_where_actions_were_discarded():
    problem = Problem(
        traced(lambda x, y: (jnp.tanh(jnp.tanh(x)), jnp.tanh(y)), VECTOR, VECTOR),
        {"a": 2},
        "tpu-v3",
    )
    moves = automap.argument_moves(recorder(problem), 1)
    of_y, of_x = sorted(
        moves.take(moves.propagation.unsharded(), m) for m in range(len(moves.axis))
    )
    every, few = (
        search(problem, "automap", budget=Budget(seconds=60), min_names=n) for n in (of_y, of_x)
    )
    assert (every.status, every.evaluations) == (Status.COMPLETE, 4)
    assert (few.status, few.evaluations) == (Status.CONVERGED, 2)


def test_prices_folded_and_whole_are_those_of_the_whole_program():
    rng = np.random.default_rng(0)
    for analysis in (small_transformer(mode="train", layers=3), analysed("attention")):
        problem = Problem(analysis, {"d": 2, "m": 4}, "tpu-v3")
        moves, evaluator = automap.argument_moves(recorder(problem)), automap.Evaluator(problem)
        for _ in range(25):
            state, _ = random_walk(moves, rng)
            quick, totals = evaluator.price(state), evaluator.pricer.totals(*state)
            assert quick.time_s == pytest.approx(totals.time_s, rel=1e-9)
            assert quick.peak_bytes == pytest.approx(totals.peak_bytes, rel=1e-9)
        assert evaluator.folded > 2
        assert evaluator.whole > 2


def test_actions_are_mirrored_to_the_arguments_of_repeated_layers():
    problem = Problem(small_transformer(mode="forward", layers=3), {"m": 4})
    moves = automap.argument_moves(recorder(problem))
    (move,) = [i for i, text in enumerate(moves.text) if "w_down" in text and "dim 0->m" in text]
    assert "and 2 alike" in moves.text[move]
    state = moves.propagation.unsharded()
    moves.take(state, move)
    program = problem.analysis.program
    for layer in range(3):
        value = program.value_name.index(f"params['layers'][{layer}]['w_down']")
        assert state.value_dim[value].tolist() == [0]


def test_actions_that_reach_little_are_discarded_and_counted():
    problem = Problem(analysed("mlp"), {"a": 4})
    every, few = (automap.argument_moves(recorder(problem), least) for least in (0, 6))
    assert (len(every.axis), every.discarded) == (6, 0)
    # Sharding w2's columns reaches only w2, the product and its argument; the batch and the hidden
    # dim reach more.
    assert few.discarded > 0
    assert len(few.axis) + few.discarded == 6
    for move in range(len(few.axis)):
        assert few.take(few.propagation.unsharded(), move) >= 6


def test_the_recorded_price_is_that_of_the_recorded_plan_for_every_simulation():
    problem = Problem(small_transformer(mode="train"), MESH, "tpu-v3")
    seen = recorder(problem)
    record, pricer = seen.record_plan, problem.pricer()

    def checked(op_factor, value_dim, labels, nodes=(), quick=None):
        totals = pricer.totals(op_factor, value_dim)
        assert quick.time_s == pytest.approx(totals.time_s, rel=1e-9)
        return record(op_factor, value_dim, labels, nodes, quick)

    seen.record_plan = checked
    seen.add_node(-1, "", 0, 0)
    moves = automap.argument_moves(seen)
    tree = automap._AutomapTree(seen, moves, np.random.default_rng(0), 30, 0.3, 0.002)
    for _ in range(120):
        tree.simulate()
    assert seen.trace.row.n > 200
    by_text = {text: i for i, text in enumerate(moves.text)}
    for simulation in list(seen.trace.simulations)[::20]:
        state = moves.propagation.unsharded()
        for text in simulation.actions:
            moves.take(state, by_text[text])
        assert pricer.totals(*state).time_s == pytest.approx(simulation.time_s, rel=1e-9)


def test_states_that_left_the_cache_are_made_again(monkeypatch):
    problem = Problem(small_transformer(mode="forward"), MESH, "tpu-v3")
    budget = Budget(seconds=None, evaluations=300)
    kept = search(problem, "automap", seed=1, budget=budget)
    monkeypatch.setattr(automap, "CACHE_BYTES", 0)
    again = search(problem, "automap", seed=1, budget=budget)
    assert [s.score for s in again.trace.simulations] == [s.score for s in kept.trace.simulations]


def test_it_does_not_settle_the_conflict_of_attention():
    """Its best plan for long-sequence attention without a batch is worse than ours.

    Colour actions can settle the conflict by a resolution.
    """
    problem = Problem(
        analysed("attention", sequence=4096, d_model=64, key=16, value=16), {"m": 4}, "tpu-v3"
    )
    budget = Budget(seconds=60)
    ours = search(problem, "mcts", budget=budget)
    rival = search(problem, "automap", budget=budget, min_names=1)
    assert ours.cost.score < 0.9 * rival.cost.score


@pytest.mark.parametrize("option", ["trajectories", "patience", "depth"])
def test_bad_options_are_refused(option):
    with pytest.raises(InvalidProblem, match=f"automap: {option}=0 must be at least 1"):
        search(Problem(analysed("mlp"), MESH), "automap", **{option: 0})
