"""Our propagation of a few shardings equals Shardy's, value by value and in price."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import SMALL, model
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost.problem import Problem
from toast_lab.frontends import from_jax
from toast_lab.ir.model import Model
from toast_lab.plan_verbs import Plan
from toast_lab.search.usual_plans import usual_plans
from toast_lab.sharding.mesh import Mesh, make_mesh
from toast_lab.sharding.plan import Spec, make_plan
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.split_ops import OpSplits
from toast_lab.written import propagating
from toast_lab.written.annotated import Edits, numbered
from toast_lab.written.meaning import plan_of_values
from toast_lab.written.propagating import propagate_all
from toast_lab.written.propagation import WrittenPropagation

MESH = make_mesh({"a": 4, "b": 2})
S = jax.ShapeDtypeStruct
F = jnp.float32
Rows = dict[int, Any]  # value -> the dim that each axis cuts


def looped() -> Model:
    """A loop whose state and stacked weights are sharded, a conditional, and a barrier."""

    def f(x, weights, up):
        def step(state, weight):
            h = jnp.tanh(state @ weight)
            return jax.lax.optimization_barrier((h + state, h))[0], jnp.sum(h, axis=0)

        state, sums = jax.lax.scan(step, x, weights)
        picked = jax.lax.cond(jnp.sum(sums) > 0, lambda y: jnp.exp(y), lambda y: y * 2.0, state)
        return picked @ up, sums

    return from_jax(f, S((16, 32), F), S((4, 32, 32), F), S((32, 64), F))


PROGRAMS: dict[str, Callable[[], Model]] = {
    "attention": lambda: model("attention"),
    "looped": looped,
    "transformer": lambda: model("transformer", **SMALL),
    "gns": lambda: model("gns", steps=1),
}


class Case(NamedTuple):
    """What somebody writes."""

    arguments: Rows
    constraints: Rows


@functools.cache
def analysed(name: str) -> Analysis:
    return analyse(PROGRAMS[name]())


def random_dims(rng: np.random.Generator, shape: tuple[int, ...]) -> list[int]:
    dims, ways = [-1] * len(MESH.axes), [1] * len(shape)
    for axis, size in enumerate(MESH.sizes):
        options = [d for d, n in enumerate(shape) if n % (ways[d] * size) == 0]
        if options and rng.random() < 0.6:
            dims[axis] = int(rng.choice(options))
            ways[dims[axis]] *= size
    return dims


def random_cases(name: str, count: int) -> list[Case]:
    program, rng = analysed(name).program, np.random.default_rng(0)
    inner = [
        value
        for value in range(program.n_arguments, program.n_values)
        if program.dims(value)
        and not program.value_is_constant[value]
        and program.kind[int(program.value_op[value])] != "while.enter"
    ]
    cases = []
    for number in range(count):
        arguments = [a for a in range(program.n_arguments) if rng.random() < 0.5]
        chosen = rng.choice(inner, size=3, replace=False).tolist() if number % 2 else []
        cases.append(
            Case(
                {a: random_dims(rng, program.dims(a)) for a in arguments},
                {value: random_dims(rng, program.dims(value)) for value in chosen},
            )
        )
    return cases


def spec_of(dims: list[int], rank: int) -> Spec:
    return tuple(
        tuple(axis for axis, cut in zip(MESH.axes, dims, strict=True) if cut == dim)
        for dim in range(rank)
    )


def by_shardy(name: str, cases: list[Case], mesh: Mesh = MESH) -> list[Sharding]:
    """What Shardy's own passes make of the cases."""
    analysis, whole = analysed(name), [-1] * len(mesh.axes)
    program = analysis.program
    edits = [
        Edits(
            arguments=tuple(
                (a, spec_of(case.arguments.get(a, whole), len(program.dims(a))))
                for a in range(program.n_arguments)
            ),
            constraints=tuple(
                (value, spec_of(dims, len(program.dims(value))))
                for value, dims in case.constraints.items()
            ),
        )
        for case in cases
    ]
    text = numbered(PROGRAMS[name]().stablehlo, analysis, mesh)
    outcomes = propagate_all(text, program, mesh, edits)
    shardings = []
    for edit, outcome in zip(edits, outcomes, strict=True):
        assert outcome is not None
        specs = list(outcome)
        for value, spec in edit.constraints:
            specs[value] = spec
        computed, kept = (plan_of_values(analysis, mesh, each).plan for each in (outcome, specs))
        op_factor = np.full_like(kept.op_factor, -1)
        splits = OpSplits(program, analysis.names.shardable)
        splits.split(computed.value_dim, kept.value_dim, mesh.array(), op_factor)
        shardings.append(Sharding(op_factor, kept.value_dim))
    return shardings


