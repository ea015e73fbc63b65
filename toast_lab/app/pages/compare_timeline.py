"""One step of the selected plan as a timeline: the compiler's schedule above the estimate."""

from __future__ import annotations

from typing import Any

import pandas as pd
from bokeh.models import TapTool

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.pages.compare_pictures import Picture, on_pick, source_lines_of
from toast_lab.text import line_text
from toast_lab.views.compare_table import PlanEntry, seconds_text
from toast_lab.views.markup import Safe, one_line
from toast_lab.views.step_timeline import (
    COLUMNS,
    FIGURE,
    bars_frame,
    exposed_frame,
    memory_frame,
    shown_exposed,
)

SELECT_A_PLAN = "Select a plan."


class StepTimeline(Picture):
    """Bars of compute and of collectives; a click on a bar selects its op."""

    title = "Timeline"
    figure = FIGURE
    words = SELECT_A_PLAN
    twin_height = 96
    _item: PlanItem | None = None
    _plot: Any = None

    def _parts(self) -> list[Any]:
        """The parts from top to bottom; a row of the table selects an op as well."""
        parts = super()._parts()
        self.twin.selectable = 1
        look.on_row(self.twin, self._pick_row)
        return parts

    def _rows(self, entries: list[PlanEntry]) -> Any:
        if self._item is None:
            return pd.DataFrame(columns=list(COLUMNS))
        return bars_frame(self._item.cost, _schedule(self._item), source_lines_of(self.session))

    def refresh(self, item: PlanItem | None) -> None:
        """Draw the selected plan."""
        self._item = item
        super().refresh(item)
        self.mark()

    def follow(self, item: PlanItem | None) -> None:
        """Show another plan once it is selected."""
        self.refresh(item)

    def _drawn(self, entries: list[PlanEntry]) -> Any:
        if self._item is None:
            return None
        # Importing HoloViews would delay the first page too much
        from toast_lab.views.step_chart import step_figure

        schedule = _schedule(self._item)
        self._plot = step_figure(self._frame, memory_frame(self._item.cost, schedule))
        for tool in self._plot.select({"type": TapTool}):
            for renderer in tool.renderers:
                on_pick(renderer.data_source, "op", lambda op: self._select(int(op)))
        return self._plot

    def _pick_row(self, row: int) -> None:
        exposed = exposed_frame(self._frame)
        if row < len(exposed):
            self._select(int(exposed["op"][row]))

    def _select(self, op: int) -> None:
        if op < 0:
            self.session.notices.say("The compiler does not say which op this bar belongs to.")
        else:
            self.session.selection.select_op(op)

    def mark(self) -> None:
        """Outline the selected ops, and give one's time and source line, a collective's if any."""
        if self._plot is None or self._item is None:
            return
        from toast_lab.views.step_chart import mark_ops

        ops = self.session.selection.ops
        look.later(mark_ops, self._plot, self._frame, ops)
        self._words.object = self._summary(ops)

    def _summary(self, ops: list[int]) -> Safe:
        bars = self._frame[self._frame["op"].isin(ops)]
        collectives = bars[bars["lane"] == "collective"]
        if not len(bars):
            return one_line(_plan_text(self._item))
        row = (collectives if len(collectives) else bars).iloc[0]
        time_text = f"{row['kind']} takes {seconds_text(row['end_s'] - row['start_s'])}"
        exposed_text = f", {seconds_text(row['exposed_s'])} exposed" if row["exposed_s"] else ""
        program = self.session.loaded.analysis.program
        line = line_text(program.where(int(row["op"])))
        return one_line(f"Selected: {line}: {row['side']} {time_text}{exposed_text}.")

    def _twin_rows(self, entries: list[PlanEntry]) -> Any:
        return shown_exposed(exposed_frame(self._frame))


def _schedule(item: PlanItem) -> Any:
    """The compiler's schedule of a plan; None if it was not compiled or has no schedule."""
    return getattr(item.compiled, "schedule", None)


def _plan_text(item: PlanItem | None) -> str:
    """A sentence about the plan that the picture shows."""
    if item is None:
        return SELECT_A_PLAN
    estimated = f"estimated {seconds_text(item.cost.overlapped_s)} with overlap"
    schedule = _schedule(item)
    if schedule is None:
        notes = [*getattr(item.compiled, "notes", ())]
        reason = next((note for note in notes if note.startswith("no schedule")), "")
        explanation = reason or "compile it to see the compiler's schedule above"
        return f"{item.name}: {estimated}; {explanation}."
    step = (
        f"{seconds_text(schedule.time_s)}, {seconds_text(schedule.exposed_s)} of it exposed "
        "communication"
        if schedule.time_s is not None
        else "without a step time (see the notes)"
    )
    elsewhere = item.compiled.priced_elsewhere(item.problem.machine.name)
    remarks = "".join(f"; {note}" for note in (*schedule.notes, elsewhere) if note)
    left_out = f"; the {schedule.left_out} shortest bars are left out" if schedule.left_out else ""
    return f"{item.name}: compiled {step}; {estimated}{left_out}{remarks}. A click selects the op."
