"""The pictures that compare plans, each with its table.

They are time against memory, the cost breakdown and memory timelines. Charts are imported when one
is first drawn, since importing HoloViews would delay the first page too much.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.figure_export import figure_menu
from toast_lab.app.items import NO_COST, PlanItem
from toast_lab.app.saver import ONE_LINE, SMALL, Saver, csv_button, heading
from toast_lab.app.session import Session
from toast_lab.ir.program import Program
from toast_lab.views.breakdown import GROUPINGS, breakdown_frame, breakdown_rates, shown_breakdown
from toast_lab.views.compare_table import PlanEntry
from toast_lab.views.markup import bytes_text, h, one_line, quiet
from toast_lab.views.memory_timeline import (
    held_frame,
    shown_changes,
    shown_held,
    shown_peaks,
    timeline_frame,
)
from toast_lab.views.time_memory import time_memory_frame


class Picture:
    """A figure above a table of the same data, its twin, unless another table is that.

    Args:
        session: the session whose plans are shown.
        save: offers the tables as files.
        select: called with the name of a plan whose marker was clicked.
    """

    title = ""
    figure = ""  #: name of the Bokeh figure
    words = ""
    twin_height = 120
    tappable: Sequence[str] = ()  #: names of renderers

    def __init__(self, session: Session, save: Saver, select: Callable[[str], None]) -> None:
        self.session, self.save, self.select = session, save, select
        self._pane = look.figure(least_px=180)
        self._words = look.text(one_line(self.words), margin=(5, 0, 0, 2))
        self._frame = self._rows([])
        if self.twin_height:
            self.twin = look.table(self._twin_rows([]), height=self.twin_height, selectable=False)
        self.view = look.filled_column(*self._parts(), stylesheets=[look.SCROLLING])

    def _parts(self) -> list[Any]:
        """The parts from top to bottom."""
        menu = figure_menu(self.figure)
        csv = csv_button(self.save, lambda: self.figure, self.raw)
        twins = [self.twin] if self.twin_height else []
        return [heading(self._words, *self._controls(), menu, csv), self._pane, *twins]

    def _controls(self) -> Sequence[Any]:
        """Widgets to the right of the words."""
        return ()

    def refresh(self, _: PlanItem | None) -> None:
        """Redraw everything."""
        if self.session.loaded.problem is None:
            return
        entries = self.session.plans.entries()
        self._frame = self._rows(entries)
        self._pane.object = self._drawn(entries)
        if self.twin_height:
            self.twin.value = self._twin_rows(entries)

    def follow(self, _: PlanItem | None) -> None:
        """Follow the selection of another plan; most pictures show all plans alike."""

    def _rows(self, entries: list[PlanEntry]) -> Any:
        """The data to draw, in SI units."""
        raise NotImplementedError

    def _drawn(self, entries: list[PlanEntry]) -> Any:
        """The figure; a click on one of its ``tappable`` markers selects the plan."""
        from toast_lab.views.chart_style import bokeh_figure

        plot = bokeh_figure(self._chart(entries))
        for renderer in plot.renderers:
            if renderer.name in self.tappable:
                on_pick(renderer.data_source, "plan", self.select)
        return plot

    def _chart(self, entries: list[PlanEntry]) -> Any:
        """What the figure shows, as HoloViews elements."""
        raise NotImplementedError

    def _twin_rows(self, entries: list[PlanEntry]) -> Any:
        """The table, formatted for reading."""
        raise NotImplementedError

    def raw(self) -> Any:
        """The table in SI units, for saving."""
        return self._frame


def on_pick(source: Any, column: str, act: Callable[[Any], Any]) -> None:
    """Call ``act`` with a cell of the row whose mark is clicked."""

    def chosen(_: str, __: Any, indices: list[int]) -> None:
        if indices:
            act(source.data[column][indices[0]])

    source.selected.on_change("indices", chosen)


class TimeMemory(Picture):
    """Time against memory with the Pareto front."""

    title = "Time & memory"
    figure = "time against memory"
    words = "Hollow: estimated. Filled: measured. Lines join the best trade-offs of both."
    twin_height = 0  # the table of plans has the same numbers
    tappable = ("estimated", "measured")

    def _rows(self, entries: list[PlanEntry]) -> Any:
        return time_memory_frame(entries)

    def _chart(self, entries: list[PlanEntry]) -> Any:
        from toast_lab.views.time_memory_chart import time_memory_chart

        limit_bytes = self.session.loaded.problem.memory_limit_bytes
        return time_memory_chart(self._frame, entries, limit_bytes)


class Breakdown(Picture):
    """Where the estimated time goes."""

    title = "Breakdown"
    figure = "cost breakdown"
    words = (
        "Estimated: an op counts as memory traffic if moving its bytes takes longer than its "
        "arithmetic."
    )

    def _controls(self) -> Sequence[Any]:
        self.by = look.switch(
            options=GROUPINGS,
            value="kind",
            margin=(0, 6),
            height=28,
            width=200,
            stylesheets=[look.BUTTON + ONE_LINE],
        )
        self.session.choices.keep("breakdown, by", self.by)
        look.watch(self.by, lambda: self.refresh(None), "value")
        return (self.by,)

    def _rows(self, entries: list[PlanEntry]) -> Any:
        rates = {item.name: breakdown_rates(item.problem) for item in self.session.plans.items}
        return breakdown_frame(
            entries, rates, str(self.by.value) if hasattr(self, "by") else "kind"
        )

    def _chart(self, entries: list[PlanEntry]) -> Any:
        from toast_lab.views.breakdown_chart import breakdown_chart

        return breakdown_chart(self._frame, entries)

    def _twin_rows(self, entries: list[PlanEntry]) -> Any:
        return shown_breakdown(self._frame)


class Timelines(Picture):
    """Memory in program order, and the values in memory when the selected plan peaks."""

    title = "Where memory goes"
    figure = "memory timelines"
    words = "Estimated bytes of one device, op by op. Click a peak to see what is in memory there."
    twin_height = 128
    tappable = ("peaks",)

    def _parts(self) -> list[Any]:
        self._item: PlanItem | None = None
        self._head = look.text(margin=(5, 0, 0, 2))
        self.held = look.table(shown_held(held_frame(NO_COST)), height=128, selectable=1)
        look.on_row(self.held, self._pick)
        csv = csv_button(
            self.save,
            lambda: f"in memory at the peak of {self._item.name}" if self._item else "peak",
            lambda: held_frame(self._item.cost if self._item else NO_COST),
        )
        top, figure, twin = super()._parts()
        self._peaks_head = look.text(margin=(5, 2))
        self._ask = look.button(
            "What would make room?",
            self._ask_for_room,
            width=150,
            height=26,
            margin=(2, 4),
            description="price this plan with one change more: an action, what layers keep, a part "
            "of the batch at a time, a longer axis, another machine",
            stylesheets=[look.BUTTON + SMALL],
        )
        self.changes = look.table(shown_changes(()), height=self.twin_height, selectable=False)
        peaks = pn.Column(heading(self._peaks_head, self._ask), twin, self.changes, margin=0)
        for part in (peaks, self.held, self.changes):
            part.sizing_mode = "stretch_width"
        look.watch(self.session.questions, self._show_room, "rooms")
        look.watch(self.session.work, self._show_busy, "changes")
        self._show_room()
        held = look.column(heading(self._head, csv), self.held, margin=(0, 0, 0, 10))
        return [top, figure, look.row(peaks, held, height=160)]

    def _where(self) -> list[str]:
        return source_lines_of(self.session)

    def _rows(self, entries: list[PlanEntry]) -> Any:
        """None: ``raw`` builds the table when it is saved, with a row for each op of each plan."""
        return None

    def _chart(self, entries: list[PlanEntry]) -> Any:
        from toast_lab.views.memory_chart import memory_chart

        limit_bytes = self.session.loaded.problem.memory_limit_bytes
        return memory_chart(entries, limit_bytes, self._where())

    def refresh(self, item: PlanItem | None) -> None:
        """Redraw everything, with the values in memory at the selected plan's peak."""
        super().refresh(item)
        self.follow(item)

    def follow(self, item: PlanItem | None) -> None:
        """Show the values in memory at the selected plan's peak."""
        self._item = item
        self._show_room()
        if item is None:
            return
        self.held.value = shown_held(held_frame(item.cost))
        summary = (
            f"In memory where {item.name} peaks: {bytes_text(item.cost.peak_bytes)} at op "
            f"{item.cost.peak_op}. A click selects the value."
        )
        self._head.object = one_line(summary)

    def _ask_for_room(self) -> None:
        if self._item is not None:
            self.session.questions.ask_for_room(self._item)

    def _show_busy(self) -> None:
        """Offer the question while no job runs."""
        self._ask.disabled = self.session.work.busy

    def _show_room(self) -> None:
        """Show what would make room for the selected plan, once it was asked, or else the peaks."""
        item = self._item
        room = None if item is None else self.session.questions.room_of(item)
        self._ask.visible = item is not None and room is None
        self._show_busy()
        self.twin.visible, self.changes.visible = room is None, room is not None
        if item is None or room is None:
            self._peaks_head.object = quiet("Peaks")
            return
        self.changes.value = shown_changes(room.changes)
        words = f"{item.name} with one change more{' *' if room.left_out else ''}"
        title = "\n".join([words, *room.left_out])
        self._peaks_head.object = h("p", words, cls="quiet one", title=title)

    def _pick(self, row: int) -> None:
        """Select the names of a value in the listing and the graph."""
        item = self._item
        if item is not None and row < len(item.cost.at_peak):
            held, program = item.cost.at_peak[row], item.plan.program
            values = [
                value
                for value in program.results(held.op)
                if program.value_name[value] == held.value
            ]
            names = [name for value in values for name in program.def_names(value)]
            self.session.selection.select(tuple(names) or tuple(program.factors(held.op)))

    def _twin_rows(self, entries: list[PlanEntry]) -> Any:
        return shown_peaks(entries, self._where() if entries else [])

    def raw(self) -> Any:
        """The table in SI units, for saving."""
        return timeline_frame(self.session.plans.entries(), self._where())


def source_lines_of(session: Session) -> list[str]:
    """Source line of each op of the loaded program, by op index; arguments are ops too."""
    return list(_lines_of(session.loaded.analysis.program))


@functools.lru_cache(maxsize=2)
def _lines_of(program: Program) -> tuple[str, ...]:
    return tuple(program.source_lines())
