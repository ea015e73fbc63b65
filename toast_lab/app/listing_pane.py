"""The program listing as a component: coloured dims, selection both ways, no HTML from names.

Only the lines in view are in the page, so that a listing of ten thousand lines costs no more than
one of fifty. The text is sent as one string of JSON, since nested lists would be checked element by
element on the way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import param
from panel.custom import JSComponent

from toast_lab.app import assets
from toast_lab.app.loaded import Selection
from toast_lab.conflicts.analysis import Analysis
from toast_lab.views.program_table import Segment, program_lines


class ListingPane(JSComponent):
    """Lines of a listing; text reaches the page as text nodes only."""

    packed = param.String(default="[]", doc="JSON of [[op, [[text, hue], ...], where], ...]")
    chosen = param.List(default=[], doc="ops that are selected")
    picked = param.List(default=[], doc="[op, counter] of the last click")
    kind: Any = param.Selector(
        default="listing", objects=["listing", "source"], doc="what the lines are"
    )

    _esm = assets.script("listing_pane")
    _stylesheets = [assets.sheet("listing_pane")]  # noqa: RUF012

    def _handle_msg(self, data: Any) -> None:
        # A message arrives at once and in order with other clicks; a parameter change would not
        self.picked = list(data)

    def put(self, lines: Iterable[tuple[int, Sequence[Segment], str]]) -> None:
        """Show lines: (number that a click reports, pieces of text, source line)."""
        self.packed = pack(lines)

    def follow(self, selection: Selection) -> None:
        """Select the names of a line's op that is clicked."""

        def select(event: Any) -> None:
            if event.new:
                selection.select_op(event.new[0])

        self.param.watch(select, "picked")


def packed(analysis: Analysis) -> str:
    """The lines of a program as ``ListingPane.packed``; ten thousand ops take half a second."""
    return pack((line.op, line.segments, line.where) for line in program_lines(analysis))


def pack(lines: Iterable[tuple[int, Sequence[Segment], str]]) -> str:
    """Lines as ``ListingPane.packed`` takes them."""
    return json.dumps(list(lines), ensure_ascii=False, separators=(",", ":"))


def listing_pane(**kwargs: Any) -> ListingPane:
    """A listing that fills its container."""
    return ListingPane(sizing_mode="stretch_both", margin=0, **kwargs)
