"""Every method keeps to pins.

No better plan that keeps to them is missed, and impossible pins are refused.
"""

import pickle

import numpy as np
import pytest

from tests.helpers import analysed, plan, small_transformer
from tests.search.retrace import replay
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.pipeline import replicated, search
from toast_lab.plan_verbs import Plan
from toast_lab.search.contract import Budget, Status
from toast_lab.search.gap.state_bound import StateBound
from toast_lab.search.mcts import refine
from toast_lab.search.mcts.improvement import Improvement
from toast_lab.search.methods import METHODS
from toast_lab.sharding.propagate import Propagation
from toast_lab.sharding.state import State, legal_actions
from toast_lab.sharding.wishes import pin_value

MESH = {"data": 2, "model": 2}
FEW = Budget(seconds=None, evaluations=300)
OPTIONS = {"manual": {"actions": [("hidden", "data")]}}
W = "params['layers'][0]['w_up']"  # (64, 128): d_model, hidden


@pytest.fixture(scope="module")
def problem():
    return Problem(small_transformer(mode="forward"), MESH)


def entries(problem, action):
    """Return the sharding that an action alone gives: ([O, A], [V, A]) arrays."""
    action_plan = plan(problem.unpinned, action)
    return action_plan.op_factor, action_plan.value_dim


def has(found, problem, action):
    return all(
        (actual[wanted >= 0] == wanted[wanted >= 0]).all()
        for wanted, actual in zip(
            entries(problem, action), (found.op_factor, found.value_dim), strict=True
        )
    )


def names_on(found, problem, axis):
    """Return the colours along which a plan splits ops or cuts values on an axis."""
    a, program = problem.mesh.axes.index(axis), found.program
    names = found.op_factor[found.op_factor[:, a] >= 0, a].tolist()
    names += [
        program.def_names(v)[found.value_dim[v, a]]
        for v in np.flatnonzero(found.value_dim[:, a] >= 0)
    ]
    return {problem.analysis.dim_text(n) for n in names}


