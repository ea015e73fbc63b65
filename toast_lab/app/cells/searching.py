"""Views of a search or a race, running or ended: curves, the tree, the methods on one chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import panel as pn

from toast_lab.app import look
from toast_lab.app.cells.view import (
    beside,
    every_tick,
    refused,
    shown,
    table_html,
)
from toast_lab.app.pace import Beat
from toast_lab.app.pages.search_tree import TreePane
from toast_lab.app.plan_facts import PlanFacts, plan_facts
from toast_lab.app.plan_words import step_words
from toast_lab.app.tree_state import TreeState
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidInput
from toast_lab.jobs.background import Running, RunningRace, RunningSearch
from toast_lab.jobs.mirror import METHOD_COLUMNS, Mirror
from toast_lab.jobs.race_job import UNFINISHED
from toast_lab.jobs.search_job import Batch
from toast_lab.search.contract import SearchResult
from toast_lab.search.race import Race
from toast_lab.search.search_child import ImprovementPoint, improvement
from toast_lab.search.trace import Trace
from toast_lab.search.trace_places import Places
from toast_lab.text import gap_text
from toast_lab.views.action_table import action_frame
from toast_lab.views.icicle import IciclePlot
from toast_lab.views.markup import (
    ESTIMATED,
    Facts,
    Safe,
    bytes_text,
    cost_text,
    facts,
    h,
    join,
    quiet,
    seconds_text,
)
from toast_lab.views.race_chart import RaceCurves, race_chart
from toast_lab.views.race_curves import points_frame, race_frame
from toast_lab.views.saved_chart import chart_svg
from toast_lab.views.search_chart import SearchCurves, search_charts
from toast_lab.views.search_curves import CurvePoint as CurvePoint
from toast_lab.views.search_curves import (
    SearchScales,
    curve_frame,
    improvements_frame,
    point,
    shown_frame,
    thinned,
)

MAX_POINTS = 2000  #: approximate limit for a curve that is drawn at once
STATIC_POINTS = 400  #: approximate limit for the tried plans in a static picture
WIDTH_PX = 680.0  #: width of a static chart
ACCEPTED_RACES = "a Race of tl.race or a RunningRace of tl.start_race"
ACCEPTED_SEARCHES = "a SearchResult of tl.search or a RunningSearch of tl.start_search"


def search(result: SearchResult | RunningSearch, *, inline: bool = False) -> Any:
    """Curves of a search: time, memory and C(s) of the best plan so far, with the plans tried.

    A background search is shown live, with buttons that pause, step and stop it.

    Args:
        result: a SearchResult, or the result of ``start_search``.
        inline: give a Panel object that communicates through the notebook, for a kernel on another
            machine.

    Raises:
        InvalidInput: another type.
    """
    if not isinstance(result, SearchResult | RunningSearch):
        raise refused("search", ACCEPTED_SEARCHES, result, "tl.views.search(tl.search(problem))")

    return shown(
        inline,
        kind="search",
        about=lambda: _about(result),
        make=lambda: SearchCell(result),
        static=lambda: _static_search(search_snapshot(result)),
        height=620,
        table=lambda: improvements_frame(search_snapshot(result).points),
    )


def tree(
    result: SearchResult | RunningSearch, problem: Problem | None = None, *, inline: bool = False
) -> Any:
    """The tree of a search.

    Each place in the tree is a block whose width is proportional to its visits; a click shows its
    plan, visits, value and price.

    Args:
        result: a SearchResult, or the result of ``start_search``, whose tree grows in the view.
        problem: the problem of a SearchResult, needed to price places; a running search has its
            own.
        inline: as for ``search``.

    Raises:
        InvalidInput: another type, or a search without a trace.
    """
    if not isinstance(result, SearchResult | RunningSearch):
        raise refused(
            "tree", ACCEPTED_SEARCHES, result, "tl.views.tree(tl.search(problem), problem)"
        )
    if problem is not None and not isinstance(problem, Problem):
        raise refused(
            "tree", "a Problem as second argument", problem, "tl.views.tree(result, problem)"
        )
    problem = result.problem if isinstance(result, RunningSearch) else problem

    def static() -> Safe:
        state = _tree_state(result, problem)
        state.count(now=True)
        scene = state.scene()
        if scene is None:
            return h("p", "No simulation yet.")
        plot = IciclePlot()
        plot.show(scene)
        height = 40.0 * (1 + int(scene.blocks.level.max()))
        return join(
            Safe(chart_svg(plot.figure, size_px=(WIDTH_PX, height))),
            h("p", h("small", "Width: visits; dark: low C(s) at or below.")),
        )

    def table() -> pd.DataFrame:
        state = _tree_state(result, problem)
        state.count(now=True)
        place = state.place()
        priced = (
            plan_facts(problem, place.plan) if place is not None and problem is not None else None
        )
        return action_frame(state.action_rows(priced.legal if priced is not None else ())[1])

    return shown(
        inline,
        kind="tree",
        about=lambda: _about(result),
        make=lambda: TreeCell(result, problem),
        static=static,
        height=700,
        table=table,
    )


def race(result: Race | RunningRace, *, inline: bool = False) -> Any:
    """Methods on one chart, each with its best plan over its own seconds; below it, the table.

    Args:
        result: a Race, or the result of ``start_race``, whose chart grows in the view, with buttons
            that pause and stop the race.
        inline: as for ``search``.

    Raises:
        InvalidInput: another type.
    """
    if not isinstance(result, Race | RunningRace):
        raise refused(
            "race", ACCEPTED_RACES, result, 'tl.views.race(tl.race(problem, ["mcts", "beam"]))'
        )

    def about() -> str:
        if isinstance(result, RunningRace):
            return repr(result)
        return f"{result.problem.describe()}, seed {result.seed}"

    def static() -> Safe:
        rows = list(result.rows)
        frame = points_frame(race_points(result), {row.method: row.elapsed_s for row in rows})
        chart = race_chart(frame, list(race_points(result)), unsharded=result.problem.baseline)
        picture = Safe(chart_svg(chart, size_px=(WIDTH_PX, 260.0)))
        return join(picture, table_html(race_frame(rows)))

    return shown(
        inline,
        kind="race",
        about=about,
        make=lambda: RaceCell(result),
        static=static,
        height=600,
        table=lambda: race_frame(result.rows),
    )


# -- data ------------------------------------------------------------------------------------------
class SearchSnapshot(NamedTuple):
    """The state of a search, running or ended."""

    points: list[CurvePoint]
    improvements: list[ImprovementPoint]
    simulations: int
    unsharded: tuple[float, float]  #: step time in seconds and peak memory in bytes
    limit_bytes: float
    actions: tuple[str, ...]
    method: str
    state: str
    elapsed_s: float
    note: str


def _trace(result: SearchResult) -> Trace:
    if not result.trace.row.n:
        raise InvalidInput("this SearchResult has no simulations to show; search again")
    return result.trace


def search_snapshot(result: SearchResult | RunningSearch) -> SearchSnapshot:
    """The state of a search, with at most about ``MAX_POINTS`` of its simulations."""
    if isinstance(result, RunningSearch):
        return _run_snapshot(result, _at_most(MAX_POINTS, Follower(result).read()))
    trace, cost = _trace(result), result.cost
    count = trace.row.n
    points = [
        point(simulation) for simulation in trace.simulations.sample(max(1, count // MAX_POINTS))
    ]

    unsharded = (
        cost.time_s / cost.relative_time if cost.relative_time else points[0].tried_s,
        points[0].tried_bytes,
    )

    return SearchSnapshot(
        points=points,
        improvements=[improvement(simulation) for simulation in trace.improvements()],
        simulations=count,
        unsharded=unsharded,
        limit_bytes=cost.memory_limit_bytes,
        actions=result.plan.history,
        method=result.method,
        state="over",
        elapsed_s=result.elapsed_s,
        note=f"{result.message} {gap_text(result.gap)}".strip(),
    )


def _run_snapshot(run: RunningSearch, points: list[CurvePoint]) -> SearchSnapshot:
    best = run.best
    return SearchSnapshot(
        points=points,
        improvements=run.points,
        simulations=run.simulations,
        unsharded=run.problem.baseline,
        limit_bytes=run.problem.memory_limit_bytes,
        actions=best.actions if best is not None else (),
        method=run.method,
        state=run.state,
        elapsed_s=run.elapsed_s,
        note=run.result().message if run.state == "done" else run.job.message,
    )


def _at_most(count: int, points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """``count`` points, or a few more, with all improvements."""
    return thinned(points, max(1, len(points) // count))


class Follower:
    """Reads the event log of a running search incrementally, for one view."""

    def __init__(self, run: RunningSearch) -> None:
        self.run, self._seen = run, 0

    def read(self) -> list[CurvePoint]:
        """The points that arrived since the last call."""
        events = self.run.job.since(self._seen)
        self._seen += len(events)
        return [
            point(simulation)
            for event in events
            if isinstance(event.data, Batch)
            for simulation in event.data.simulations
        ]


def _about(result: SearchResult | RunningSearch) -> str:
    if isinstance(result, RunningSearch):
        return repr(result)
    best = cost_text(result.cost)
    return f"{result.method} (seed {result.seed}) on {result.plan.program.name}, best {best}"


def race_points(result: Race | RunningRace) -> Mapping[str, Sequence[ImprovementPoint]]:
    """Improvements by method."""
    return (
        result.points
        if isinstance(result, RunningRace)
        else {outcome.method: outcome.points for outcome in result.outcomes}
    )


def _static_search(snapshot: SearchSnapshot) -> Safe:
    if not snapshot.points:
        return h("p", "No simulation yet.")
    frame = curve_frame(_at_most(STATIC_POINTS, snapshot.points))
    scales = SearchScales(snapshot.limit_bytes, *snapshot.unsharded)
    _, *charts = search_charts(frame, scales, legend_at=1)
    pictures = [Safe(chart_svg(chart, size_px=(WIDTH_PX, 220.0))) for chart in charts]
    twin = table_html(shown_frame(snapshot.points), 8)
    return join(*pictures, h("p", f"{snapshot.simulations:,} simulations. {snapshot.note}"), twin)


# -- pages -----------------------------------------------------------------------------------------
class Controls(look.Pane):
    """Buttons that pause, step and stop a background search or race; hidden once it has ended."""

    def __init__(self, run: Running | None) -> None:
        super().__init__()
        self.run = run
        size: dict[str, Any] = {"width": 76, "height": 30, "margin": (0, 5, 6, 0)}
        self.pause, self.stop = look.button("Pause", **size), look.button("Stop", **size)
        self.step = look.button("Step", **size)
        buttons: list[Any] = [self.pause, self.stop]
        if run is not None:
            self.pause.on_click(lambda _: self._pause())
            self.stop.on_click(lambda _: run.stop())
            if isinstance(run, RunningSearch):
                self.step.on_click(lambda _: run.step())
                buttons.insert(1, self.step)
        self.view = pn.Row(*buttons, margin=0, visible=run is not None and run.running)
        self.refresh()

    def _pause(self) -> None:
        if self.run is not None:
            (self.run.go_on if self.run.state == "paused" else self.run.pause)()
            self.refresh()

    def refresh(self) -> None:
        """Update the buttons to the state of the run."""
        if self.run is None:
            return
        self.pause.name = "Go on" if self.run.state == "paused" else "Pause"
        if not self.run.running:
            self.view.visible = False


class SearchCell(look.Pane):
    """Curves on the left, numbers and buttons on the right, a table of improvements below."""

    def __init__(self, result: SearchResult | RunningSearch) -> None:
        super().__init__()
        self.subject = result
        self._run = result if isinstance(result, RunningSearch) else None
        self._follower = Follower(self._run) if self._run is not None else None
        snapshot = search_snapshot(result)
        self.curves = SearchCurves(SearchScales(snapshot.limit_bytes, *snapshot.unsharded))
        self._drawn = (
            _at_most(MAX_POINTS, self._follower.read())
            if self._follower is not None
            else snapshot.points
        )
        self.curves.append(self._drawn)
        self.score = RaceCurves([snapshot.method], "score")
        self.controls = Controls(self._run)
        self._twin_count = -1
        self._beat = Beat()
        self._twin = look.table(shown_frame([]), height=140, selectable=False)
        self._words = look.text()
        tabs = look.tabs(
            (
                "time and memory",
                look.figure(self.curves.root, least_px=260),
            ),
            (
                "C(s)",
                look.figure(self.score.figure, least_px=140),
            ),
        )
        self.view = beside(look.canvas(tabs, self._twin), self.controls, self._words, width=270)
        self._over = self._run is None
        self._show(snapshot)
        if self._run is not None:
            every_tick(self.tick)

    def tick(self) -> None:
        """Show the simulations since the last call."""
        if self._over or self._follower is None or self._run is None:
            return
        ended = not self._run.running
        live = not ended and self._run.state != "paused"
        if live and not self._beat.due(self._run.elapsed_s):
            return
        new = self._follower.read()
        if new:
            self._drawn = [*self._drawn, *new]
            # All improvements stay; the other points are thinned more and more
            if len(self._drawn) > 2 * MAX_POINTS:
                self._drawn = thinned(self._drawn, 4)
                look.later(self.curves.restart, list(self._drawn))
            else:
                look.later(self.curves.append, new)
        self._over = ended
        self._show(_run_snapshot(self._run, []))

    def _show(self, snapshot: SearchSnapshot) -> None:
        improvements, method = snapshot.improvements, snapshot.method
        self.controls.refresh()
        look.later(
            self.score.show,
            {method: improvements},
            {method: snapshot.elapsed_s if improvements else 0.0},
        )
        if len(improvements) != self._twin_count:
            self._twin_count = len(improvements)
            self._twin.value = shown_frame(
                CurvePoint(
                    simulation=points.simulation,
                    elapsed_s=points.elapsed_s,
                    best_s=points.time_s,
                    best_bytes=points.peak_bytes,
                    tried_s=points.time_s,
                    tried_bytes=points.peak_bytes,
                    fits=points.fits,
                    improved=True,
                )
                for points in improvements
            )
        rows: Facts = [
            ("state", f"{snapshot.state}, {snapshot.elapsed_s:.1f} s"),
            ("method", method),
            ("simulations", f"{snapshot.simulations:,}"),
        ]
        if improvements:
            best, base = improvements[-1], snapshot.unsharded
            rows += [
                (
                    "best step",
                    f"{seconds_text(best.time_s)}, {base[0] / best.time_s:.2f}× unsharded speed",
                ),
                (
                    "best peak",
                    f"{bytes_text(best.peak_bytes)} of {bytes_text(snapshot.limit_bytes)}",
                ),
                ("best C(s)", f"{best.score:.4f}"),
                ("unsharded", f"{seconds_text(base[0])}, {bytes_text(base[1])}"),
            ]
        actions = [h("li", step_words(action)) for action in snapshot.actions]
        self._words.object = join(
            h("h2", "search ", ESTIMATED),
            facts(rows),
            h("h2", "actions of the best plan"),
            h("ol", *actions, cls="chain mono") if actions else quiet("none so far"),
            quiet(snapshot.note),
        )


class CellTree(TreeState):
    """The state of a search tree's view outside any session."""

    def facts(self, plan: tuple[str, ...]) -> PlanFacts | None:
        """The facts of a plan, as in ``TreeState``; without a problem, a hint instead of prices."""
        if self.source.problem is None:
            why = "Give the problem as well to price a place: tl.views.tree(result, problem)."
            return PlanFacts(why, (), ())
        return super().facts(plan)


