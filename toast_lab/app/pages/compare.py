"""Step 5: plans side by side, predicted and executed."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.markup import Safe, bytes_text, facts, h, join, seconds_text, text
from toast_lab.app.session import Session
from toast_lab.lowering.listing import listing
from toast_lab.views.compare_table import GROUPS, compare_plot, shown_frame

_COLLECTIVE = re.compile(r"(all_gather|all_reduce|reduce_scatter|all_to_all|collective_permute|permute)")
MAX_LINES = 1500
WIDTHS = {
    "plan": 112,
    "step": 66,
    "peak": 84,
    "fits": 40,
    "collectives": 124,
    "measured": 86,
    "compiled": 84,
    "ratio": 60,
    "error": 64,
    "on": 56,
}


class ComparePage(pn.viewable.Viewer):
    """Ways to make plans left, the table and the listings in the centre, execution right."""

    def __init__(self, session: Session, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        common: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": (3, 0), "stylesheets": [look.INPUT]}
        parallel = look.button("Add data parallel")
        parallel.on_click(lambda _: session.add_data_parallel())
        self.typed = pn.widgets.TextAreaInput(
            name="actions (colour->axis, ...)",
            placeholder="batch->data, hidden->model",
            rows=3,
            max_length=4000,
            **common,
        )
        self.typed_name = pn.widgets.TextInput(name="name of that plan", placeholder="typed", max_length=60, **common)
        add = look.button("Add typed plan")
        add.on_click(
            lambda _: session.add_typed(
                str(self.typed.value_input or self.typed.value), str(self.typed_name.value or "")
            )
        )
        self.a = pn.widgets.Select(name="A, left listing", options=[], **common)
        self.b = pn.widgets.Select(name="B, right listing", options=[], **common)
        self.left = look.side(
            look.text(h("h2", "more plans")),
            parallel,
            self.typed,
            self.typed_name,
            add,
            look.text(h("h2", "side by side")),
            self.a,
            self.b,
            width=290,
        )
        self.table = look.table(shown_frame([]), height=160, sizing_mode="stretch_width", groups=GROUPS, widths=WIDTHS)
        self.table.param.watch(lambda e: self._row(e.new), "selection")
        self._plot = pn.pane.Bokeh(sizing_mode="stretch_width", height=200, margin=0)
        self._left, self._right = look.text(sizing_mode="stretch_both"), look.text(sizing_mode="stretch_both")
        halves = [
            pn.Column(
                half,
                sizing_mode="stretch_both",
                margin=0,
                scroll=True,
                stylesheets=[":host { border-top: 1px solid var(--tl-line, #dfe5ec); }"],
            )
            for half in (self._left, self._right)
        ]
        self.centre = pn.Column(
            look.text(
                h(
                    "p",
                    h("b", "Plans"),
                    h("span", "  select a row to execute it or to put it beside another", cls="quiet"),
                )
            ),
            self.table,
            self._plot,
            pn.Row(*halves, sizing_mode="stretch_both", margin=0, min_height=180),
            sizing_mode="stretch_both",
            stylesheets=[look.CANVAS],
            margin=0,
        )
        self._facts = look.text()
        self.devices = pn.widgets.Select(
            name="devices", options={"virtual CPU devices": "cpu", "attached accelerators": "auto"}, **common
        )
        self.repeats = pn.widgets.IntInput(name="repeats", value=10, start=1, end=1000, **common)
        self.execute = look.button("Execute the selected plan", button_type="primary")
        self.execute.on_click(lambda _: self._execute())
        self.remove = look.button("Remove it from the table")
        self.remove.on_click(lambda _: session.remove_plan(self._name))
        self._progress = look.text()
        self.right = look.side(
            self._facts, self.devices, self.repeats, self.execute, self._progress, self.remove, width=300
        )
        self.a.param.watch(lambda _: self._listings(), "value")
        self.b.param.watch(lambda _: self._listings(), "value")
        self._stale = False
        session.param.watch(lambda e: self._changed(e.name), ["plans", "step"])
        session.param.watch(lambda *_: self.show_job(), "job_changes")
        self._name = ""
        self.show_plans()
        self.show_job()

    @property
    def selected(self) -> PlanItem | None:
        """The plan of the selected row."""
        return self.session.plan_named(self._name)

    def _add_typed(self) -> None:
        self.session.add_typed(str(self.typed.value_input or self.typed.value), str(self.typed_name.value or ""))

    def _row(self, rows: list[int]) -> None:
        plans = self.session.plans
        if rows and rows[0] < len(plans):
            self._name = plans[rows[0]].name
            self.b.value = self._name
        self.show_selected()

    def _changed(self, what: str) -> None:
        """Plans changed, or the step; listings of large programs take long, so they wait until the page is shown."""
        self._stale |= what == "plans"
        if self._stale and self.session.step == "compare":
            self.show_plans()

    def show_plans(self) -> None:
        """The table, the scatter and the choices of A and B."""
        self._stale = False
        plans = self.session.plans
        names = [p.name for p in plans]
        entries = [p.entry() for p in plans]
        known = set(self.a.options)
        new = [n for n in names if n not in known]
        self.table.value = shown_frame(entries)
        if self._name not in names or (new and known):
            self._name = new[-1] if new else names[-1] if names else ""
        self.table.selection = [names.index(self._name)] if self._name in names else []
        problem = self.session.problem
        self._plot.object = compare_plot(entries, problem.memory_limit_bytes if problem is not None else None)
        self.a.options, self.b.options = names, names
        if self.a.value not in names:
            self.a.value = names[0] if names else None
        self.b.value = self._name or None
        self._listings()
        self.show_selected()

    def _listings(self) -> None:
        left, right = (self.session.plan_named(str(w.value)) for w in (self.a, self.b))
        texts = [_lines(p) for p in (left, right)]
        differ = _different(*texts)
        for pane, item, lines, marked in zip((self._left, self._right), (left, right), texts, differ, strict=True):
            pane.object = _listing_html(item, lines, marked) if item is not None else ""

    def show_selected(self) -> None:
        """Numbers of the selected plan, each with where it comes from."""
        item = self.selected
        self.execute.disabled = item is None or self.session.busy
        self.remove.disabled = item is None or item.name == "unsharded"
        self._facts.object = _plan_words(item) if item is not None else h("p", "Select a plan.", cls="quiet")

    def show_job(self) -> None:
        """Progress of the execution."""
        job = self.session.job
        self.execute.disabled = self.session.busy or self.selected is None
        if job is None or job.kind != "run":
            self._progress.object = h(
                "p", "Runs in a process of its own; CPU times say nothing about accelerators.", cls="quiet"
            )
            return
        last = [e.data for e in job.events[-1:]]
        state = (
            f"{job.title}: {_event_text(last[0]) if last else 'starting'}, {job.elapsed_s:.0f} s"
            if job.running
            else job.message
        )
        self._progress.object = h("p", state, cls="quiet")

    def _execute(self) -> None:
        item = self.selected
        if item is not None:
            devices = f"cpu:{item.problem.mesh.n_devices}" if self.devices.value == "cpu" else str(self.devices.value)
            self.session.start_run(item.name, devices, self.repeats.value or 10)

    def __panel__(self) -> Any:
        return pn.Row(self.left, self.centre, self.right)


def _event_text(data: Any) -> str:
    stage, fraction = getattr(data, "stage", None), getattr(data, "fraction", 0)
    return f"{stage} {fraction:.0%}" if stage and fraction else str(stage or data)[:120]


def _lines(item: PlanItem | None) -> list[str]:
    return listing(item.problem, item.plan).splitlines()[:MAX_LINES] if item is not None else []


def _different(a: list[str], b: list[str]) -> tuple[set[int], set[int]]:
    """Lines that the other listing does not have."""
    left, right = set(a), set(b)
    return {i for i, x in enumerate(a) if x not in right}, {i for i, x in enumerate(b) if x not in left}


def _listing_html(item: PlanItem, lines: list[str], marked: set[int]) -> Safe:
    rows = []
    for i, line in enumerate(lines):
        parts = [h("span", p, cls="c") if _COLLECTIVE.fullmatch(p) else text(p) for p in _COLLECTIVE.split(line)]
        rows.append(h("span", *parts, cls="d") if i in marked else join(parts))
    if len(lines) == MAX_LINES:
        rows.append(text(f"… the first {MAX_LINES} lines"))
    return join([h("h2", f"{item.name}, device-local"), h("pre", join(rows, "\n"))])


def _plan_words(item: PlanItem) -> Safe:
    cost, run = item.cost, item.run
    estimated = [
        ("step", f"{seconds_text(cost.time_s)} ({seconds_text(cost.overlapped_s)} with overlap)"),
        ("compute", seconds_text(cost.compute_s)),
        ("collectives", seconds_text(cost.comm_s)),
        ("peak memory", f"{bytes_text(cost.peak_bytes)} of {bytes_text(cost.memory_limit_bytes)}"),
        ("on", f"{item.problem.mesh} of {item.problem.machine.name}"),
    ]
    parts: list[Any] = [
        h("h2", item.name),
        h("ol", *[h("li", a) for a in item.plan.actions], cls="chain mono")
        if item.plan.actions
        else h("p", "no action", cls="quiet"),
        h("h2", "cost model ", h("span", "estimated", cls="tag estimated")),
        facts(estimated),
    ]
    predicted = Counter(c.kind for c in cost.collectives)
    compiled = Counter(dict(getattr(run, "collective_counts", {}) or {})) if run is not None else None
    kinds = sorted(set(predicted) | set(compiled or {}))
    if kinds:
        heading = "collectives: estimated" + (" / compiled" if compiled is not None else "")
        rows = [(k, f"{predicted[k]}" + (f" / {compiled[k]}" if compiled is not None else "")) for k in kinds]
        parts += [h("h2", heading), facts(rows)]
    if run is not None:
        error = run.max_relative_error
        parts += [
            h("h2", "execution ", h("span", "measured", cls="tag measured")),
            facts(
                [
                    ("step, median", f"{seconds_text(run.median_s)} of {len(run.step_times_s)}"),
                    ("compile", seconds_text(run.compile_s)),
                    ("peak, compiled", bytes_text(run.peak_bytes)),
                    ("error", "not compared" if error is None else f"{error:.1e} relative to unsharded"),
                    ("devices", run.devices),
                ]
            ),
        ]
    return join(parts)
