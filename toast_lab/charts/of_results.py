"""The public charts: each makes a table from a result, and a HoloViews element from the table."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import holoviews as hv
import pandas as pd

from toast_lab.advice.advice_result import Advice
from toast_lab.app.cells.plans import (
    check_priced,
    plan_entries,
    problem_of,
    program_of,
)
from toast_lab.app.cells.searching import (
    ACCEPTED_RACES,
    ACCEPTED_SEARCHES,
    MAX_POINTS,
    Follower,
    race_points,
    search_snapshot,
)
from toast_lab.app.cells.view import kind_text
from toast_lab.confirm.confirmed_result import ConfirmedResult
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidInput, did_you_mean
from toast_lab.files import PathLike
from toast_lab.jobs.background import Running, RunningRace, RunningSearch
from toast_lab.runtime.compiled import Compiled
from toast_lab.search.contract import SearchResult
from toast_lab.search.race import Race
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sweep.run_sweep import Sweep
from toast_lab.views.breakdown import GROUPINGS, breakdown_frame, breakdown_rates
from toast_lab.views.breakdown_chart import breakdown_chart
from toast_lab.views.chart_scale import SCALES
from toast_lab.views.chart_style import BOKEH
from toast_lab.views.choice_map import choice_map
from toast_lab.views.compare_table import PlanEntry
from toast_lab.views.confirm_chart import confirm_charts
from toast_lab.views.confirm_curve import judged_frame
from toast_lab.views.memory_chart import memory_chart
from toast_lab.views.race_chart import race_chart
from toast_lab.views.race_curves import QUANTITY_TITLES, points_frame
from toast_lab.views.saved_chart import SIZE_PX, save_chart
from toast_lab.views.search_chart import search_charts
from toast_lab.views.search_curves import CurvePoint, SearchScales, curve_frame, thinned
from toast_lab.views.step_chart import step_charts
from toast_lab.views.step_timeline import bars_frame, memory_frame
from toast_lab.views.time_memory import time_memory_frame
from toast_lab.views.time_memory_chart import time_memory_chart

KINDS = {"score": 0, "time_s": 1, "peak_bytes": 2}
#: types that ``save`` takes
CHARTS = (hv.Element, hv.Overlay, hv.NdOverlay, hv.Layout, hv.NdLayout, hv.HoloMap)
#: time between two updates from a running search or race; drawing a chart anew takes a tenth of a
#: second of the notebook's core
FOLLOW_EVERY_S = 1.0


def _in_notebook() -> None:
    """Load what a notebook needs to show elements, unless done; nothing comes by network."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and hasattr(shell, "kernel") and not hv.extension._loaded:
        hv.extension(BOKEH, inline=True, logo=False)


def search(
    result: SearchResult | RunningSearch, *, kind: str | None = None, scale: str = "log"
) -> Any:
    """A search: C(s), step time and peak memory of the best plan so far, and what was tried.

    Args:
        result: a SearchResult; or a running search from ``start_search``, which the chart follows,
            once a second, until it ends.
        kind: "score", "time_s" or "peak_bytes" for one chart alone; None: all three.
        scale: scale of the y axes: "log", "linear" or "last 10%", which shows only what is at most
            10% above the best.

    Returns:
        A HoloViews layout of three charts, or one of them; dynamic maps for a running search.

    Raises:
        InvalidInput: ``result`` has another type, or there is no such kind or scale.
    """
    if not isinstance(result, SearchResult | RunningSearch):
        raise _refused("search", ACCEPTED_SEARCHES, result, "tl.charts.search(tl.search(problem))")
    _one_of("search", "kind", kind, [*KINDS, None])
    _one_of("search", "scale", scale, SCALES)
    _in_notebook()
    chart_index = KINDS.get(kind or "score", 0)
    if isinstance(result, RunningSearch):
        problem = result.problem
        scales = SearchScales(problem.memory_limit_bytes, *problem.baseline, scale_type=scale)
        charts = _live(
            result,
            _search_frame(result),
            lambda frame: search_charts(frame, scales, legend_at=chart_index),
            len(KINDS),
        )
    else:
        snapshot = search_snapshot(result)
        scales = SearchScales(snapshot.limit_bytes, *snapshot.unsharded, scale_type=scale)
        charts = [*search_charts(curve_frame(snapshot.points), scales, legend_at=chart_index)]
    return hv.Layout(charts) if kind is None else charts[chart_index]