def agreement(name: str, cases: list[Case]) -> tuple[float, list[float]]:
    """The share of values that are kept alike, and the ratios of our price to that by Shardy."""
    analysis = analysed(name)
    program, problem = analysis.program, Problem(analysis, MESH)
    price, propagation = problem.pricer(), WrittenPropagation(analysis, MESH)
    counted = [
        v for v in range(program.n_values) if program.dims(v) and not program.value_is_constant[v]
    ]
    same, ratios = 0, []
    for case, theirs in zip(cases, by_shardy(name, cases), strict=True):
        ours = propagation.run(*case)
        same += int((ours.value_dim[counted] == theirs.value_dim[counted]).all(axis=1).sum())
        our_s, their_s = (
            price.full(make_plan(analysis, MESH, each, ("",), key=each.key())).time_s
            for each in (ours, theirs)
        )
        ratios.append(our_s / their_s)
    return same / (len(counted) * len(cases)), ratios


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_values_and_prices_agree_with_shardys(name):
    share, ratios = agreement(name, random_cases(name, 8))
    assert share > 0.998
    assert np.mean([abs(ratio - 1) < 0.01 for ratio in ratios]) >= 0.95


def test_the_usual_plans_argument_shardings_lead_where_shardy_leads():
    analysis = analysed("transformer")
    problem = Problem(analysis, MESH)
    drafts = [Plan.from_actions(problem, actions) for actions in usual_plans(problem).values()]
    program = analysis.program
    cases = [
        Case({a: plan.value_dim[a] for a in range(program.n_arguments)}, {}) for plan in drafts
    ]
    share, ratios = agreement("transformer", cases)
    assert share == 1.0
    assert max(abs(ratio - 1) for ratio in ratios) < 0.01


def test_a_constrained_argument_keeps_its_sharding_and_is_read_in_the_constrained_one():
    m = from_jax(lambda x, w: jnp.tanh(x) @ w, S((16, 8), F), S((8, 32), F))
    propagation = WrittenPropagation(analyse(m), MESH)
    free = propagation.run({0: [0, -1]})
    held = propagation.run({0: [0, -1]}, {0: [-1, 0]})
    tanh = m.program.kind.index("tanh")
    (result,) = m.program.results(tanh)
    assert free.value_dim[result].tolist() == [0, -1]
    assert held.value_dim[result].tolist() == [-1, 0]
    assert held.op_factor[0].tolist() == free.op_factor[0].tolist()  # as it arrives
    assert held.value_dim[0].tolist() == [-1, 0]
    assert propagation.run({0: [0, -1]}).same_as(free)  # nothing is left of the constraint


def test_a_result_with_a_rule_is_returned_in_it_and_propagates_backward():
    m = from_jax(lambda x: jnp.tanh(x) * 2.0, S((16, 8), F))
    propagation = WrittenPropagation(analyse(m), MESH)
    sharding = propagation.run({}, results={0: [0, 1]})
    tanh = m.program.kind.index("tanh")
    assert sharding.value_dim[m.program.outputs[0]].tolist() == [0, 1]
    assert sharding.value_dim[m.program.results(tanh)[0]].tolist() == [0, 1]
    assert sharding.value_dim[0].tolist() == [-1, -1]


def test_it_forgets_the_run_before():
    name = "transformer"
    propagation: WrittenPropagation = WrittenPropagation(analysed(name), MESH)
    cases = random_cases(name, 4)
    first: list[Sharding] = [propagation.run(*case) for case in cases]
    again = [propagation.run(*case) for case in reversed(cases)]
    assert all(map(Sharding.same_as, first, reversed(again)))


@pytest.mark.timing
def test_it_takes_milliseconds():
    propagation = WrittenPropagation(analysed("transformer"), MESH)
    case = random_cases("transformer", 1)[0]
    propagation.run(*case)
    times_s = []
    for _ in range(20):
        begin = time.perf_counter()
        propagation.run(*case)
        times_s.append(time.perf_counter() - begin)
    assert min(times_s) < 0.005


def test_two_processes_propagate_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = analysed("looped")
    text = numbered(PROGRAMS["looped"]().stablehlo, analysis, MESH)
    edits = [
        Edits(arguments=((0, (axes, *((),) * (len(analysis.program.dims(0)) - 1))),))
        for axes in ((), ("a",), ("b",))
    ]
    alone = propagate_all(text, analysis.program, MESH, edits)
    monkeypatch.setattr(propagating, "_LONG", 0)
    assert propagate_all(text, analysis.program, MESH, edits) == alone
    assert len({*alone}) == len(edits)
