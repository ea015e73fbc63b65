"""The public charts: their elements, what they refuse, and that they can be combined."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import holoviews as hv
import pytest
from bokeh.document import Document
from bokeh.io.doc import patch_curdoc
from bokeh.models import GlyphRenderer, HoverTool
from bokeh.models.dom import HTML
from bokeh.models.widgets.markups import Markup

import toast_lab as tl
from tests.helpers import analysed
from toast_lab.confirm.confirmed_result import Standing, confirmed_result
from toast_lab.confirm.verdict import Judgement, Verdict
from toast_lab.errors import InvalidInput
from toast_lab.views.chart_style import bokeh_figure
from toast_lab.views.saved_chart import chart_svg

ROOT = Path(__file__).parents[2]
EVIL = "<img src=x onerror=alert(1)> {x} @plan $$x$$"


@pytest.fixture(scope="module")
def problem() -> tl.Problem:
    return tl.Problem(analysed("attention"), {"data": 4, "model": 2})


@pytest.fixture(scope="module")
def result(problem: tl.Problem) -> tl.SearchResult:
    return tl.search(problem, budget=tl.Budget(seconds=None, evaluations=300))


@pytest.fixture(scope="module")
def plans(problem: tl.Problem, result: tl.SearchResult) -> dict[str, Any]:
    return {"searched": result, EVIL: tl.Plan.from_actions(problem, ["S->data"])}


def elements(chart: Any, kind: type) -> list[Any]:
    return chart.traverse(lambda element: element, [kind])


def column(element: Any, name: str) -> list[Any]:
    return element.dimension_values(name, flat=True).tolist()


def test_a_search_is_three_charts_of_its_trace(result: tl.SearchResult) -> None:
    layout = tl.charts.search(result)
    assert len(layout) == 3
    cost, time_chart, _ = layout
    simulations = list(result.trace.simulations)
    (tried,) = elements(cost, hv.Scatter)
    assert column(tried, "simulation") == [s.index for s in simulations]
    assert column(tried, "tried_score") == pytest.approx([s.score for s in simulations])
    (best,) = elements(time_chart, hv.Curve)
    least = result.cost.time_s
    assert min(column(best, "best_s")) * 1e-6 == pytest.approx(least)
    alone = tl.charts.search(result, kind="time_s", scale="last 10%")
    options = hv.Store.lookup_options("bokeh", alone, "plot").kwargs
    assert not options["logy"]
    assert options["ylim"] == pytest.approx((0.98 * least * 1e6, 1.1 * least * 1e6))


def test_charts_are_put_together(
    problem: tl.Problem, result: tl.SearchResult, plans: dict[str, Any]
) -> None:
    both = tl.charts.search(result) + tl.charts.time_memory(plans, problem)
    assert len(both) == 4
    overlaid = tl.charts.time_memory(plans, problem) * hv.VLine(1.0)
    assert hv.render(overlaid, "bokeh").renderers


def test_a_selection_in_one_chart_narrows_the_others(
    problem: tl.Problem, plans: dict[str, Any]
) -> None:
    link = hv.link_selections.instance(index_cols=["plan"])
    figure = hv.render(
        link(tl.charts.time_memory(plans, problem) + tl.charts.breakdown(plans, problem)), "bokeh"
    )

    def selected() -> dict[str, list[str]]:
        """The selected plans of each part of the breakdown, without the faint ones behind."""
        return {
            renderer.name: list(renderer.data_source.data["plan"])
            for renderer in figure.select({"type": GlyphRenderer})
            if renderer.name in ("compute", "memory traffic", "estimated")
            and renderer.glyph.line_alpha == 1.0
        }

    assert set(map(tuple, selected().values())) == {tuple(plans)}
    link.selection_expr = hv.dim("plan").isin(["searched"])
    assert set(map(tuple, selected().values())) == {("searched",)}


def test_plans_keep_their_names_and_hues(problem: tl.Problem, plans: dict[str, Any]) -> None:
    chart = tl.charts.time_memory(plans, problem)
    (markers,) = elements(chart, hv.Scatter)
    assert column(markers, "plan") == list(plans)
    assert len(set(column(markers, "hue"))) == 2
    price = tl.price(problem, plans[EVIL])
    assert column(markers, "time_s")[1] == price.time_s
    bars = tl.charts.breakdown(plans, problem, by="axis")
    ends = [end for part in elements(bars, hv.Rectangles) for end in column(part, "right")]
    assert max(ends) == pytest.approx(max(column(markers, "time_s")) * 1e6)
    lines = elements(tl.charts.memory(plans, problem), hv.Curve)
    assert [line.label for line in lines] == list(plans)


def test_names_are_never_templates_or_html(
    problem: tl.Problem, result: tl.SearchResult, plans: dict[str, Any]
) -> None:
    rows = [{"mesh": EVIL, "machine": "m", "time_s": 1.0}]
    for chart in (
        tl.charts.time_memory(plans, problem),
        tl.charts.breakdown(plans, problem),
        tl.charts.memory(plans, problem),
        tl.charts.step(result),
        tl.charts.choices(rows, "mesh", "machine"),
    ):
        parts = hv.render(chart, "bokeh").references()
        hovers = [part for part in parts if isinstance(part, HoverTool)]
        assert hovers
        for hover in hovers:
            # In a list of rows, Bokeh shows columns as text; a string would be HTML
            assert isinstance(hover.tooltips, list)
            assert "onerror" not in str(hover.tooltips)
            assert "safe" not in str(hover.tooltips)
        assert not [part for part in parts if isinstance(part, Markup | HTML)]


def test_a_step_has_lanes_and_memory(problem: tl.Problem, result: tl.SearchResult) -> None:
    lanes, memory = tl.charts.step(result)
    ops = [op for part in elements(lanes, hv.Rectangles) for op in column(part, "lane")]
    assert ops.count("estimated: compute") == len(result.cost.ops)
    (curve,) = elements(memory, hv.Curve)
    assert max(column(curve, "memory")) * 2**10 == pytest.approx(result.cost.peak_bytes)
    same = tl.charts.step(result.plan, problem)
    assert column(elements(same, hv.Curve)[0], "memory") == column(curve, "memory")


def test_a_race_is_a_line_for_each_method(problem: tl.Problem) -> None:
    budget = tl.Budget(seconds=None, evaluations=60)
    race = tl.race(problem, ["random", "beam"], budget=budget)
    chart = tl.charts.race(race, kind="time_s")
    lines = elements(chart, hv.Curve)
    assert [line.label for line in lines] == ["random", "beam"]
    for line in lines:
        best = next(row for row in race.rows if row.method == line.label)
        assert min(column(line, "time_s")) * 1e-6 == pytest.approx(best.time_s)


def confirmed(
    problem: tl.Problem, result: tl.SearchResult, elsewhere: str = ""
) -> tl.ConfirmedResult:
    """A confirmed search; judged plans take 1.5 times, once and 3 times as long as priced."""
    plans = [tl.replicated(problem), result.plan, tl.Plan.from_actions(problem, ["S->data"])]
    verdicts = []
    for number, (plan, ratio) in enumerate(zip(plans, (1.5, 1.0, 3.0), strict=True)):
        cost = tl.price(problem, plan)
        clock = Judgement(ratio * cost.time_s, cost.peak_bytes, True, elsewhere=elsewhere)
        verdicts.append(Verdict(plan, 1 + number // 2, cost.time_s, cost.peak_bytes, clock))
    return confirmed_result(
        result, tuple(verdicts), standing=Standing.BUDGET, judge="cpu:8", tolerance=0.1
    )


def test_a_confirmed_search_has_clock_and_price_of_each_judged_plan(
    problem: tl.Problem, result: tl.SearchResult
) -> None:
    judged = confirmed(problem, result)
    chart = tl.charts.confirm(judged)
    priced, clock = elements(chart, hv.Curve)
    marks = next(mark for mark in elements(chart, hv.Scatter) if mark.label.startswith("a judged"))
    assert column(marks, "judged") == [1, 2, 3]
    times_s = [verdict.time_s for verdict in judged.verdicts]
    assert [time * 1e-6 for time in column(marks, "time_s")] == pytest.approx(times_s)
    assert column(marks, "state") == ["1.50× priced", "1.00× priced", "3.00× priced"]
    (errors,) = elements(chart, hv.Segments)
    assert column(errors, "time_s") == column(marks, "time_s")
    assert [price * 1e-6 for price in column(errors, "priced_s")] == pytest.approx(
        [verdict.priced_s for verdict in judged.verdicts]
    )
    assert column(clock, "judged") == [1, 2, 3], "better with the second, and up to the last"
    assert min(column(clock, "time_s")) * 1e-6 == pytest.approx(min(times_s))
    first_round = min(verdict.priced_s for verdict in judged.verdicts[:2])
    assert column(priced, "time_s")[0] * 1e-6 == pytest.approx(first_round)
    texts = re.findall(r">([^<>]+)</text>", chart_svg(chart))
    for words in ("plans judged", "best by the judge's clock", "a judged plan, ○ its price"):
        assert words in texts
    assert any(re.match(r"step time \(.s\): estimated", text) for text in texts)


def test_clock_and_price_of_different_machines_are_two_charts(
    problem: tl.Problem, result: tl.SearchResult
) -> None:
    charts = tl.charts.confirm(confirmed(problem, result, "cpu:8 is no TPU"), scale="linear")
    assert len(charts) == 2
    assert not elements(charts, hv.Segments)


def test_a_chart_follows_a_search_until_it_ends(
    problem: tl.Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toast_lab.charts import of_results

    monkeypatch.setattr(of_results, "FOLLOW_EVERY_S", 0.05)
    run = tl.start_search(problem, "random", budget=tl.Budget(seconds=None, evaluations=400))
    chart = tl.charts.search(run, kind="score")
    assert isinstance(chart, hv.DynamicMap)

    def last() -> int:
        simulations = column(elements(chart[()], hv.Scatter)[0], "simulation")
        return int(simulations[-1]) if simulations else 0

    result = run.result()
    end = time.monotonic() + 60
    while last() < len(result.trace.simulations):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_map_has_the_best_row_of_each_pair() -> None:
    rows = [
        {"mesh": "a", "machine": "x", "time_s": 2e-3, "fits": True, "seed": 0},
        {"mesh": "a", "machine": "x", "time_s": 1e-3, "fits": False, "seed": 1},
        {"mesh": "a", "machine": "y", "time_s": 4e-3, "fits": False, "seed": 0},
        {"mesh": "b", "machine": "x", "time_s": None, "fits": None, "seed": 0},
    ]
    chart = tl.charts.choices(rows, "mesh", "machine")
    (heat,) = elements(chart, hv.HeatMap)
    cells = heat.dframe()
    cells = cells[["x_choice", "y_choice", "text", "rows"]].to_numpy().tolist()
    assert cells == [["a", "x", "2 ms", 2], ["a", "y", "4 ms ✕", 1]]
    assert hv.render(chart, "bokeh")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p, r: tl.charts.search(p), "charts.search takes a SearchResult"),
        (lambda p, r: tl.charts.search(r, kind="speed"), "kind must be one of 'score'"),
        (
            lambda p, r: tl.charts.search(r, scale="ln"),
            "scale must be one of 'log', 'linear', 'last 10%'",
        ),
        (lambda p, r: tl.charts.race(r), "charts.race takes a Race"),
        (lambda p, r: tl.charts.confirm(r), "charts.confirm takes a ConfirmedResult"),
        (lambda p, r: tl.charts.time_memory(r.plan), "needs the problem"),
        (lambda p, r: tl.charts.time_memory({"a": 1}, p), "'a' is an int"),
        (lambda p, r: tl.charts.memory({"a": r}, "p"), "charts.memory takes a Problem"),
        (lambda p, r: tl.charts.breakdown(r, by="colour"), "by must be one of 'kind', 'axis'"),
        (lambda p, r: tl.charts.step({"a": r}), "charts.step takes a SearchResult or"),
        (lambda p, r: tl.charts.step(r, compiled=3), "compiled must be a result of tl.compile"),
        (lambda p, r: tl.charts.choices([], "a", "b"), "there are no rows"),
        (lambda p, r: tl.charts.choices([{"mesh": 1}], "mash", "mesh"), "did you mean"),
        (lambda p, r: tl.charts.choices([{"a": 1, "time_s": 2}], "a", "a"), "choose two columns"),
        (lambda p, r: tl.charts.choices(5, "a", "b"), "charts.choices takes rows"),
        (lambda p, r: tl.charts.choices([{"a": 1, "b": 2, "time_s": "x"}], "a", "b"), "numbers"),
    ],
)
def test_what_a_chart_does_not_take_is_said(
    call: Any, words: str, problem: tl.Problem, result: tl.SearchResult
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        call(problem, result)


def test_a_figure_changes_nothing_of_the_page_that_it_is_made_for() -> None:
    page, shown = Document(), bokeh_figure(hv.Curve([1, 2]))
    page.add_root(shown)
    theme, changes = page.theme, []
    page.on_change(changes.append)
    with patch_curdoc(page):
        figure = bokeh_figure(hv.Curve([3, 4]))
    assert page.theme is theme
    assert not changes
    assert not page.session_destroyed_callbacks
    page.add_root(figure)


def test_neither_the_package_nor_the_explorer_imports_holoviews_at_once() -> None:
    code = (
        "import sys, toast_lab as tl; tl.charts; import toast_lab.app.explorer; "
        "assert 'panel' in sys.modules; assert 'holoviews' not in sys.modules, 'holoviews'; "
        "tl.charts.search; assert 'holoviews' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)


def test_a_search_that_gains_only_rounding_is_a_flat_line() -> None:
    from toast_lab.views.chart_style import bokeh_figure
    from toast_lab.views.search_chart import SearchCurves, search_charts
    from toast_lab.views.search_curves import CurvePoint, SearchScales, curve_frame

    points = [
        CurvePoint(number, 0.1, 1e-3 * (1 - gain), 1e6, 1e-3, 1e6, True, True, 1.0 - gain, 1.0)
        for number, gain in ((1, 0.0), (2, 1e-14))
    ]
    scales = SearchScales(unsharded_s=1e-3, unsharded_bytes=1e6)
    score = bokeh_figure(search_charts(curve_frame(points), scales)[0])
    assert score.y_range.end / score.y_range.start > 1.02
    live = SearchCurves(scales).figures[0]
    columns = [glyph.data_source.data for glyph in live.select({"type": GlyphRenderer})]
    heights = [list(data["y"]) for data in columns if "y" in data]
    assert any(max(line_heights) / min(line_heights) > 1.02 for line_heights in heights)
