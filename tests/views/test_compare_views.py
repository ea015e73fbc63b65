"""Charts and tables that compare plans show the numbers of their prices."""

from __future__ import annotations

import types

import numpy as np
import pytest
from bokeh.models import Span

import toast_lab as tl
from tests.helpers import analysed
from toast_lab.cost.problem import Problem
from toast_lab.lowering.listing import ListingLine, listing_lines
from toast_lab.plan_verbs import Plan
from toast_lab.runtime.diff import compare, predicted
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.views.breakdown import (
    BreakdownRates,
    breakdown_frame,
    shown_breakdown,
)
from toast_lab.views.breakdown_chart import breakdown_chart
from toast_lab.views.chart_style import bokeh_figure
from toast_lab.views.compare_table import PlanEntry, compare_frame, shown_frame
from toast_lab.views.memory_chart import memory_chart
from toast_lab.views.memory_timeline import held_frame, shown_peaks, thinned
from toast_lab.views.plan_tables import (
    collective_rows,
    collective_sums,
    ops_frame,
    shown_ops,
    shown_sums,
)
from toast_lab.views.side_by_side import differing, side_by_side
from toast_lab.views.time_memory import time_memory_frame
from toast_lab.views.time_memory_chart import time_memory_chart

ACTIONS = ((), ("S->data",), ("S@1->data", "H1->model"))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(analysed("attention"), {"data": 4, "model": 2})


@pytest.fixture(scope="module")
def plans(problem: Problem) -> list[ShardingPlan]:
    return [Plan.from_actions(problem, a) for a in ACTIONS]


@pytest.fixture(scope="module")
def entries(problem: Problem, plans: list[ShardingPlan]) -> list[PlanEntry]:
    run = types.SimpleNamespace(
        median_s=2e-3,
        spread_s=4e-4,
        step_times_s=(1e-3,) * 5,
        peak_bytes=2**15,
        devices="cpu:8",
        collectives=(),
    )
    return [
        PlanEntry(
            f"plan {i}", plan.actions, tl.price(problem, plan), run if i == 1 else None, number=i
        )
        for i, plan in enumerate(plans)
    ]


def rates(problem: Problem, entries: list[PlanEntry]) -> dict[str, BreakdownRates]:
    m = problem.machine
    trips = problem.analysis.program.trips
    return {e.name: BreakdownRates(m.memory_bytes_per_s, m.op_overhead_s, trips) for e in entries}


@pytest.mark.parametrize("by", ["kind", "axis"])
def test_the_parts_of_the_breakdown_add_up_to_the_step(
    problem: Problem, entries: list[PlanEntry], by: str
) -> None:
    frame = breakdown_frame(entries, rates(problem, entries), by)
    for e in entries:
        plan_rows = frame[frame["plan"] == e.name]
        assert plan_rows["time_s"].sum() == pytest.approx(e.cost.time_s)
        assert plan_rows[plan_rows["part"].isin(["compute", "memory traffic"])][
            "time_s"
        ].sum() == pytest.approx(e.cost.compute_s)
    shown = shown_breakdown(frame)
    assert (
        shown[shown["part"] == "together"]["time"].tolist() == shown_frame(entries)["step"].tolist()
    )
    bars = bokeh_figure(breakdown_chart(frame, entries)).renderers
    assert max(max(b.data_source.data["right"]) for b in bars) == pytest.approx(
        max(e.cost.time_s for e in entries) * 1e6
    )


def test_an_op_is_compute_if_its_arithmetic_takes_longer_than_its_bytes(
    problem: Problem, entries: list[PlanEntry]
) -> None:
    rate = rates(problem, entries)["plan 0"]
    op = entries[0].cost.ops[0]
    moving_s = op.moved_bytes / rate.memory_bytes_per_s
    for time_s, part in (
        (moving_s + rate.op_overhead_s, "memory traffic"),
        (3 * moving_s + rate.op_overhead_s, "compute"),
    ):
        cost = types.SimpleNamespace(ops=[op._replace(time_s=time_s)], collectives=[])
        frame = breakdown_frame([PlanEntry("x", (), cost)], {"x": rate})
        assert frame.set_index("part")["time_s"][part] == time_s


