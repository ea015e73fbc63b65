"""Views of plans: side by side, their memory, and the part of a tensor on each device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd
import panel as pn

from toast_lab.app import look
from toast_lab.app.cells.view import kind_text, refused, shown, table_html
from toast_lab.app.plan_words import step_words
from toast_lab.app.tiles_pane import TilesPane, large_arguments, tensor_text
from toast_lab.compare.result import Comparison, ComparisonRow
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidInput, did_you_mean
from toast_lab.ir.program import Program
from toast_lab.plan_verbs import Plan
from toast_lab.report.plan_panel import best_of, plan_panel, styled
from toast_lab.search.contract import SearchResult
from toast_lab.search.race import Race
from toast_lab.sharding.plan import ShardingPlan, spec_text
from toast_lab.text import counted
from toast_lab.views.breakdown import breakdown_frame, breakdown_rates
from toast_lab.views.breakdown_chart import breakdown_chart
from toast_lab.views.chart_style import bokeh_figure
from toast_lab.views.compare_table import PlanEntry, compare_frame, shown_frame
from toast_lab.views.markup import Safe, bytes_text, facts, h, join, quiet, seconds_text
from toast_lab.views.memory_chart import memory_chart
from toast_lab.views.memory_timeline import held_frame, shown_held
from toast_lab.views.saved_chart import chart_svg
from toast_lab.views.tiles import TilesPlot, dim_texts, parts, parts_frame

ACCEPTED_PLANS = (
    "a Comparison, a Race, a SearchResult, a ShardingPlan, or a dict of plans or results by name"
)
EXAMPLE = 'tl.{call}({{"searched": result.plan, "by hand": plan}}, problem)'
WIDTH_PX = 720.0  #: width of a static chart
BARS_PX, BAR_PX = 100.0, 28.0  #: base height of a static bar chart, and height of each bar
#: titles of the columns of ``shown_frame`` that a cell has
TITLES = {
    "plan": "plan",
    "step": "step, predicted",
    "peak": "peak, predicted",
    "fits": "fits",
    "collectives": "collectives, predicted",
}
MEASURED_TITLES = {
    "measured": "step, measured",
    "compiled collectives": "collectives, compiled",
    "compiled": "peak, compiled",
    "error": "error",
}


def compare(plans: Any, problem: Problem | None = None, *, inline: bool = False) -> Any:
    """Plans side by side.

    Shows step time, peak memory and collectives: predicted and, for executed plans, measured.

    Args:
        plans: a result of ``tl.compare`` or ``tl.race``; or plans, or search results, by name.
        problem: the problem to price plans for. Needed for plans; with a Comparison it adds the
            breakdown of the predicted time.
        inline: give a Panel object that communicates through the notebook, for a kernel on another
            machine.

    Raises:
        InvalidInput: another type, or plans without a problem.
    """
    entries = plan_entries(plans, problem, "views.compare")
    known_problem = problem or problem_of(plans)

    def static() -> Safe:
        chart = _breakdown(entries, known_problem)
        height = BARS_PX + BAR_PX * len(entries)
        picture = "" if chart is None else Safe(chart_svg(chart, size_px=(WIDTH_PX, height)))
        return join(table_html(texts_frame(entries)), picture)

    return shown(
        inline,
        kind="compare",
        about=_summary(entries),
        make=lambda: CompareCell(entries, known_problem),
        static=static,
        height=150 + 25 * len(entries) + max(260, 60 + 28 * len(entries)),
        table=lambda: compare_frame(entries),
    )


def memory(plans: Any, problem: Problem | None = None, *, inline: bool = False) -> Any:
    """The memory of one device in program order, all plans on one axis.

    Also lists the values that are in memory when a plan peaks.

    Args:
        plans: as for ``compare``; for a Comparison, the view shows the predicted memory, which
            needs the problem.
        problem: as for ``compare``.
        inline: as for ``compare``.

    Raises:
        InvalidInput: another type, or plans without a problem.
    """
    entries = plan_entries(plans, problem, "views.memory")
    check_priced(entries, "views.memory")
    lines = program_of(plans, problem).source_lines()

    def table() -> pd.DataFrame:
        rows = []
        for name, cost in ((entry.name, entry.cost) for entry in entries):
            held = cost.at_peak[0] if cost.at_peak else None
            largest = ("", 0.0) if held is None else (held.value or held.kind, held.bytes)
            rows.append((name, float(cost.peak_bytes), cost.peak_op, *largest))
        columns = ["plan", "peak_bytes", "peak_op", "largest", "largest_bytes"]
        return pd.DataFrame(rows, columns=columns)

    def static() -> Safe:
        first_plan = entries[0]
        return join(
            Safe(chart_svg(_timeline(entries, lines), size_px=(WIDTH_PX, 260.0))),
            h("p", f"In memory where {first_plan.name} peaks:"),
            table_html(shown_held(held_frame(first_plan.cost)), 8),
        )

    return shown(
        inline,
        kind="memory",
        about=_summary(entries),
        make=lambda: MemoryCell(entries, lines),
        static=static,
        height=620,
        table=table,
    )


def plan(given: Any, problem: Problem | None = None, *, inline: bool = False) -> Any:
    """A plan in one sentence, three numbers, and what it cuts, sends and chooses.

    Args:
        given: a plan or a search result; or several by name, the first of which is compared with
            the best of the others.
        problem: the problem to price plans for; a search result has its own.
        inline: as for ``compare``.

    Raises:
        InvalidInput: another type, or a plan without a problem.
    """
    entries = plan_entries(given, problem, "views.plan")
    known_problem = problem or problem_of(given)
    first_plan = next(iter(given.values())) if isinstance(given, Mapping) else given
    sharding = first_plan.plan if isinstance(first_plan, SearchResult) else first_plan
    if known_problem is None or not isinstance(sharding, ShardingPlan):
        raise refused("plan", "a plan or a search result", given, "tl.views.plan(result)")
    panel = styled(plan_panel(known_problem, sharding, entries[0].cost, best=best_of(entries[1:])))
    return shown(
        inline,
        kind="plan",
        about=_summary(entries),
        make=lambda: look.text(panel, margin=12),
        static=lambda: panel,
        height=430,
        table=lambda: compare_frame(entries),
    )


def tiles(
    plan: ShardingPlan | SearchResult, tensor: str | int | None = None, *, inline: bool = False
) -> Any:
    """The part of a tensor that each device of the mesh holds.

    Args:
        plan: a ShardingPlan, or the SearchResult that contains it.
        tensor: path of an argument or a result, name of a value, or a value's number; by default
            the first argument that is not a scalar.
        inline: as for ``compare``.

    Raises:
        InvalidInput: another type, or no such tensor.
    """
    sharding = plan.plan if isinstance(plan, SearchResult) else plan
    if not isinstance(sharding, ShardingPlan):
        raise refused(
            "tiles", "a ShardingPlan or a SearchResult", plan, 'tl.views.tiles(result.plan, "x")'
        )
    value = _value_index(sharding, tensor)
    program = sharding.program
    layouts = sharding.kept_layouts()

    def spec(tensor_value: int) -> Any:
        return sharding.spec(int(layouts[tensor_value]), len(program.dims(tensor_value)))

    def make() -> TilesPane:
        arguments = large_arguments(program)
        pane = TilesPane(lambda: sharding, lambda: list(dict.fromkeys([value, *arguments])))
        pane.view.stylesheets = [look.CANVAS]
        pane.refresh()
        return pane

    def static() -> Safe:
        shape = program.dims(value)
        part_texts = "; ".join(dim_texts(sharding.mesh, shape, spec(value))) or (
            "a scalar, whole on every device"
        )
        plot = TilesPlot(sharding.mesh)
        plot.show(shape, spec(value), range(min(len(shape), 2)))
        picture = Safe(chart_svg(plot.figure, size_px=plot.size_px))
        return join(picture, h("p", part_texts))

    def table() -> pd.DataFrame:
        return parts_frame(sharding.mesh, parts(sharding.mesh, program.dims(value), spec(value)))

    return shown(
        inline,
        kind="tiles",
        about=lambda: f"{tensor_text(program, value)} as {spec_text(spec(value))}",
        make=make,
        static=static,
        height=420,
        table=table,
    )


# -- data ------------------------------------------------------------------------------------------
def check_priced(entries: Sequence[PlanEntry], call: str) -> None:
    """Check that all costs have their memory timelines, which a Comparison does not keep.

    Raises:
        InvalidInput: a cost has none.
    """
    if any(not hasattr(entry.cost, "timeline_bytes") for entry in entries):
        raise InvalidInput(f"{call}: give the problem as well: tl.{call}(comparison, problem)")


def plan_entries(plans: Any, problem: Problem | None, call: str) -> list[PlanEntry]:
    """Plans with their names and costs.

    Args:
        plans: as for ``compare``.
        problem: the problem to price plans for; None means the one that ``plans`` contain, if any.
        call: name of the public function, for messages: "views.compare".

    Raises:
        InvalidInput: another type, or plans without a problem.
    """
    example = EXAMPLE.format(call=call)
    if problem is not None and not isinstance(problem, Problem):
        raise InvalidInput(
            f"{call} takes a Problem as second argument, not {kind_text(problem)}. For instance: "
            f"{example}"
        )
    if isinstance(plans, Comparison):
        return _numbered(_comparison_entry(row, problem) for row in plans.rows)
    if isinstance(plans, Race):
        plans, problem = plans.plans, plans.problem
    elif isinstance(plans, SearchResult):
        plans = {plans.method: plans}
    elif isinstance(plans, ShardingPlan):
        plans = {"plan": plans}
    if isinstance(plans, Sequence) and not isinstance(plans, str):
        plans = {f"plan {i}": plan for i, plan in enumerate(plans, 1)}
    if not isinstance(plans, Mapping) or not plans:
        raise InvalidInput(
            f"{call} takes {ACCEPTED_PLANS}, not {kind_text(plans)}. For instance: {example}"
        )
    offenders = [
        f"{key!r} is {kind_text(value)}"
        for key, value in plans.items()
        if not isinstance(value, ShardingPlan | SearchResult)
    ]
    if offenders:
        raise InvalidInput(f"{call} takes {ACCEPTED_PLANS}, but {', '.join(offenders)}")
    unpriced = [str(key) for key, value in plans.items() if isinstance(value, ShardingPlan)]
    if unpriced and problem is None:
        raise InvalidInput(
            f"{call}: the price of {', '.join(unpriced)} needs the problem. For instance: {example}"
        )
    entries = []
    for name, item in plans.items():
        if isinstance(item, SearchResult):
            entries.append(PlanEntry(str(name), item.plan.history, item.cost))
        elif problem is not None:
            entries.append(PlanEntry(str(name), item.history, price(problem, item)))
    return _numbered(entries)


def _numbered(entries: Iterable[PlanEntry]) -> list[PlanEntry]:
    """Entries with their numbers, which decide their colours and markers in charts."""
    return [entry._replace(number=index) for index, entry in enumerate(entries)]


def problem_of(plans: Any) -> Problem | None:
    """The problem that a race or search results contain; None if there is none."""
    if isinstance(plans, Race | SearchResult):
        return plans.problem
    if isinstance(plans, Comparison | ShardingPlan):
        return None
    problems = [getattr(plan, "problem", None) for plan in _listed(plans)]
    return next((problem for problem in problems if isinstance(problem, Problem)), None)


def program_of(plans: Any, problem: Problem | None) -> Program:
    """The program that plans shard; for a Comparison, that of the problem."""
    known_problem = problem or problem_of(plans)
    if known_problem is not None:
        return known_problem.analysis.program
    first_plan = plans if isinstance(plans, SearchResult) else _listed(plans)[0]
    program: Program = (
        first_plan.plan if isinstance(first_plan, SearchResult) else first_plan
    ).program
    return program


def _listed(plans: Any) -> list[Any]:
    return list(plans.values()) if isinstance(plans, Mapping) else list(plans)


def _comparison_entry(row: ComparisonRow, problem: Problem | None) -> PlanEntry:
    cost: Any = None
    actions: tuple[str, ...] = tuple((row.plan or {}).get("actions", ()))
    if problem is not None and row.plan is not None:
        cost = price(problem, Plan.from_json(dict(row.plan), problem, row.name))
    else:
        predicted = row.predicted
        counts = {} if predicted is None else predicted.collective_counts
        cost = SimpleNamespace(
            time_s=math.nan if predicted is None else predicted.time_s,
            peak_bytes=math.nan if predicted is None else predicted.peak_bytes,
            fits=True,
            collectives=[SimpleNamespace(kind=kind) for kind in Counter(counts).elements()],
        )
    return PlanEntry(row.name, actions, cost, None if row.median_s is None else row)


def _summary(entries: Sequence[PlanEntry]) -> str:
    return f"{counted(len(entries), 'plan')}: {', '.join(entry.name for entry in entries)}"


def texts_frame(entries: Sequence[PlanEntry]) -> pd.DataFrame:
    """The table of plans as text; what was measured is left out if no plan was executed."""
    titles = TITLES
    if any(entry.run is not None for entry in entries):
        titles = {**TITLES, **MEASURED_TITLES}
    return shown_frame(entries)[[*titles]].rename(columns=titles)


def _breakdown(entries: Sequence[PlanEntry], problem: Problem | None) -> Any:
    """Chart of the predicted step time by its parts; None if only total times are known."""
    priced = [entry for entry in entries if hasattr(entry.cost, "compute_s")]
    if not priced:
        return None
    rates = {}
    if problem is not None:
        rates = dict.fromkeys((entry.name for entry in priced), breakdown_rates(problem))
    return breakdown_chart(breakdown_frame(priced, rates), priced)


def _timeline(entries: Sequence[PlanEntry], lines: Sequence[str]) -> Any:
    """Chart of memory against program order, with the limit if memory comes near it."""
    return memory_chart(entries, float(entries[0].cost.memory_limit_bytes), lines)


def _value_index(plan: ShardingPlan, tensor: str | int | None) -> int:
    program = plan.program
    if tensor is None:
        return next(iter(large_arguments(program)), 0)
    if isinstance(tensor, str):
        if tensor in program.value_name:
            return program.value_name.index(tensor)
        if tensor in program.output_paths:
            return int(program.outputs[program.output_paths.index(tensor)])
        tensor_names = [
            *program.value_name[: program.n_arguments],
            *program.output_paths,
            *program.value_name,
        ]
        hint = did_you_mean(tensor, tensor_names)
        arguments = ", ".join(tensor_names[: min(20, program.n_arguments)])
        raise InvalidInput(
            f"views.tiles: no tensor is called {tensor!r}{hint}; arguments: {arguments}"
        )
    if isinstance(tensor, int) and not isinstance(tensor, bool) and 0 <= tensor < program.n_values:
        return tensor
    raise InvalidInput(
        f"views.tiles: a tensor is a name or a number from 0 to {program.n_values - 1}, not "
        f"{tensor!r}"
    )


# -- pages -----------------------------------------------------------------------------------------
class CompareCell(look.Pane):
    """The table of plans; below it the time breakdown, and details of the selected plan."""

    def __init__(self, entries: Sequence[PlanEntry], problem: Problem | None) -> None:
        super().__init__()
        self.entries = list(entries)
        frame = texts_frame(entries)
        self.table = look.table(frame, height=look.rows_height(len(frame), 240))
        look.on_row(self.table, self.pick)
        self._words = look.text()
        chart = _breakdown(entries, problem)
        self.figure = None if chart is None else bokeh_figure(chart)
        left = look.text() if self.figure is None else look.figure(self.figure, least_px=110)
        right = pn.Column(
            self._words, width=270, margin=(0, 0, 0, 6), scroll=True, sizing_mode="stretch_height"
        )
        self.view = look.canvas(
            self.table, pn.Row(left, right, sizing_mode="stretch_both", margin=(8, 0, 0, 0))
        )
        self.pick(0)

    def pick(self, row: int) -> None:
        """Select a plan and show its details."""
        entry = self.entries[row]
        self.table.selection = [row]
        actions = [h("li", step_words(action)) for action in entry.actions]
        cost, rows = entry.cost, [("step", seconds_text(entry.cost.time_s))]
        if hasattr(cost, "compute_s"):
            rows += [
                ("with overlap", seconds_text(cost.overlapped_s)),
                ("compute", seconds_text(cost.compute_s)),
                ("collectives", seconds_text(cost.comm_s)),
                ("peak", f"{bytes_text(cost.peak_bytes)} of {bytes_text(cost.memory_limit_bytes)}"),
            ]
        self._words.object = join(
            h("h2", entry.name, " ", h("span", "predicted", cls="tag estimated")),
            facts(rows),
            h("h2", "actions"),
            h("ol", *actions, cls="chain mono") if actions else quiet("none"),
        )


class MemoryCell(look.Pane):
    """The memory chart; below it the plans, and the values in memory at the selected one's peak."""

    def __init__(self, entries: Sequence[PlanEntry], lines: Sequence[str]) -> None:
        super().__init__()
        self.entries = list(entries)
        frame = pd.DataFrame(
            {
                "plan": [entry.name for entry in entries],
                "peak": [bytes_text(entry.cost.peak_bytes) for entry in entries],
                "fits": ["yes" if entry.cost.fits else "no" for entry in entries],
                "at op": [entry.cost.peak_op for entry in entries],
            }
        )
        self.table = look.table(frame, sizing_mode="stretch_height", width=300)
        look.on_row(self.table, self.pick)
        self.held = look.table(shown_held(held_frame(entries[0].cost)), selectable=False)
        self.figure = bokeh_figure(_timeline(entries, lines))
        self.view = look.canvas(
            look.figure(self.figure, least_px=200), look.filled_row(self.table, self.held)
        )
        self.pick(0)

    def pick(self, row: int) -> None:
        """Select a plan and show the values in memory at its peak."""
        self.table.selection = [row]
        self.held.value = shown_held(held_frame(self.entries[row].cost))
