"""Buttons that shard the selected colour, each with the price that the plan by hand would have."""

from __future__ import annotations

from typing import Any

import param
from panel.custom import JSComponent

from toast_lab.app import assets, look
from toast_lab.app.items import ActionPrice
from toast_lab.app.session import Session
from toast_lab.errors import ToastError
from toast_lab.views.markup import ESTIMATED, cost_text, h, quiet

MAX_PRICED = 8


class ActionList(JSComponent):
    """The buttons of one colour.

    A click names the colour of its button, since another one may have been selected meanwhile. It
    is sent as a message, which Panel handles at once and in order: changes of parameters wait for
    further changes.
    """

    group = param.Integer(default=-1, doc="colour group that the buttons shard")
    rows = param.List(default=[], doc="[axis, bits, label] of each button")
    clicked = param.List(default=[], doc="[group, axis, bits, counter] of the last click")

    _esm = assets.script("action_buttons")
    _stylesheets = [assets.sheet("action_buttons")]  # noqa: RUF012

    def _handle_msg(self, data: Any) -> None:
        self.clicked = list(data)


class ColourName(JSComponent):
    """The name of the selected colour, which can be changed in place.

    Enter sends what was typed, as a message; a name that is refused stays in the field, with the
    reason below it.
    """

    group = param.Integer(default=-1, doc="colour group whose name it is")
    name_shown = param.String(default="")
    refused = param.List(default=[], doc="[reason, counter] of the last name that was refused")
    sent = param.List(default=[], doc="[group, name, counter] of the last name that was sent")

    _esm = assets.script("colour_name")
    _stylesheets = [assets.sheet("colour_name")]  # noqa: RUF012

    def _handle_msg(self, data: Any) -> None:
        self.sent = list(data)


class ActionButtons(look.Pane):
    """The name of the selected colour, and buttons for those actions that would change the plan.

    An axis without such an action is listed with the reason.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.head = look.text(visible=False)
        self.list = ActionList(sizing_mode="stretch_width", margin=0, visible=False)
        self.list.param.watch(lambda event: self._clicked(*event.new[:3]), "clicked")
        self.notes = look.text(visible=False)
        self.colour = ColourName(sizing_mode="stretch_width", margin=(4, 0, 0, 0), visible=False)
        self.colour.param.watch(lambda event: self._rename(*event.new), "sent")
        self.view = look.column(self.colour, self.head, self.list, self.notes)

    def refresh(self) -> None:
        """Price the actions that the selected colour has now."""
        session, group = self.session, self.session.selection.group
        prices = session.hand.action_prices()
        rows = prices[:MAX_PRICED]
        notes = session.hand.refusals(prices) if rows else [session.hand.why_no_action()]
        is_shown = session.loaded.analysis is not None and group is not None
        if is_shown and group is not None:
            name = session.loaded.analysis.groups[group].name
            self.head.object = h("h2", f"shard {name} on …  ", ESTIMATED)
            self.colour.param.update(group=group, name_shown=name)
        self.list.param.update(
            group=-1 if group is None else group,
            rows=[[row.axis, row.bits, _label(row)] for row in rows] if is_shown else [],
        )
        self.notes.object = h("div", *[quiet(note) for note in notes if note])
        self.head.visible = self.colour.visible = is_shown
        self.list.visible, self.notes.visible = bool(is_shown and rows), bool(is_shown and notes)

    def _rename(self, group: int, name: str, count: int) -> None:
        analysis = self.session.loaded.analysis
        try:
            if analysis is None or group != self.session.selection.group:
                raise ToastError("Another colour was selected before this name arrived.")
            self.session.rename_colour(analysis.groups[group].name, name.strip())
        except ToastError as error:
            self.colour.refused = [str(error), count]

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
    misfit = "" if row.fits else ", does not fit"
    return f"{row.axis}{row.side}: {cost_text(row)}{misfit}"
