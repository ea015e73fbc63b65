"""Buttons that shard the selected colour, each with what it would make of the plan by hand."""

from __future__ import annotations

import functools
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.items import ActionPrice
from toast_lab.app.markup import bytes_text, h, seconds_text
from toast_lab.app.session import Session

MAX_PRICED = 8


class ActionButtons(pn.viewable.Viewer):
    """Only what changes something is offered; for an axis with nothing to offer there is the reason."""

    def __init__(self, session: Session, *, reasons: bool = False, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self.column = pn.Column(sizing_mode="stretch_width", margin=0)
        self._reasons = reasons
        self._shown: tuple[Any, ...] = ()

    @property
    def objects(self) -> list[Any]:
        """What is shown."""
        return list(self.column.objects)

    def refresh(self) -> None:
        """Price what the selected colour can do now."""
        session = self.session
        every = session.action_prices()
        rows = every[:MAX_PRICED]
        notes = [] if rows else [session.why_no_action()]
        if rows and self._reasons:
            notes = session.refusals(every)
        shown = (id(session.analysis), session.selected_group, tuple(rows), tuple(notes))
        if shown != self._shown:  # else a click that is on its way would meet no button
            self._shown = shown
            self.column.objects = self._made(rows, notes)

    def _made(self, rows: list[ActionPrice], notes: list[str]) -> list[Any]:
        session = self.session
        group = session.selected_group
        if session.analysis is None or group is None:
            return []
        name = session.analysis.groups[group].name
        objects: list[Any] = [look.text(h("h2", f"shard {name} on …  ", h("span", "estimated", cls="tag estimated")))]
        for row in rows:
            label = f"{row.axis}{row.side}: {seconds_text(row.time_s)}, {bytes_text(row.peak_bytes)}" + (
                "" if row.fits else ", does not fit"
            )
            button = look.button(label, left=True)
            button.on_click(functools.partial(lambda row, _: session.add_action(row.axis, row.bits), row))
            objects.append(button)
        return [*objects, *(look.text(h("p", note, cls="quiet")) for note in notes if note)]

    def __panel__(self) -> Any:
        return self.column
