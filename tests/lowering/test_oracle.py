"""Our collectives are Shardy's, or differ for a known reason.

Each reason is found on a program made for it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from evaluation.certification.shardy import lowering, routes
from evaluation.certification.shardy.lowering import Transfer
from tests.helpers import model
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.frontends import from_jax
from toast_lab.ir.model import Model
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.plan import ShardingPlan

S = jax.ShapeDtypeStruct
F = jnp.float32


def planned(m: Model, mesh: dict[str, int], *actions: str) -> tuple[Problem, ShardingPlan]:
    problem = Problem(analyse(m), mesh, "cpu")
    return problem, Plan.from_actions(problem, actions)


MLP = {"batch": 32, "inputs": 8, "hidden": 16, "outputs": 8}


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (("B->d", "U->m"), [("all_reduce", ("m",), 512.0)]),
        (("B->d", "X->d"), [("all_gather", ("d",), 512.0)]),
    ],
)
def test_megatron_and_fsdp_are_what_shardy_makes_of_them(
    actions: tuple[str, ...], expected: list[object]
) -> None:
    m = model("mlp", **MLP)
    problem, plan = planned(m, {"d": 2, "m": 4}, *actions)
    found = lowering.shardy_collectives(m, plan)
    assert [t[1:] for t in found] == expected
    assert routes.compare_with_shardy(m, plan).equal
    priced = [(c.kind, c.axes, c.local_bytes) for c in price(problem, plan).collectives]
    assert [t[1:] for _, t in lowering.ours(plan)] == priced


def test_sums_over_several_axes_of_which_some_are_scattered() -> None:
    m = model("mlp", **MLP)
    _, plan = planned(m, {"d": 2, "m": 4}, "X->m", "X->d", "W->d", "U->m")
    found = routes.compare_with_shardy(m, plan)
    (difference,) = [d for d in found.differences if d.name == "y"]
    assert difference.reason == routes.SUM_THEN_SLICE
    assert difference.ours[0][1:3] == ("reduce_scatter", ("m",))
    assert [t[1:3] for t in difference.theirs] == [("all_reduce", ("d", "m"))]
    # Bytes that are handled; an all_reduce sends them twice
    assert difference.bytes[0] > difference.bytes[1]


def test_a_value_that_no_use_wants_as_it_is_kept() -> None:
    def glue(x, y):
        return jnp.concatenate([x, y], axis=0)[1:9] * 2.0

    m = from_jax(glue, S((8, 16), F), S((8, 16), F))
    _, plan = planned(m, {"d": 8}, "x.0->d", "x.1->d")
    (joined,) = m.program.results(m.program.kind.index("concatenate"))
    assert plan.value_dim[joined].tolist() == [0]  # the state cuts it by rows
    # It stays as the op makes it, since its use reads it so
    assert plan.value_specs()[joined] == ((), ("d",))
    found = routes.compare_with_shardy(m, plan)
    assert found.n_ours
    assert found.equal


def lowered(m: Model, plan: ShardingPlan) -> lowering.Lowered:
    (found,) = lowering.lower_with_shardy(m, [plan])
    assert not found.failure
    return found


def test_what_no_reason_explains_stays_unexplained() -> None:
    """The judge itself works: it does not explain differences that have no reason.

    Neither a missing gather of Shardy's nor one with other axes is explained.
    """
    m = model("mlp", **MLP)
    _, plan = planned(m, {"d": 2, "m": 4}, "B->d", "X->d", "U->m")
    found, narrower = lowered(m, plan), routes.ops_of_other_rule(m)
    assert routes.compare(plan, found, narrower).equal
    gathers = [i for i, row in enumerate(found.collectives) if row.kind == "all_gather"]
    assert gathers
    less = found._replace(
        collectives=[r for i, r in enumerate(found.collectives) if i != gathers[0]]
    )
    assert routes.compare(plan, less, narrower).unexplained
    row = found.collectives[gathers[0]]
    other = list(found.collectives)
    other[gathers[0]] = row._replace(axes=("m",), after=(("d",), ("m",)))
    assert routes.compare(plan, found._replace(collectives=other), narrower).unexplained


def test_a_pass_that_fails_or_dies_is_told_and_the_next_plan_goes_on() -> None:
    m = model("mlp", **MLP)
    _, plan = planned(m, {"d": 2, "m": 4}, "B->d")
    text = lowering.annotate(m, plan, scattered=False, numbered=True)
    bad, good = lowering.lower_texts(["not a module", text])
    assert bad.failure
    assert not good.failure


def test_ops_whose_rule_is_ours_alone() -> None:
    m = from_jax(lambda x, w: (jnp.tanh(x @ w), jax.lax.erf_inv(x)), S((8, 16), F), S((16, 8), F))
    kinds = {m.program.kind[op] for op in routes.ops_of_other_rule(m)}
    assert kinds == {"chlo.erf_inv"}


@pytest.mark.parametrize(
    ("axes", "found"),
    [
        (("m", "d"), ("d", "m")),
        (("m:(2)2", "m:(1)2"), ("m",)),
        (("m:(1)2", "d"), ("d", "m:(1)2")),
        ((), ()),
    ],
)
def test_axes_in_mesh_order(axes: tuple[str, ...], found: tuple[str, ...]) -> None:
    _, plan = planned(model("mlp", **MLP), {"d": 2, "m": 4}, "B->d")
    assert lowering.in_mesh_order(axes, plan.mesh) == found


def test_pieces_count_parts_of_axes() -> None:
    _, plan = planned(model("mlp", **MLP), {"d": 2, "m": 4}, "B->d")
    assert lowering.ways([("d", "m:(1)2"), ()], plan.mesh) == 4
    assert str(Transfer(3, "permute", ("d", "m"), 64.0)) == "permute {d,m} of 64 bytes"