CASES = {
    "a pinned action": (
        lambda p: p.pin(("sequence", "model", 1)),
        lambda f, p: has(f, p, ("sequence", "model", 1)),
    ),
    "two pinned actions": (
        lambda p: p.pin(("d_model", "data")).pin(("batch", "model")),
        lambda f, p: has(f, p, ("d_model", "data")) and has(f, p, ("batch", "model")),
    ),
    "a forbidden colour": (
        lambda p: p.what_if(forbids=["batch->data", "batch->model"]),
        lambda f, p: "batch" not in names_on(f, p, "data") | names_on(f, p, "model"),
    ),
    "a pinned argument": (
        lambda p: p.pin(W, (None, "data")),
        lambda f, p: f.argument_specs()[W] == ((), ("data",)),
    ),
    "a pinned result": (
        lambda p: p.pin("result", ("model", None, "data")),
        lambda f, p: f.result_specs()["result"] == (("model",), (), ("data",)),
    ),
    "an argument kept whole": (
        lambda p: p.pin("params['embed']", (None, None)),
        lambda f, p: f.argument_specs()["params['embed']"] == ((), ()),
    ),
    "an axis forbidden to an argument": (
        lambda p: p.forbid("tokens", "data"),
        lambda f, p: all("data" not in dim for dim in f.argument_specs()["tokens"]),
    ),
    "an open dim": (
        lambda p: p.pin(W, (["data", "*"], None)),
        lambda f, p: "data" in f.argument_specs()[W][0] and f.argument_specs()[W][1] == (),
    ),
    "one of each": (
        lambda p: p.what_if(
            ["batch->data", f"{W}=-,model"], ["sequence->model", "params['embed']->model"]
        ),
        lambda f, p: (
            has(f, p, ("batch", "data"))
            and f.argument_specs()[W] == ((), ("model",))
            and "sequence" not in names_on(f, p, "model")
            and all("model" not in dim for dim in f.argument_specs()["params['embed']"])
        ),
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_the_plan_of_every_method_keeps_to_the_pins(problem, case, method):
    make, keeps = CASES[case]
    pinned = make(problem)
    result = search(pinned, method, seed=1, budget=FEW, **OPTIONS.get(method, {}))
    assert keeps(result.plan, problem)
    assert pinned.pins.broken(result.plan.op_factor, result.plan.value_dim) == []
    result.plan.check()
    assert price(problem, result.plan).score == pytest.approx(result.cost.score, rel=1e-12)
    assert result.bound is None or result.bound <= result.cost.score * (1 + 1e-12)
    assert problem.pins is None


@pytest.mark.parametrize("case", CASES)
def test_the_checker_sees_a_plan_that_does_not_keep_to_the_pins(problem, case):
    make, keeps = CASES[case]
    pins = make(problem).pins
    # The checker and the case agree on random sequences of actions, some of which break pins.
    rng, verdicts = np.random.default_rng(0), set()
    for _ in range(60):
        state = State(problem.space)
        for _ in range(int(rng.integers(1, 5))):
            if actions := legal_actions(state):
                state.apply(actions[rng.integers(len(actions))])
        from_state = Plan.from_state(state)
        verdicts.add(keeps(from_state, problem))
        assert keeps(from_state, problem) == (
            pins.broken(from_state.op_factor, from_state.value_dim) == []
        )
    assert False in verdicts


def test_refinement_and_integer_programs_keep_to_the_pins():
    big = Problem(
        analysed("transformer", layers=1, batch=16, vocab=1024, sequence=256),
        {"data": 4, "model": 2},
    )
    weight = "params['layers'][0]['w_up']"
    pinned = big.what_if(
        [("batch", "model"), (weight, (None, "data"))], [("d_model", "data"), "hidden->model"]
    )
    budget = Budget(seconds=None, evaluations=20_000)
    # Each of the two finds improvements when run alone.
    refined = search(pinned, seed=1, budget=budget, restarts=0, refine=10, solve=False)
    solved = search(pinned, seed=1, budget=budget, restarts=0, refine=1)
    for result, begins in ((refined, ("refined in ",)), (solved, ("colours: ", "roles: "))):
        assert [
            s for s in result.trace.simulations if s.actions and s.actions[-1].startswith(begins)
        ]
        assert has(result.plan, big, ("batch", "model"))
        assert result.plan.argument_specs()[weight] == ((), ("data",))
        assert "d_model" not in names_on(result.plan, big, "data")
        assert "hidden" not in names_on(result.plan, big, "model")
        result.plan.check()


def test_chains_of_refinement_never_leave_what_is_pinned(monkeypatch):
    """All states of a refinement keep to the pins, not only the best one.

    Other rows still change.
    """
    problem = Problem(
        analysed("transformer", layers=2, batch=16, vocab=1024, sequence=256),
        {"data": 4, "model": 2},
    )
    pinned = problem.what_if([("batch", "model")], ["d_model->data"])
    refining = []
    monkeypatch.setattr(Improvement, "end", lambda self: refining.append(self))
    search(pinned, seed=2, budget=Budget(seconds=None, evaluations=4_000), restarts=0, solve=False)
    (improvement,) = refining
    chains, fine = improvement.chains, refine.make_fine(pinned)
    program = problem.analysis.program
    assert chains is not None, "the budget ends within the refinement"
    start = refine.rows_of(fine, State(pinned.space))
    moved = 0
    for key in ("", "best_", "pool_"):
        for ops, values in zip(
            getattr(chains, f"{key}ops"), getattr(chains, f"{key}values"), strict=True
        ):
            assert pinned.pins.broken(*fine.alike.whole(program, ops, values)) == []
            moved += int((ops != start[0]).any())
    assert moved


@pytest.mark.parametrize("case", CASES)
def test_every_state_that_actions_lead_to_keeps_to_the_pins(problem, case):
    pinned, rng, taken = CASES[case][0](problem), np.random.default_rng(2), 0
    for _ in range(20):
        state = State(pinned.space)
        assert state.key == 0
        for _ in range(8):
            if actions := legal_actions(state):
                taken += state.apply(actions[rng.integers(len(actions))])
            assert pinned.pins.broken(state.op_factor, state.value_dim) == []
        reloaded = State.from_arrays(pinned.space, state.op_factor, state.value_dim)
        assert reloaded.key == state.key
        plain = State.from_arrays(problem.space, state.op_factor, state.value_dim)
        # Pins may separate rows that are otherwise alike, which changes keys; the plan's key is of
        # the whole sharding.
        assert (
            plain is None
            or len(pinned.space.alike.values.first) > len(problem.space.alike.values.first)
            or (plain.key == state.plan_key)
        )
    assert taken


@pytest.mark.parametrize(
    ("pins", "least"),
    [
        (["X->data"], 4),
        (["W->model"], 4),
        (["X->data", "W->model"], 5),
        (["w1=-,model"], 6),
        ([], 6),
    ],
)
def test_bounds_hold_for_what_is_pinned_but_would_not_be_acted_on(pins, least):
    problem = Problem(analysed("mlp"), MESH)
    pinned = problem.what_if(pins)
    if not pins:  # an intermediate value, as an annotation pins it
        program = problem.analysis.program
        hidden = next(
            v for v in range(program.n_arguments, program.n_values) if program.dims(v) == (256, 64)
        )
        pinned = problem._keeping_to(
            [pin_value(program, problem.mesh, hidden, (None, "data"), "hidden")]
        )
    pricer, root = pinned.pricer(), State(pinned.space)
    (low,), (peak,) = StateBound(pinned, least).of(root.ops[None], root.values[None])
    states, queue = {0: root}, [root]
    for state in queue:
        for action in legal_actions(state, least):
            successor = state.copy()
            successor.apply(action)
            if successor.key not in states:
                states[successor.key] = successor
                queue.append(successor)
    prices = [pricer.quick(s) for s in states.values()]
    assert low <= min(p.score for p in prices) * (1 + 1e-9)
    assert peak <= min(p.peak_bytes for p in prices)
    assert low > 0.5 * min(p.score for p in prices)


@pytest.mark.parametrize("case", CASES)
def test_propagation_from_any_arguments_keeps_to_the_pins(problem, case):
    pinned = CASES[case][0](problem)
    program = problem.analysis.program
    propagation = Propagation(problem.analysis, problem.mesh, pinned.pins)
    rng, moved = np.random.default_rng(1), 0
    assert pinned.pins.broken(*propagation.start()) == []
    for _ in range(20):
        state = propagation.start()
        for _ in range(6):
            value = int(rng.integers(program.n_arguments))
            dim = int(rng.integers(len(program.dims(value))))
            moved += propagation.shard(state, np.asarray([value]), dim, int(rng.integers(2)))
        assert pinned.pins.broken(*state) == []
    assert moved


def test_one_of_repeated_layers_can_be_pinned_alone():
    problem = Problem(small_transformer(mode="forward", layers=2), MESH)
    other = W.replace("[0]", "[1]")
    pinned = problem.what_if([(W, ("data", None)), (other, (None, "data"))])
    for method in ("mcts", "alpa", "automap"):
        specs = search(pinned, method, budget=FEW).plan.argument_specs()
        assert (specs[W], specs[other]) == ((("data",), ()), ((), ("data",)))


@pytest.mark.parametrize(
    "ask",
    [
        {"pins": ["B->data"]},
        {"forbids": ["B->data"]},
        {"pins": ["U->model"], "forbids": ["B->model"]},
        {"pins": ["w2=-,model"]},
    ],
)
def test_the_optimum_with_pins_is_the_best_of_all_states_that_keep_to_them(ask):
    problem = Problem(analysed("mlp"), MESH)
    pinned = problem.what_if(**ask)
    optimum = search(pinned, "exhaustive", budget=Budget(seconds=60), min_names=0)
    assert optimum.status is Status.COMPLETE
    states, queue = {0: State(problem.space)}, [State(problem.space)]
    for state in queue:
        for action in legal_actions(state):
            successor = state.copy()
            successor.apply(action)
            if successor.key not in states:
                states[successor.key] = successor
                queue.append(successor)
    pricer = problem.pricer()
    kept = [s for s in states.values() if not pinned.pins.broken(s.op_factor, s.value_dim)]
    assert 0 < len(kept) < len(states)
    best = min(pricer.quick(s).score for s in kept)
    # Pins on values may cut them as no sequence of actions does.
    assert (
        optimum.cost.score == pytest.approx(best, rel=1e-12)
        if "=" not in str(ask)
        else optimum.cost.score <= best
    )
    assert optimum.bound == pytest.approx(optimum.cost.score, rel=1e-9)


def test_bounded_and_unbounded_enumeration_agree_under_pins(problem):
    pinned = problem.what_if([("batch", "data"), (W, (None, "model"))], ["key->model"])
    budget = Budget(seconds=120)
    costs = [
        search(pinned, "exhaustive", budget=budget, bounded=b, depth=2).cost.score
        for b in (True, False)
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)


def test_without_any_pins_nothing_is_otherwise(problem):
    assert problem.what_if().pins is None
    again = problem.pin("batch->data").unpinned
    assert again.baseline == problem.baseline
    results = [search(p, seed=4, budget=FEW) for p in (problem, again)]
    assert [s.score for s in results[0].trace.simulations] == [
        s.score for s in results[1].trace.simulations
    ]
    assert results[0].plan.key == results[1].plan.key


def test_prices_are_relative_to_the_unsharded_program_and_replicated_shards_nothing(problem):
    pinned = problem.pin("batch->data")
    assert pinned.baseline == problem.baseline
    assert (replicated(pinned).op_factor < 0).all()
    assert replicated(pinned).key == replicated(problem).key == 0
    alone = search(pinned, budget=Budget(seconds=0))
    assert alone.cost.score == price(problem, plan(problem, ("batch", "data"))).score


def test_actions_of_a_plan_begin_with_the_pinned_ones_and_make_it_anywhere(problem):
    pinned = problem.pin("d_model->data").pin("batch->model")
    result = search(pinned, "beam", seed=1, budget=FEW)
    assert result.plan.actions[:2] == ("d_model->data", "batch->model")
    for where in (problem, pinned):
        again = plan(where, *result.plan.actions)
        assert (again.op_factor == result.plan.op_factor).all()
        assert (again.value_dim == result.plan.value_dim).all()
        assert again.key == result.plan.key
    replayed = list(replay(pinned, result.trace))
    assert len(replayed) == len(result.trace.simulations)
    assert all(r.quick.score == pytest.approx(r.simulation.score, rel=1e-12) for r in replayed)


def test_a_resolution_is_forbidden_alone_where_it_is_given(problem):
    one = problem.forbid(("sequence", "model", 1))
    with pytest.raises(
        InvalidProblem, match=r"pin sequence@1->model puts .* contradicts forbid sequence@1->model"
    ):
        one.pin(("sequence", "model", 1))
    kept = one.pin(("sequence", "model", 0))
    assert has(search(kept, "random", budget=FEW).plan, problem, ("sequence", "model", 0))
    with pytest.raises(InvalidProblem, match="contradicts forbid sequence->model"):
        problem.what_if([("sequence", "model", 0)], [("sequence", "model")])


def test_what_cannot_fit_says_so():
    roomy = Problem(analysed("transformer", layers=1, batch=64), MESH)
    free = search(roomy, seed=0, budget=FEW)
    tight = Problem(roomy.analysis, MESH, memory_limit_bytes=1.05 * free.cost.peak_bytes)
    pinned = tight.what_if(
        forbids=[f"{c}->{a}" for c in ("batch", "sequence", "vocab") for a in MESH]
    )
    assert search(tight, seed=0, budget=FEW).cost.fits
    result = search(pinned, seed=0, budget=FEW)
    assert not result.cost.fits
    assert "No plan found fits" in result.message


def test_where_pins_leave_nothing_to_do_the_message_says_it():
    problem = Problem(analysed("mlp"), {"data": 2})
    groups = [g.name for g in problem.analysis.groups if g.shardable]
    pinned = problem.what_if(forbids=[f"{name}->data" for name in groups])
    for method in METHODS:
        if method != "manual":
            result = search(pinned, method, budget=FEW)
            assert result.status is Status.NO_ACTIONS, method
            assert "beyond the pins" in result.message


BAD = [
    (lambda p: p.pin("batch->data").pin("batch->data"), "pin batch->data: asked for 2 times"),
    (
        lambda p: p.what_if(["batch->data"], ["batch->data"]),
        r"of tokens \(size 8\).* over data=2, which contradicts forbid",
    ),
    (
        lambda p: p.pin("tokens", ("data", None)).pin("tokens", (None, "data")),
        r"of tokens \(size 32\) over data=2",
    ),
    (
        lambda p: p.pin("tokens", (None, None)).pin("batch->data"),
        r"pin batch->data puts dim 0 of tokens \(size 8\)",
    ),
    (
        lambda p: p.pin("batch->data").forbid("tokens", "data"),
        r"tokens \(size 8\) over data=2, which contradicts forbid tokens",
    ),
    (lambda p: p.pin("tokens", ("data",)), "1 entries for shape 8x32"),
    (
        lambda p: p.pin("tokens", ("dta", None)),
        r'no mesh axis is called .dta. \(did you mean "data"\?\)',
    ),
    (lambda p: p.pin("tokens", ("data", "data")), "axis data is on dims 0 and 1"),
    (
        lambda p: p.pin("tokens", (("model", "data"), None)),
        "take the order of the mesh, data=2,model=2",
    ),
    (
        lambda p: p.pin("tokns", ("data", None)),
        r'no argument or result is called .tokns. \(did you mean "tokens"\?\)',
    ),
    (lambda p: p.pin(("sequence", "data", 2)), "bits run from 0 to 1, got 2"),
    (lambda p: p.forbid("tokens", "dat"), "no mesh axis is called .dat."),
]


@pytest.mark.parametrize(("ask", "message"), BAD)
def test_nonsense_is_refused_with_names_and_sizes(problem, ask, message):
    with pytest.raises(InvalidProblem, match=message):
        ask(problem)


def test_what_does_not_divide_is_refused_with_sizes():
    odd = Problem(small_transformer(mode="forward", batch=6), {"data": 4, "model": 2})
    with pytest.raises(
        InvalidProblem, match=r'batch has size 6, not divisible by mesh axis "data" = 4'
    ):
        odd.pin("batch->data")
    with pytest.raises(InvalidProblem, match="dim 0 has size 6, not divisible by data=4 x model=2"):
        odd.pin("tokens", (("data", "model"), None))


def test_what_divides_alone_but_not_together_is_refused_with_sizes():
    narrow = Problem(small_transformer(mode="forward", batch=2), MESH)
    with pytest.raises(
        InvalidProblem,
        match=r"dim 0 of tokens \(size 2\): size 2 is not divisible by data=2 x model=2",
    ):
        narrow.pin("tokens", (["data", "*"], "*")).pin("batch->model")


def test_all_offenders_are_listed_at_once(problem):
    with pytest.raises(InvalidProblem) as error:
        problem.what_if(["btch->data", "batch->dat", ("tokens", ("data",))], ["nothing->data"])
    assert all(
        text in str(error.value)
        for text in ("btch", "batch->dat", "1 entries", "forbid nothing->data")
    )
    with pytest.raises(InvalidProblem) as error:
        problem.what_if(
            ["batch->data", "batch->data", ("tokens", (None, "model"))], ["sequence->model"]
        )
    assert "2 times" in str(error.value)
    assert "contradicts forbid sequence->model" in str(error.value)


def test_a_search_goes_on_under_the_same_pins_only(problem, tmp_path):
    pinned = problem.pin("batch->data")
    first = search(pinned, seed=3, budget=FEW)
    first.save(tmp_path / "search.json")
    resumed = search(pinned, resume=tmp_path / "search.json", budget=FEW)
    assert has(resumed.plan, problem, ("batch", "data"))
    assert resumed.plan.actions.count("batch->data") == 1
    for other in (problem, problem.pin("batch->model"), pinned.forbid("sequence->model")):
        with pytest.raises(InvalidProblem, match=r"it has pins \['pin batch->data'\]"):
            search(other, resume=first, budget=FEW)


def test_a_pinned_problem_survives_the_way_to_another_process(problem):
    pinned = problem.what_if([W + "=data,-"], ["batch->data"])
    received = pickle.loads(pickle.dumps(pinned))
    results = [search(p, "beam", seed=0, budget=FEW) for p in (pinned, received)]
    assert results[0].cost.score == results[1].cost.score
    assert results[1].plan.argument_specs()[W] == (("data",), ())


def test_a_plan_of_actions_that_are_pinned_or_forbidden(problem):
    pinned = problem.what_if(["batch->data"], ["hidden->model"])
    assert plan(pinned, "batch->data", "d_model->model").actions == (
        "batch->data",
        "d_model->model",
    )
    with pytest.raises(
        InvalidPlan, match="Pinned or forbidden: pin batch->data, forbid hidden->model"
    ):
        plan(pinned, "hidden->model")
    with pytest.raises(InvalidPlan, match=r"does not keep to pin batch->data.*(\n.*)*pinned to"):
        pinned.pins.check(*(getattr(replicated(problem), k) for k in ("op_factor", "value_dim")))