def race(result: Race | RunningRace, *, kind: str = "score", scale: str = "log") -> Any:
    """A race: the best plan of each method so far against the seconds of its own search.

    Args:
        result: a Race; or a running race from ``start_race``, which the chart follows, once a
            second, until it ends.
        kind: "score", "time_s" or "peak_bytes".
        scale: scale of the y axis: "log", "linear" or "last 10%", which shows only what is at most
            10% above the best.

    Returns:
        A HoloViews overlay; a dynamic map for a running race.

    Raises:
        InvalidInput: ``result`` has another type, or there is no such kind or scale.
    """
    if not isinstance(result, Race | RunningRace):
        raise _refused(
            "race", ACCEPTED_RACES, result, 'tl.charts.race(tl.race(problem, ["mcts", "beam"]))'
        )
    _one_of("race", "kind", kind, list(QUANTITY_TITLES))
    _one_of("race", "scale", scale, SCALES)
    _in_notebook()
    methods, unsharded = list(race_points(result)), result.problem.baseline

    def draw(frame: pd.DataFrame) -> tuple[Any]:
        return (race_chart(frame, methods, kind, unsharded=unsharded, scale_type=scale),)

    def frame() -> pd.DataFrame:
        return points_frame(race_points(result), {row.method: row.elapsed_s for row in result.rows})

    return _live(result, frame, draw, 1)[0] if isinstance(result, RunningRace) else draw(frame())[0]


def confirm(result: SearchResult[Any], *, scale: str = "log") -> Any:
    """A confirmed search: the judge's clock beside the price, over the plans that were judged.

    Args:
        result: a ConfirmedResult, which ``tl.search(problem, judge=...)`` gives.
        scale: scale of the y axis: "log", "linear" or "last 10%", which shows only what is at most
            10% above the best.

    Returns:
        A HoloViews overlay; a layout of two if clock and price are of different machines.

    Raises:
        InvalidInput: ``result`` has another type, or there is no such scale.
    """
    if not isinstance(result, ConfirmedResult):
        example = 'tl.charts.confirm(tl.search(problem, judge="cpu:4"))'
        raise _refused("confirm", "a ConfirmedResult", result, example)
    _one_of("confirm", "scale", scale, SCALES)
    _in_notebook()
    unsharded_s = result.cost.time_s / (result.cost.relative_time or 1.0)
    charts = confirm_charts(
        judged_frame(result.verdicts),
        unsharded_s,
        scale_type=scale,
        apart=bool(result.elsewhere),
    )
    return charts[0] if len(charts) == 1 else hv.Layout(list(charts))


def _search_frame(run: RunningSearch) -> Callable[[], pd.DataFrame]:
    """Reads the simulations to draw: all improvements, and ever fewer of the others."""
    log, points = Follower(run), list[CurvePoint]()

    def frame() -> pd.DataFrame:
        points.extend(log.read())
        if len(points) > 2 * MAX_POINTS:
            points[:] = thinned(points, 4)
        return curve_frame(points)

    return frame


def _live(
    run: Running | Advice, frame: Callable[[], pd.DataFrame], draw: Any, count: int
) -> list[Any]:
    """Dynamic maps of ``count`` charts that are drawn anew until ``run`` ends."""
    pipe = hv.streams.Pipe(data=frame())
    ended = threading.Event()

    def follow() -> None:
        while run.running and not ended.wait(FOLLOW_EVERY_S):
            pipe.send(frame())
        pipe.send(frame())

    threading.Thread(target=follow, name="live chart", daemon=True).start()
    return [
        hv.DynamicMap(lambda data, index=index: draw(data)[index], streams=[pipe])
        for index in range(count)
    ]


def time_memory(plans: Any, problem: Problem | None = None) -> Any:
    """Step time against peak memory, one marker per plan, and those that no other plan beats.

    Args:
        plans: a result of ``tl.compare``, ``tl.race`` or ``tl.search``; or plans or search results
            by name.
        problem: the problem that the prices are for; needed for plans.

    Returns:
        A HoloViews overlay. Its dimension ``plan`` links it with charts of the same plans.

    Raises:
        InvalidInput: ``plans`` has another type, or plans come without a problem.
    """
    entries = _entries(plans, problem, "time_memory")
    limit = _limit_bytes(problem, entries)
    return time_memory_chart(time_memory_frame(entries), entries, limit)