def test_a_ratio_to_a_price_of_another_machine_says_so(entries: list[PlanEntry]) -> None:
    def elsewhere(machine: str) -> str:
        return "" if machine == "h100" else f"compiled for gpu:h100:8, priced on {machine}"

    compiled = types.SimpleNamespace(
        total_needed_bytes=2.0 * entries[0].cost.peak_bytes,
        topology="gpu:h100:8",
        collectives=(),
        refused=False,
        priced_elsewhere=elsewhere,
    )
    machines = ("h100", "a100", "")
    shown = shown_frame(
        [entries[0]._replace(compiled=compiled, machine=machine) for machine in machines]
    )
    assert shown["compiled ratio"].tolist() == ["2×", "2× for gpu:h100:8", "2×"]


def test_the_front_is_what_no_other_plan_beats(entries: list[PlanEntry]) -> None:
    frame = time_memory_frame(entries)
    estimated = frame[frame["source"] == "estimated"]
    for _, a in estimated.iterrows():
        beaten = any(
            (b["time_s"] <= a["time_s"] and b["peak_bytes"] < a["peak_bytes"])
            or (b["time_s"] < a["time_s"] and b["peak_bytes"] <= a["peak_bytes"])
            for _, b in estimated.iterrows()
        )
        assert a["on_front"] == (not beaten)
    assert frame[frame["source"] == "measured"]["plan"].tolist() == ["plan 1"]
    hidden = [e._replace(shown=e.number != 1) for e in entries]
    assert "plan 1" not in time_memory_frame(hidden)["plan"].tolist()
    plot = bokeh_figure(time_memory_chart(frame, entries))
    fills = {
        r.name: r.glyph.fill_alpha for r in plot.renderers if r.name in ("estimated", "measured")
    }
    assert fills == {"estimated": 0.0, "measured": 1.0}


def test_a_row_holds_estimated_compiled_and_measured(entries: list[PlanEntry]) -> None:
    row = compare_frame(entries).iloc[1]
    cost = entries[1].cost
    assert row["compiled_peak_ratio"] == pytest.approx(2**15 / cost.peak_bytes)
    assert (row["ratio"], row["steps"]) == (pytest.approx(2e-3 / cost.time_s), 5)
    shown = shown_frame(entries).iloc[1]
    assert (shown["measured"], shown["spread"], shown["steps"], shown["on"]) == (
        "2 ms",
        "± 200 µs",
        "5",
        "cpu:8",
    )
    less = {"memory_limit_bytes": cost.peak_bytes - 2048.0, "fits": False}
    tight = entries[1]._replace(cost=types.SimpleNamespace(**{**vars(cost), **less}))
    assert shown_frame([tight])["fits"].tolist() == ["NO: 2.00 KiB over"]


def test_a_thinned_timeline_keeps_its_peak() -> None:
    line = np.random.default_rng(0).random(10_000)
    line[7_777] = 5.0
    ops, held = thinned(line, 100)
    assert len(ops) == len(held) == 100
    assert ops[int(held.argmax())] == 7_777
    assert (np.diff(ops) > 0).all()
    assert (line[ops] == held).all()


def test_what_is_held_at_the_peak_adds_up_to_it(problem: Problem, entries: list[PlanEntry]) -> None:
    where = [problem.analysis.program.where(op) for op in problem.analysis.program.ops()]
    for e in entries:
        assert held_frame(e.cost)["bytes"].sum() == pytest.approx(e.cost.peak_bytes)
    assert len(shown_peaks(entries, where)) == 3
    limited = bokeh_figure(memory_chart(entries, 30 * 1024.0, where))
    assert [span.location for span in limited.select({"type": Span})] == [30.0]
    assert not list(bokeh_figure(memory_chart(entries, 2.0**40, where)).select({"type": Span}))


