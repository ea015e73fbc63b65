"""Which slice and mesh to take: a view of the first page, with a map of all that was looked at."""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
import panel as pn
from bokeh.models import TapTool

from toast_lab.advice.advice_result import AdviceRow
from toast_lab.advice.advisor import SECONDS
from toast_lab.app import look
from toast_lab.app.checked import CheckedField, number
from toast_lab.app.figure_export import figure_menu
from toast_lab.app.from_search import set_up_to_compare
from toast_lab.app.saver import csv_button, heading, saver
from toast_lab.app.session import Session
from toast_lab.machines.catalogue import MACHINES
from toast_lab.views.markup import ESTIMATED, bytes_text, facts, h, join, quiet, seconds_text

#: choices along the axes of the map, by what they are called on the page
CHOICES = {
    "devices": "devices",
    "size of the last axis": "last_axis",
    "number of axes": "axes",
    "mesh": "mesh",
    "examples at once": "batch",
    "layers keep": "keeps",
    "plan": "plan",
}
VALUES = {"Time": "time_s", "Memory": "peak_bytes", "Cost": "device_s"}
MOST_DEVICES = 1_000_000
DEVICES = 64
DRAW_EVERY_S = 1.0  #: while the work goes on
COLUMNS = ("devices", "mesh", "step", "peak", "fits", "an example", "keeps", "batch", "plan")
HELP = (
    "On each mesh shape of each slice the plans that experts would try are priced, then searches "
    "look for better ones where that may matter. Where memory binds, layers that compute again and "
    "parts of the batch are tried, too."
)