def breakdown(plans: Any, problem: Problem | None = None, *, by: str = "kind") -> Any:
    """Where the estimated step time of each plan goes.

    Args:
        plans: as for ``time_memory``.
        problem: the problem that the prices are for; needed unless ``plans`` has it.
        by: group collectives by "kind", or by the mesh "axis" that they run over.

    Returns:
        A HoloViews overlay.

    Raises:
        InvalidInput: ``plans`` has another type, or no problem is known.
    """
    _one_of("breakdown", "by", by, list(GROUPINGS.values()))
    entries = _entries(plans, problem, "breakdown")
    known_problem = problem or problem_of(plans)
    if known_problem is None or any(not hasattr(entry.cost, "ops") for entry in entries):
        raise InvalidInput(
            "charts.breakdown: give the problem as well: tl.charts.breakdown(plans, problem)"
        )
    rates = dict.fromkeys((entry.name for entry in entries), breakdown_rates(known_problem))
    frame = breakdown_frame(entries, rates, by)
    return breakdown_chart(frame, entries)


def memory(plans: Any, problem: Problem | None = None) -> Any:
    """The memory of one device in program order, all plans on one axis.

    Args:
        plans: as for ``time_memory``; for a Comparison the predicted memory is drawn.
        problem: as for ``time_memory``.

    Returns:
        A HoloViews overlay.

    Raises:
        InvalidInput: ``plans`` has another type, or plans come without a problem.
    """
    entries = _entries(plans, problem, "memory")
    check_priced(entries, "charts.memory")
    lines = program_of(plans, problem).source_lines()
    return memory_chart(entries, float(entries[0].cost.memory_limit_bytes), lines)


def step(plan: Any, problem: Problem | None = None, *, compiled: Compiled | None = None) -> Any:
    """One step of a plan in time: computing, collectives, and memory below.

    Args:
        plan: a SearchResult, or a ShardingPlan with its problem.
        problem: the problem that the price is for; needed for a ShardingPlan.
        compiled: the result of ``tl.compile`` for the plan; its schedule is drawn above the
            estimate.

    Returns:
        A HoloViews layout of the lanes and of the memory over the same time.

    Raises:
        InvalidInput: ``plan`` or ``compiled`` has another type, or a plan comes without a problem.
    """
    if not isinstance(plan, SearchResult | ShardingPlan):
        raise _refused(
            "step", "a SearchResult or a ShardingPlan", plan, "tl.charts.step(result.plan, problem)"
        )
    if compiled is not None and not isinstance(compiled, Compiled):
        raise InvalidInput(
            f"charts.step: compiled must be a result of tl.compile, not {kind_text(compiled)}"
        )
    (entry,) = _entries(plan, problem, "step")
    schedule = getattr(compiled, "schedule", None)
    bars = bars_frame(entry.cost, schedule, program_of(plan, problem).source_lines())
    return hv.Layout(list(step_charts(bars, memory_frame(entry.cost, schedule)))).cols(1)