def _tree_state(result: SearchResult | RunningSearch, problem: Problem | None) -> CellTree:
    """The view state that the explorer's tree pane needs."""
    if isinstance(result, RunningSearch):
        return CellTree(_LiveSearch(result))
    trace, mirror = _trace(result), Mirror()
    mirror.trace, mirror.places = trace, Places(trace)
    mirror.method_columns = {name: trace.node[name] for name in METHOD_COLUMNS}
    return CellTree(_EndedSearch(mirror, trace.row.n, problem, trace.about))


class _EndedSearch(NamedTuple):
    """An ended search, as a source for ``TreeState``."""

    mirror: Mirror
    simulations: int
    problem: Problem | None
    searched_with: Mapping[str, Any]


class _LiveSearch:
    """A background search, as a source for ``TreeState``."""

    def __init__(self, run: RunningSearch) -> None:
        self._run, self.mirror, self.problem = run, run.job.mirror, run.problem
        self.searched_with = {"method": run.method, "options": run.options}

    @property
    def simulations(self) -> int:
        """Number of simulations reported so far."""
        return self._run.simulations


class TreeCell(look.Pane):
    """The explorer's tree, without the buttons that lead to its other pages."""

    def __init__(self, result: SearchResult | RunningSearch, problem: Problem | None) -> None:
        super().__init__()
        state = _tree_state(result, problem)
        state.count(now=True)
        self.pane = TreePane(state)
        self.controls = Controls(result if isinstance(result, RunningSearch) else None)
        self.view = beside(look.canvas(self.pane.centre), self.controls, self.pane.right, width=270)
        every_tick(self.tick)

    def tick(self) -> None:
        """Draw new simulations, and prices that have arrived."""
        self.controls.refresh()
        self.pane.refresh()


