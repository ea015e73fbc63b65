"""Widths of the columns of a table, computed from their texts.

The browser measures a table only once, when it is drawn; later values would be cut off, and a
number that is cut off reads as another number.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from toast_lab.views.text_width import text_px

PADDING_PX = 16
ARROW_PX = 30  #: of the arrow in a heading that sorts
WIDEST_PX = 360  #: longer texts are cut off, and a tooltip has all of them
MOST_ROWS = 400  #: rows that are measured, at most


def column_widths(
    frame: pd.DataFrame, titles: Mapping[str, str], *, sorts: bool = False
) -> dict[str, int]:
    """Width of each column in px; with ``sorts``, its heading has an arrow."""
    return {
        str(column): min(
            WIDEST_PX,
            PADDING_PX
            + int(
                max(
                    # titles are bold
                    1.1 * text_px(titles.get(column, str(column))) + ARROW_PX * sorts,
                    *map(text_px, {str(cell) for cell in frame[column].head(MOST_ROWS)}),
                    0.0,
                )
            ),
        )
        for column in frame.columns
    }