def choices(
    rows: Advice | Sweep | pd.DataFrame | Iterable[Mapping[str, Any]],
    x: str = "last_axis",
    y: str = "devices",
    value: str = "time_s",
) -> Any:
    """A map over two choices: the least ``value`` of the rows for each pair of them.

    Args:
        rows: an advice, which the map follows, once a second, while its work goes on; a sweep or
            the rows that it keeps; or any table with these columns.
        x: column of the choice along the x axis. An advice has "devices", "mesh", "axes" (their
            number), "last_axis" (size of the innermost one), "batch", "parts", "keeps" and "plan";
            a sweep "mesh", "machine" and its other choices.
        y: column of the choice along the y axis.
        value: a column of numbers of which less is better: "time_s", "peak_bytes"; of an advice
            also "device_s" and "price_per_example", of a sweep "score".

    Returns:
        A HoloViews overlay of a heat map and its numbers; a cross marks what does not fit a device.
        A dynamic map for an advice whose work goes on.

    Raises:
        InvalidInput: there are no rows or no such columns, ``x`` and ``y`` are the same column, or
            ``value`` has no numbers.
    """
    if isinstance(rows, Advice):
        next(rows.live(), None)  # the first row tells which columns there are
    frame = _choices_frame(rows, x, y)
    if not len(frame):
        raise InvalidInput("charts.choices: there are no rows, so there is nothing to choose from")
    missing = [name for name in (x, y, value) if name not in frame.columns]
    if missing:
        known = list(map(str, frame.columns))
        names = ", ".join(f"{name!r}{did_you_mean(name, known)}" for name in missing)
        raise InvalidInput(f"charts.choices: no column {names}; columns: {', '.join(known)}")
    if x == y:
        raise InvalidInput(f"charts.choices: x and y are both {x!r}; choose two columns")
    if not pd.api.types.is_numeric_dtype(frame[value].dropna().infer_objects()):
        raise InvalidInput(f"charts.choices: column {value!r} has no numbers")
    _in_notebook()
    if isinstance(rows, Advice) and rows.running:
        return _live(
            rows,
            lambda: _choices_frame(rows, x, y),
            lambda frame: (choice_map(frame, x, y, value),),
            1,
        )[0]
    return choice_map(frame, x, y, value)


def _choices_frame(rows: Any, x: str, y: str) -> pd.DataFrame:
    if isinstance(rows, pd.DataFrame):
        return rows
    if not isinstance(rows, Advice):
        return pd.DataFrame(_mappings(rows))
    frame = pd.DataFrame(rows.flat_rows())
    known = [name for name in (y, x) if name in frame.columns]
    return frame.sort_values(known, kind="stable", ignore_index=True) if known else frame


def save(chart: Any, path: PathLike, *, size_px: tuple[float, float] = SIZE_PX) -> None:
    """Write a chart to a file, without a browser.

    Args:
        chart: a chart of ``tl.charts``, also combined with ``+`` and ``*`` or changed with
            ``.opts``; a live one is saved as it is now.
        path: the file; .svg without a background, or .png on white.
        size_px: width and height of each chart.

    Raises:
        InvalidInput: ``chart`` is not a chart.
        InvalidProblem: the path has another ending, or an element cannot be drawn.
        NotSaved: the file cannot be written.
    """
    if not isinstance(chart, CHARTS):
        raise _refused("save", "a chart", chart, 'tl.charts.save(chart, "chart.svg")')
    save_chart(chart, Path(path), size_px=size_px)


def _mappings(rows: Any) -> list[Mapping[str, Any]]:
    if isinstance(rows, Sweep):
        return list(rows.rows)
    row_list = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, str) else [rows]
    if not all(isinstance(row, Mapping) for row in row_list):
        raise _refused(
            "choices", "rows of a sweep", rows, 'tl.charts.choices(rows, "mesh", "machine")'
        )
    return row_list


# -- arguments -------------------------------------------------------------------------------------
def _entries(plans: Any, problem: Problem | None, chart: str) -> list[PlanEntry]:
    if problem is None and isinstance(plans, ShardingPlan):
        raise InvalidInput(
            f"charts.{chart}: the price of a plan needs the problem: "
            f"tl.charts.{chart}(plan, problem)"
        )
    entries = plan_entries(plans, problem, f"charts.{chart}")
    _in_notebook()
    return entries


def _limit_bytes(problem: Problem | None, entries: list[PlanEntry]) -> float | None:
    if problem is not None:
        return problem.memory_limit_bytes
    limits = [getattr(entry.cost, "memory_limit_bytes", None) for entry in entries]
    return next((float(limit) for limit in limits if limit is not None), None)


def _refused(chart: str, takes: str, argument: object, example: str) -> InvalidInput:
    return InvalidInput(
        f"charts.{chart} takes {takes}, not {kind_text(argument)}. For instance: {example}"
    )


def _one_of(chart: str, name: str, given: Any, known: Iterable[Any]) -> None:
    known = list(known)
    if given not in known:
        texts = ", ".join(repr(value) for value in known if value is not None)
        raise InvalidInput(f"charts.{chart}: {name} must be one of {texts}, not {given!r}")
