"""The second half of a report: compiled and measured results, other plans, and the origin."""

from __future__ import annotations

import math
from typing import Any

from toast_lab.compare import provenance
from toast_lab.compare.kept_runs import plan_digest
from toast_lab.explain.difference import Difference, difference
from toast_lab.report.linked_parts import ReportLinks
from toast_lab.report.page_tables import (
    Section,
    details,
    frame_table,
    rows_table,
)
from toast_lab.report.subject import ReportSubject
from toast_lab.runtime.diff import diff_compiled
from toast_lab.runtime.hlo import counts_text
from toast_lab.sharding.plan import spec_text
from toast_lab.text import line_text, minute_text
from toast_lab.views.compare_table import (
    bytes_text,
    collectives_text,
    seconds_text,
    shown_frame,
)
from toast_lab.views.markup import Safe, facts, h, join
from toast_lab.views.plan_tables import collective_rows, collective_sums, shown_collectives

#: most rows of a table of differences
MOST_CHANGES = 40


def evidence_section(subject: ReportSubject) -> Section | None:
    """Price, compiled program and measurement side by side; None if there is only the price."""
    entry = subject.entry
    compiled, run, cost = entry.compiled, entry.run, subject.cost
    if compiled is None and run is None:
        return None
    titles = (
        "time of a step",
        "  with overlap",
        "  computing",
        "peak memory of a device",
        "collectives",
        "largest relative error",
    )
    priced = (cost.time_s, cost.overlapped_s, cost.compute_s)
    memory = bytes_text(cost.peak_bytes)
    columns = [
        ("", titles),
        (
            f">priced on {subject.problem.machine.name}",
            (*map(seconds_text, priced), memory, collectives_text(cost), "–"),
        ),
    ]
    if compiled is not None:
        times = seconds_text(compiled.time_s), seconds_text(_compute_s(compiled))
        counts = counts_text(compiled.counts_by_kind()) or "none"
        memory = bytes_text(entry.compiled_peak_bytes)
        cells = ("–", *times, memory, "refused" if compiled.refused else counts, "–")
        columns.append((f">compiled for {compiled.topology}", cells))
    if run is not None:
        step = f"{seconds_text(run.median_s)} ± {seconds_text((run.spread_s or 0.0) / 2)}"
        memory = bytes_text(run.allocator_peak_bytes or run.peak_bytes)
        error = "–" if entry.error is None else f"{entry.error:.1e}"
        columns.append((f">measured on {run.devices}", (step, "–", "–", memory, "–", error)))
    rows = zip(*(cells for _, cells in columns), strict=True)
    label = "price, compiled program and measurement"
    parts: list[object] = [rows_table([title for title, _ in columns], [*rows], label)]
    parts += [h("p", note, cls="quiet") for note in _notes(subject)]
    if compiled is not None and not compiled.refused:
        parts.append(_compiled_collectives(subject, compiled))
    return Section("evidence", "Evidence", "Compiled and measured, beside the price", join(*parts))


def _compute_s(compiled: Any) -> float | None:
    parts = compiled.time_parts
    seconds: float | None = compiled.compute_s if parts is None else parts["compute_s"]
    return seconds


def _notes(subject: ReportSubject) -> list[str]:
    entry, notes = subject.entry, []
    if entry.compiled is not None:
        compiled = entry.compiled
        elsewhere = compiled.priced_elsewhere(subject.problem.machine.name)
        if elsewhere:
            notes.append(f"{elsewhere}: bytes can be compared, times and memory limits cannot.")
        if compiled.refused:
            notes.append(f"{compiled}.")
        notes += [f"{note[:1].upper()}{note[1:]}." for note in compiled.notes]
        notes += [f"Schedule: {note}." for note in getattr(compiled.schedule, "notes", ())]
        versions = ", ".join(f"{name} {text}" for name, text in compiled.versions.items() if text)
        notes.append(f"Compiled with {versions}.")
    if entry.run is not None:
        run = entry.run
        kind = getattr(run, "device_kind", "")
        if kind == "cpu":
            notes.append(
                "Measured on virtual CPU devices: results and collectives are meaningful, times "
                "say nothing about accelerators."
            )
        time_utc = getattr(run, "time_utc", "")
        steps = len(run.step_times_s)
        date_text = f", {time_utc[:10]}" if time_utc else ""
        notes.append(f"Median of {steps} steps with half of the interquartile range{date_text}.")
    return notes


def _compiled_collectives(subject: ReportSubject, compiled: Any) -> Safe:
    diff = diff_compiled(subject.problem, subject.plan, compiled)
    frame = collective_rows(subject.cost, diff.tidy())
    sums = collective_sums(frame, True)
    rows = [
        (
            f"{row.kind} over {row.axes}",
            f"{row.predicted_count:g}",
            bytes_text(row.predicted_bytes),
            f"{row.compiled_count:g}",
            bytes_text(row.compiled_bytes),
        )
        for row in sums.itertuples()
    ]
    columns = ("collective", ">priced", ">bytes priced", ">compiled", ">bytes compiled")
    different = frame[frame["status"] != "equal"].head(MOST_CHANGES)
    equal = len(diff.rows) - len(diff.different)
    parts: list[object] = [
        h("h3", "Collectives, priced and compiled"),
        h("p", f"{equal:,} of {len(diff.rows):,} collectives are the same on both sides."),
        rows_table(columns, rows, "collectives by kind, priced and compiled"),
    ]
    if len(different):
        heading = f"Where they differ ({len(diff.different):,})"
        parts.append(
            details(
                heading,
                frame_table(
                    shown_collectives(different), heading, numbers=("bytes", "time", "its bytes")
                ),
            )
        )
    return join(*parts)


