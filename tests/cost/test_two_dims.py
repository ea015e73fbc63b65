"""The time to scatter and gather values that two mesh axes cut along two dims."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import toast_lab as tl
from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.collectives import named_time_s
from toast_lab.sharding.plan import make_plan
from toast_lab.sharding.step_kinds import ALL_GATHER, COMPUTE, PERMUTE, REDUCE_SCATTER

SIDE, ROWS = 4096, 8192
MESH = {"d": 4, "m": 2}


def product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    return jnp.einsum("ij,jk->ik", x, matrix)


def problem_of(machine: str, *, paper_mode: bool = False) -> tl.Problem:
    shapes = ((ROWS, SIDE), (SIDE, SIDE))
    leaves = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    analysis = tl.analyse(tl.from_jax(product, *leaves))
    return tl.Problem(analysis, MESH, machine, paper_mode=paper_mode)


def moved_s(problem: tl.Problem, kind: int, cut: tuple[int, int]) -> float:
    """Return the seconds of the only collective of a kind.

    It scatters the result of a product or gathers its second operand; ``cut`` is the dim that each
    mesh axis cuts.
    """
    program = problem.analysis.program
    scatters = kind == REDUCE_SCATTER
    along = "x.1" if scatters else "x.0"
    sharding = tl.Plan.from_actions(problem, [(along, "d"), (along, "m")]).sharding.copy()
    value = program.outputs[0] if scatters else program.results(1)[0]
    sharding.value_dim[value] = cut
    plan = make_plan(problem.analysis, problem.mesh, sharding, key=sharding.key())
    totals = problem.prices.totals(plan.op_factor, plan.value_dim)
    (row,) = [row for row in range(totals.n_steps) if totals.steps.kind[row] == kind]
    return float(totals.each.time_s[row])


@pytest.mark.parametrize("machine", ["tpu-v3", "tpu-v5e", "h100", "a100"])
def test_a_sum_scattered_along_two_dims_is_a_sum_of_all(machine: str) -> None:
    problem = problem_of(machine)
    whole_s = named_time_s(
        "all_reduce",
        ("d", "m"),
        2.0 * ROWS * SIDE,
        mesh=problem.mesh,
        links=problem.prices.links,
    )
    for cut in ((0, 1), (1, 0)):
        assert moved_s(problem, REDUCE_SCATTER, cut) == pytest.approx(whole_s)
    assert moved_s(problem, REDUCE_SCATTER, (0, 0)) < 0.6 * whole_s


def test_the_paper_scatters_along_two_dims() -> None:
    problem = problem_of("tpu-v3", paper_mode=True)
    one_s, two_s = (moved_s(problem, REDUCE_SCATTER, cut) for cut in ((0, 0), (0, 1)))
    assert one_s == two_s


@pytest.mark.parametrize("machine", ["tpu-v5e", "tpu-v6e", "h100"])
def test_what_is_gathered_along_two_dims_is_put_in_order(machine: str) -> None:
    problem = problem_of(machine)
    along_one = [moved_s(problem, ALL_GATHER, cut) for cut in ((0, 0), (1, 1))]
    along_two = [moved_s(problem, ALL_GATHER, cut) for cut in ((0, 1), (1, 0))]
    assert along_one[0] == along_one[1]
    rate = MACHINES[machine].transposed_numbers_per_s
    order_s = SIDE * SIDE / rate if rate else 0.0
    assert along_two == pytest.approx([along_one[0] + order_s] * 2)


def steps_s(problem: tl.Problem, rows: str, summed: str) -> dict[int, float]:
    """Return the seconds, by kind of step, of a product whose sum is scattered along its rows.

    The axis ``rows`` cuts the rows, the axis ``summed`` the contracted dim.
    """
    sharding = tl.Plan.from_actions(problem, [("x.0", rows), ("x.1", summed)]).sharding.copy()
    sharding.value_dim[problem.analysis.program.outputs[0]] = (0, 0)
    plan = make_plan(problem.analysis, problem.mesh, sharding, key=sharding.key())
    totals = problem.prices.totals(plan.op_factor, plan.value_dim)
    kinds = totals.steps.kind[: totals.n_steps].tolist()
    assert len(set(kinds)) == len(kinds)
    return dict(zip(kinds, totals.each.time_s[: totals.n_steps].tolist(), strict=True))


@pytest.mark.parametrize("machine", ["tpu-v3", "tpu-v5e", "h100"])
def test_a_sum_scattered_out_of_order_is_made_of_whole_rows(machine: str) -> None:
    """XLA permutes nothing after a scattered sum: devices gather the rows that they multiply."""
    problem = problem_of(machine)
    in_order = steps_s(problem, rows="d", summed="m")
    assert set(in_order) == {COMPUTE, REDUCE_SCATTER}
    out_of_order = steps_s(problem, rows="m", summed="d")
    assert set(out_of_order) == {COMPUTE, REDUCE_SCATTER, PERMUTE}
    priced_as_told = problem_of(machine, paper_mode=True)
    exchanged = steps_s(priced_as_told, rows="m", summed="d")

    def sent_s(kind: str, axis: str, in_bytes: float) -> float:
        return float(
            named_time_s(kind, (axis,), in_bytes, mesh=problem.mesh, links=problem.prices.links)
        )

    # Rows are cut in two, the contracted dim in four.
    assert out_of_order[PERMUTE] == pytest.approx(sent_s("all_gather", "m", 2 * ROWS * SIDE / 4))
    assert out_of_order[REDUCE_SCATTER] == pytest.approx(sent_s("all_reduce", "d", 2 * ROWS * SIDE))
    assert exchanged[REDUCE_SCATTER] < out_of_order[REDUCE_SCATTER]
    assert out_of_order[COMPUTE] > 1.9 * exchanged[COMPUTE]