class AdvisePage:
    """Settings on the left, the map and its table in the centre, answers on the right."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._rows: tuple[AdviceRow, ...] = ()
        self._chosen = ""  #: the set-up that is looked at
        self._shown: tuple[Any, ...] = ()
        self._drawn_s = -DRAW_EVERY_S
        self.left = self._make_left()
        self.centre = self._make_centre()
        self.right = self._make_right()
        for name, widget in {
            "devices": self.devices.input,
            "memory": self.memory.input,
            "seconds": self.seconds.input,
            "price": self.price.input,
            "batch": self.batch,
            "recompute": self.recompute,
            "x": self.x,
            "y": self.y,
            "value": self.value,
        }.items():
            session.choices.keep(f"advise, {name}", widget)
        look.watch(session.mesh_advice, self.refresh, "changes")
        look.watch(session.work, self._check, "changes", "job")
        look.watch(session.loaded, self._follow, "machine", "own_machines", "analysis")
        for widget in (self.x, self.y, self.value):
            look.watch(widget, self._draw, "value")
        self._follow()
        self.refresh()

    def _make_left(self) -> Any:
        session = self.session
        checked: dict[str, Any] = {"on_check": self._check}
        self.machine = pn.widgets.Select(name="hardware", options=list(MACHINES), **look.FIELD)
        self.devices = CheckedField(
            "devices at most",
            str(DEVICES),
            number(1, MOST_DEVICES, whole=True),
            description="All slices of the hardware up to this size.",
            **checked,
        )
        self.memory = CheckedField(
            "memory limit, GiB",
            f"{session.loaded.memory_gib:g}" if session.loaded.memory_gib else "",
            number(0.001, 1e6, unit=" GiB", empty="the machine's"),
            placeholder="the machine's",
            **checked,
        )
        self.price = CheckedField(
            "price an hour",
            "",
            number(1e-6, 1e9, empty="cost is in seconds of a device"),
            placeholder="none",
            description="Of one device, in any currency.",
            **checked,
        )
        self.seconds = CheckedField(
            "search seconds",
            f"{SECONDS:g}",
            number(1, 86_400, unit=" seconds"),
            description="Of all searches together; pricing the plans of experts comes on top.",
            **checked,
        )
        box: dict[str, Any] = {"value": True, "margin": (3, 0), "stylesheets": [look.INPUT]}
        self.batch = pn.widgets.Checkbox(name="also parts of the batch", **box)
        self.recompute = pn.widgets.Checkbox(name="also layers that compute again", **box)
        self.run = look.button("Look for the best mesh", self._run, button_type="primary")
        self.stop = look.button("Stop and keep", session.mesh_advice.stop, disabled=True)
        self._why_not = look.text(visible=False)
        gap = pn.Spacer(width=8)
        return look.side(
            look.button("← Back to the program", lambda: setattr(session, "step", "load")),
            look.text(h("h2", "which mesh")),
            self.machine,
            look.row(self.devices, gap, self.memory),
            look.row(self.price, gap.clone(), self.seconds),
            self.batch,
            self.recompute,
            self.run,
            self._why_not,
            self.stop,
            look.text(quiet(HELP), margin=(8, 0, 0, 0)),
            width=290,
        )

    def _make_centre(self) -> Any:
        fixed: dict[str, Any] = {"sizing_mode": "fixed", "width": 155, "margin": (0, 8, 0, 0)}
        sheets = [look.INPUT]
        self.x = pn.widgets.Select(
            name="across", options=CHOICES, value="last_axis", stylesheets=sheets, **fixed
        )
        self.y = pn.widgets.Select(
            name="upwards", options=CHOICES, value="devices", stylesheets=sheets, **fixed
        )
        self.value = look.switch(options=VALUES, value="time_s", width=200, align="end", height=30)
        self._head = look.text()
        self._map = look.figure(least_px=180)
        self._map_box = look.filled_column(self._map, stylesheets=[look.FILL], visible=False)
        self.table = look.table(list(COLUMNS), height=200)
        look.on_row(self.table, lambda row: self._choose(str(self._rows[row])))
        save = saver(self.session.notices.say)
        self._below = look.column(
            heading(
                look.text(h("h2", "set-ups, the best first")),
                csv_button(save, lambda: "set-ups", self._raw),
            ),
            self.table,
            save,
            visible=False,
        )
        return look.canvas(
            look.row(
                self.x,
                self.y,
                self.value,
                pn.Spacer(),
                figure_menu("choices", align="end"),
                height=54,
            ),
            self._head,
            self._map_box,
            self._below,
        )

    def _make_right(self) -> Any:
        self._answers = look.text()
        self.open = look.button(
            "Open this plan →", self._open, button_type="primary", disabled=True
        )
        self._facts = look.text()
        self._remarks = look.text()
        return look.side(self._facts, self.open, self._answers, self._remarks, width=300)

    # -- asking ------------------------------------------------------------------------------------
    def _follow(self) -> None:
        loaded = self.session.loaded
        self.machine.param.update(options=[*MACHINES, *loaded.own_machines], value=loaded.machine)
        self._check()

    def _check(self) -> None:
        """Say what stands in the way of asking."""
        if not hasattr(self, "stop"):
            return
        session = self.session
        fields = (self.devices, self.memory, self.price, self.seconds)
        errors = [field.error for field in fields if field.error]
        if session.loaded.analysis is None:
            errors = ["load a model first"]
        self.run.disabled = session.work.busy or bool(errors)
        self.stop.disabled = not session.mesh_advice.running
        self._why_not.visible = bool(errors)
        self._why_not.object = h("p", f"Not yet: {errors[0]}.", cls="red") if errors else ""

    def _run(self) -> None:
        self._chosen = ""
        self.session.mesh_advice.start(
            str(self.machine.value),
            int(self.devices.value),
            self.memory.value,
            price_per_device_hour=self.price.value,
            seconds=float(self.seconds.value),
            batch=bool(self.batch.value),
            recompute=bool(self.recompute.value),
        )

    # -- showing -----------------------------------------------------------------------------------
    def tick(self) -> None:
        """Draw rows that came since the map was drawn last; called at each tick of the page."""
        if self._is_due():
            self._draw()

    def _is_due(self) -> bool:
        is_late = time.monotonic() - self._drawn_s >= DRAW_EVERY_S
        return self._state() != self._shown and (is_late or not self.session.mesh_advice.running)

    def _state(self) -> tuple[Any, ...]:
        advice = self.session.mesh_advice
        return advice.state, tuple(map(id, advice.state.rows)) if advice.state else (), self._chosen

    def refresh(self) -> None:
        """Show what the work does now, and its rows."""
        self._check()
        state, running = self.session.mesh_advice.state, self.session.mesh_advice.running
        if state is None:
            self._head.object = h(
                "p",
                "How many devices, in which mesh, with how much of the batch at a time, and what "
                "should layers compute again? Every answer here is a plan that can be opened.",
                cls="quiet",
            )
        else:
            name = h("b", state.model.name)
            activity = f"{state.stage} …" if running else "over" if state.end else "ended early"
            of = ""
            if state.advice is not None:
                machine, limit = state.advice.terms.machine, state.advice.terms.memory_limit_bytes
                of = f" on {machine.name}, {bytes_text(limit)} a device"
            text = f"{of} · {len(state.rows)} set-ups · {activity}"
            self._head.object = h("p", name, text, cls="one", role="status", title=text)
        if self._is_due():
            self._draw()

    def _draw(self) -> None:
        """Draw the map and its table anew."""
        self._drawn_s, self._shown = time.monotonic(), self._state()
        state = self.session.mesh_advice.state
        self._rows = state.rows if state is not None else ()
        has_rows = bool(self._rows)
        self._below.visible = has_rows
        self._map_box.visible = has_rows
        if has_rows:
            self._draw_map()
        self.table.value = pd.DataFrame([_cells(row) for row in self._rows], columns=COLUMNS)
        self._mark()
        self._show_answers()

    def _draw_map(self) -> None:
        # Importing HoloViews would delay the first page too much
        from toast_lab.views.chart_style import bokeh_figure
        from toast_lab.views.choice_map import SET_UPS, choice_map

        x, y, value = str(self.x.value), str(self.y.value), str(self.value.value)
        if x == y:
            x = next(choice for choice in CHOICES.values() if choice != y)
            self.x.value = x
            return
        frame = pd.DataFrame(self.session.mesh_advice.state.advice.flat_rows())
        frame = frame.sort_values([y, x], kind="stable", ignore_index=True)
        figure = bokeh_figure(choice_map(frame, x, y, value))
        (cells,) = [renderer for renderer in figure.renderers if renderer.name == SET_UPS]
        figure.select_one(TapTool).renderers = [cells]

        def tapped(_: str, __: Any, indices: list[int]) -> None:
            if indices:
                self._choose(str(cells.data_source.data["name"][indices[0]]))

        cells.data_source.selected.on_change("indices", tapped)
        self._map.object = figure

    def _raw(self) -> pd.DataFrame:
        return pd.DataFrame([row.flat() for row in self._rows]).drop(columns=["actions"])

    @property
    def chosen(self) -> AdviceRow | None:
        """The set-up that is looked at: the best one, unless the user has chosen another."""
        rows = self._rows
        return next((row for row in rows if str(row) == self._chosen), next(iter(rows), None))

    def _choose(self, set_up: str) -> None:
        self._chosen = set_up
        self._shown = self._state()
        self._mark()

    def _mark(self) -> None:
        """Show the set-up that is looked at."""
        row = self.chosen
        self.open.disabled = row is None
        self._facts.object = "" if row is None else _row_facts(row)
        self.table.selection = [] if row is None else [self._rows.index(row)]

    def _show_answers(self) -> None:
        state = self.session.mesh_advice.state
        if state is None or state.advice is None or not state.rows:
            self._answers.object = self._remarks.object = ""
            return
        answers = state.end.answers if state.end is not None else state.advice.answers
        self._answers.object = join(
            h("h2", "answers ", ESTIMATED), *[h("p", answer) for answer in answers]
        )
        remarks = state.end.remarks if state.end is not None else ()
        self._remarks.object = (
            join(h("h2", "what was left out"), *map(quiet, remarks)) if remarks else ""
        )

    def _open(self) -> None:
        row = self.chosen
        if row is not None:
            set_up_to_compare(self.session, row)


def _cost_text(row: AdviceRow) -> str:
    amount = row.price_per_example
    return seconds_text(row.device_s) if amount is None else f"{amount:.3g}"


def _cells(row: AdviceRow) -> tuple[Any, ...]:
    return (
        row.devices,
        row.shape,
        seconds_text(row.time_s),
        bytes_text(row.peak_bytes),
        "yes" if row.fits else "no",
        _cost_text(row),
        row.choice.policy or "all",
        row.batch_text,
        row.origin,
    )


def _row_facts(row: AdviceRow) -> Any:
    unit = "an example" if row.terms.examples else "a step"
    in_seconds = " of a device" if row.price_per_example is None else ""
    rows = [
        ("devices", str(row.devices)),
        ("mesh", str(row.mesh)),
        ("links", row.links),
        ("step", seconds_text(row.time_s)),
        ("peak", f"{bytes_text(row.peak_bytes)}{'' if row.fits else ', does not fit'}"),
        (unit, f"{_cost_text(row)}{in_seconds}"),
        ("layers keep", row.keeps),
        ("batch", row.batch_text),
        ("plan", row.origin),
    ]
    return join(h("h2", "set-up ", ESTIMATED), facts(rows))
