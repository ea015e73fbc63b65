"""How wide the columns of a table have to be, worked out from the texts.

The browser measures a table once, when it is drawn; values that come later would be cut, and a
number that is cut reads as another one.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from toast_lab.views.text_width import text_px

PADDING_PX = 16
ARROW_PX = 30  #: of a heading that sorts
WIDEST_PX = 360  #: what is longer is cut, and a tip has all of it
MOST_ROWS = 400  #: that are looked at


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
