"""What a visitor has chosen on the pages themselves: tabs, switches, and text that is typed."""

from __future__ import annotations

import contextlib
from typing import Any

import param

from toast_lab.app.state_part import StatePart


class PageChoices(StatePart):
    """Values of widgets that stand for nothing else in the session."""

    values: Any = param.Dict(default={}, doc="by names of the widgets")

    def keep(self, name: str, widget: Any, parameter: str = "value") -> None:
        """Keep what is chosen in a widget, and begin with what was chosen on the page before."""
        widget.param.watch(lambda event: self.values.update({name: event.new}), parameter)
        if name in self.values:
            with contextlib.suppress(ValueError):  # there is no such choice any more
                setattr(widget, parameter, self.values[name])
