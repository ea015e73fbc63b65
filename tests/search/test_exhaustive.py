"""The lower bound holds for every completion.

Branch and bound proves the optimum that pricing every state finds.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import analysed, small_transformer, traced
from toast_lab.cost.price_list import COMPILED, PriceEntry, PriceList
from toast_lab.cost.problem import Problem
from toast_lab.pipeline import search
from toast_lab.search.contract import Budget, Status
from toast_lab.search.gap import relaxation
from toast_lab.search.gap.state_bound import StateBound
from toast_lab.search.pruning import pruning_threshold
from toast_lab.sharding.state import State, legal_rows

LOOPED = (
    jax.ShapeDtypeStruct((8, 16, 16, 8), "float32"),
    jax.ShapeDtypeStruct((3, 3, 8, 8), "float32"),
    jax.ShapeDtypeStruct((3, 8, 8), "float32"),
)


def looped(image, kernel, weights):
    image = jax.lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )

    def layer(carry, weight):
        carry = jnp.tanh(carry @ weight) + carry
        return carry, carry.sum(axis=(1, 2))

    return jax.lax.scan(layer, image, weights)


# Loops, convolutions, gathers and scatters, updates in place, shared copies, narrow types, three
# axes, odd sizes.
CASES = {
    "mlp": (lambda: analysed("mlp"), "4x2", "tpu-v5e"),
    "x times x transposed": (lambda: analysed("xxt"), "2x2", "cpu"),
    "attention": (lambda: analysed("attention"), "4x4", "a100"),
    "forward, batch 2": (lambda: small_transformer(mode="forward", batch=2), "4x2", "tpu-v3"),
    "training": (lambda: small_transformer(mode="train"), "2x2", "tpu-v5e"),
    "training, two layers": (lambda: small_transformer(mode="train", layers=2), "4x2", "h100"),
    "training, three axes": (lambda: small_transformer(mode="train", batch=6), "2x3x2", "tpu-v3"),
    "graph network": (
        lambda: analysed(
            "gns", steps=1, nodes=64, edges=256, latent=32, hidden=64, hidden_layers=2
        ),
        "4x2",
        "tpu-v3",
    ),
    "decoding": (
        lambda: analysed(
            "itx",
            layers=2,
            d_model=64,
            hidden=128,
            heads=4,
            key_size=16,
            vocab=256,
            batch=8,
            sequence=32,
        ),
        "2x2",
        "tpu-v5e",
    ),
    "loop and convolution": (lambda: traced(looped, *LOOPED), "4x2", "tpu-v5e"),
}


@functools.cache
def made(case):
    make, mesh, machine = CASES[case]
    return Problem(make(), mesh, machine)


def walk(problem, rng, least=0):
    """States on a random path from the unsharded program to one where no action is left."""
    states = [State(problem.space)]
    while len(rows := legal_rows(states[-1], least)):
        states.append(states[-1].copy())
        move, axis = rows[rng.integers(len(rows))].tolist()
        states[-1].apply_row(move, axis)
    return states


def bounds_of(bound, states, **cutoff):
    """(scores, peaks) of states."""
    ops, values = (np.stack([getattr(s, name) for s in states]) for name in ("ops", "values"))
    return bound.of(ops, values, **cutoff)


@pytest.mark.parametrize("case", CASES)
def test_no_completion_is_below_the_bound(case):
    problem = made(case)
    # Only states at the end of a path are within this limit, so that the penalty matters.
    rng = np.random.default_rng(0)
    last_bytes = problem.pricer().quick(walk(problem, rng)[-1]).peak_bytes
    limit = 0.5 * (problem.baseline[1] + last_bytes)
    problem = Problem(problem.analysis, problem.mesh, problem.machine, memory_limit_bytes=limit)
    bound, pricer = StateBound(problem), problem.pricer()
    # Tiles that are not filled are counted only on axes whose sizes are powers of two.
    assert bound.memory_matters or 3 in problem.mesh.sizes
    tightness = []
    for _ in range(8 if len(problem.mesh.axes) > 2 else 24):
        states = walk(problem, rng)
        prices = [pricer.quick(s) for s in states]
        scores, peaks = bounds_of(bound, states)
        for i, (score, peak_bytes) in enumerate(zip(scores, peaks, strict=True)):
            assert all(score <= q.score and peak_bytes <= q.peak_bytes for q in prices[i:])
        # The bound rises along a path, since fewer and fewer choices are left.
        assert scores.tolist() == sorted(scores)
        tightness.append(scores[-1] / prices[-1].score)
    # Where no choice is left, only shared copies and peaks are inexact
    assert np.mean(tightness) > 0.75


def test_no_short_completion_is_below_the_bound():
    """States in the middle of a path are tried with all completions of up to two actions."""
    problem = made("forward, batch 2")
    bound, pricer, rng = StateBound(problem), problem.pricer(), np.random.default_rng(1)
    for _ in range(6):
        states = walk(problem, rng)
        state = states[rng.integers(len(states) // 2 + 1)]
        least = min(pricer.quick(s).score for s in completions(state, 2))
        assert bounds_of(bound, [state])[0] <= least


def completions(state, depth):
    yield state
    if depth:
        for move, axis in legal_rows(state).tolist():
            child = state.copy()
            child.apply_row(move, axis)
            yield from completions(child, depth - 1)


def test_a_cutoff_only_ends_the_sum_early():
    problem = made("training")
    bound, rng = StateBound(problem), np.random.default_rng(2)
    states = walk(problem, rng)
    assert len(states) > 3
    full = bounds_of(bound, states)[0]
    for share in (0.5, 1.0, 2.0):
        cutoff = share * float(full[len(full) // 2])
        cut = bounds_of(bound, states, cutoff=cutoff)[0]
        assert (cut <= full * (1 + 1e-9)).all()
        assert ((cut >= cutoff) == (full >= cutoff)).all()


@pytest.mark.parametrize("limit", [None, 0.5, 0.01])
@pytest.mark.parametrize("case", ["mlp", "attention", "x times x transposed"])
def test_proves_what_pricing_everything_finds(case, limit):
    problem = made(case)
    share = None if limit is None else limit * problem.baseline[1]
    problem = Problem(problem.analysis, problem.mesh, problem.machine, memory_limit_bytes=share)
    every = search(problem, "exhaustive", bounded=False, budget=Budget(seconds=60))
    proved = search(problem, "exhaustive", budget=Budget(seconds=60))
    assert every.status is proved.status is Status.COMPLETE
    assert proved.cost.fits == every.cost.fits
    assert proved.cost.score == pytest.approx(every.cost.score, rel=1e-12)
    assert proved.bound == every.bound == pytest.approx(every.cost.score, rel=1e-12)
    assert proved.evaluations < (0.5 if every.evaluations > 1000 else 1.01) * every.evaluations


def test_the_bound_speaks_of_plans_that_fit_once_one_is_known():
    """Only plans over the memory limit may lie below the bound; no plan that fits does."""
    problem = made("attention")
    free = search(problem, "exhaustive", budget=Budget(seconds=60))
    limit = free.cost.peak_bytes * (1 - 1e-6)
    tight = Problem(
        problem.analysis,
        problem.mesh,
        problem.machine,
        memory_limit_bytes=limit,
        memory_weight=1e-9,
    )
    result = search(tight, "exhaustive", bounded=False, budget=Budget(seconds=60))
    assert result.cost.fits
    below = [s for s in result.trace.simulations if s.score < result.bound]
    assert below
    assert not any(s.fits for s in below)
    proved = search(tight, "exhaustive", budget=Budget(seconds=60))
    assert proved.status is Status.COMPLETE
    assert (proved.bound, proved.gap) == (result.bound, 0) == (proved.cost.score, 0)


@pytest.mark.slow
def test_a_training_step_is_proved_among_millions_of_shardings():
    result = search(
        Problem(small_transformer(mode="train"), "4x2", "cpu"),
        "exhaustive",
        budget=Budget(seconds=120),
    )
    assert result.status is Status.COMPLETE
    assert result.gap == 0
    rivals = search(
        Problem(small_transformer(mode="train"), "4x2", "cpu"), "beam", budget=Budget(None, 20_000)
    )
    assert result.cost.score <= rivals.cost.score * (1 + 1e-12)


def test_a_budget_that_ends_first_leaves_a_gap_that_holds():
    problem = Problem(analysed("transformer", layers=1, mode="forward", batch=2), "2x2")
    best = search(problem, "exhaustive", budget=Budget(seconds=60))
    assert best.status is Status.COMPLETE
    early = search(problem, "exhaustive", budget=Budget(None, 300))
    assert early.status is Status.BUDGET
    assert early.bound <= best.cost.score <= early.cost.score
    assert early.gap > 0


def test_a_limit_on_the_depth_covers_all_sequences_up_to_it():
    problem = made("attention")
    result = search(problem, "exhaustive", depth=2, bounded=False, budget=Budget(seconds=60))
    reached = {s.key: s for s in completions(State(problem.space), 2)}
    assert result.evaluations == len(reached)
    proved = search(problem, "exhaustive", depth=2, budget=Budget(seconds=60))
    assert proved.cost.score == min(problem.pricer().quick(s).score for s in reached.values())
    assert len(proved.actions) <= 2


def test_the_optimum_is_proved_without_the_prices_that_would_take_too_much_memory(monkeypatch):
    problem = made("attention")
    whole = search(problem, "exhaustive", budget=Budget(seconds=60))
    monkeypatch.setattr(relaxation, "_MOST_ENTRIES", 100)
    result = search(problem, "exhaustive", budget=Budget(seconds=60))
    assert result.status is Status.COMPLETE
    assert result.cost.score == whole.cost.score
    assert result.evaluations > whole.evaluations


def test_groups_below_the_limit_are_neither_acted_on_nor_bounded():
    problem = Problem(analysed("transformer", layers=1, mode="forward"), "2x2")
    least = pruning_threshold(problem)
    assert any(problem.space.n_names < least)
    rng, pricer, bound = np.random.default_rng(3), problem.pricer(), StateBound(problem, least)
    for _ in range(10):
        states = walk(problem, rng, least)
        prices = [pricer.quick(s).score for s in states]
        scores, _ = bounds_of(bound, states)
        assert all(score <= min(prices[i:]) for i, score in enumerate(scores))
    root = [State(problem.space)]
    every = bounds_of(StateBound(problem), root)[0]
    assert bounds_of(bound, root)[0] >= every * (1 - 1e-3)


@pytest.mark.parametrize("products", [1, 2])
def test_an_operand_whose_place_goes_to_a_result_is_not_counted_beside_it(products):
    """Where no dim can be cut, the bound on the peak is the peak itself, with buffers reused.

    With one product the peak is at its tanh; with two it is at the second product.
    """
    x = jax.ShapeDtypeStruct((256, 256), "float32")

    def chain(x, w):
        for _ in range(products):
            x = jnp.tanh(x @ w)
        return x

    problem = Problem(traced(chain, x, x), {"a": 7}, "cpu", memory_limit_bytes=1000)
    state = State(problem.space)
    (score,), (peak_bytes,) = bounds_of(StateBound(problem), [state])
    quick = problem.pricer().quick(state)
    assert quick.peak_bytes == (2 + products) * 256 * 256 * 4
    assert quick.peak_bytes * (1 - 1e-8) <= peak_bytes <= quick.peak_bytes
    assert score <= quick.score


@pytest.mark.parametrize(
    "options", [{"bounded": False}, {"bounded": False, "depth": 2}, {"depth": 2}, {}]
)
def test_rounds_follow_one_another(options):
    """Rounds are numbered in order.

    Where shorter sequences come first, a round is all sequences of one length; a beam is one round.
    """
    rounds = [
        (s.round, len(s.actions))
        for s in search(made("attention"), "exhaustive", **options).trace.simulations
    ]
    assert rounds[0] == (0, 0)
    assert [r for r, _ in rounds] == sorted(r for r, _ in rounds)
    if not options.get("bounded", True):
        assert all(r == n for r, n in rounds)


def test_with_listed_prices_the_optimum_is_proved() -> None:
    """A listed price may be below the rules' price of every row."""
    problem = Problem(analysed("mlp"), mesh="2x2", machine="a100")
    last_op = problem.analysis.program.n_ops - 1
    listed = problem.with_prices(PriceList((PriceEntry(last_op, 1, 1e-9, COMPILED),)))
    every, proved = (search(listed, "exhaustive", bounded=bounded) for bounded in (False, True))
    assert every.status is proved.status is Status.COMPLETE
    assert proved.bound == proved.cost.score == every.cost.score
    assert proved.evaluations < every.evaluations
