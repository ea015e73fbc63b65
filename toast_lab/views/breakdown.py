"""Where the estimated step time of each plan goes, with collectives by kind or by mesh axis.

``breakdown_chart`` draws it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from toast_lab.cost.problem import Problem
from toast_lab.views.compare_table import PlanEntry, seconds_text

COMPUTE, TRAFFIC = "compute", "memory traffic"
GROUPINGS = {"by kind": "kind", "by mesh axis": "axis"}


class BreakdownRates(NamedTuple):
    """Numbers of a machine and a program by which compute and memory traffic are told apart."""

    memory_bytes_per_s: float
    op_overhead_s: float
    #: how often one step runs each op
    trips: Sequence[float]


def breakdown_rates(problem: Problem) -> BreakdownRates:
    """The rates of a problem's machine and program."""
    machine = problem.machine
    return BreakdownRates(
        memory_bytes_per_s=machine.memory_bytes_per_s,
        op_overhead_s=machine.op_overhead_s,
        trips=problem.analysis.program.trips.tolist(),
    )


def breakdown_frame(
    entries: Iterable[PlanEntry], rates: Mapping[str, BreakdownRates], by: str = "kind"
) -> pd.DataFrame:
    """Seconds of one step by plan and part; the parts of a plan add up to its estimated step time.

    Args:
        entries: plans; those that are not shown are left out.
        rates: rates by plan; without them all op time of a plan counts as compute.
        by: group collectives by "kind", or by the mesh "axis" that they run over.

    The cost model takes the longer of an op's arithmetic and its memory traffic, plus the time to
    start it. An op counts as memory traffic if moving its bytes explains its time, else as
    compute.
    """
    parts_of_plans = []
    for entry in entries:
        if not entry.shown:
            continue
        part_seconds = _op_seconds(entry.cost, rates.get(entry.name))
        for collective in entry.cost.collectives:
            part_name = collective.kind if by == "kind" else f"over {','.join(collective.axes)}"
            part_seconds[part_name] = part_seconds.get(part_name, 0.0) + collective.time_s
        parts_of_plans += [
            (entry.name, part_name, seconds, entry.number)
            for part_name, seconds in part_seconds.items()
        ]
    return pd.DataFrame(parts_of_plans, columns=["plan", "part", "time_s", "number"])


def _op_seconds(cost: Any, rates: BreakdownRates | None) -> dict[str, float]:
    """Seconds of the ops of a step, as compute and as memory traffic."""
    if rates is None:
        return {COMPUTE: cost.compute_s}
    seconds: dict[str, float] = {COMPUTE: 0.0, TRAFFIC: 0.0}
    for op_cost in cost.ops:
        moving_s = op_cost.moved_bytes / rates.memory_bytes_per_s
        starting_s = rates.op_overhead_s * rates.trips[op_cost.op]
        is_moving = op_cost.time_s - moving_s <= starting_s + 1e-6 * op_cost.time_s
        seconds[TRAFFIC if is_moving else COMPUTE] += op_cost.time_s
    return seconds


def shown_breakdown(frame: pd.DataFrame) -> pd.DataFrame:
    """The table for display: a row for each part of a plan, then one for all of them together."""
    table_rows = []
    for plan_name, plan_parts in frame.groupby("plan", sort=False):
        step_s = float(plan_parts["time_s"].sum())
        part_seconds = [*zip(plan_parts["part"], plan_parts["time_s"], strict=True)]
        table_rows += [
            (plan_name, part_name, seconds_text(seconds), share_text(seconds, step_s))
            for part_name, seconds in [*part_seconds, ("together", step_s)]
        ]
    return pd.DataFrame(table_rows, columns=["plan", "part", "time", "share"])


def share_text(seconds: float, step_s: float) -> str:
    """``12.5%`` of a step."""
    return f"{seconds / step_s:.1%}" if step_s else "–"