def test_listings_meet_op_by_op(problem: Problem, plans: list[ShardingPlan]) -> None:
    a, b = (listing_lines(problem, plan) for plan in plans[:2])
    pairs = side_by_side(a, b, [])
    assert [p.left.strip() for p in pairs if p.left] == [x.text for x in a]
    assert [p.right.strip() for p in pairs if p.right] == [x.text for x in b]
    for p in pairs:
        assert p.differs == (p.left != p.right)
        if p.left and p.right:
            assert (
                p.left.partition(" = ")[2].partition("(")[0]
                == p.right.partition(" = ")[2].partition("(")[0]
            )
    assert not any(p.differs for p in side_by_side(a, a, []))
    short = differing(pairs, around=0)
    assert [p for p in short if not isinstance(p, int)] == [p for p in pairs if p.differs]
    assert sum(p if isinstance(p, int) else 1 for p in short) == len(pairs)


def test_collectives_keep_their_number_when_matched_with_compiled_ones(
    problem: Problem, plans: list[ShardingPlan], entries: list[PlanEntry]
) -> None:
    cost, ours = entries[1].cost, predicted(problem, plans[1])
    alone = collective_rows(cost, None)
    assert alone["number"].tolist() == list(range(len(cost.collectives)))
    assert shown_sums(collective_sums(alone, False))["its number"].tolist() == ["–"] * 2
    added = ours[0]._replace(op=0, kind="all_to_all", bytes=64.0)
    matched = compare(problem.analysis.program, problem.mesh, ours, [*ours[1:], added])
    rows = collective_rows(cost, matched.tidy())
    assert sorted(rows["number"].tolist()) == [-1, *range(len(cost.collectives))]
    for r in rows.to_dict("records"):
        if r["number"] >= 0:
            assert cost.collectives[r["number"]].time_s == r["predicted_s"]
    sums = collective_sums(rows, True).set_index("kind")
    assert sums["predicted_count"].to_dict() == {"all_gather": 2, "all_reduce": 1, "all_to_all": 0}
    assert sums["compiled_count"].to_dict() == {"all_gather": 1, "all_reduce": 1, "all_to_all": 1}
    assert sums["predicted_s"].sum() == pytest.approx(cost.comm_s)
    assert sums["compiled_bytes"]["all_to_all"] == 64


def test_ops_and_collectives_share_the_step(entries: list[PlanEntry]) -> None:
    frame = ops_frame(entries[1].cost)
    assert frame["share"].sum() == pytest.approx(1)
    assert frame["time_s"].is_monotonic_decreasing
    assert set(frame["source"]) == {"rule"}
    assert len(shown_ops(frame, 3).frame) == 3
    for scale, titles in (
        (1e3, {"time": "time, ms", "FLOP": "TFLOP", "moved": "GiB moved"}),
        (1.0, {"time": "time, µs", "FLOP": "GFLOP", "moved": "MiB moved"}),
    ):
        sizes = {"time_s": 8e-6 * scale, "flops": 1.6e9 * scale, "moved_bytes": 5e6 * scale}
        shown = shown_ops(frame.head(1).assign(**sizes))
        assert {key: shown.titles[key] for key in titles} == titles
        assert shown.frame["time"].tolist() == [8.0]


def test_within_an_op_equal_lines_meet_and_so_do_those_that_compute() -> None:
    def line(right: str, collective: bool) -> ListingLine:
        return ListingLine(1, 0, "y", "[4]", right, collective)

    gather = line("all_gather x", True)
    slow = line("add(x_, z)", False)
    fast = line("add(x, z)", False)
    after = line("all_reduce y", True)
    pairs = side_by_side([gather, slow, after], [fast, after], [])
    assert [(p.left[10:], p.right[10:], p.differs) for p in pairs] == [
        (gather.text[10:], "", True),
        (slow.text[10:], fast.text[10:], True),
        (after.text[10:], after.text[10:], False),
    ]
