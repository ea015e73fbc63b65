"""Constraints are written only where propagation would deviate from the plan."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from evaluation.certification.draw import random_plans
from tests.helpers import SMALL, model
from toast_lab import isolate
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem
from toast_lab.errors import RunFailed
from toast_lab.frontends import from_jax
from toast_lab.ir.model import Model
from toast_lab.lowering import needed_constraints as needed
from toast_lab.lowering.annotate import annotate
from toast_lab.lowering.propagated import PropagatedAxes, propagated
from toast_lab.sharding.plan import ShardingPlan

S = jax.ShapeDtypeStruct
F = jnp.float32
MESH = {"d": 2, "m": 2}


def grouped(groups: int = 4) -> Model:
    """A product, features normalised in groups, and another product."""

    def step(x, u, w):
        h = (x @ u).reshape(x.shape[0], groups, -1)
        h = (h - h.mean(2, keepdims=True)).reshape(x.shape[0], -1)
        return jnp.tanh(h) @ w

    return from_jax(step, S((16, 32), F), S((32, 64), F), S((64, 32), F))


def looped() -> Model:
    """The gradient of layers in a scan."""

    def loss(ws, x):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0].sum()

    return from_jax(jax.grad(loss), S((4, 32, 32), F), S((16, 32), F))


PROGRAMS: dict[str, Callable[[], Model]] = {
    "mlp": lambda: model("mlp"),
    "attention": lambda: model("attention"),
    "transformer": lambda: model("transformer", **SMALL),
    "gns": lambda: model("gns", steps=2, nodes=64, edges=256),
    "grouped": grouped,
    "looped": looped,
}


def random_plan(loaded: Model, seed: int) -> ShardingPlan:
    """A plan that propagation would not choose."""
    problem = Problem(analyse(loaded), MESH)
    return random_plans(problem, "4", 1, seed)[0]


def axes_of(loaded: Model, plan: ShardingPlan, constrained: set[int] | None) -> PropagatedAxes:
    return propagated(annotate(loaded, plan, numbered=True, constrained=constrained))


def differences(loaded: Model, plan: ShardingPlan, constrained: set[int]) -> int:
    """Number of tensors whose sharding differs from that with a constraint behind every op."""
    program, count = plan.program, 0
    everywhere = axes_of(loaded, plan, None)
    for (op, i, is_result), axes in axes_of(loaded, plan, constrained).items():
        values = program.results(op) if is_result else program.operands(op)
        if i < len(values) and not program.value_is_constant[values[i]]:
            count += axes != everywhere[op, i, is_result]
    return count


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PROGRAMS)
def test_propagation_arrives_at_the_plan(name: str, seed: int) -> None:
    loaded = PROGRAMS[name]()
    plan = random_plan(loaded, seed)
    constrained = needed.find(needed.ConstraintsRequest(loaded.stablehlo, plan))
    assert differences(loaded, plan, set(constrained)) == 0
    computed = loaded.program.n_values - loaded.program.n_arguments
    assert len(constrained) < 0.7 * computed


def test_none_at_all_are_too_few() -> None:
    """Propagation alone does not arrive at a plan that changes shardings along the way."""
    loaded = PROGRAMS["transformer"]()
    plan = random_plan(loaded, 2)
    constrained = set(needed.find(needed.ConstraintsRequest(loaded.stablehlo, plan)))
    assert constrained
    assert differences(loaded, plan, set()) > 0


def test_what_follows_from_the_arguments_needs_none() -> None:
    """A plan that follows from the arguments' shardings gets no constraints.

    Constraints would keep XLA from simplifying, for instance, a reshape and the sum after it.
    """
    loaded = grouped()
    problem = Problem(analyse(loaded), MESH)
    plan = tl.Plan.from_actions(problem, ["x_rows->d"])
    constrained = needed.needed_constraints(loaded, plan)
    assert constrained == frozenset()
    assert "sharding_constraint" not in annotate(loaded, plan, constrained=constrained)
    assert "sharding_constraint" in annotate(loaded, plan)


def tied(table: bool) -> Model:
    """The gradient of looking up words in a table and writing them with the same or another one."""

    def loss(table_in, table_out, words):
        return (jnp.tanh(table_in[words]) @ table_out.T).sum()

    def step(table_in, table_out, words):
        if table:
            return jax.grad(lambda both: loss(both, both, words))(table_in)
        return jax.grad(loss, (0, 1))(table_in, table_out, words)

    sizes = S((64, 32), F)
    return from_jax(step, sizes, sizes, S((16,), jnp.int32))


@pytest.mark.parametrize("is_tied", [True, False])
def test_scattered_sums_are_added_before_they_are_made_whole(is_tied: bool) -> None:
    """A scatter whose sums are added to others needs a constraint.

    Without it XLA scatters onto the other sum, which is sent first.
    """
    loaded = tied(is_tied)
    plan = tl.Plan.from_actions(Problem(analyse(loaded), MESH), ["words->d"])
    program = plan.program
    (scatter,) = [op for op in program.ops() if program.kind[op] == "scatter"]
    (value,) = program.results(scatter)
    assert plan.lowered.partial[value]
    assert (value in needed.needed_constraints(loaded, plan)) == is_tied


def joined() -> Model:
    """Two functions of a product, concatenated, and a product of the result."""

    def step(x, u, w):
        h = x @ u
        return jnp.concatenate([jnp.tanh(h), jnp.sin(h)], 0) @ w

    return from_jax(step, S((16, 32), F), S((32, 64), F), S((64, 32), F))


def test_what_reads_a_value_otherwise_than_it_is_kept_has_one_behind_it() -> None:
    """An op that reads a value in another layout than the kept one needs a constraint.

    Without it XLA may merge the op with an equal one before it propagates.
    """
    loaded = joined()
    plan = tl.Plan.from_actions(Problem(analyse(loaded), MESH), ["x_rows->d"])
    program, lowered = plan.program, plan.lowered
    (op,) = [op for op in program.ops() if program.kind[op] == "concatenate"]
    for use in program.uses(op):
        assert lowered.used[use] != lowered.kept[program.use_value[use]]
    assert program.results(op)[0] in needed.needed_constraints(loaded, plan)


def test_products_are_left_to_be_simplified() -> None:
    """Products get no constraint, so that XLA can make a transpose after one part of it."""
    loaded = PROGRAMS["looped"]()
    plan = tl.Plan.from_actions(Problem(analyse(loaded), MESH), ["x_rows->d", "ws_dim1->d"])
    program, lowered = plan.program, plan.lowered
    changes = {
        use
        for use in range(program.n_uses)
        if lowered.used[use] != lowered.kept[program.use_value[use]]
    }
    products = {
        int(program.results(op)[0])
        for op in program.ops()
        if program.kind[op] == "dot_general" and changes.intersection(program.uses(op))
    }
    assert len(products) == 2
    assert products.isdisjoint(needed.needed_constraints(loaded, plan))


@pytest.mark.parametrize("name", ["transformer", "gns", "looped"])
def test_the_compiler_makes_the_same_collectives(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = PROGRAMS[name]()
    plan = random_plan(loaded, 1)
    few = tl.compile(loaded, plan, "cpu:4", store=False)
    monkeypatch.setattr("toast_lab.runtime.compile.needed_constraints", lambda *_, **__: None)
    everywhere = tl.compile(loaded, plan, "cpu:4", store=False)
    assert "every op has a sharding constraint" in everywhere.notes[-1]
    assert everywhere.notes[:-1] == few.notes
    assert few.bytes_by_kind() == pytest.approx(everywhere.bytes_by_kind())


def test_passes_that_crash_leave_a_constraint_behind_every_op(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise RunFailed("the child crashed")

    loaded = grouped(8)
    plan = tl.Plan.from_actions(Problem(analyse(loaded), MESH), ["x_rows->m"])
    monkeypatch.setattr(isolate, "run_in_child", crash)
    assert needed.needed_constraints(loaded, plan) is None
    monkeypatch.undo()
    assert needed.needed_constraints(loaded, plan) == frozenset()


def test_results_are_those_of_the_program() -> None:
    loaded = grouped()
    plan = random_plan(loaded, 2)
    run = tl.run(loaded, plan, "cpu:4")
    assert run.agrees, run.max_rel_err
    assert np.isfinite(run.median_s)