# -- other plans -----------------------------------------------------------------------------------
def comparison_section(subject: ReportSubject) -> Section | None:
    """The plans side by side, and what changes from each to the explained one."""
    if not subject.others:
        return None
    frame = shown_frame(subject.entries).drop(columns=["show", "compiled collectives"])
    frame["plan"] = [f"{entry.style.symbol} {entry.name}" for entry in subject.entries]
    numbers = ("step", "peak", "fits", "compiled", "compiled ratio", "measured", "ratio")
    titles = {"compiled": "peak, compiled", "compiled ratio": "compiled / estimated"}
    titles |= {"measured": "step, measured", "ratio": "measured / estimated"}
    parts: list[object] = [
        frame_table(
            frame.rename(columns=titles),
            "plans side by side",
            numbers=[titles.get(name, name) for name in numbers],
        )
    ]
    for plan, entry in subject.others:
        change = difference(subject.problem, plan, subject.plan)
        parts += [
            h("h3", f"From {entry.name} to {subject.entry.name}"),
            *_difference_parts(change),
        ]
    return Section("plans", "Other plans", "Compared with other plans", join(*parts))


def _difference_parts(change: Difference) -> list[Safe]:
    before, after = change.before, change.after
    totals = [
        (label, format_amount(old), format_amount(new), _signed(format_amount, new - old))
        for label, format_amount, old, new in (
            ("time of a step", seconds_text, before.time_s, after.time_s),
            ("  computing", seconds_text, before.compute_s, after.compute_s),
            ("  communication", seconds_text, before.comm_s, after.comm_s),
            ("peak memory", bytes_text, before.peak_bytes, after.peak_bytes),
        )
    ]
    parts = [rows_table(("", ">before", ">after", ">change"), totals, "totals of both plans")]
    if not (change.tensors or change.collectives or change.compute):
        return [*parts, h("p", "The plans are the same.")]
    if change.collectives:
        rows = [
            (
                f"{row.kind} over {', '.join(row.axes)}",
                line_text(row.where) or "–",
                str(row.before),
                str(row.after),
                _signed(seconds_text, row.time_s),
            )
            for row in change.collectives[:MOST_CHANGES]
        ]
        columns = ("collective", "line", ">before", ">after", ">time")
        table = rows_table(columns, rows, "collectives that change")
        heading = f"Collectives that change ({len(change.collectives):,})"
        parts.append(details(heading, table, opened=True))
    if change.tensors:
        rows = [
            (
                row.value + (f" ×{row.places}" if row.places > 1 else ""),
                line_text(row.where),
                spec_text(row.before),
                spec_text(row.after),
                _signed(bytes_text, row.after_bytes - row.before_bytes),
            )
            for row in change.tensors[:MOST_CHANGES]
        ]
        columns = ("~tensor", "line", "~before", "~after", ">memory")
        table = rows_table(columns, rows, "tensors whose sharding differs")
        parts.append(details(f"Tensors whose sharding differs ({len(change.tensors):,})", table))
    return parts


def _signed(format_amount: Any, amount: float) -> str:
    if not amount:
        return "±0"
    return f"{'+' if amount > 0 else '−'}{format_amount(abs(amount))}"


# -- origin ----------------------------------------------------------------------------------------
def origin_section(subject: ReportSubject, links: ReportLinks) -> Section:
    """Everything that is needed to make the same report again."""
    problem = subject.problem
    model, program = problem.analysis.model, problem.analysis.program
    limit = problem.memory_limit_bytes
    rows: list[tuple[str, object]] = [
        ("made", f"{minute_text(subject.time_utc)} UTC"),
    ]
    if subject.command:
        rows.append(("command", h("code", subject.command)))
    rows += [
        ("model", str(model)),
        ("from", model.source or "–"),
        ("program", join(h("code", program.digest()), f", {program.n_ops:,} ops")),
        ("mesh", str(problem.mesh)),
        ("machine", problem.machine.name),
        ("memory limit", bytes_text(limit) if math.isfinite(limit) else "none"),
    ]
    if problem.pins is not None:
        rows.append(("pinned", "; ".join(problem.pins.texts)))
    for entry, plan in zip(subject.entries, subject.plans, strict=True):
        digest = plan_digest(plan)
        actions = " ".join(plan.history[:40]) or "no actions"
        rows.append((f"plan {entry.name}", join(h("code", digest), ": ", h("code", actions))))
    for name, result in subject.results.items():
        rows.append(
            (
                f"search of {name}",
                f"{result.method}, seed {result.seed}, {result.evaluations:,} distinct shardings "
                f"priced in {result.elapsed_s:.1f} s, {result.status.name}",
            )
        )
    versions = provenance.versions().items()
    rows.append(("versions", ", ".join(f"{name} {text}" for name, text in versions if text)))
    facts_list = facts(rows)
    save = h(
        "button", "Save this plan as a file", type="button", data_save="plan.json", cls="screen"
    )
    use = h(
        "p",
        save,
        " The file can be read by ",
        h("code", "toast-lab price MODEL --plan plan.json"),
        ", ",
        h("code", "tl.Plan.load"),
        " and the explorer.",
    )
    return Section("origin", "Origin", "How this was made", join(facts_list, use))
