"""Priced and compiled collectives side by side.

Every rule on hand-made sides, and whole programs on virtual CPUs.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.runtime.test_run import MESH, small_step
from toast_lab import frontends
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan
from toast_lab.ir.model import Model
from toast_lab.plan_verbs import Plan
from toast_lab.runtime import diff
from toast_lab.runtime.compile import compile_plan
from toast_lab.runtime.diff import Side, compare, diff_compiled
from toast_lab.runtime.run import run
from toast_lab.sharding.mesh import make_mesh


def problem_of(model: Model, mesh: dict[str, int]) -> Problem:
    return Problem(analyse(model), mesh, "cpu")


@pytest.fixture(scope="module")
def model() -> Model:
    return frontends.load("mlp")


@pytest.fixture(scope="module")
def product(model: Model) -> int:
    return next(op for op in model.program.ops() if model.program.kind[op] == "dot_general")


def one(
    model: Model, ours: list[Side], theirs: list[Side], remats: tuple[int, ...] = ()
) -> list[tuple[str, str]]:
    found = compare(model.program, make_mesh(MESH), ours, theirs, remats)
    assert sum(r.predicted is not None for r in found.rows) == len(ours), "none is lost"
    return [(row.status, row.reason) for row in found.rows]


def test_rules(model: Model, product: int) -> None:
    """Each pair of sides that differs in one way has the reason for that way."""
    w = next(
        name for name in model.program.value_name if model.program.value_dtype[0] == "f32" and name
    )
    gather = Side(product, "all_gather", ("d",), 4096.0, 1.0, w)
    scatter = Side(product, "reduce_scatter", ("d",), 4096.0, 1.0, w)
    move = Side(product, "all_to_all", ("m",), 4096.0, 1.0, w)
    permute = Side(product, "collective_permute", ("d",), 1024.0, 1.0, "", "f32")
    r = gather._replace

    def s(side: Side, **changes: object) -> list[Side]:
        return [side._replace(value="", dtype="f32", **changes)]

    expected = [
        ([gather], s(gather), (diff.EQUAL, "")),
        ([gather], [r(bytes=2048.0, dtype="bf16")], (diff.CHANGED, diff.NARROWER)),
        ([gather], s(gather, times=4.0), (diff.CHANGED, diff.OTHER_TIMES)),
        ([scatter], s(scatter, kind="all_reduce"), (diff.CHANGED, diff.SUM_AND_SLICE)),
        ([scatter], s(scatter, kind="all_reduce", bytes=1024.0), (diff.CHANGED, diff.IDLE)),
        ([scatter._replace(kind="all_reduce")], s(scatter), (diff.CHANGED, diff.SCATTERED)),
        ([gather], [permute] * 3, (diff.CHANGED, diff.WINDOWED)),
        ([gather], s(gather, op=-1), (diff.CHANGED, diff.OTHER_OP)),
        ([gather], s(gather, bytes=100.0), (diff.CHANGED, diff.OTHER_SIZE)),
        ([gather], s(gather, axes=("d", "m")), (diff.CHANGED, diff.OTHER_AXES)),
        ([move], s(move, kind="all_gather"), (diff.CHANGED, diff.OTHER_ROUTE)),
        ([gather], [], (diff.MISSING, "")),
        ([], s(gather), (diff.EXTRA, "")),
    ]
    for ours, theirs, wanted in expected:
        assert one(model, ours, theirs) == [wanted], wanted


def test_one_for_two_equal_ones_is_shared_and_two_for_one_repeated(
    model: Model, product: int
) -> None:
    gather = Side(product, "all_gather", ("d",), 4096.0, 1.0, "w")
    compiled = gather._replace(value="", dtype="f32")
    assert sorted(one(model, [gather, gather], [compiled])) == [
        (diff.EQUAL, ""),
        (diff.MISSING, diff.SHARED),
    ]
    assert sorted(one(model, [gather], [compiled, compiled])) == [
        (diff.EQUAL, ""),
        (diff.EXTRA, diff.REPEATED),
    ]


def test_what_the_partitioner_gave_up_on_is_said(model: Model, product: int) -> None:
    extra = Side(product, "all_gather", ("m",), 4096.0, 1.0, "", "f32")
    assert one(model, [], [extra], (product,)) == [(diff.EXTRA, diff.REMATERIALISED)]


def test_a_plan_on_virtual_devices_is_explained_in_full() -> None:
    model = small_step()
    problem = problem_of(model, MESH)
    plan = Plan.from_actions(problem, [("batch", "d"), ("inner", "d")])
    found = diff_compiled(problem, plan, compile_plan(model, plan, "cpu:8", store=False))
    assert found.rows
    assert not found.unexplained, str(found)
    priced = price(problem, plan)
    assert sum(row.predicted is not None for row in found.rows) == len(priced.collectives)
    assert {row.where.rsplit(":", 1)[0].rsplit("/", 1)[-1] for row in found.rows} == {"test_run.py"}
    tidy = found.tidy()
    assert len(tidy) == len(found.rows)
    assert len({tuple(row) for row in tidy}) == 1, "the same keys everywhere"
    ours, theirs = found.bytes_by_kind()["all_gather"]
    assert ours == theirs == 8192.0


def test_a_run_can_be_compared_too() -> None:
    model = small_step()
    problem = problem_of(model, MESH)
    plan = Plan.from_actions(problem, [("batch", "d"), ("inner", "d")])
    ran = run(model, plan, "cpu:8", repeats=1, warmup=0, reference=False)
    assert not diff_compiled(problem, plan, ran).unexplained


def test_results_of_other_plans_and_refusals_are_refused() -> None:
    model = small_step()
    problem = problem_of(model, MESH)
    plan = Plan.from_actions(problem, [("batch", "d")])
    other = Plan.from_actions(problem, [("batch", "m")])
    compiled = compile_plan(model, plan, "cpu:8", store=False)
    with pytest.raises(InvalidPlan, match=f"{other.key:016x}"):
        diff_compiled(problem, other, compiled)
    refused = dataclasses.replace(compiled, fits=False, needed_bytes=2.0**34, limit_bytes=2.0**33)
    with pytest.raises(InvalidPlan, match=r"16\.00 GiB of 8\.00 GiB"):
        diff_compiled(problem, plan, refused)
