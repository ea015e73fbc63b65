"""What a plan costs: how its step spends time, what fills memory, and why devices communicate."""

from __future__ import annotations

from typing import Any

import pandas as pd
from bokeh.models import CustomJS, TapTool

from toast_lab.explain.why import CollectiveReason, why
from toast_lab.ir.rounds import rounds_notes
from toast_lab.report.linked_parts import ReportLinks
from toast_lab.report.page_tables import (
    Section,
    details,
    figure_box,
    frame_table,
    rows_table,
)
from toast_lab.report.prose import AlikeCollectives, alike_collectives
from toast_lab.report.subject import ReportSubject
from toast_lab.text import line_text
from toast_lab.views.breakdown import (
    breakdown_frame,
    breakdown_rates,
    shown_breakdown,
)
from toast_lab.views.breakdown_chart import breakdown_chart
from toast_lab.views.chart_style import bokeh_figure
from toast_lab.views.compare_table import bytes_text, seconds_text
from toast_lab.views.markup import Safe, facts, h, join
from toast_lab.views.memory_chart import memory_chart
from toast_lab.views.memory_timeline import held_frame, shown_held, shown_peaks
from toast_lab.views.plan_tables import ops_frame, shown_ops
from toast_lab.views.step_chart import step_figure
from toast_lab.views.step_timeline import (
    bars_frame,
    exposed_frame,
    memory_frame,
    shown_exposed,
)

#: groups of collectives that are explained, the most costly ones; each takes up to a second
MAX_EXPLAINED = 8
#: most estimated bars of the timeline, so that the file opens quickly
MOST_BARS = 1500
#: rows in the tables of the largest values in memory and of the slowest ops
MOST_HELD, MOST_OPS = 40, 40
#: reports a click on an op of the timeline to the page's script
REPORT_CLICK = """
const indices = cb_obj.indices
if (indices.length) document.dispatchEvent(
  new CustomEvent('toast:op', { detail: source.data.op[indices[0]] }))
"""


def collectives_section(subject: ReportSubject, links: ReportLinks) -> Section:
    """Every collective, and the reasons for the most costly ones."""
    cost = subject.cost
    groups = alike_collectives(cost.collectives)
    if not groups:
        body = h("p", "There is no communication: no op needs data from another device.")
        return Section("collectives", "Communication", "Communication", body)
    explained = groups[:MAX_EXPLAINED]
    reasons = why(subject.problem, subject.plan, [group.longest for group in explained])
    columns = ("collective", "line", ">number", ">bytes", ">time", ">of the step", "because")
    because = [reason.because for reason in reasons]
    rows = [
        (
            f"{group.kind} over {', '.join(group.axes)}",
            line_text(group.where) or "–",
            f"{len(group.rows):,}",
            bytes_text(sum(row.local_bytes for row in group.rows)),
            seconds_text(group.time_s),
            f"{group.time_s / cost.time_s:.1%}" if cost.time_s else "–",
            because[index] if index < len(because) else "–",
        )
        for index, group in enumerate(groups)
    ]
    picks = [links.pick_of_op(cost.collectives[group.longest].op) for group in groups]
    intro = (
        "Collectives of one kind at one source line share a row; those that take longest come "
        "first."
    )
    if len(groups) > len(explained):
        intro += f" The first {len(explained)} are explained; toast-lab why explains any."
    parts = [
        h("p", intro),
        rows_table(columns, rows, "collectives by source line", picks=picks),
        h("h3", "What caused them, and what would remove them"),
        *[_reason_part(reason, group) for reason, group in zip(reasons, explained, strict=True)],
    ]
    return Section("collectives", "Communication", "Communication, and why", join(*parts))


def _reason_part(reason: CollectiveReason, group: AlikeCollectives) -> Safe:
    collective = reason.collective
    repeats = f" ×{len(group.rows)}" if len(group.rows) > 1 else ""
    summary = join(
        h("b", f"{collective.kind} over {' and '.join(collective.axes)}{repeats}"),
        " of ",
        h("code", collective.value),
        f", {seconds_text(group.time_s)}",
    )
    rows: list[tuple[str, object]] = [
        ("at", join(h("code", reason.place), f", {reason.op_kind}")),
        ("because", reason.because),
        ("from", ", ".join(reason.causes) or "no action: the op cannot be split"),
    ]
    if reason.conflict:
        rows.append(("conflict", reason.conflict))
    rows += [("undo", str(change)) for change in reason.undoing]
    rows.append(("instead", str(reason.cheapest or "no change that was tried removes it")))
    return details(summary, facts(rows))


