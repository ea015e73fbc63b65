"""Buttons that shard the selected colour, each with what it would make of the plan by hand."""

from __future__ import annotations

from typing import Any

import param
from panel.custom import JSComponent

from toast_lab.app import assets, look
from toast_lab.app.items import ActionPrice
from toast_lab.app.session import Session
from toast_lab.views.markup import ESTIMATED, cost_text, h, quiet

MAX_PRICED = 8


class ActionList(JSComponent):
    """Buttons of one colour.

    A click says which colour its button stood for, since another one may have been selected
    meanwhile.  It travels as a message, which Panel handles at once and in order: changes of
    parameters wait for others to come.
    """

    group = param.Integer(default=-1, doc="colour group that the buttons shard")
    rows = param.List(default=[], doc="[axis, bits, label] of each button")
    clicked = param.List(default=[], doc="[group, axis, bits, counter] of the last click")

    _esm = assets.script("action_buttons")
    _stylesheets = [assets.sheet("action_buttons")]  # noqa: RUF012

    def _handle_msg(self, data: Any) -> None:
        self.clicked = list(data)


class ActionButtons(look.Pane):
    """Offer only what changes something.

    For an axis with nothing to offer, give the reason.
    """

    def __init__(self, session: Session, *, reasons: bool = False) -> None:
        super().__init__()
        self.session = session
        self.head = look.text(visible=False)
        self.list = ActionList(sizing_mode="stretch_width", margin=0, visible=False)
        self.list.param.watch(lambda event: self._clicked(*event.new[:3]), "clicked")
        self.notes = look.text(visible=False)
        self.view = look.column(self.head, self.list, self.notes)
        self._reasons = reasons

    def refresh(self) -> None:
        """Price what the selected colour can do now."""
        session, group = self.session, self.session.selection.group
        every = session.hand.action_prices()
        rows = every[:MAX_PRICED]
        notes = [] if rows else [session.hand.why_no_action()]
        if rows and self._reasons:
            notes = session.hand.refusals(every)
        shown = session.loaded.analysis is not None and group is not None
        if shown and group is not None:
            name = session.loaded.analysis.groups[group].name
            self.head.object = h("h2", f"shard {name} on …  ", ESTIMATED)
        self.list.param.update(
            group=-1 if group is None else group,
            rows=[[row.axis, row.bits, _label(row)] for row in rows] if shown else [],
        )
        self.notes.object = h("div", *[quiet(note) for note in notes if note])
        self.head.visible = shown
        self.list.visible, self.notes.visible = bool(shown and rows), bool(shown and notes)

    def _clicked(self, group: int, axis: str, bits: int) -> None:
        session = self.session
        if session.loaded.analysis is None or group != session.selection.group:
            session.notices.say(
                "Another colour was selected before this click arrived; nothing was sharded.",
                "error",
            )
            return
        session.hand.add_action(axis, bits)


def _label(row: ActionPrice) -> str:
    fits = "" if row.fits else ", does not fit"
    return f"{row.axis}{row.side}: {cost_text(row)}{fits}"
