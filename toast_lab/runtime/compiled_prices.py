"""What a compiler said of some plans, as a price list.

    problem.with_prices(compiled_prices(problem, [(plan, compiled)]))

is the same problem, in which that plan takes what the compiler's clock says of it, and every other
plan as much of that as it shares with it.

A compiler's clock is of fusions and loops, each named after one op of ours; a price is of steps.
So times of computing are compared by the op at which a fusion of ours runs: what the compiler has
there is shared out over the steps priced there, in proportion to their prices.  Where only the
compiler has something, it goes to that op's own step; where only we have something, the compiler
has it in a neighbour: both keep their shares, and everything is made smaller by that much.
Communication is what the schedule leaves exposed.  Reference: TOAST section 4.5 has rules only.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

import numpy as np

from toast_lab.cost.price_codes import step_codes
from toast_lab.cost.price_list import COMPILED, NO_PRICES, PriceEntry, PriceList
from toast_lab.cost.problem import Problem
from toast_lab.cost.program_prices import Totals
from toast_lab.errors import InvalidPlan, InvalidProblem
from toast_lab.runtime.compiled import Compiled
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.step_kinds import COMPUTE, SLICE, STEP_KINDS

#: A program's rules are trusted to be off by no more than these factors.
SCALES = (0.25, 4.0)


def compiled_prices(problem: Problem, judged: Sequence[tuple[ShardingPlan, Compiled]]) -> PriceList:
    """A list by which the price of each plan is what the compiler's clock says.

    Where plans share a step that took different times, the later plan's holds.

    Args:
        problem: that the plans are of, whatever its price list; its machine is the one that was
            compiled for.
        judged: plans with what ``compile_plan`` gave for them.

    Raises:
        InvalidPlan: compiled from another plan, refused, or by a compiler that tells no times.
        InvalidProblem: compiled for another machine than the problem's.
    """
    entries: list[PriceEntry] = []
    sums = np.zeros((2, 2))  # computing and moving; judged and by rule
    by_rule = problem.with_prices(NO_PRICES)
    for plan, compiled in judged:
        _check(problem, plan, compiled)
        totals = by_rule.prices.totals(plan.op_factor, plan.value_dim)
        time_s = _step_times(by_rule, totals, compiled)
        codes = np.zeros(totals.n_steps, np.int64)
        step_codes(by_rule.prices.inputs, totals.steps, totals.n_steps, codes)
        entries += _entries(by_rule, totals, codes, time_s)
        for row, seconds in time_s.items():
            moving = int(totals.steps.kind[row] != COMPUTE)
            sums[moving] += seconds, totals.each.time_s[row]
    scales = [
        float(np.clip(told / by_rules, *SCALES)) if by_rules > 0.0 else 1.0
        for told, by_rules in sums
    ]
    return PriceList(tuple(entries), *scales)


def _check(problem: Problem, plan: ShardingPlan, compiled: Compiled) -> None:
    plan.check_is_of(problem.analysis.program, problem.mesh)
    if compiled.plan_key != plan.key:
        raise InvalidPlan(
            f"compiled from the plan {compiled.plan_key:016x}, this one is {plan.key:016x}; "
            "compile this one"
        )
    if other := compiled.priced_elsewhere(problem.machine.name):
        raise InvalidProblem(f"{other}: times of one machine are no prices of another")
    if not sum(compiled.compute_s_by_op.values()):
        raise InvalidPlan(f"the compiler for {compiled.topology} told no times of this plan")


def _step_times(problem: Problem, totals: Totals, compiled: Compiled) -> dict[int, float]:
    """What steps take by the compiler's clock, by row; those that it does not tell are left out."""
    computing, schedule = compiled.compute_s_by_op, compiled.schedule
    steps, n_steps = totals.steps, totals.n_steps
    kind, op = steps.kind[:n_steps], steps.op[:n_steps]
    priced = totals.each.time_s[:n_steps]
    compute_row = {int(op[row]): int(row) for row in np.flatnonzero(kind == COMPUTE)}
    kernel_of = problem.prices.inputs.memory.ends_at
    rows_at: dict[int, list[int]] = collections.defaultdict(list)
    for number, row in compute_row.items():
        if priced[row] > 0.0:
            rows_at[int(kernel_of[number])].append(row)
    judged_at: dict[int, float] = collections.defaultdict(float)
    for number, seconds in computing.items():
        if number >= 0:
            judged_at[int(kernel_of[number])] += seconds
    elsewhere = sum(
        priced[row] for at, rows in rows_at.items() if at not in judged_at for row in rows
    )
    whole = sum(computing.values())
    # So that all of it adds up to what the compiler has, what belongs to no op included.
    scale = whole / (sum(judged_at.values()) + elsewhere)
    time_s: dict[int, float] = {}
    for at in {**judged_at, **rows_at}:
        rows = rows_at.get(at) or ([compute_row[at]] if at in compute_row else [])
        total = sum(priced[row] for row in rows)
        seconds = judged_at.get(at, total) * scale
        for row in rows:
            time_s[row] = seconds * (priced[row] / total if total else 1.0 / len(rows))
    if schedule is not None:
        exposed = schedule.exposed_s_by_op
        moving = np.flatnonzero((kind != COMPUTE) & (kind != SLICE) & (priced > 0.0))
        rows_of: dict[int, list[int]] = collections.defaultdict(list)
        for row in moving.tolist():
            rows_of[int(op[row])].append(row)
        for number, rows in rows_of.items():
            total = sum(priced[row] for row in rows)
            for row in rows:
                time_s[row] = exposed.get(number, 0.0) * priced[row] / total
        # What the compiler has at ops where nothing is priced is spread over all.
        unplaced = sum(seconds for number, seconds in exposed.items() if number not in rows_of)
        total = sum(priced[row] for row in moving.tolist())
        for row in moving.tolist():
            time_s[row] += unplaced * priced[row] / total
    return time_s


def _entries(
    problem: Problem, totals: Totals, codes: np.ndarray, time_s: Mapping[int, float]
) -> tuple[PriceEntry, ...]:
    """One entry for each class of ops and layout: the mean over all steps that it is for."""
    steps, op_class = totals.steps, problem.prices.op_class
    program = problem.analysis.program
    rows_of: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
    for row in range(totals.n_steps):
        rows_of[int(op_class[steps.op[row]]), int(codes[row])].append(row)
    entries = []
    for (_, code), rows in rows_of.items():
        known = [time_s[row] for row in rows if row in time_s]
        if known:
            op, kind = int(steps.op[rows[0]]), int(steps.kind[rows[0]])
            name = program.kind[op] if kind == COMPUTE else STEP_KINDS[kind]
            entries.append(
                PriceEntry(
                    op=op,
                    code=code,
                    time_s=sum(known) / len(rows),
                    source=COMPILED,
                    subject=f"{name} at {program.where(op)}",
                )
            )
    return tuple(entries)