class RaceCell(look.Pane):
    """The chart of C(s), time or memory, and the table of methods."""

    def __init__(self, result: Race | RunningRace) -> None:
        super().__init__()
        self.subject = result
        self._run = result if isinstance(result, RunningRace) else None
        self.controls = Controls(self._run)
        self.kind = look.quantity_switch(self._new_chart)
        self._pane = look.figure(least_px=200)
        rows = len(race_points(result))
        self.table = look.table(
            race_frame([]), height=look.rows_height(rows, 240), selectable=False
        )
        self._words = look.text()
        self.view = look.canvas(
            look.row(self.kind, self.controls, height=40), self._words, self._pane, self.table
        )
        self._shown: Any = None
        self._new_chart()
        if self._run is not None:
            every_tick(self.tick)

    def _new_chart(self) -> None:
        self.curves = RaceCurves(
            list(race_points(self.subject)), str(self.kind.value), self.subject.problem.baseline
        )
        self._pane.object = self.curves.figure
        self._shown = None
        self.tick()

    def tick(self) -> None:
        """Redraw the chart and the table if anything has changed."""
        self.controls.refresh()
        points, rows = race_points(self.subject), list(self.subject.rows)
        state = self._run.state if self._run is not None else "over"
        shown = (state, [len(point) for point in points.values()], [row.status for row in rows])
        if shown == self._shown:
            return
        self._shown = shown
        look.later(self.curves.show, dict(points), {row.method: row.elapsed_s for row in rows})
        self.table.value = race_frame(rows)
        best = self.subject.best
        ended_count = sum(row.status not in UNFINISHED for row in rows)
        summary = f"{state}, {ended_count} of {len(points)} methods done"
        if best is not None:
            summary += f"; best so far: {best.method}, {cost_text(best)}"
        troubles = [
            h("p", f"{row.method}: {row.message}", cls="red")
            for row in rows
            if row.status in ("CRASHED", "FAILED")
        ]
        self._words.object = join(h("p", summary, cls="one"), *troubles)
