"""The legend of the dimension graph on its page, which can be folded away."""

from __future__ import annotations

from toast_lab.app import assets
from toast_lab.views.graph_legend import graph_legend
from toast_lab.views.markup import Safe, h, quiet
from toast_lab.views.overlay import Overlay


def legend(folded: bool, overlay: Overlay | None = None) -> Safe:
    """The meaning of the marks, from ``graph_legend``, and what a click does."""
    tip = quiet(
        "Click a marker or a red line to select it, or inside an outline to select the whole set; "
        "click a row's marker twice to unfold the row, or fold it back."
    )
    return h("details", h("summary", "legend"), graph_legend(folded, overlay), tip, open="open")


LEGEND = assets.sheet("legend")