# -- price -----------------------------------------------------------------------------------------
def price_section(subject: ReportSubject, links: ReportLinks) -> Section:
    """How the step spends its time, part by part."""
    frame = _breakdown(subject)
    plan_count = len(subject.entries)
    parts = [
        h(
            "p",
            "Estimated time of one step on one device, with collectives one after the other. An op "
            "counts as memory traffic if moving its bytes takes longer than its arithmetic, else "
            "as computing.",
        ),
        *(
            h("p", f"{note[:1].upper()}{note[1:]}.")
            for note in rounds_notes(subject.problem.analysis.program)
        ),
        figure_box(
            "price",
            90 + 46 * plan_count,
            "bars of the estimated step time by part; the table below shows the same data",
            "Parts differ by colour and by hatch.",
        ),
        frame_table(
            shown_breakdown(frame), "parts of the estimated step time", numbers=("time", "share")
        ),
        details(
            f"The {MOST_OPS} ops and collectives that take longest",
            _ops_table(subject, links),
        ),
    ]
    return Section("price", "Price", "Price, part by part", join(*parts))


def _ops_table(subject: ReportSubject, links: ReportLinks) -> Safe:
    rows = ops_frame(subject.cost).head(MOST_OPS)
    frame, titles = shown_ops(rows)
    shown = frame.rename(columns=titles)
    return frame_table(
        shown.map(lambda cell: cell if isinstance(cell, str) else f"{cell:g}"),
        "ops and collectives by their time",
        numbers=[titles[name] for name in ("share", "time", "FLOP", "moved")],
        code=("value",),
        picks=[links.pick_of_op(int(op)) for op in rows["op"]],
    )


def price_figure(subject: ReportSubject) -> Any:
    """The picture of ``price_section``."""
    return bokeh_figure(breakdown_chart(_breakdown(subject), subject.entries))


def _breakdown(subject: ReportSubject) -> pd.DataFrame:
    rates = breakdown_rates(subject.problem)
    return breakdown_frame(subject.entries, {entry.name: rates for entry in subject.entries})


# -- timeline --------------------------------------------------------------------------------------
def timeline_section(subject: ReportSubject) -> Section:
    """One step as a timeline."""
    schedule = _schedule(subject)
    bars = bars_frame(subject.cost, schedule, subject.where, MOST_BARS)
    exposed = exposed_frame(bars)
    steps = len(subject.cost.ops) + len(subject.cost.collectives)
    caption = (
        "The estimate assumes that collectives overlap with compute as far as the machine allows; "
        "hatched: the devices wait for them."
    )
    if steps > MOST_BARS:
        caption += f" The {MOST_BARS:,} longest of {steps:,} ops and collectives are drawn."
    if schedule is None:
        caption += " In the report of a compiled plan, the compiler's schedule stands above it."
    else:
        caption = (
            f"Above: the schedule of the compiler for {subject.entry.compiled.topology}. {caption}"
        )
    parts: list[object] = [
        figure_box(
            "timeline",
            330 if schedule is not None else 270,
            "timeline of one step: computing and collectives, and memory over the same time",
            f"{caption} Drag and scroll to move in time; a click selects the op.",
        )
    ]
    if len(exposed):
        parts += [
            h("h3", "Waiting for communication, by source line"),
            frame_table(
                shown_exposed(exposed),
                "exposed communication by source line",
                numbers=("exposed, compiled", "exposed, estimated"),
            ),
        ]
    return Section("timeline", "Timeline", "One step as a timeline", join(*parts))


def _schedule(subject: ReportSubject) -> Any:
    return getattr(subject.entry.compiled, "schedule", None)


def timeline_figure(subject: ReportSubject) -> Any:
    """The picture of ``timeline_section``, which reports clicks to the page's script."""
    schedule = _schedule(subject)
    bars = bars_frame(subject.cost, schedule, subject.where, MOST_BARS)
    plot = step_figure(bars, memory_frame(subject.cost, schedule))
    for tool in plot.select({"type": TapTool}):
        for renderer in tool.renderers:
            source = renderer.data_source
            report_click = CustomJS(args={"source": source}, code=REPORT_CLICK)
            source.selected.js_on_change("indices", report_click)
    return plot


# -- memory ----------------------------------------------------------------------------------------
def memory_section(subject: ReportSubject, links: ReportLinks) -> Section:
    """What is in the memory of one device."""
    held = held_frame(subject.cost)
    parts = [
        figure_box(
            "memory",
            300,
            "memory of one device in program order; the tables below say where it peaks",
            "Memory in program order. Markers show the peaks; plans also differ by their dashes.",
        ),
        frame_table(
            shown_peaks(subject.entries, subject.where),
            "where each plan's memory peaks",
            numbers=("peak", "of limit", "first", "last"),
        ),
        h("h3", "What is in memory at the peak"),
        frame_table(
            shown_held(held.head(MOST_HELD)).replace("unknown line", "–"),
            "the largest entries in memory at the peak",
            numbers=("bytes", "share"),
            code=("value",),
            picks=[links.pick_of_op(int(op)) for op in held["op"].head(MOST_HELD)],
        ),
    ]
    return Section("memory", "Memory", "Memory", join(*parts))


def memory_figure(subject: ReportSubject) -> Any:
    """The picture of ``memory_section``."""
    limit_bytes = subject.cost.memory_limit_bytes
    return bokeh_figure(memory_chart(subject.entries, limit_bytes, subject.where))
