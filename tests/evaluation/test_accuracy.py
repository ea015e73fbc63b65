"""The accuracy run judges today's programs by its committed data.

Its arithmetic is tested on small numbers.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import xml.etree.ElementTree as ET

import holoviews as hv
import pytest

from evaluation.accuracy import cases, dataset, judge, report
from evaluation.accuracy.scatter import Panel, scatter
from evaluation.row_files import Row
from toast_lab.runtime.diff_rows import Side
from toast_lab.views.saved_chart import chart_svg


def rows_of(case: str) -> list[Row]:
    return [row for row in dataset.rows() if row["program"] == case]


def test_every_model_has_plans_enough_on_both_slices() -> None:
    counts = collections.Counter(
        (row["program"], row["topology"]) for row in dataset.rows() if "error" not in row
    )
    ranked = [c for c in cases.CASES if c.most > judge.FEWEST]
    assert len({c.model for c in ranked}) >= 5
    few = {
        (c.name, s.topology): counts[c.name, s.topology]
        for c in ranked
        for s in cases.SLICES
        if counts[c.name, s.topology] < 15
    }
    assert not few


@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_rows_are_of_todays_programs_and_plans(name: str) -> None:
    rows = rows_of(name)
    assert rows
    assert all(dataset.is_current(row) for row in rows)
    for where in cases.SLICES:
        today = {
            draft.name: list(draft.plan.actions) for draft in cases.drafts(name, where.topology)
        }
        assert {
            row["plan"]: row["actions"] for row in rows if row["topology"] == where.topology
        } == today


def test_cycles_add_up_to_those_of_the_plan() -> None:
    rows = [row for row in dataset.rows() if row.get("cycles")]
    assert len(rows) > 150
    for row in rows:
        total = sum(row["cycles_by_op"].values())
        assert total == pytest.approx(row["cycles"], abs=len(row["cycles_by_op"]))
        assert row["compute_s"] == pytest.approx(row["cycles"] / row["clock_hz"])


def test_spearman_counts_ranks_and_needs_plans_enough() -> None:
    numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert judge.spearman(numbers, [n**3 for n in numbers]) == pytest.approx(1.0)
    assert judge.spearman(numbers, [-n for n in numbers]) == pytest.approx(-1.0)
    assert math.isnan(judge.spearman(numbers[:7], numbers[:7]))
    assert math.isnan(judge.spearman(numbers, [1.0] * 8))


def test_a_collective_that_is_priced_as_compiled_takes_the_same_time() -> None:
    """Our own collectives, judged as if they were compiled, take the time that they are priced at.

    Exceptions are gathers, which may be hidden or may need reordering, and sums that would be
    scattered out of order, which are priced as the collectives that XLA makes of them.
    """
    topology = "tpu:v5e:4x4"
    problem = cases.problem_of("mlp", topology)
    judged = [plan for plan in judge.judge() if (plan.case, plan.topology) == ("mlp", topology)]
    exchanged = [{c.op for c in plan.cost.collectives if c.kind == "permute"} for plan in judged]
    others = [
        [c for c in plan.cost.collectives if c.kind != "all_gather" and c.op not in ops]
        for plan, ops in zip(judged, exchanged, strict=True)
    ]
    assert any(others)
    for collectives in others:
        ours = [
            Side(
                c.op,
                "collective_permute" if c.kind == "permute" else c.kind,
                c.axes,
                c.local_bytes,
                1.0,
            )
            for c in collectives
        ]
        priced_s = sum(c.time_s for c in collectives)
        assert sum(judge.link_s(problem, side) for side in ours) == pytest.approx(priced_s)


def test_a_refused_plan_that_we_call_fitting_is_found() -> None:
    (refused, *_) = [one for one in judge.judge() if not one.fits]
    assert refused.least_bytes is not None
    assert refused.limit_bytes is not None
    fitting = refused._replace(cost=dataclasses.replace(refused.cost, peak_bytes=1.0))
    assert fitting._replace(least_bytes=1.11 * refused.limit_bytes).wrongly_fits
    assert not fitting._replace(least_bytes=1.09 * refused.limit_bytes).wrongly_fits
    assert not refused._replace(
        cost=dataclasses.replace(refused.cost, peak_bytes=1e12)
    ).wrongly_fits


def test_misses_are_those_of_the_table() -> None:
    row = judge.Ranked("a", "t", 10, 0.95, 0.9, 0.1, 0, 0)
    assert report.misses([row], [])[:1] == ["median error of peak memory nan%, wanted 15%"]
    assert any("0.500" in line for line in report.misses([row._replace(time=0.5)], []))


def test_the_page_begins_with_what_its_tables_come_to() -> None:
    row = judge.Ranked("a", "t", 10, 0.95, 0.9, 0.1, 2, 0)
    order, memory, _ = report.findings([row, row._replace(case="b", time=0.5)], [])
    assert order.endswith("in 1 of 2 cases (a program on a slice); below it: b on t.")
    assert "4 plans that the compiler refused, none was" in memory
    order, _, _ = report.findings([row, row._replace(time=math.nan)], [])
    assert order.endswith("in 1 of 1 cases (a program on a slice).")
    judged = [one for one in judge.judge() if one.case == "mlp"]
    _, _, collectives = report.findings([row], judged)
    assert collectives.startswith("- **Collectives.** The bytes of all_gather")


def test_the_scatter_has_every_point_in_the_look_of_its_group() -> None:
    points = [("a<b", 1.0, 2.0), ("c", 10.0, 9.0), ("c", 1000.0, 900.0)]
    chart = scatter([Panel("t", points), Panel("u", points[:1])])
    text = chart_svg(chart, one_legend=True)
    root = ET.fromstring(text)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"t", "u", "compiled", "priced", "1", "1,000"} <= set(texts)
    assert sorted(text for text in texts if text in ("a<b", "c")) == ["a<b", "c"], "one legend"
    first, second = chart
    for panel, expected in ((first, points), (second, points[:1])):
        dots = panel.traverse(lambda element: element, [hv.Scatter])
        rows = [row for one in dots for row in one.dframe()[["group", "compiled", "priced"]].values]
        assert [tuple(row) for row in rows] == expected
    looks = {
        hv.Store.lookup_options("bokeh", dots, "style").kwargs["color"]
        for dots in chart.traverse(lambda element: element, [hv.Scatter])
        if dots.label == "a<b"
    }
    assert len(looks) == 1
