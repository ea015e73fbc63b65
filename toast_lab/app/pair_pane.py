"""Two listings side by side as a component; text reaches the page as text nodes only."""

from __future__ import annotations

from typing import Any

import param
from panel.custom import JSComponent

from toast_lab.app import assets
from toast_lab.views.side_by_side import Pair


class PairPane(JSComponent):
    """Lines of two plans in two columns that scroll together.

    Lines that differ are marked and carry a sign.
    """

    rows = param.List(
        default=[], doc="[op, left, right, differs, where], or [number of lines left out]"
    )
    chosen = param.List(default=[], doc="ops that are selected")
    picked = param.List(default=[], doc="[op, counter] of the last click")

    _esm = assets.script("pair_pane")
    _stylesheets = [assets.sheet("pair_pane")]  # noqa: RUF012

    def fill(self, pairs: list[Pair | int]) -> None:
        """Show rows; a number stands for lines left out."""
        self.rows = [
            [pair]
            if isinstance(pair, int)
            else [pair.op, pair.left, pair.right, pair.differs, pair.where]
            for pair in pairs
        ]


def pair_pane(**kwargs: Any) -> PairPane:
    """Two listings that fill their container."""
    return PairPane(sizing_mode="stretch_both", margin=0, **kwargs)
