"""The timeline of a step shows the compiler's schedule beside the price."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.helpers import analysed
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.machines.catalogue import MACHINES
from toast_lab.plan_verbs import Plan
from toast_lab.runtime.schedule import COMPUTE, MAX_EVENTS, SYNC, Schedule, ScheduleStep, replay
from toast_lab.search.usual_plans import data_parallel
from toast_lab.views.step_chart import mark_ops, step_figure
from toast_lab.views.step_timeline import (
    bars_frame,
    exposed_frame,
    memory_frame,
    shown_exposed,
)


def priced(overlap: float = 1.0) -> tuple[Cost, list[str]]:
    import dataclasses

    machine = dataclasses.replace(MACHINES["tpu-v5e"], overlap=overlap)
    problem = Problem(analysed("attention"), {"data": 4, "model": 2}, machine)
    program = problem.analysis.program
    plan = Plan.from_actions(problem, data_parallel(problem))
    return price(problem, plan), [program.where(op) for op in range(program.n_ops)]


def scheduled() -> Schedule:
    steps = [
        ScheduleStep(COMPUTE, "fusion", "fusion", 4, 2e-6, memory_bytes=100.0),
        ScheduleStep(SYNC, "ag", "all_gather", 8, 3e-6, memory_bytes=300.0),
        ScheduleStep(COMPUTE, "fusion.1", "fusion", 8, 1e-6, memory_bytes=50.0),
    ]
    return replay(steps).located(lambda op: f"folder/m.py:{op}")


@pytest.mark.parametrize("overlap", [0.0, 0.4, 1.0])
def test_the_price_is_drawn_as_it_counts_overlap(overlap: float) -> None:
    cost, where = priced(overlap)
    bars = bars_frame(cost, None, where)
    assert bars["end_s"].max() == pytest.approx(cost.overlapped_s, rel=1e-9)
    for lane in ("compute", "collective"):
        rows = bars[bars["lane"] == lane].sort_values("start_s")
        starts, ends = rows["start_s"].tolist(), rows["end_s"].tolist()
        assert len(starts) > 1
        assert all(b >= a - 1e-12 for a, b in zip(ends, starts[1:], strict=False))
        assert all(a <= b for a, b in pairwise(starts))
    exposed_s = bars["exposed_s"].sum()
    assert exposed_s == pytest.approx(cost.overlapped_s - cost.compute_s, rel=1e-6)
    if overlap == 0.0:
        assert exposed_s == pytest.approx(cost.comm_s)


def test_both_sides_have_the_lines_of_the_same_ops() -> None:
    cost, where = priced()
    schedule = scheduled().located(lambda op: where[op])
    bars = bars_frame(cost, schedule, where)
    gathers = bars[(bars["kind"] == "all_gather") & (bars["op"] == 8)]
    assert set(gathers["side"]) == {"compiled", "estimated"}
    assert set(gathers["line"]) == {"attention.py:24"}


def test_exposed_communication_is_summed_by_line_longest_first() -> None:
    cost, where = priced()
    frame = exposed_frame(bars_frame(cost, scheduled(), where))
    assert (frame["line"][0], frame["kinds"][0], frame["op"][0]) == ("m.py:8", "all_gather", 8)
    assert frame["compiled"][0] == pytest.approx(3e-6)
    assert frame["compiled"].is_monotonic_decreasing
    assert shown_exposed(frame)["exposed, compiled"][0] == "3 µs"
    assert not len(exposed_frame(bars_frame(cost, None, where).iloc[:0]))


def test_memory_of_both_sides_is_over_the_time_of_the_step() -> None:
    cost, _ = priced()
    memory = memory_frame(cost, scheduled())
    compiled = memory[memory["side"] == "compiled"]
    assert compiled["bytes"].tolist() == [100.0, 300.0, 50.0]
    assert compiled["at_s"].tolist() == pytest.approx([2e-6, 5e-6, 6e-6])
    estimated = memory[memory["side"] == "estimated"]
    assert estimated["bytes"].max() == cost.peak_bytes
    assert estimated["at_s"].is_monotonic_increasing
    assert estimated["at_s"].max() <= cost.overlapped_s


def test_the_figure_has_the_bars_in_one_unit_and_outlines_ops() -> None:
    cost, where = priced()
    bars = bars_frame(cost, scheduled(), where)
    plot = step_figure(bars, memory_frame(cost, scheduled()))
    compute = plot.select_one({"name": "compute"}).data_source.data
    assert len(compute["op"]) == int((bars["lane"] == "compute").sum())
    assert compute["right"][list(compute["side"]).index("compiled")] == pytest.approx(2.0)
    exposed = plot.select_one({"name": "exposed"}).data_source.data
    assert np.all(exposed["right"] - exposed["left"] > 0)
    legend = plot.select_one({"name": "memory over time"}).legend
    assert [item.label.value for item in legend.items] == ["memory, compiled", "memory, estimated"]
    alone = step_figure(bars_frame(cost, None, where), memory_frame(cost, None))
    legend = alone.select_one({"name": "memory over time"}).legend
    assert [item.label.value for item in legend.items] == ["memory, estimated"]
    marked = plot.select_one({"name": "marked"}).data_source
    assert not len(marked.data["left"])
    mark_ops(plot, bars, [8])
    assert "compiled: collectives" in marked.data["lane"]
    assert len(marked.data["left"]) == int((bars["op"] == 8).sum())


def test_of_a_large_program_the_shortest_bars_are_left_out() -> None:
    cost, where = priced()
    longest = max(row.time_s for row in cost.ops)
    steps = [ScheduleStep(COMPUTE, f"f{i}", "fusion", 4, 1e-9) for i in range(3 * MAX_EVENTS)]
    schedule = replay([*steps, ScheduleStep(COMPUTE, "long", "fusion", 8, longest)])
    bars = bars_frame(cost, schedule, where)
    assert len(bars[bars["side"] == "compiled"]) <= MAX_EVENTS
    assert 8 in set(bars[bars["side"] == "compiled"]["op"])
