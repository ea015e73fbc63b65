"""A price list from compiled plans: the times of their steps by a compiler's clock.

    problem.with_prices(compiled_prices(problem, [(plan, compiled)]))

is the same problem, in which that plan takes the time that the compiler's clock gives it, and other
plans use these times for the steps that they share with it.

A compiler's clock times fusions and loops, each named after one op of the program; a price is for
steps. Computing times are therefore compared by the op at which a fusion of the cost model ends:
the compiler's time there is divided among the steps priced there, in proportion to their prices.
Where only the compiler has a time, it goes to that op's own step. Where only the cost model has
one, the compiler counts that work at a neighbour: both keep their shares, and all times are scaled
so that their sum is the compiler's. Communication counts as far as the schedule leaves it exposed.
Reference: TOAST section 4.5 has rules only.
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

#: Least and most that the times of other steps are scaled by: rules are trusted within these.
SCALES = (0.25, 4.0)


def compiled_prices(problem: Problem, judged: Sequence[tuple[ShardingPlan, Compiled]]) -> PriceList:
    """A price list by which each judged plan takes the time that the compiler's clock gives it.

    Where plans share a step that took different times, the later plan's time holds.

    Args:
        problem: the problem of the plans, with any price list; its machine is the one that the
            plans were compiled for.
        judged: plans with their results of ``compile_plan``.

    Raises:
        InvalidPlan: a result is of another plan, was refused, or has no times.
        InvalidProblem: a plan was compiled for another machine than the problem's.
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
            is_communication = int(totals.steps.kind[row] != COMPUTE)
            sums[is_communication] += seconds, totals.each.time_s[row]
    scales = [
        float(np.clip(judged_s / rule_s, *SCALES)) if rule_s > 0.0 else 1.0
        for judged_s, rule_s in sums
    ]
    return PriceList(tuple(entries), *scales)


def _check(problem: Problem, plan: ShardingPlan, compiled: Compiled) -> None:
    plan.check_is_of(problem.analysis.program, problem.mesh)
    if compiled.plan_key != plan.key:
        raise InvalidPlan(
            f"this was compiled from plan {compiled.plan_key:016x}, but the plan given is "
            f"{plan.key:016x}; compile that one"
        )
    if other := compiled.priced_elsewhere(problem.machine.name):
        raise InvalidProblem(f"{other}: times on one machine cannot price plans on another")
    if not sum(compiled.compute_s_by_op.values()):
        raise InvalidPlan(f"the compiler for {compiled.topology} gave no times for this plan")


def _step_times(problem: Problem, totals: Totals, compiled: Compiled) -> dict[int, float]:
    """Seconds of steps by the compiler's clock, by row; steps without a time are left out."""
    compute_s_by_op, schedule = compiled.compute_s_by_op, compiled.schedule
    steps, n_steps = totals.steps, totals.n_steps
    kind, op = steps.kind[:n_steps], steps.op[:n_steps]
    priced = totals.each.time_s[:n_steps]
    compute_row = {int(op[row]): int(row) for row in np.flatnonzero(kind == COMPUTE)}
    kernel_of = problem.prices.inputs.memory.ends_at
    rows_at: dict[int, list[int]] = collections.defaultdict(list)
    for op_index, row in compute_row.items():
        if priced[row] > 0.0:
            rows_at[int(kernel_of[op_index])].append(row)
    judged_at: dict[int, float] = collections.defaultdict(float)
    for op_index, seconds in compute_s_by_op.items():
        if op_index >= 0:
            judged_at[int(kernel_of[op_index])] += seconds
    uncompiled_s = sum(
        priced[row] for kernel, rows in rows_at.items() if kernel not in judged_at for row in rows
    )
    compiled_s = sum(compute_s_by_op.values())
    # The times add up to the compiler's total, which includes work that belongs to no op.
    scale = compiled_s / (sum(judged_at.values()) + uncompiled_s)
    time_s: dict[int, float] = {}
    for kernel in {**judged_at, **rows_at}:
        rows = rows_at.get(kernel) or ([compute_row[kernel]] if kernel in compute_row else [])
        total = sum(priced[row] for row in rows)
        seconds = judged_at.get(kernel, total) * scale
        for row in rows:
            time_s[row] = seconds * (priced[row] / total if total else 1.0 / len(rows))
    if schedule is not None:
        exposed = schedule.exposed_s_by_op
        communication_rows = np.flatnonzero((kind != COMPUTE) & (kind != SLICE) & (priced > 0.0))
        rows_of: dict[int, list[int]] = collections.defaultdict(list)
        for row in communication_rows.tolist():
            rows_of[int(op[row])].append(row)
        for op_index, rows in rows_of.items():
            total = sum(priced[row] for row in rows)
            for row in rows:
                time_s[row] = exposed.get(op_index, 0.0) * priced[row] / total
        # Exposed time at ops where no communication is priced is spread over all.
        unplaced = sum(seconds for op_index, seconds in exposed.items() if op_index not in rows_of)
        total = sum(priced[row] for row in communication_rows.tolist())
        for row in communication_rows.tolist():
            time_s[row] += unplaced * priced[row] / total
    return time_s


def _entries(
    problem: Problem, totals: Totals, codes: np.ndarray, time_s: Mapping[int, float]
) -> tuple[PriceEntry, ...]:
    """One entry for each class of ops and layout code: the mean over all its steps."""
    steps, op_class = totals.steps, problem.prices.op_class
    program = problem.analysis.program
    rows_of: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
    for row in range(totals.n_steps):
        rows_of[int(op_class[steps.op[row]]), int(codes[row])].append(row)
    entries = []
    for (_, code), rows in rows_of.items():
        known_times_s = [time_s[row] for row in rows if row in time_s]
        if known_times_s:
            op, kind = int(steps.op[rows[0]]), int(steps.kind[rows[0]])
            name = program.kind[op] if kind == COMPUTE else STEP_KINDS[kind]
            entries.append(
                PriceEntry(
                    op=op,
                    code=code,
                    time_s=sum(known_times_s) / len(rows),
                    source=COMPILED,
                    subject=f"{name} at {program.where(op)}",
                )
            )
    return tuple(entries)
